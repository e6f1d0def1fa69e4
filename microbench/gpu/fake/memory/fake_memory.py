"""Memory and caches of the simulated GPU: every method of the protocol DeviceMemory, in the scope of one case."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.gpu.api import IntArray
from microbench.gpu.fake.links.copies import FakeTransfer
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory import accesses, driver, streams
from microbench.gpu.fake.memory.chase import FakeLocalChase
from microbench.gpu.fake.memory.levels import FakeLevel
from microbench.gpu.fake.memory.moving import FakeOperations
from microbench.gpu.fake.memory.room import Room
from microbench.gpu.memory_api import (
    AllocationWay,
    AtomicType,
    DataType,
    EngineWay,
    Implementation,
    RandomAccess,
    Space,
    Spread,
    StreamKernel,
    StrideAccess,
)
from microbench.model import Fact

ARRAYS = 3


class FakeMemory:
    """See DeviceMemory. What is made holds its room until the case ends."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._room = Room(machine.costs.memory)

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        """See DeviceMemory."""
        return streams.shapes(self._open().costs, implementation)

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> FakeTransfer:
        """See DeviceMemory."""
        self._room.hold(("arrays", dtype, size_bytes), ARRAYS * size_bytes)
        return streams.stream(self._open(), kernel, dtype, implementation, size_bytes, shape)

    def level(self, space: Space, footprint_bytes: int) -> FakeLevel:
        """See DeviceMemory."""
        self._hold_global("level", space, footprint_bytes)
        return FakeLevel(self._open(), space, footprint_bytes)

    def chase(self, space: Space, footprint_bytes: int) -> FakeLocalChase:
        """See DeviceMemory."""
        self._hold_global("chase", space, footprint_bytes)
        return FakeLocalChase(self._open(), space, footprint_bytes)

    def _hold_global(self, what: str, space: Space, footprint_bytes: int) -> None:
        if space == "global":
            self._room.hold((what, footprint_bytes), footprint_bytes)

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> FakeTransfer:
        """See DeviceMemory."""
        self._room.hold(("occupied", size_bytes), size_bytes)
        return streams.occupied(self._open(), blocks_per_sm, block_threads, loads, size_bytes)

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
        """See DeviceMemory."""
        self._room.hold(("strided", size_bytes), size_bytes)
        return accesses.strided(self._open(), access, stride_bytes, size_bytes)

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> FakeOperations:
        """See DeviceMemory."""
        self._room.hold(("scattered", footprint_bytes), footprint_bytes)
        return accesses.scattered(self._open(), access, footprint_bytes)

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> FakeOperations:
        """See DeviceMemory."""
        return accesses.atomics(self._open(), space, dtype, spread)

    def engine(self, way: EngineWay, size_bytes: int) -> FakeTransfer:
        """See DeviceMemory. A 2D copy's rows are half their pitch, at both ends."""
        blocks = {"copy": 2, "copy_2d": 4, "memset": 1}
        self._room.hold((way, size_bytes), blocks[way] * size_bytes)
        return driver.engine(self._open(), way, size_bytes)

    def allocating(self, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
        """See DeviceMemory."""
        return driver.allocating(self._open(), self._room, way, size_bytes, count)

    def capacity(self) -> tuple[Fact, ...]:
        """See DeviceMemory."""
        self._open()
        return self._room.capacity()

    def peers(self) -> Fact:
        """See DeviceMemory."""
        return self._room.peers()

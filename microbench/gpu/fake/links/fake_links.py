"""Links of the simulated GPU: every method of the protocol Links, in the scope of one case."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.gpu.api import IntArray
from microbench.gpu.fake.links.chase import FakeChase, host_chase, peer_chase
from microbench.gpu.fake.links.copies import FakeTransfer, engine_copy, kernel_copy
from microbench.gpu.fake.links.managed import FakeManaged
from microbench.gpu.fake.links.pinning import pinning
from microbench.gpu.fake.links.pipeline import FakePipeline
from microbench.gpu.fake.links.shared import FakeConcurrent, FakeDuplex, FakePeer, require_pair
from microbench.gpu.fake.links.state import state
from microbench.gpu.fake.machine import Machine
from microbench.gpu.link_api import Access, Direction, HostMemory, ManagedWay, Order, PeerWay, PinningWay
from microbench.model import Fact


class FakeLinks:
    """See Links."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def state(self) -> tuple[Fact, ...]:
        """See Links."""
        return state(self._open().costs)

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> FakeTransfer:
        """See Links."""
        return engine_copy(self._open(), direction, memory, size_bytes, node)

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> FakeTransfer:
        """See Links."""
        return kernel_copy(self._open(), access, width_bytes, offset_bytes, size_bytes)

    def duplex(self, size_bytes: int) -> FakeDuplex:
        """See Links."""
        return FakeDuplex(self._open(), size_bytes)

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> FakeChase:
        """See Links."""
        return host_chase(self._open(), footprint_bytes, stride_bytes, order)

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        """See Links."""
        return pinning(self._open(), way, size_bytes, count)

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> FakePipeline:
        """See Links."""
        return FakePipeline(self._open(), size_bytes, chunks, streams, kernel_ns)

    def managed(self, way: ManagedWay, size_bytes: int) -> FakeManaged:
        """See Links."""
        return FakeManaged(self._open(), way, size_bytes)

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> FakePeer:
        """See Links."""
        return FakePeer(self._open(), first, second, way, access, size_bytes)

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> FakeChase:
        """See Links."""
        require_pair(self._open(), first, second)
        return peer_chase(self._machine, footprint_bytes, stride_bytes)

    def gpus(self) -> Sequence[int]:
        """See Links."""
        return range(self._open().costs.gpus)

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> FakeConcurrent:
        """See Links."""
        return FakeConcurrent(self._open(), direction, gpus, size_bytes)

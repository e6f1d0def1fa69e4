"""Which class or function carries out each operation of Graphs, Links, DeviceMemory and Compute when simulated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from microbench.core.model import Fact, Telemetry
from microbench.core.ops import IntArray
from microbench.gpu.fake import memory
from microbench.gpu.fake.compute import (
    FakeBracket,
    FakeProblem,
    Product,
    arithmetic,
    chain,
    require_type,
    tensor,
    unit_of,
)
from microbench.gpu.fake.device import POWER_CAP
from microbench.gpu.fake.graphs import FakeChain, FakeLoop, FakeShaped, FakeStep, changes, lives
from microbench.gpu.fake.links import (
    FakeConcurrent,
    FakeDuplex,
    FakePeer,
    FakePipeline,
    FakeTransfer,
    engine_copy,
    kernel_copy,
    pinning,
    require_pair,
)
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.managed import FakeChase, FakeManaged, host_chase, peer_chase, state
from microbench.gpu.fake.memory import FakeLevel, FakeLocalChase, FakeOperations, Room
from microbench.gpu.protocol.compute import GemmData, GemmType
from microbench.gpu.protocol.graphs import Footprint
from microbench.gpu.protocol.links import Direction, HostMemory
from microbench.gpu.protocol.memory import (
    AllocationWay,
    DataType,
    EngineWay,
    Implementation,
    RandomAccess,
    Space,
    StreamKernel,
    StrideAccess,
)
from microbench.gpu.protocol.part import Part, built

ARRAYS = 3
L2S_OF_COPIES = 4
MOST_COPIES = 64


class FakePart(Part[Machine]):
    """A part of the simulated GPU in the scope of one case: using it after that case raises MeasurementError."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._scope = machine.scope
        self._room = Room(machine.costs.memory)

    def subject(self) -> Machine:
        self._subject.check(self._scope)
        return self._subject

    def _hold(self, key: Hashable, size_bytes: int) -> Machine:
        """Take device memory until the case ends, once for each key. Raises Skip if there is not enough."""
        self._room.hold(key, size_bytes)
        return self.subject()


class FakeGraphs(FakePart):
    """CUDA Graphs of one case."""

    lives = built(lives)
    changes = built(changes)
    chain = built(FakeChain)
    shape = built(FakeShaped)
    loop = built(FakeLoop)
    step = built(FakeStep)

    def footprint(self, nodes: int, copies: int) -> Footprint:
        machine = self.subject()
        costs = machine.costs.graphs
        machine.clock.pass_ns(copies * sum(act.at(nodes) for act in (costs.instantiate, costs.upload, costs.destroy)))
        return Footprint(costs.device_memory.at(nodes), costs.host_memory.at(nodes))


class FakeLinks(FakePart):
    """The links of one case."""

    kernel_copy = built(kernel_copy)
    duplex = built(FakeDuplex)
    chase = built(host_chase)
    pinning = built(pinning)
    pipeline = built(FakePipeline)
    managed = built(FakeManaged)
    peer = built(FakePeer)
    concurrent = built(FakeConcurrent)

    def state(self) -> tuple[Fact, ...]:
        return state(self.subject().costs)

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> FakeTransfer:
        return engine_copy(self.subject(), direction, memory, size_bytes, node)

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> FakeChase:
        require_pair(self.subject(), first, second)
        return peer_chase(self.subject(), footprint_bytes, stride_bytes)

    def gpus(self) -> Sequence[int]:
        return range(self.subject().costs.gpus)


class FakeMemory(FakePart):
    """Memory and caches of one case. What is made holds its memory until the case ends."""

    atomics = built(memory.atomics)

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        return memory.shapes(self.subject().costs, implementation)

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> FakeTransfer:
        machine = self._hold(("arrays", dtype, size_bytes), ARRAYS * size_bytes)
        return memory.stream(machine, kernel, dtype, implementation, size_bytes, shape)

    def level(self, space: Space, footprint_bytes: int) -> FakeLevel:
        machine = self._hold(("level", space, footprint_bytes), footprint_bytes if space == "global" else 0)
        return FakeLevel(machine, space, footprint_bytes)

    def chase(self, space: Space, footprint_bytes: int) -> FakeLocalChase:
        machine = self._hold(("chase", space, footprint_bytes), footprint_bytes if space == "global" else 0)
        return FakeLocalChase(machine, space, footprint_bytes)

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> FakeTransfer:
        machine = self._hold(("occupied", size_bytes), size_bytes)
        return memory.occupied(machine, blocks_per_sm, block_threads, loads, size_bytes)

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
        return memory.strided(self._hold(("strided", size_bytes), size_bytes), access, stride_bytes, size_bytes)

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> FakeOperations:
        return memory.scattered(self._hold(("scattered", footprint_bytes), footprint_bytes), access, footprint_bytes)

    def engine(self, way: EngineWay, size_bytes: int) -> FakeTransfer:
        """The rows of a 2D copy are half their pitch, at both ends."""
        buffers = {"copy": 2, "copy_2d": 4, "memset": 1}
        return memory.engine(self._hold((way, size_bytes), buffers[way] * size_bytes), way, size_bytes)

    def allocating(self, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
        return memory.allocating(self.subject(), self._room, way, size_bytes, count)

    def capacity(self) -> tuple[Fact, ...]:
        self.subject()
        return self._room.capacity()

    def peers(self) -> Fact:
        return self._room.peers()


class FakeCompute(FakePart):
    """Tensor cores and ALUs of one case. Problems hold their memory until the case ends."""

    bracket = built(FakeBracket)
    tensor = built(tensor)
    arithmetic = built(arithmetic)
    chain = built(chain)

    def problem(
        self,
        dtype: GemmType,
        rows: int,
        columns: int,
        depth: int,
        data: GemmData = "normal",
        *,
        beyond_l2: bool = False,
    ) -> FakeProblem:
        machine = self.subject()
        require_type(machine.costs, unit_of(dtype))
        product = Product(dtype, rows, columns, depth, data, beyond_l2)
        copies = 1
        if beyond_l2:  # as many as it takes to fill the L2 several times, as far as memory allows
            wanted = -(-L2S_OF_COPIES * machine.costs.memory.l2_bytes // product.b_bytes)
            more_fit = (self._room.free_bytes - self._needed_bytes(product, 1)) // self._whole(product.b_bytes)
            copies = max(min(wanted, MOST_COPIES, 1 + more_fit), 1)
        self._room.hold(product, self._needed_bytes(product, copies))
        return FakeProblem(machine, product)

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        return self._needed_bytes(Product(dtype, rows, columns, depth, "normal", beyond_l2=False), 1)

    def _needed_bytes(self, product: Product, copies: int) -> int:
        blocks = (product.a_bytes, copies * product.b_bytes, product.result_bytes)
        return sum(map(self._whole, blocks)) + self._subject.costs.compute.workspace_bytes

    def _whole(self, size_bytes: int) -> int:
        step_bytes = self._subject.costs.memory.block_step_bytes
        return -(-size_bytes // step_bytes) * step_bytes

    def free_bytes(self) -> int:
        self.subject()
        return self._room.free_bytes

    def state(self) -> Telemetry:
        """NVML overstates the clock while the tensor cores work."""
        machine = self.subject()
        costs, own = machine.costs, machine.costs.compute
        now = machine.device.governor.at(machine.clock.pass_ns(machine.noise.one(own.state_ns)))
        excess_hz = own.nvml_excess_hz if now.tensor else 0.0
        return Telemetry(
            nvml_sm_clock_hz=min(now.clock_hz + excess_hz, costs.sm_clock_hz),
            temperature_c=float(round(now.temperature_c)),
            power_w=now.power_w,
            throttle_reasons=(POWER_CAP,) if now.capped else (),
        )

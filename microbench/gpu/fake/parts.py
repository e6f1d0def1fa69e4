"""Tensor cores and ALUs of the simulated GPU: every method of the protocol Compute, in the scope of one case."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.core.model import Fact, Telemetry
from microbench.core.ops import IntArray
from microbench.gpu.fake import compute, graphs, memory
from microbench.gpu.fake.compute import (
    FakeBracket,
    FakeProblem,
    FakeUnit,
    Product,
    require_type,
    unit_of,
)
from microbench.gpu.fake.device import POWER_CAP
from microbench.gpu.fake.graphs import FakeChain, FakeLoop, FakeShaped, FakeStep
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
from microbench.gpu.protocol.compute import AluOperation, GemmData, GemmType, TensorPath, TensorType
from microbench.gpu.protocol.graphs import AllocationWay, ChangeWay, Decider, Footprint, Made, NodeKind, Shape
from microbench.gpu.protocol.links import Access, Direction, HostMemory, ManagedWay, Order, PeerWay, PinningWay
from microbench.gpu.protocol.memory import AllocationWay as MemoryWay
from microbench.gpu.protocol.memory import (
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

L2S_OF_COPIES = 4
MOST_COPIES = 64


class FakeCompute:
    """Problems hold their room until the case ends."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._room = Room(machine.costs.memory)

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

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
        machine = self._open()
        require_type(machine.costs, unit_of(dtype))
        product = Product(dtype, rows, columns, depth, data, beyond_l2)
        self._room.hold(product, self._needed_bytes(product, self._copies(product)))
        return FakeProblem(machine, product)

    def _copies(self, product: Product) -> int:
        """Of B: so many that none is in the L2 when its turn comes, as far as the room goes."""
        if not product.beyond_l2:
            return 1
        wanted = -(-L2S_OF_COPIES * self._machine.costs.memory.l2_bytes // product.b_bytes)
        more_fit = (self._room.free_bytes - self._needed_bytes(product, 1)) // self._whole(product.b_bytes)
        return max(min(wanted, MOST_COPIES, 1 + more_fit), 1)

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        return self._needed_bytes(Product(dtype, rows, columns, depth, "normal", beyond_l2=False), 1)

    def _needed_bytes(self, product: Product, copies: int) -> int:
        blocks = (product.a_bytes, copies * product.b_bytes, product.result_bytes)
        return sum(self._whole(one) for one in blocks) + self._machine.costs.compute.workspace_bytes

    def _whole(self, size_bytes: int) -> int:
        step_bytes = self._machine.costs.memory.block_step_bytes
        return -(-size_bytes // step_bytes) * step_bytes

    def free_bytes(self) -> int:
        self._open()
        return self._room.free_bytes

    def bracket(self) -> FakeBracket:
        return FakeBracket(self._open())

    def state(self) -> Telemetry:
        """NVML overstates the clock while the tensor cores work."""
        machine = self._open()
        costs, own = machine.costs, machine.costs.compute
        seen = machine.device.governor.at(machine.clock.pass_ns(machine.noise.one(own.state_ns)))
        excess_hz = own.nvml_excess_hz if seen.tensor else 0.0
        return Telemetry(
            nvml_sm_clock_hz=min(seen.clock_hz + excess_hz, costs.sm_clock_hz),
            temperature_c=float(round(seen.temperature_c)),
            power_w=seen.power_w,
            throttle_reasons=(POWER_CAP,) if seen.capped else (),
        )

    def tensor(self, path: TensorPath, dtype: TensorType) -> FakeUnit:
        return compute.tensor(self._open(), path, dtype)

    def arithmetic(self, operation: AluOperation) -> FakeUnit:
        return compute.arithmetic(self._open(), operation)

    def chain(self, operation: AluOperation) -> FakeUnit:
        return compute.chain(self._open(), operation)


# Graphs of the simulated GPU: every method of the protocol Graphs, in the scope of one case.


class FakeGraphs:
    """See Graphs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        return graphs.lives(self._open(), nodes, count, made)

    def footprint(self, nodes: int, copies: int) -> Footprint:
        costs = self._open().costs.graphs
        acts = (costs.instantiate, costs.upload, costs.destroy)
        self._machine.clock.pass_ns(copies * sum(act.at(nodes) for act in acts))
        return Footprint(costs.device_memory.at(nodes), costs.host_memory.at(nodes))

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        return graphs.changes(self._open(), way, nodes, changed, count)

    def chain(self, kind: NodeKind, count: int) -> FakeChain:
        return FakeChain(self._open(), kind, count)

    def shape(self, shape: Shape) -> FakeShaped:
        return FakeShaped(self._open(), shape)

    def loop(self, decider: Decider) -> FakeLoop:
        return FakeLoop(self._open(), decider)

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> FakeStep:
        return FakeStep(self._open(), way, size_bytes, pairs)


# Links of the simulated GPU: every method of the protocol Links, in the scope of one case.


class FakeLinks:
    """See Links."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def state(self) -> tuple[Fact, ...]:
        return state(self._open().costs)

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> FakeTransfer:
        return engine_copy(self._open(), direction, memory, size_bytes, node)

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> FakeTransfer:
        return kernel_copy(self._open(), access, width_bytes, offset_bytes, size_bytes)

    def duplex(self, size_bytes: int) -> FakeDuplex:
        return FakeDuplex(self._open(), size_bytes)

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> FakeChase:
        return host_chase(self._open(), footprint_bytes, stride_bytes, order)

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        return pinning(self._open(), way, size_bytes, count)

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> FakePipeline:
        return FakePipeline(self._open(), size_bytes, chunks, streams, kernel_ns)

    def managed(self, way: ManagedWay, size_bytes: int) -> FakeManaged:
        return FakeManaged(self._open(), way, size_bytes)

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> FakePeer:
        return FakePeer(self._open(), first, second, way, access, size_bytes)

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> FakeChase:
        require_pair(self._open(), first, second)
        return peer_chase(self._machine, footprint_bytes, stride_bytes)

    def gpus(self) -> Sequence[int]:
        return range(self._open().costs.gpus)

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> FakeConcurrent:
        return FakeConcurrent(self._open(), direction, gpus, size_bytes)


# Memory and caches of the simulated GPU: every method of the protocol DeviceMemory, in the scope of one case.


ARRAYS = 3


class FakeMemory:
    """What is made holds its room until the case ends."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._room = Room(machine.costs.memory)

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        return memory.shapes(self._open().costs, implementation)

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> FakeTransfer:
        self._room.hold(("arrays", dtype, size_bytes), ARRAYS * size_bytes)
        return memory.stream(self._open(), kernel, dtype, implementation, size_bytes, shape)

    def level(self, space: Space, footprint_bytes: int) -> FakeLevel:
        self._hold_global("level", space, footprint_bytes)
        return FakeLevel(self._open(), space, footprint_bytes)

    def chase(self, space: Space, footprint_bytes: int) -> FakeLocalChase:
        self._hold_global("chase", space, footprint_bytes)
        return FakeLocalChase(self._open(), space, footprint_bytes)

    def _hold_global(self, what: str, space: Space, footprint_bytes: int) -> None:
        if space == "global":
            self._room.hold((what, footprint_bytes), footprint_bytes)

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> FakeTransfer:
        self._room.hold(("occupied", size_bytes), size_bytes)
        return memory.occupied(self._open(), blocks_per_sm, block_threads, loads, size_bytes)

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
        self._room.hold(("strided", size_bytes), size_bytes)
        return memory.strided(self._open(), access, stride_bytes, size_bytes)

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> FakeOperations:
        self._room.hold(("scattered", footprint_bytes), footprint_bytes)
        return memory.scattered(self._open(), access, footprint_bytes)

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> FakeOperations:
        return memory.atomics(self._open(), space, dtype, spread)

    def engine(self, way: EngineWay, size_bytes: int) -> FakeTransfer:
        """A 2D copy's rows are half their pitch, at both ends."""
        blocks = {"copy": 2, "copy_2d": 4, "memset": 1}
        self._room.hold((way, size_bytes), blocks[way] * size_bytes)
        return memory.engine(self._open(), way, size_bytes)

    def allocating(self, way: MemoryWay, size_bytes: int, count: int) -> IntArray:
        return memory.allocating(self._open(), self._room, way, size_bytes, count)

    def capacity(self) -> tuple[Fact, ...]:
        self._open()
        return self._room.capacity()

    def peers(self) -> Fact:
        return self._room.peers()

"""What a case can be given beyond plain submission: graphs, links, memory, compute, ready when first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from cuda.bindings import driver

from microbench.core.errors import Skip
from microbench.core.model import Fact, GpuInfo, Telemetry
from microbench.core.ops import IntArray
from microbench.core.units import about_size, size
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.compute import alu
from microbench.gpu.cuda.compute.operands import Operands, vector_bytes
from microbench.gpu.cuda.compute.problem import Bracket, CudaProblem
from microbench.gpu.cuda.compute.products import WORKSPACE_BYTES
from microbench.gpu.cuda.compute.tensor import tensor
from microbench.gpu.cuda.compute.types import ELEMENTS, matrix_bytes, product_bytes
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.graphs.chains import CudaChain, CudaShaped, CudaStep, DeviceDecides, HostDecides
from microbench.gpu.cuda.graphs.changes import Changes, Lives
from microbench.gpu.cuda.links.buffers import require_node
from microbench.gpu.cuda.links.copies import CudaCopy, CudaDuplex, CudaKernelCopy, CudaPipeline
from microbench.gpu.cuda.links.managed import CudaManaged, pinning
from microbench.gpu.cuda.links.peers import Boards, CudaConcurrent, CudaPeer, PeerChase, host_chase
from microbench.gpu.cuda.links.state import state
from microbench.gpu.cuda.memory import access as accesses
from microbench.gpu.cuda.memory.access import atomics
from microbench.gpu.cuda.memory.allocation import allocating, capacity, engine, holders
from microbench.gpu.cuda.memory.levels import CudaLevel, CudaLocalChase
from microbench.gpu.cuda.memory.streams import Arrays, CudaStream, cupy_stream, numba_stream, shapes_of
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.protocol.compute import (
    AluOperation,
    ClockBracket,
    GemmData,
    GemmType,
    Problem,
    Resident,
    TensorPath,
    TensorType,
)
from microbench.gpu.protocol.compute import Chain as InstructionChain
from microbench.gpu.protocol.graphs import (
    AllocationWay,
    Chain,
    ChangeWay,
    Decider,
    Footprint,
    Loop,
    Made,
    NodeKind,
    Shape,
    Shaped,
    Step,
)
from microbench.gpu.protocol.links import (
    Access,
    Chase,
    Concurrent,
    Direction,
    Duplex,
    HostMemory,
    Managed,
    ManagedWay,
    Order,
    Peer,
    PeerWay,
    PinningWay,
    Pipeline,
    Transfer,
)
from microbench.gpu.protocol.memory import AllocationWay as MemoryWay
from microbench.gpu.protocol.memory import (
    AtomicType,
    DataType,
    EngineWay,
    Implementation,
    Level,
    LocalChase,
    Operations,
    RandomAccess,
    Space,
    Spread,
    StreamKernel,
    StrideAccess,
)

# Tensor cores and ALUs of a real GPU: see compute_api.py for what each method promises.


# What a library's own memory and the code of its kernels may take.
RESERVE_BYTES = 256 << 20
# Copies of B in turn are several times the L2 together, so none is there when its turn comes again.
BEYOND_L2, MOST_COPIES = 4, 64
UNKNOWN_L2_BYTES = 512 << 20


def copies_beyond(l2_bytes: int | None, copy_bytes: int, free_bytes: int) -> int:
    """How many copies of B are used in turn: as many as BEYOND_L2 asks for and ``free_bytes``, beyond the first one,
    allow; at least 1."""
    wanted = -(-BEYOND_L2 * (l2_bytes or UNKNOWN_L2_BYTES) // copy_bytes)
    return max(1, min(wanted, MOST_COPIES, 1 + max(free_bytes, 0) // copy_bytes))


class CudaCompute:
    """Tensor cores and ALUs of one GPU for one case."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case, self._info, self._nvml = case, info, nvml

    def problem(
        self,
        dtype: GemmType,
        rows: int,
        columns: int,
        depth: int,
        data: GemmData = "normal",
        *,
        beyond_l2: bool = False,
    ) -> Problem:
        needed_bytes, free_bytes = self.needed_bytes(dtype, rows, columns, depth), self.free_bytes()
        if needed_bytes > free_bytes:
            raise Skip(
                f"{size(needed_bytes)} of device memory asked for {dtype} of {rows} x {columns} x {depth}, "
                f"{about_size(free_bytes)} are free"
            )
        copies = 1
        if beyond_l2:
            copy_bytes = matrix_bytes(ELEMENTS[dtype].b, columns, depth)
            copies = copies_beyond(self._info.l2_bytes, copy_bytes, free_bytes - needed_bytes)
        return CudaProblem(self._case, Operands(self._case, dtype, rows, columns, depth, data, copies))

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        """With what comparing the result takes."""
        return product_bytes(dtype, rows, columns, depth) + vector_bytes(rows, columns, depth) + WORKSPACE_BYTES

    def free_bytes(self) -> int:
        """See Compute: less a reserve for what libraries take for themselves."""
        free_bytes, _ = check(driver.cuMemGetInfo())
        return max(int(free_bytes) - RESERVE_BYTES, 0)

    def bracket(self) -> ClockBracket:
        return Bracket(self._case, self._case.context.attribute("MULTIPROCESSOR_COUNT"))

    def state(self) -> Telemetry:
        return self._nvml.telemetry()

    def tensor(self, path: TensorPath, dtype: TensorType) -> Resident:
        return tensor(self._case, path, dtype)

    def arithmetic(self, operation: AluOperation) -> Resident:
        return alu.arithmetic(self._case, operation)

    def chain(self, operation: AluOperation) -> InstructionChain:
        return alu.chain(self._case, operation)


# Graphs on a real GPU: see graph_api.py for what each method promises.


class CudaGraphs:
    """Experiments of one case, made ready when first asked for."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._lives: dict[int, Lives] = {}
        self._changes: dict[tuple[ChangeWay, int], Changes] = {}

    def _life(self, nodes: int) -> Lives:
        if nodes not in self._lives:
            self._lives[nodes] = Lives(self._case, nodes)
        return self._lives[nodes]

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        return self._life(nodes).stamps(count, made)

    def footprint(self, nodes: int, copies: int) -> Footprint:
        return self._life(nodes).footprint(copies)

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        key = (way, nodes)
        if key not in self._changes:
            self._changes[key] = Changes(self._case, nodes)
            self._changes[key].stamps(way, changed, 1)  # compiles the loop; first times are others'
        return self._changes[key].stamps(way, changed, count)

    def chain(self, kind: NodeKind, count: int) -> Chain:
        return CudaChain(self._case, kind, count)

    def shape(self, shape: Shape) -> Shaped:
        return CudaShaped(self._case, shape)

    def loop(self, decider: Decider) -> Loop:
        if decider in ("host_sync", "host_poll"):
            return HostDecides(self._case, polls=decider == "host_poll")
        return DeviceDecides(self._case, decider)

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> Step:
        return CudaStep(self._case, way, size_bytes, pairs)


# Links on a real GPU: see link_api.py for what each method promises.


class CudaLinks:
    """The links of one GPU for one case, made ready when first asked for."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case = case
        self._info = info
        self._nvml = nvml
        self._boards = Boards(case)

    def state(self) -> tuple[Fact, ...]:
        return state(self._case, self._info, self._nvml)

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> Transfer:
        if node is not None:
            require_node(node)
        return CudaCopy(self._case, direction, memory, size_bytes, node)

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Transfer:
        return CudaKernelCopy(self._case, access, width_bytes, offset_bytes, size_bytes)

    def duplex(self, size_bytes: int) -> Duplex:
        return CudaDuplex(self._case, size_bytes)

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> Chase:
        case = self._case
        return host_chase(case.context, case.modules, case.stream(0), footprint_bytes, stride_bytes, order)

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        return pinning(self._case, way, size_bytes, count)

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> Pipeline:
        return CudaPipeline(self._case, size_bytes, chunks, streams, kernel_ns)

    def managed(self, way: ManagedWay, size_bytes: int) -> Managed:
        return CudaManaged(self._case, way, size_bytes)

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> Peer:
        return CudaPeer(self._boards, first, second, way, access, size_bytes)

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> Chase:
        return PeerChase(self._boards, first, second, footprint_bytes, stride_bytes)

    def gpus(self) -> Sequence[int]:
        return range(self._boards.count())

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> Concurrent:
        return CudaConcurrent(self._case, self._boards, direction, gpus, size_bytes)


# Device memory on a real GPU: see memory_api.py for what each method promises.


LIBRARIES = {"cupy": cupy_stream, "numba": numba_stream}


class CudaMemory:
    """The memory of one GPU for one case. Streaming kernels of one type and size share their arrays."""

    def __init__(self, case: Case, nvml: NvmlGpu) -> None:
        self._case = case
        self._nvml = nvml
        self._arrays: dict[tuple[DataType, int], Arrays] = {}

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        return shapes_of(self._case.context, kernel) if implementation == "cuda" else (implementation,)

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> Transfer:
        if (dtype, size_bytes) not in self._arrays:
            self._arrays[dtype, size_bytes] = Arrays(self._case, dtype, size_bytes)
        arrays = self._arrays[dtype, size_bytes]
        if implementation == "cuda":
            return CudaStream(self._case, arrays, kernel, shape)
        return LIBRARIES[implementation](self._case, arrays, kernel)

    def level(self, space: Space, footprint_bytes: int) -> Level:
        return CudaLevel(self._case, space, footprint_bytes)

    def chase(self, space: Space, footprint_bytes: int) -> LocalChase:
        return CudaLocalChase(self._case, space, footprint_bytes)

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
        return accesses.occupied(self._case, blocks_per_sm, block_threads, loads, size_bytes)

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
        return accesses.strided(self._case, access, stride_bytes, size_bytes)

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> Operations:
        return accesses.scattered(self._case, access, footprint_bytes)

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
        return atomics(self._case, space, dtype, spread)

    def engine(self, way: EngineWay, size_bytes: int) -> Transfer:
        return engine(self._case, way, size_bytes)

    def allocating(self, way: MemoryWay, size_bytes: int, count: int) -> IntArray:
        return allocating(self._case, way, size_bytes, count)

    def capacity(self) -> Sequence[Fact]:
        return capacity(self._case, self._nvml)

    def peers(self) -> Fact:
        return holders(self._nvml)


class Parts:
    """The parts of one case on one GPU; they end with it."""

    def __init__(self, case: Case, info: GpuInfo, nvml: NvmlGpu) -> None:
        self._case = case
        self._info = info
        self._nvml = nvml

    @cached_property
    def graphs(self) -> CudaGraphs:
        return CudaGraphs(self._case)

    @cached_property
    def links(self) -> CudaLinks:
        return CudaLinks(self._case, self._info, self._nvml)

    @cached_property
    def memory(self) -> CudaMemory:
        return CudaMemory(self._case, self._nvml)

    @cached_property
    def compute(self) -> CudaCompute:
        return CudaCompute(self._case, self._info, self._nvml)

"""Matrix products in one way of one library: their operands in device memory, their calls, and graphs of the calls."""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import cycle
from typing import Literal

from microbench.core.units import about_size, plain, size
from microbench.experiments.compute.cublaslt import WORKSPACE_BYTES, Call, CublasLt
from microbench.experiments.compute.instructions import Answer, prepare
from microbench.experiments.compute.operands import GemmData, Operands, vector_bytes
from microbench.gpu.cuda.submit import captured, replay
from microbench.gpu.experiment import Case, MeasurementError, Skip, Submit, check, driver, experiment
from microbench.gpu.fake.costs import ProductLibrary
from microbench.gpu.fake.device import Item, Load
from microbench.gpu.fake.machine import Call as SimulatedCall
from microbench.gpu.fake.machine import FakeSubmit, Machine
from microbench.gpu.layers.base import LayerHandle, LayerSubmit
from microbench.gpu.layers.cupy import cupy_calls
from microbench.gpu.layers.torch import function_name, torch_calls
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.matrices import ELEMENTS, GemmType, Matrices, matrix_bytes
from microbench.gpu.protocol.transfer import Checked

Library = Literal["cublaslt", "cupy", "torch"]
# What a library's own memory and the code of its kernels may take.
RESERVE_BYTES = 256 << 20
# The copies of B together are this many times the L2, so that none is still in it when its turn comes again.
BEYOND_L2, MOST_COPIES = 4, 64
UNKNOWN_L2_BYTES = 512 << 20
TILE_ROWS, TILE_COLUMNS = 128, 256  # of a simulated result, computed by one SM at a time


def in_turn(calls: Sequence[Call]) -> Call:
    """A function that makes the next of these calls each time, and starts again after the last."""
    if len(calls) == 1:
        return calls[0]
    following = cycle(calls).__next__

    def call() -> None:
        following()()

    return call


class Gemm:
    """One matrix product D = A B in one way of one library.

    It consists of ``calls``, one for each product and copy of B, which submit to stream 0 of the case. Each call is
    made once here, because loading code and allocating the library's memory are impossible behind a gate. ``keep``
    holds the objects whose addresses the calls use. Raises MeasurementError for one of ``refusals``. ``fresh`` and
    ``check`` are those of the operands.
    """

    submit: Submit

    def __init__(
        self,
        case: Case,
        operands: Checked,
        calls: Sequence[Call],
        keep: object = None,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self._case, self._keep = case, keep
        self.fresh, self.check = operands.fresh, operands.check
        self._call = in_turn(calls)
        self.submit = LayerSubmit(LayerHandle(call=self._call, stream_handle=case.stream(0)), driver)
        try:
            for call in calls:
                call()
        except refusals as error:
            raise MeasurementError(f"the library refuses the algorithm that it suggested: {plain(error)}") from error
        case.synchronize()

    def graph(self, calls: int) -> Submit:
        """A graph of ``calls`` calls of ``submit``, one after the other. One call of the result is one replay.

        Raises Skip for a library whose calls cannot be captured, MeasurementError for a driver that refuses.
        """
        stream = self._case.stream(0)

        def submit() -> None:
            for _ in range(calls):
                self._call()

        try:
            executable, _ = captured(self._case, stream, submit)
        except NotImplementedError as error:
            raise Skip(f"these calls cannot be captured: {plain(error)}") from error
        return replay(executable, stream)


class Problem:
    """The operands of one product (A of ``rows`` x ``depth``, B of ``depth`` x ``columns``), or of several.

    A call computes the next product, or all of them if ``batched``.
    """

    def __init__(self, case: Case, operands: Operands, *, batched: bool = False) -> None:
        self._case = case
        self.operands = operands
        self.matrices, self._batched = operands.matrices, batched
        self._calls: dict[Library, tuple[Call, ...]] = {}  # of CuPy and PyTorch

    @property
    def batch(self) -> int:
        """How many products a call computes."""
        return self.matrices.products if self._batched else 1

    @property
    def operations(self) -> int:
        """Multiplications and additions of a call: 2 rows columns depth for each product that it computes."""
        return 2 * self.matrices.rows * self.matrices.columns * self.matrices.depth * self.batch

    @property
    def size_bytes(self) -> int:
        """Bytes of each operand and result of a call, each once."""
        return sum(bytes_of(*self.matrices[:4])) * self.batch

    @cached_property
    def cublaslt(self) -> CublasLt:
        """cuBLASLt's candidates. Raises Skip if it has none."""
        return CublasLt(self._case, self.operands.matrices, batched=self._batched)

    def _python_calls(self, library: Library) -> tuple[Call, ...]:
        if self.operands.matrices.products > 1:
            raise Skip(f"several products are multiplied by cuBLASLt only, not by {library}")
        if library not in self._calls:
            case, make = self._case, cupy_calls if library == "cupy" else torch_calls
            self._calls[library] = make(case.stream(0), int(case.context.device), self.operands.matrices, case.own)
        return self._calls[library]

    def ways(self, library: Library) -> Sequence[str]:
        """Names of the candidates of cuBLASLt's heuristics, its best guess first; other libraries have one way.

        Raises Skip if the library does not support the type on this GPU, and with the install line if the library is
        missing.
        """
        if library == "cublaslt":
            return self.cublaslt.ways
        calls = self._python_calls(library)
        return ("cupy.matmul" if library == "cupy" else function_name(self.matrices.dtype),) if calls else ()

    def gemm(self, library: Library, way: str) -> Gemm:
        """The product in this way, ready to be submitted. All ways of a problem share the operands and D.

        Raises MeasurementError for a way that is not one of ``ways``.
        """
        if way not in self.ways(library):
            raise MeasurementError(f"{library} has no way {way!r} here: {', '.join(self.ways(library))}")
        if library == "cublaslt":
            calls, refusals = self.cublaslt.calls(way), self.cublaslt.refusals
        else:
            calls, refusals = self._python_calls(library), ()
        return Gemm(self._case, self.operands, calls, keep=self, refusals=refusals)


def bytes_of(dtype: GemmType, rows: int, columns: int, depth: int) -> tuple[int, int, int]:
    """Bytes of A, one B and D."""
    a, b, d = ELEMENTS[dtype]
    return matrix_bytes(a, rows, depth), matrix_bytes(b, columns, depth), matrix_bytes(d, rows, columns)


def copies_beyond(l2_bytes: int, copy_bytes: int, free_bytes: int) -> int:
    """How many copies of B are used in turn: BEYOND_L2 times the L2 (0: unknown), as far as ``free_bytes`` allows.

    ``free_bytes`` does not count the first copy.
    """
    wanted = -(-BEYOND_L2 * (l2_bytes or UNKNOWN_L2_BYTES) // copy_bytes)
    return max(1, min(wanted, MOST_COPIES, 1 + max(free_bytes, 0) // copy_bytes))


def problem(
    gpu: Gpu,
    dtype: GemmType,
    rows: int,
    columns: int,
    depth: int,
    data: GemmData = "normal",
    *,
    beyond_l2: bool = False,
    products: int = 1,
    batched: bool = False,
) -> Problem:
    """Operands in device memory. Raises Skip, with the bytes asked for and free, if they do not fit.

    With ``beyond_l2`` there are so many copies of B, used in turn, that none is in the L2 when it is used. If there are
    several ``products``, each has operands of its own. A call computes the next product, or all of them if ``batched``
    (one strided-batched call of cuBLASLt). A check covers all products.
    """
    matrices = Matrices(dtype, rows, columns, depth, a=0, b=(), d=0, products=products)
    return _problem(gpu, matrices, data, beyond_l2, batched)


def real_problem(case: Case, matrices: Matrices, data: GemmData, beyond_l2: bool, batched: bool) -> Problem:
    dtype, rows, columns, depth = matrices[:4]
    others = (matrices.products - 1) * sum(bytes_of(dtype, rows, columns, depth))
    needed, free = real_needed_bytes(case, dtype, rows, columns, depth) + others, real_free_bytes(case)
    if needed > free:
        several = f"{matrices.products} products of " if matrices.products > 1 else ""
        raise Skip(
            f"{size(needed)} of device memory asked for {several}{dtype} of {rows} x {columns} x {depth}, "
            f"{about_size(free)} are free"
        )
    copies = 1
    if beyond_l2:
        copy_bytes = matrix_bytes(ELEMENTS[dtype].b, columns, depth)
        copies = copies_beyond(case.context.attribute("L2_CACHE_SIZE"), copy_bytes, free - needed)
    return Problem(case, Operands(case, matrices, data, copies), batched=batched)


def real_needed_bytes(case: Case, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
    """Device memory that this product needs, in bytes: operands, result, check and workspace."""
    return sum(bytes_of(dtype, rows, columns, depth)) + vector_bytes(rows, columns, depth) + WORKSPACE_BYTES


def real_free_bytes(case: Case) -> int:
    """Device memory that a problem can take now: what is free, less a reserve for what libraries take."""
    return max(int(check(driver.cuMemGetInfo())[0]) - RESERVE_BYTES, 0)


class SimulatedProblem(Problem):
    """The operands of one product; all its kernels write the same result."""

    def __init__(self, machine: Machine, matrices: Matrices, data: GemmData, *, beyond_l2: bool, batched: bool) -> None:
        self.machine = machine
        self.matrices, self._batched = matrices, batched
        self._data: GemmData = data
        self._beyond_l2 = beyond_l2
        self.answer = Answer(machine.costs, "D times random signs")

    def _costs(self, library: Library) -> ProductLibrary:
        own = self.machine.costs.compute.libraries.get(library)
        if own is None:
            raise Skip(f"the simulated machine has no {library}")
        if self.matrices.dtype not in own.dtypes:
            raise Skip(f"the simulated {library} has no {self.matrices.dtype}")
        return own

    def ways(self, library: Library) -> Sequence[str]:
        return tuple(self._costs(library).kernels)

    def gemm(self, library: Library, way: str) -> Gemm:
        if way not in self._costs(library).kernels:
            raise Skip(f"the simulated {library} has no kernel {way}")
        return SimulatedGemm(self, self._costs(library), way)

    def item(self, library: ProductLibrary, way: str, calls: int = 1) -> Item:
        """``calls`` products in a row as one item, computed by one of a library's kernels.

        A kernel that is n times as slow takes n times the energy. Between the products of one item there is the gap of
        a graph.
        """
        costs, matrices, share = self.machine.costs, self.matrices, library.kernels[way]
        own, memory, tensor = costs.compute, costs.memory, matrices.dtype != "fp32"
        unit = unit_of(matrices.dtype)
        per_clock = own.tensor_per_clock[unit] if tensor else own.alu_per_clock["fma_fp32"]
        if matrices.dtype in ("fp8_e4m3", "fp8_e5m2"):
            per_clock *= own.promoted_share
        joules = own.tensor_joules[unit] if tensor else own.alu_joules["fma_fp32"]
        joules *= own.moving_energy_share * own.data_energy_share[self._data] * library.energy_share / share
        # Tiles run in whole waves over the SMs. If there are fewer tiles than SMs, each tile is split evenly along the
        # depth.
        tiles = self.batch * math.ceil(matrices.rows / TILE_ROWS) * math.ceil(matrices.columns / TILE_COLUMNS)
        waves = tiles / costs.sm_count
        tile_cycles = 2 * TILE_ROWS * TILE_COLUMNS * matrices.depth / per_clock
        cycles = (math.ceil(waves) if waves > 1 else waves) * tile_cycles
        if self._beyond_l2 or self.size_bytes > memory.l2_bytes:
            least_ns = self.size_bytes / memory.dram_bytes_per_s.read * 1e9
            dram_j = self.size_bytes * memory.joules_per_byte
        else:
            least_ns = self.size_bytes / (memory.l2_bytes_per_clock * costs.sm_count * costs.sm_clock_hz) * 1e9
            dram_j = 0.0
        return Item(
            gap_ns=costs.gap_stream_ns,
            duration_ns=calls * (costs.empty_kernel_ns + own.product_fixed_ns) + (calls - 1) * costs.gap_graph_ns,
            traffic=costs.traffic["launch"],
            energy_j=calls * (self.operations * joules + dram_j),
            load=Load(calls * cycles / share, calls * least_ns, tensor),
        )


class SimulatedGemm(Gemm):
    """One product by one kernel of a library."""

    def __init__(self, problem: SimulatedProblem, library: ProductLibrary, way: str) -> None:
        self._problem, self._kernel = problem, (library, way)
        self.fresh, self.check = problem.answer.fresh, problem.answer.check
        self.submit = self._submit(library.submit_ns, 1)

    def _submit(self, host_ns: float, calls: int) -> Submit:
        call = SimulatedCall(host_ns, self._problem.item(*self._kernel, calls))
        return FakeSubmit(self._problem.machine, call, self._problem.answer.move)

    def graph(self, calls: int) -> Submit:
        machine = self._problem.machine
        costs, graphs = machine.costs, machine.costs.graphs
        for act in (graphs.capture, graphs.instantiate, graphs.upload):
            machine.clock.pass_ns(act.at(calls))
        return self._submit(costs.graph_submit_ns + calls * costs.graph_node_submit_ns, calls)


def unit_of(dtype: GemmType) -> str:
    """The tensor cores' type that multiplies this type."""
    return dtype.removesuffix("_fast")


def simulated_problem(
    machine: Machine, matrices: Matrices, data: GemmData, beyond_l2: bool, batched: bool
) -> SimulatedProblem:
    """The case holds the memory until it ends."""
    prepare(machine, unit_of(matrices.dtype))
    copies = 1
    if beyond_l2:
        copy_bytes = machine.room.whole(bytes_of(*matrices[:4])[1])
        left_bytes = machine.room.free_bytes - _held_bytes(machine, matrices)
        copies = copies_beyond(machine.costs.memory.l2_bytes, copy_bytes, left_bytes)
    machine.room.hold((matrices, data, beyond_l2, batched), _held_bytes(machine, matrices, copies))
    return SimulatedProblem(machine, matrices, data, beyond_l2=beyond_l2, batched=batched)


def _held_bytes(machine: Machine, matrices: Matrices, copies: int = 1) -> int:
    a_bytes, b_bytes, d_bytes = (matrices.products * each for each in bytes_of(*matrices[:4]))
    blocks = (a_bytes, copies * b_bytes, d_bytes)
    return sum(map(machine.room.whole, blocks)) + machine.costs.compute.workspace_bytes


_problem = experiment(real_problem, simulated_problem)
needed_bytes = experiment(
    real_needed_bytes,
    lambda machine, dtype, rows, columns, depth: _held_bytes(machine, Matrices(dtype, rows, columns, depth, 0, (), 0)),
)
free_bytes = experiment(real_free_bytes, lambda machine: machine.room.free_bytes)

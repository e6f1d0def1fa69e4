"""Matrix products by one library: operands that the GPU draws, results that it checks, calls, and graphs of calls."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import cycle
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from microbench.core.units import about_size, plain, size
from microbench.experiments.compute.cublaslt import WORKSPACE_BYTES, Call, CublasLt
from microbench.experiments.compute.instructions import Answer, prepare
from microbench.gpu.cuda.submit import captured, replay
from microbench.gpu.experiment import Case, MeasurementError, Skip, Submit, check, driver, experiment, run
from microbench.gpu.fake.costs import ProductLibrary
from microbench.gpu.fake.device import Item, Load
from microbench.gpu.fake.machine import Call as SimulatedCall
from microbench.gpu.fake.machine import FakeSubmit, Machine
from microbench.gpu.layers.base import Errors, LayerHandle, LayerSubmit
from microbench.gpu.layers.cupy import cupy_calls
from microbench.gpu.layers.torch import function_name, torch_calls
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.matrices import ELEMENTS, FORMATS, Element, GemmType, Matrices, matrix_bytes

# normal: standard normal; uniform: between -1 and 1; constant: one number everywhere; sparse: normal with two of every
# four elements zero. Integers follow the same distributions, scaled to their range.
GemmData = Literal["normal", "uniform", "constant", "ones", "zeros", "sparse"]
KERNELS = "gemm_operands"
# VECTORS of the kernels. The check uses several vectors, because one sum may be near 0 by chance.
VECTORS = 32
DRAW_BLOCKS, DRAW_THREADS = 2048, 256
# Threads of a block that multiplies with vectors, and rows of a matrix that a block of transposed_times adds up.
TIMES_THREADS, BLOCK_ROWS = 128, 256
DATA_CODES: dict[GemmData, int] = {"normal": 0, "uniform": 1, "constant": 2, "ones": 3, "zeros": 4, "sparse": 5}
# Floating types: a NaN. Integers: a number that no product of 8-bit numbers below a depth of 90000 reaches.
POISON_BYTE, WHOLE_POISON_BYTE = 0xFF, 0xA5
DOUBLE_BYTES = 8
# A row's error may be this many times the matrix's: one wrong row of many hardly changes the norm.
WORST_ROW = 3.0
Floats = npt.NDArray[np.float64]


def vector_bytes(rows: int, columns: int, depth: int) -> int:
    """Bytes of a comparison: VECTORS of signs, of B times them, of A times that and of D times the signs."""
    return VECTORS * DOUBLE_BYTES * (columns + depth + 2 * rows)


class Operands:
    """A, ``copies`` of B, and D of one or several products, all zeroed. Raises Skip if they do not fit.

    ``nowhere`` are their sizes, without addresses.
    """

    def __init__(self, case: Case, nowhere: Matrices, data: GemmData, copies: int = 1) -> None:
        self._case = case
        dtype, rows, columns, depth = nowhere[:4]
        self.data: GemmData = data
        # The first seed comes from a clock: two Operands of a kind must not have the same numbers.
        self._seed = time.time_ns() % (1 << 31)
        # Elements of each matrix; for several products those of all, with the gaps between them.
        self._counts = [rows * depth, columns * depth, rows * columns]
        if nowhere.products > 1:
            self._counts = [nowhere.products * apart for apart in nowhere.apart]
        sizes = [matrix_bytes(element, 1, count) for element, count in zip(ELEMENTS[dtype], self._counts, strict=True)]
        self.matrices = nowhere._replace(
            a=case.device_memory(sizes[0]),
            b=tuple(case.device_memory(sizes[1]) for _ in range(copies)),
            d=case.device_memory(sizes[2]),
        )
        self._signs = case.device_memory(vector_bytes(rows, columns, depth))
        self._b_signs = self._signs + VECTORS * DOUBLE_BYTES * columns
        self._a_b_signs = self._b_signs + VECTORS * DOUBLE_BYTES * depth
        self._d_signs = self._a_b_signs + VECTORS * DOUBLE_BYTES * rows

    def fresh(self) -> None:
        """Draw new A and B, poison D, and wait."""
        self._case.synchronize()
        matrices = self.matrices
        of_a, of_b, of_d = self._counts
        self._draw(matrices.elements.a, matrices.a, of_a)
        for copy in matrices.b:
            self._draw(matrices.elements.b, copy, of_b)
        poison = WHOLE_POISON_BYTE if matrices.elements.d == "int32" else POISON_BYTE
        check(driver.cuMemsetD8(matrices.d, poison, matrix_bytes(matrices.elements.d, 1, of_d)))
        self._case.synchronize()

    def _draw(self, element: Element, address: int, count: int) -> None:
        self._seed = (self._seed + 1) % (1 << 31)
        row = (address, count, self._seed, DATA_CODES[self.data], *FORMATS[element])
        run(self._case, self._case.function(KERNELS, "draw"), DRAW_BLOCKS, DRAW_THREADS, row)

    def check(self) -> str:
        """Raise MeasurementError, with the error and the allowed error, unless every D is A B for one of the copies.

        Each copy has other numbers, so a mixture of copies is noticed.
        """
        error, allowed = min(self.errors()), allowed_error(self.matrices.dtype, self.matrices.depth, self.data)
        if not error <= allowed:
            raise MeasurementError(
                f"{self.matrices.dtype}: D is off by {error:.1e} of A B in the norm, "
                f"{allowed:.1e} is the most that the types' own rounding explains"
            )
        return f"{VECTORS} random projections compared in float64, within the types' own rounding"

    def errors(self) -> list[float]:
        """The error of D as a share of A B's norm, for each copy of B: the largest error of any product; infinite if D
        has a NaN.

        Freivalds (1977): D x is compared with A (B x) for VECTORS x of random signs, in float64. Such a product has the
        matrix's own norm on average, so its relative error is the matrix's. The error of a row counts 1/WORST_ROW.
        """
        self._case.synchronize()
        signs = np.random.default_rng(self._seed).choice([-1.0, 1.0], VECTORS * self.matrices.columns)
        self._case.upload(self._signs, signs)
        each = [self._errors(self.matrices.one(number)) for number in range(self.matrices.products)]
        return [max(of_copy) for of_copy in zip(*each, strict=True)]

    def _errors(self, matrices: Matrices) -> list[float]:
        product = self._times(matrices.elements.d, matrices.d, matrices.columns, self._signs, self._d_signs)
        wanted = [self._product(matrices, copy) for copy in matrices.b]
        return [max(relative_error(product, exact), row_error(product, exact) / WORST_ROW) for exact in wanted]

    def _product(self, matrices: Matrices, copy: int) -> Floats:
        case, width, rows = self._case, matrices.depth, matrices.columns
        case.clear(self._b_signs, VECTORS * DOUBLE_BYTES * width)
        blocks = -(-width // TIMES_THREADS) * -(-rows // BLOCK_ROWS)
        row = (copy, rows, width, self._signs, self._b_signs, BLOCK_ROWS, *FORMATS[matrices.elements.b])
        run(case, case.function(KERNELS, "transposed_times"), blocks, TIMES_THREADS, row)
        return self._times(matrices.elements.a, matrices.a, width, self._b_signs, self._a_b_signs)

    def _times(self, element: Element, matrix: int, width: int, vectors: int, out: int) -> Floats:
        """The product of a matrix and each of the vectors: shape (VECTORS, rows)."""
        rows, case = self.matrices.rows, self._case
        case.clear(out, VECTORS * DOUBLE_BYTES * rows)
        row = (matrix, rows, width, vectors, out, *FORMATS[element])
        run(case, case.function(KERNELS, "times"), rows, TIMES_THREADS, row)
        products: Floats = case.read(out, VECTORS * rows, np.float64)
        return products.reshape(VECTORS, rows)


def relative_error(product: Floats, exact: Floats) -> float:
    """Norm of the difference as a share of the norm of ``exact``; infinite for a NaN, and for a difference from an
    ``exact`` of zeros."""
    return _share(float(np.linalg.norm(product - exact)), float(np.linalg.norm(exact)))


def row_error(product: Floats, exact: Floats) -> float:
    """The largest error of any row, as a share of an average row's norm; infinite as in ``relative_error``.

    Both arrays have the shape (VECTORS, rows).
    """
    worst = float(np.linalg.norm(product - exact, axis=0).max())
    return _share(worst, float(np.linalg.norm(exact)) / float(np.sqrt(exact.shape[1])))


def _share(difference: float, size: float) -> float:
    if difference == 0.0:
        return 0.0
    error = difference / size if size > 0.0 else np.inf
    return error if np.isfinite(error) else float(np.inf)


# Data whose signs are random, so that rounding errors add up as a random walk. In other data all errors may have one
# sign.
CENTRED: tuple[GemmData, ...] = ("normal", "uniform", "sparse", "zeros")
FP32_UNIT, FP64_UNIT = 2.0**-24, 2.0**-53
FP16_UNIT, BF16_UNIT = 2.0**-11, 2.0**-8
# Sums of fp8 keep about 14 bits: bits below 2**-13 of the sum are cut off.
FAST_CUT = 2.0**-13
# Fewest products that a tensor instruction adds up before it rounds to fp16 (mma.m16n8k8).
FP16_STEP = 8
MOST_ERROR = 0.9


def allowed_error(dtype: GemmType, depth: int, data: GemmData) -> float:
    """The allowed error of D, as a share of A B in the Frobenius norm; 0 for int8, which is exact.

    Rounding to a type of unit roundoff u changes a matrix by 0.4 u of its norm. Results are rounded once; a library
    that splits the depth and adds the parts in D's type rounds several times, so 2 u are allowed. Adding k products one
    after the other in an accumulator of unit v rounds k times, for centred data by 0.3 v sqrt(k) of the result's norm:

    - fp64, fp32: u (2 + 2 sqrt(k)).
    - tf32: operands may be cut to 10 bits, which makes each 2^-11 smaller and the product 2^-10 at most: 2^-9.
    - fp16, bf16, mxfp8, nvfp4 with sums in fp32: 2 u, and 2^-12 for the bits that are cut when the products of one
      instruction are aligned.
    - fp8 promoted: the same, because each sum of 128 products is added in fp32.
    - fp8 fast: 2 u + 2^-14 sqrt(k), because bits below 2^-13 of the sum are cut.
    - fp16_acc16: 2 u + 2^-11 sqrt(k / 8): sums are rounded to fp16 every 8 products or less often.

    With centred data a factor of 1.02 is noticed in every type up to a depth of 16384, but in fp16_acc16 up to 8192.
    If all products have the same sign, each step of a truncated fp8 or fp16 sum may lose half a unit of the sum, and
    the sum stops growing in the end. The allowed error is then up to MOST_ERROR, so the check finds little.
    """
    if dtype == "int8":
        return 0.0
    if dtype in ("fp64", "fp32"):
        return (FP64_UNIT if dtype == "fp64" else FP32_UNIT) * (2 + 2 * sqrt(depth))
    if dtype == "tf32":
        return 2.0**-9
    rounded_once = 2 * (FP16_UNIT if ELEMENTS[dtype].d == "fp16" else BF16_UNIT)
    if dtype == "fp16_acc16":
        return rounded_once + _added(FP16_UNIT, depth / FP16_STEP, data)
    if dtype.endswith("_fast"):
        return rounded_once + _added(FAST_CUT / 2, depth, data)
    return rounded_once + 2.0**-12


def _added(unit: float, steps: float, data: GemmData) -> float:
    """The allowed error of this many roundings of a sum."""
    return unit * sqrt(steps) if data in CENTRED else min(unit * steps / 2, MOST_ERROR)


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
    made once here, because loading code and allocating the library's memory are impossible behind a gate. ``problem``
    holds the objects whose addresses the calls use. Raises MeasurementError for one of ``refusals``. ``fresh`` and
    ``check`` are those of the operands.
    """

    submit: Submit

    def __init__(self, problem: Problem, case: Case, calls: Sequence[Call], refusals: Errors = ()) -> None:
        self.problem, self._case = problem, case
        self.fresh, self.check = problem.operands.fresh, problem.operands.check
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
            return Gemm(self, self._case, self.cublaslt.calls(way), self.cublaslt.refusals)
        return Gemm(self, self._case, self._python_calls(library))


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
        unit = matrices.dtype.removesuffix("_fast")  # the tensor cores' type
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
        self.problem, self._machine, self._answer = problem, problem.machine, problem.answer
        self.fresh, self.check = problem.answer.fresh, problem.answer.check
        self._item = partial(problem.item, library, way)
        self.submit = self._submit(library.submit_ns, 1)

    def _submit(self, host_ns: float, calls: int) -> Submit:
        return FakeSubmit(self._machine, SimulatedCall(host_ns, self._item(calls)), self._answer.move)

    def graph(self, calls: int) -> Submit:
        machine = self._machine
        costs, graphs = machine.costs, machine.costs.graphs
        for act in (graphs.capture, graphs.instantiate, graphs.upload):
            machine.clock.pass_ns(act.at(calls))
        return self._submit(costs.graph_submit_ns + calls * costs.graph_node_submit_ns, calls)


def simulated_problem(
    machine: Machine, matrices: Matrices, data: GemmData, beyond_l2: bool, batched: bool
) -> SimulatedProblem:
    """The case holds the memory until it ends."""
    prepare(machine, matrices.dtype.removesuffix("_fast"))
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

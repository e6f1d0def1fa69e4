"""One matrix product on a real GPU: memory for its operands, the libraries that multiply them, the SM clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.core.units import about_size, size
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.compute.operands import Operands, vector_bytes
from microbench.gpu.cuda.compute.products import WORKSPACE_BYTES, Call, CublasLt, LibraryGemm
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.cuda.timing import NANOSECOND_S, alone_on_its_sm
from microbench.gpu.layers.cupy import cupy_calls
from microbench.gpu.layers.torch import function_name, torch_calls
from microbench.gpu.protocol.compute import ELEMENTS, GemmData, GemmType, Library, matrix_bytes, product_bytes

# What a library's own memory and the code of its kernels may take.
RESERVE_BYTES = 256 << 20
# The copies of B together are this many times the L2, so that none is still in it when its turn comes again.
BEYOND_L2, MOST_COPIES = 4, 64
UNKNOWN_L2_BYTES = 512 << 20


def problem(
    case: Case,
    dtype: GemmType,
    rows: int,
    columns: int,
    depth: int,
    data: GemmData = "normal",
    *,
    beyond_l2: bool = False,
    products: int = 1,
    batched: bool = False,
) -> CudaProblem:
    others = (products - 1) * product_bytes(dtype, rows, columns, depth)
    needed, free = needed_bytes(case, dtype, rows, columns, depth) + others, free_bytes(case)
    if needed > free:
        several = f"{products} products of " if products > 1 else ""
        raise Skip(
            f"{size(needed)} of device memory asked for {several}{dtype} of {rows} x {columns} x {depth}, "
            f"{about_size(free)} are free"
        )
    copies = 1
    if beyond_l2:
        copy_bytes = matrix_bytes(ELEMENTS[dtype].b, columns, depth)
        copies = copies_beyond(case.context.attribute("L2_CACHE_SIZE"), copy_bytes, free - needed)
    return CudaProblem(case, Operands(case, dtype, rows, columns, depth, data, copies, products), batched=batched)


def copies_beyond(l2_bytes: int, copy_bytes: int, free_bytes: int) -> int:
    """How many copies of B are used in turn: BEYOND_L2 times the L2 (0: unknown), as far as ``free_bytes`` allows.

    ``free_bytes`` does not count the first copy.
    """
    wanted = -(-BEYOND_L2 * (l2_bytes or UNKNOWN_L2_BYTES) // copy_bytes)
    return max(1, min(wanted, MOST_COPIES, 1 + max(free_bytes, 0) // copy_bytes))


def needed_bytes(case: Case, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
    return product_bytes(dtype, rows, columns, depth) + vector_bytes(rows, columns, depth) + WORKSPACE_BYTES


def free_bytes(case: Case) -> int:
    """The free device memory, less a reserve for what libraries take for themselves."""
    return max(int(check(driver.cuMemGetInfo())[0]) - RESERVE_BYTES, 0)


class CudaProblem:
    """A Problem."""

    def __init__(self, case: Case, operands: Operands, *, batched: bool = False) -> None:
        self._case = case
        self.operands = operands
        self._batched = batched
        self._calls: dict[Library, tuple[Call, ...]] = {}  # of CuPy and PyTorch
        matrices = operands.matrices
        self.dtype = matrices.dtype
        self.rows, self.columns, self.depth = matrices.rows, matrices.columns, matrices.depth
        of_a_call = matrices.products if batched else 1
        self.operations = 2 * self.rows * self.columns * self.depth * of_a_call
        self.size_bytes = product_bytes(matrices.dtype, self.rows, self.columns, self.depth) * of_a_call

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
        if library == "cublaslt":
            return self.cublaslt.ways
        calls = self._python_calls(library)
        return ("cupy.matmul" if library == "cupy" else function_name(self.dtype),) if calls else ()

    def gemm(self, library: Library, way: str) -> LibraryGemm:
        """Raises MeasurementError for a way that is not one of ``ways``."""
        if way not in self.ways(library):
            raise MeasurementError(f"{library} has no way {way!r} here: {', '.join(self.ways(library))}")
        if library == "cublaslt":
            calls, refusals = self.cublaslt.calls(way), self.cublaslt.refusals
        else:
            calls, refusals = self._python_calls(library), ()
        return LibraryGemm(self._case, self.operands, calls, keep=self, refusals=refusals)


# Tick of kernels/clock_bracket.cu.
TICKS = np.dtype([("clock", "u8"), ("time_ns", "u8"), ("sm", "u4"), ("unused", "u4")])
Ticks = npt.NDArray[Any]


class Bracket:
    """A ClockBracket. After a first call of each, ``begin`` and ``end`` only launch."""

    def __init__(self, case: Case) -> None:
        self._case, self._blocks = case, case.sms
        function = case.function("clock_bracket", "tick")
        shared_bytes = alone_on_its_sm(case, function)
        self._ticks = [case.device_memory(TICKS.itemsize * self._blocks) for _ in range(2)]
        # One warp on each SM; its shared memory keeps other warps off.
        op = Launch(grid_blocks=self._blocks, block_threads=32)
        self._begin, self._end = (
            launch(case, function, op, Parameters([(ticks,)]), shared_bytes=shared_bytes) for ticks in self._ticks
        )

    def begin(self) -> None:
        self._begin(1)

    def end(self) -> None:
        self._end(1)

    def hz(self) -> float:
        """The SM clock in Hz. SMs on which only one of the kernels ran do not count."""
        first, last = (self._case.read(ticks, self._blocks, TICKS) for ticks in self._ticks)
        return clock_hz(first, last)


def clock_hz(first: Ticks, last: Ticks) -> float:
    """Clock cycles over time, median over the SMs in both. Raises MeasurementError if no time passed on any."""
    _, of_first, of_last = np.intersect1d(first["sm"], last["sm"], return_indices=True)
    elapsed_ns = last["time_ns"][of_last].astype(np.int64) - first["time_ns"][of_first].astype(np.int64)
    cycles = last["clock"][of_last].astype(np.int64) - first["clock"][of_first].astype(np.int64)
    ran = elapsed_ns > 0
    if not ran.any():
        raise MeasurementError("the clock kernels before and after the work have no SM and no time in common")
    return float(np.median(cycles[ran] / elapsed_ns[ran])) / NANOSECOND_S

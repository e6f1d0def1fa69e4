"""The matrices of a product in device memory: drawn anew on the GPU, and D compared with them in float64."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError
from microbench.core.ops import LEGACY_STREAM, Launch
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.compute.types import FORMATS, Element, Matrices, allowed_error, matrix_bytes
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.links.buffers import LEGACY_STREAM_HANDLE
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.protocol.compute import GemmData, GemmType

KERNELS = "gemm_operands"
# VECTORS of the kernels, whose sums an error is looked for in: one alone may be near 0 by chance.
VECTORS = 32
DRAW_BLOCKS, DRAW_THREADS = 2048, 256
# Threads of a block that multiplies with vectors, and rows of a matrix that one of transposed_times adds up.
TIMES_THREADS, BLOCK_ROWS = 128, 256
DATA_CODES: dict[GemmData, int] = {"normal": 0, "uniform": 1, "constant": 2, "ones": 3, "zeros": 4, "sparse": 5}
# Floating types: no number. Whole ones: one that no product of 8-bit numbers below a depth of 90000 reaches.
POISON_BYTE, WHOLE_POISON_BYTE = 0xFF, 0xA5
DOUBLE_BYTES = 8
# How much further off than the whole matrix one of its rows may be: one wrong row of many hardly shows in the norm.
WORST_ROW = 3.0
Floats = npt.NDArray[np.float64]


def vector_bytes(rows: int, columns: int, depth: int) -> int:
    """What comparing takes: VECTORS of signs, of B times them, of A times that and of D times the signs."""
    return VECTORS * DOUBLE_BYTES * (columns + depth + 2 * rows)


class Operands:
    """A, ``copies`` of B, and D, zeroed; see Matrices for how they lie. Raises Skip where they do not fit."""

    def __init__(
        self, case: Case, dtype: GemmType, rows: int, columns: int, depth: int, data: GemmData, copies: int = 1
    ) -> None:
        self._case = case
        self.data: GemmData = data
        # Two of a kind one after the other may not be the same: a clock gives the first seed.
        self._seed = time.time_ns() % (1 << 31)
        take = case.context.device_memory
        empty = Matrices(dtype, rows, columns, depth, 0, (), 0)
        a, b, d = empty.elements
        self.matrices = empty._replace(
            a=take(matrix_bytes(a, rows, depth)),
            b=tuple(take(matrix_bytes(b, columns, depth)) for _ in range(copies)),
            d=take(matrix_bytes(d, rows, columns)),
        )
        self._signs = take(vector_bytes(rows, columns, depth))
        self._between = self._signs + VECTORS * DOUBLE_BYTES * columns
        self._wanted = self._between + VECTORS * DOUBLE_BYTES * depth
        self._found = self._wanted + VECTORS * DOUBLE_BYTES * rows

    def fresh(self) -> None:
        """New A and B, poisoned D; waits until that is done."""
        self._case.context.synchronize()
        all_of = self.matrices
        self._draw(all_of.elements.a, all_of.a, all_of.rows)
        for copy in all_of.b:
            self._draw(all_of.elements.b, copy, all_of.columns)
        poison = WHOLE_POISON_BYTE if all_of.elements.d == "int32" else POISON_BYTE
        check(driver.cuMemsetD8(all_of.d, poison, matrix_bytes(all_of.elements.d, all_of.rows, all_of.columns)))
        self._case.context.synchronize()

    def _draw(self, element: Element, address: int, rows: int) -> None:
        self._seed = (self._seed + 1) % (1 << 31)
        function = self._case.modules.function(KERNELS, "draw")
        row = (address, rows * self.matrices.depth, self._seed, DATA_CODES[self.data], *FORMATS[element])
        shape = Launch(grid_blocks=DRAW_BLOCKS, block_threads=DRAW_THREADS, stream=LEGACY_STREAM)
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([row]))(1)
        self._case.context.synchronize()

    def check(self) -> str:
        """Raise MeasurementError with the error found and the one allowed, unless D is A B of one copy of B: each has
        numbers of its own, so no other one comes near."""
        error, allowed = min(self.errors()), allowed_error(self.matrices.dtype, self.matrices.depth, self.data)
        if not error <= allowed:
            raise MeasurementError(
                f"{self.matrices.dtype}: D is off by {error:.1e} of A B in the norm, "
                f"{allowed:.1e} is the types' own rounding"
            )
        return f"{VECTORS} random projections compared in float64, within the types' own rounding"

    def errors(self) -> list[float]:
        """How far D is off from A B, of the norm, for each copy of B; infinite where it is no number.

        Freivalds (1977): D x is compared with A (B x) for VECTORS x of random signs, in float64. Such a product's norm
        is that of the matrix itself, on average, so the share that it is off by is the matrix's. No single row may be
        further off than WORST_ROW times that.
        """
        all_of, context = self.matrices, self._case.context
        context.synchronize()
        signs = np.random.default_rng(self._seed).choice([-1.0, 1.0], VECTORS * all_of.columns)
        check(driver.cuMemcpyHtoD(self._signs, signs.ctypes.data, signs.nbytes))
        found = self._times(all_of.elements.d, all_of.d, all_of.columns, self._signs, self._found)
        products = [self._product(copy) for copy in all_of.b]
        return [max(relative_error(found, one), row_error(found, one) / WORST_ROW) for one in products]

    def _product(self, copy: int) -> Floats:
        """A (B x) of one of the copies of B."""
        all_of = self.matrices
        width, rows = all_of.depth, all_of.columns
        self._case.context.clear(self._between, VECTORS * DOUBLE_BYTES * width)
        blocks = -(-width // TIMES_THREADS) * -(-rows // BLOCK_ROWS)
        row = (copy, rows, width, self._signs, self._between, BLOCK_ROWS, *FORMATS[all_of.elements.b])
        self._run("transposed_times", blocks, row)
        return self._times(all_of.elements.a, all_of.a, width, self._between, self._wanted)

    def _times(self, element: Element, matrix: int, width: int, vectors: int, out: int) -> Floats:
        """``matrix`` of the product's rows with each of the vectors: shape (VECTORS, rows)."""
        rows = self.matrices.rows
        self._case.context.clear(out, VECTORS * DOUBLE_BYTES * rows)
        self._run("times", rows, (matrix, rows, width, vectors, out, *FORMATS[element]))
        products: Floats = self._case.context.read(out, VECTORS * rows, np.float64)
        return products.reshape(VECTORS, rows)

    def _run(self, kernel: str, blocks: int, row: tuple[int, ...]) -> None:
        function = self._case.modules.function(KERNELS, kernel)
        shape = Launch(grid_blocks=blocks, block_threads=TIMES_THREADS, stream=LEGACY_STREAM)
        launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([row]))(1)
        self._case.context.synchronize()


def row_error(found: Floats, wanted: Floats) -> float:
    """The largest of the rows' own errors, shape (VECTORS, rows), as a share of an average row's norm; infinite where
    anything is no number, and where all should be zero and is not."""
    worst = float(np.linalg.norm(found - wanted, axis=0).max())
    average = float(np.linalg.norm(wanted)) / float(np.sqrt(wanted.shape[1]))
    if worst == 0.0:
        return 0.0
    error = worst / average if average > 0.0 else np.inf
    return error if np.isfinite(error) else float(np.inf)


def relative_error(found: Floats, wanted: Floats) -> float:
    """The norm of the difference as a share of that of ``wanted``; infinite where anything is no number, and where all
    should be zero and is not."""
    difference, size = float(np.linalg.norm(found - wanted)), float(np.linalg.norm(wanted))
    if difference == 0.0:
        return 0.0
    error = difference / size if size > 0.0 else np.inf
    return error if np.isfinite(error) else float(np.inf)

"""The matrices of a product in device memory: random A and B drawn on the GPU, and D checked in float64."""

import time
from math import sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from microbench.gpu.experiment import Case, MeasurementError, check, driver, run
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
    """The largest error of a row, of arrays of shape (VECTORS, rows), as a share of an average row's norm; infinite as
    in ``relative_error``."""
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

"""What the matrices of a product are made of, where they lie, and how far off a result of each type may be."""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.gpu.protocol.compute import GemmData, GemmType, TensorType

Element = Literal["fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "int8", "int32"]


class Format(NamedTuple):
    """A type as kernels/gemm_operands.cu knows it: ``most`` is the code of its largest number; whole numbers have no
    ``fraction_bits``. Source of the 8-bit and 4-bit ones: OCP 8-bit floating point (2023), OCP microscaling (2023)."""

    bits: int
    fraction_bits: int = 0
    bias: int = 0
    most: int = 0


FORMATS: dict[Element, Format] = {
    "fp64": Format(64, 52, 1023), "fp32": Format(32, 23, 127), "fp16": Format(16, 10, 15, 0x7BFF),
    "bf16": Format(16, 7, 127, 0x7F7F), "e4m3": Format(8, 3, 7, 0x7E), "e5m2": Format(8, 2, 15, 0x7B),
    "e2m1": Format(4, 1, 1, 0x7), "int8": Format(8), "int32": Format(32),
}  # fmt: skip


class Elements(NamedTuple):
    """Types of the elements of A, B and D."""

    a: Element
    b: Element
    d: Element


ELEMENTS: dict[GemmType, Elements] = {
    "fp64": Elements("fp64", "fp64", "fp64"), "fp32": Elements("fp32", "fp32", "fp32"),
    "tf32": Elements("fp32", "fp32", "fp32"), "fp16": Elements("fp16", "fp16", "fp16"),
    "fp16_acc16": Elements("fp16", "fp16", "fp16"), "bf16": Elements("bf16", "bf16", "bf16"),
    "fp8_e4m3": Elements("e4m3", "e4m3", "bf16"), "fp8_e4m3_fast": Elements("e4m3", "e4m3", "bf16"),
    "fp8_e5m2": Elements("e5m2", "e4m3", "bf16"), "fp8_e5m2_fast": Elements("e5m2", "e4m3", "bf16"),
    "int8": Elements("int8", "int8", "int32"), "mxfp8": Elements("e4m3", "e4m3", "bf16"),
    "nvfp4": Elements("e2m1", "e2m1", "bf16"),
}  # fmt: skip


class Matrices(NamedTuple):
    """Addresses of a product's matrices: A is ``rows`` x ``depth`` with its depth contiguous; B, each of its copies, is
    stored transposed, as ``columns`` x ``depth`` with its depth contiguous; D is ``rows`` x ``columns`` with its
    columns contiguous."""

    dtype: GemmType
    rows: int
    columns: int
    depth: int
    a: int
    b: tuple[int, ...]
    d: int

    @property
    def elements(self) -> Elements:
        """Types of the elements."""
        return ELEMENTS[self.dtype]


def matrix_bytes(element: Element, rows: int, columns: int) -> int:
    """Bytes of a matrix; those of 4 bits lie two in a byte."""
    return -(-rows * columns * FORMATS[element].bits // 8)


def product_bytes(dtype: GemmType, rows: int, columns: int, depth: int) -> int:
    """Bytes of A, one B and D."""
    a, b, d = ELEMENTS[dtype]
    return matrix_bytes(a, rows, depth) + matrix_bytes(b, columns, depth) + matrix_bytes(d, rows, columns)


# Random signs: their rounding errors add up as a random walk. Of the others all errors may go the same way.
CENTRED: tuple[GemmData, ...] = ("normal", "uniform", "sparse", "zeros")
FP32_UNIT, FP64_UNIT = 2.0**-24, 2.0**-53
FP16_UNIT, BF16_UNIT = 2.0**-11, 2.0**-8
# Adding in fp8 keeps some 14 bits: what is below 2**-13 of the sum is cut off.
FAST_CUT = 2.0**-13
# Fewest products that a tensor instruction adds up before it rounds to fp16 (mma.m16n8k8).
FP16_STEP = 8
MOST_ERROR = 0.9


def allowed_error(dtype: GemmType, depth: int, data: GemmData) -> float:
    """How far D may be from A B, as a share of A B in the Frobenius norm; int8: 0, it is exact.

    Rounding to a type of unit roundoff u is off by 0.4 u of a matrix's norm. Results are rounded once; a library that
    splits the depth and adds the parts in D's own type rounds several times: 2 u are allowed. Adding k products one
    after the other in an accumulator of unit v rounds k times, of centred data by 0.3 v sqrt(k) of the result's norm:

    - fp64, fp32: u (2 + 2 sqrt(k)).
    - tf32: operands may be cut to 10 bits, which makes each 2^-11 smaller and the product 2^-10 at most: 2^-9.
    - fp16, bf16, mxfp8, nvfp4 with sums in fp32: 2 u, and 2^-12 for what is cut when the products of one instruction
      are aligned.
    - fp8 promoted: the same, as each sum of 128 products is added in fp32.
    - fp8 fast: 2 u + 2^-14 sqrt(k), as nothing below 2^-13 of the sum is kept.
    - fp16_acc16: 2 u + 2^-11 sqrt(k / 8): sums are rounded to fp16 every 8 products or less often.

    With centred data a factor of 1.02 is noticed in every type up to a depth of 16384, but in fp16_acc16 up to 8192.
    Where all products have the same sign, cut-off sums of fp8 and fp16 fall behind without end (of 1 and 0.75, a sum of
    fp16 stands still in the end): each step may lose half a unit of the sum, so hardly more than a result that is
    there at all can be asked of them.
    """
    if dtype == "int8":
        return 0.0
    if dtype in ("fp64", "fp32"):
        return (FP64_UNIT if dtype == "fp64" else FP32_UNIT) * (2 + 2 * sqrt(depth))
    if dtype == "tf32":
        return 2.0**-9
    once = 2 * (FP16_UNIT if ELEMENTS[dtype].d == "fp16" else BF16_UNIT)
    if dtype == "fp16_acc16":
        return once + _added(FP16_UNIT, depth / FP16_STEP, data)
    if dtype.endswith("_fast"):
        return once + _added(FAST_CUT / 2, depth, data)
    return once + 2.0**-12


def _added(unit: float, steps: float, data: GemmData) -> float:
    """What so many roundings of a sum may come to."""
    return unit * sqrt(steps) if data in CENTRED else min(unit * steps / 2, MOST_ERROR)


# Numbers as tensor cores take them: normal random ones rounded to a type, their bytes and their exact values.


Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

ELEMENT_BYTES: dict[TensorType, int] = {
    "fp64": 8, "tf32": 4, "fp16": 2, "fp16_acc16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1,
}  # fmt: skip
INT8_SCALE, INT8_MOST = 40.0, 127.0
# Bits of the significand that a type lacks of fp32, whose upper part it is.
CUT_BITS = {"tf32": 13, "bf16": 16}


class Matrix(NamedTuple):
    """``raw`` bytes, shape (rows, bytes of a row), and the ``values`` that they stand for, shape (rows, columns)."""

    raw: Bytes
    values: Floats


def normal(dtype: TensorType, rows: int, row_bytes: int, seed: int) -> Matrix:
    """Standard normal numbers rounded to nearest; integers 40 times as large."""
    drawn = np.random.default_rng(seed).standard_normal((rows, row_bytes // ELEMENT_BYTES[dtype]))
    elements, values = encode(dtype, drawn)
    return Matrix(np.ascontiguousarray(elements).view(np.uint8).reshape(rows, row_bytes), values)


def encode(dtype: TensorType, numbers: Floats) -> tuple[npt.NDArray[np.generic], Floats]:
    """Elements of a type nearest to the numbers, and what they are worth. Numbers lie well within the type's range."""
    match dtype:
        case "fp64":
            return numbers, numbers
        case "int8":
            whole = np.clip(np.rint(numbers * INT8_SCALE), -INT8_MOST, INT8_MOST)
            return whole.astype(np.int8), whole
        case "fp16" | "fp16_acc16":
            halves = numbers.astype(np.float16)
            return halves, halves.astype(np.float64)
        case "tf32" | "bf16":
            return _upper_part(dtype, numbers)
        case "fp8_e5m2" | "fp8_e4m3":
            table = _table(dtype)
            codes = _nearest(table, numbers)
            return codes, table[codes]


def _upper_part(dtype: TensorType, numbers: Floats) -> tuple[npt.NDArray[np.generic], Floats]:
    cut = CUT_BITS[dtype]
    bits = numbers.astype(np.float32).view(np.uint32) + np.uint32(1 << (cut - 1))
    bits &= np.uint32(0xFFFFFFFF ^ ((1 << cut) - 1))
    values = bits.view(np.float32).astype(np.float64)
    return (bits if dtype == "tf32" else (bits >> np.uint32(16)).astype(np.uint16)), values


def _table(dtype: TensorType) -> Floats:
    """What each of the 256 codes is worth; those that are no number, NaN. Source: OCP 8-bit floating point, 2023."""
    exponent_bits, bias = (4, 7) if dtype == "fp8_e4m3" else (5, 15)
    fraction_bits = 7 - exponent_bits
    codes = np.arange(256)
    exponent = codes >> fraction_bits & (1 << exponent_bits) - 1
    fraction = (codes & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    size = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    none = codes & 0x7F == 0x7F if dtype == "fp8_e4m3" else exponent == (1 << exponent_bits) - 1
    return np.where(none, np.nan, np.where(codes >> 7 > 0, -size, size))


def _nearest(table: Floats, numbers: Floats) -> Bytes:
    positive = table[:128]
    order = np.argsort(positive[~np.isnan(positive)], kind="stable")  # codes rise with their values
    sizes = positive[order]
    above = np.clip(np.searchsorted(sizes, np.abs(numbers)), 1, len(sizes) - 1)
    nearer_below = np.abs(numbers) - sizes[above - 1] < sizes[above] - np.abs(numbers)
    codes = order[np.where(nearer_below, above - 1, above)] | np.where(numbers < 0, 0x80, 0)
    return codes.astype(np.uint8)

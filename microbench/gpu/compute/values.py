"""Numbers as tensor cores take them: normal random ones rounded to a type, their bytes and their exact values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.gpu.compute_api import TensorType

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

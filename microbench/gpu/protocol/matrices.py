"""The matrices of a product: their types, their places in device memory, and the bytes that they take."""

from __future__ import annotations

from typing import Literal, NamedTuple

# Operand types and, where it matters, how products are accumulated. fp8 types name the left operand; the right operand
# is e4m3. _fast: partial sums stay in the tensor cores' own accumulator (FAST_ACCUM, use_fast_accum).
GemmType = Literal[
    "fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e4m3_fast", "fp8_e5m2", "fp8_e5m2_fast",
    "int8", "mxfp8", "nvfp4",
]  # fmt: skip
# Alignment of matrices. cuBLASLt's heuristics assume that addresses are multiples of 256.
ALIGNED_BYTES = 256
Element = Literal["fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "int8", "int32"]


class Format(NamedTuple):
    """A number format: ``most`` is the code of its largest number; integers have no ``fraction_bits``.

    Source of the 8-bit and 4-bit formats: OCP 8-bit floating point (2023), OCP microscaling (2023).
    """

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
    """Element types of A, B and D."""

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
    """Device addresses of the matrices of a product D = A B, or of the first of several ``products`` of one shape.

    A is ``rows`` x ``depth``, D is ``rows`` x ``columns``, both row-major. Each copy of B is stored transposed, as
    ``columns`` x ``depth``, also row-major. The matrices of the next product begin ``apart`` elements further on.
    """

    dtype: GemmType
    rows: int
    columns: int
    depth: int
    a: int
    b: tuple[int, ...]
    d: int
    products: int = 1

    @property
    def elements(self) -> Elements:
        """Element types of A, B and D."""
        return ELEMENTS[self.dtype]

    @property
    def apart(self) -> tuple[int, int, int]:
        """Elements from a product's A, B and D to those of the next: each begins at a multiple of ALIGNED_BYTES."""
        sides = ((self.rows, self.depth), (self.columns, self.depth), (self.rows, self.columns))
        a, b, d = (
            -(-matrix_bytes(element, *side) // ALIGNED_BYTES) * ALIGNED_BYTES * 8 // FORMATS[element].bits
            for element, side in zip(self.elements, sides, strict=True)
        )
        return a, b, d

    def one(self, number: int) -> Matrices:
        """The matrices of one of the products."""
        a, b, d = (
            number * apart * FORMATS[element].bits // 8
            for element, apart in zip(self.elements, self.apart, strict=True)
        )
        return self._replace(a=self.a + a, b=tuple(copy + b for copy in self.b), d=self.d + d, products=1)


def matrix_bytes(element: Element, rows: int, columns: int) -> int:
    """Bytes of a matrix; two 4-bit elements share a byte."""
    return -(-rows * columns * FORMATS[element].bits // 8)

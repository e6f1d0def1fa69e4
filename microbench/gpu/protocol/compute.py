"""The protocol Compute: the operations of tensor cores and ALUs, and the types of a product's matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Telemetry
from microbench.gpu.protocol.submit import Submit

# Operand types and, where it matters, how products are accumulated. fp8 types name the left operand; the right operand
# is e4m3. _fast: partial sums stay in the tensor cores' own accumulator (FAST_ACCUM, use_fast_accum).
GemmType = Literal[
    "fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e4m3_fast", "fp8_e5m2", "fp8_e5m2_fast",
    "int8", "mxfp8", "nvfp4",
]  # fmt: skip
Library = Literal["cublaslt", "cupy", "torch"]
# normal: standard normal; uniform: between -1 and 1; constant: one number everywhere; sparse: normal with two of every
# four elements zero. Integers follow the same distributions, scaled to their range.
GemmData = Literal["normal", "uniform", "constant", "ones", "zeros", "sparse"]
# Tensor instructions: wgmma of warpgroups, from shared memory (9.0a only), and mma of warps, from registers.
TensorPath = Literal["wgmma", "mma"]
TensorType = Literal["fp64", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]
# ALU instructions: multiply-adds, integer multiply-add and addition, two special functions.
AluOperation = Literal[
    "fma_fp64", "fma_fp32", "fma_fp16x2", "fma_bf16x2", "mad_int32", "add_int32", "exp2_fp32", "rsqrt_fp32",
]  # fmt: skip

# How each type is accumulated, in words. The tensor cores keep 14 bits of fp8 sums; without _fast these partial sums
# are added in fp32 every 128 products. Source: DeepSeek-V3 technical report (2024), section 3.3.2, on the H800.
ACCUMULATORS: dict[GemmType, str] = {
    "fp64": "fp64", "fp32": "fp32", "tf32": "fp32", "fp16": "fp32", "fp16_acc16": "fp16", "bf16": "fp32",
    "fp8_e4m3": "fp32, promoted", "fp8_e4m3_fast": "fast, about 14 bits", "fp8_e5m2": "fp32, promoted",
    "fp8_e5m2_fast": "fast, about 14 bits", "int8": "int32", "mxfp8": "fp32", "nvfp4": "fp32",
}  # fmt: skip
INTEGER_TYPES = ("int8",)

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


def product_bytes(dtype: GemmType, rows: int, columns: int, depth: int) -> int:
    """Bytes of A, one B and D."""
    a, b, d = ELEMENTS[dtype]
    return matrix_bytes(a, rows, depth) + matrix_bytes(b, columns, depth) + matrix_bytes(d, rows, columns)


class UnitPass(NamedTuple):
    """Duration of one launch on every SM, by the SMs' own clocks.

    ``seconds`` is from the first SM's begin to the last SM's end. ``cycles`` (of one SM, from its begin to its end) and
    ``clock_hz`` are medians over the SMs: under tensor work some SMs run half a percent slower and end last.
    """

    seconds: float
    cycles: float
    clock_hz: float


class Gemm(Protocol):
    """One matrix product D = A B in one way of one library."""

    submit: Submit

    def graph(self, calls: int) -> Submit:
        """A graph of ``calls`` calls of ``submit``, one after the other. One call of the result is one replay.

        Raises Skip if the library's calls cannot be captured.
        """

    def fresh(self) -> None:
        """Fill the operands with new data and poison D; returns when both are done."""

    def check(self) -> str:
        """Compare D with A B by products with random vectors of signs, in float64. Returns how that was done.

        Raises MeasurementError, with both errors, if D is further off than the rounding of its types allows.
        """


class Problem(Protocol):
    """The operands of one product (A of ``rows`` x ``depth``, B of ``depth`` x ``columns``), or of several.

    ``operations`` of a call are 2 rows columns depth for each product that it computes, multiplications and additions.
    ``size_bytes`` counts each of their operands once and each result once.
    """

    dtype: GemmType
    rows: int
    columns: int
    depth: int
    operations: int
    size_bytes: int

    def ways(self, library: Library) -> Sequence[str]:
        """Names of the candidates of cuBLASLt's heuristics, its best guess first; other libraries have one way.

        Raises Skip if the library does not support the type on this GPU, and with the install line if the library is
        missing.
        """

    def gemm(self, library: Library, way: str) -> Gemm:
        """The product in this way, ready to be submitted. All ways of a problem share the operands and D."""


class ClockBracket(Protocol):
    """Two tiny kernels around a region of stream 0 that read the SMs' own counters."""

    def begin(self) -> None:
        """Launch the first kernel."""

    def end(self) -> None:
        """Launch the second kernel."""

    def hz(self) -> float:
        """The mean SM clock between the two kernels: median over the SMs, in Hz. Call it when both have ended."""


class Resident(Protocol):
    """Instructions on the contents of registers or shared memory, on every SM and without memory traffic.

    ``operations`` are those of one SM in one repetition. A multiply-add counts as two, but an integer one on the ALUs
    as one, as in the throughput table of the CUDA programming guide.
    """

    sms: int
    operations: int

    def take(self, repeats: int) -> UnitPass:
        """Run ``repeats`` repetitions on every SM. Raises MeasurementError if two blocks shared an SM."""

    def check(self) -> str:
        """Compare the results on fresh operands. Returns how; raises MeasurementError for a wrong result."""


class Chain(Protocol):
    """One warp whose instructions each wait for the one before: ``instructions`` in one repetition."""

    instructions: int

    def take(self, repeats: int) -> UnitPass:
        """Run ``repeats`` repetitions on one SM."""


class Compute(Protocol):
    """Tensor cores and ALUs of one GPU for one case. Every method raises Skip if GPU or library cannot do it."""

    def problem(
        self,
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

        With ``beyond_l2`` there are so many copies of B, used in turn, that none is in the L2 when it is used. If there
        are several ``products``, each has operands of its own. A call computes the next product, or all of them if
        ``batched`` (one strided-batched call of cuBLASLt). A check covers all products.
        """

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        """Device memory that this product needs, in bytes: operands, result, check and workspace."""

    def free_bytes(self) -> int:
        """Device memory that a problem can take now, in bytes."""

    def bracket(self) -> ClockBracket:
        """A new bracket for the mean SM clock of a region."""

    def state(self) -> Telemetry:
        """Power, temperature, clocks and throttle reasons by NVML, read while work runs. Takes microseconds."""

    def tensor(self, path: TensorPath, dtype: TensorType, *, sparse: bool = False) -> Resident:
        """Tensor instructions alone, on normally distributed random operands.

        With ``sparse`` two of every four elements of the first operand are zero and skipped (2:4 structured sparsity).
        ``operations`` count them as if they were not, as data sheets do.
        """

    def arithmetic(self, operation: AluOperation) -> Resident:
        """Independent ALU instructions, enough of them to fill every SM."""

    def chain(self, operation: AluOperation) -> Chain:
        """Dependent ALU instructions of one warp."""

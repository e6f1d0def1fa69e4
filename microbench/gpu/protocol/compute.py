"""The protocol Compute: what a benchmark may ask of a GPU's tensor cores and ALUs. Raw times and counts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Telemetry
from microbench.gpu.protocol.submit import Submit

# What is multiplied, and where it matters how it is added up. fp8: the left operand's type, the right one is e4m3;
# _fast: partial sums stay in the tensor cores' own accumulator (cuBLASLt's FAST_ACCUM, PyTorch's use_fast_accum).
GemmType = Literal[
    "fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e4m3_fast", "fp8_e5m2", "fp8_e5m2_fast",
    "int8", "mxfp8", "nvfp4",
]  # fmt: skip
Library = Literal["cublaslt", "cupy", "torch"]
# normal: standard normal; uniform: between -1 and 1; constant: the same number everywhere; sparse: normal, of which
# half is zero, two of every four; integers alike, scaled to their range.
GemmData = Literal["normal", "uniform", "constant", "ones", "zeros", "sparse"]
# Tensor instructions: warpgroups' from shared memory (9.0a), and warps' from registers.
TensorPath = Literal["wgmma", "mma"]
TensorType = Literal["fp64", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8"]
# Instructions of the ALUs: multiply-adds, integer multiply-add and addition, two of the special functions.
AluOperation = Literal[
    "fma_fp64", "fma_fp32", "fma_fp16x2", "fma_bf16x2", "mad_int32", "add_int32", "exp2_fp32", "rsqrt_fp32",
]  # fmt: skip

# What products are added up in, in words. Of fp8 the tensor cores keep 14 bits; without _fast these partial sums are
# added in fp32 every 128 products. Source: DeepSeek-V3 technical report (2024), section 3.3.2, on the H800.
ACCUMULATORS: dict[GemmType, str] = {
    "fp64": "fp64", "fp32": "fp32", "tf32": "fp32", "fp16": "fp32", "fp16_acc16": "fp16", "bf16": "fp32",
    "fp8_e4m3": "fp32, promoted", "fp8_e4m3_fast": "fast, about 14 bits", "fp8_e5m2": "fp32, promoted",
    "fp8_e5m2_fast": "fast, about 14 bits", "int8": "int32", "mxfp8": "fp32", "nvfp4": "fp32",
}  # fmt: skip
INTEGER_TYPES = ("int8",)


class UnitPass(NamedTuple):
    """What one launch on every SM took by the SMs' own clocks.

    ``seconds`` from the first SM's begin to the last one's end. Medians over the SMs: ``cycles`` of an SM's clock from
    its begin to its end, ``clock_hz`` of it. Under tensor work some SMs are half a percent slower than others, and end
    last.
    """

    seconds: float
    cycles: float
    clock_hz: float


class Gemm(Protocol):
    """One matrix product D = A B by one way of a library, as a Transfer is of copies."""

    submit: Submit

    def graph(self, calls: int) -> Submit:
        """A graph of so many calls of ``submit``, one after the other: each of its calls is one replay."""
        ...

    def fresh(self) -> None:
        """Fill the operands with new data and poison D; waits until that is done."""
        ...

    def check(self) -> str:
        """How D was compared: its product with a random vector of signs with that of the operands, in float64.

        Raises MeasurementError with both errors when it is further off than the types' own rounding allows.
        """
        ...


class Problem(Protocol):
    """The operands of one product: A of ``rows`` x ``depth``, B of ``depth`` x ``columns``, fresh at each ``fresh``.

    ``operations`` are 2 rows columns depth, multiplications and additions; ``size_bytes`` each operand read once and
    the result written once.
    """

    dtype: GemmType
    rows: int
    columns: int
    depth: int
    operations: int
    size_bytes: int

    def ways(self, library: Library) -> Sequence[str]:
        """The candidates of cuBLASLt's own heuristics, best guess first, by name; another library chooses for itself:
        one name. Raises Skip where library, type and GPU do not go together, with the line that installs it."""
        ...

    def gemm(self, library: Library, way: str) -> Gemm:
        """That way, ready to be submitted. All ways of a problem work on the same operands and the same D."""
        ...


class ClockBracket(Protocol):
    """Two tiny kernels around a region of stream 0: the mean SM clock between them, by the SMs' own counters."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def hz(self) -> float:
        """Median over the SMs; both kernels have ended."""
        ...


class Resident(Protocol):
    """Instructions on what registers or shared memory hold, on every SM and with no traffic.

    ``operations`` are those of one SM in one repetition: floating or integer, a multiply-add on tensors or floating
    numbers counts as two, one of integers on the ALUs as one, as in the CUDA programming guide's table of throughput.
    """

    sms: int
    operations: int

    def take(self, repeats: int) -> UnitPass:
        """Run so many repetitions on every SM. Raises MeasurementError where two blocks share an SM."""
        ...

    def check(self) -> str:
        """How the results of one repetition on fresh data were compared. Raises MeasurementError for wrong ones."""
        ...


class Chain(Protocol):
    """One warp whose instructions each wait for the one before: ``instructions`` in one repetition."""

    instructions: int

    def take(self, repeats: int) -> UnitPass:
        """Run so many repetitions on one SM."""
        ...


class Compute(Protocol):
    """Tensor cores and ALUs of one GPU, for one case. Every method raises Skip where GPU or library have no such
    thing."""

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
        """Operands in device memory. With ``beyond_l2`` there are so many copies of B, used in turn, that none is in
        the L2 when its turn comes. Raises Skip with the bytes asked and free where they do not fit."""
        ...

    def needed_bytes(self, dtype: GemmType, rows: int, columns: int, depth: int) -> int:
        """What operands, result and workspace of such a problem take."""
        ...

    def free_bytes(self) -> int:
        """Device memory that can be had now."""
        ...

    def bracket(self) -> ClockBracket: ...

    def state(self) -> Telemetry:
        """What NVML says now, while work runs: power, temperature, clocks, reasons. Takes microseconds."""
        ...

    def tensor(self, path: TensorPath, dtype: TensorType) -> Resident:
        """Tensor instructions alone, of normal random operands."""
        ...

    def arithmetic(self, operation: AluOperation) -> Resident:
        """Independent ALU instructions, enough of them to fill every SM."""
        ...

    def chain(self, operation: AluOperation) -> Chain:
        """Dependent ALU instructions of one warp."""
        ...

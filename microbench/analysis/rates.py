"""What an SM computes in a clock cycle, by compute capability: tensor cores and ALUs, dense, each with its source."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from microbench.core.model import GpuInfo

FLOATING, INTEGER = "FLOP/clk/SM", "OP/clk/SM"


class Rate(msgspec.Struct, frozen=True):
    """Operations in a clock cycle and SM: ``value`` in ``unit``, who does them, where from, and what was assumed.

    A multiply-add counts as two, on the ALUs one of integers as one: as in the CUDA programming guide.
    """

    value: float
    unit: str
    by: str
    source: str
    confidence: str
    assumptions: tuple[str, ...] = ()


class Halved(NamedTuple):
    """A rate that boards for games have cut to half of what the chip can."""

    full: int

    @property
    def half(self) -> int:
        """What those boards do."""
        return self.full // 2


class Architecture(NamedTuple):
    """An architecture's rates, tensor cores by type of operands, ALUs by instruction; where they are from."""

    source: str
    confidence: str
    tensor: dict[str, int | Halved]
    alu: dict[str, int]


def _alu(fp64: int, fp32: int, fp16x2: int | None, bf16x2: int | None, **other: int) -> dict[str, int]:
    """Of floating multiply-adds so many operations; integers and special functions are alike almost everywhere."""
    halves = {name: rate for name, rate in (("fma_fp16x2", fp16x2), ("fma_bf16x2", bf16x2)) if rate is not None}
    usual = {"mad_int32": 64, "add_int32": 64, "exp2_fp32": 16, "rsqrt_fp32": 16}
    return {"fma_fp64": fp64, "fma_fp32": fp32, **halves, **usual, **other}


# A data sheet's figure over SMs and its clock gives each of these back within 1 % (tests/test_rates.py). Structured
# sparsity doubles tensor rates from 8.0 on and is left out everywhere. "fp8" adds up in fp32, "fp8_fast" in less.
GUIDE = "CUDA C++ Programming Guide, arithmetic throughput"
ADA: dict[str, int | Halved] = {
    "tf32": Halved(512), "fp16_acc16": 1024, "fp16": Halved(1024), "bf16": Halved(1024), "int8": 2048,
    "fp8_fast": 2048, "fp8": Halved(2048),
}  # fmt: skip
BLACKWELL_RTX = Architecture(
    f"{GUIDE}; RTX Blackwell white paper, tables 3 and 6",
    "high, fp8 that adds up in fp32 disputed",
    # cuBLASLt's mxfp8 was seen on an RTX 5090 beyond the half that the white paper gives to fp8.
    {**ADA, "mxfp8": 2048, "nvfp4": 4096},
    _alu(4, 256, 256, 256, add_int32=128),
)
ARCHITECTURES: dict[tuple[int, int], Architecture] = {
    (7, 0): Architecture(
        f"{GUIDE}; V100 data sheet", "high", {"fp16_acc16": 1024, "fp16": 1024}, _alu(64, 128, 256, None)
    ),
    (7, 5): Architecture(
        f"{GUIDE}; T4 data sheet", "high", {"fp16_acc16": 1024, "fp16": Halved(1024), "int8": 2048},
        _alu(4, 128, 256, None),
    ),
    (8, 0): Architecture(
        f"{GUIDE}; A100 white paper", "high",
        {"fp64": 128, "tf32": 1024, "fp16_acc16": 2048, "fp16": 2048, "bf16": 2048, "int8": 4096},
        _alu(64, 128, 512, 256),
    ),
    (8, 6): Architecture(
        f"{GUIDE}; GA102 white paper", "high",
        {"tf32": Halved(512), "fp16_acc16": 1024, "fp16": Halved(1024), "bf16": Halved(1024), "int8": 2048},
        _alu(4, 256, 256, 256),
    ),
    (8, 7): Architecture(
        "Jetson AGX Orin data sheet over SMs and clock", "low", {"int8": 4096, "fp16": 2048}, _alu(4, 256, None, None)
    ),
    (8, 9): Architecture(f"{GUIDE}; AD102 white paper", "high", ADA, _alu(4, 256, 256, 256)),
    (9, 0): Architecture(
        f"{GUIDE}; H100 white paper", "high",
        {
            "fp64": 256, "tf32": 2048, "fp16_acc16": 4096, "fp16": 4096, "bf16": 4096, "fp8_fast": 8192, "fp8": 8192,
            "int8": 8192,
        },
        _alu(128, 256, 512, 512),
    ),
    (10, 0): Architecture(
        f"{GUIDE}; Blackwell technical brief", "medium",
        {
            "fp64": 128, "tf32": 4096, "fp16_acc16": 8192, "fp16": 8192, "bf16": 8192, "fp8_fast": 16384,
            "fp8": 16384, "mxfp8": 16384, "nvfp4": 32768, "int8": 16384,
        },
        _alu(128, 256, 256, 256),
    ),
    # Exponentials: NVIDIA, Making Softmax More Efficient with Blackwell Ultra (twice those of 10.0).
    (10, 3): Architecture(
        f"{GUIDE}; HGX B300 data sheet over SMs and clock", "low",
        {
            "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8_fast": 16384, "fp8": 16384, "mxfp8": 16384, "nvfp4": 49152,
        },
        _alu(4, 256, 256, 256, exp2_fp32=32),
    ),
    (12, 0): BLACKWELL_RTX,
    (12, 1): BLACKWELL_RTX._replace(confidence="medium, taken to be those of 12.0"),
}  # fmt: skip
# Boards whose name says that they add up in fp32 at half the rate. Compute capability cannot tell. The L40, unlike the
# L40S, is rated 181 of 362 TFLOP/s by its data sheet.
GAMES, HALVED_BOARDS = "GeForce", ("NVIDIA L40",)
# What a product's operands are to the tensor cores, where it is not its own name.
OPERANDS = {
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_e4m3_fast": "fp8_fast", "fp8_e5m2_fast": "fp8_fast",
}  # fmt: skip
INTEGER_OPERANDS = ("int8",)
# Products that the ALUs multiply where tensor cores do not take the type.
ON_ALUS = {"fp32": "fma_fp32", "fp64": "fma_fp64"}
# SXM boards whose data sheet takes another clock for tensor types than the highest; XLA's table of H100 has its share
# too (kHopperTcClockScale). fp64 and the ALUs are rated at the highest clock there.
DATA_SHEET_BOARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
DATA_SHEET_TENSOR_HZ, DATA_SHEET_HZ = 1.83e9, 1.98e9
TENSOR, GEMM, ALU = "tensor:", "gemm:", "alu:"
PER_CLOCK = "_per_clock"


def tensor_rate(dtype: str, gpu: GpuInfo) -> Rate | None:
    """What an SM's tensor cores multiply and add in a cycle, dense; None where they do not take the type."""
    found = ARCHITECTURES.get(gpu.compute_capability or (0, 0))
    rate = found.tensor.get(OPERANDS.get(dtype, dtype)) if found is not None else None
    if found is None or rate is None:
        return None
    assumptions: tuple[str, ...] = ()
    if isinstance(rate, Halved):
        rate, assumptions = _of_board(rate, gpu.name)
    if found.confidence != "high":
        assumptions += (f"confidence {found.confidence}",)
    unit = INTEGER if dtype in INTEGER_OPERANDS else FLOATING
    return Rate(float(rate), unit, "tensor cores", found.source, found.confidence, assumptions)


def _of_board(rate: Halved, name: str) -> tuple[int, tuple[str, ...]]:
    if GAMES in name or name in HALVED_BOARDS:
        return rate.half, ("this board adds up in fp32 at half the rate, by its name",)
    return rate.full, ("a board for workstations or data centres, by its name",)


def alu_rate(operation: str, gpu: GpuInfo) -> Rate | None:
    """What an SM's ALUs do of an instruction in a cycle; None where the architecture has it not or is not known."""
    found = ARCHITECTURES.get(gpu.compute_capability or (0, 0))
    rate = found.alu.get(operation) if found is not None else None
    if found is None or rate is None:
        return None
    unit = FLOATING if operation.startswith("fma") else INTEGER
    assumptions = () if found.confidence == "high" else (f"confidence {found.confidence}",)
    return Rate(float(rate), unit, f"ALUs {operation}", found.source, found.confidence, assumptions)


def gemm_rate(dtype: str, gpu: GpuInfo) -> Rate | None:
    """That of the units which multiply matrices of the type: ALUs where tensor cores do not take it."""
    found = tensor_rate(dtype, gpu)
    return alu_rate(ON_ALUS[dtype], gpu) if found is None and dtype in ON_ALUS else found


def rate_of(bound: str | None, gpu: GpuInfo | None) -> Rate | None:
    """By the name of a bound: "tensor:bf16", "gemm:fp32", "alu:fma_fp64", each also with "_per_clock"."""
    if bound is None or gpu is None:
        return None
    name = bound.removesuffix(PER_CLOCK)
    for prefix, look_up in ((TENSOR, tensor_rate), (GEMM, gemm_rate), (ALU, alu_rate)):
        if name.startswith(prefix):
            return look_up(name.removeprefix(prefix), gpu)
    return None


def data_sheet_clock_hz(bound: str | None, gpu: GpuInfo | None) -> float | None:
    """The SM clock that the board's data sheet takes for this bound; None for boards where none is known."""
    rate = rate_of(bound, gpu)
    if rate is None or gpu is None or gpu.name not in DATA_SHEET_BOARDS or bound is None:
        return None
    on_tensor_cores = rate.by == "tensor cores" and not bound.removesuffix(PER_CLOCK).endswith(":fp64")
    return DATA_SHEET_TENSOR_HZ if on_tensor_cores else DATA_SHEET_HZ

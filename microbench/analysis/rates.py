"""Gives the dense operations of an SM in a clock cycle, of tensor cores and ALUs, with sources."""

from typing import NamedTuple

import msgspec

from microbench.core.model import GpuInfo

FLOATING, INTEGER = "FLOP/clk/SM", "OP/clk/SM"


class Rate(msgspec.Struct, frozen=True):
    """Operations of an SM in a clock cycle: ``value`` in ``unit``, the hardware, source and assumptions.

    A multiply-add counts as two, but as one for integers on ALUs, as in the CUDA programming guide.
    """

    value: float
    unit: str
    by: str
    source: str = ""
    assumptions: tuple[str, ...] = ()


class Architecture(NamedTuple):
    """An architecture's rates with their source: tensor cores by type of operands, ALUs by instruction.

    Gaming boards have half of the rates of the types in ``halved``.
    """

    source: str
    confidence: str
    tensor: dict[str, int]
    alu: dict[str, int]
    halved: tuple[str, ...] = ()


def _alu(fp64: int, fp32: int, fp16x2: int | None, bf16x2: int | None, **other: int) -> dict[str, int]:
    """Operations of ALUs by instruction; integers and special functions have one rate on almost every architecture."""
    halves = {name: rate for name, rate in (("fma_fp16x2", fp16x2), ("fma_bf16x2", bf16x2)) if rate is not None}
    usual = {"mad_int32": 64, "add_int32": 64, "exp2_fp32": 16, "rsqrt_fp32": 16}
    return {"fma_fp64": fp64, "fma_fp32": fp32, **halves, **usual, **other}


# Each rate agrees within 1 % with a data sheet's figure over SMs and clock (tests/test_rates.py). They are dense: 2:4
# structured sparsity doubles those of 16-bit types from 8.0 on. "fp8" accumulates in fp32, "fp8_fast" in fewer bits.
GUIDE = "CUDA C++ Programming Guide, arithmetic throughput"
ADA = {"tf32": 512, "fp16_acc16": 1024, "fp16": 1024, "bf16": 1024, "int8": 2048, "fp8_fast": 2048, "fp8": 2048}
IN_FP32 = ("tf32", "fp16", "bf16", "fp8")  # types that add up in fp32
BLACKWELL_RTX = Architecture(
    f"{GUIDE}; RTX Blackwell white paper, tables 3 and 6",
    "high, fp8 that adds up in fp32 disputed",
    # On an RTX 5090 cuBLASLt's mxfp8 exceeded the half rate that the white paper states for fp8.
    {**ADA, "mxfp8": 2048, "nvfp4": 4096},
    _alu(4, 256, 256, 256, add_int32=128),
    IN_FP32,
)
ARCHITECTURES: dict[tuple[int, int], Architecture] = {
    (7, 0): Architecture(
        f"{GUIDE}; V100 data sheet", "high", {"fp16_acc16": 1024, "fp16": 1024}, _alu(64, 128, 256, None)
    ),
    (7, 5): Architecture(
        f"{GUIDE}; T4 data sheet", "high", {"fp16_acc16": 1024, "fp16": 1024, "int8": 2048},
        _alu(4, 128, 256, None), IN_FP32,
    ),
    (8, 0): Architecture(
        f"{GUIDE}; A100 white paper", "high",
        {"fp64": 128, "tf32": 1024, "fp16_acc16": 2048, "fp16": 2048, "bf16": 2048, "int8": 4096},
        _alu(64, 128, 512, 256),
    ),
    (8, 6): Architecture(
        f"{GUIDE}; GA102 white paper", "high",
        {"tf32": 512, "fp16_acc16": 1024, "fp16": 1024, "bf16": 1024, "int8": 2048},
        _alu(4, 256, 256, 256), IN_FP32,
    ),
    (8, 7): Architecture(
        "Jetson AGX Orin data sheet over SMs and clock", "low", {"int8": 4096, "fp16": 2048}, _alu(4, 256, None, None)
    ),
    (8, 9): Architecture(f"{GUIDE}; AD102 white paper", "high", ADA, _alu(4, 256, 256, 256), IN_FP32),
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
# Names of boards that accumulate in fp32 at half the rate, which compute capability does not show. The data sheet rates
# the L40, unlike the L40S, at 181 of 362 TFLOP/s.
GAMES, HALVED_BOARDS = "GeForce", ("NVIDIA L40",)
# The tensor cores' type for a product's operands, if its name differs.
OPERANDS = {
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_e4m3_fast": "fp8_fast", "fp8_e5m2_fast": "fp8_fast",
}  # fmt: skip
# Products that ALUs compute if the tensor cores do not support the type.
ON_ALUS = {"fp32": "fma_fp32", "fp64": "fma_fp64"}
# SXM boards whose data sheet assumes less than the highest clock for tensor types, as does XLA's table of H100
# (kHopperTcClockScale). It rates fp64 and the ALUs at the highest clock.
DATA_SHEET_BOARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
DATA_SHEET_TENSOR_HZ, DATA_SHEET_HZ = 1.83e9, 1.98e9
SPARSE_SINCE, SPARSE_TYPES = (8, 0), ("bf16", "fp16")
PER_CLOCK = "_per_clock"


def tensor_rate(dtype: str, gpu: GpuInfo) -> Rate | None:
    """The dense rate of an SM's tensor cores; None if they do not support the type."""
    architecture = ARCHITECTURES.get(gpu.compute_capability or (0, 0))
    operands = OPERANDS.get(dtype, dtype)
    rate = architecture.tensor.get(operands) if architecture is not None else None
    if architecture is None or rate is None:
        return None
    assumptions: tuple[str, ...] = ()
    if operands in architecture.halved:
        halved = GAMES in gpu.name or gpu.name in HALVED_BOARDS
        rate = rate // 2 if halved else rate
        half = "this board adds up in fp32 at half the rate, by its name"
        assumptions = (half if halved else "a board for workstations or data centres, by its name",)
    if architecture.confidence != "high":
        assumptions += (f"confidence {architecture.confidence}",)
    unit = INTEGER if dtype == "int8" else FLOATING
    return Rate(float(rate), unit, "tensor cores", architecture.source, assumptions)


def alu_rate(operation: str, gpu: GpuInfo) -> Rate | None:
    """The rate of an SM's ALUs for an instruction; None if the architecture lacks it or is unknown."""
    architecture = ARCHITECTURES.get(gpu.compute_capability or (0, 0))
    rate = architecture.alu.get(operation) if architecture is not None else None
    if architecture is None or rate is None:
        return None
    unit = FLOATING if operation.startswith("fma") else INTEGER
    assumptions = () if architecture.confidence == "high" else (f"confidence {architecture.confidence}",)
    return Rate(float(rate), unit, f"ALUs {operation}", architecture.source, assumptions)


def rate_of(bound: str | None, gpu: GpuInfo | None) -> Rate | None:
    """The rate of a bound such as "tensor:bf16", "sparse:bf16", "gemm:fp32", "alu:fma_fp64", also with "_per_clock";
    else None. Matrices are multiplied on tensor cores, or on ALUs if those do not support the type."""
    if bound is None or gpu is None:
        return None
    kind, _, name = bound.removesuffix(PER_CLOCK).partition(":")
    rate = tensor_rate(name, gpu) if kind in ("tensor", "sparse", "gemm") else None
    if kind == "sparse" and rate is not None:  # skipped operations are counted, as in data sheets
        skips = name in SPARSE_TYPES and (gpu.compute_capability or (0, 0)) >= SPARSE_SINCE
        return msgspec.structs.replace(rate, value=2 * rate.value, by="sparse tensor cores") if skips else None
    on_alus = name if kind == "alu" else ON_ALUS.get(name) if kind == "gemm" else None
    return alu_rate(on_alus, gpu) if rate is None and on_alus is not None else rate


def data_sheet_clock_hz(bound: str | None, gpu: GpuInfo | None) -> float | None:
    """The SM clock that the board's data sheet assumes for this bound; None for other boards."""
    rate = rate_of(bound, gpu)
    if rate is None or gpu is None or gpu.name not in DATA_SHEET_BOARDS or bound is None:
        return None
    on_tensor_cores = rate.by.endswith("tensor cores") and not bound.removesuffix(PER_CLOCK).endswith(":fp64")
    return DATA_SHEET_TENSOR_HZ if on_tensor_cores else DATA_SHEET_HZ

"""Costs of the simulated GPU's tensor cores and ALUs: made up, round numbers of the order of a data-centre GPU."""

from __future__ import annotations

import msgspec

from microbench.gpu.compute_api import AluOperation, GemmData, GemmType, Library


class ProductLibrary(msgspec.Struct, frozen=True):
    """What a call of a library keeps the host, in ns; its types; its kernels, each with the share of the rate that it
    gets, in the order in which it would guess."""

    submit_ns: float
    kernels: dict[str, float]
    dtypes: tuple[GemmType, ...]


class Tile(msgspec.Struct, frozen=True):
    """The part of a result that one SM computes at a time, and the share of the tensor cores' rate that it gets."""

    rows: int
    columns: int
    share: float


def _tensor_per_clock() -> dict[str, float]:
    return {
        "fp64": 255.0, "tf32": 2040.0, "fp16": 4080.0, "fp16_acc16": 4080.0, "bf16": 4080.0, "fp8_e4m3": 8160.0,
        "fp8_e5m2": 8160.0, "int8": 8160.0, "mxfp8": 8160.0, "nvfp4": 16320.0,
    }  # fmt: skip


def _tensor_joules() -> dict[str, float]:
    return {
        "fp64": 7e-12, "tf32": 1.35e-12, "fp16": 0.72e-12, "fp16_acc16": 0.6e-12, "bf16": 0.7e-12,
        "fp8_e4m3": 0.36e-12, "fp8_e5m2": 0.35e-12, "int8": 0.33e-12, "mxfp8": 0.36e-12, "nvfp4": 0.2e-12,
    }  # fmt: skip


def _alu_per_clock() -> dict[AluOperation, float]:
    return {
        "fma_fp64": 127.0, "fma_fp32": 254.0, "fma_fp16x2": 506.0, "fma_bf16x2": 500.0, "mad_int32": 63.0,
        "add_int32": 62.0, "exp2_fp32": 15.8, "rsqrt_fp32": 15.6,
    }  # fmt: skip


def _alu_joules() -> dict[AluOperation, float]:
    return {
        "fma_fp64": 13e-12, "fma_fp32": 4.5e-12, "fma_fp16x2": 1.8e-12, "fma_bf16x2": 1.9e-12, "mad_int32": 9e-12,
        "add_int32": 7e-12, "exp2_fp32": 20e-12, "rsqrt_fp32": 22e-12,
    }  # fmt: skip


def _alu_cycles() -> dict[AluOperation, float]:
    return {
        "fma_fp64": 8.0, "fma_fp32": 4.0, "fma_fp16x2": 5.0, "fma_bf16x2": 5.5, "mad_int32": 4.5, "add_int32": 6.0,
        "exp2_fp32": 18.0, "rsqrt_fp32": 40.0,
    }  # fmt: skip


def _data_share() -> dict[GemmData, float]:
    return {"normal": 1.0, "uniform": 0.97, "sparse": 0.88, "constant": 0.84, "ones": 0.8, "zeros": 0.75}


def _libraries() -> dict[Library, ProductLibrary]:
    guesses = {
        "algo66_tile20_stages36_cluster2": 0.97,
        "algo66_tile18_stages35_cluster5": 1.0,
        "algo66_tile15_stages36_cluster1": 0.9,
        "algo23_tile20_stages10_splitk2": 0.7,
    }
    every: tuple[GemmType, ...] = (
        "fp64", "fp32", "tf32", "fp16", "fp16_acc16", "bf16", "fp8_e4m3", "fp8_e4m3_fast", "fp8_e5m2", "fp8_e5m2_fast",
        "int8", "mxfp8", "nvfp4",
    )  # fmt: skip
    torch = tuple(dtype for dtype in every if dtype not in ("fp16_acc16", "mxfp8", "nvfp4"))
    return {
        "cublaslt": ProductLibrary(18_000, guesses, every),
        "cupy": ProductLibrary(24_000, {"cupy": 0.96}, ("fp64", "fp32", "fp16")),
        "torch": ProductLibrary(10_000, {"torch": 0.98}, torch),
    }


def _tiles() -> tuple[Tile, ...]:
    return (Tile(128, 256, 1.0), Tile(128, 128, 0.85), Tile(64, 64, 0.5))


class ComputeCosts(msgspec.Struct, frozen=True):
    """One cost for each thing that can be computed; ``LinkCosts.arrives`` is for its results too.

    Rates are operations of one SM in a clock cycle, as in ``Resident.operations``; energies are joules an operation
    beyond what an idle GPU draws, of normal random data.
    """

    tensor_per_clock: dict[str, float] = msgspec.field(default_factory=_tensor_per_clock)
    tensor_joules: dict[str, float] = msgspec.field(default_factory=_tensor_joules)
    mma_share: float = 0.65  # of the rate, where there is wgmma for that type
    alu_per_clock: dict[AluOperation, float] = msgspec.field(default_factory=_alu_per_clock)
    alu_joules: dict[AluOperation, float] = msgspec.field(default_factory=_alu_joules)
    alu_cycles: dict[AluOperation, float] = msgspec.field(default_factory=_alu_cycles)  # until a result can be used
    # Products.
    libraries: dict[Library, ProductLibrary] = msgspec.field(default_factory=_libraries)
    tiles: tuple[Tile, ...] = msgspec.field(default_factory=_tiles)
    tile_cycles: float = 2500.0  # before a tile's first multiplication, and after its last
    promoted_share: float = 0.94  # of fp8's rate, where partial sums are added up in fp32
    moving_energy_share: float = 1.15  # operands that come from the caches take so much more energy
    product_fixed_ns: float = 1500.0  # a product's kernel, beyond what an empty one takes
    workspace_bytes: int = 64 << 20
    release_ns: float = 60e6  # to free what a case's units and libraries held, once it ends
    data_energy_share: dict[GemmData, float] = msgspec.field(default_factory=_data_share)
    # Power: the clock falls towards what the limit allows, and comes back faster.
    power_limit_w: float = 700.0
    fall_s: float = 0.04
    recovery_s: float = 0.01
    tensor_offset_hz: float = 0.15e9  # tensor work takes that off the clock at once
    nvml_excess_hz: float = 0.15e9  # what NVML says too much meanwhile
    state_ns: float = 5000.0  # a look at NVML
    # Heat: in rest, and at the end of much work.
    idle_temperature_c: float = 40.0
    kelvin_per_watt: float = 0.05
    warming_s: float = 20.0

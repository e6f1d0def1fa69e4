"""Rates of tensor cores and ALUs agree with published figures; boards with halved rates, and unknown ones, are
named."""

import pytest

from microbench.analysis import rates as known
from microbench.analysis.limits import ceiling, ceiling_at
from microbench.core.model import GpuInfo

SXM = "NVIDIA H200"
# Published peaks of boards: capability, SMs, MHz, bound, 10^12 operations a second. Data sheets and white papers.
PUBLISHED = (
    ("Tesla V100-PCIE-16GB", (7, 0), 80, 1380, "alu:fma_fp32", 14.0),
    ("Tesla V100-PCIE-16GB", (7, 0), 80, 1380, "alu:fma_fp64", 7.0),
    ("Tesla V100-PCIE-16GB", (7, 0), 80, 1380, "tensor:fp16", 112.0),
    ("Tesla T4", (7, 5), 40, 1590, "tensor:fp16", 65.0), ("Tesla T4", (7, 5), 40, 1590, "gemm:int8", 130.0),
    ("Tesla T4", (7, 5), 40, 1590, "gemm:fp64", 0.2544),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "gemm:fp32", 19.5),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "gemm:fp64", 19.5),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "gemm:tf32", 156.0),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "gemm:bf16", 312.0),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "gemm:int8", 624.0),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "alu:fma_fp16x2", 78.0),
    ("NVIDIA A100-SXM4-40GB", (8, 0), 108, 1410, "alu:fma_bf16x2", 39.0),
    ("NVIDIA GeForce RTX 3090 Ti", (8, 6), 84, 1860, "gemm:fp16_acc16", 160.0),
    ("NVIDIA GeForce RTX 3090 Ti", (8, 6), 84, 1860, "gemm:tf32", 40.0),
    ("NVIDIA GeForce RTX 3090 Ti", (8, 6), 84, 1860, "gemm:fp32", 40.0),
    ("NVIDIA RTX A5000", (8, 6), 64, 1695, "gemm:fp32", 27.8),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, "gemm:fp16", 165.2),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, "gemm:fp16_acc16", 330.0),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, "gemm:fp8_e4m3_fast", 660.6),
    ("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520, "gemm:int8", 660.6),
    ("NVIDIA L40", (8, 9), 142, 2490, "gemm:fp16", 181.0), (SXM, (9, 0), 132, 1830, "gemm:bf16", 989.4),
    (SXM, (9, 0), 132, 1830, "gemm:fp8_e4m3", 1979.0), (SXM, (9, 0), 132, 1830, "sparse:bf16", 1979.0),
    (SXM, (9, 0), 132, 1830, "tensor:tf32", 494.5), (SXM, (9, 0), 132, 1980, "gemm:fp64", 66.9),
    (SXM, (9, 0), 132, 1980, "alu:fma_fp64", 33.5), (SXM, (9, 0), 132, 1980, "alu:fma_fp32", 66.9),
    ("NVIDIA H100 PCIe", (9, 0), 114, 1620, "tensor:bf16", 756.0),
    ("NVIDIA B200", (10, 0), 148, 1856, "gemm:bf16", 2250.0), ("NVIDIA B200", (10, 0), 148, 1856, "gemm:mxfp8", 4500.0),
    ("NVIDIA B200", (10, 0), 148, 1856, "gemm:nvfp4", 9000.0), ("NVIDIA B200", (10, 0), 148, 1856, "gemm:tf32", 1125.0),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407, "gemm:fp16", 209.5),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407, "gemm:fp16_acc16", 419.0),
    ("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407, "gemm:nvfp4", 1676.0),
    ("NVIDIA GeForce RTX 5070", (12, 0), 48, 2512, "gemm:bf16", 61.7),
)  # fmt: skip


def board(name: str = SXM, capability: tuple[int, int] | None = (9, 0), sms: int | None = 132) -> GpuInfo:
    return GpuInfo(name, "GPU-0", compute_capability=capability, sm_count=sms, sm_clock_max_hz=1.98e9)


@pytest.mark.parametrize(("name", "capability", "sms", "mhz", "bound", "tera"), PUBLISHED)
def test_what_is_published_comes_back(
    name: str, capability: tuple[int, int], sms: int, mhz: float, bound: str, tera: float
) -> None:
    limit = ceiling_at(bound, board(name, capability, sms), mhz * 1e6)
    assert limit.value == pytest.approx(tera * 1e12, rel=0.01)
    assert limit.clock == f"SM clock {mhz} MHz"


@pytest.mark.parametrize(
    ("name", "of_full"),
    [("NVIDIA GeForce RTX 4090", 0.5), ("NVIDIA L40", 0.5), ("NVIDIA L40S", 1.0), ("NVIDIA RTX 6000 Ada", 1.0)],
)
def test_a_board_for_games_adds_up_in_fp32_at_half_the_rate_as_is_assumed(name: str, of_full: float) -> None:
    rates = [known.tensor_rate(dtype, board(name, (8, 9))) for dtype in ("bf16", "fp16_acc16")]
    assert rates[0].value == rates[1].value * of_full
    assert any("by its name" in one for one in rates[0].assumptions)
    assert not rates[1].assumptions


def test_every_architecture_has_its_source_and_its_units() -> None:
    for capability, found in known.ARCHITECTURES.items():
        assert found.source
        assert found.confidence
        for dtype, rate in found.tensor.items():
            told = known.tensor_rate(dtype, board(capability=capability))
            assert told.value == rate
            assert told.unit == ("OP/clk/SM" if dtype == "int8" else "FLOP/clk/SM")
            assert found.confidence == "high" or told.assumptions
        for operation in found.alu:
            told = known.alu_rate(operation, board(capability=capability))
            assert told.unit == ("FLOP/clk/SM" if operation.startswith("fma") else "OP/clk/SM")


def test_a_product_runs_on_tensor_cores_where_they_take_its_type() -> None:
    on = {dtype: known.rate_of(f"gemm:{dtype}", board()) for dtype in ("fp64", "fp32", "bf16")}
    assert [one.by if one else None for one in on.values()] == ["tensor cores", "ALUs fma_fp32", "tensor cores"]
    games = known.rate_of("gemm:fp64", board(f"NVIDIA {known.GAMES} RTX 4090", (8, 9)))
    assert games.by == "ALUs fma_fp64"
    assert known.rate_of("gemm:nvfp4", board()) is None


def test_what_is_not_known_is_none() -> None:
    for dtype, capability in (("fp64", (9, 0)), ("int8", (9, 0)), ("fp16", (7, 5))):
        assert known.rate_of(f"sparse:{dtype}", board(capability=capability)) is None
    assert known.rate_of("tensor:bf16", board(capability=None)) is None
    assert known.rate_of("tensor:bf16", board(capability=(6, 0))) is None
    assert known.rate_of("tensor:bf16", None) is None
    assert known.rate_of("dram", board()) is None
    assert ceiling("tensor:bf16", board(sms=None)) is None
    assert ceiling("tensor:nothing_per_clock", board()) is None
    assert ceiling_at("dram", board(), 1e9) is None
    assert ceiling_at("gemm:bf16", board(), None) is None


def test_ceilings_name_their_clock_and_a_rate_a_cycle_holds_at_any() -> None:
    highest, cycle = ceiling("gemm:bf16", board()), ceiling("tensor:bf16_per_clock", board())
    assert highest.value == pytest.approx(4096 * 132 * 1.98e9)
    assert highest.unit == "FLOP/s"
    assert highest.clock == "SM clock 1980 MHz"
    assert "4096 FLOP/clk/SM x 132 SMs" in highest.source
    assert (cycle.value, cycle.unit, cycle.clock) == (4096, "FLOP/clk/SM", "any SM clock")
    integer = ceiling("alu:mad_int32_per_clock", board())
    assert (integer.value, integer.unit) == (64, "OP/clk/SM")
    whole = ceiling("gemm:int8", board())
    assert whole.unit == "OP/s"


@pytest.mark.parametrize(("name", "bound", "mhz"), [
    (SXM, "gemm:bf16", 1830), (SXM, "tensor:fp8_e4m3_per_clock", 1830), (SXM, "gemm:fp64", 1980),
    (SXM, "gemm:fp32", 1980), (SXM, "alu:fma_fp64", 1980), ("NVIDIA H100 80GB HBM3", "gemm:int8", 1830),
])  # fmt: skip
def test_the_data_sheet_has_a_clock_of_its_own(name: str, bound: str, mhz: float) -> None:
    assert known.data_sheet_clock_hz(bound, board(name)) == mhz * 1e6


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "SIMULATED GPU"])
def test_boards_whose_data_sheet_is_not_known_have_none(name: str) -> None:
    assert known.data_sheet_clock_hz("gemm:bf16", board(name)) is None
    assert known.data_sheet_clock_hz("dram", board()) is None

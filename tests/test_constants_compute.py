"""Every benchmark of the compute suite gives back the constants of the simulated machine."""

from itertools import pairwise
from typing import get_args

import msgspec
import numpy as np
import pytest
from fake_session import exactly, facts, medians, medians_of, run_case

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case, Fact, Measurement, Series
from microbench.experiments.compute import rates
from microbench.experiments.compute.alu import AluOperation
from microbench.experiments.compute.instructions import Answer
from microbench.experiments.compute.products import Gemm, Library, SimulatedProblem
from microbench.gpu.fake.costs import ComputeCosts, FakeCosts, MemoryCosts, ProductLibrary
from microbench.gpu.fake.gpu import FakeGpu, open_fake
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter

GIB = 1 << 30
COSTS = FakeCosts()
BEST = "algo66_tile18_stages35_cluster5"
OTHER = FakeCosts(
    sm_count=80,
    sm_clock_hz=1.5e9,
    memory=MemoryCosts(idle_power_w=50.0, joules_per_byte=60e-12),
    compute=ComputeCosts(
        tensor_per_clock={"bf16": 2048.0, "fp16": 2000.0, "fp64": 100.0, "fp8_e4m3": 4096.0},
        tensor_joules={"bf16": 1.5e-12, "fp16": 1.4e-12, "fp64": 5e-12, "fp8_e4m3": 0.8e-12},
        mma_share=0.5,
        alu_per_clock=dict.fromkeys(get_args(AluOperation), 100.0),
        alu_joules=dict.fromkeys(get_args(AluOperation), 5e-12), alu_cycles=dict.fromkeys(get_args(AluOperation), 7.0),
        power_limit_w=300.0, boost_s=0.03, tensor_offset_hz=0.05e9,
    ),
)  # fmt: skip
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])


def without_limit(costs: FakeCosts) -> FakeCosts:
    return changed(costs, power_limit_w=1e6)


def changed(costs: FakeCosts, **compute: object) -> FakeCosts:
    replace = msgspec.structs.replace
    return replace(costs, compute=replace(costs.compute, **compute))


def ceiling(costs: FakeCosts, dtype: str, load: str = "sustained", path: str = "wgmma") -> dict[str, float]:
    return medians("tensor_ceiling", costs, load=load, path=path, dtype=dtype)


def product(costs: FakeCosts, dtype: str = "bf16", size: int = 8192, library: str = "cublaslt") -> dict[str, float]:
    return medians("gemm_throughput", costs, library=library, size=size, dtype=dtype)


@each_machine
def test_without_warpgroup_instructions_warps_get_the_whole_rate(costs: FakeCosts) -> None:
    older = msgspec.structs.replace(costs, compute_capability=(8, 0))
    for machine, dtype in ((costs, "fp64"), (older, "bf16")):
        per_clock = costs.compute.tensor_per_clock[dtype]
        assert ceiling(machine, dtype, path="mma")["per_clock"] == pytest.approx(per_clock, rel=1e-3)


@each_machine
def test_the_fastest_kernel_is_found_and_it_is_not_the_first_guess(costs: FakeCosts) -> None:
    second = changed(costs, libraries={"cublaslt": ProductLibrary(5000, {"1st": 0.8, "2nd": 0.9}, ("bf16",))})
    for machine, dtype, best in ((costs, "bf16", BEST), (costs, "fp64", BEST), (second, "bf16", "2nd")):
        figures = facts("gemm_throughput", machine, library="cublaslt", size=4096, dtype=dtype)
        assert figures["candidate"].value == best


def test_a_kernel_that_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    params: dict[str, int | str] = {"library": "cublaslt", "size": 2048, "dtype": "bf16"}
    works, best = SimulatedProblem.gemm, str(facts("gemm_throughput", COSTS, **params)["candidate"].value)

    def gemm(problem: SimulatedProblem, library: Library, way: str) -> Gemm:
        if way == best:
            raise MeasurementError("no such kernel after all")
        return works(problem, library, way)

    monkeypatch.setattr(SimulatedProblem, "gemm", gemm)
    figures = facts("gemm_throughput", COSTS, **params)
    assert figures["candidate"].value not in ("", best)


FRUGAL = changed(
    COSTS, libraries={**COSTS.compute.libraries, "torch": ProductLibrary(1000, {"torch": 0.8}, ("bf16",), 0.85)}
)
FRUGAL_CASE: dict[str, int | str] = {"library": "torch", "size": 8192, "dtype": "bf16"}


def test_a_library_that_draws_less_is_compared_at_its_own_clock_in_blocks_of_a_second() -> None:
    limits = SamplingLimits(seconds=1.0)
    found = run_case(discover()["gemm_throughput"], Case("gemm_throughput", FRUGAL_CASE), FRUGAL, 0, limits)
    of_it, of_cublaslt = medians_of("gemm_throughput", found), product(FRUGAL)
    assert of_it["against_per_clock"] == pytest.approx(0.8, rel=0.01)
    assert of_it["against"] == pytest.approx(of_it["rate"] / of_cublaslt["rate"], rel=0.01)
    assert of_it["against"] == pytest.approx(1 / (0.85 / 0.8), rel=0.02), "the power limit gives it so much more clock"
    assert of_it["sm_clock"] > 1.1 * of_cublaslt["sm_clock"]
    busy_s = sum(
        measured.n * float(np.median(measured.values)) for measured in found
        if isinstance(measured, Measurement) and measured.metric == "rate"
    )  # fmt: skip
    assert busy_s == pytest.approx(1.0, rel=0.1), "the second halves of two blocks of a second"


def test_a_run_with_less_time_claims_no_sustained_ratio() -> None:
    assert "against" not in product(FRUGAL, library="torch")
    assert "needs blocks of 1 s: --full" in str(facts("gemm_throughput", FRUGAL, **FRUGAL_CASE)["against"].reason)


@pytest.mark.parametrize("library", ["cublaslt", "torch"])
def test_operands_are_drawn_before_they_are_timed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory is zeroed when it is given, and zeros multiply faster: also where no candidates are tried.
    one_way = ProductLibrary(1000, {"only": 1.0}, ("bf16",))
    costs = changed(COSTS, libraries={"cublaslt": one_way, "torch": one_way})
    acts: list[str] = []
    drawn, batches = Answer.fresh, rates.bracketed
    monkeypatch.setattr(Answer, "fresh", lambda self: (acts.append("drawn"), drawn(self))[1])
    monkeypatch.setattr(rates, "bracketed", lambda *args: (acts.append("timed"), batches(*args))[1])
    product(costs, library=library)
    assert acts[0] == "drawn"
    assert "timed" in acts


def test_another_library_is_measured_without_cublaslt_too() -> None:
    costs = changed(COSTS, libraries={"torch": COSTS.compute.libraries["torch"]})
    figures = product(costs, library="torch")
    assert figures["rate"] == pytest.approx(product(COSTS, library="torch")["rate"], rel=0.01)
    assert "against" not in figures
    reason = facts("gemm_throughput", costs, dtype="bf16", library="torch", size=8192)["against"].reason
    assert reason == "the simulated machine has no cublaslt"


@pytest.mark.parametrize(("costs", "library", "dtype", "reason"), [
    (COSTS, "cupy", "bf16", "the simulated cupy has no bf16"),
    (COSTS, "torch", "fp16_acc16", "has no fp16_acc16"),
    (COSTS, "cublaslt", "nvfp4", r"nvfp4 needs compute capability 10\.0, the simulated GPU has 9\.0"),
    (FakeCosts(compute_capability=(8, 6)), "cublaslt", "fp8_e4m3_fast", r"fp8_e4m3 needs compute capability 8\.9"),
    (changed(COSTS, libraries={}), "cublaslt", "bf16", "has no cublaslt"),
])  # fmt: skip
def test_what_a_library_or_gpu_lacks_is_a_skip(costs: FakeCosts, library: str, dtype: str, reason: str) -> None:
    with pytest.raises(Skip, match=reason):
        product(costs, dtype, library=library)


def test_gpus_without_sparse_instructions_are_skipped() -> None:
    with pytest.raises(Skip, match=r"compute capability 8\.0"):
        medians("tensor_sparse", FakeCosts(compute_capability=(7, 5)), load="burst", path="mma", dtype="fp16")


def test_partial_sums_in_fp32_cost_their_share() -> None:
    costs = without_limit(COSTS)
    ratio = product(costs, "fp8_e4m3")["rate"] / product(costs, "fp8_e4m3_fast")["rate"]
    assert ratio == pytest.approx(costs.compute.promoted_share, rel=0.01)


def test_the_search_finds_whole_waves_where_power_does_not_decide() -> None:
    costs = without_limit(COSTS)
    figures = facts("gemm_search", costs, dtype="bf16")
    assert (figures["shape"].value, figures["candidate"].value) == (f"{64 * costs.sm_count}x8192x16384", BEST)
    assert medians("gemm_search", costs, dtype="bf16")["rate"] > 1.02 * product(costs)["rate"]


def drawn(costs: FakeCosts, data: str, dtype: str = "bf16") -> dict[str, float]:
    return medians("gemm_data", costs, size=8192, dtype=dtype, data=data)


def course(costs: FakeCosts, dtype: str = "bf16") -> tuple[dict[str, float], dict[str, Series], str]:
    params: dict[str, int | str] = {"dtype": dtype, "duration_s": 4}
    rows = exactly("gemm_sustained", costs, params)
    series = {row.metric: row for row in rows if isinstance(row, Series)}
    reasons = next(str(row.value) for row in rows if isinstance(row, Fact) and row.name == "throttle_reasons")
    return medians_of("gemm_sustained", rows), series, reasons


def test_power_falls_to_the_limit_the_temperature_follows_it_and_nvml_overstates_the_clock() -> None:
    figures, series, _ = course(COSTS)
    own = COSTS.compute
    assert series["power"].values[0] > 1.1 * own.power_limit_w, "before the clock falls"
    assert series["power"].values[-1] == pytest.approx(own.power_limit_w, rel=0.01)
    work_w = own.power_limit_w - COSTS.memory.idle_power_w
    expected_c = own.idle_temperature_c + own.kelvin_per_watt * work_w
    assert series["temperature"].values[-1] == pytest.approx(expected_c, abs=0.5)
    excess_hz = series["nvml_sm_clock"].values[-1] - figures["sm_clock"]
    assert excess_hz == pytest.approx(own.nvml_excess_hz, rel=0.05)


def test_work_below_the_limit_never_turns() -> None:
    figures, _, reasons = course(COSTS, "fp64")
    assert "turn" not in figures
    assert figures["burst"] == pytest.approx(figures["sustained"], rel=0.01)
    assert reasons == "none"


def crowded(left_bytes: int) -> FakeCosts:
    """A GPU of 2 GiB with so much left."""
    return FakeCosts(memory=MemoryCosts(total_bytes=2 * GIB, context_bytes=2 * GIB - left_bytes))


def test_shapes_are_halved_where_memory_is_short_and_the_row_says_so() -> None:
    params: dict[str, int | str] = {"library": "cublaslt", "size": 16384, "dtype": "fp64"}
    assert facts("gemm_throughput", crowded(1536 << 20), **params)["shape"].value == "4096x4096x4096"
    with pytest.raises(Skip, match="of device memory asked, 8 MiB free"):
        facts("gemm_throughput", crowded(8 << 20), **params)


@pytest.mark.parametrize(
    ("left_bytes", "shapes"), [(900 << 20, ("4096x4096x4096", "8192x8192x8192")), (220 << 20, ("4096x4096x4096",))]
)
def test_the_search_leaves_out_what_finds_no_room_beside_the_first_shape(left_bytes: int, shapes: tuple[str]) -> None:
    # 4096 cubed takes 0.1 GB in bf16, 8192 cubed 0.4 GB: the larger ones do not fit, nor the best one a second time.
    assert facts("gemm_search", crowded(left_bytes), dtype="bf16")["shape"].value in shapes


@pytest.mark.parametrize("name", ["gemm_data", "gemm_search"])
def test_without_an_energy_counter_the_rate_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_counted(gpu: FakeGpu) -> float:
        raise Skip("no energy counter: none here")

    monkeypatch.setattr(FakeGpu, "energy_j", none_counted)
    params = {"dtype": "bf16"} | ({"size": 8192, "data": "zeros"} if name == "gemm_data" else {})
    assert list(medians(name, **params)) == ["rate", "sm_clock"]
    assert facts(name, **params)["power"].reason == "no energy counter: none here"


def test_a_slow_product_is_never_silent_for_a_minute() -> None:
    costs = changed(COSTS, tensor_per_clock={**COSTS.compute.tensor_per_clock, "fp64": 0.8})
    gpu = open_fake(costs, spread=0)
    heard_s = [gpu.clock.now_ns() * 1e-9]
    meter = Meter(gpu.clock, gpu, tick=lambda metric, n, value: heard_s.append(gpu.clock.now_ns() * 1e-9))
    with gpu.case():
        list(discover()["gemm_throughput"].measure(gpu, meter, library="cublaslt", size=8192, dtype="fp64"))
    call_s = 2 * 8192**3 / (0.8 * COSTS.sm_count * COSTS.sm_clock_hz)
    assert 4 < call_s < 12, "the test needs a slow one"
    heard_s.append(gpu.clock.now_ns() * 1e-9)
    assert max(late - early for early, late in pairwise(heard_s)) < 5 * call_s


def test_the_burst_holds_no_submission() -> None:
    library = msgspec.structs.replace(COSTS.compute.libraries["cublaslt"], submit_ns=200_000)
    slow = changed(COSTS, libraries={"cublaslt": library})
    assert course(slow)[0]["burst"] / course(COSTS)[0]["burst"] == pytest.approx(1, rel=0.01)

"""Every benchmark of the compute suite gives back the constants of the simulated machine."""

from itertools import pairwise
from typing import get_args

import msgspec
import numpy as np
import pytest
import snapshots
from fake_session import exactly, facts, medians, medians_of, run_case, told

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


def without_limit(costs: FakeCosts) -> FakeCosts:
    return changed(costs, power_limit_w=1e6)


def changed(costs: FakeCosts, **compute: object) -> FakeCosts:
    replace = msgspec.structs.replace
    return replace(costs, compute=replace(costs.compute, **compute))


def product(costs: FakeCosts, dtype: str = "bf16", size: int = 8192, library: str = "cublaslt") -> dict[str, float]:
    return medians("gemm_throughput", costs, library=library, size=size, dtype=dtype)


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


def crowded(left_bytes: int) -> FakeCosts:
    """A GPU of 2 GiB with so much left."""
    return FakeCosts(memory=MemoryCosts(total_bytes=2 * GIB, context_bytes=2 * GIB - left_bytes))


OLDER = {"compute_capability": (8, 0)}
ONE_KERNEL = changed(COSTS, libraries={"cublaslt": ProductLibrary(5000, {"1st": 0.8, "2nd": 0.9}, ("bf16",))})
SLOW = msgspec.structs.replace(COSTS.compute.libraries["cublaslt"], submit_ns=200_000)
SUSTAINED = {"load": "sustained", "path": "mma"}
CASES: dict[str, tuple[str, FakeCosts, dict[str, int | str]]] = {
    **{f"without warpgroup instructions warps get the whole rate: {dtype} on {name}": (
        "tensor_ceiling", machine, SUSTAINED | {"dtype": dtype}
    ) for name, costs in (("default", COSTS), ("other", OTHER))
      for machine, dtype in ((costs, "fp64"), (msgspec.structs.replace(costs, **OLDER), "bf16"))},
    **{f"the fastest kernel is found: {name}": (
        "gemm_throughput", costs, {"library": "cublaslt", "size": 4096, "dtype": dtype}
    ) for name, costs, dtype in (
        ("not the first guess", COSTS, "bf16"), ("fp64", COSTS, "fp64"), ("other", OTHER, "bf16"),
        ("other, fp64", OTHER, "fp64"), ("the second of two", ONE_KERNEL, "bf16"),
    )},
    **{f"{library}, {dtype} on {name}": (
        "gemm_throughput", costs, {"library": library, "size": 8192, "dtype": dtype}
    ) for name, costs, library, dtype in (
        ("a run with less time", FRUGAL, "torch", "bf16"), ("the usual machine", COSTS, "torch", "bf16"),
        ("a machine without cuBLASLt", changed(COSTS, libraries={"torch": COSTS.compute.libraries["torch"]}), "torch",
         "bf16"),
        ("the usual machine", COSTS, "cupy", "bf16"), ("the usual machine", COSTS, "torch", "fp16_acc16"),
        ("the usual machine", COSTS, "cublaslt", "nvfp4"),
        ("an older GPU", FakeCosts(compute_capability=(8, 6)), "cublaslt", "fp8_e4m3_fast"),
        ("a machine without libraries", changed(COSTS, libraries={}), "cublaslt", "bf16"),
        # Partial sums in fp32 cost their share.
        ("unlimited power", without_limit(COSTS), "cublaslt", "fp8_e4m3"),
        ("unlimited power", without_limit(COSTS), "cublaslt", "fp8_e4m3_fast"),
        ("unlimited power", without_limit(COSTS), "cublaslt", "bf16"),
    )},
    "the search finds whole waves where power does not decide": (
        "gemm_search", without_limit(COSTS), {"dtype": "bf16"}
    ),
    "no sparse instructions": (
        "tensor_sparse", FakeCosts(compute_capability=(7, 5)), {"load": "burst", "path": "mma", "dtype": "fp16"}
    ),
    **{f"shapes are halved where {left >> 20} MiB are left": (
        "gemm_throughput", crowded(left), {"library": "cublaslt", "size": 16384, "dtype": "fp64"}
    ) for left in (1536 << 20, 8 << 20)},
    # 4096 cubed takes 0.1 GB in bf16, 8192 cubed 0.4 GB: the larger ones do not fit, nor the best one a second time.
    **{f"the search with {left >> 20} MiB": ("gemm_search", crowded(left), {"dtype": "bf16"})
       for left in (900 << 20, 220 << 20)},
    **{name: ("gemm_sustained", costs, {"dtype": dtype, "duration_s": 4}) for name, costs, dtype in (
        ("work below the limit never turns", COSTS, "fp64"), ("work above it does", COSTS, "bf16"),
        ("its burst holds no submission", changed(COSTS, libraries={"cublaslt": SLOW}), "bf16"),
    )},
}  # fmt: skip


def test_figures_of_odd_machines() -> None:
    snapshots.same("constants/odd-compute", snapshots.in_turn({name: (told(*one),) for name, one in CASES.items()}))


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

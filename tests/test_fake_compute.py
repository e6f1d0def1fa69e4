"""Tensor cores and ALUs of the simulated GPU: work that is left out fails, what cannot be had is a skip, and clocks,
power and energy agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_session import run_case

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Case, Measurement
from microbench.gpu.fake.compute import Product, item_of
from microbench.gpu.fake.costs import ComputeCosts, FakeCosts, LinkCosts, MemoryCosts
from microbench.gpu.fake.device import Governor, Item, Load
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.compute import Compute, Gemm
from microbench.gpu.protocol.gpu import Gpu

MIB, GIB = 1 << 20, 1 << 30
WAY = "algo66_tile18_stages35_cluster5"
COMPUTE = [benchmark for benchmark in discover().values() if benchmark.suite == "compute"]
MS_NS = 1e6


def exact(costs: FakeCosts | None = None) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def gemm_of(gpu: Gpu, size: int = 8192) -> Gemm:
    """The fastest kernel of a square product."""
    return gpu.compute.problem("bf16", size, size, size).gemm("cublaslt", WAY)


# -- work that is left out ---------------------------------------------------------------------------------------------


def checked_cases() -> list[Case]:
    """The ends of each benchmark's grid."""
    return [case for benchmark in COMPUTE for case in (benchmark.cases("default")[0], benchmark.cases("full")[-1])]


@pytest.mark.parametrize("case", checked_cases(), ids=lambda case: case.id)
@pytest.mark.parametrize("arrives", ["lost", "damaged"])
def test_work_is_checked_and_fails_where_it_is_left_out(case: Case, arrives: str) -> None:
    later = (10, 0) if case.params.get("dtype") == "nvfp4" else (9, 0)
    case = Case(case.benchmark, {**case.params, **({"library": "cublaslt"} if "library" in case.params else {})})
    found = run_case(discover()[case.benchmark], case, FakeCosts(compute_capability=later))
    assert any(one.verified for one in found if isinstance(one, Measurement))
    broken = FakeCosts(compute_capability=later, links=LinkCosts(arrives=arrives))  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match=r"SIMULATED: .* is not what its operands give"):
        run_case(discover()[case.benchmark], case, broken)


def test_a_product_that_was_never_made_fails_its_check() -> None:
    gemm = gemm_of(exact(), 256)
    for act in (gemm.submit, gemm.graph(3)):
        gemm.fresh()
        with pytest.raises(MeasurementError, match="D times random signs is not what its operands give"):
            gemm.check()
        act(1)
        assert gemm.check().startswith("SIMULATED")


def test_ways_of_a_problem_share_their_result() -> None:
    problem = exact().compute.problem("fp16", 512, 512, 512)
    ways = problem.ways("cublaslt")
    assert len(set(ways)) == len(ways) > 1
    first, second = (problem.gemm("cublaslt", way) for way in ways[:2])
    first.fresh()
    first.submit(1)
    assert second.check().startswith("SIMULATED")
    with pytest.raises(Skip, match="has no kernel round"):
        problem.gemm("cublaslt", "round")


def test_what_a_case_made_is_of_no_use_after_it() -> None:
    gpu = exact()
    with gpu.case():
        compute = gpu.compute
        assert compute is gpu.compute, "a case has one"
        gemm, bracket = gemm_of(gpu, 256), compute.bracket()
        resident, chain = compute.tensor("wgmma", "bf16"), compute.chain("fma_fp32")
    uses: tuple[Callable[[], object], ...] = (
        lambda: gemm.submit(1),
        lambda: resident.take(1),
        lambda: chain.take(1),
        bracket.begin,
        compute.state,
        compute.free_bytes,
    )
    for use in uses:
        with pytest.raises(MeasurementError, match="a case that has ended"):
            use()


# -- what is counted, and room -----------------------------------------------------------------------------------------


def test_what_is_counted_is_what_is_multiplied() -> None:
    compute = exact().compute
    problem = compute.problem("int8", 17, 64, 1000)
    assert problem.operations == 2 * 17 * 64 * 1000
    assert problem.size_bytes == 17 * 1000 + 64 * 1000 + 4 * 17 * 64
    assert compute.problem("fp8_e4m3_fast", 16, 32, 64).size_bytes == 16 * 64 + 32 * 64 + 2 * 16 * 32
    assert compute.problem("fp64", 16, 32, 64).size_bytes == 8 * (16 * 64 + 32 * 64 + 16 * 32)


def crowded(free_bytes: int) -> FakeCosts:
    """A GPU on which so much is free."""
    return FakeCosts(
        memory=MemoryCosts(total_bytes=32 * GIB, context_bytes=GIB, held_by_others_bytes=31 * GIB - free_bytes)
    )


def test_a_problem_takes_what_it_says_until_its_case_ends() -> None:
    gpu = exact(crowded(GIB))
    for _ in range(2):
        with gpu.case():
            compute = gpu.compute
            needed_bytes = compute.needed_bytes("bf16", 4096, 4096, 4096)
            assert needed_bytes == 3 * 32 * MIB + 64 * MIB
            assert compute.free_bytes() == GIB
            for _ in range(2):  # the same operands
                compute.problem("bf16", 4096, 4096, 4096)
            assert compute.free_bytes() == GIB - needed_bytes
            with pytest.raises(Skip, match=r"1600 MiB of device memory asked, 864 MiB free; somebody \(pid 4242\)"):
                compute.problem("bf16", 16384, 16384, 16384)


@pytest.mark.parametrize(("free_bytes", "copies"), [(16 * GIB, 6), (224 * MIB, 4), (130 * MIB, 1)])
def test_there_are_as_many_copies_of_b_as_are_needed_and_fit(free_bytes: int, copies: int) -> None:
    compute = exact(crowded(free_bytes)).compute
    compute.problem("bf16", 1, 4096, 4096, beyond_l2=True)
    assert free_bytes - compute.free_bytes() == (copies * 32 + 2 + 2 + 64) * MIB


def test_small_weights_have_no_more_copies_than_are_useful() -> None:
    compute = exact(crowded(16 * GIB)).compute
    compute.problem("bf16", 1, 1024, 1024, beyond_l2=True)
    assert 16 * GIB - compute.free_bytes() == (64 * 2 + 2 + 2 + 64) * MIB


MISSING: dict[str, tuple[Callable[[Compute], object], tuple[int, int], str]] = {
    "wgmma": (lambda compute: compute.tensor("wgmma", "bf16"), (12, 0), "12.0 has no wgmma of bf16"),
    "wgmma of fp64": (lambda compute: compute.tensor("wgmma", "fp64"), (9, 0), "no wgmma of fp64"),
    "fp8": (lambda compute: compute.tensor("mma", "fp8_e5m2"), (8, 0), "needs compute capability 8.9"),
    "tf32": (lambda compute: compute.problem("tf32", 256, 256, 256), (7, 5), "needs compute capability 8.0"),
    "mxfp8": (lambda compute: compute.problem("mxfp8", 256, 256, 256), (9, 0), "needs compute capability 10.0"),
    "bf16x2": (lambda compute: compute.chain("fma_bf16x2"), (7, 0), "needs compute capability 8.0"),
}


@pytest.mark.parametrize(("made", "capability", "reason"), MISSING.values(), ids=MISSING)
def test_what_cannot_be_had_is_a_skip_that_says_why(
    made: Callable[[Compute], object], capability: tuple[int, int], reason: str
) -> None:
    with pytest.raises(Skip, match=reason.replace(".", r"\.")):
        made(exact(FakeCosts(compute_capability=capability)).compute)


# -- clock, power, energy ----------------------------------------------------------------------------------------------

HIGHEST_HZ, IDLE_W = 2e9, 100.0
OWN = ComputeCosts(power_limit_w=500.0, fall_s=0.05, recovery_s=0.01, tensor_offset_hz=0.2e9)


def governor() -> Governor:
    """Of a GPU with round figures."""
    return Governor(OWN, HIGHEST_HZ, IDLE_W)


def work(cycles: float, power_w: float, *, tensor: bool = False) -> Item:
    """An item that draws so much at the highest clock."""
    return Item(energy_j=(power_w - IDLE_W) * cycles / HIGHEST_HZ, load=Load(cycles, tensor=tensor))


def played(one: Governor, item: Item, start_ns: float, seconds: float) -> float:
    """Back-to-back items for so long; when the last one ended."""
    assert item.load is not None
    end_ns = start_ns
    while end_ns < start_ns + seconds * 1e9:
        end_ns += one.work(item, item.load, end_ns)
    return end_ns


def test_the_clock_falls_by_its_time_constant_to_what_the_limit_allows() -> None:
    one, item, cycles = governor(), work(2e5, 900.0), 0.0
    end_ns = played(one, item, 0.0, 0.05)
    allowed_hz = HIGHEST_HZ / 2
    expected_hz = allowed_hz + (HIGHEST_HZ - allowed_hz) * np.exp(-1)
    assert one.at(end_ns).clock_hz == pytest.approx(expected_hz, rel=0.005)
    cycles = one.mean_hz(0.0, end_ns) * end_ns * 1e-9
    assert cycles == pytest.approx(round(cycles / 2e5) * 2e5, rel=1e-6), "whole items"
    end_ns = played(one, item, end_ns, 1.0)
    assert one.mean_hz(end_ns - MS_NS, end_ns) == pytest.approx(allowed_hz, rel=1e-3)
    assert one.at(end_ns - 1).power_w == pytest.approx(OWN.power_limit_w, rel=1e-3)
    assert one.at(end_ns - 1).capped


def test_the_clock_comes_back_in_rest() -> None:
    one = governor()
    end_ns = played(one, work(2e5, 900.0), 0.0, 1.0)
    found = one.at(end_ns + OWN.recovery_s * 1e9)
    assert found.clock_hz == pytest.approx(HIGHEST_HZ * (1 - np.exp(-1) / 2), rel=1e-3)
    assert found.power_w == IDLE_W
    assert not found.capped


def test_tensor_work_takes_its_offset_at_once_and_other_work_none() -> None:
    for tensor, expected_hz in ((True, HIGHEST_HZ - OWN.tensor_offset_hz), (False, HIGHEST_HZ)):
        one, item = governor(), work(2e5, 300.0, tensor=tensor)
        assert item.load is not None
        assert one.work(item, item.load, 0.0) == pytest.approx(2e5 / expected_hz * 1e9)
        assert not one.at(1.0).capped


def test_bytes_set_the_time_of_work_that_waits_for_them() -> None:
    one, load = governor(), Load(1e4, least_ns=2e5)
    item = Item(duration_ns=3e3, energy_j=10e-3, load=load)
    assert one.work(item, load, 0.0) == pytest.approx(2e5 + 3e3)
    assert one.at(1e5).power_w == pytest.approx(IDLE_W + 10e-3 / 203e-6)
    assert one.at(1e5).clock_hz == pytest.approx(HIGHEST_HZ)


def test_the_temperature_rises_to_what_the_power_makes_it() -> None:
    one, item = governor(), work(2e8, 500.0)
    end_ns = played(one, item, 0.0, OWN.warming_s)
    gain_c = OWN.kelvin_per_watt * (500.0 - IDLE_W)
    assert one.at(end_ns).temperature_c == pytest.approx(OWN.idle_temperature_c + gain_c * (1 - np.exp(-1)), abs=0.2)


def test_the_clock_that_was_is_remembered() -> None:
    one, item = governor(), work(2e5, 900.0)
    half_ns = played(one, item, 0.0, 0.02)
    end_ns = played(one, item, half_ns, 0.02)
    before, after = one.mean_hz(0.0, half_ns), one.mean_hz(half_ns, end_ns)
    assert before > after > one.at(end_ns).clock_hz
    whole = (before * half_ns + after * (end_ns - half_ns)) / end_ns
    assert one.mean_hz(0.0, end_ns) == pytest.approx(whole)
    assert one.mean_hz(end_ns, end_ns + 1e3) == pytest.approx(one.at(end_ns).clock_hz)


def test_a_bracket_reads_the_clock_of_the_work_between() -> None:
    gpu = exact()
    gemm, bracket = gemm_of(gpu), gpu.compute.bracket()
    with pytest.raises(MeasurementError, match="both kernels must have ended"):
        bracket.hz()
    for calls, expected_hz in ((3, 1.83e9), (400, None), (50, 1.475e9)):
        bracket.begin()
        gemm.submit(calls)
        bracket.end()
        gpu.synchronize()
        if expected_hz:
            assert bracket.hz() == pytest.approx(expected_hz, rel=0.01)


def test_the_energy_counter_counts_what_the_tensor_cores_take() -> None:
    gpu, costs = exact(), FakeCosts()
    gemm, idle_w, calls = gemm_of(gpu), costs.memory.idle_power_w, 1000
    first_j, began_ns = gpu.energy_j(), gpu.clock.now_ns()
    gemm.submit(calls)
    gpu.synchronize()
    gpu.pause(2 * costs.memory.energy_step_s)
    idle_j = idle_w * (gpu.clock.now_ns() - began_ns) * 1e-9
    work_j = calls * item_of(costs, Product("bf16", 8192, 8192, 8192, "normal", False), 1.0).energy_j
    assert gpu.energy_j() - first_j == pytest.approx(idle_j + work_j, abs=2 * idle_w * costs.memory.energy_step_s)


def test_nvml_says_what_goes_on_while_work_runs_and_rest_after() -> None:
    gpu, costs = exact(), FakeCosts()
    resting = gpu.compute.state()
    assert (resting.power_w, resting.temperature_c, resting.throttle_reasons) == (80.0, 40.0, ())
    assert resting.nvml_sm_clock_hz == costs.sm_clock_hz
    gemm_of(gpu).submit(100)
    busy = gpu.compute.state()
    assert busy.power_w is not None
    assert busy.power_w > costs.compute.power_limit_w
    assert busy.throttle_reasons == ("software power cap",)
    gpu.synchronize()
    after = gpu.telemetry()
    assert after.sm_clock_begin_hz is not None
    assert 1.48e9 < after.sm_clock_begin_hz < costs.sm_clock_hz
    gpu.pause(1.0)
    assert gpu.telemetry().sm_clock_begin_hz == pytest.approx(costs.sm_clock_hz)


def test_a_case_finds_the_clock_that_the_one_before_has_given_back() -> None:
    gpu = exact()
    with gpu.case():
        gemm_of(gpu).submit(200)
    with gpu.case():
        assert gpu.telemetry().sm_clock_begin_hz == pytest.approx(FakeCosts().sm_clock_hz, rel=0.01)


def test_both_clocks_of_an_sm_agree() -> None:
    gpu = open_fake()
    for unit in (gpu.compute.tensor("wgmma", "fp8_e4m3"), gpu.compute.arithmetic("fma_fp64")):
        taken = unit.take(2000)
        assert 1.7e9 < taken.cycles / taken.seconds < 2.0e9
        assert unit.take(4000).cycles == pytest.approx(2 * taken.cycles, rel=5e-3)
        assert unit.sms == 132


# -- how a product is cut into tiles -----------------------------------------------------------------------------------


def cycles_of(rows: int, columns: int, depth: int) -> float:
    """Cycles of a product of bf16."""
    load = item_of(FakeCosts(), Product("bf16", rows, columns, depth, "normal", False), 1.0).load
    assert load is not None
    return load.cycles


def test_one_tile_more_than_a_wave_takes_another_wave() -> None:
    full = cycles_of(64 * 132, 256 * 32, 4096)
    assert cycles_of(64 * 132 + 128, 256 * 32, 4096) > 1.02 * full
    assert cycles_of(64 * 132, 256 * 32, 8192) == pytest.approx(2 * full, rel=0.05)


def test_no_product_beats_the_tensor_cores() -> None:
    for size in (256, 1024, 4096, 8448, 16384):
        per_clock = FakeCosts().compute.tensor_per_clock["bf16"]
        assert 2 * size**3 / cycles_of(size, size, size) < per_clock * FakeCosts().sm_count


def test_a_graph_of_products_is_as_many_of_them() -> None:
    product = Product("bf16", 128, 4096, 4096, "normal", True)
    one, many = item_of(FakeCosts(), product, 1.0), item_of(FakeCosts(), product, 1.0, 20)
    assert many.energy_j == pytest.approx(20 * one.energy_j)
    assert many.load is not None
    assert one.load is not None
    assert many.load.least_ns == pytest.approx(20 * one.load.least_ns)
    assert many.duration_ns == pytest.approx(20 * one.duration_ns + 19 * FakeCosts().gap_graph_ns)

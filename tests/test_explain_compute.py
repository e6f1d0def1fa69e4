"""The verdict on compute, what power takes of it, what data and operations cost, and figures above their ceiling."""

from __future__ import annotations

import msgspec
import pytest
from compute_evidence import HEAT, POWER_CAP, evidence, figures, findings, made, product
from make_compute_run import make_compute_run

from microbench.core.model import Fact, Outcome, Series
from microbench.explain.compute_power import losses, nvml_clock_hz
from microbench.explain.compute_units import reached

SXM = "NVIDIA H200"
FP32 = (Fact("accumulator", "fp32"),)


def test_the_verdict_names_each_clock_and_what_takes_it() -> None:
    found = findings(made(product(0.92, 1.395e9, facts=FP32), product(0.88, 1.4e9, "fp8_e4m3_fast"), name=SXM))
    finding = found["compute.verdict"]
    assert finding.severity == "good"
    assert finding.title == (
        "bf16 526 TFLOP/s: 92.0 % of the tensor cores at 1.40 GHz, 70.1 % of the data sheet; the power limit takes the "
        "clock"
    )
    assert "accumulator fp32" in finding.text
    assert (
        "92.0 % at 1.40 GHz (measured), 64.2 % at 2.00 GHz (highest), 70.1 % at 1.83 GHz (data sheet)" in finding.text
    )
    assert "dense" in finding.text
    assert "fp8_e4m3_fast" in finding.text


def test_a_board_without_a_data_sheet_is_held_against_its_highest_clock() -> None:
    title = findings(made(product(0.9, 1.98e9, reasons=())))["compute.verdict"].title
    assert title == "bf16 730 TFLOP/s: 90.0 % of the tensor cores at 1.98 GHz, 89.1 % at the highest clock"


@pytest.mark.parametrize(
    ("share", "severity"), [(0.92, "good"), (0.79, "warning"), (0.49, "problem"), (1.4, "warning")]
)
def test_how_well_the_units_are_fed_decides(share: float, severity: str) -> None:
    assert findings(made(product(share)))["compute.verdict"].severity == severity


def test_heat_is_a_warning_and_power_is_not() -> None:
    assert findings(made(product(reasons=(POWER_CAP, HEAT))))["compute.verdict"].severity == "warning"
    assert "heat takes the clock" in findings(made(product(reasons=(HEAT,))))["compute.verdict"].title
    assert "stays below its highest" in findings(made(product(reasons=())))["compute.verdict"].title
    assert findings(made(product(reasons=(HEAT,))))["compute.limited"].severity == "warning"
    assert findings(made(product(reasons=(POWER_CAP,))))["compute.limited"].severity == "note"


def test_without_cublaslt_another_library_speaks_and_is_named() -> None:
    found = findings(made(product(0.8, library="torch"), product(0.9, library="cupy")))
    assert found["compute.verdict"].title.startswith("bf16 by CuPy 553 TFLOP/s")
    assert "compute.libraries" not in found


def test_what_cannot_be_judged_says_why() -> None:
    assert "not known" in findings(made(product(), compute_capability=(6, 0)))["compute.verdict"].title
    alone = figures("alu_ceiling", {"rate": 50e12, "per_clock": 255}, bound="alu:fma_fp32", operation="fma_fp32")
    assert "no square product was measured" in findings(made(alone))["compute.verdict"].title
    assert "compute.verdict" not in findings(made(figures("alu_ceiling", {"latency": 4.0}, operation="fma_fp32")))


def test_a_rate_above_its_ceiling_accuses_the_ceiling() -> None:
    finding = findings(made(product(1.3, 2e9), name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9)))
    assert "this board adds up in fp32 at half the rate" in finding["compute.over_limit"].text
    assert "compute.over_limit" not in findings(made(product(0.99, 2e9)))


def test_the_loss_is_divided_between_clock_and_feeding() -> None:
    run = made(product(0.8, 1.6e9))
    (loss,) = losses(evidence(run))
    assert loss.lost == pytest.approx(1 - 0.64)
    assert loss.by_clock == pytest.approx(0.5)
    assert findings(run)["compute.loss"].title == (
        "bf16 lacks 36.0 % of 819 TFLOP/s: 50 % of that is clock, 50 % feeding"
    )
    assert losses(evidence(made(product(0.8, 2e9))))[0].by_clock == 0
    assert losses(evidence(made(product(1.2, 2e9)))) == []


def test_shares_are_none_without_a_clock() -> None:
    run = made(
        figures("gemm_throughput", {"rate": 5e14}, bound="gemm:bf16", dtype="bf16", size=8192, library="cublaslt")
    )
    one = evidence(run)
    found = reached(one, one.rows("gemm_throughput", "rate")[0])
    assert (found.fed, found.clock_share, found.of_data_sheet) == (None, None, None)
    assert found.of_highest == pytest.approx(5e14 / 819.2e12)


def lasting(burst: float = 700e12, turn: float | None = 0.08, dtype: str = "bf16", duration_s: int = 4) -> Outcome:
    values = {"burst": burst, "sustained": 550e12, "sm_clock": 1.49e9, **({"turn": turn} if turn else {})}
    named = {"power": (300.0, 698.0), "nvml_sm_clock": (1.9e9, 1.65e9)}
    series = tuple(Series(name, tuple(range(10)), (low,) * 5 + (high,) * 5) for name, (low, high) in named.items())
    facts = (Fact("throttle_reasons", f"{POWER_CAP} from 0.10 s on"), *FP32)
    return figures(
        "gemm_sustained", values, series=series, facts=facts, bound=f"gemm:{dtype}", dtype=dtype, duration_s=duration_s
    )


def test_the_clock_that_is_lost_is_the_sms_own_and_nvml_stands_beside() -> None:
    run = made(product(), lasting())
    finding = findings(run)["compute.limited"]
    assert finding.title == "The power limit takes 25.5 % of the clock: bf16 runs at 1.49 GHz of 2.00 GHz"
    assert "NVML said 1.65 GHz and is too high under tensor load." in finding.text
    assert "698 W of 700 W (99.7 %)" in finding.text
    one = evidence(run)
    assert nvml_clock_hz(one, one.rows("gemm_throughput", "rate")[0]) == 1.9e9
    assert "compute.limited" not in findings(made(product(0.9, 1.98e9)))
    assert "compute.limited" not in findings(made(lasting(), sm_clock_max_hz=None))


def test_the_power_brake_is_not_heat() -> None:
    either = "hardware slowdown by power brake or thermal limit"
    found = findings(made(product(reasons=(either, "hardware power brake"))))
    assert found["compute.limited"].title.startswith("The power brake takes")
    assert found["compute.limited"].severity == found["compute.verdict"].severity == "warning"
    assert "cooling" not in found["compute.limited"].text
    assert findings(made(product(reasons=(either,))))["compute.limited"].title.startswith("Heat takes")


def test_a_power_cap_far_below_the_limit_promises_nothing() -> None:
    run = made(lasting(), power_limit_w=1500.0)
    finding = findings(run)["compute.limited"]
    assert "698 W of 1.50 kW (46.5 %)" in finding.text
    assert finding.title.startswith("Tensor work takes")
    assert "only a higher limit" not in finding.text
    assert "only a higher limit" in findings(made(lasting()))["compute.limited"].text


def test_burst_and_sustained_and_the_turn() -> None:
    finding = findings(made(lasting(), lasting(560e12, None, dtype="fp16")))["compute.sustained"]
    assert finding.title == "bf16 keeps 78.6 % of its burst: 700 TFLOP/s, then 550 TFLOP/s"
    assert "half of the loss after 80.0 ms" in finding.text
    assert "fp16, accumulator fp32: 560 TFLOP/s" in finding.text
    assert findings(made(lasting(555e12, None)))["compute.sustained"].title.startswith("bf16 lasts")
    longest = findings(made(lasting(duration_s=30), lasting(600e12)))["compute.sustained"]
    assert longest.title.startswith("bf16 keeps 78.6 %")


def of_data(data: str, rate: float, energy: float = 1.2e-12, dtype: str = "bf16") -> Outcome:
    values = {"rate": rate, "sm_clock": 1.5e9, "power": 699.0, "energy": energy}
    return figures("gemm_data", values, bound=f"gemm:{dtype}", dtype=dtype, size=8192, data=data)


def test_what_zeros_gain() -> None:
    finding = findings(made(of_data("normal", 553e12), of_data("zeros", 650e12, 1e-12)))["compute.data"]
    assert finding.severity == "advice"
    assert finding.title == "Zeros multiply 17.5 % faster than random numbers (bf16)"
    assert "1.50 GHz, 699 W and 1.20 pJ/FLOP" in finding.text
    same = findings(made(of_data("normal", 553e12), of_data("zeros", 555e12)))["compute.data"]
    assert same.severity == "note"
    assert "do not matter" in same.title
    assert "compute.data" not in findings(made(of_data("normal", 553e12), of_data("sparse", 600e12)))


def test_energy_of_an_operation() -> None:
    fp8 = of_data("normal", 1e15, 0.6e-12, "fp8_e4m3_fast")
    finding = findings(made(fp8, of_data("normal", 553e12), of_data("zeros", 650e12, 1e-13)))["compute.energy"]
    assert finding.title == "An operation costs 1.20 pJ/FLOP (bf16 at 699 W)"
    assert "fp8_e4m3_fast does 2.0× as many operations for the same energy." in finding.text


def test_a_whole_run_is_explained_and_no_part_of_it_need_be_there() -> None:
    run = make_compute_run()
    told = findings(run)
    assert {"compute.verdict", "compute.loss", "compute.sustained", "compute.shapes", "compute.alu"} <= told.keys()
    assert "compute.over_limit" not in told
    names = {one.case.benchmark for one in run.outcomes}
    for name in names:
        findings(msgspec.structs.replace(run, outcomes=tuple(o for o in run.outcomes if o.case.benchmark == name)))
        findings(msgspec.structs.replace(run, outcomes=tuple(o for o in run.outcomes if o.case.benchmark != name)))

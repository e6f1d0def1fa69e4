"""Findings on compute: the verdict, power, the effect of the data, energy, and figures above their ceiling."""

from __future__ import annotations

import msgspec
import pytest
from compute_evidence import HEAT, POWER_CAP, evidence, figures, findings, made, product
from make_compute_run import MADE, make_compute_run
from memory_evidence import check_shape

from microbench.core.model import Fact, Outcome, Run, Series
from microbench.explain.compute_power import drawn_share, nvml_clock_hz
from microbench.explain.compute_units import best_products, held_by, reached

SXM = "NVIDIA H200"
EITHER = "hardware slowdown by power brake or thermal limit"
WHOLE = make_compute_run()

# -- the whole ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [WHOLE, make_compute_run(preset="full", name=SXM), make_compute_run(preset="quick")])
def test_findings_are_short(run: Run) -> None:
    by_rule = findings(run)
    by_rule.pop("compute.rounds")
    assert {"compute.verdict", "compute.limited"} <= by_rule.keys()
    assert "compute.over_limit" not in by_rule
    for finding in by_rule.values():
        check_shape(finding)


@pytest.mark.parametrize("name", MADE)
def test_each_benchmark_is_explained_alone_and_may_be_missing(name: str) -> None:
    for kept in (True, False):
        outcomes = tuple(one for one in WHOLE.outcomes if (one.case.benchmark == name) == kept)
        assert findings(msgspec.structs.replace(WHOLE, outcomes=outcomes))


# -- the verdict --------------------------------------------------------------------------------------------------


def test_the_verdict_shows_the_share_of_the_data_sheet_and_of_the_units() -> None:
    finding = findings(made(product(0.92, 1.395e9), product(0.88, 1.4e9, "fp8_e4m3_fast"), name=SXM))["compute.verdict"]
    assert finding.severity == "good"
    assert finding.title.startswith("bf16 reaches 526 TFLOP/s, 70.1 % of the data sheet")
    assert "the power limit" in finding.title
    assert "92.0 %" in finding.text
    assert finding.advice == ""


def test_a_board_without_a_data_sheet_is_held_against_its_highest_clock() -> None:
    finding = findings(made(product(0.9, 1.98e9, reasons=())))["compute.verdict"]
    assert [figure in finding.title for figure in ("730 TFLOP/s", "89.1 %", "highest clock")] == [True] * 3
    assert "90.0 %" in finding.text


@pytest.mark.parametrize(
    ("share", "severity"), [(0.92, "good"), (0.79, "warning"), (0.49, "problem"), (1.4, "warning")]
)
def test_how_well_the_units_are_fed_decides(share: float, severity: str) -> None:
    finding = findings(made(product(share)))["compute.verdict"]
    assert finding.severity == severity
    assert (finding.advice != "") == (share < 0.8)


@pytest.mark.parametrize(
    ("reasons", "severity", "limited", "words"),
    [
        ((HEAT,), "warning", "warning", "heat lowers the clock"),
        ((POWER_CAP, HEAT), "warning", "warning", "heat lowers the clock"),
        ((POWER_CAP,), "good", "note", "the power limit lowers the clock"),
        ((EITHER, "hardware power brake"), "warning", "warning", "the power brake lowers the clock"),
        ((EITHER,), "warning", "warning", "heat lowers the clock"),
        ((), "good", "note", "the clock stays below its highest"),
    ],
)
def test_what_lowers_the_clock_decides_whether_to_warn(
    reasons: tuple[str, ...], severity: str, limited: str, words: str
) -> None:
    by_rule = findings(made(product(reasons=reasons)))
    assert by_rule["compute.verdict"].severity == severity
    assert by_rule["compute.verdict"].title.endswith(words)
    assert by_rule["compute.limited"].severity == limited
    assert (by_rule["compute.limited"].advice != "") == bool(reasons)


def test_without_cublaslt_another_library_is_judged_and_named() -> None:
    by_rule = findings(made(product(0.8, library="torch"), product(0.9, library="cupy")))
    assert by_rule["compute.verdict"].title.startswith("bf16 by CuPy reaches 553 TFLOP/s")
    assert "compute.libraries" not in by_rule


def test_products_that_cannot_be_judged_say_why() -> None:
    unknown = findings(made(product(), compute_capability=(6, 0)))["compute.verdict"]
    assert (unknown.severity, unknown.advice) == ("note", "")
    assert "not known" in unknown.title
    alone = figures("alu_ceiling", {"rate": 50e12, "per_clock": 255}, bound="alu:fma_fp32", operation="fma_fp32")
    finding = findings(made(alone))["compute.verdict"]
    assert finding.severity == "note"
    assert "alu_ceiling[operation=fma_fp32] reaches 50.0 TFLOP/s" in finding.text
    assert "gemm_throughput" in finding.advice
    assert "compute.verdict" not in findings(made(figures("alu_ceiling", {"latency": 4.0}, operation="fma_fp32")))


def test_a_rate_above_its_ceiling_accuses_the_ceiling() -> None:
    finding = findings(made(product(1.3, 2e9), name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9)))
    assert finding["compute.over_limit"].severity == "warning"
    assert "this board adds up in fp32 at half the rate" in finding["compute.over_limit"].text
    assert "half the rate" in finding["compute.verdict"].threshold
    assert "compute.over_limit" not in findings(made(product(0.99, 2e9)))


def test_shares_are_none_without_a_clock() -> None:
    run = made(
        figures("gemm_throughput", {"rate": 5e14}, bound="gemm:bf16", dtype="bf16", size=8192, library="cublaslt")
    )
    (row,) = best_products(evidence(run))
    result = reached(evidence(run), row)
    assert (result.fed, result.clock_share, result.of_data_sheet) == (None, None, None)
    assert result.of_highest == pytest.approx(5e14 / 819.2e12)
    assert held_by(evidence(run), row) is None


# -- power --------------------------------------------------------------------------------------------------------


def lasting(burst: float = 700e12, turn: float | None = 0.08, dtype: str = "bf16", duration_s: int = 4) -> Outcome:
    values = {"burst": burst, "sustained": 550e12, "sm_clock": 1.49e9, **({"turn": turn} if turn else {})}
    named = {"power": (300.0, 698.0), "nvml_sm_clock": (1.9e9, 1.65e9)}
    series = tuple(Series(name, tuple(range(10)), (low,) * 5 + (high,) * 5) for name, (low, high) in named.items())
    facts = (Fact("throttle_reasons", f"{POWER_CAP} from 0.10 s on"),)
    return figures(
        "gemm_sustained", values, series=series, facts=facts, bound=f"gemm:{dtype}", dtype=dtype, duration_s=duration_s
    )


def test_the_lost_clock_is_the_one_that_the_sms_count() -> None:
    run = made(product(), lasting())
    finding = findings(run)["compute.limited"]
    assert [figure in finding.title for figure in ("25.5 %", "bf16", "1.49 GHz")] == [True] * 3
    assert "99.7 %" in finding.text
    assert f"NVML names {POWER_CAP}, and its own clock reads too high" in finding.text
    (row,) = best_products(evidence(run))
    assert nvml_clock_hz(evidence(run), row) == 1.9e9
    assert drawn_share(evidence(run), row) is None
    assert "compute.limited" not in findings(made(product(0.9, 1.98e9)))
    assert "compute.limited" not in findings(made(lasting(), sm_clock_max_hz=None))


def test_a_power_cap_far_below_the_limit_is_not_blamed_on_the_limit() -> None:
    finding = findings(made(lasting(), power_limit_w=1500.0))["compute.limited"]
    assert "46.5 %" in finding.text
    assert finding.title.startswith("Tensor work takes")
    assert finding.advice == ""


def test_burst_and_sustained_rate() -> None:
    finding = findings(made(lasting(), lasting(560e12, None, dtype="fp16")))["compute.sustained"]
    assert finding.severity == "note"
    assert [figure in finding.title for figure in ("bf16", "78.6 %", "700 TFLOP/s", "550 TFLOP/s")] == [True] * 4
    assert findings(made(lasting(555e12, None)))["compute.sustained"].text == ""
    longest = findings(made(lasting(duration_s=30), lasting(600e12)))["compute.sustained"]
    assert "78.6 %" in longest.title


def of_data(data: str, rate: float, energy: float = 1.2e-12, dtype: str = "bf16", power: float = 699.0) -> Outcome:
    values = {"rate": rate, "sm_clock": 1.5e9, "power": power, "energy": energy}
    return figures("gemm_data", values, bound=f"gemm:{dtype}", dtype=dtype, size=8192, data=data)


def test_what_zeros_gain() -> None:
    finding = findings(made(of_data("normal", 553e12), of_data("zeros", 650e12, power=450.0)))["compute.data"]
    assert finding.severity == "advice"
    assert "17.5 % faster" in finding.title
    assert "450 W for zeros, 699 W for random numbers" in finding.text
    same = findings(made(of_data("normal", 553e12), of_data("zeros", 555e12)))["compute.data"]
    assert same.severity == "note"
    assert "0.36 %" in same.title
    assert "compute.data" not in findings(made(of_data("normal", 553e12), of_data("sparse", 600e12)))


def test_energy_of_an_operation() -> None:
    fp8 = of_data("normal", 1e15, 0.6e-12, "fp8_e4m3_fast")
    finding = findings(made(fp8, of_data("normal", 553e12), of_data("zeros", 650e12, 1e-13)))["compute.energy"]
    assert finding.severity == "note"
    assert "1.20 pJ/FLOP (bf16 at 699 W)" in finding.title
    assert "fp8_e4m3_fast does 2.0×" in finding.text

"""The rules of the launch suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from make_run import changed, figures, launch_outcomes, make_run, measurement, outcome, scaled, with_metrics, without
from msgspec.structs import replace
from read_findings import by_rule, check, evidence

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.core.model import Fact, Measurement, Run
from microbench.explain.launch_facts import plateau_end, slope, sweep, wait_words
from microbench.explain.rules import findings, of_suite
from microbench.report.sheets.screen import screen
from microbench.report.sheets.view import build
from microbench.report.suites.launch import waiting

WHOLE = make_run()


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "launch")[rule]


def slow_tail(old: Measurement) -> Measurement:
    per_call = old.per_call and replace(old.per_call, p99=9e-6)
    return replace(old, per_call=per_call)


RECORD = measurement("record_untimed", 0.05e-6)
UNTIMED = with_metrics(WHOLE, "launch_sync", lambda old: RECORD if old.metric == "query" else old)
NO_GPU = replace(
    WHOLE, sessions=tuple(replace(one, environment=replace(one.environment, gpus=())) for one in WHOLE.sessions)
)
SEVERAL_KERNELS = changed(
    WHOLE,
    lambda one: (
        replace(one, facts=(Fact("kernels_per_call", 2),)) if one.case.params.get("layer") == "torch_eager" else one
    ),
)
LONGER_WAITS = make_run(
    extra=[
        outcome("launch_sync", [measurement("from_kernel", value_s)], wait=wait, duration_ns=length)
        for wait, values_s in (("spin", (2e-6, 2e-6, 2.1e-6, 2.1e-6)), ("blocking", (9e-6, 34e-6, 80e-6, 225e-6)))
        for length, value_s in zip((0, 30_000, 1_000_000, 20_000_000), values_s, strict=True)
    ]
)
# A process has one of two levels, as the blocking waits of an H200's five rounds had.
TWO_LEVELS = make_run(
    extra=[
        outcome("launch_sync", [measurement("complete", value_s)], round=round, wait="blocking")
        for round, value_s in enumerate((8.1e-6, 9.8e-6, 35.8e-6, 8.0e-6, 35.5e-6), 1)
    ]
)
CHEAP_PDL = without(scaled(WHOLE, "launch_kind", ("submit",), 0.73, kind="pdl"), "launch_kind", kind="cooperative")
CASES: list[tuple[str, Run, str, list[str]]] = [
    ("launch.cost", WHOLE, "note", ["3.31 µs", "8.37 µs", "39.3 %"]),
    ("launch.cost", scaled(WHOLE, "launch_cost", ("complete",), 15), "note", ["3.31 µs", "8.37 µs", "82.2 %"]),
    ("launch.starving", WHOLE, "advice", ["2.35 µs", "3.31 µs", "960 ns"]),
    ("launch.starving", scaled(WHOLE, "launch_cost", ("submit",), 6), "warning", ["19.1 µs", "2.50 µs", "3.50 µs"]),
    ("launch.starving", scaled(WHOLE, "launch_gap", ("stream",), 3), "good", ["3.31 µs", "4.47 µs"]),
    ("launch.gap", WHOLE, "note", ["960 ns", "130 ns"]),
    ("launch.gap", scaled(WHOLE, "launch_gap", ("graph",), 2.2), "note", ["960 ns", "1.25 µs", "394 ns"]),
    ("launch.layers", WHOLE, "advice", ["4.20 µs", "3.41 µs", "8.1×"]),
    ("launch.one_op", WHOLE, "note", ["8.08 µs", "38.2 µs"]),
    ("launch.queue", WHOLE, "note", ["101 µs", "102 µs"]),
    ("launch.traffic", WHOLE, "note", ["1.77 kB", "285 B", "0.82 %"]),
    ("launch.traffic", scaled(WHOLE, "launch_traffic", ("received",), 10), "warning", ["17.7 kB", "285 B", "8.2 %"]),
    ("launch.traffic", NO_GPU, "note", ["1.77 kB", "285 B"]),
    ("launch.traffic_check", scaled(WHOLE, "launch_traffic", ("received_per_byte",), 0.3), "warning", []),
    ("launch.wait", WHOLE, "advice", ["34.0 µs", "2.00 µs"]),
    ("launch.wait", scaled(WHOLE, "launch_sync", ("complete",), 0.08, wait="blocking"), "note", ["2.72 µs", "2.00 µs"]),
    ("launch.wait", LONGER_WAITS, "advice", ["33.9 µs", "80.2 µs", "2.10 µs"]),
    ("launch.wait", TWO_LEVELS, "advice", ["35.5 µs", "2.00 µs"]),
    ("launch.calls", WHOLE, "note", ["399 ns", "3.31 µs"]),
    ("launch.calls", UNTIMED, "advice", ["399 ns", "3.31 µs", "50.1 ns"]),
    ("launch.threads", WHOLE, "advice", ["3.0×", "37.0 %"]),
    ("launch.threads", scaled(WHOLE, "launch_threads", ("rate",), 0.5, threads=8), "note", ["5.8×", "72.6 %"]),
    ("launch.streams", WHOLE, "note", ["3.0×"]),
    ("launch.kind", WHOLE, "note", ["1.76 µs", "563 ns", "1.48×"]),
    ("launch.kind", scaled(WHOLE, "launch_kind", ("gap",), 4, kind="pdl"), "note", ["1.48×", "3.31 µs"]),
    ("launch.kind", CHEAP_PDL, "note", ["1.76 µs", "563 ns", "20.9 %"]),
    ("launch.kind", scaled(CHEAP_PDL, "launch_kind", ("gap",), 4, kind="pdl"), "note", ["20.9 %", "3.31 µs"]),
    (
        "launch.kind",
        scaled(WHOLE, "launch_kind", ("submit",), 0.73, kind="pdl"),
        "note",
        ["1.76 µs", "563 ns", "1.48×"],
    ),
    ("launch.arguments", WHOLE, "advice", ["4000 B", "783 ns", "1.24×"]),
    ("launch.cold", WHOLE, "note", ["207 ms", "30.8 ms"]),
    ("launch.tail", WHOLE, "note", ["1.59×", "40×"]),
    ("launch.tail", with_metrics(WHOLE, "launch_cost", slow_tail), "warning", ["2.7×", "40×"]),
    ("launch.rounds", WHOLE, "note", ["10 %"]),
]


@pytest.mark.parametrize(("rule", "run", "severity", "named"), CASES)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, named: list[str]) -> None:
    check(finding_of(rule, run), severity)
    assert figures(finding_of(rule, run)) == named


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("launch.traffic_check", WHOLE),
        ("launch.arguments", scaled(WHOLE, "launch_arguments", ("submit",), 0.81, argument_bytes=4000)),
        ("launch.kind", without(without(WHOLE, "launch_kind", kind="cooperative"), "launch_kind", kind="pdl")),
        ("launch.rounds", make_run(rounds=3)),
        ("launch.noise", make_run(rounds=3)),
    ],
)
def test_a_rule_without_anything_to_say_is_silent(rule: str, run: Run) -> None:
    assert rule not in by_rule(run, "launch")


def test_noisy_rows_are_warned_about() -> None:
    def noisy(old: Measurement) -> Measurement:
        return measurement(old.metric, old.values[0], spread=0.3, work=old.work)

    run = WHOLE
    for benchmark in {one.case.benchmark for one in WHOLE.outcomes}:
        run = with_metrics(run, benchmark, noisy)
    check(finding_of("launch.noise", run), "warning", "`microbench doctor`", "repeat with --rounds")
    bundled = next(one for one in of_suite(evidence(run), "launch", reference=True) if one.rule == "launch.noise")
    check(bundled, "warning", "Read figures marked ○ or ▼ as rough.", "!repeat", "!this machine")
    for reference, advice in ((True, "Read figures marked"), (False, "`microbench doctor`")):
        (warning,) = (one for one in screen(run, reference=reference).findings if one.rule == "launch.noise")
        assert " of launch and " in warning.title
        assert warning.title.endswith(" of host")
        assert advice in warning.advice
        (section,) = (one for one in build(run, reference=reference).sections if one.suite == "launch")
        assert advice in section.findings[-1].advice


def test_plateau_ends_at_the_first_period_above_the_margin() -> None:
    assert plateau_end(sweep(evidence(WHOLE), "period")) == pytest.approx((2.5e-6, 3.5e-6), rel=0.02)
    assert plateau_end(sweep(evidence(WHOLE), "period")[:3]) is None
    assert plateau_end([]) is None


def test_array_operations_are_kept_apart_from_launches_of_one_kernel() -> None:
    assert all("family=same_kernel" in row for row in finding_of("launch.layers").rests_on)
    assert all("family=one_op" in row for row in finding_of("launch.one_op").rests_on)
    check(finding_of("launch.one_op"), "note", "!PyTorch eager")
    check(finding_of("launch.one_op", SEVERAL_KERNELS), "note", "PyTorch eager launches several kernels")


def test_a_wait_is_named_with_the_kernel_before_it() -> None:
    check(finding_of("launch.wait"), "advice", "34.0 µs after an empty kernel", "were not measured")
    words = "33.9 µs after a 30-µs kernel and 80.2 µs after a 1-ms kernel"
    check(finding_of("launch.wait", LONGER_WAITS), "advice", words, "!not measured")


def test_a_kind_of_launch_that_costs_less_is_named() -> None:
    kernels = "between kernels of no length from 1.76 µs"
    check(finding_of("launch.kind", CHEAP_PDL), "note", kernels, "costs 20.9 % less to submit", "No kind costs more.")
    both = scaled(WHOLE, "launch_kind", ("submit",), 0.73, kind="pdl")
    check(
        finding_of("launch.kind", both), "note", "cooperative launch costs 1.48×", "programmatic dependent launch costs"
    )


def test_a_row_with_two_levels_shows_both() -> None:
    blocking = evidence(TWO_LEVELS).row("launch_sync", "complete", wait="blocking")
    spin = evidence(TWO_LEVELS).row("launch_sync", "complete", wait="spin")
    assert blocking is not None
    assert spin is not None
    assert blocking.levels is not None
    low_s, high_s = blocking.levels
    assert 8e-6 < low_s < 10e-6
    assert 34e-6 < high_s < 36e-6
    assert wait_words(blocking) == f"{low_s * 1e6:.2f} or {high_s * 1e6:.1f} µs"
    assert spin.levels is None
    check(finding_of("launch.wait", TWO_LEVELS), "advice", wait_words(blocking))


def test_the_table_of_waits_needs_kernels_of_several_lengths() -> None:
    assert waiting(evidence(WHOLE)) is None
    table = waiting(evidence(LONGER_WAITS))
    assert table is not None
    assert [column.title for column in table.columns] == ["", "empty", "30 µs", "1 ms", "20 ms"]
    assert [next(cell.text for cell in row) for row in table.rows] == ["spin", "yield", "block"]


def test_slope_is_that_of_the_least_squares_line() -> None:
    assert slope([(0, 1769.0), (1000, 2859.0), (2000, 3949.0)]) == pytest.approx(1.09)
    assert slope([(0, 1.0)]) is None
    assert slope([]) is None


def test_each_gpu_is_explained_by_its_own_figures() -> None:
    run = make_run(extra=[replace(one, device="GPU-other") for one in launch_outcomes()])
    titles = [finding.title for finding in findings(run) if finding.rule == "launch.cost"]
    assert [title.split(": ")[0] for title in titles] == ["GPU 0, SIMULATED GPU", "GPU-other"]
    assert [one.device for one in evidence_by_device(run)] == [WHOLE.outcomes[-1].device, "GPU-other"]


def test_the_newest_session_counts() -> None:
    newer = replace(outcome("launch_cost", [measurement("submit", 5e-6)]), session=1)
    run = make_run(extra=[newer])
    row = evidence(replace(run, sessions=run.sessions * 2)).row("launch_cost", "submit")
    assert row.value == pytest.approx(5e-6, rel=0.02)


@pytest.mark.parametrize(
    ("ratio", "spread", "words"),
    [
        (1.3, 0.01, ", and more time by the runtime API"),
        (0.8, 0.01, ", and less time by the runtime API"),
        (1.05, 0.01, ", and about as long by the runtime API"),
        (0.8, 0.4, ""),  # the intervals overlap
    ],
)
def test_the_runtime_api_is_compared_as_far_as_the_intervals_tell(ratio: float, spread: float, words: str) -> None:
    loop = evidence(WHOLE).row("launch_layers", "submit", layer="loop", arguments=4)
    assert loop is not None
    measured = [measurement("submit", ratio * loop.value, spread=spread, n=10), measurement("round_trip", 9e-6)]
    same = {"family": "same_kernel", "layer": "cuda_runtime", "arguments": 4}
    run = make_run(extra=[outcome("launch_layers", measured, **same)])
    text = finding_of("launch.layers", run).text
    assert words in text
    assert ("runtime API" in text) == bool(words)

"""The rules of the launch suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from changed_run import changed, scaled, with_metrics, without
from make_run import make_run, measurement, outcome, outcomes_of
from msgspec.structs import replace
from read_findings import by_rule, check, evidence

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.core.model import Measurement, Run
from microbench.explain.launch_rules import wait_words
from microbench.explain.rules import findings, of_suite
from microbench.report.sheets.view import build, screen
from microbench.report.suites.launch import waiting

WHOLE = make_run()
LONGER_NS = (30_000, 1_000_000, 20_000_000)


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "launch")[rule]


EMPTY_WAITS = changed(WHOLE, lambda one: None if one.case.params.get("duration_ns") in LONGER_NS else one)
# A process has one of two levels, as the blocking waits of an H200's five rounds had.
ONE_LEVEL = without(EMPTY_WAITS, "launch_sync", wait="blocking", duration_ns=0)
BLOCKING = (
    outcome("launch_sync", [measurement("from_kernel", value_s)], round=round, wait="blocking", duration_ns=0)
    for round, value_s in enumerate((34e-6, 8.1e-6, 9.8e-6, 35.8e-6, 8.0e-6, 35.5e-6))
)
TWO_LEVELS = replace(ONE_LEVEL, outcomes=(*ONE_LEVEL.outcomes, *BLOCKING))


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


def test_a_plateau_ends_at_the_first_period_above_the_margin() -> None:
    for duration_ns, ends in ((0, "5.50 µs and 10.5 µs"), (1000, "997 ns and 1.50 µs")):
        bent = scaled(WHOLE, "launch_duration", "period", 3.0, duration_ns=duration_ns)
        check(finding_of("launch.starving", bent), "warning", "the duration sweep disagrees", f"lies between {ends}")
    without_long = changed(WHOLE, lambda one: None if one.case.params.get("duration_ns", 0) > 1000 else one)
    check(finding_of("launch.starving", without_long), "advice", "launch-bound below 2.48 µs")


def test_a_wait_is_named_with_the_kernel_before_it() -> None:
    check(finding_of("launch.wait", EMPTY_WAITS), "advice", "28.7 µs after an empty kernel", "were not measured")
    words = "35.1 µs after a 30-µs kernel and 76.0 µs after a 1-ms kernel"
    check(finding_of("launch.wait"), "advice", words, "!not measured")


def test_a_row_with_two_levels_shows_both() -> None:
    blocking = evidence(TWO_LEVELS).row("launch_sync", "from_kernel", wait="blocking", duration_ns=0)
    spin = evidence(TWO_LEVELS).row("launch_sync", "from_kernel", wait="spin", duration_ns=0)
    assert blocking.levels is not None
    low_s, high_s = blocking.levels
    assert 8e-6 < low_s < 10e-6
    assert 34e-6 < high_s < 36e-6
    assert wait_words(blocking) == f"{low_s * 1e6:.2f} or {high_s * 1e6:.1f} µs"
    assert spin.levels is None
    check(finding_of("launch.wait", TWO_LEVELS), "advice", wait_words(blocking))


def test_the_table_of_waits_needs_kernels_of_several_lengths() -> None:
    assert waiting(evidence(EMPTY_WAITS)) is None
    table = waiting(evidence(WHOLE))
    assert [column.title for column in table.columns] == ["", "empty", "30 µs", "1 ms", "20 ms"]
    assert [next(cell.text for cell in row) for row in table.rows] == ["spin", "yield", "block", "event that blocks"]


def test_each_gpu_is_explained_by_its_own_figures() -> None:
    run = make_run(extra=[replace(one, device="GPU-other") for one in outcomes_of("launch")])
    titles = [finding.title for finding in findings(run) if finding.rule == "launch.starving"]
    assert [title.split(": ")[0] for title in titles] == ["GPU 0, SIMULATED GPU", "GPU-other"]
    assert [one.device for one in evidence_by_device(run)] == [WHOLE.outcomes[-1].device, "GPU-other"]


def test_the_newest_session_counts() -> None:
    newer = replace(outcome("launch_cost", [measurement("submit", 5e-6)]), session=1)
    run = make_run(extra=[newer])
    row = evidence(replace(run, sessions=run.sessions * 2)).row("launch_cost", "submit")
    assert row.value == pytest.approx(5e-6, rel=0.02)


@pytest.mark.parametrize(("ratio", "spread", "words"), [
    (1.3, 0.01, ", and more time by the runtime API"),
    (0.8, 0.01, ", and less time by the runtime API"),
    (1.05, 0.01, ", and about as long by the runtime API"),
    (0.7, 0.4, ""),  # the intervals overlap
])  # fmt: skip
def test_the_runtime_api_is_compared_as_far_as_the_intervals_tell(ratio: float, spread: float, words: str) -> None:
    others = without(without(WHOLE, "launch_layers", layer="cuda_runtime"), "launch_layers", layer="loop")
    both = [
        outcome("launch_layers", measured, family="same_kernel", layer=layer, arguments=4)
        for layer, measured in (
            ("loop", [measurement("submit", 3.3e-6, calls=100)]),
            ("cuda_runtime", [measurement("submit", ratio * 3.3e-6, spread=spread, n=10)]),
        )
    ]
    run = replace(others, outcomes=(*others.outcomes, *both))
    text = finding_of("launch.layers", run).text
    assert words in text
    assert ("runtime API" in text) == bool(words)

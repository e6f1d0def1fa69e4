"""The launch suite's rules: each with the run's own numbers, each silent without its measurements."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import DEVICE, launch_outcomes, make_run, measurement, outcome

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device, listed
from microbench.core.model import Fact, Outcome, Run
from microbench.explain.launch_cost import plateau_end, sweep
from microbench.explain.launch_ways import slope
from microbench.explain.rules import LAUNCH_RULES, findings, of_suite

WHOLE = make_run()


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def told(rule: str, run: Run = WHOLE) -> Finding:
    return next(finding for finding in of_suite(evidence(run), "launch") if finding.rule == rule)


def changed(change: Callable[[Outcome], Outcome | None]) -> Run:
    """The whole run with each outcome changed, or left out for None."""
    return msgspec.structs.replace(WHOLE, outcomes=tuple(new for one in WHOLE.outcomes if (new := change(one))))


def with_metric(benchmark: str, name: str, value: float, **params: int | str) -> Run:
    """The whole run with one figure of some cases replaced."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark or any(one.case.params.get(key) != value for key, value in params.items()):
            return one
        kept = tuple(old for old in one.measurements if old.metric != name)
        old = next(old for old in one.measurements if old.metric == name)
        return msgspec.structs.replace(one, measurements=(*kept, measurement(name, value, per_call=old.per_call)))

    return changed(change)


def test_every_rule_speaks_once_when_everything_is_measured() -> None:
    found = [finding.rule for finding in of_suite(evidence(), "launch")]
    assert len(found) == len(set(found)) == len(LAUNCH_RULES) + 1
    assert all(finding.threshold and finding.rests_on for finding in of_suite(evidence(), "launch")[:-1])


@pytest.mark.parametrize("benchmark", sorted({one.case.benchmark for one in launch_outcomes()}))
def test_a_missing_benchmark_silences_its_rules_only(benchmark: str) -> None:
    left = of_suite(evidence(changed(lambda one: None if one.case.benchmark == benchmark else one)), "launch")
    whole = of_suite(evidence(), "launch")
    assert [finding.text for finding in left] != [finding.text for finding in whole]
    assert {finding.rule for finding in left} <= {finding.rule for finding in whole}
    assert all(not row.startswith(f"{benchmark} ") for finding in left for row in finding.rests_on)


@given(st.sets(st.integers(0, len(WHOLE.outcomes) - 1)))
def test_nothing_missing_makes_a_rule_raise(dropped: set[int]) -> None:
    outcomes = tuple(one for index, one in enumerate(WHOLE.outcomes) if index not in dropped)
    findings(msgspec.structs.replace(WHOLE, outcomes=outcomes))


@given(
    st.lists(st.sampled_from(["submit", "start", "complete", "gap_stream", "round_trip"]), unique=True), st.booleans()
)
def test_nothing_odd_in_the_figures_makes_a_rule_raise(names: set[str], zero: bool) -> None:
    def change(one: Outcome) -> Outcome:
        odd = tuple(
            measurement(old.metric, 0.0 if zero else -1e-6) if old.metric in names else old for old in one.measurements
        )
        return msgspec.structs.replace(one, measurements=odd)

    findings(changed(change))


def test_cost_names_its_largest_part() -> None:
    finding = told("launch.cost")
    assert "3.31 µs" in finding.title
    assert "8.37 µs" in finding.title
    assert "The largest part is submit" in finding.text
    slow = told("launch.cost", with_metric("launch_cost", "complete", 30e-6))
    assert "The largest part is complete" in slow.text
    assert "synchronise after many" in slow.text


def test_starving_agrees_with_the_sweep() -> None:
    finding = told("launch.starving")
    assert finding.severity == "advice"
    assert "1.95 µs" in finding.title
    assert "sweep agrees" in finding.text
    assert "between kernels of 2.00 µs and 3.00 µs" in finding.text


def test_starving_says_when_the_sweep_disagrees() -> None:
    finding = told("launch.starving", with_metric("launch_cost", "submit", 20e-6))
    assert finding.severity == "warning"
    assert "does not agree" in finding.text


def test_a_gap_above_submit_starves_nobody() -> None:
    finding = told("launch.starving", with_metric("launch_cost", "gap_stream", 5e-6))
    assert "Even empty kernels" in finding.title


def test_plateau_ends_at_the_first_period_above_the_margin() -> None:
    assert plateau_end(sweep(evidence(), "period")) == pytest.approx((2e-6, 3e-6), rel=0.02)
    assert plateau_end(sweep(evidence(), "period")[:3]) is None
    assert plateau_end([]) is None


def test_layers_are_held_against_the_loop_and_the_cheapest_is_chosen() -> None:
    finding = told("launch.layers")
    assert finding.title.startswith("From Python, cuda.core and cuda.bindings launch cheapest: 3.80 µs")
    assert "cuda.core 491 ns (1.15×)" in finding.text
    assert "Four arguments add between 393 ns (cuda.core) and 15.4 µs" in finding.text


def test_families_are_never_told_as_one() -> None:
    same, one_op = told("launch.layers"), told("launch.one_op")
    assert not re.search("PyTorch|JAX|ufunc", same.title + same.text)
    assert not re.search("cuda.core|Numba|×", one_op.title + one_op.text)
    assert all("family=one_op" in row for row in one_op.rests_on)


def test_a_call_of_several_kernels_is_named() -> None:
    def change(one: Outcome) -> Outcome:
        if one.case.params.get("layer") != "torch_eager":
            return one
        return msgspec.structs.replace(one, facts=(Fact("kernels_per_call", 2),))

    assert "More than one kernel a call: PyTorch eager." in told("launch.one_op", changed(change)).text


def test_queue_says_what_a_blocked_call_costs() -> None:
    finding = told("launch.queue")
    assert "1021 launches" in finding.title
    assert "kernels of 100 µs it is 102 µs instead of 3.31 µs" in finding.text
    assert "With 4000 B of arguments only 717 fit" in finding.text


def test_traffic_is_latency_while_its_share_is_small() -> None:
    finding = told("launch.traffic")
    assert finding.severity == "note"
    assert "1.77 kB over the link to the GPU and 285 B back" in finding.title
    assert "latency, not bandwidth" in finding.text
    assert "63.0 GB/s" in finding.text
    assert "the same for kernels of 0 to 100 µs" in finding.text


def test_traffic_is_bandwidth_when_its_share_is_not() -> None:
    finding = told("launch.traffic", with_metric("launch_traffic", "received", 17_690.0, work="launch"))
    assert finding.severity == "warning"
    assert "bandwidth takes part" in finding.text


def test_traffic_without_a_known_link_claims_nothing() -> None:
    sessions = tuple(
        msgspec.structs.replace(one, environment=msgspec.structs.replace(one.environment, gpus=()))
        for one in WHOLE.sessions
    )
    finding = told("launch.traffic", msgspec.structs.replace(WHOLE, sessions=sessions))
    assert "latency" not in finding.text
    assert "GB/s" not in finding.text


def test_argument_bytes_are_fitted() -> None:
    assert slope([(0, 1769.0), (1000, 2859.0), (2000, 3949.0)]) == pytest.approx(1.09)
    assert slope([(0, 1.0)]) is None
    assert slope([]) is None


def test_counters_that_miss_headers_are_not_believed() -> None:
    assert told("launch.traffic_check").severity == "good"
    wrong = with_metric("launch_traffic", "received_per_byte", 0.3, work="pinned_h2d")
    assert told("launch.traffic_check", wrong).severity == "warning"


def test_waits_threads_streams_kinds_arguments_and_cold() -> None:
    assert told("launch.wait").title == "A blocking wait answers 32.0 µs later than a spinning one"
    assert told("launch.threads").title == "8 threads launch 3.0× as fast as one"
    assert "take turns" in told("launch.threads").text
    assert "8 kernels were resident" in told("launch.streams").text
    assert told("launch.kind").title == "A cooperative launch costs more to submit"
    assert "from 1.76 µs to 563 ns" in told("launch.kind").text
    assert told("launch.arguments").title == "4000 B of arguments add 783 ns to a launch"
    assert "context 207 ms" in told("launch.cold").text
    assert "a stream's wait for an event costs most" in told("launch.calls").title


def test_tails_warn_at_twice_the_median() -> None:
    assert told("launch.tail").severity == "note"
    slow = changed(
        lambda one: msgspec.structs.replace(
            one,
            measurements=tuple(
                msgspec.structs.replace(old, per_call=msgspec.structs.replace(old.per_call, p99=9e-6))
                if old.metric == "submit" and old.per_call
                else old
                for old in one.measurements
            ),
        )
    )
    assert told("launch.tail", slow).severity == "warning"


def test_noise_warns_and_rounds_are_advised() -> None:
    assert told("launch.rounds").severity == "note"
    rules = {finding.rule for finding in of_suite(evidence(make_run(rounds=3)), "launch")}
    assert not rules & {"launch.rounds", "launch.noise"}
    noisy = changed(
        lambda one: msgspec.structs.replace(
            one,
            measurements=tuple(
                measurement(old.metric, old.values[0], spread=0.3, work=old.work) for old in one.measurements
            ),
        )
    )
    assert told("launch.noise", noisy).severity == "warning"


def test_each_gpu_is_explained_by_its_own_figures() -> None:
    other = [msgspec.structs.replace(one, device="GPU-other") for one in launch_outcomes()]
    run = make_run(extra=other)
    titles = [finding.title for finding in findings(run) if finding.rule == "launch.cost"]
    assert len(titles) == 2
    assert titles[0].startswith("GPU 0, SIMULATED GPU: ")
    assert titles[1].startswith("GPU-other: ")
    assert [one.device for one in evidence_by_device(run)] == [DEVICE, "GPU-other"]


def test_the_newest_session_speaks() -> None:
    newer = msgspec.structs.replace(outcome("launch_cost", [measurement("submit", 5e-6)]), session=1)
    run = make_run(extra=[newer])
    run = msgspec.structs.replace(run, sessions=(*run.sessions, *run.sessions))
    row = evidence(run).row("launch_cost", "submit")
    assert row is not None
    assert row.value == pytest.approx(5e-6, rel=0.02)


def test_words_are_listed_as_a_person_would() -> None:
    assert (listed([]), listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])) == (
        "",
        "a",
        "a and b",
        "a, b and c",
    )

"""The graph suite's rules: each with the run's own numbers, each silent without its measurements."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_graph_run import MADE, graph_outcomes, make_graph_run
from make_run import measurement

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.analysis.graph_steps import Pair, kernel_counts, pairs, usual_kernels
from microbench.core.model import Outcome, Param, Run
from microbench.explain.graph_change import AROUND, Cost, cost, equal_at
from microbench.explain.graph_gains import SPEEDUPS, break_evens, crossing, curves, life_line
from microbench.explain.graph_nodes import TITLES, enough, points
from microbench.explain.rules import GRAPH_RULES, findings, of_suite

WHOLE = make_graph_run()


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def told(rule: str, run: Run = WHOLE) -> Finding:
    return next(finding for finding in of_suite(evidence(run), "graph") if finding.rule == rule)


def silent(rule: str, run: Run) -> bool:
    return all(finding.rule != rule for finding in of_suite(evidence(run), "graph"))


def changed(change: Callable[[Outcome], Outcome | None]) -> Run:
    """The whole run with each outcome changed, or left out for None."""
    return msgspec.structs.replace(WHOLE, outcomes=tuple(new for one in WHOLE.outcomes if (new := change(one))))


def scaled(benchmark: str, metrics: tuple[str, ...], factor: float, **params: Param) -> Run:
    """The whole run with some figures multiplied."""

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark or any(one.case.params.get(key) != value for key, value in params.items()):
            return one
        found = tuple(
            measurement(old.metric, old.values[0] / old.calls_per_sample * factor, spread=0.001)
            if old.metric in metrics
            else old
            for old in one.measurements
        )
        return msgspec.structs.replace(one, measurements=found)

    return changed(change)


def before_uploads() -> Run:
    """The whole run as it was before there was an uploaded_launch."""
    return changed(
        lambda one: msgspec.structs.replace(
            one, measurements=tuple(old for old in one.measurements if old.metric != "uploaded_launch")
        )
    )


def without(benchmark: str, **params: Param) -> Run:
    """The whole run without some cases."""

    def change(one: Outcome) -> Outcome | None:
        gone = one.case.benchmark == benchmark and all(
            one.case.params.get(key) == value for key, value in params.items()
        )
        return None if gone else one

    return changed(change)


def test_every_rule_speaks_once_when_everything_is_measured() -> None:
    found = of_suite(evidence(), "graph")
    rules = [finding.rule for finding in found]
    assert len(rules) == len(set(rules)) == len(GRAPH_RULES) + 1  # and the note on rounds
    assert all(finding.threshold and finding.rests_on and finding.suite == "graph" for finding in found[:-1])
    assert all(len(set(finding.rests_on)) == len(finding.rests_on) for finding in found)


@pytest.mark.parametrize("preset", ["quick", pytest.param("full", marks=pytest.mark.slow)])
def test_every_preset_is_explained(preset: str) -> None:
    found = {finding.rule for finding in of_suite(evidence(make_graph_run(preset=preset)), "graph")}
    assert {"graph.break_even", "graph.crossover", "graph.phases", "graph.update", "graph.shape"} <= found


@pytest.mark.parametrize("benchmark", sorted(MADE))
def test_a_missing_benchmark_silences_its_rules_only(benchmark: str) -> None:
    left, whole = of_suite(evidence(without(benchmark)), "graph"), of_suite(evidence(), "graph")
    assert [finding.text for finding in left] != [finding.text for finding in whole]
    assert {finding.rule for finding in left} <= {finding.rule for finding in whole}
    assert all(not row.startswith(f"{benchmark}[") for finding in left for row in finding.rests_on)


GRAPHS = [index for index, one in enumerate(WHOLE.outcomes) if one.case.benchmark in MADE]


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.sets(st.sampled_from(GRAPHS), max_size=len(GRAPHS)))
def test_nothing_missing_makes_a_rule_raise(dropped: set[int]) -> None:
    outcomes = tuple(one for index, one in enumerate(WHOLE.outcomes) if index not in dropped)
    findings(msgspec.structs.replace(WHOLE, outcomes=outcomes))


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.sets(st.sampled_from(sorted({old.metric for one in graph_outcomes() for old in one.measurements}))),
    st.booleans(),
)
def test_nothing_odd_in_the_figures_makes_a_rule_raise(names: set[str], zero: bool) -> None:
    def change(one: Outcome) -> Outcome:
        odd = tuple(
            measurement(old.metric, 0.0 if zero else -1e-6) if old.metric in names else old for old in one.measurements
        )
        return msgspec.structs.replace(one, measurements=odd)

    findings(changed(change))


# -- gain ---------------------------------------------------------------------------------------------------------


def test_crossovers_lie_between_the_durations_around_them() -> None:
    measured = pairs(evidence(), "loop", 100)
    for speedup in SPEEDUPS:
        at_s = crossing(measured, speedup).duration_s
        assert at_s is not None
        assert all(pair.speedup >= speedup for pair in measured if pair.duration_s < at_s)
        assert all(pair.speedup < speedup for pair in measured if pair.duration_s > at_s)


def test_a_crossover_is_straight_over_the_logarithm() -> None:
    def pair(duration_s: float, speedup: float) -> Pair:
        stand_in = pairs(evidence(), "loop", 100)[0]
        interval = msgspec.structs.replace(stand_in.graph.interval, median=1.0)
        graph = msgspec.structs.replace(stand_in.graph, interval=interval)
        stream = msgspec.structs.replace(graph, interval=msgspec.structs.replace(interval, median=speedup))
        return Pair(duration_s, stream, graph)

    measured = [pair(1e-6, 1.2), pair(100e-6, 1.0)]
    assert crossing(measured, 1.1).duration_s == pytest.approx(10e-6)
    assert crossing([pair(0.0, 1.2), pair(1e-6, 1.0)], 1.1).duration_s == pytest.approx(0.5e-6)
    assert crossing(measured, 1.5).duration_s == 0.0
    assert crossing([pair(1e-6, 1.2), pair(2e-6, 1.2)], 1.1).duration_s is None
    # The last fall counts, not one that noise undid.
    assert crossing([pair(1e-6, 1.2), pair(2e-6, 1.0), pair(4e-6, 1.2), pair(8e-6, 1.0)], 1.1).duration_s > 4e-6  # type: ignore[operator]


def test_crossovers_are_told_for_each_submitter() -> None:
    assert kernel_counts(evidence(), "cuda_core") == [10, 100]
    assert {kernels for kernels, _ in curves(evidence()).values()} == {100}
    finding = told("graph.crossover")
    assert finding.title == "A graph of 100 kernels gains 1.05× up to kernels of 16.6 µs, 1.5× up to 1.70 µs"
    assert "from the compiled loop 4.8× with empty kernels, under 1.5× from 1.70 µs" in finding.text
    assert "from Numba (configured before) 17× with empty kernels, under 1.5× from 7.72 µs" in finding.text


def test_a_gain_that_never_falls_or_never_was_is_said_rightly() -> None:
    much = told("graph.crossover", scaled("graph_gain", ("stream",), 2.0))
    assert much.title == "A graph of 100 kernels gains more than 1.05× up to kernels of 200 µs"
    assert "never under 1.5× up to 200 µs" in much.text
    little = told("graph.crossover", scaled("graph_gain", ("stream",), 0.1))
    assert little.title == "A graph of 100 kernels gains less than 1.05×, however short they are"
    assert "from the compiled loop 0.48× with empty kernels, always under 1.05×" in little.text
    assert "never" not in little.text


def test_the_usual_count_is_the_nearest_by_ratio() -> None:
    assert usual_kernels([1, 10, 1000]) in (10, 1000)
    assert usual_kernels([1, 30, 1000]) == 30
    assert usual_kernels([]) is None
    assert usual_kernels([8, 64], 10) == 8


def test_without_the_loop_another_submitter_is_named() -> None:
    assert "from cuda.core" in told("graph.crossover", without("graph_gain", submitter="loop")).title


# -- life ---------------------------------------------------------------------------------------------------------


def test_break_even_is_making_over_saving() -> None:
    finding = told("graph.break_even")
    assert finding.title == "A chain of 100 empty kernels pays for its graph after 1 replay"
    assert "1 kernel after 18, 10 after 2, 100 after 1, 1000 after 1" in finding.text
    assert "With kernels of 10.0 µs: 1 kernel after 18, 10 after 5, 100 after 4, 1000 after 3." in finding.text
    for one in break_evens(evidence()):
        assert one.replays is not None
        saved_s = (one.pair.stream.value - one.pair.graph.value) * one.kernels
        assert (one.replays - 1) * saved_s < one.making_s <= one.replays * saved_s


def test_a_dear_graph_pays_later_and_an_equal_one_never() -> None:
    dear = scaled("graph_lifecycle", ("capture", "instantiate", "upload"), 10.0)
    assert told("graph.break_even", dear).title.endswith("pays for its graph after 10 replays")
    equal = changed(
        lambda one: (
            one
            if one.case.benchmark != "graph_gain"
            else msgspec.structs.replace(
                one, measurements=tuple(measurement(name, 5e-6, spread=0.01) for name in ("stream", "graph"))
            )
        )
    )
    assert told("graph.break_even", equal).title == "A chain of 100 empty kernels never pays for its graph"
    assert "1 kernel never, 10 never" in told("graph.break_even", equal).text


def test_break_even_needs_the_same_count_in_both() -> None:
    run = without("graph_gain", kernels=100)
    assert told("graph.break_even", run).title.startswith("A chain of 10 empty kernels")
    for count in (1, 10, 100, 1000):
        run = msgspec.structs.replace(
            run, outcomes=tuple(one for one in run.outcomes if one.case.params.get("kernels") != count)
        )
    assert silent("graph.break_even", run)


def test_the_dearest_phase_is_named_with_its_fit() -> None:
    finding = told("graph.phases")
    assert finding.title == "Of making a graph of 100 nodes, instantiate takes most: 50.7 %"
    assert "instantiate 1.27 µs and 5.01 µs" in finding.text
    assert "worst fit: destroy, off by 0.16 % in the median, at most 0.54 %" in finding.text
    assert "33.0 µs instead of capture's 44.3 µs: 1.34× faster" in finding.text
    slow = told("graph.phases", scaled("graph_lifecycle", ("upload",), 5.0))
    assert "upload takes most" in slow.title
    same = told("graph.phases", scaled("graph_lifecycle", ("build",), 1.34))
    assert "takes as long as capturing" in same.text
    dearer = told("graph.phases", scaled("graph_lifecycle", ("build",), 3.0))
    assert "slower" in dearer.text


def test_gpu_time_is_fitted_for_the_whole_replay() -> None:
    fit = life_line(evidence(), "node")
    assert fit is not None
    assert (fit.constant, fit.slope) == (pytest.approx(1.3e-6, rel=0.02), pytest.approx(0.5e-6, rel=0.02))
    assert told("graph.replay").title == "A replay costs the host 1.20 µs and the GPU 498 ns a node"


def test_upload_and_memory_are_told() -> None:
    finding = told("graph.upload")
    assert (finding.severity, finding.title) == (
        "advice", "The first launch of a graph takes 55× that of one that was uploaded",
    )  # fmt: skip
    assert "takes 86.3 µs, 1.56 µs if the graph was uploaded, later ones 1.34 µs" in finding.text
    assert told("graph.upload", scaled("graph_lifecycle", ("first_launch",), 0.02)).severity == "note"
    # Dear as the launch is, it is no dearer than one after an upload.
    dear = scaled("graph_lifecycle", ("uploaded_launch",), 60.0)
    assert told("graph.upload", dear).severity == "note"
    assert told("graph.upload", before_uploads()).title.endswith("takes 64× a later one, unless it was uploaded")
    assert told("graph.memory_taken").title == "A node takes 1.10 kB of device memory"
    assert "23.0 MB of host memory for 10000 nodes" in told("graph.memory_taken").text


def test_where_a_graph_does_not_help() -> None:
    finding = told("graph.no_help")
    assert finding.title == (
        "A graph does not help kernels above 16.6 µs, nor 100 kernels of 10.0 µs replayed fewer than 4 times"
    )
    assert "kernels above 1.95 µs never wait for the host" in finding.text
    assert "830 ns a kernel" in finding.text
    assert "Even one kernel a replay gains 1.12×" in finding.text
    single = told("graph.no_help", scaled("graph_gain", ("stream",), 0.9, kernels=1))
    assert "single kernels" in single.title
    assert "a replay is a call, a way to the GPU and a completion all the same" in single.text
    assert silent("graph.no_help", without("graph_gain"))


# -- update -------------------------------------------------------------------------------------------------------


def test_an_update_is_held_against_a_rebuild() -> None:
    finding = told("graph.update")
    assert finding.title == "Changing all of 100 nodes takes 26.9 µs, making the graph anew 304 µs: 11×"
    assert "Of one node: new arguments node by node 3.26 µs" in finding.text
    assert "Node by node stays the cheapest however many change" in finding.text


def test_a_change_costs_its_record_its_disposal_and_what_the_next_replay_takes_more() -> None:
    updated, single = cost(evidence(), "exec_update", 100, 100), cost(evidence(), "set_params", 100, 100)
    assert updated is not None
    assert updated.seconds == pytest.approx(21.5e-6 + 44.4e-6 + 16e-6 + 4e-6, rel=0.02)
    assert {row.metric.name for row in updated.rows} >= {"record", "dispose"}
    assert single is not None
    assert single.seconds == pytest.approx(23e-6 + 4e-6, rel=0.02)
    assert "record + change + dispose + (next_replay - later_replay)" in told("graph.update").threshold
    assert cost(evidence(), "exec_update", 100, 7) is None


def test_from_how_many_nodes_the_whole_update_is_cheaper() -> None:
    one, all_of = Cost("set_params", 1, 1.0, ()), Cost("set_params", 101, 11.0, ())
    assert equal_at([one, all_of], Cost("exec_update", 101, 6.0, ())) == pytest.approx(51)
    assert equal_at([one, all_of], Cost("exec_update", 101, 20.0, ())) is None
    assert equal_at([one, all_of], Cost("exec_update", 101, 0.5, ())) == 1
    cheap = scaled("graph_update", ("change", "record", "dispose"), 0.2, way="exec_update")
    assert "changed nodes on an update of the whole graph is cheaper" in told("graph.update", cheap).text
    cheaper = scaled("graph_update", ("change", *AROUND, "next_replay"), 0.01, way="exec_update")
    assert "cheaper even for one node" in told("graph.update", cheaper).text


def test_a_rebuild_may_be_the_cheapest() -> None:
    run = scaled("graph_update", ("change", *AROUND, "next_replay"), 0.01, way="rebuild")
    assert told("graph.update", run).title.endswith("making the graph anew is the cheapest way")
    assert told("graph.update", run).severity == "note"


# -- nodes --------------------------------------------------------------------------------------------------------


def test_kinds_are_named_from_cheapest_to_dearest() -> None:
    finding = told("graph.nodes")
    assert finding.title == "The cheapest node: empty node, 99.9 ns; the dearest: host function, 8.95 µs"
    assert "gain most as nodes: empty kernel 501 ns against 1.36 µs, dependent kernel" in finding.text
    assert "Dearer as a node than in a stream: host function 8.95 µs against 7.01 µs" in finding.text
    kinds = {str(one.case.params["kind"]) for one in graph_outcomes() if one.case.benchmark == "graph_nodes"}
    assert kinds == set(TITLES)


def test_kinds_that_the_host_submits_at_each_replay_are_named() -> None:
    finding = told("graph.one_by_one")
    assert finding.title == "Replays of 7 kinds of node keep the host, up to 130 µs"
    assert "a long chain of empty kernels takes 1.50 µs; of as many other nodes: host function 130 µs" in finding.text
    assert "IF taken" not in finding.text
    kinds = ("copy_h2d", "copy_d2h", "copy_d2d", "host", "event_record", "event_wait")
    single = with_launches(dict.fromkeys(kinds, 1.5e-6))
    assert told("graph.one_by_one", single).title == "Replays of memset 4 B nodes keep the host, up to 96.4 µs"
    assert "a kernel that sets or copies the few bytes" in told("graph.one_by_one", single).text
    no_bytes = told("graph.one_by_one", with_launches(dict.fromkeys(("memset", *kinds[:3]), 1.5e-6)))
    assert no_bytes.title == "Replays of host function, event record and event wait nodes keep the host, up to 130 µs"
    assert "few bytes" not in no_bytes.text
    assert silent("graph.one_by_one", with_launches(dict.fromkeys(("memset", *kinds), 1.5e-6)))
    assert silent("graph.one_by_one", without("graph_nodes", kind="kernel_empty"))


def with_launches(launches_s: dict[str, float]) -> Run:
    """The whole run with other launch calls of chains of some kinds."""

    def change(one: Outcome) -> Outcome:
        launch_s = launches_s.get(str(one.case.params.get("kind")))
        if launch_s is None or one.case.benchmark != "graph_nodes":
            return one
        found = tuple(measurement("launch", launch_s) if old.metric == "launch" else old for old in one.measurements)
        return msgspec.structs.replace(one, measurements=found)

    return changed(change)


def test_pdl_is_told_with_and_without_a_trigger() -> None:
    finding = told("graph.pdl")
    assert finding.title == (
        "Programmatic dependent launch speeds kernels that begin with 1 µs of work of their own up "
        "4.6× in a stream and 3.4× in a graph"
    )
    assert "at once takes in a stream 1.76 µs, 827 ns with PDL, 560 ns with an early trigger as well" in finding.text
    assert (
        "after 1 µs of work of its own takes in a stream 2.75 µs, 1.84 µs with PDL, 602 ns with an early trigger"
        in finding.text
    )
    assert "827 ns" not in told("graph.pdl", without("graph_nodes", kind="pdl")).text
    at_once = told("graph.pdl", without("graph_nodes", kind="kernel_prologue"))
    assert at_once.title == (
        "Programmatic dependent launch speeds dependent kernels up 3.1× in a stream and 1.62× in a graph"
    )
    assert "1 µs of work" not in at_once.text
    no_use = scaled("graph_nodes", ("stream", "node"), 0.1, kind="kernel_prologue")
    assert "does not speed kernels that begin with 1 µs" in told("graph.pdl", no_use).title


def test_pdl_is_silent_without_what_it_is_held_against() -> None:
    def change(one: Outcome) -> Outcome | None:
        return None if one.case.params.get("kind") in ("kernel", "kernel_prologue") else one

    assert silent("graph.pdl", changed(change))


def test_who_should_decide_follows_the_figures() -> None:
    assert "Here the host's round trip is the shorter" in told("graph.iteration").text
    slow = told("graph.iteration", without("graph_nodes", kind="host_poll"))
    assert "Deciding on the device saves 43.2 %" in slow.text
    even = told("graph.iteration", scaled("graph_nodes", ("iteration",), 1.32, kind="host_poll"))
    assert "Either will do" in even.text


def test_what_the_driver_refuses_is_told_in_its_words() -> None:
    finding = told("graph.refused")
    assert "IF skipped and IF taken" in finding.title
    assert "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" in finding.text
    run = without("graph_nodes", kind="if_taken")
    assert told("graph.refused", run).title == "The driver updates no graph of: IF skipped"


# -- shape, memory ------------------------------------------------------------------------------------------------


def test_branches_help_up_to_where_the_gpu_is_full() -> None:
    finding = told("graph.shape")
    assert finding.title == "16 branches in a graph take 29.6 µs, 7.7× as fast as on 16 streams"
    assert "1 branch 361 µs against 415 µs" in finding.text
    assert "More than 16 branches do not help" in finding.text
    measured = points(evidence(), "fork_join", 5000)
    assert [point[0] for point in measured] == [1, 2, 4, 8, 16, 32, 64]
    assert enough(measured[:3]) == 4
    flat = scaled("graph_shape", ("graph",), 0.01, shape="chain")
    assert told("graph.shape", flat).title == "Branches in a graph do not help here"
    slower = scaled("graph_shape", ("streams",), 0.05)
    assert "as slow as on 16 streams" in told("graph.shape", slower).title


def test_allocations_are_held_against_memory_allocated_before() -> None:
    finding = told("graph.memory")
    assert finding.severity == "advice"
    assert "2.05 µs as graph nodes" in finding.title
    assert "309 µs from one that gives it back" in finding.title
    assert "Raise the pool's release threshold" in finding.text
    assert "67.1 MB by a graph" in finding.text
    same = scaled("graph_memory", ("step",), 9 / 11, way="graph_nodes")
    assert "nothing measurable as graph nodes" in told("graph.memory", same).title
    calm = without("graph_memory", way="stream_released")
    assert told("graph.memory", calm).severity == "note"


def test_many_first_nodes_are_told_where_they_keep_the_host() -> None:
    assert "depend on nothing" not in told("graph.shape").text
    dear = scaled("graph_shape", ("graph_submit",), 50, shape="independent")
    assert "Nodes that depend on nothing the host submits" in told("graph.shape", dear).text

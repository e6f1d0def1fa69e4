"""The rules of the graph suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from make_graph_run import graph_outcomes, make_graph_run
from make_run import measurement, scaled, with_metrics, without
from msgspec.structs import replace
from read_findings import by_rule, evidence

from microbench.analysis.evidence import Finding
from microbench.analysis.graph_steps import kernel_counts, usual_kernels
from microbench.core.model import Run
from microbench.explain import graph_facts as graphs
from microbench.model.graph_pairs import Pair, pairs

WHOLE = make_graph_run()
MAKE = ("capture", "instantiate", "upload")


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "graph")[rule]


EQUAL = with_metrics(WHOLE, "graph_gain", lambda old: measurement(old.metric, 5e-6, spread=0.01))


def test_crossovers_lie_between_the_durations_around_them() -> None:
    measured = pairs(evidence(WHOLE), "loop", 100)
    for speedup in graphs.SPEEDUPS:
        at_s = graphs.crossing(measured, speedup)
        assert all(pair.speedup >= speedup for pair in measured if pair.duration_s < at_s)
        assert all(pair.speedup < speedup for pair in measured if pair.duration_s > at_s)


def test_a_crossover_is_linear_in_the_logarithm() -> None:
    def pair(duration_s: float, speedup: float) -> Pair:
        stand_in = pairs(evidence(WHOLE), "loop", 100)[0]
        interval = replace(stand_in.graph.interval, median=1.0)
        graph = replace(stand_in.graph, interval=interval)
        stream = replace(graph, interval=replace(interval, median=speedup))
        return Pair(duration_s, stream, graph)

    measured = [pair(1e-6, 1.2), pair(100e-6, 1.0)]
    assert graphs.crossing(measured, 1.1) == pytest.approx(10e-6)
    assert graphs.crossing(measured, 1.5) == 0.0
    assert graphs.crossing([pair(1e-6, 1.2), pair(2e-6, 1.2)], 1.1) is None
    # The last fall counts, not one that noise undid.
    assert graphs.crossing([pair(1e-6, 1.2), pair(2e-6, 1.0), pair(4e-6, 1.2), pair(8e-6, 1.0)], 1.1) > 4e-6


def test_each_submitter_has_its_curve_at_the_usual_count() -> None:
    assert kernel_counts(evidence(WHOLE), "cuda_core") == [10, 100]
    assert {kernels for kernels, _ in graphs.curves(evidence(WHOLE)).values()} == {100}
    assert next(iter(graphs.curves(evidence(WHOLE)))) == "loop"


@pytest.mark.parametrize(
    ("counts", "wanted", "usual"), [([1, 30, 1000], 100, 30), ([8, 64], 10, 8), ([10], 100, 10), ([], 100, None)]
)
def test_the_usual_count_is_the_nearest_by_ratio(counts: list[int], wanted: int, usual: int | None) -> None:
    assert usual_kernels(counts, wanted) == usual


def test_break_even_is_the_time_to_make_a_graph_over_the_saving_per_replay() -> None:
    assert [chain.replays for chain in graphs.break_evens(evidence(WHOLE))] == [18, 2, 1, 1]
    assert [chain.replays for chain in graphs.break_evens(evidence(WHOLE), 10e-6)] == [18, 5, 4, 3]
    for chain in graphs.break_evens(evidence(WHOLE)):
        saved_s = (chain.pair.stream.value - chain.pair.graph.value) * chain.kernels
        assert (chain.replays - 1) * saved_s < chain.making_s <= chain.replays * saved_s
    slow = graphs.break_evens(evidence(scaled(WHOLE, "graph_lifecycle", MAKE, 10)))
    assert [chain.replays for chain in slow if chain.kernels == 100] == [10]
    assert {chain.replays for chain in graphs.break_evens(evidence(EQUAL))} == {None}


def test_break_even_needs_the_same_count_in_both_benchmarks() -> None:
    run = without(WHOLE, "graph_gain", kernels=100)
    assert 100 not in {chain.kernels for chain in graphs.break_evens(evidence(run))}


def test_gpu_time_is_fitted_for_the_whole_replay() -> None:
    fit = graphs.life_line(evidence(WHOLE), "node")
    assert (fit.constant, fit.slope) == (pytest.approx(1.3e-6, rel=0.02), pytest.approx(0.5e-6, rel=0.02))


def test_a_change_costs_its_record_its_disposal_and_what_the_next_replay_takes_more() -> None:
    updated, single = (graphs.cost(evidence(WHOLE), way, 100, 100) for way in ("exec_update", "set_params"))
    assert updated.seconds == pytest.approx(21.5e-6 + 44.4e-6 + 16e-6 + 4e-6, rel=0.02)
    assert {row.metric.name for row in updated.rows} >= {"record", "dispose"}
    assert single.seconds == pytest.approx(23e-6 + 4e-6, rel=0.02)
    assert graphs.cost(evidence(WHOLE), "exec_update", 100, 7) is None


def test_from_how_many_nodes_the_whole_update_is_cheaper() -> None:
    few, all_of = graphs.Cost("set_params", 1, 1.0, ()), graphs.Cost("set_params", 101, 11.0, ())
    for whole_s, count in ((6.0, pytest.approx(51)), (20.0, None), (0.5, 1)):
        assert graphs.equal_at([few, all_of], graphs.Cost("exec_update", 101, whole_s, ())) == count
    # Each of the three cases has its advice.
    cheap = scaled(WHOLE, "graph_update", ("change", "record", "dispose"), 0.2, way="exec_update")
    cheaper = scaled(WHOLE, "graph_update", ("change", *graphs.AROUND, "next_replay"), 0.01, way="exec_update")
    assert len({finding_of("graph.update", run).advice for run in (WHOLE, cheap, cheaper)}) == 3


def test_every_kind_of_node_has_a_title() -> None:
    kinds = {one.case.params["kind"] for one in graph_outcomes() if one.case.benchmark == "graph_nodes"}
    assert kinds == set(graphs.TITLES)


def test_branches_help_up_to_where_the_gpu_is_full() -> None:
    measured = graphs.branches(evidence(WHOLE), "fork_join", 5000)
    assert [point.number for point in measured] == [1, 2, 4, 8, 16, 32, 64]
    assert graphs.enough(measured).number == 16
    assert graphs.enough(measured[:3]).number == 4

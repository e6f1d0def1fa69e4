"""What the graph suite's rules rest on: crossovers, break-evens, changes and branches, on the bundled run."""

import pytest
from changed_run import bundled, in_one_round, scaled, with_metrics, without
from msgspec import Raw, json
from msgspec.structs import replace
from read_findings import by_rule, evidence

from microbench.analysis.evidence import Finding
from microbench.analysis.graph_steps import kernel_counts, usual_kernels
from microbench.core.model import Run
from microbench.explain import graph_facts as graphs
from microbench.model.fit import fit
from microbench.model.graph_pairs import Pair, pairs

WHOLE = in_one_round(bundled("launch", "graph"))
MAKE = ("capture", "instantiate", "upload")


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "graph")[rule]


EQUAL = with_metrics(WHOLE, "graph_gain", lambda old: replace(old, samples=Raw(json.encode([1e-6, 1.01e-6])), n=2))


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
    known, slower = evidence(WHOLE), evidence(scaled(WHOLE, "graph_lifecycle", MAKE, 10))
    paid = 0
    for kernels in kernel_counts(known):
        pair = pairs(known, "loop", kernels)[0]
        if (even := graphs.break_even(known, pair)) is None:
            continue
        making_s, replays = even
        if replays is not None:
            saved_s = (pair.stream.value - pair.graph.value) * kernels
            assert (replays - 1) * saved_s < making_s <= replays * saved_s
            paid += 1
        assert graphs.break_even(slower, pair)[0] == pytest.approx(10 * making_s, rel=0.01)
        assert graphs.break_even(known, pairs(evidence(EQUAL), "loop", kernels)[0])[1] is None
    assert paid > 2


def test_making_lies_between_that_of_measured_counts() -> None:
    pair = pairs(evidence(WHOLE), "loop", 100)[0]
    (making_s, _), between = (
        graphs.break_even(evidence(run), pair) for run in (WHOLE, without(WHOLE, "graph_lifecycle", nodes=100))
    )
    made = {nodes: taken.value for nodes, taken in fit(evidence(WHOLE)).made}
    assert making_s == made[100]
    assert between[0] == pytest.approx(made[10] + (made[1000] - made[10]) * 90 / 990)
    assert graphs.break_even(evidence(without(WHOLE, "graph_lifecycle")), pair) is None


def test_gpu_time_is_fitted_for_the_whole_replay() -> None:
    fit = graphs.life_line(evidence(WHOLE), "node")
    for nodes, row in graphs.curve_of(evidence(WHOLE), "node"):
        assert fit.constant + fit.slope * nodes == pytest.approx(row.value * nodes, rel=0.25)


def test_a_change_costs_its_record_its_disposal_and_what_the_next_replay_takes_more() -> None:
    for way, named in (("exec_update", {"record", "dispose"}), ("set_params", set())):
        found = graphs.cost(evidence(WHOLE), way, 100, 100)
        at = {row.metric.name: row.value for row in found.rows}
        assert set(at) == {"change", "next_replay", "later_replay", *named}
        more_s = max(at.pop("next_replay") - at.pop("later_replay"), 0.0)
        assert found.seconds == pytest.approx(sum(at.values()) + more_s)
    assert graphs.cost(evidence(WHOLE), "exec_update", 100, 7) is None


def test_from_how_many_nodes_the_whole_update_is_cheaper() -> None:
    few, all_of = graphs.Cost("set_params", 1, 1.0, ()), graphs.Cost("set_params", 101, 11.0, ())
    for whole_s, count in ((6.0, pytest.approx(51)), (20.0, None), (0.5, 1)):
        assert graphs.equal_at([few, all_of], graphs.Cost("exec_update", 101, whole_s, ())) == count
    # Each of the three cases has its advice.
    cheap = scaled(WHOLE, "graph_update", ("change", *graphs.AROUND, "next_replay"), 0.3, way="exec_update")
    cheaper = scaled(WHOLE, "graph_update", ("change", *graphs.AROUND, "next_replay"), 0.01, way="exec_update")
    assert len({finding_of("graph.update", run).advice for run in (WHOLE, cheap, cheaper)}) == 3


def test_every_kind_of_node_has_a_title() -> None:
    kinds = {one.case.params["kind"] for one in WHOLE.outcomes if one.case.benchmark == "graph_nodes"}
    assert kinds == set(graphs.TITLES)


def test_branches_help_up_to_where_the_gpu_is_full() -> None:
    measured = graphs.branches(evidence(WHOLE), "fork_join", 5000)
    assert [point.number for point in measured] == sorted(point.number for point in measured)
    most = graphs.enough(measured)
    assert all(later.graph.value * graphs.HELPS > most.graph.value for later in measured if later.number > most.number)
    fewer = [point for point in measured if point.number < most.number]
    assert graphs.enough(fewer).number < most.number

"""What the graph suite's rules rest on: crossovers, break-evens, changes and branches, on the bundled run."""

import pytest
from changed_run import bundled, in_one_round, scaled, without
from msgspec.structs import replace
from read_findings import by_rule, evidence

from microbench.analysis.evidence import Finding
from microbench.analysis.graph_steps import usual_kernels
from microbench.core.model import Run
from microbench.explain import graph_rules as graphs
from microbench.explain.graph_rules import AROUND, Cost, equal_at
from microbench.model.constants import Pair, pairs
from microbench.model.fit import fit

WHOLE = in_one_round(bundled("launch", "graph"))


def finding_of(rule: str, run: Run = WHOLE) -> Finding:
    return by_rule(run, "graph")[rule]


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


@pytest.mark.parametrize(
    ("counts", "wanted", "usual"), [([1, 30, 1000], 100, 30), ([8, 64], 10, 8), ([10], 100, 10), ([], 100, None)]
)
def test_the_usual_count_is_the_nearest_by_ratio(counts: list[int], wanted: int, usual: int | None) -> None:
    assert usual_kernels(counts, wanted) == usual


def test_making_lies_between_that_of_measured_counts() -> None:
    pair = pairs(evidence(WHOLE), "loop", 100)[0]
    (making_s, _), between = (
        graphs.break_even(evidence(run), pair) for run in (WHOLE, without(WHOLE, "graph_lifecycle", nodes=100))
    )
    made = {nodes: taken.value for nodes, taken in fit(evidence(WHOLE)).made}
    assert making_s == made[100]
    assert between[0] == pytest.approx(made[10] + (made[1000] - made[10]) * 90 / 990)
    assert graphs.break_even(evidence(without(WHOLE, "graph_lifecycle")), pair) is None


def test_from_how_many_nodes_the_whole_update_is_cheaper() -> None:
    few, all_of = Cost(1, 1.0, ()), Cost(101, 11.0, ())
    for whole_s, count in ((6.0, pytest.approx(51)), (20.0, None), (0.5, 1)):
        assert equal_at([few, all_of], whole_s) == count
    # Each of the three cases has its advice.
    cheap = scaled(WHOLE, "graph_update", ("change", *AROUND, "next_replay"), 0.3, way="exec_update")
    cheaper = scaled(WHOLE, "graph_update", ("change", *AROUND, "next_replay"), 0.01, way="exec_update")
    assert len({finding_of("graph.update", run).advice for run in (WHOLE, cheap, cheaper)}) == 3


def test_every_kind_of_node_has_a_title() -> None:
    kinds = {one.case.params["kind"] for one in WHOLE.outcomes if one.case.benchmark == "graph_nodes"}
    assert kinds == set(graphs.TITLES)

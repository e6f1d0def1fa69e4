"""graph_transitions gives back the simulated costs; on a real GPU the word arrives between the two kernels."""

from typing import get_args

import pytest
from fake_session import medians

from microbench.experiments.graph.chains import IN_MEMORY, Transition, transitions
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import call_of_kind
from microbench.gpu.protocol.gpu import Gpu


@pytest.mark.parametrize(
    "costs", [FakeCosts(), FakeCosts(gap_stream_ns=2300, gap_graph_ns=700)], ids=["default", "other"]
)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", get_args(Transition))
def test_each_transition_gives_back_the_simulated_costs(kind: Transition, graph: bool, costs: FakeCosts) -> None:
    found = medians("graph_transitions", costs, transition=kind, submitted="graph" if graph else "stream")
    gap_ns = costs.gap_graph_ns if graph else costs.gap_stream_ns
    expected_ns = {"around": gap_ns}
    if kind in IN_MEMORY:
        to_ns = gap_ns + costs.graphs.nodes[kind].gap_ns * graph + call_of_kind(kind, costs).item.duration_ns
        expected_ns = {"to": to_ns, "from": gap_ns, "around": to_ns + gap_ns}
    assert found == {name: pytest.approx(value_ns * 1e-9, abs=2e-9) for name, value_ns in expected_ns.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("kind", get_args(Transition))
def test_on_a_gpu_the_word_arrives_between_the_two_kernels(gpu: Gpu, kind: Transition, graph: bool) -> None:
    ended, seen, begun = transitions(gpu, kind, graph).stamps(20).T
    assert (begun - ended < 50_000).mean() > 0.8, "a gap, not a wait for the host"
    assert kind not in IN_MEMORY or ((ended < seen) & (seen < begun + 500)).mean() > 0.8

"""graph_device gives back the simulated costs; on a real GPU a kernel launches a graph, whose kernels run in order."""

from typing import get_args

import pytest
from fake_session import medians

from microbench.core.errors import Skip
from microbench.experiments.graph.device import SIMULATED_CALL_NS, SIMULATED_START_NS, LaunchedBy, device_launch
from microbench.gpu.fake.costs import FakeCosts, GraphCosts
from microbench.gpu.protocol.gpu import Gpu

OTHER = FakeCosts(graph_submit_ns=1800, launch_to_start_ns=2100, graphs=GraphCosts(tail_iteration_ns=3900))


@pytest.mark.parametrize("costs", [FakeCosts(), OTHER], ids=["default", "other"])
@pytest.mark.parametrize("nodes", [1, 100])
def test_each_launch_gives_back_the_simulated_costs(nodes: int, costs: FakeCosts) -> None:
    host_ns = costs.graph_submit_ns + nodes * costs.graph_node_submit_ns
    expected_ns = {
        "host": (host_ns, host_ns + costs.launch_to_start_ns),
        "fire_and_forget": (SIMULATED_CALL_NS, SIMULATED_START_NS),
        "tail": (SIMULATED_CALL_NS, costs.graphs.tail_iteration_ns),
    }
    for by, (call_ns, start_ns) in expected_ns.items():
        found = medians("graph_device", costs, launched_by=by, nodes=nodes)
        assert found == {
            "call": pytest.approx(call_ns * 1e-9, abs=1e-9),
            "start": pytest.approx(start_ns * 1e-9, abs=1e-9),
        }


def test_a_driver_without_such_launches_is_named() -> None:
    with pytest.raises(Skip, match="graphs launched from the device"):
        medians("graph_device", FakeCosts(cuda_driver_version=11080), launched_by="tail", nodes=1)


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [1, 100])
@pytest.mark.parametrize("by", get_args(LaunchedBy))
def test_on_a_gpu_the_launched_graph_runs_and_soon(gpu: Gpu, by: LaunchedBy, nodes: int) -> None:
    called, returned, begun = device_launch(gpu, by, nodes).stamps(20).T
    assert ((called < returned) & (called < begun)).all()
    assert (begun - called < 50_000).mean() > 0.8

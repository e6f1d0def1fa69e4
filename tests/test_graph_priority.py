"""graph_priority gives back the simulated order; on a real GPU the branch with priority ends first."""

import pytest
from fake_session import medians

from microbench.experiments.graph.priority import Prior, two_nodes
from microbench.experiments.launch.green import BLOCK_NS, WAVES
from microbench.gpu.protocol.gpu import Gpu

ALONE_NS = WAVES * BLOCK_NS


@pytest.mark.parametrize(("prior", "first", "second"), [
    ("neither", WAVES, 2 * WAVES), ("first", WAVES, 2 * WAVES), ("second", 2 * WAVES, WAVES + 1),
    ("ignored", WAVES, 2 * WAVES),
])  # fmt: skip
def test_each_priority_gives_back_the_simulated_order(prior: Prior, first: int, second: int) -> None:
    found = medians("graph_priority", prior=prior)
    expected = {"first": first * BLOCK_NS * 1e-9, "second": second * BLOCK_NS * 1e-9}
    assert found == {name: pytest.approx(value, abs=1e-9) for name, value in expected.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("prior", ["first", "second"])
def test_on_a_gpu_the_branch_with_priority_ends_first(gpu: Gpu, prior: Prior) -> None:
    began, *ends = two_nodes(gpu, prior).stamps(5).T
    wanted, other = (ends[0], ends[1]) if prior == "first" else (ends[1], ends[0])
    assert (wanted - began < 1.4 * ALONE_NS).mean() > 0.5
    assert ((other - began > 1.7 * ALONE_NS) & (other - began < 2.6 * ALONE_NS)).mean() > 0.5

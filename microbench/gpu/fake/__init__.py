"""A simulated GPU and host for tests and ``--device fake``: events on virtual clocks, every figure marked SIMULATED."""

from microbench.gpu.fake.costs import FakeCosts, LayerCosts, Traffic
from microbench.gpu.fake.environment import FAKE_NAME, FAKE_UUID, fake_environment
from microbench.gpu.fake.gpu import FakeGpu, open_fake
from microbench.gpu.fake.graph_costs import CallCosts, GraphCosts, Line, NodeCosts
from microbench.gpu.fake.host import FakeColdStarts, FakeHost, open_fake_cold

__all__ = [
    "FAKE_NAME",
    "FAKE_UUID",
    "CallCosts",
    "FakeColdStarts",
    "FakeCosts",
    "FakeGpu",
    "FakeHost",
    "GraphCosts",
    "LayerCosts",
    "Line",
    "NodeCosts",
    "Traffic",
    "fake_environment",
    "open_fake",
    "open_fake_cold",
]

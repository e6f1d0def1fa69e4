"""A simulated GPU and host for tests and ``--device fake``: events on virtual clocks, every figure marked SIMULATED."""

from microbench.gpu.fake.compute_costs import ComputeCosts, ProductLibrary, Tile
from microbench.gpu.fake.costs import FakeCosts, LayerCosts, Traffic
from microbench.gpu.fake.environment import FAKE_NAME, FAKE_UUID, GPUS_VARIABLE, fake_environment
from microbench.gpu.fake.gpu import FakeGpu, open_fake
from microbench.gpu.fake.graph_costs import CallCosts, GraphCosts, Line, NodeCosts
from microbench.gpu.fake.host import FakeColdStarts, FakeHost, open_fake_cold
from microbench.gpu.fake.link_costs import LinkCosts, PageCosts
from microbench.gpu.fake.memory_costs import BlockCosts, EngineCosts, LibraryCosts, MemoryCosts, Rates, ShapeCosts

__all__ = [
    "FAKE_NAME",
    "FAKE_UUID",
    "GPUS_VARIABLE",
    "BlockCosts",
    "CallCosts",
    "ComputeCosts",
    "EngineCosts",
    "FakeColdStarts",
    "FakeCosts",
    "FakeGpu",
    "FakeHost",
    "GraphCosts",
    "LayerCosts",
    "LibraryCosts",
    "Line",
    "LinkCosts",
    "MemoryCosts",
    "NodeCosts",
    "PageCosts",
    "ProductLibrary",
    "Rates",
    "ShapeCosts",
    "Tile",
    "Traffic",
    "fake_environment",
    "open_fake",
    "open_fake_cold",
]

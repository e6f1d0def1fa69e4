"""Updates a graph to a capture that is some nodes short of it: on a real GPU the driver refuses all but 0."""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.errors import Skip
from microbench.core.model import Fact, Metric
from microbench.experiments.graph.lives import Changes, graph_changes
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.timer import Meter

NODES = 6


def measure(gpu: Gpu, meter: Meter, nodes_short: int) -> Iterator[Measured]:
    if gpu.simulated:
        raise Skip("needs a driver")
    graph_changes(gpu, "exec_update", NODES, NODES, 1)
    changes = gpu._case.once(Changes, "exec_update", NODES)  # type: ignore[attr-defined]
    changes._count = NODES - nodes_short
    if nodes_short:
        changes._prepare = lambda: None
    graph_changes(gpu, "exec_update", NODES, NODES, 1)
    yield Fact("updated", True)


BENCHMARK = Benchmark(
    suite="graph",
    title="Topology",
    metrics=(Metric("none", "time", "s", "nothing is timed"),),
    axes={"nodes_short": Axis.same("nodes fewer than the graph has", (0, 1, 2), maximum=NODES)},
)

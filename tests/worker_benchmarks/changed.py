"""Changes a graph in ways of which a driver may refuse some."""

from collections.abc import Iterator
from functools import partial

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.experiments.graph.lives import Change, ChangeWay, graph_changes
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.sampling import Between
from microbench.meter.timer import Meter


def measure(gpu: Gpu, meter: Meter, way: ChangeWay) -> Iterator[Measured]:
    columns = {"change": Between(Change.RECORDED, Change.CHANGED)}
    yield from meter.collect_stamps(partial(graph_changes, gpu, way, 10, 10, 1), columns)


BENCHMARK = Benchmark(
    suite="graph",
    title="Changed",
    metrics=(Metric("change", "time", "s", "the call that changes the graph"),),
    axes={"way": Axis.same("how the graph changes", ("set_params", "exec_update", "rebuild"))},
)

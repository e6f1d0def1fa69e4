"""What does a CUDA Graph cost to make, and from how many nodes on?

Question
    How long do capture, explicit build, instantiate, upload, first launch, relaunch and destroy take the host, how long
    does the GPU need for a node, and how much memory does a graph take?
Method
    A straight line of empty kernels. Whole lives from a compiled loop, the host's clock read after each call: one graph
    captured and uploaded, one built node by node and launched without an upload. relaunch: bursts, the GPU idle before
    each. node: replays behind a gate, between two events. Memory: what free device memory and the process's own lose
    to many copies of the graph, all held at once, before the process makes any others. The lives are those of a
    program that makes graphs again and again: the driver reuses the memory of those before.
Reading
    A chain pays for itself after (capture + instantiate + upload) / (what a replay saves) replays. Each cost is a
    constant and a slope: the report fits both and shows how far the fit is off.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric, Param
from microbench.core.ops import Launch
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.graphs import Life, Made
from microbench.measure.sampling import Between
from microbench.measure.timer import Meter

REPLAYED_NODES = 2000
LINE_NODES = (10, 100, 1000)
COPIES_OF_NODES = 50_000
MOST_COPIES = 2000
MOST_REPLAYS = 200
FOOTPRINTS = 5

CAPTURED = {
    "capture": Between(Life.BEGIN, Life.MADE),
    "instantiate": Between(Life.MADE, Life.INSTANTIATED),
    "upload": Between(Life.INSTANTIATED, Life.UPLOADED),
    "ready": Between(Life.INSTANTIATED, Life.READY),
    "uploaded_launch": Between(Life.READY, Life.CALLED),
    "destroy": Between(Life.DONE, Life.DESTROYED),
}
BUILT = {
    "build": Between(Life.BEGIN, Life.MADE),
    "first_launch": Between(Life.INSTANTIATED, Life.CALLED),
    "first_replay": Between(Life.INSTANTIATED, Life.DONE),
}


def late(params: Mapping[str, Param]) -> bool:
    """Each count is a process of its own; these are enough for a line."""
    return params["nodes"] not in LINE_NODES


def measure(gpu: Gpu, meter: Meter, nodes: int) -> Iterator[Measured]:
    copies = max(min(COPIES_OF_NODES // nodes, MOST_COPIES), 1)
    taken = [gpu.graphs.footprint(nodes, copies) for _ in range(FOOTPRINTS)]
    yield meter.counted("device_memory", [one.device_bytes for one in taken])
    yield meter.counted("host_memory", [one.host_bytes for one in taken])
    plans: dict[Made, dict[str, Between]] = {"capture": CAPTURED, "build": BUILT}
    for made, columns in plans.items():
        yield from meter.collect_stamps(partial(gpu.graphs.lives, nodes, 1, made), columns)
    replay = gpu.bind(gpu.graph([Launch()] * nodes))
    yield meter.submit_time("relaunch", replay, per_call=False)
    replays = max(min(REPLAYED_NODES // nodes, MOST_REPLAYS), 1)
    yield meter.device_time("node", replay, replays, parts=nodes)


BENCHMARK = Benchmark(
    name="graph_lifecycle",
    suite="graph",
    title="What a graph costs to make",
    about=__doc__ or "",
    metrics=(
        Metric("capture", "time", "s", "from begin to end of a stream capture of the whole chain"),
        Metric("build", "time", "s", "the same graph made node by node, without a stream"),
        Metric("instantiate", "time", "s", "making the graph executable"),
        Metric("upload", "time", "s", "the upload call"),
        Metric("ready", "time", "s", "the upload call and a synchronise"),
        Metric("uploaded_launch", "time", "s", "the first launch call of a graph that was uploaded"),
        Metric("first_launch", "time", "s", "the first launch call of a graph that was not uploaded"),
        Metric("first_replay", "time", "s", "the same and a synchronise"),
        Metric("relaunch", "time", "s", "the launch call of a graph that has run before, in bursts"),
        Metric("node", "time", "s/launch", "GPU time of a replay, divided by its nodes"),
        Metric("destroy", "time", "s", "destroying the executable graph and the graph"),
        Metric("device_memory", "count", "B", "device memory that one executable graph takes"),
        Metric("host_memory", "count", "B", "host memory that one executable graph takes"),
    ),
    measure=measure,
    axes={
        "nodes": Axis(
            "empty kernels in a line",
            (100,),
            (1, 10, 100, 1000, 10_000),
            (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000),
            minimum=1,
            maximum=20_000,
        )
    },
    fresh_process_by=("nodes",),
    essential=True,
    late=late,
)

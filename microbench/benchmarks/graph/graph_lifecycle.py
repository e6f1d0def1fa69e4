"""What does it cost to make a graph, and how does that grow with its nodes?

Question
    How much host time do capture, explicit build, instantiate, upload, first launch, relaunch and destroy take, how
    long does the GPU need for a node, and how much memory does a graph take?
Method
    The graph is a straight line of empty kernels. A compiled loop makes, launches and destroys graphs and reads the
    host's clock after each call. One graph is captured and uploaded, another is built node by node and launched without
    an upload. relaunch: bursts, with the GPU idle before each. node: replays behind a gate, between two events. Memory:
    what many copies of the graph, all alive at once, take of the free device memory and add to the process's own
    memory. This is measured before the process makes any other graph, because the driver reuses the memory of destroyed
    graphs.
Reading
    A chain pays for itself after (capture + instantiate + upload) / (what a replay saves) replays. Each cost is a
    constant and a slope over the nodes; the report fits both and shows the misfit.
"""

from functools import partial

from microbench.experiments.graph.lives import Life, Made, graph_footprint, graph_lives
from microbench.meter.benchmark import Axis, Benchmark, Between, Gpu, Launch, Meter, Metric, Results

REPLAYED_NODES = 2000
LINE_NODES = (10, 100, 1000)  # are enough to fit a line
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


def measure(gpu: Gpu, meter: Meter, nodes: int) -> Results:
    copies = max(min(COPIES_OF_NODES // nodes, MOST_COPIES), 1)
    taken = [graph_footprint(gpu, nodes, copies) for _ in range(FOOTPRINTS)]
    yield meter.counted("device_memory", [one.device_bytes for one in taken])
    yield meter.counted("host_memory", [one.host_bytes for one in taken])
    plans: dict[Made, dict[str, Between]] = {"capture": CAPTURED, "build": BUILT}
    for made, columns in plans.items():
        yield from meter.collect_stamps(partial(graph_lives, gpu, nodes, 1, made), columns)
    replay = gpu.bind(gpu.graph([Launch()] * nodes))
    yield meter.submit_time("relaunch", replay, per_call=False)
    replays = max(min(REPLAYED_NODES // nodes, MOST_REPLAYS), 1)
    yield meter.device_time("node", replay, replays, parts=nodes)


BENCHMARK = Benchmark(
    title="What a graph costs to make",
    metrics=(
        Metric("capture", "time", "s", "from begin to end of a stream capture of the whole chain"),
        Metric("build", "time", "s", "the same graph built node by node, without a stream"),
        Metric("instantiate", "time", "s", "instantiating the executable graph"),
        Metric("upload", "time", "s", "the upload call"),
        Metric("ready", "time", "s", "the upload call with a synchronise"),
        Metric("uploaded_launch", "time", "s", "first launch call of an uploaded graph"),
        Metric("first_launch", "time", "s", "first launch call of a graph that was not uploaded"),
        Metric("first_replay", "time", "s", "the same with a synchronise"),
        Metric("relaunch", "time", "s", "launch call of a graph that has run before, in bursts"),
        Metric("node", "time", "s/launch", "GPU time of a replay, divided by its nodes"),
        Metric("destroy", "time", "s", "destroying the executable graph and the graph"),
        Metric("device_memory", "count", "B", "device memory that one executable graph takes"),
        Metric("host_memory", "count", "B", "host memory that one executable graph takes"),
    ),
    axes={
        "nodes": Axis.numbers(
            "empty kernels in the chain", "100", "1 10 100 1000 10000", "1 3 10 30 100 300 1000 3000 10000", least=1,
            most=20_000,
        )
    },
    own_process=lambda params: f"graph_lifecycle {params['nodes']}",
    core=True,
    late=lambda params: params["nodes"] not in LINE_NODES,
)  # fmt: skip

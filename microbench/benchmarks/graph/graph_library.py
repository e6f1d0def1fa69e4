"""What does it cost to make and to replay a graph through each Python library?

Question
    How long does a Python library take to capture n kernels and make a graph of them, how long does the first replay
    take, and what does every further replay cost the host?
Method
    The library captures, instantiates, uploads, replays and destroys graphs of empty kernels, one after another, by its
    own functions. Times of the first graph are dropped. replay: bursts of ten replays of one more graph, with the GPU
    idle before each burst; in longer bursts a call may wait for the GPU. Numba has no graphs, so cuda.bindings captures
    its calls. PyTorch's kernel is x + 1 on one element; its torch.cuda.graph also waits for the GPU and empties the
    allocator's cache (before 2.9 it collects garbage too), which is part of the capture. PyTorch has no upload call, so
    its first replay uploads. CuPy captures and instantiates by one call. The nodes of every graph are counted.
Reading
    graph_lifecycle has the driver's own costs: capture, instantiate and first_replay, and relaunch for replay. The rest
    is the library's. Compare make + first_replay, because libraries leave different parts of the work to the first
    replay.
"""

from functools import partial

from msgspec.structs import replace

from microbench.core.bench import Axis, Benchmark, always
from microbench.core.model import Fact
from microbench.experiments.graph.lives import Life, graph_layer_lives
from microbench.gpu.layers.base import layer_titles, package_of, process_of, spinning
from microbench.meter.benchmark import LOOP_LAYER, Between, Gpu, LayerCall, MeasurementError, Meter, Metric, Results

REPLAYS = 10
VERIFIED = "every graph has a node for each call"
WHOLE = {"make": Between(Life.BEGIN, Life.READY), "first_replay": Between(Life.READY, Life.DONE)}
PARTS = {
    "capture": Between(Life.BEGIN, Life.MADE),
    "instantiate": Between(Life.MADE, Life.INSTANTIATED),
}


def measure(gpu: Gpu, meter: Meter, submitter: str, nodes: int) -> Results:
    call = LayerCall(submitter, duration_ns=0)
    gpu.bind(call)
    first = graph_layer_lives(gpu, call, nodes, 1)
    columns = dict(WHOLE)
    if first[0, Life.MADE]:
        columns |= PARTS
    else:
        yield Fact("capture", None, "host clock", reason="the library captures and instantiates by one call")
    yield from meter.collect_stamps(partial(graph_layer_lives, gpu, call, nodes, 1), columns, verified=VERIFIED)
    kept = gpu.graph([call] * nodes)
    if kept.nodes != nodes:
        raise MeasurementError(f"{nodes} calls became a graph of {kept.nodes} nodes")
    yield replace(meter.submit_time("replay", gpu.bind(kept), per_call=False, calls=REPLAYS), verified=VERIFIED)


BENCHMARK = Benchmark(
    title="What a graph costs through a library",
    metrics=(
        Metric("make", "time", "s", "from the beginning of the capture until the graph can be replayed"),
        Metric("first_replay", "time", "s", "the first replay with a synchronise, and an upload if none came before"),
        Metric("replay", "time", "s", "the call of a further replay, in bursts"),
        Metric("capture", "time", "s", "of make: the capture of all calls"),
        Metric("instantiate", "time", "s", "of make: the library's instantiation"),
    ),
    axes={
        "submitter": Axis.same(
            "layer that makes and replays the graph",
            tuple(name for name in spinning() if name != LOOP_LAYER),
            labels=layer_titles(),
        ),
        "nodes": Axis("calls in the graph", (100,), (10, 100, 1000), (10, 100, 1000), minimum=1, maximum=10_000),
    },
    needs=lambda params: package_of(str(params["submitter"])),
    own_process=lambda params: process_of(str(params["submitter"])),
    late=always,
    version=2,
)

"""Does a graph gain more if kernels may run side by side?

Question
    The same kernels form one chain, or branches between a first and a last kernel, or are all independent. How long
    does a replay take, and how long does the same work take on one stream per branch, with events?
Method
    Kernels record their own begin and end. The graph is built node by node. The streams fork and join by events,
    submitted from a compiled loop; independent kernels need none. Graph and streams run in turn, with the same
    synchronise. The records show that every kernel ran, and that it began after the kernels it depends on had ended.
Reading
    Streams pay a launch for each kernel and two event calls for each branch, all from one thread; in a graph the GPU
    launches the branches. More branches help until the GPU cannot start kernels any faster. Streams share the driver's
    hardware queues (CUDA_DEVICE_MAX_CONNECTIONS, 8 unless set).
"""

import msgspec

from microbench.experiments.graph.chains import Shape, shaped_work
from microbench.meter.alternating import steps
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Params, Results

KERNELS = 64


def combines(params: Params) -> bool:
    """A chain has one branch, independent kernels have one each, and a fork has a number between these."""
    branches = int(params["branches"])
    fits = {"chain": branches == 1, "independent": branches == KERNELS, "fork_join": branches > 1}
    return fits[str(params["shape"])] and KERNELS % branches == 0


def measure(gpu: Gpu, meter: Meter, shape: str, branches: int, duration_ns: int) -> Results:
    shaped = shaped_work(gpu, Shape(branches, KERNELS // branches, shape == "fork_join", duration_ns))
    shaped.check()  # loads the code and checks the edges before anything is timed
    found = steps(meter, {"graph": (shaped.graph, 1), "streams": (shaped.streams, 1)})
    verified = shaped.check()
    for measurement in found:
        yield msgspec.structs.replace(measurement, verified=verified)
    yield meter.submit_time("graph_submit", shaped.graph, per_call=False)
    yield meter.submit_time("streams_submit", shaped.streams, per_call=False)


BENCHMARK = Benchmark(
    title="Branches in a graph and on streams",
    metrics=(
        Metric("graph", "time", "s", "one replay with a synchronise"),
        Metric("streams", "time", "s", "the same kernels on as many streams as branches, with a synchronise"),
        Metric("graph_submit", "time", "s", "host time to submit the replay"),
        Metric("streams_submit", "time", "s", "host time to submit the launches and event calls"),
    ),
    axes={
        "shape": Axis.same("how the kernels depend on each other", ("chain", "fork_join", "independent")),
        "branches": Axis(
            "parallel chains", (1, 8, KERNELS), (1, 2, 4, 8, 16, 32, KERNELS), (1, 2, 4, 8, 16, 32, KERNELS),
            minimum=1, maximum=KERNELS,
        ),
        "duration_ns": Axis("duration of a kernel", (5000,), (0, 5000), (0, 2000, 5000, 20_000), maximum=1_000_000),
    },
    combines=combines,
)  # fmt: skip

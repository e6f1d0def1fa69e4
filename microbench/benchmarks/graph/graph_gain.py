"""How much time per kernel does a chain take in a stream, and as a graph?

Question
    A step has n kernels and one synchronise. How much time per kernel does it take, launched into a stream and replayed
    as a graph, for different kernel durations and numbers of kernels?
Method
    Spin kernels have a calibrated length; profilers report about 0.6 us more for each. A step in the stream is n calls
    and a synchronise; a step as a graph is one replay and a synchronise. Both run in turn in one process, so that drift
    affects both. The calls come from a compiled loop, or from Python (steps of 10 and 100 kernels): cuda.core, CuPy,
    Numba and PyTorch, each with its own capture and replay (Numba has none and uses cuda.bindings). PyTorch's kernel is
    x + 1 on as many elements as take that long. Steps longer than 20 ms are left out, because only the kernels' own
    time matters there.
Reading
    The speed-up is stream / graph. In a stream a kernel costs the longer of submit and duration + gap; in a graph it
    costs duration + a shorter gap. Both share one launch and one completion among n kernels.
"""

from microbench.core.bench import Axis, Benchmark
from microbench.gpu.layers.base import layer_titles, package_of, process_of, spinning
from microbench.meter.alternating import steps
from microbench.meter.benchmark import LOOP_LAYER, Gpu, LayerCall, MeasurementError, Meter, Metric, Params, Results

LONGEST_STEP_NS = 20_000_000
PYTHON_KERNELS = (10, 100)
NANOSECONDS = (0, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 200_000)


def combines(params: Params) -> bool:
    """Steps of at most LONGEST_STEP_NS. Python only changes the stream's side, so two kernel counts are enough."""
    kernels, duration_ns = int(params["kernels"]), int(params["duration_ns"])
    from_python = params["submitter"] != LOOP_LAYER
    return kernels * duration_ns <= LONGEST_STEP_NS and (not from_python or kernels in PYTHON_KERNELS)


def measure(gpu: Gpu, meter: Meter, submitter: str, kernels: int, duration_ns: int) -> Results:
    call = LayerCall(submitter, duration_ns=duration_ns)
    stream = gpu.bind(call)
    captured = gpu.graph([call] * kernels)
    if captured.nodes != kernels:
        raise MeasurementError(f"{kernels} calls became a graph of {captured.nodes} nodes")
    ways = {"stream": (stream, kernels), "graph": (gpu.bind(captured), 1)}
    yield from steps(meter, ways, parts=kernels, verified="the graph has a node for each call")


BENCHMARK = Benchmark(
    title="What a graph gains",
    metrics=(
        Metric("stream", "time", "s/launch", "time per kernel, launched one by one, with one synchronise a step"),
        Metric("graph", "time", "s/launch", "time per kernel, replayed as one graph, with one synchronise a step"),
    ),
    axes={
        "submitter": Axis.same(
            "layer that submits the kernels and replays the graph", spinning(), labels=layer_titles()
        ),
        "kernels": Axis(
            "kernels of a step", (100,), (1, 10, 100, 1000), (1, 3, 10, 30, 100, 300, 1000), minimum=1, maximum=10_000
        ),
        "duration_ns": Axis(
            "duration of a kernel",
            (0, 2000, 10_000),
            NANOSECONDS,
            tuple(sorted((*NANOSECONDS, 500, 1500, 4000, 7000, 30_000, 100_000))),
            maximum=10_000_000,
        ),
    },
    needs=lambda params: package_of(str(params["submitter"])),
    own_process=lambda params: process_of(str(params["submitter"])),
    combines=combines,
    core=True,
    late=lambda params: params["submitter"] != LOOP_LAYER,  # the compiled loop shows the gain
)

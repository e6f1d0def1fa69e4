"""How much faster is a chain of kernels as a graph, and for which kernels?

Question
    What is the time per kernel of a step of n kernels and one synchronise, launched into a stream and replayed as a
    graph, as the kernels grow longer and the step longer?
Method
    Spin kernels of calibrated length. A step in the stream is n calls and a synchronise, a step of the graph one
    replay and a synchronise; both in turn in one process, so that drift is nobody's. The calls come from a compiled
    loop, or from Python (steps of 10 and of 100 kernels): cuda.core, CuPy and Numba, each captured and replayed by its
    own means (Numba has none: cuda.bindings). Steps of more than 20 ms are left out: there a kernel's own time is all.
Reading
    stream / graph is the speed-up. In a stream a kernel costs the longer of submit and duration + gap, in a graph
    duration + a shorter gap; both share launch and completion among n kernels.
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.errors import MeasurementError
from microbench.core.model import Metric, Param
from microbench.core.ops import LOOP_LAYER, LayerCall
from microbench.gpu.layers.base import spinning
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.alternating import steps
from microbench.measure.timer import Meter

LONGEST_STEP_NS = 20_000_000
PYTHON_KERNELS = (10, 100)
NANOSECONDS = (0, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 200_000)


def combines(params: Mapping[str, Param]) -> bool:
    """Steps of at most LONGEST_STEP_NS. Python changes the stream's side only, so two counts show it."""
    kernels, duration_ns = int(params["kernels"]), int(params["duration_ns"])
    from_python = params["submitter"] != LOOP_LAYER
    return kernels * duration_ns <= LONGEST_STEP_NS and (not from_python or kernels in PYTHON_KERNELS)


def late(params: Mapping[str, Param]) -> bool:
    """The compiled loop shows the gain; Python's own processes can wait."""
    return params["submitter"] != LOOP_LAYER


def measure(gpu: Gpu, meter: Meter, submitter: str, kernels: int, duration_ns: int) -> Iterator[Measured]:
    call = LayerCall(submitter, duration_ns=duration_ns)
    stream = gpu.bind(call)
    captured = gpu.graph([call] * kernels)
    if captured.nodes != kernels:
        raise MeasurementError(f"{kernels} calls became a graph of {captured.nodes} nodes")
    ways = {"stream": (stream, kernels), "graph": (gpu.bind(captured), 1)}
    yield from steps(meter, ways, parts=kernels, verified="the graph has a node for each call")


BENCHMARK = Benchmark(
    name="graph_gain",
    suite="graph",
    title="What a graph gains",
    about=__doc__ or "",
    metrics=(
        Metric("stream", "time", "s/launch", "time per kernel, launched one by one, one synchronise a step"),
        Metric("graph", "time", "s/launch", "time per kernel, replayed as one graph, one synchronise a step"),
    ),
    measure=measure,
    axes={
        "submitter": Axis(
            "who submits the kernels, and replays the graph",
            (LOOP_LAYER,),
            spinning(),
            spinning(),
        ),
        "kernels": Axis(
            "kernels in a step, and in a replay",
            (100,),
            (1, 10, 100, 1000),
            (1, 3, 10, 30, 100, 300, 1000),
            minimum=1,
            maximum=10_000,
        ),
        "duration_ns": Axis(
            "length of the kernel",
            (0, 2000, 10_000, 50_000),
            NANOSECONDS,
            tuple(sorted((*NANOSECONDS, 500, 1500, 4000, 7000, 30_000, 100_000))),
            maximum=10_000_000,
        ),
    },
    fresh_process_by=("submitter",),
    combines=combines,
    essential=True,
    late=late,
)

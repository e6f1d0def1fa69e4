"""What does Python add to a launch?

Question
    What does one call cost the host through each Python library, against the same launch from a compiled loop?
Method
    Two families that answer different questions. same_kernel: an empty kernel with 0 or 4 arguments (three
    pointers, one integer), launched through each way of launching a kernel of one's own; Numba, Triton and Warp
    compile theirs. one_op: x + 1 on one float32 element through an array library, which looks types up and
    allocates the result. A plain Python loop around the call and nothing else; each library in a process of its
    own; that a call is one kernel is checked by capture.
Reading
    submit less the compiled loop's is what the library adds. A kernel longer than submit hides it; shorter ones
    wait for Python.
"""

from collections.abc import Iterator, Mapping

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Case, Metric, Param
from microbench.core.ops import LOOP_LAYER, LayerCall
from microbench.gpu.layers.base import find_layer, layers
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.timer import Meter

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "same_kernel": (LOOP_LAYER, *(layer.name for layer in layers("same_kernel"))),
    "one_op": tuple(layer.name for layer in layers("one_op")),
}
ARGUMENTS: Mapping[str, tuple[int, ...]] = {"same_kernel": (0, 4), "one_op": (1,)}
# Each layer is a process of its own, and most of a quick run is the start of processes.
QUICK = ("loop", "cuda_bindings", "cuda_core", "cupy_raw", "numba_configured")
LAYERS = tuple(name for names in FAMILIES.values() for name in names)


def combines(params: Mapping[str, Param]) -> bool:
    """A layer belongs to one family, and the family says how many arguments there are."""
    family = str(params["family"])
    return params["layer"] in FAMILIES[family] and params["arguments"] in ARGUMENTS[family]


def environment(case: Case) -> dict[str, str]:
    """What the layer's file declares that its process needs."""
    name = str(case.params["layer"])
    return {} if name == LOOP_LAYER else dict(find_layer(name).environment)


def measure(gpu: Gpu, meter: Meter, family: str, layer: str, arguments: int) -> Iterator[Measured]:
    op = LayerCall(layer, arguments)
    submit = gpu.bind(op)
    yield meter.submit_time("submit", submit)
    yield meter.round_trip("round_trip", submit)
    yield gpu.layer_kernels(op)


BENCHMARK = Benchmark(
    name="launch_layers",
    suite="launch",
    title="What Python adds to a launch",
    about=__doc__ or "",
    metrics=(
        Metric("submit", "time", "s/launch", "one call on the host, in bursts"),
        Metric("round_trip", "time", "s", "one call and a synchronise"),
    ),
    measure=measure,
    axes={
        "family": Axis.same("same_kernel or one_op", tuple(FAMILIES)),
        "layer": Axis("the way of launching", QUICK, LAYERS, LAYERS),
        "arguments": Axis.same("arguments of the kernel", (0, 1, 4), maximum=4),
    },
    fresh_process_by=("layer",),
    process_environment=environment,
    combines=combines,
)

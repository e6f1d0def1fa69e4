"""What do Python libraries add to a launch: cuda.core, CuPy, CuTe DSL, Numba, TileLang, Triton, Warp, PyTorch, JAX?

Question
    What does one call through each Python library cost the host, compared with the same launch from a compiled loop?
Method
    Two families answer different questions. same_kernel: each way to launch a kernel of one's own launches an empty
    kernel with 0 or 4 arguments (three pointers and an integer); Numba, Triton, Warp, CuTe DSL and TileLang compile
    theirs. one_op: an array library computes x + 1 on one float32 element, with a type look-up and an allocation.
    A plain Python loop makes the calls and does nothing else. Each library has a process of its own. A stream capture
    checks that a call is one kernel. The compiled loop calls the driver (cuLaunchKernel); CUDA runtime is the same loop
    with cudaLaunchKernel, which <<<>>> in C++ becomes.
Reading
    The library's overhead is its submit less that of the compiled loop. Kernels that run longer than submit hide it;
    the GPU waits for Python between shorter ones.
"""

from typing import cast

from microbench.core.model import Case, Metric
from microbench.gpu.layers.base import ARGUMENTS, Family, find_layer, layer_titles, layers, package_of, process_of
from microbench.meter.benchmark import LOOP_LAYER, Axis, Benchmark, Gpu, LayerCall, Meter, Params, Results

FAMILIES: dict[Family, tuple[str, ...]] = {
    "same_kernel": (LOOP_LAYER, *(layer.name for layer in layers("same_kernel"))),
    "one_op": tuple(layer.name for layer in layers("one_op")),
}
LAYERS = tuple(name for names in FAMILIES.values() for name in names)
QUICK = tuple(name for name in LAYERS if name != "cuda_runtime")  # the quick grid compares Python layers


def combines(params: Params) -> bool:
    """Each layer belongs to one family, which decides the number of arguments."""
    family = cast(Family, params["family"])
    return params["layer"] in FAMILIES[family] and params["arguments"] in ARGUMENTS[family]


def environment(case: Case) -> dict[str, str]:
    """The environment variables that the layer's file declares."""
    name = str(case.params["layer"])
    return {} if name == LOOP_LAYER else dict(find_layer(name).environment)


def measure(gpu: Gpu, meter: Meter, family: str, layer: str, arguments: int) -> Results:
    op = LayerCall(layer, arguments)
    submit = gpu.bind(op)
    yield meter.submit_time("submit", submit)
    yield meter.round_trip("round_trip", submit)
    yield gpu.layer_kernels(op)


BENCHMARK = Benchmark(
    title="What Python adds to a launch",
    metrics=(
        Metric("submit", "time", "s/launch", "one call on the host, in bursts"),
        Metric("round_trip", "time", "s", "one call and a synchronise"),
    ),
    axes={
        "family": Axis.same("kind of comparison", tuple(FAMILIES)),
        "layer": Axis("library, or the compiled loop", QUICK, LAYERS, LAYERS, labels=layer_titles()),
        "arguments": Axis.same("arguments of the kernel", (0, 1, 4), maximum=4),
    },
    needs=lambda params: package_of(str(params["layer"])),
    own_process=lambda params: process_of(str(params["layer"])),
    core=True,
    process_environment=environment,
    combines=combines,
)

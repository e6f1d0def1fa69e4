"""How much host time do real PyTorch steps spend on each launch?

Question
    What does a launch cost the host in model code: a stack of Linear and GELU layers, transformer blocks, an optimizer
    step? How long does such a step take eagerly, compiled and as a CUDA graph?
Method
    The models are small, so that the GPU keeps up with the host. The submission of a step is timed with the GPU idle
    before it; the number of its launches is counted by capturing it into a torch.cuda.CUDAGraph. Steps with one
    synchronise are timed eagerly and as a replay, in turn. kernels: the durations that CUPTI records of an eager step's
    kernels. The replay's GPU time less kernels is the sum of the gaps between the kernels of model code. Results of
    graphs and of compiled steps are compared with an eager step's. torch.compile is measured with --full, each mode and
    model in a process of its own.
Reading
    The host time of a launch here less PyTorch's call in launch_layers is the time that modules, dispatch and Python
    take between two launches. predict uses it for programs without --host.
"""

from typing import get_args

import msgspec

from microbench.core.bench import Axis, Benchmark, always
from microbench.experiments.launch.models import model_step
from microbench.gpu.layers.base import package_of
from microbench.gpu.layers.torch_models import COMPILED, MODELS, CaptureTimes, Compiled, ModelName, TorchStep
from microbench.meter.alternating import steps
from microbench.meter.benchmark import NANOSECOND_S, Fact, Gpu, Meter, Metric, Params, Results, Skip

REPLAYS = 20
# torch.compile then compiles in the worker itself, so that nothing else runs while a step is measured.
COMPILES_HERE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def process(params: Params) -> str:
    """Eager models share a process; each compiled one has its own, whose first case may take long."""
    eager = params["compiled"] == "eager"
    return "models of torch" if eager else f"{params['model']} of torch, {params['compiled']}"


def measure(gpu: Gpu, meter: Meter, model: ModelName, compiled: Compiled) -> Results:
    step = model_step(gpu, model, compiled)
    verified = step.check()
    yield step.launches
    submit = meter.submit_time("submit", step.submit, per_call=False)
    yield msgspec.structs.replace(submit, verified=verified)
    launches = step.launches.value
    if isinstance(launches, int) and launches > 0:
        calls = submit.calls_per_sample * launches
        yield msgspec.structs.replace(submit, metric="launch_submit", calls_per_sample=calls, verified=verified)
    ways = {"eager": (step.submit, 1)} | ({} if step.graph is None else {"graph": (step.graph, 1)})
    yield from steps(meter, ways, verified=verified)
    if step.graph is None:
        return
    yield msgspec.structs.replace(meter.device_time("gpu", step.graph, REPLAYS), verified=verified)

    def capture() -> dict[str, float]:
        taken: CaptureTimes = step.capture()
        return {"capture": taken.calls_s, "make": taken.whole_s}

    yield from meter.collect_each(("capture", "make"), capture, verified=verified)
    yield from _kernels(meter, step, verified)


def _kernels(meter: Meter, step: TorchStep, verified: str) -> Results:
    """The durations of a step's kernels; a Fact says why they are unknown."""
    try:
        recorded, launches = len(step.profiled_ns()), step.launches.value
        if recorded != launches:
            raise Skip(f"CUPTI recorded {recorded} kernels of {launches} launches: the others are copies and memsets")
    except Skip as skip:
        yield Fact("kernels", None, source="CUPTI", reason=str(skip))
        return
    yield meter.collect(
        "kernels", lambda: (float(step.profiled_ns().sum()) * NANOSECOND_S,), clock="device", verified=verified,
        floor_s=meter.floors.event_step_s,
    )  # fmt: skip


BENCHMARK = Benchmark(
    title="What model code adds to a launch",
    metrics=(
        Metric("submit", "time", "s", "the host's time to submit one step"),
        Metric("launch_submit", "time", "s/launch", "the same for each kernel, copy and memset of the step"),
        Metric("eager", "time", "s", "one step with a synchronise"),
        Metric("graph", "time", "s", "one replay of the step as a graph, with a synchronise"),
        Metric("gpu", "time", "s", "the GPU's time for one replay, replays following one another"),
        Metric("kernels", "time", "s", "the sum of the eager step's kernel durations as profilers report them (CUPTI)"),
        Metric("capture", "time", "s", "the calls of the step, while they are captured"),
        Metric("make", "time", "s", "everything until the graph can run: capture and instantiation"),
    ),
    axes={
        "model": Axis.same("the model's step", get_args(ModelName), labels=MODELS),
        "compiled": Axis("how it is run", ("eager",), ("eager",), get_args(Compiled), labels=COMPILED),
    },
    needs=lambda params: package_of("torch_eager"),
    own_process=process,
    process_environment=lambda case: {} if case.params["compiled"] == "eager" else COMPILES_HERE,
    late=always,
)

"""What do XLA's command buffers gain for a jitted JAX step?

Question
    XLA replays parts of a jitted program as CUDA graphs (command buffers, on by default). How much time per kernel does
    a step of n kernels take with them and without them, and how long does the call keep the host busy?
Method
    One jitted function adds 1 to one number n times, with lax.optimization_barrier behind each addition, so that XLA
    cannot fuse them. It is compiled twice in one process: with xla_gpu_enable_command_buffer=FUSION and a minimum graph
    size of 1, and without command buffers. XLA's dump of each program must show n kernels, and only that of the first
    command buffers. Calls with one wait (block_until_ready) are timed in turn. output: each result gets new memory, or
    the argument is donated and the result takes its place.
Reading
    The gain is stream / graph; JAX's own call is part of both. A command buffer contains addresses: if each result gets
    new memory, XLA updates the graph before each replay. The two submit times are the host's part.
"""

from msgspec.structs import replace

from microbench.experiments.launch.models import jitted_step
from microbench.gpu.layers.base import find_layer, package_of
from microbench.gpu.layers.jax import OUTPUTS, Output
from microbench.meter.alternating import steps
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, always

LAYER = "jax_jit"


def measure(gpu: Gpu, meter: Meter, kernels: int, output: Output) -> Results:
    step = jitted_step(gpu, kernels, output)
    verified = step.check()
    ways = {"stream": step.stream, "graph": step.graph}
    yield from steps(meter, {name: (way, 1) for name, way in ways.items()}, parts=kernels, verified=verified)
    for name, way in ways.items():
        yield replace(meter.submit_time(f"{name}_submit", way, per_call=False), verified=verified)


BENCHMARK = Benchmark(
    title="What XLA's command buffers gain",
    metrics=(
        Metric("stream", "time", "s/launch", "time per kernel of a jitted step without command buffers"),
        Metric("graph", "time", "s/launch", "time per kernel of the same step with command buffers"),
        Metric("stream_submit", "time", "s", "the call of a step without command buffers, in bursts"),
        Metric("graph_submit", "time", "s", "the call of a step with command buffers, in bursts"),
    ),
    axes={
        "kernels": Axis("kernels of a step", (100,), (10, 100), (10, 100, 1000), minimum=1, maximum=1000),
        "output": Axis.same("where the result lies", tuple(OUTPUTS), labels=OUTPUTS),
    },
    needs=lambda params: package_of(LAYER),
    own_process=lambda params: "graph_jax",
    process_environment=lambda case: dict(find_layer(LAYER).environment),
    late=always,
)

"""What does moving a byte cost in energy?

Question
    How much power does the GPU draw while its memory is kept busy, and how many joules is that for each byte?
Method
    The same kernel back to back for two seconds, read between two steps of the GPU's energy counter (it moves every
    100 ms); idle: nothing for as long. The rate is that of the same two seconds.
Reading
    Power over rate. What idle draws is in it; the difference of two rows is what the bytes themselves cost.
"""

from collections.abc import Iterator
from typing import cast

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import StreamKernel
from microbench.measure.counters import power
from microbench.measure.memory import powered
from microbench.measure.timer import Meter

MIB, GIB = 1 << 20, 1 << 30
IDLE = "idle"
LOADS = (IDLE, "read", "write", "copy", "triad")


def measure(gpu: Gpu, meter: Meter, load: str, size_bytes: int) -> Iterator[Measured]:
    if load == IDLE:
        yield from power(meter, None, 1.0, 0)
    else:
        kernel = cast(StreamKernel, load)
        shapes = gpu.memory.shapes(kernel, "fp64", "cuda")
        yield from powered(meter, lambda shape: gpu.memory.stream(kernel, "fp64", "cuda", size_bytes, shape), shapes)


BENCHMARK = Benchmark(
    name="memory_energy",
    suite="memory",
    title="Energy of a byte",
    about=__doc__ or "",
    metrics=(
        Metric("power", "count", "W", "energy over time"),
        Metric("energy", "count", "J/B", "power over bytes read plus written a second"),
    ),
    measure=measure,
    axes={
        "size_bytes": Axis("bytes of each array", (GIB,), (GIB,), (16 * MIB, GIB), minimum=MIB, maximum=64 * GIB),
        "load": Axis("what runs", (), ("copy",), LOADS),
    },
)

"""How much energy does moving a byte cost?

Question
    How much power does the GPU draw while its memory is busy, and how many joules is that for each byte?
Method
    The same kernel runs back to back for two seconds, between two steps of the GPU's energy counter, which advances
    every 100 ms. idle waits for as long without work. The rate is measured in the same two seconds.
Reading
    Energy is power over rate and includes what an idle GPU draws. Subtract idle power first for the cost of the bytes
    themselves.
"""

from typing import cast

from microbench.experiments.memory.stream_libraries import StreamKernel
from microbench.experiments.memory.streams import fastest
from microbench.meter.benchmark import GIB, MIB, Axis, Benchmark, Gpu, Meter, Metric, Results
from microbench.meter.counters import power
from microbench.meter.transfers import verified, warm_s

IDLE = "idle"
LOADS = (IDLE, "read", "write", "copy", "triad")


def measure(gpu: Gpu, meter: Meter, load: str, size_bytes: int) -> Results:
    if load == IDLE:
        yield from power(meter, None, 1.0, 0)
    else:
        best, shape = fastest(gpu, meter, cast(StreamKernel, load), "fp64", "cuda", size_bytes)
        yield shape
        one_s = warm_s(best.submit)
        best.fresh()
        measured = list(power(meter, best.submit, one_s, best.size_bytes))
        yield from verified(measured, best.check())


BENCHMARK = Benchmark(
    title="Energy of a byte",
    metrics=(
        Metric("power", "count", "W", "mean power: energy over time"),
        Metric("energy", "count", "J/B", "energy for each byte read or written"),
    ),
    axes={
        "size_bytes": Axis("bytes of each array", (GIB,), (GIB,), (16 * MIB, GIB), minimum=MIB, maximum=64 * GIB),
        "load": Axis("kernel that runs; idle: none", (), ("copy",), LOADS),
    },
)

"""How finely can the host's clock measure?

Question
    What does one reading of the clock cost, and in which steps does the clock advance?
Method
    A compiled loop reads CLOCK_MONOTONIC with nothing between the readings.
Reading
    A sample that is only as long as a few readings says more about the clock than about the GPU.
"""

from microbench.meter.benchmark import Benchmark, Host, Meter, Metric, Results
from microbench.meter.sampling import NANOSECOND_S, clock_step_ns

READINGS = 10_000


def measure(host: Host, meter: Meter) -> Results:
    host.clock_stamps(READINGS)

    def whole() -> tuple[float]:
        stamps = host.clock_stamps(READINGS + 1)
        return (float(stamps[-1] - stamps[0]) * NANOSECOND_S,)

    def step() -> tuple[float, ...]:
        found_ns = clock_step_ns(host.clock_stamps(READINGS))
        return (found_ns * NANOSECOND_S,) if found_ns else ()

    yield meter.collect("call", whole, clock="host", calls=READINGS, floor_s=None)
    yield meter.collect("step", step, clock="counter")


BENCHMARK = Benchmark(
    title="The host's clock",
    gpus=0,
    metrics=(
        Metric("call", "time", "s", "one reading of the clock"),
        Metric("step", "time", "s", "the clock's step, from the differences of its readings"),
    ),
    core=True,
)

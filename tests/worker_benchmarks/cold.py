"""Can be measured once a process."""

import os
from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Fact, Metric
from microbench.meter.timer import Meter


def measure(cold: object, meter: Meter, what: str) -> Iterator[Measured]:
    yield meter.once("seconds", 0.5)
    yield Fact("process", os.getpid())
    yield Fact("device", type(cold).__name__)


BENCHMARK = Benchmark(
    suite="launch",
    title="Cold",
    metrics=(Metric("seconds", "time", "s", "made up"),),
    axes={"what": Axis.same("the act", ("first", "second"))},
    cold=True,
    minimum_rounds=2,
)

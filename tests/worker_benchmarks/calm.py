"""Does what it should."""

import os
import threading
from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Fact, Metric
from microbench.meter.timer import Meter


def measure(host: object, meter: Meter, size: int) -> Iterator[Measured]:
    yield meter.collect("seconds", lambda: [size * 1e-6], clock="host")
    yield Fact("process", os.getpid())
    yield Fact("threads", threading.active_count())


BENCHMARK = Benchmark(
    suite="host",
    title="Calm",
    metrics=(Metric("seconds", "time", "s", "made up"),),
    axes={"size": Axis("how much", (1, 2), (1, 2, 3), (1, 2, 3, 4), minimum=1, maximum=1000)},
    gpus=0,
)

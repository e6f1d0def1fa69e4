"""Needs a GPU, and shares its process."""

from collections.abc import Iterator

from msgspec.structs import replace
from worker_backend import TinyGpu

from microbench.core.bench import Benchmark, Measured
from microbench.core.model import Fact, Metric, Work
from microbench.meter.timer import Meter


def measure(gpu: TinyGpu, meter: Meter) -> Iterator[Measured]:
    yield replace(meter.collect("rate", lambda: [1e-6], clock="host"), work=Work(launches=1))
    yield Fact("opened", gpu.uuid)
    yield Fact("done", " ".join(gpu.done))


BENCHMARK = Benchmark(suite="launch", title="Warm", metrics=(Metric("rate", "rate", "1/s", "made up"),))

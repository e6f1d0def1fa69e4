"""Captures calls, of which some may not be made while a stream captures."""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.core.ops import Launch, Op, Query, SynchronizeIdle
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.timer import Meter

CALLS: dict[str, Op] = {"synchronize": SynchronizeIdle(), "query": Query(), "launch": Launch()}


def measure(gpu: Gpu, meter: Meter, call: str) -> Iterator[Measured]:
    yield meter.submit_time("before", gpu.bind(Launch()))
    yield meter.submit_time("replay", gpu.bind(gpu.graph([Launch(), CALLS[call]])))


BENCHMARK = Benchmark(
    suite="graph",
    title="Captured",
    metrics=(Metric("before", "time", "s", "a launch"), Metric("replay", "time", "s", "a replay")),
    axes={"call": Axis.same("what is captured behind a launch", tuple(CALLS))},
)

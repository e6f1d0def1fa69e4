"""What does a call cost that does nothing?

Question
    What do a compiled call, a compiled function called from Python, a ctypes call and a Python call cost?
Method
    The C library's abs(0) called from a compiled loop, from Python through numba and through ctypes; an empty
    Python function.
Reading
    The least that any Python library adds to a launch is a few of these.
"""

from collections.abc import Iterator

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Metric
from microbench.gpu.protocol.gpu import Host
from microbench.measure.timer import Meter

COUNTS = {"compiled": 100_000, "compiled_from_python": 2_000, "ctypes": 2_000, "python": 10_000}


def measure(host: Host, meter: Meter, how: str) -> Iterator[Measured]:
    count = COUNTS[how]
    host.call_s(how, count)
    yield meter.collect(
        "call",
        lambda: (host.call_s(how, count),),
        clock="host",
        calls=count,
        floor_s=meter.floors.timer_call_s,
    )


BENCHMARK = Benchmark(
    name="host_call",
    suite="host",
    title="Calls that do nothing",
    about=__doc__ or "",
    gpus=0,
    metrics=(Metric("call", "time", "s", "one call, the loop's step included"),),
    measure=measure,
    axes={"how": Axis.same("the way of calling", tuple(COUNTS))},
)

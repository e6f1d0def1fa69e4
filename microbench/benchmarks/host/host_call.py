"""What does a call that does nothing cost in Python, ctypes and compiled code?

Question
    How long do a call from compiled code, a call of a compiled function from Python, a ctypes call and a Python call
    take?
Method
    The C library's abs(0) is called from a compiled loop, from Python through numba, and through ctypes. The Python
    call is one of an empty Python function.
Reading
    Any Python library adds at least a few of these calls to a launch.
"""

from microbench.meter.benchmark import Axis, Benchmark, Host, Meter, Metric, Results

COUNTS = {"compiled": 100_000, "compiled_from_python": 2_000, "ctypes": 2_000, "python": 10_000}


def measure(host: Host, meter: Meter, how: str) -> Results:
    count = COUNTS[how]
    host.call_s(how, count)
    yield meter.collect("call", lambda: (host.call_s(how, count),), clock="host", calls=count)


BENCHMARK = Benchmark(
    title="Calls that do nothing",
    gpus=0,
    metrics=(Metric("call", "time", "s", "one call, including the loop's own step"),),
    axes={"how": Axis.same("kind of call", tuple(COUNTS))},
    core=True,
)

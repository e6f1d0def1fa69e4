"""How long must a kernel run for the GPU not to wait for the host?

Question
    How much time per kernel does a long stream of kernels take, as each kernel grows longer?
Method
    A compiled loop launches spin kernels of calibrated length. period: launches and one synchronise by the host's
    clock. gated: the same kernels queued behind a gate and timed by device events, which excludes submission. duration:
    the time between the begin and the end that such a kernel records.
Reading
    period = max(submit, duration + gap). Where period equals submit, launches limit the rate; where it equals gated,
    the kernels hide the launches.
"""

from microbench.meter.benchmark import Axis, Benchmark, Gpu, Launch, Metric, Results
from microbench.meter.timer import Meter, duration

SAMPLE_NS = 20_000_000
MOST_LAUNCHES = 500
MOST_GATED = 200
FEWEST = 10


def launches(duration_ns: int, most: int) -> int:
    """Launches of a sample: ``most``, or fewer where they would take longer than SAMPLE_NS."""
    return max(min(most, SAMPLE_NS // max(duration_ns, 1)), FEWEST)


def measure(gpu: Gpu, meter: Meter, duration_ns: int) -> Results:
    op = Launch(duration_ns=duration_ns)
    submit = gpu.bind(op)
    yield meter.throughput("period", submit, launches(duration_ns, MOST_LAUNCHES))
    yield meter.device_time("gated", submit, launches(duration_ns, MOST_GATED))
    yield duration(meter, "duration", op, launches(duration_ns, MOST_GATED))


NANOSECONDS = (0, 500, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 100_000)

BENCHMARK = Benchmark(
    title="Launch-bound kernel durations",
    metrics=(
        Metric("period", "time", "s/launch", "time per kernel in an open stream, including submission"),
        Metric("gated", "time", "s/launch", "time per kernel on the device, without submission"),
        Metric("duration", "time", "s", "time from begin to end that a kernel of that length records"),
    ),
    axes={
        "duration_ns": Axis(
            "duration of a kernel",
            (0, 1000, 2000, 3000, 5000, 10_000),
            NANOSECONDS,
            (*NANOSECONDS[:4], 2500, *NANOSECONDS[4:5], 3500, 4000, *NANOSECONDS[5:6], 7000, *NANOSECONDS[6:]),
            maximum=10_000_000,
        )
    },
    core=True,
)

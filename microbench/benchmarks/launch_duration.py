"""Below which kernel duration does the GPU wait for the host?

Question
    What is the time per kernel of a long stream of kernels, as each kernel grows longer?
Method
    Spin kernels of calibrated length from a compiled loop. period: launches and one synchronise on the host's
    clock, the queue open. gated: the same kernels queued behind a gate and timed by device events, so submission is
    excluded. duration: what such a kernel records of itself.
Reading
    period = max(submit, duration + gap). Where period lies on the submit plateau, launches cost; where it meets
    gated, they are hidden.
"""

from collections.abc import Iterator

from microbench.bench import Axis, Benchmark, Measured
from microbench.gpu.api import Gpu
from microbench.model import Metric
from microbench.ops import Launch
from microbench.sampling import NANOSECOND_S
from microbench.stats import FloatArray
from microbench.timing import Meter

SHORT_NS = 20_000
GATED_LAUNCHES = 200
RECORDED = 50


def measure(gpu: Gpu, meter: Meter, duration_ns: int) -> Iterator[Measured]:
    """See the module's text."""
    op = Launch(duration_ns=duration_ns)
    submit = gpu.bind(op)
    yield meter.throughput("period", submit, 500 if duration_ns < SHORT_NS else 200)
    yield meter.device_time("gated", submit, GATED_LAUNCHES)

    def durations() -> FloatArray:
        recorded = gpu.record(op, RECORDED, graph=False, gated=True)
        elapsed: FloatArray = (recorded.end_ns - recorded.start_ns) * NANOSECOND_S
        return elapsed

    step_s = gpu.record(op, RECORDED, graph=False, gated=True).step_ns * NANOSECOND_S
    yield meter.collect("duration", lambda: tuple(durations()), clock="device", resolution=step_s)


NANOSECONDS = (0, 500, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 100_000)

BENCHMARK = Benchmark(
    name="launch_duration",
    suite="launch",
    title="Where launches stop being hidden",
    about=__doc__ or "",
    metrics=(
        Metric("period", "time", "s/launch", "time per kernel in an open stream, submission included"),
        Metric("gated", "time", "s/launch", "time per kernel on the device alone"),
        Metric("duration", "time", "s", "what a kernel of that length records of itself"),
    ),
    measure=measure,
    axes={
        "duration_ns": Axis(
            "length of the kernel",
            (0, 1000, 2000, 3000, 5000, 10_000),
            NANOSECONDS,
            (*NANOSECONDS[:4], 2500, *NANOSECONDS[4:5], 3500, 4000, *NANOSECONDS[5:6], 7000, *NANOSECONDS[6:]),
            maximum=100_000_000,
        )
    },
)

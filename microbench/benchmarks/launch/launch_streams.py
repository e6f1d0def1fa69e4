"""What do more streams gain?

Question
    How many launches a second reach the GPU from one thread over several streams, and how many kernels are resident
    at once?
Method
    rate: a compiled loop launches empty kernels, each into the next stream, and then waits for all streams. resident:
    one-block kernels of 1 ms, one a stream and all behind one gate, count themselves in and out.
Reading
    More streams hardly raise the submission rate of one thread. They raise the number of kernels that run side by side.
"""

from functools import partial

from microbench.experiments.launch.exchanges import resident, round_robin_ns
from microbench.meter.benchmark import Axis, Benchmark, Gpu, Meter, Metric, Results, Work

LAUNCHES = 400
RESIDENT_NS = 1_000_000


def measure(gpu: Gpu, meter: Meter, streams: int) -> Results:
    rounds_ns = partial(round_robin_ns, gpu, streams, LAUNCHES)
    rounds_ns()
    yield meter.host_ns("rate", rounds_ns, calls=LAUNCHES, work=Work(launches=1))
    counted = "counted by the kernels themselves"
    yield meter.collect(
        "resident", lambda: (float(resident(gpu, streams, RESIDENT_NS)),), clock="counter", verified=counted
    )


BENCHMARK = Benchmark(
    title="One thread, many streams",
    metrics=(
        Metric("rate", "rate", "1/s", "launches a second, including the wait for all streams"),
        Metric("resident", "count", "launch", "most kernels resident at once"),
    ),
    axes={
        "streams": Axis.numbers(
            "streams used in turn", "1 8 32", "1 2 8 32 128", "1 2 4 8 16 32 64 128", least=1, most=1024
        )
    },
)

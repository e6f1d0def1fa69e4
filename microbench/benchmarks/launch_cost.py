"""What does it cost to launch one kernel, and which part of it?

Question
    How long is the host busy with a launch, when does the kernel start, when does the host learn that it ended, and
    what lies between two kernels?
Method
    An empty kernel, one block of 32 threads, launched by cuLaunchKernel from a compiled loop. submit: bursts far
    under the queue depth, the GPU idle before each. start, complete and round trip: one launch and one synchronise
    at a time, while a second, pinned thread watches the flag that the kernel writes to host memory as its first
    act. Gaps: kernels behind a gate that stamp their own start and end.
Reading
    round trip = start + complete. A program that synchronises after each kernel pays the round trip; one that
    queues kernels pays submit or the gap, whichever is longer.
"""

from collections.abc import Iterator

import numpy as np

from microbench.bench import Benchmark, Measured
from microbench.gpu.api import Gpu
from microbench.model import Metric
from microbench.ops import Launch
from microbench.sampling import NANOSECOND_S, Between, seconds
from microbench.timing import Meter

STAMPS = 50
LAUNCHES = 1000


def measure(gpu: Gpu, meter: Meter) -> Iterator[Measured]:
    """See the module's text."""
    submit = gpu.bind(Launch())
    yield meter.submit_time("submit", submit)
    gpu.start_stamps(STAMPS)
    echo = meter.collect_stamps(lambda: gpu.flag_round_trips(STAMPS), {"flag_round_trip": seconds})[0]
    (read,) = meter.collect_stamps(
        lambda: gpu.host_read_ns(2), {"host_read": seconds}, clock="device", resolution=NANOSECOND_S
    )
    way_back_s = float(np.median(echo.values)) - float(np.median(read.values))
    yield from meter.collect_stamps(
        lambda: gpu.start_stamps(STAMPS),
        {
            "start": Between(0, 2),
            "start_estimate": Between(0, 2, way_back_s),
            "complete": Between(2, 3),
            "round_trip": Between(0, 3),
        },
    )
    yield meter.gap("gap_stream", Launch())
    yield meter.gap("gap_graph", Launch(), graph=True)
    yield meter.throughput("throughput", submit, LAUNCHES)
    yield echo
    yield read


BENCHMARK = Benchmark(
    name="launch_cost",
    suite="launch",
    title="The cost of one launch",
    about=__doc__ or "",
    metrics=(
        Metric("submit", "time", "s/launch", "the launch call on the host, t1 - t0, in bursts"),
        Metric("start", "time", "s", "from before the call until the host sees the flag that the kernel writes first"),
        Metric("start_estimate", "time", "s", "estimate: start less (flag round trip - host read)"),
        Metric("complete", "time", "s", "from the flag seen until the synchronise call returns"),
        Metric("round_trip", "time", "s", "launch and synchronise: start + complete"),
        Metric("gap_stream", "time", "s/launch", "GPU time between two kernels of a stream, queued behind a gate"),
        Metric("gap_graph", "time", "s/launch", "GPU time between two kernel nodes of a graph that form a chain"),
        Metric("throughput", "time", "s/launch", f"{LAUNCHES} launches and one synchronise, divided by {LAUNCHES}"),
        Metric("flag_round_trip", "time", "s", "host writes a flag, the running GPU answers, the host sees it"),
        Metric("host_read", "time", "s", "one dependent read of host memory by a GPU thread, 1 MiB in random order"),
    ),
    measure=measure,
)

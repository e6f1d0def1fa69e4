"""What does it cost to launch one kernel, and where does the time go?

Question
    How long is the host busy with a launch, when does the kernel start, when does the host learn that it ended, and
    how long is the GPU idle between two kernels?
Method
    cuLaunchKernel launches an empty kernel of one block of 32 threads from a compiled loop. submit: bursts far below
    the queue depth, with the GPU idle before each. start, complete and round trip: one launch and one synchronise at a
    time, while a second, pinned thread watches a flag that the kernel writes to host memory as its first act. Gaps:
    kernels behind a gate stamp their own start and end.
Reading
    round trip = start + complete. A program that synchronises after each kernel pays the round trip. One that queues
    kernels pays submit or the gap, whichever is longer.
"""

from collections.abc import Iterator

import numpy as np

from microbench.core.bench import Benchmark, Measured
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Metric
from microbench.core.ops import Launch
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.sampling import NANOSECOND_S, Between, seconds
from microbench.measure.timer import Meter, gap

STAMPS = 50
LAUNCHES = 1000


def watched(gpu: Gpu, meter: Meter) -> Iterator[Measured]:
    """Times at which a second thread sees the kernel's flag. Raises Skip without a CPU for that thread."""
    gpu.start_stamps(STAMPS)
    columns = {"start": Between(0, 2), "complete": Between(2, 3), "round_trip": Between(0, 3)}
    try:
        (echo,) = meter.collect_stamps(lambda: gpu.flag_round_trips(STAMPS), {"flag_round_trip": seconds})
    except MeasurementError as error:  # a driver that batches launches answers too late; the rest is valid
        yield from meter.collect_stamps(lambda: gpu.start_stamps(STAMPS), columns)
        yield Fact("flag_round_trip", None, reason=str(error))
        return
    (read,) = meter.collect_stamps(
        lambda: gpu.host_read_ns(2), {"host_read": seconds}, clock="device", resolution=NANOSECOND_S
    )
    way_back_s = float(np.median(echo.values)) - float(np.median(read.values))
    columns["start_estimate"] = Between(0, 2, way_back_s)
    yield from meter.collect_stamps(lambda: gpu.start_stamps(STAMPS), columns)
    yield echo
    yield read


def measure(gpu: Gpu, meter: Meter) -> Iterator[Measured]:
    submit = gpu.bind(Launch())
    yield meter.submit_time("submit", submit)
    try:
        yield from watched(gpu, meter)
    except Skip as skip:
        yield meter.round_trip("round_trip", submit)
        yield Fact("start", None, reason=str(skip))
    yield gap(meter, "gap_stream", Launch())
    yield gap(meter, "gap_graph", Launch(), graph=True)
    yield meter.throughput("throughput", submit, LAUNCHES)


BENCHMARK = Benchmark(
    title="The cost of one launch",
    metrics=(
        Metric("submit", "time", "s/launch", "the launch call on the host, t1 - t0, in bursts"),
        Metric("start", "time", "s", "from before the call until the host sees the flag that the kernel writes first"),
        Metric("start_estimate", "time", "s", "estimate: start - (flag round trip - host read)"),
        Metric("complete", "time", "s", "from the host seeing the flag until the synchronise call returns"),
        Metric("round_trip", "time", "s", "launch and synchronise: start + complete"),
        Metric("gap_stream", "time", "s/launch", "GPU time between two kernels of a stream, queued behind a gate"),
        Metric("gap_graph", "time", "s/launch", "GPU time between two kernel nodes of a chain in a graph"),
        Metric("throughput", "time", "s/launch", f"{LAUNCHES} launches and one synchronise, divided by {LAUNCHES}"),
        Metric("flag_round_trip", "time", "s", "the host writes a flag, a running kernel answers, the host sees it"),
        Metric(
            "host_read", "time", "s", "one dependent read of host memory by a GPU thread, over 1 MiB in random order"
        ),
    ),
    measure=measure,
    core=True,
)

"""What does it cost to launch one kernel, and where does the time go?

Question
    How long is the host busy with a launch, when does the kernel start, and when does the host learn that it ended?
Method
    cuLaunchKernel launches an empty kernel of one block of 32 threads from a compiled loop. submit: bursts far below
    the queue depth, with the GPU idle before each. start, complete and round trip: one launch and one synchronise at a
    time, while a second, pinned thread watches a flag that the kernel writes to host memory as its first act. to_kernel
    and from_kernel: the kernel stamps its begin and end by %globaltimer. Exchanges of flags between host and GPU give
    the offset of that timer from the host's clock; the fact clock_tie_ns bounds the error of the offset.
Reading
    round trip = start + complete. The flag needs about 0.9 us to reach the host, so to_kernel is shorter than start. A
    program that synchronises after each kernel pays the round trip. One that queues kernels pays submit or the gap
    between kernels (launch_gap), whichever is longer.
"""

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.launch.exchanges import flag_round_trips, host_read_ns, launch_stamps, start_stamps
from microbench.meter.benchmark import Benchmark, Fact, Gpu, IntArray, Launch, Meter, Metric, Results
from microbench.meter.sampling import NANOSECOND_S, Between, seconds

STAMPS = 50
LAUNCHES = 1000


def watched(gpu: Gpu, meter: Meter) -> Results:
    """Times at which a second thread sees the kernel's flag. Raises Skip without a CPU for that thread."""
    start_stamps(gpu, STAMPS)
    columns = {"start": Between(0, 2), "complete": Between(2, 3), "round_trip": Between(0, 3)}
    try:
        (echo,) = meter.collect_stamps(lambda: flag_round_trips(gpu, STAMPS), {"flag_round_trip": seconds})
    except MeasurementError as error:  # a driver that batches launches answers too late; the rest is valid
        yield from meter.collect_stamps(lambda: start_stamps(gpu, STAMPS), columns)
        yield Fact("flag_round_trip", None, reason=str(error))
        return
    (read,) = meter.collect_stamps(
        lambda: host_read_ns(gpu, 2), {"host_read": seconds}, clock="device", resolution=NANOSECOND_S
    )
    yield from meter.collect_stamps(lambda: start_stamps(gpu, STAMPS), columns)
    yield echo
    yield read


def tied(gpu: Gpu, meter: Meter) -> Results:
    """Times until the kernel's first instruction and from its last one, by its stamps on the host's clock."""
    round_trips_ns: list[int] = []

    def stamps() -> IntArray:
        launched = launch_stamps(gpu, STAMPS)
        round_trips_ns.append(launched.round_trip_ns)
        return launched.stamps

    yield from meter.collect_stamps(stamps, {"to_kernel": Between(0, 2), "from_kernel": Between(3, 4)})
    yield Fact(
        "clock_tie_ns", round(float(np.median(round_trips_ns)) / 2), source="half the quickest exchange of flags"
    )


def measure(gpu: Gpu, meter: Meter) -> Results:
    submit = gpu.bind(Launch())
    yield meter.submit_time("submit", submit)
    try:
        yield from watched(gpu, meter)
    except Skip as skip:
        yield meter.round_trip("round_trip", submit)
        yield Fact("start", None, reason=str(skip))
    yield from tied(gpu, meter)
    yield meter.throughput("throughput", submit, LAUNCHES)


BENCHMARK = Benchmark(
    title="The cost of one launch",
    metrics=(
        Metric("submit", "time", "s/launch", "the launch call on the host, t1 - t0, in bursts"),
        Metric("start", "time", "s", "from before the call until the host sees the flag that the kernel writes first"),
        Metric("to_kernel", "time", "s", "from before the call until the kernel's first instruction, by its own stamp"),
        Metric("complete", "time", "s", "from the host seeing the flag until the synchronise call returns"),
        Metric("round_trip", "time", "s", "launch and synchronise: start + complete"),
        Metric("from_kernel", "time", "s", "from the kernel's last instruction until the synchronise call returns"),
        Metric("throughput", "time", "s/launch", f"{LAUNCHES} launches and one synchronise, divided by {LAUNCHES}"),
        Metric("flag_round_trip", "time", "s", "the host writes a flag, a running kernel answers, the host sees it"),
        Metric(
            "host_read", "time", "s", "one dependent read of host memory by a GPU thread, over 1 MiB in random order"
        ),
    ),
    version=2,
    core=True,
)

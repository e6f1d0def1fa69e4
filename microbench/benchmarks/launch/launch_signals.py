"""What does a signal inside a stream cost: to another stream, to the host and back?

Question
    An event of another stream, a host function, or a word in host memory that the stream writes or waits for comes
    between two kernels. How long after the first kernel does the second one begin? How much of that is the way to the
    host and back?
Method
    One pair of kernels runs at a time. The first spins for 50 us, so that all calls have been made before it ends. Both
    stamp their begin and end by %globaltimer, converted to the host's clock as in launch_cost. A compiled loop polls
    the written word and answers at once (write_wait), or writes the word that the stream waits for 40 us after the
    first kernel (wait_32, wait_64). wait_ready waits for a value that is there already.
Reading
    same_stream is the gap without a signal. between = to_host + the host's own time + from_host. The fact clock_tie_ns
    bounds the error of to_host and from_host, not that of between. Compare with two other ways to the host and back in
    launch_cost: to synchronise and launch again (from_kernel + to_kernel), and a flag that a running kernel answers
    (flag_round_trip).
"""

from collections.abc import Mapping
from typing import get_args

import msgspec
import numpy as np

from microbench.core.bench import Axis, Benchmark, always
from microbench.experiments.launch.stream_signals import SignalWay, stream_signals
from microbench.meter.benchmark import NANOSECOND_S, Between, Fact, Gpu, IntArray, Meter, Metric, Results

PAIRS = 50
QUICK = ("same_stream", "event", "host_function", "write_wait")
DEFAULT = ("same_stream", "event", "event_timed", "host_function", "write_32", "wait_ready", "wait_32", "write_wait")
# Columns of SignalStamps.
BETWEEN, TO_HOST, FROM_HOST = Between(1, 2), Between(1, 3), Between(4, 2)


def intervals(way: str) -> Mapping[str, Between]:
    """The metrics of a way, as intervals between its stamps."""
    if way in ("wait_32", "wait_64"):  # the total time depends on when the host answers
        return {"from_host": FROM_HOST}
    to_host = {"to_host": TO_HOST} if way == "host_function" or way.startswith("write") else {}
    from_host = {"from_host": FROM_HOST} if way in ("host_function", "write_wait") else {}
    return {"between": BETWEEN, **to_host, **from_host}


def measure(gpu: Gpu, meter: Meter, way: SignalWay) -> Results:
    wanted = intervals(way)
    step_s = stream_signals(gpu, way, PAIRS).step_ns * NANOSECOND_S
    round_trips_ns: list[int] = []

    def stamps() -> IntArray:
        signals = stream_signals(gpu, way, PAIRS)
        round_trips_ns.append(signals.round_trip_ns)
        return signals.stamps

    for measured in meter.collect_stamps(stamps, wanted, verified="stamps show that each kernel waited for its signal"):
        own = {"clock": "device", "floor_s": step_s, "resolution": step_s} if measured.metric == "between" else {}
        yield msgspec.structs.replace(measured, **own)
    if wanted.keys() != {"between"}:
        error_ns = round(float(np.median(round_trips_ns)) / 2)
        yield Fact("clock_tie_ns", error_ns, source="half the quickest exchange of flags")


BENCHMARK = Benchmark(
    title="Signals inside streams",
    metrics=(
        Metric("between", "time", "s", "from the first kernel's last instruction to the second one's first"),
        Metric("to_host", "time", "s", "from the first kernel's last instruction until the host sees its signal"),
        Metric("from_host", "time", "s", "from the host's answer until the second kernel's first instruction"),
    ),
    axes={"way": Axis("what stands between two kernels", QUICK, DEFAULT, get_args(SignalWay))},
    late=always,
)

"""How fast is each direction while the other one is busy?

Question
    At which rate does the link move data each way, and in total, if it moves data both ways at once?
Method
    Pinned copies run in two streams, one for each direction, from a common start behind a gate. The direction that is
    not measured copies twice as often, so that the measured one is never alone. The sum counts only what was moved
    while both were busy. Both destinations are compared with their sources at the end.
Reading
    Read requests travel in the same direction as the data of writes, so the sum stays slightly below twice one
    direction. A sum of little more than one direction means that the link, or a memory behind it, serves the directions
    in turn.
"""

import msgspec
import numpy as np

from microbench.experiments.link.concurrent import duplex_copies
from microbench.experiments.link.copies import others_busy
from microbench.gpu.protocol.gpu import Direction, FloatArray
from microbench.meter.benchmark import NANOSECOND_S, Axis, Benchmark, Gpu, Meter, Metric, Results, Sample, Work
from microbench.meter.transfers import MOST_QUEUED, SAMPLE_S, verified

FEWEST_COPIES = 4


def measure(gpu: Gpu, meter: Meter, direction: Direction, size_bytes: int) -> Results:
    """``bandwidth`` is one direction's rate while the other moves twice as much, ``sum_bandwidth`` the rate of both.

    The sum counts the copies until the first direction ends, because both are busy until then. A sample of it is the
    time that ``count`` copies of ``2 * size_bytes`` take at that rate.
    """
    duplex = duplex_copies(gpu, size_bytes)
    ends = None
    for _ in range(3):
        ends = duplex.ends_s(1, 2) or ends
    one_s = float(ends[0][-1]) if ends else SAMPLE_S
    count = min(max(round(SAMPLE_S / max(one_s, NANOSECOND_S)), FEWEST_COPIES), MOST_QUEUED // 4)
    measured_h2d = direction == "h2d"
    counts = (count, 2 * count) if measured_h2d else (2 * count, count)
    busy: list[bool] = []

    def take() -> Sample:
        ends = duplex.ends_s(*counts)
        if ends is None:
            return {}
        mine, others = ends if measured_h2d else ends[::-1]
        busy.append(bool(others[-1] >= mine[-1]))
        window_s = min(float(mine[-1]), float(others[-1]))
        copies = _copies_until(mine, window_s) + _copies_until(others, window_s)
        return {"bandwidth": float(mine[-1]), "sum_bandwidth": window_s * 2 * count / copies}

    duplex.fresh()
    metrics, floor_s = ("bandwidth", "sum_bandwidth"), meter.floors.event_pair_s
    first, second = meter.collect_each(metrics, take, clock="device", calls=count, floor_s=floor_s)
    first = msgspec.structs.replace(first, work=Work(bytes=size_bytes), bound=f"pcie_{direction}")
    second = msgspec.structs.replace(second, work=Work(bytes=2 * size_bytes), bound="pcie_both")
    yield from verified([first, second], duplex.check())
    yield others_busy(busy)


def _copies_until(ends_s: FloatArray, moment_s: float) -> float:
    """How many copies had ended by a moment; the copy in progress counts by its share."""
    return float(np.interp(moment_s, np.concatenate(([0.0], ends_s)), np.arange(len(ends_s) + 1)))


BENCHMARK = Benchmark(
    title="Both directions at once",
    metrics=(
        Metric("bandwidth", "rate", "B/s", "bytes of this direction over its time while the other direction is busy"),
        Metric("sum_bandwidth", "rate", "B/s", "bytes of both directions over the time in which both are busy"),
    ),
    axes={
        "direction": Axis.same("measured direction", ("h2d", "d2h")),
        "size_bytes": Axis.sizes("bytes of a copy", "64 MiB", "64 MiB", "16 64 512 MiB", least="64 B", most="16 GiB"),
    },
    core=True,
)

"""How long does one dependent read take from each level?

Question
    How long does a load take whose result the next load needs: from shared memory, L1, L2 and DRAM, with and without a
    TLB miss?
Method
    Each line of a set holds the address of the next one, in random order; one thread reads all lines before it reads
    one again. Both clocks (clock64 and %globaltimer) are read at the first and the last read. A set that fits the SM's
    own cache is read once before. One SM also reads each line of sets in the L2 several times, past the L1: lines in
    the near part of the L2 answer sooner than those in the far part.
Reading
    A step up is the next level, or the end of a TLB's reach: large sets spread the same number of lines over more
    pages. At another SM clock a load from shared memory or a cache takes the same number of cycles, but another number
    of nanoseconds.
"""

from typing import NamedTuple

import numpy as np

from microbench.core.bench import KIB, MIB, Axis, Benchmark
from microbench.experiments.memory.chase import READS, LocalChase, chase, chase_latency
from microbench.experiments.memory.levels import Space, answering_level
from microbench.gpu.protocol.gpu import FloatArray
from microbench.meter.benchmark import Fact, Gpu, Measurement, Meter, Metric, Results, verified
from microbench.meter.sampling import per_call_distribution, stored

SHARED_BYTES = (16 * KIB, 32 * KIB)  # shared memory is equally fast at every size
# Single lines are timed where the set is surely larger than an L1 and has few lines.
LINES_FROM_BYTES, LINES_TO_BYTES = 4 * MIB, 16 * MIB
LINE_REPEATS = 11
# Latencies of an L2's lines are close together: this ratio gives about 24 bins from the nearest to the farthest line.
LINES_RATIO = 1.01
# Two modes are distinct if neither is tiny and if the values half way between them are fewer than VALLEY_SHARE of those
# around the smaller mode (distance alone would accept evenly spread values). Each of the three places is a window of
# VALLEY_WIDTH of the distance, which must hold at least SMALLEST_WIDTH cycles.
SMALLEST_SHARE = 0.05
SMALLEST_WIDTH = 2.0
VALLEY_SHARE = 0.5
VALLEY_WIDTH = 1 / 3


def measure(gpu: Gpu, meter: Meter, space: Space, footprint_bytes: int) -> Results:
    walk = chase(gpu, space, footprint_bytes)
    yield from chase_latency(meter, walk)
    in_l2 = answering_level(gpu, footprint_bytes) == "l2"
    if space == "global" and in_l2 and LINES_FROM_BYTES <= footprint_bytes <= LINES_TO_BYTES:
        yield from line_latencies(walk)


class Modes(NamedTuple):
    """Two groups of values: their means, and the share of the values in the lower group."""

    near: float
    far: float
    near_share: float


def two_modes(values: FloatArray) -> Modes | None:
    """The two groups of values with the least spread inside them (Otsu's threshold); None if they are not distinct.

    Source: N. Otsu, A threshold selection method from gray-level histograms, IEEE Trans. SMC 9 (1979).
    """
    ordered = np.sort(values.astype(np.float64))
    count = len(ordered)
    if count < 2 / SMALLEST_SHARE:
        return None
    sizes = np.arange(1, count)
    sums = np.cumsum(ordered)[:-1]
    near, far = sums / sizes, (ordered.sum() - sums) / (count - sizes)
    best = int(np.argmax(sizes * (count - sizes) * (far - near) ** 2))
    share, width = (best + 1) / count, (far[best] - near[best]) * VALLEY_WIDTH
    places = (near[best], (near[best] + far[best]) / 2, far[best])
    around = [np.count_nonzero(np.abs(ordered - place) <= width / 2) for place in places]
    if width < SMALLEST_WIDTH or min(share, 1 - share) < SMALLEST_SHARE:
        return None
    if around[1] >= VALLEY_SHARE * min(around[0], around[2]):
        return None
    return Modes(float(near[best]), float(far[best]), share)


def line_latencies(chase: LocalChase) -> Results:
    """Metric ``line_cycles``: the latency of the lines of a set in the L2 from one SM; facts tell its two modes.

    A sample is the mean over all lines, each read once; the distribution is that of the medians of the lines.
    """
    stamped, walk = chase.lines_cycles(LINE_REPEATS), chase.walk(READS)
    cycles = stamped - stamped.mean() + walk.cycles / READS
    lines: FloatArray = np.median(cycles, axis=0)
    samples, each = stored(cycles.mean(axis=1).tolist()), per_call_distribution(lines, LINES_RATIO)
    measured = Measurement("line_cycles", "device", samples, len(cycles), per_call=each)
    yield from verified([measured], "every walk ended at its line")
    modes, source = two_modes(lines), f"the median of {LINE_REPEATS} reads of each of {len(lines)} lines"
    yield Fact("l2_modes", 2 if modes else 1, source=source)
    if modes is not None:
        yield Fact("l2_near", round(modes.near, 1), source=source, unit="cycle")
        yield Fact("l2_far", round(modes.far, 1), source=source, unit="cycle")
        yield Fact("l2_near_share", round(modes.near_share, 3), source=source, unit="1")


BENCHMARK = Benchmark(
    title="Latency of each level",
    metrics=(
        Metric("latency", "time", "s", "one dependent read; percentiles of single reads, less the cost of stamps"),
        Metric("cycles", "time", "cycle", "one dependent read in clock cycles of the SM"),
        Metric("line_cycles", "time", "cycle", "one line of a set in the L2, read past the L1: mean over all lines"),
    ),
    axes={
        "space": Axis.same("memory that holds the lines", ("shared", "global")),
        "footprint_bytes": Axis.sizes(
            "bytes over which the lines are spread",
            "16 KiB 8 256 MiB",
            "16 64 128 192 256 512 KiB 1 4 8 16 24 32 48 64 128 256 MiB 1 4 16 GiB",
            "16 32 64 96 128 160 192 224 256 384 512 KiB "
            "1 2 4 6 8 12 16 20 24 28 32 40 48 64 96 128 256 512 MiB 1 2 4 8 16 32 64 GiB",
            least="1 KiB",
            most="256 GiB",
        ),
    },
    combines=lambda params: params["space"] == "global" or params["footprint_bytes"] in SHARED_BYTES,
    core=True,
)

"""Measures device memory: streaming kernels, working sets that are read repeatedly, and the latency of single lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Measurement, Work
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import Level, LoadedChase, LocalChase
from microbench.gpu.protocol.transfer import FloatArray, Transfer
from microbench.meter.counters import power
from microbench.meter.sampling import per_call_distribution, stored
from microbench.meter.timer import Meter, gated
from microbench.meter.transfers import moved, verified, warm_s

TRIALS = 3
TRIAL_S = 1e-3
MOST_CALLS = 100
# A working set of four times the L2 is certainly read from device memory; one of half the L2 can stay in it.
BEYOND_L2, WITHIN_L2 = 4, 0.5
LARGER_THAN_ANY_L2_BYTES = 512 << 20

# Levels whose rate follows the SMs' clock.
ON_CHIP = ("shared", "l1", "l2")
SAMPLE_S = 3e-4
READ_CHECK = "the sum over all words read is that of the set"
# SMs begin about a microsecond apart, and many %globaltimers have steps of one microsecond, so each SM reads enough
# bytes that both are negligible.
FIRST_BYTES = 1 << 20
READS = 4000
# A walk takes at least this long, because it is also timed by %globaltimer.
WALK_S = 2e-4
LONGEST_STEP_S = 1e-6
SINGLE_READS = 2000
# Longer chains (beyond 64 MiB) fit no cache and would take long to walk, so only a part of them is warmed up.
MOST_WARMED = 1 << 19
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


def answering_level(gpu: Gpu, touched_bytes: int) -> str | None:
    """The bound of repeated passes over a set of that many bytes: "dram", "l2", or None in between.

    If the size of the L2 is unknown, only sets larger than any L2 are "dram".
    """
    l2_bytes = gpu.info.l2_bytes
    if touched_bytes >= (BEYOND_L2 * l2_bytes if l2_bytes else LARGER_THAN_ANY_L2_BYTES):
        return "dram"
    return "l2" if l2_bytes and touched_bytes <= WITHIN_L2 * l2_bytes else None


def streamed(
    meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str], touched_bytes: int
) -> Iterator[Measurement | Fact]:
    """The rate of the fastest kernel shape. The winner of the trials is measured again, because the best of several
    trials is partly luck.
    """
    best, shape = _fastest(meter, make, shapes)
    yield shape
    yield from moved(meter, best, device="bandwidth", bound=answering_level(meter.gpu, touched_bytes))


def powered(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> Iterator[Measurement | Fact]:
    """Power, and energy of a byte, of the fastest shape; its output is poisoned before and compared after."""
    best, shape = _fastest(meter, make, shapes)
    yield shape
    one_s = warm_s(best)
    best.fresh()
    measured = list(power(meter, best.submit, one_s, best.size_bytes))
    yield from verified(measured, best.check())


def _fastest(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> tuple[Transfer, Fact]:
    """The fastest shape by the median of TRIALS samples each. Raises MeasurementError if all gates of one were late."""
    if len(shapes) == 1:
        return make(shapes[0]), Fact("shape", shapes[0], source="the only one")
    trials = {}
    for shape in shapes:
        transfer = make(shape)
        transfer.fresh()  # on memory full of zeros another shape of dot won on an H200, and then lost 6 %
        count = min(max(round(TRIAL_S / warm_s(transfer)), 1), MOST_CALLS)
        take = gated(meter.gpu, transfer.submit, count)
        samples = [sample for _ in range(TRIALS) for sample in take()]
        if not samples:
            raise MeasurementError("a shape could not be tried: the gate timed out each time")
        trials[shape] = float(np.median(samples)) / count
    best = min(trials, key=lambda shape: trials[shape])
    return make(best), Fact("shape", best, source=f"the fastest of {len(shapes)}")


def level_rate(
    meter: Meter, level: Level, footprint_bytes: int, bound: str | None, checked: str = READ_CHECK
) -> Iterator[Measurement]:
    """Metrics ``bandwidth`` of all SMs and ``per_clock`` of one SM, from the same launches.

    A launch takes about SAMPLE_S, and all SMs together move as much as the working set has at least.
    """

    def whole_tiles(size_bytes: float) -> int:
        return -(-round(size_bytes) // level.tile_bytes) * level.tile_bytes

    least = whole_tiles(max(footprint_bytes / level.sms, FIRST_BYTES))
    level.take(least)
    grown = least * SAMPLE_S / max(level.take(least).seconds, 1e-9)
    bytes_per_sm = whole_tiles(max(grown, least))

    def take() -> Mapping[str, float]:
        taken = level.take(bytes_per_sm)
        return {"bandwidth": taken.seconds, "per_clock": taken.cycles}

    both = meter.collect_each(("bandwidth", "per_clock"), take, clock="device")
    bandwidth, per_clock = verified(both, checked)
    yield msgspec.structs.replace(bandwidth, work=Work(bytes=bytes_per_sm * level.sms), bound=bound)
    clock_bound = f"{bound}_per_clock" if bound in ON_CHIP else None
    yield msgspec.structs.replace(per_clock, work=Work(bytes=bytes_per_sm), bound=clock_bound)


def chase_latency(meter: Meter, chase: LocalChase) -> Iterator[Measurement]:
    """Metrics ``latency`` (seconds, with percentiles of single reads) and ``cycles`` of one dependent read."""
    chase.walk(chase.lines if chase.lines <= MOST_WARMED else READS)
    reads = max(READS, round(READS * WALK_S / max(chase.walk(READS).seconds, LONGEST_STEP_S)))

    def take() -> Mapping[str, float]:
        walk = chase.walk(reads)
        return {"latency": walk.seconds, "cycles": walk.cycles}

    both = meter.collect_each(("latency", "cycles"), take, clock="device", calls=reads)
    walk, single = chase.walk(reads), chase.each_cycles(SINGLE_READS)
    # Stamping adds the same to every single read; the mean is that of a walk, which stamps only once.
    single_s = (single - single.mean() + walk.cycles / reads) * (walk.seconds / walk.cycles)
    latency, cycles = verified(both, "every walk ended at its line")
    yield msgspec.structs.replace(latency, per_call=per_call_distribution(single_s))
    yield cycles


def loaded_latency(meter: Meter, chase: LoadedChase, load_percent: int, bound: str) -> Iterator[Measurement | Fact]:
    """Metrics ``latency`` of one dependent read under load, ``idle`` of the same without, measured in turn, and
    ``bandwidth`` of the load meanwhile; a fact has the latency in cycles.

    ``load_percent`` is the share of the bandwidth that the other SMs reach when nothing holds them back; 100 does not.
    """
    full = float(np.median([chase.take(READS, math.inf).bytes_per_s for _ in range(TRIALS)]))
    asked = full * load_percent / 100 if load_percent < 100 else math.inf

    cycles: list[float] = []

    def take() -> Mapping[str, float]:
        walk, idle = chase.take(READS, asked), chase.take(READS, 0.0)
        cycles.append(walk.cycles / READS)
        # A sample of the bandwidth is the time in which the load reads its set once.
        read_s = chase.load_bytes / walk.bytes_per_s
        return {"latency": walk.seconds, "idle": idle.seconds, "bandwidth": read_s}

    measured = meter.collect_each(("latency", "idle", "bandwidth"), take, clock="device", calls=READS)
    latency, idle, bandwidth = verified(measured, "every walk's last line, and the sum of all words that the load read")
    yield from (latency, idle)
    yield msgspec.structs.replace(bandwidth, calls_per_sample=1, work=Work(bytes=chase.load_bytes), bound=bound)
    yield Fact("latency_cycles", round(float(np.median(cycles)), 1), source="clock64, the same walks", unit="cycle")


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


def line_latencies(chase: LocalChase) -> Iterator[Measurement | Fact]:
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

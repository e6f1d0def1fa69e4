"""Kernels that stream through device memory: the fastest of the shapes that one can have, measured and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Measurement, Work
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import FloatArray, Transfer
from microbench.gpu.protocol.memory import Level, LocalChase
from microbench.measure.counters import power
from microbench.measure.sampling import kept, per_call_distribution
from microbench.measure.timer import Meter, gated
from microbench.measure.transfers import moved, verified, warm_s

TRIALS = 3
TRIAL_S = 1e-3
MOST_CALLS = 100
# A set is in device memory beyond doubt from four times the L2 on, and can stay in the L2 up to half of it.
BEYOND_L2, WITHIN_L2 = 4, 0.5
LARGER_THAN_ANY_L2_BYTES = 512 << 20


def answering_level(gpu: Gpu, touched_bytes: int) -> str | None:
    """The bound of what goes again and again through so many bytes: "dram", "l2", or None between the two.

    Where the L2's size is not known, what is larger than any is in device memory.
    """
    l2_bytes = gpu.info.l2_bytes
    if touched_bytes >= (BEYOND_L2 * l2_bytes if l2_bytes else LARGER_THAN_ANY_L2_BYTES):
        return "dram"
    return "l2" if l2_bytes and touched_bytes <= WITHIN_L2 * l2_bytes else None


def streamed(
    meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str], touched_bytes: int
) -> Iterator[Measurement | Fact]:
    """The rate of the fastest shape: found by TRIALS samples of each, measured anew, so that no luck is counted."""
    best, found = _fastest(meter, make, shapes)
    yield found
    yield from moved(meter, best, device="bandwidth", bound=answering_level(meter.gpu, touched_bytes))


def powered(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> Iterator[Measurement | Fact]:
    """Power and energy of a byte while the fastest shape runs; its output is poisoned before and compared after."""
    best, found = _fastest(meter, make, shapes)
    yield found
    one_s = warm_s(best)
    best.fresh()
    measured = list(power(meter, best.submit, one_s, best.size_bytes))
    yield from verified(measured, best.check())


def _fastest(meter: Meter, make: Callable[[str], Transfer], shapes: Sequence[str]) -> tuple[Transfer, Fact]:
    best = shapes[0]
    if len(shapes) > 1:
        trials = {shape: _trial_s(meter, make(shape)) for shape in shapes}
        best = min(trials, key=lambda shape: trials[shape])
    return make(best), Fact(
        "shape", best, source=f"the fastest of {len(shapes)}" if len(shapes) > 1 else "the only one"
    )


def _trial_s(meter: Meter, transfer: Transfer) -> float:
    """Seconds of one call: the median of TRIALS samples. Raises MeasurementError where every gate was late.

    On fresh data: memory full of zeros gave dot another winner on an H200, which then lost 6 %.
    """
    transfer.fresh()
    count = min(max(round(TRIAL_S / warm_s(transfer)), 1), MOST_CALLS)
    take = gated(meter.gpu, transfer.submit, count)
    taken_s = [one for _ in range(TRIALS) for one in take()]
    if not taken_s:
        raise MeasurementError("a shape could not be tried: the gate timed out each time")
    return float(np.median(taken_s)) / count


# Working sets read again and again: the rate of all SMs, the latency of one, and lines that are near or far.


# Levels that keep up with the SMs' clock, whatever it is.
ON_CHIP = ("shared", "l1", "l2")
SAMPLE_S = 3e-4
# SMs begin about a microsecond apart, and many a %globaltimer moves in steps of one: what is read first takes longer.
FIRST_BYTES = 1 << 20
READS = 4000
# A walk takes at least so long, as it is also timed by %globaltimer.
WALK_S = 2e-4
LONGEST_STEP_S = 1e-6
SINGLE_READS = 2000
# Beyond 64 MiB no cache holds a set, and a walk round it would take long.
MOST_WARMED = 1 << 19
LINE_REPEATS = 11
# The lines of an L2 lie close together: two dozen bins from the nearest to the farthest.
LINES_RATIO = 1.01
# Two modes are told apart where none is a mere handful, and where half way between them there are fewer values than
# VALLEY_SHARE of those around the smaller one (by their distance alone evenly spread values would pass for two groups).
# A third of the way is looked at in each place; it must hold some of the clock's steps.
SMALLEST_SHARE = 0.05
SMALLEST_WIDTH = 2.0
VALLEY_SHARE = 0.5
VALLEY_WIDTH = 1 / 3


def level_rate(meter: Meter, level: Level, footprint_bytes: int, bound: str | None) -> Iterator[Measurement]:
    """Metrics ``bandwidth`` of all SMs and ``per_clock`` of one, from the same launches.

    A launch takes about SAMPLE_S, and all SMs together go through the whole set at least once.
    """
    bytes_per_sm = _bytes_per_sm(level, footprint_bytes)

    def take() -> Mapping[str, float]:
        taken = level.take(bytes_per_sm)
        return {"bandwidth": taken.seconds, "per_clock": taken.cycles}

    found = meter.collect_each(("bandwidth", "per_clock"), take, clock="device")
    total, one = verified(found, "the sum over all words read is that of the set")
    yield msgspec.structs.replace(total, work=Work(bytes=bytes_per_sm * level.sms), bound=bound)
    per_clock = f"{bound}_per_clock" if bound in ON_CHIP else None
    yield msgspec.structs.replace(one, work=Work(bytes=bytes_per_sm), bound=per_clock)


def _bytes_per_sm(level: Level, footprint_bytes: int) -> int:
    """What each SM reads in a launch, in whole tiles."""
    least = _tiles(level, max(footprint_bytes / level.sms, FIRST_BYTES))
    level.take(least)
    grown = least * SAMPLE_S / max(level.take(least).seconds, 1e-9)
    return _tiles(level, max(grown, least))


def _tiles(level: Level, size_bytes: float) -> int:
    return -(-round(size_bytes) // level.tile_bytes) * level.tile_bytes


def chase_latency(meter: Meter, chase: LocalChase) -> Iterator[Measurement]:
    """Metrics ``latency`` (seconds, single reads for its percentiles) and ``cycles`` of one dependent read."""
    chase.walk(chase.lines if chase.lines <= MOST_WARMED else READS)
    reads = max(READS, round(READS * WALK_S / max(chase.walk(READS).seconds, LONGEST_STEP_S)))

    def take() -> Mapping[str, float]:
        walk = chase.walk(reads)
        return {"latency": walk.seconds, "cycles": walk.cycles}

    found = meter.collect_each(("latency", "cycles"), take, clock="device", calls=reads)
    walk, single = chase.walk(reads), chase.each_cycles(SINGLE_READS)
    # The stamps add the same to every read: on average what lies between single reads and those of a walk.
    single_s = (single - single.mean() + walk.cycles / reads) * (walk.seconds / walk.cycles)
    latency, cycles = verified(found, "every walk ended at its line")
    yield msgspec.structs.replace(latency, per_call=per_call_distribution(single_s))
    yield cycles


class Modes(NamedTuple):
    """Two groups of values: their means, and the share of the values in the lower one."""

    near: float
    far: float
    near_share: float


def two_modes(values: FloatArray) -> Modes | None:
    """The two groups of cycles whose spread within is least (Otsu's threshold), or None where they are not apart.

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
    """Metric ``line_cycles``: the latency of the lines of a set in the L2, from one SM; their two modes as facts.

    A sample is the mean over all lines, each read once; the distribution is that of the lines' own medians.
    """
    stamped, walk = chase.lines_cycles(LINE_REPEATS), chase.walk(READS)
    cycles = stamped - stamped.mean() + walk.cycles / READS
    lines: FloatArray = np.median(cycles, axis=0)
    samples, each = kept([float(one) for one in cycles.mean(axis=1)]), per_call_distribution(lines, LINES_RATIO)
    found = Measurement("line_cycles", "device", samples, len(cycles), per_call=each)
    yield from verified([found], "every walk ended at its line")
    modes, source = two_modes(lines), f"the median of {LINE_REPEATS} reads of each of {len(lines)} lines"
    yield Fact("l2_modes", 2 if modes else 1, source=source)
    if modes is not None:
        yield Fact("l2_near", round(modes.near, 1), source=source, unit="cycle")
        yield Fact("l2_far", round(modes.far, 1), source=source, unit="cycle")
        yield Fact("l2_near_share", round(modes.near_share, 3), source=source, unit="1")

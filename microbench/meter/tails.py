"""What the slowest calls of many have in common: a time of day that repeats, or a number of calls that repeats."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.quantiles import FloatArray
from microbench.core.ops import IntArray

# A call is slow from this many times the median on.
SLOW_TIMES = 2.0
# Periods of the kernel's timer, whose interrupts come at whole multiples: CONFIG_HZ is 1000, 300, 250 or 100.
TICKS_NS = (1_000_000, 10_000_000 / 3, 4_000_000, 10_000_000)
# If calls are slow at a tick, a window of this share of its period contains far more of them than by chance.
WINDOW = 0.05
# A cause of less than this share of the slow calls is not reported.
HELD = 0.2
# The largest probability of that many slow calls in one window by chance; about a hundred windows are examined.
ANY_WINDOW = 1e-6
# Fewer slow calls may have anything in common by chance.
FEWEST = 20


class Shared(NamedTuple):
    """What slow calls share: the period, in ns or in calls, and the share of them that have it."""

    period: float
    share: float


def slow(durations_ns: IntArray) -> npt.NDArray[np.bool_]:
    """True for each slow call."""
    return np.asarray(durations_ns >= SLOW_TIMES * np.median(durations_ns))


def tick(slow_ns: FloatArray, every_ns: FloatArray) -> Shared | None:
    """The timer tick at which calls are slow, from when slow calls and all calls began; None if there is none.

    All calls are needed because the bursts themselves may repeat at nearly such a period.
    """
    found = []
    for period_ns in TICKS_NS if len(slow_ns) >= FEWEST else ():
        share, begin = _fullest(np.mod(slow_ns, period_ns) / period_ns)
        by_chance = float((np.mod(np.mod(every_ns, period_ns) / period_ns - begin, 1.0) < WINDOW).mean()) * len(slow_ns)
        if share >= HELD and _chance(round(share * len(slow_ns)), by_chance) < ANY_WINDOW:
            found.append(Shared(period_ns, share))
    best = max((one.share for one in found), default=0.0)
    # What comes every 4 ms comes at whole multiples of 1 ms, too: the longest period is the true one.
    return next((one for one in reversed(found) if one.share >= 0.8 * best), None)


def _fullest(phases: FloatArray) -> tuple[float, float]:
    """The largest share of phases (0 to 1, around a circle) in a window of WINDOW, and where the window begins."""
    ordered = np.sort(phases)
    around = np.concatenate([ordered, ordered + 1])
    counts = np.searchsorted(around, ordered + WINDOW, "left") - np.arange(len(ordered))
    place = int(np.argmax(counts))
    return float(counts[place] / len(ordered)), float(ordered[place])


def _chance(count: int, expected: float) -> float:
    """The probability of at least this many events if that many are expected (Poisson)."""
    most = range(count, count + 200)
    return sum(math.exp(i * math.log(max(expected, 1e-9)) - expected - math.lgamma(i + 1)) for i in most)


def every(bursts: Sequence[IntArray]) -> Shared | None:
    """After how many calls the next one is slow, from the places of the slow calls in each burst; None if that varies.

    The share is that of the distances between neighbouring slow calls of a burst.
    """
    distances = np.concatenate([np.diff(places) for places in bursts]) if bursts else np.zeros(0, np.int64)
    if len(distances) < FEWEST:
        return None
    values, counts = np.unique(distances, return_counts=True)
    most = int(np.argmax(counts))
    share = float(counts[most] / len(distances))
    return Shared(float(values[most]), share) if share >= HELD and values[most] > 1 else None

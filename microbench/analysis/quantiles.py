"""Quantiles of sorted samples, of one measurement and of many that have as many samples each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.model import Measurement, Metric, Telemetry

# Straight lines through costs that span decades: a constant and a slope, and how far off they are.


FEWEST_POINTS = 3


class Misfit(msgspec.Struct, frozen=True):
    """How far the points lie from the line, as shares of their own values: the median of them, and the largest."""

    median: float
    largest: float


class Line(msgspec.Struct, frozen=True):
    """y = constant + slope * x, in the units of the points, and how far off that is."""

    constant: float
    slope: float
    misfit: Misfit

    def at(self, x: float) -> float:
        """The line's y at x."""
        return self.constant + self.slope * x


def line(points: Iterable[tuple[float, float]]) -> Line | None:
    """The straight line through (x, y) with the least squares of relative residuals.

    Weights are 1/y**2: over four decades of x plain least squares would fit the largest point alone. A cost has no
    negative constant: where the best one is, the line is fitted again through 0. Points with y at or below 0 have no
    relative residual and are left out. None for fewer than FEWEST_POINTS points, or all at one x.
    Source: weighted linear least squares, e.g. Press et al., Numerical Recipes, section 15.2, with sigma_i = y_i.
    """
    kept = [(x, y) for x, y in points if y > 0]
    if len(kept) < FEWEST_POINTS or len({x for x, _ in kept}) < 2:
        return None
    x, y = (np.array(column, dtype=np.float64) for column in zip(*kept, strict=True))
    reach = float(np.max(np.abs(x)))  # columns of one size, so that neither is lost to rounding
    matrix = np.column_stack((1 / y, x / reach / y))
    constant, steep = np.linalg.lstsq(matrix * np.min(y), np.full(len(y), np.min(y)), rcond=None)[0]
    if constant < 0:
        through_zero = matrix[:, 1]
        constant, steep = 0.0, float(np.sum(through_zero) / np.sum(through_zero**2))
    slope = float(steep) / reach
    off = np.abs(constant + slope * x - y) / y
    return Line(float(constant), slope, Misfit(float(np.median(off)), float(np.max(off))))


FloatArray = npt.NDArray[np.floating[Any]]

CONFIDENCE = 0.95
MOST_EXACT = 5000
# What one call does, by the unit of its rate.
WORK = {
    "B/s": "bytes", "B/clk/SM": "bytes", "FLOP/s": "flops", "FLOP/clk/SM": "flops", "OP/s": "operations",
    "OP/clk/SM": "operations", "1/s": "launches",
}  # fmt: skip


@cache
def median_ranks(n: int) -> tuple[int, int]:
    """Ranks (from 0) of the order statistics that hold the median with at least CONFIDENCE.

    Distribution-free: the count of samples below the median is binomial(n, 1/2). Under 6 samples no pair of ranks
    reaches 95 %, so the whole range is returned. Source: Le Boudec, Performance Evaluation, section 2.2.
    """
    if n < 6:
        return 0, max(n - 1, 0)
    if n > MOST_EXACT:  # far more than are kept: a file from elsewhere
        reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of the binomial
        return math.floor(n / 2 - reach), min(math.ceil(n / 2 + reach), n - 1)
    outside, ways = 0, 1  # whole numbers of the 2**n patterns: beyond n = 1029 they no longer fit a float
    for rank in range(n // 2):
        outside += 2 * ways
        if outside / (1 << n) > 1 - CONFIDENCE:
            return max(rank - 1, 0), min(n - rank, n - 1)
        ways = ways * (n - rank) // (rank + 1)
    return 0, n - 1


def quantile(ordered: FloatArray, share: float) -> float:
    """A quantile of sorted values by linear interpolation, NumPy's default, in a fraction of its time."""
    below, above, weight = _neighbours(len(ordered), share)
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * weight


def _neighbours(count: int, share: float) -> tuple[int, int, float]:
    """The ranks between which a quantile of that many values lies, and how far from the lower one."""
    position = share * (count - 1)
    below = int(position)
    return below, min(below + 1, count - 1), position - below


# Of one measurement in its metric's unit: p1, the median, p90, p99; the two that hold the median at CONFIDENCE; min and
# max; and the median of its samples as they were taken.
Quantiles = tuple[float, float, float, float, float, float, float, float, float]
SHARES = (0.01, 0.5, 0.9, 0.99)
MEDIAN = SHARES.index(0.5)


def work_of(metric: Metric, measurement: Measurement) -> int:
    """What one call does in the unit of a rate. Raises ValueError where it is not counted."""
    if not (amount := getattr(measurement.work, WORK.get(metric.unit, ""), 0)):
        raise ValueError(f"{metric.name}: a rate in {metric.unit} without its work")
    return int(amount)


def _clock_step(metric: Metric, measurement: Measurement) -> float:
    if not measurement.resolution or metric.kind == "rate":
        return 0.0
    return measurement.resolution / measurement.calls_per_sample


@np.errstate(all="ignore")  # a file may hold what no arithmetic bears: that ends as infinity, or as no number
def of_rows(samples: FloatArray, metrics: Sequence[Metric], measured: Sequence[Measurement]) -> list[Quantiles]:
    """The quantiles of measurements of as many samples each, which are the rows of ``samples``; all are of rates, or
    none. An interval narrower than a step of the clock is as wide as that. Raises ValueError as ``work_of`` does."""
    raw = np.sort(samples, axis=1)
    values = raw / np.array([[float(one.calls_per_sample)] for one in measured])
    if metrics[0].kind == "rate":
        works = np.array([[float(work)] for work in map(work_of, metrics, measured)])
        values = np.sort(works / values, axis=1)  # the longest time is the lowest rate
    found, low, high = _across(values), *(values[:, rank] for rank in median_ranks(values.shape[1]))
    least = np.array(list(map(_clock_step, metrics, measured)))
    narrow = high - low < least
    if narrow.any():
        low = np.where(narrow, found[:, MEDIAN] - least / 2, low)
        high = np.where(narrow, found[:, MEDIAN] + least / 2, high)
    columns = low, high, values[:, 0], values[:, -1], _across(raw)[:, MEDIAN]
    return list(zip(*found.T.tolist(), *(column.tolist() for column in columns), strict=True))


@cache
def _places(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], FloatArray]:
    """The ranks below and above each of SHARES, and how far from the lower ones they are."""
    below, above, weights = zip(*(_neighbours(count, share) for share in SHARES), strict=True)
    return np.array(below), np.array(above), np.array(weights)


def _across(ordered: FloatArray) -> FloatArray:
    """The quantiles at SHARES of each row of sorted values, as ``quantile`` has them."""
    below, above, weights = _places(ordered.shape[1])
    low = ordered[:, below]
    result: FloatArray = low + (ordered[:, above] - low) * weights
    return result


# Did the GPU slow down while a case ran, and why: what is a fault of the machine, and what is its power limit.


CLOCK_LOSS = 0.03
# Reasons of NVML that lower the clock because of power, heat or the board's own brake.
THROTTLE_WORDS = ("power", "thermal", "brake")
# Arithmetic at the power limit is what a board is built for: a state that is shown, and no reason to distrust a figure.
# Heat and the brake still are. A case is arithmetic if one of its measurements has such a bound.
ARITHMETIC_BOUNDS = ("gemm:", "tensor:", "alu:")
HEAT_WORDS = ("thermal", "brake")


def clock_change(telemetry: Telemetry | None) -> float:
    """The SM clock at the case's end over that at its beginning; 1 if unknown."""
    if telemetry is None or not telemetry.sm_clock_begin_hz or not telemetry.sm_clock_end_hz:
        return 1.0
    return telemetry.sm_clock_end_hz / telemetry.sm_clock_begin_hz


def is_arithmetic(measurements: Sequence[Measurement]) -> bool:
    """True for the measurements of a case that keeps tensor cores or ALUs at work."""
    return any(one.bound is not None and one.bound.startswith(ARITHMETIC_BOUNDS) for one in measurements)


def throttled(telemetry: Telemetry | None, *, arithmetic: bool = False) -> bool:
    """True if the SM clock fell by more than CLOCK_LOSS over the case and a power, thermal or brake reason is set; of
    ``arithmetic`` a thermal or brake reason."""
    fell = clock_change(telemetry) < 1 - CLOCK_LOSS
    reasons = telemetry.throttle_reasons if telemetry else ()
    words = HEAT_WORDS if arithmetic else THROTTLE_WORDS
    return fell and any(word in reason for reason in reasons for word in words)


class ClockState(NamedTuple):
    """What the clocks say against all that a case measured: they were ``throttled``, or still ``waking``."""

    throttled: bool
    waking: bool


def clock_state(telemetry: Telemetry | None, *, arithmetic: bool) -> ClockState:
    """Arithmetic waits for its own clock to settle, and is measured right behind what may have held it down: its clock
    may rise."""
    change = clock_change(telemetry)
    if change < 1 - CLOCK_LOSS:
        return ClockState(throttled(telemetry, arithmetic=arithmetic), False)
    return ClockState(False, not arithmetic and change > 1 + CLOCK_LOSS)

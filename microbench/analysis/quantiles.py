"""Computes quantiles and levels of samples: of one sorted array, and of many measurements at once."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.model import Measurement, Metric

FloatArray = npt.NDArray[np.floating[Any]]
Counts = npt.NDArray[np.intp]  # of the samples in each row; what is behind them only fills the row up
# Two levels at which values gather with nothing between them, so that a median hides one; the lower one first.
Levels = tuple[float, float]

CONFIDENCE = 0.95
MOST_EXACT = 5000
# The autocorrelation of fewer samples cannot be estimated.
FEWEST_CORRELATED = 10
# The correction for centring multiplies the autocorrelation found by at most 3.
LEAST_LEFT = 1 / 3
SHARES = (0.01, 0.5, 0.9, 0.99)
MEDIAN = SHARES.index(0.5)
# The field of Work that counts the work of a call, by the unit of the rate.
WORK = {
    "B/s": "bytes", "B/clk/SM": "bytes", "FLOP/s": "flops", "FLOP/clk/SM": "flops", "OP/s": "operations",
    "OP/clk/SM": "operations", "1/s": "launches",
}  # fmt: skip
# Two levels differ by at least this share of the median: twice the variation above which one process counts as noisy.
LEAST_DISTANCE = 0.05
# The gap between the levels takes at least this share of the whole range, so each level is narrower than the gap.
GAP_SHARE = 2 / 3
# The gap is at least so many times as wide as what blurs each value: a round's interval, or a step of the clock.
BLURS = 3
# Samples at either end of a measurement that may be outliers; so each level holds more than this share of them.
OUTLIERS = 0.1
FEWEST_SAMPLES = 10


class Quantiles(NamedTuple):
    """Quantiles of a measurement in its metric's unit. ``low`` and ``high`` bound the median at CONFIDENCE;
    ``raw_median`` is the median of the samples as taken; ``levels`` are their two levels, if they have two."""

    p1: float
    median: float
    p90: float
    p99: float
    low: float
    high: float
    min: float
    max: float
    raw_median: float
    levels: Levels | None


@cache
def median_ranks(n: int) -> tuple[int, int]:
    """Ranks (from 0) of the order statistics that bound the median with at least CONFIDENCE.

    Distribution-free: the count of samples below the median is binomial(n, 1/2). Under 6 samples no pair of ranks
    reaches 95 %, so the whole range is returned. Source: Le Boudec, Performance Evaluation, section 2.2.
    """
    if n > MOST_EXACT:  # this tool stores fewer samples
        reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of the binomial
        return math.floor(n / 2 - reach), min(math.ceil(n / 2 + reach), n - 1)
    rank, outside, ways = n // 2, 1 << n, math.comb(n, n // 2)  # out of 2**n, which a float cannot hold for n > 1023
    while (outside := outside - (ways if 2 * rank == n else 2 * ways)) / (1 << n) > 1 - CONFIDENCE:
        ways = ways * rank // (n - rank + 1)
        rank -= 1
    return max(rank - 1, 0), min(n - rank, n - 1)


@np.errstate(all="ignore")  # damaged files overflow, as in of_rows
def samples_per_independent(samples: FloatArray, medians: FloatArray, counts: Counts) -> FloatArray:
    """How many samples count as one independent sample, at least 1, for each row of ``samples`` in the order taken.

    The rank of the true median among n samples varies with the autocorrelation of the series "above or below the
    median", which outliers cannot distort. The sum of the autocorrelations ends where the sum of two neighbouring lags
    is no longer positive, and these pair sums are forced not to rise. Source: Geyer, Practical Markov Chain Monte
    Carlo, Statistical Science 7 (1992), section 3.3. Centring the series lowers each lag by about the result over n,
    which is corrected.
    """
    side = (samples > medians[:, None]).astype(np.float32) - (samples < medians[:, None])  # 0 for what fills a row up
    side[counts < FEWEST_CORRELATED] = 0
    half = 1 << (samples.shape[1] - 1).bit_length()
    spectrum = np.fft.rfft(side, 2 * half)  # zero padding, because the transform is circular
    lags = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, 2 * half)[:, :half]
    lags /= np.maximum(lags[:, :1], 1)  # 0 for samples that are all equal
    pairs = lags[:, ::2] + lags[:, 1::2]
    positive = np.logical_and.accumulate((pairs > 0) & (np.arange(half // 2) < counts[:, None] // 2), axis=1)
    beyond_first = 2 * (np.minimum.accumulate(pairs, axis=1) * positive).sum(axis=1) - 2
    centring = np.maximum(1 - 4 * positive.sum(axis=1) / counts, LEAST_LEFT)
    result: FloatArray = np.nan_to_num(1 + np.maximum(beyond_first, 0) / centring, nan=1.0)
    return result


def ranks_of(samples: FloatArray, medians: FloatArray, counts: Counts) -> tuple[Counts, Counts]:
    """The ranks that bound the median of each row of ``samples``, in the order taken: those of ``median_ranks``, moved
    apart by the root of ``samples_per_independent``.
    """
    middle = (counts - 1) / 2
    least = np.array([median_ranks(count)[0] for count in counts.tolist()])
    reach = (middle - least) * np.sqrt(samples_per_independent(samples, medians, counts))
    low = np.maximum(np.floor(middle - reach), 0).astype(np.intp)
    return low, counts - 1 - low


def quantile(ordered: FloatArray, share: float) -> float:
    """A quantile of sorted values by linear interpolation, as NumPy does by default, in a fraction of its time."""
    position = share * (len(ordered) - 1)
    below = int(position)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (position - below)


def work_of(metric: Metric, measurement: Measurement) -> int:
    """The work of a call in the unit of a rate. Raises ValueError if the work was not counted."""
    if not (amount := getattr(measurement.work, WORK.get(metric.unit, ""), 0)):
        raise ValueError(f"{metric.name}: a rate in {metric.unit} without its work")
    return int(amount)


@np.errstate(all="ignore")  # a damaged file may overflow: the result is then infinite or NaN
def of_rows(
    samples: FloatArray, counts: Counts, metrics: Sequence[Metric], measured: Sequence[Measurement]
) -> list[Quantiles]:
    """The quantiles of measurements, each a row of ``samples`` in the order taken, with NaN behind; all rates, or no
    rates.

    An interval narrower than a step of the clock is widened to a step. Raises ValueError as ``work_of`` does.
    """
    raw = np.sort(samples, axis=1)
    values = raw / np.array([float(measurement.calls_per_sample) for measurement in measured])[:, None]
    if metrics[0].kind == "rate":
        works = np.array([float(work) for work in map(work_of, metrics, measured)])
        values = np.sort(works[:, None] / values, axis=1)  # the longest time is the lowest rate
    shares, raw_medians, every = _across(values, counts), _across(raw, counts, (0.5,))[:, 0], np.arange(len(values))
    low, high = (values[every, ranks] for ranks in ranks_of(samples, raw_medians, counts))
    # A step of the clock in the metric's unit.
    step = np.array([float(each.resolution or 0.0) for each in measured])
    if metrics[0].kind == "rate":
        step *= shares[:, MEDIAN] / raw_medians
    else:
        step /= [each.calls_per_sample for each in measured]
    narrow = high - low < step
    if narrow.any():
        low = np.where(narrow, shares[:, MEDIAN] - step / 2, low)
        high = np.where(narrow, shares[:, MEDIAN] + step / 2, high)
    levels = levels_of_samples(values, shares[:, MEDIAN], step, counts)
    columns = low, high, values[:, 0], values[every, counts - 1], raw_medians
    return list(map(Quantiles, *shares.T.tolist(), *(column.tolist() for column in columns), levels))


def _across(ordered: FloatArray, counts: Counts, shares: Sequence[float] = SHARES) -> FloatArray:
    """The quantiles at ``shares`` of each row of sorted values, bit for bit those of ``quantile``."""
    last = counts[:, None] - 1
    positions = np.array(shares) * last
    below = positions.astype(np.intp)
    low, high = (ordered[np.arange(len(below))[:, None], ranks] for ranks in (below, np.minimum(below + 1, last)))
    result: FloatArray = low + (high - low) * (positions - below)
    return result


def levels_of_rounds(medians: Sequence[float], width: float) -> Levels | None:
    """The two levels of the medians of fresh processes, the lower one first; None if they lie at one level.

    ``width`` is the median width of a round's own interval. Two medians show no levels, however far apart they lie.
    """
    ordered = sorted(medians)
    gaps = [high - low for low, high in pairwise(ordered)]
    if len(gaps) < 2 or not math.isfinite(sum(ordered)):
        return None
    place = gaps.index(max(gaps))
    least = max(LEAST_DISTANCE * abs(middle(ordered)), GAP_SHARE * (ordered[-1] - ordered[0]), BLURS * width)
    return (middle(ordered[: place + 1]), middle(ordered[place + 1 :])) if gaps[place] > least else None


def middle(ordered: Sequence[float]) -> float:
    """The median of a few sorted values, ten times as fast as NumPy."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@np.errstate(all="ignore")  # a damaged file may overflow: such samples have no levels
def levels_of_samples(values: FloatArray, medians: FloatArray, blur: FloatArray, counts: Counts) -> list[Levels | None]:
    """The two levels of each row of sorted samples, where it has two. ``blur`` is a step of each row's clock."""
    found: list[Levels | None] = [None] * len(values)
    if values.shape[1] < FEWEST_SAMPLES:
        return found
    first = np.ceil(OUTLIERS * (counts - 1)).astype(np.intp)
    last, every, places = counts - 1 - first, np.arange(len(values)), np.arange(values.shape[1] - 1)
    gaps = np.where((places >= first[:, None]) & (places < last[:, None]), np.diff(values, axis=1), -1)
    widest = gaps.argmax(axis=1)
    least = np.maximum(LEAST_DISTANCE * np.abs(medians), GAP_SHARE * (values[every, last] - values[every, first]))
    two = (gaps[every, widest] > np.maximum(least, BLURS * blur)) & (counts >= FEWEST_SAMPLES)
    for row in np.flatnonzero(two).tolist():
        inside, split = values[row, first[row] : last[row] + 1].tolist(), int(widest[row] - first[row]) + 1
        found[row] = middle(inside[:split]), middle(inside[split:])
    return found

"""Finds where a GPU became slower or faster over campaigns. It works on arrays only, so that simulations can test it.

A series says how slow one GPU was in one group of figures, campaign after campaign, as a logarithm. The newest change
of its level is searched in the newest 6, 12, 24, … campaigns: it is the place with the least total distance from the
medians of both sides. It is reported if the medians differ by LEAST_LOSS or more, and by more than chance explains,
given the scatter and the number of places in all series. Earlier changes are then searched in the campaigns before it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.fleet.outliers import FREEDOM, LEAST_LOSS, LEAST_SCATTER, medians, times_of

# The largest probability of reporting any change if no GPU changed.
ANY_TOLD = 0.01
# The standard deviation of a normal distribution over its median absolute deviation.
NORMAL_MAD = 1.4826
# The fewest campaigns before a change, and after it, that show it.
LEAST_SIDE = 3
LEAST_CAMPAIGNS = 2 * LEAST_SIDE
# Figures with at least this share of the most campaigns that a figure has are the reference for the others.
OFTEN = 0.75
# The variance of a median over that of a mean, of many values with a normal distribution.
OF_MEDIAN = math.pi / 2


class Change(NamedTuple):
    """A change of level: the place of the first campaign after it, those of its first before and last after, and its
    size, a logarithm above 0 if the GPU became slower."""

    place: int
    begin: int
    end: int
    size: float


def levels(logarithms: FloatArray) -> FloatArray:
    """The series of a group: how slow its figures were in each campaign, in the middle, against what each usually is.

    A row is a figure, a column a campaign, NaN is not measured. A figure counts if one of the newest campaigns has it.
    Its usual value comes from the campaigns that it shares with the figures that most campaigns have, so that a figure
    that appears or disappears does not count as a change.
    """
    measured = ~np.isnan(logarithms)
    here = measured[:, -LEAST_SIDE:].any(axis=1)
    if not here.any():
        return np.full(logarithms.shape[1], np.nan)
    figures, campaigns = logarithms[here], measured[here].sum(axis=1)
    most = figures[campaigns >= OFTEN * campaigns.max()]
    usual = medians(figures - medians(most - medians(most)[:, None], axis=0)[None, :])
    alone = np.isnan(usual)
    usual[alone] = medians(figures[alone])
    return medians(figures - usual[:, None], axis=0)


def scatters(several: Sequence[FloatArray], repeated: Sequence[float]) -> list[float]:
    """The scatter of the series of a class in one group, as standard deviations.

    It is the largest of three: that of ``repeated`` measurements, that of the series by the differences between
    neighbours, which a few changes do not move, and that of the class. The last one is taken at its upper end, because
    few differences are a poor estimate: the relative error of a median of m of them is 1.2/√m, and two such errors are
    added.
    """
    own = [NORMAL_MAD * float(np.median(np.abs(np.diff(series)))) / math.sqrt(2) for series in several]
    count = sum(len(series) - 1 for series in several)
    common = float(np.median(own)) * math.exp(2 * 1.2 / math.sqrt(count))
    return [max(*each, common) for each in zip(own, repeated, strict=True)]


def places(campaigns: int) -> int:
    """How many places of a change are looked at in a series of that many campaigns."""
    return sum(size - LEAST_CAMPAIGNS + 1 for size in _windows(campaigns))


def bar(tests: int) -> float:
    """How many times its standard error a change must be, so that with that many places the probability of any false
    report is ANY_TOLD.
    """
    return times_of(ANY_TOLD / max(tests, 1) / 2, FREEDOM)


def smallest(scatter: float, before: int, after: int, least_times: float) -> float:
    """The smallest change that is reported, with that many campaigns on both sides."""
    error = scatter * math.sqrt(OF_MEDIAN * (1 / before + 1 / after))  # of the difference between the two medians
    return max(LEAST_LOSS, least_times * error)


def changes(series: FloatArray, scatter: float, least_times: float) -> list[Change]:
    """The changes of a series without NaN, the newest first.

    ``scatter`` is one of ``scatters``; ``least_times`` comes from ``bar``.
    """
    found: list[Change] = []
    end = len(series)
    while (change := _newest(series[:end], scatter, least_times)) is not None:
        found.append(change)
        end = change.place
    return found


def _windows(campaigns: int) -> Sequence[int]:
    """The numbers of newest campaigns in which a change is looked for."""
    if campaigns < LEAST_CAMPAIGNS:
        return ()
    sizes, size = [], LEAST_CAMPAIGNS
    while size < campaigns:
        sizes.append(size)
        size *= 2
    return [*sizes, campaigns]


def _newest(series: FloatArray, scatter: float, least_times: float) -> Change | None:
    """The newest change: that of the shortest window in which there is one."""
    count = len(series)
    for size in _windows(count):
        window = series[count - size :]
        if window.max() - window.min() < LEAST_LOSS:
            continue

        def distance(side: FloatArray) -> float:
            return float(np.abs(side - np.median(side)).sum())

        # The likeliest change leaves the least distance from the medians of both sides.
        splits = range(LEAST_SIDE, size - LEAST_SIDE + 1)
        place = min(splits, key=lambda at: distance(window[:at]) + distance(window[at:]))
        before, after = window[:place], window[place:]
        levels_apart = float(np.median(after) - np.median(before))
        apart = _middle(after, -levels_apart) - _middle(before, levels_apart)
        rest = np.concatenate([before - np.median(before), after - np.median(after)])
        whole = max(scatter, NORMAL_MAD * float(np.median(np.abs(rest))), LEAST_SCATTER)
        if apart * levels_apart > 0 and abs(apart) >= smallest(whole, place, size - place, least_times):
            return Change(count - size + place, count - size, count, levels_apart)
    return None


def _middle(side: FloatArray, towards: float) -> float:
    """The level at or beyond which (seen from the other side) more than half of the campaigns lie, and at least
    LEAST_SIDE.
    """
    agree = max(len(side) // 2 + 1, LEAST_SIDE)
    return float(np.sort(side)[agree - 1 if towards > 0 else len(side) - agree])

"""Rows that jump between two levels from process to process: which do, and how easily chance sorts them by run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.compare_spread import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]

# Two levels lie this many standard deviations of either apart.
APART = 4.0
# Levels of another row tell something about a shift if they are at most this many times wider or narrower.
COMPARABLE = 2.0
# How much the whole suite weighs against a row's own family: as much as this many rows.
SUITE_WEIGHT = 3.0


class Levels(NamedTuple):
    """Of each row: whether its rounds lie on two levels with both runs on one of them at least once (``jumps``), how
    far these are apart, and how likely chance alone puts one run on each (``sorted_by_chance``)."""

    jumps: BoolArray
    apart: FloatArray
    sorted_by_chance: FloatArray


def levels(base: FloatArray, new: FloatArray) -> Levels:
    """Two levels in the rounds of both runs together (rows x rounds, NaN where a row has fewer).

    The rounds are split at the widest gap that leaves two or more on either side. A row that lies on the one level in
    BASE and on the other in NEW does not jump by this: it is either changed, or a jumping row that chance sorted.
    """
    values = np.concatenate([base, new], axis=1)
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    n, m = np.isfinite(base).sum(axis=1), np.isfinite(new).sum(axis=1)
    place = np.arange(values.shape[1])[None, :]
    gaps = np.nan_to_num(np.diff(ordered, axis=1), nan=0.0)
    gaps[(place[:, 1:] < 2) | (place[:, 1:] > (n + m - 2)[:, None])] = 0.0
    low = np.argmax(gaps, axis=1) + 1
    is_low, is_high = place < low[:, None], (place >= low[:, None]) & (place < (n + m)[:, None])
    low_mean, low_squares = _about_mean(ordered, is_low)
    high_mean, high_squares = _about_mean(ordered, is_high)
    deviation = np.sqrt((low_squares + high_squares) / (n + m - 2))
    from_new = ((order >= base.shape[1]) & is_low).sum(axis=1)
    by_run = ((from_new == 0) & (low == n)) | ((from_new == m) & (low == m))
    share = low / (n + m)
    chance = share**n * (1 - share) ** m + share**m * (1 - share) ** n
    return Levels((gaps.max(axis=1) > APART * deviation) & ~by_run, high_mean - low_mean, chance)


def _about_mean(values: FloatArray, chosen: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Mean and sum of squares about it of the chosen values of each row."""
    mean = np.where(chosen, values, 0.0).sum(axis=1) / chosen.sum(axis=1)
    return mean, (np.where(chosen, values - mean[:, None], 0.0) ** 2).sum(axis=1)


def chance_of_levels(found: Levels, shift: FloatArray, suite: IntArray, family: IntArray) -> FloatArray:
    """The probability that a row's shift is no change but two levels that chance sorted by run.

    Five processes a side cannot exclude it: a row that takes either level half of the time is sorted once in 512
    pairs of runs. So rows that jump by about as far speak against the rest of their family, and a little against the
    rest of their suite: the share of such rows, times the chance that they are sorted.
    """
    result: FloatArray = np.zeros_like(shift)
    for one in np.unique(suite):
        rows = np.flatnonzero(suite == one)
        jumping = rows[found.jumps[rows]]
        wide, apart = np.abs(shift[rows])[:, None], found.apart[jumping][None, :]
        comparable = (apart > wide / COMPARABLE) & (apart < wide * COMPARABLE)
        chance = comparable * found.sorted_by_chance[jumping][None, :]
        related = (chance * (family[rows][:, None] == family[jumping][None, :])).sum(axis=1)
        _, member = np.unique(family[rows], return_inverse=True)
        whole = chance.sum(axis=1) / len(rows)
        result[rows] = (related + SUITE_WEIGHT * whole) / (np.bincount(member)[member] + SUITE_WEIGHT)
    return result

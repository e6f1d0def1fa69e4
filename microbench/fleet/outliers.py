"""Decides which GPUs are slower than others of their class. It works on arrays only, so that simulations can test it.

Figures that show the same thing, such as the bandwidth of DRAM, form a group. A GPU's loss in a group is the median
over its figures of how much slower each is than the median of its class. The GPU is named if three things hold. The
loss is at least LEAST_LOSS. Most of its figures differ by more than their own intervals, which cover how far repeated
measurements of one GPU lie apart. And the loss is too large for chance among all GPUs and groups, given the scatter
within the class or between repeated measurements, whichever is larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray

# The same as the smallest change that compare reports.
LEAST_LOSS = math.log(1.015)
# The largest probability of naming any GPU if all of them are equal.
ANY_NAMED = 0.01
# Degrees of freedom of the Student's t that is assumed for losses: tails longer than those of recorded rounds.
FREEDOM = 20
# No group is known better than to this share, even if all GPUs agree to the last digit.
LEAST_SCATTER = 0.001
# Fewer GPUs of a class are not compared, because it would be unclear which of them are the odd ones.
LEAST_GPUS = 5
# The standard deviation of a normal distribution over its median absolute deviation.
NORMAL_MAD = 1.4826


class Figures(NamedTuple):
    """The figures of the GPUs of one class: a row each figure, a column each GPU, NaN where it was not measured.

    ``group`` is the number of each figure's group. ``loss`` is the logarithm of how much slower a GPU is than the
    median of its class. ``doubt`` is how far the figure's interval reaches to the fast side, and ``deviation`` how far
    repeated measurements of one GPU lie apart, both as shares.
    """

    group: FloatArray
    loss: FloatArray
    doubt: FloatArray
    deviation: FloatArray


class Outlier(NamedTuple):
    """A GPU that is slow in a group: its column, the group, how much slower it is, and the chance of that."""

    gpu: int
    group: int
    loss: float
    chance: float


class Scores(NamedTuple):
    """A row each group, a column each GPU: the loss, how far figures lie beyond their intervals, loss over scatter.

    ``scatter`` and ``doubt`` are those of each group, for its middle GPU.
    """

    loss: FloatArray
    beyond: FloatArray
    times: FloatArray
    scatter: FloatArray
    doubt: FloatArray


def losses(values: FloatArray, rate: FloatArray) -> FloatArray:
    """The logarithm of how much slower each value is than the median of its row; ``rate`` marks rows of rates."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logarithms = np.where(values > 0, np.log(values), np.nan)
    signed = np.where(rate[:, None], -logarithms, logarithms)
    return signed - medians(signed)[:, None]


def scores(figures: Figures, groups: int) -> Scores:
    """The scores of each GPU in each group."""
    gpus = figures.loss.shape[1]
    loss, beyond, times = (np.full((groups, gpus), np.nan) for _ in range(3))
    middle, doubt = np.full(groups, np.nan), np.full(groups, np.nan)
    for number in range(groups):
        of_it = figures.group == number
        if not of_it.any():
            continue
        own = medians(figures.loss[of_it], axis=0)
        loss[number] = own - medians(own[None, :])
        beyond[number] = medians(figures.loss[of_it] - figures.doubt[of_it], axis=0)
        within = NORMAL_MAD * medians(np.abs(loss[number])[None, :])[0]
        repeated = medians(figures.deviation[of_it], axis=0)
        scatter = np.fmax(np.fmax(within, repeated), LEAST_SCATTER)
        times[number] = loss[number] / scatter
        middle[number] = medians(scatter[None, :])[0]
        doubt[number] = medians(medians(figures.doubt[of_it], axis=0)[None, :])[0]
    return Scores(loss, beyond, times, middle, doubt)


def outliers(classes: Sequence[Scores]) -> list[list[Outlier]]:
    """The GPUs of each class that are slow, the worst first.

    The chance that any GPU is named if all are equal is ANY_NAMED, over all classes, GPUs and groups (Holm, 1979).
    """
    tests: list[tuple[float, int, Outlier]] = []
    count = 0
    for place, one in enumerate(classes):
        if one.loss.shape[1] < LEAST_GPUS:
            continue
        count += int(np.isfinite(one.times).sum())
        worth = (one.loss >= LEAST_LOSS) & (one.beyond > 0)
        for group, gpu in zip(*np.nonzero(worth), strict=True):
            chance = tail(float(one.times[group, gpu]))
            found = Outlier(int(gpu), int(group), float(one.loss[group, gpu]), chance)
            tests.append((found.chance, place, found))
    named: list[list[Outlier]] = [[] for _ in classes]
    for rank, (chance, place, found) in enumerate(sorted(tests, key=lambda test: test[0])):
        if chance > ANY_NAMED / (count - rank):
            break
        named[place].append(found)
    return named


def tail(times: float) -> float:
    """The chance that Student's t with FREEDOM degrees of freedom, an even number, is above ``times``.

    The finite sum of Abramowitz and Stegun, 26.7.4; above 30 the rounding errors of the sum exceed what is left.
    """
    angle = math.atan(min(times, 30.0) / math.sqrt(FREEDOM))
    term = total = 1.0
    for power in range(2, FREEDOM - 1, 2):
        term *= (power - 1) / power * math.cos(angle) ** 2
        total += term
    return max((1 - math.sin(angle) * total) / 2, 0.0)


def smallest(one: Scores, tests: int) -> FloatArray:
    """The smallest loss of each group that would be named with that many tests."""
    bar = 0.0
    while tail(bar) > ANY_NAMED / max(tests, 1):
        bar += 0.01
    with np.errstate(invalid="ignore"):
        least: FloatArray = np.fmax(np.fmax(LEAST_LOSS, bar * one.scatter), one.doubt)
    return least


def medians(values: FloatArray, axis: int = 1) -> FloatArray:
    """The median without NaN; NaN where there is nothing else. Much faster than NumPy's for such arrays."""
    ordered = np.sort(np.moveaxis(values, axis, -1))  # NaN last
    count = (~np.isnan(ordered)).sum(axis=-1)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[-1] - 1)
    pair = np.take_along_axis(ordered, np.stack([low, high], axis=-1), axis=-1)
    middle: FloatArray = pair.mean(axis=-1)
    return middle

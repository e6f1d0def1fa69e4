"""Decides which GPUs are slower than others of their class. It works on arrays only, so that simulations can test it.

Figures that show the same thing, such as the bandwidth of DRAM, form a group. A GPU's loss in a group is the median
over its figures of how much slower each is than the median of its class. The GPU is named if three things hold. The
loss is at least LEAST_LOSS. Most of its figures differ by more than their own intervals, which cover how far repeated
measurements of one GPU lie apart. And the loss is too large for chance among all GPUs and groups, given how far the
GPUs of the class lie apart, and how far repeated measurements of one do.

Few GPUs are a poor estimate of how far equal ones lie apart, so few GPUs must differ by more: see ``tail``.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray

# The same as the smallest change that compare reports.
LEAST_LOSS = math.log(1.015)
# The largest probability of naming any GPU if all of them are equal.
ANY_NAMED = 0.01
# The most degrees of freedom of the Student's t that is assumed: its tails are longer than those of recorded rounds.
FREEDOM = 20
# Degrees of freedom for each GPU of a class, so that tails are at least as long as those of simulated normal classes.
FREEDOM_EACH = 0.6
# The spread of a class is that of the GPUs nearest to its median, without this share of all.
LEFT_OUT = 0.25
# No group is known better than to this share, even if all GPUs agree to the last digit.
LEAST_SCATTER = 0.001
# Fewer GPUs of a class are not compared, because it would be unclear which of them are the odd ones.
LEAST_GPUS = 5
# Points and weights of an integral.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(32)


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
    """A row each group, a column each GPU: the loss, how far figures lie beyond their intervals, and its chance.

    Of each group: how many ``gpus`` were measured, their ``spread``, and for the middle GPU the scatter of ``repeated``
    measurements and the ``doubt``. The chance is NaN in groups of fewer than LEAST_GPUS.
    """

    loss: FloatArray
    beyond: FloatArray
    chance: FloatArray
    gpus: FloatArray
    spread: FloatArray
    repeated: FloatArray
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
    loss, beyond, chance = (np.full((groups, gpus), np.nan) for _ in range(3))
    counts, middle, doubt, apart = np.zeros(groups), *(np.full(groups, np.nan) for _ in range(3))
    for number in range(groups):
        of_it = figures.group == number
        if not of_it.any():
            continue
        own = medians(figures.loss[of_it], axis=0)
        loss[number] = own - medians(own[None, :])
        beyond[number] = medians(figures.loss[of_it] - figures.doubt[of_it], axis=0)
        repeated = np.fmax(medians(figures.deviation[of_it], axis=0), LEAST_SCATTER)
        middle[number] = medians(repeated[None, :])[0]
        doubt[number] = medians(medians(figures.doubt[of_it], axis=0)[None, :])[0]
        counts[number] = count = np.isfinite(own).sum()
        if count >= LEAST_GPUS:
            apart[number] = max(spread(loss[number]), LEAST_SCATTER)
            by_class = tail(loss[number] / apart[number], freedom(count))
            chance[number] = np.fmax(by_class, tail(loss[number] / repeated, FREEDOM))
    return Scores(loss, beyond, chance, counts, apart, middle, doubt)


def spread(losses: FloatArray) -> float:
    """How far the GPUs of a class lie apart, so that a loss over it has the distribution of ``tail``.

    A few slow GPUs do not count: it is the standard deviation of those nearest to the median. That these are chosen is
    made up for as if the GPU in question was left out, and the others had a normal distribution.
    """
    apart = losses[np.isfinite(losses)]
    kept = len(apart) - int(LEFT_OUT * len(apart))
    rest = apart[np.argsort(np.abs(apart - np.median(apart)))[:kept]]
    cut = 1.0  # the standard deviation of the middle of a normal distribution over that of all of it
    if (share := kept / (len(apart) - 1)) < 1:
        end = NormalDist().inv_cdf((1 + share) / 2)
        cut = math.sqrt(1 - 2 * end * NormalDist().pdf(end) / share)
    return float(rest.std(ddof=1)) * math.sqrt(1 + 1 / kept) / cut


def freedom(gpus: float) -> float:
    """The degrees of freedom that the spread of that many GPUs is known with."""
    return min(FREEDOM_EACH * gpus, FREEDOM)


def outliers(classes: Sequence[Scores]) -> list[list[Outlier]]:
    """The GPUs of each class that are slow, the worst first.

    The chance that any GPU is named if all are equal is ANY_NAMED, over all classes, GPUs and groups (Holm, 1979).
    """
    tests: list[tuple[float, int, Outlier]] = []
    count = 0
    for place, one in enumerate(classes):
        count += tested(one)
        worth = (one.loss >= LEAST_LOSS) & (one.beyond > 0) & np.isfinite(one.chance)
        for group, gpu in zip(*np.nonzero(worth), strict=True):
            found = Outlier(int(gpu), int(group), float(one.loss[group, gpu]), float(one.chance[group, gpu]))
            tests.append((found.chance, place, found))
    named: list[list[Outlier]] = [[] for _ in classes]
    for rank, (chance, place, found) in enumerate(sorted(tests, key=lambda test: test[0])):
        if chance > ANY_NAMED / (count - rank):
            break
        named[place].append(found)
    return named


def tested(one: Scores) -> int:
    """How many losses of a class are looked at."""
    return int(np.isfinite(one.chance).sum())


def tail(times: FloatArray | float, freedom: float) -> FloatArray:
    """The chance that Student's t with that many degrees of freedom is above ``times``, exact far out too.

    With t = √freedom · cot φ it is an integral of a power of sin φ.
    """
    angle = np.arctan2(math.sqrt(freedom), np.asarray(times, dtype=np.float64))[..., None] / 2
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    chance: FloatArray = scale * (angle * WEIGHTS * np.sin(angle * (POINTS + 1)) ** (freedom - 1)).sum(axis=-1)
    return chance


def times_of(chance: float, freedom: float) -> float:
    """The times above which Student's t is with that chance."""
    low, high = 0.0, 1e9
    while high - low > 1e-3 * (1 + low):
        middle = (low + high) / 2 if high < 1e3 else math.sqrt((low + 1) * high)
        low, high = (middle, high) if tail(middle, freedom) > chance else (low, middle)
    return high


def smallest(one: Scores, tests: int) -> FloatArray:
    """The smallest loss of each group that would be named with that many tests; NaN where nothing is compared."""
    chance = ANY_NAMED / max(tests, 1)
    bars = {count: times_of(chance, freedom(count)) for count in set(one.gpus.tolist()) if count >= LEAST_GPUS}
    by_class = np.array([bars.get(count, np.nan) for count in one.gpus.tolist()]) * one.spread
    by_repeating = times_of(chance, FREEDOM) * one.repeated
    least: FloatArray = np.fmax(np.fmax(by_class, LEAST_LOSS), np.fmax(by_repeating, one.doubt))
    least[np.isnan(by_class)] = np.nan
    return least


def medians(values: FloatArray, axis: int = 1) -> FloatArray:
    """The median without NaN; NaN where there is nothing else. Much faster than NumPy's for such arrays."""
    ordered = np.sort(np.moveaxis(values, axis, -1))  # NaN last
    count = (~np.isnan(ordered)).sum(axis=-1)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[-1] - 1)
    pair = np.take_along_axis(ordered, np.stack([low, high], axis=-1), axis=-1)
    middle: FloatArray = pair.mean(axis=-1)
    return middle

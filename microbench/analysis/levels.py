"""Tells two levels apart: values that gather at two places with nothing between them, so that a median hides one."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Levels = tuple[float, float]
Samples = npt.NDArray[np.floating[Any]]

# Two levels differ by at least this share of the median: twice the variation above which one process counts as noisy.
LEAST_DISTANCE = 0.05
# The gap between the levels takes at least this share of the whole range, so each level is narrower than the gap.
GAP_SHARE = 2 / 3
# The gap is at least so many times as wide as what blurs each value: a round's interval, or a step of the clock.
BLURS = 3
# Samples at either end of a measurement that may be outliers; so each level holds more than this share of them.
OUTLIERS = 0.1
FEWEST_SAMPLES = 10


def of_rounds(medians: Sequence[float], width: float) -> Levels | None:
    """The two levels of the medians of fresh processes, the lower one first; None if they lie at one level.

    ``width`` is the median width of a round's own interval. Two medians show no levels, however far apart they lie.
    """
    ordered = sorted(medians)
    gaps = [high - low for low, high in pairwise(ordered)]
    if len(gaps) < 2 or not math.isfinite(sum(ordered)):
        return None
    place = max(range(len(gaps)), key=gaps.__getitem__)
    least = max(LEAST_DISTANCE * abs(middle(ordered)), GAP_SHARE * (ordered[-1] - ordered[0]), BLURS * width)
    return (middle(ordered[: place + 1]), middle(ordered[place + 1 :])) if gaps[place] > least else None


def middle(ordered: Sequence[float]) -> float:
    """The median of a few sorted values, ten times as fast as NumPy."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@np.errstate(all="ignore")  # a damaged file may overflow: such samples have no levels
def of_samples(ordered: Samples, medians: Samples, steps: Samples) -> list[Levels | None]:
    """The two levels of each row of sorted samples, where it has two. ``steps`` are the steps of the clocks."""
    count = ordered.shape[1]
    if count < FEWEST_SAMPLES:
        return [None] * len(ordered)
    outliers = math.ceil(OUTLIERS * (count - 1))
    inner = ordered[:, outliers : count - outliers]
    gaps = np.diff(inner, axis=1)
    places = gaps.argmax(axis=1)
    least = np.maximum(LEAST_DISTANCE * np.abs(medians), GAP_SHARE * (inner[:, -1] - inner[:, 0]))
    found: list[Levels | None] = [None] * len(ordered)
    for row in np.flatnonzero(gaps.max(axis=1) > np.maximum(least, BLURS * steps)):
        split = places[row] + 1
        found[row] = float(np.median(inner[row, :split])), float(np.median(inner[row, split:]))
    return found

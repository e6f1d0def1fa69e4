"""How much a figure scatters from process to process: its own rounds, tempered by those of the rows around it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]

# Two-sided normal quantile of 95 %: intervals are at stats.CONFIDENCE.
NORMAL_95 = 1.959964
# No figure is known better than to a share of 0.05 %: rounds that agree to the digit are no proof.
LEAST_DEVIATION = 0.0005
LEAST_WITHIN = 1e-4
# Fewer rows teach nothing about one another.
LEAST_ROWS = 20
# How much a family of rows weighs against the rest: as much as this many rows.
FAMILY_WEIGHT = 2.0
LEAST_UNEXPLAINED = 0.01
HUBER = 1.5
FITS = 4
NORMAL_MAD = 1.4826


class Spread(NamedTuple):
    """Variance of each row's rounds with its degrees of freedom, and what the other rows alone would have led to
    expect (``expected``; None where too few rows are there to say)."""

    variance: FloatArray
    freedom: FloatArray
    expected: FloatArray | None


def student_p(t: FloatArray, freedom: FloatArray) -> FloatArray:
    """Two-sided probability of Student's t, by Wallace's normal approximation (Ann. Math. Statist. 30, 1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t * t / freedom))
    return np.array([math.erfc(one / math.sqrt(2)) for one in z], dtype=np.float64)


def student_95(freedom: FloatArray) -> FloatArray:
    """The two-sided 95 % quantile of Student's t: Wallace's approximation turned round, within 1 % from 4 degrees."""
    z = NORMAL_95 * (8 * freedom + 3) / (8 * freedom + 1)
    result: FloatArray = np.sqrt(freedom * np.expm1(z * z / freedom))
    return result


def moderated(variance: FloatArray, freedom: FloatArray, within: FloatArray, family: IntArray) -> Spread:
    """The variance of each row, moderated by what its family and the spread inside its processes lead to expect.

    With five rounds a side a row's own variance is a matter of luck: of hundreds of rows some look ten times quieter
    than they are, and cry wolf. Empirical Bayes counts the expected variance as ``borrowed`` more degrees of freedom,
    as many as the rows' scatter about their expectation is worth, but no more than a row has itself. Source: Smyth
    (2004), Linear models and empirical Bayes methods, section 6; with a trend and with outliers held back as in
    Phipson et al. (2016).

    ``variance`` is that of the rounds' logarithms, pooled over both runs; ``within`` the relative half width of one
    round's own interval, below which no row scatters; ``family`` numbers rows that one benchmark measured together.
    """
    least = np.maximum((within / NORMAL_95) ** 2, LEAST_DEVIATION**2)
    own = np.maximum(variance, least)
    if len(own) < LEAST_ROWS:
        return Spread(own, freedom, None)
    level = np.log(own) - _digamma(freedom / 2) + np.log(freedom / 2)
    predicted = _predicted(level, np.log(np.maximum(within, LEAST_WITHIN)), family)
    rest = level - predicted
    centre, deviation = _centre(rest)
    unexplained = deviation**2 - float(np.mean(_trigamma(freedom / 2)))
    borrowed = np.minimum(2 * _trigamma_inverse(max(unexplained, LEAST_UNEXPLAINED)), freedom)
    expected = np.exp(predicted + centre + _digamma(borrowed / 2) - np.log(borrowed / 2))
    return Spread((borrowed * expected + freedom * own) / (borrowed + freedom), freedom + borrowed, expected)


def _predicted(level: FloatArray, within: FloatArray, family: IntArray) -> FloatArray:
    """What the other rows say of each row's log variance: a robust line over the level of the rest of its family, that
    family's log spread inside a process, and the row's own beside it."""
    others, others_within = _others(level, family), _others(within, family)
    design = np.column_stack([np.ones_like(within), others, others_within, within - others_within])
    weight, fitted = np.ones_like(level), level
    for _ in range(FITS):
        root = np.sqrt(weight)
        line, *_ = np.linalg.lstsq(design * root[:, None], level * root, rcond=None)
        fitted = design @ line
        _, scale = _centre(level - fitted)
        weight = 1 / np.maximum(1, np.abs(level - fitted) / (HUBER * scale))
    return fitted


def _others(values: FloatArray, family: IntArray) -> FloatArray:
    """The mean of the rest of each row's family, outliers held back, drawn to the middle where there are few."""
    centre, scale = _centre(values)
    held = np.clip(values, centre - 2 * scale, centre + 2 * scale) - centre
    _, member = np.unique(family, return_inverse=True)
    size, total = np.bincount(member), np.bincount(member, held)
    result: FloatArray = centre + (total[member] - held) / (size[member] - 1 + FAMILY_WEIGHT)
    return result


def _centre(values: FloatArray) -> tuple[float, float]:
    """Median, and the deviation that the median distance from it stands for; never 0."""
    centre = float(np.median(values))
    return centre, NORMAL_MAD * float(np.median(np.abs(values - centre))) + 1e-9


def _digamma(x: FloatArray) -> FloatArray:
    """Three terms of its asymptotic series (Abramowitz and Stegun 6.3.18): within 4 % from 1/2 on."""
    result: FloatArray = np.log(x) - 1 / (2 * x) - 1 / (12 * x * x)
    return result


def _trigamma(x: FloatArray) -> FloatArray:
    """Three terms of its asymptotic series (Abramowitz and Stegun 6.4.12): within 2 % from 1 on."""
    result: FloatArray = 1 / x + 1 / (2 * x * x) + 1 / (6 * x**3)
    return result


def _trigamma_inverse(value: float) -> float:
    """Where trigamma has that value, from two of its terms: a little low, so that less is borrowed."""
    return (1 + math.sqrt(1 + 2 * value)) / (2 * value)

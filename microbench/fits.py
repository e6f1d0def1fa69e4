"""Straight lines through costs that span decades: a constant and a slope, and how far off they are."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

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

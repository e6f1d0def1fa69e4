"""Fits a straight line to costs that span decades: a constant, a slope, and the misfit."""

from collections.abc import Iterable

import msgspec
import numpy as np

from microbench.analysis.quantiles import middle

FEWEST_POINTS = 3


class Line(msgspec.Struct, frozen=True):
    """y = constant + slope * x, in the units of the points, with the median and the largest distance of the points from
    it, as shares of their values."""

    constant: float
    slope: float
    median_off: float
    most_off: float

    def at(self, x: float) -> float:
        return self.constant + self.slope * x


def line(points: Iterable[tuple[float, float]]) -> Line | None:
    """The straight line through (x, y) with the least squares of relative residuals.

    Weights are 1/y**2, because over four decades of x plain least squares would fit the largest point alone. A cost has
    no negative constant: if the best constant is negative, the line is fitted again through 0. Points with y at or
    below 0 have no relative residual and are ignored. None for fewer than FEWEST_POINTS points, or a single x.
    Source: weighted linear least squares, e.g. Press et al., Numerical Recipes, section 15.2, with sigma_i = y_i.
    """
    positive = [(x, y) for x, y in points if y > 0]
    if len(positive) < FEWEST_POINTS or len({x for x, _ in positive}) < 2:
        return None
    x, y = (np.array(column, dtype=np.float64) for column in zip(*positive, strict=True))
    reach = float(np.max(np.abs(x)))  # scales both columns alike against rounding
    matrix = np.column_stack((1 / y, x / reach / y))
    constant, steep = np.linalg.lstsq(matrix * np.min(y), np.full(len(y), np.min(y)), rcond=None)[0]
    if constant < 0:
        through_zero = matrix[:, 1]
        constant, steep = 0.0, float(np.sum(through_zero) / np.sum(through_zero**2))
    slope = float(steep) / reach
    off = np.abs(constant + slope * x - y) / y
    return Line(float(constant), slope, middle(np.sort(off).tolist()), float(np.max(off)))

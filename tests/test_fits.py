"""Straight lines: constants are recovered, the misfit is right, and too few points give no line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.analysis.fits import line

DECADES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
constants = st.floats(1e-7, 1e-4)
slopes = st.floats(1e-10, 1e-5)


@given(constants, slopes)
def test_a_straight_line_is_given_back(constant: float, slope: float) -> None:
    found = line([(x, constant + slope * x) for x in DECADES])
    assert found.most_off < 1e-6
    assert all(found.at(x) == pytest.approx(constant + slope * x, rel=1e-6) for x in DECADES)


@given(constants, slopes, st.lists(st.floats(-0.02, 0.02), min_size=len(DECADES), max_size=len(DECADES)))
def test_every_decade_counts_alike(constant: float, slope: float, noise: list[float]) -> None:
    """The residuals are relative, so 2 % of noise anywhere leaves every point within a few percent."""
    points = [(x, (constant + slope * x) * (1 + off)) for x, off in zip(DECADES, noise, strict=True)]
    found = line(points)
    assert found.constant >= 0
    assert found.median_off <= found.most_off < 0.06


@given(constants, slopes, st.lists(st.floats(-0.1, 0.1), min_size=len(DECADES), max_size=len(DECADES)))
def test_it_is_weighted_least_squares(constant: float, slope: float, noise: list[float]) -> None:
    points = [(x, (constant + slope * x) * (1 + off)) for x, off in zip(DECADES, noise, strict=True)]
    found = line(points)
    xs, ys = (np.array(column) for column in zip(*points, strict=True))
    steep, level = np.polyfit(xs / 1e4, ys / ys.min(), 1, w=ys.min() / ys)  # polyfit squares its weights
    if level > 1e-9:
        assert found.at(1) == pytest.approx((level + steep * 1e-4) * ys.min(), rel=1e-6)
        assert found.at(1e4) == pytest.approx((level + steep) * ys.min(), rel=1e-6)


def test_a_constant_is_never_negative() -> None:
    found = line([(1, 1.0), (2, 3.0), (3, 5.0)])
    assert found.constant == 0.0
    # Through 0 the weighted slope is sum(x / y) / sum(x**2 / y**2).
    assert found.slope == pytest.approx((1 + 2 / 3 + 3 / 5) / (1 + 4 / 9 + 9 / 25))


def test_the_misfit_is_the_median_and_the_largest_relative_residual() -> None:
    points = [(1, 10.0), (2, 10.0), (3, 10.0), (4, 20.0), (5, 10.0)]
    found = line(points)
    off = sorted(abs(found.at(x) - y) / y for x, y in points)
    assert found.most_off == pytest.approx(off[-1])
    assert found.median_off == pytest.approx(off[2])


@pytest.mark.parametrize(
    "points", [[], [(1, 1.0), (2, 2.0)], [(1, 1.0)] * 4, [(1, 1.0), (2, 0.0), (3, -1.0), (4, 2.0)]]
)
def test_too_little_to_fit_is_nothing(points: list[tuple[float, float]]) -> None:
    assert line(points) is None

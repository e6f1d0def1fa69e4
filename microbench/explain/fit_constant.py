"""Arithmetic on measured constants: of rows, round by round where they share a case; sums, medians, straight lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from microbench.explain.evidence import rests_on
from microbench.fits import line
from microbench.fitted import Constant
from microbench.stats import Interval, Row, rounds_interval

# How far a constant may be off that another one stands in for, as a share of it.
STAND_IN = 0.3
# Measured by itself: nothing is left out at either end of fewer values than this.
EDGE = 6


def around(value: float, half: float, rows: Iterable[str], assumed: str = "") -> Constant:
    """A cost that lies within ``half`` of ``value``; neither it nor its interval goes below 0."""
    value = max(value, 0.0)
    return Constant(value, max(value - half, 0.0), value + half, tuple(dict.fromkeys(rows)), assumed)


def half_width(constant: Constant) -> float:
    """Half its interval."""
    return (constant.high - constant.low) / 2


def of_row(row: Row, assumed: str = "") -> Constant:
    """A row's value and interval."""
    return of_rows(((1.0, row),), assumed)


def of_rows(parts: Sequence[tuple[float, Row]], assumed: str = "") -> Constant:
    """A sum of rows of one case, each times a factor.

    Each process gives one sum, and the interval is over those: what differs between processes then differs once, not
    in every row. In one process the rows' intervals add as those of independent quantities do. Rows of unlike rounds
    are added as those of one process.
    """
    rounds = {len(row.summaries) for _, row in parts}
    alike = len({row.case_id for _, row in parts}) == 1 and len(rounds) == 1
    processes = [[one.interval for one in row.summaries] if alike else [row.interval] for _, row in parts]
    factors = [factor for factor, _ in parts]
    sums = [_sum(factors, intervals) for intervals in zip(*processes, strict=True)]
    whole = rounds_interval(sums)
    return around(whole.median, (whole.high - whole.low) / 2, (rests_on(row)[0] for _, row in parts), assumed)


def _sum(factors: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    middle = sum(factor * one.median for factor, one in zip(factors, intervals, strict=True))
    half = math.hypot(*(factor * (one.high - one.low) / 2 for factor, one in zip(factors, intervals, strict=True)))
    return Interval(middle, middle - half, middle + half)


def combined(parts: Sequence[tuple[float, Constant]], assumed: str = "") -> Constant:
    """A sum of constants, each times a factor; their intervals add as those of independent quantities do."""
    value = sum(factor * one.value for factor, one in parts)
    half = math.hypot(*(factor * half_width(one) for factor, one in parts))
    words = [one.assumed for _, one in parts] + [assumed]
    names = (row for _, one in parts for row in one.rests_on)
    return around(value, half, names, "; ".join(dict.fromkeys(filter(None, words))))


def middle(several: Sequence[Constant]) -> Constant:
    """The median of several measurements of one constant; of two in the middle the one known better.

    Its interval is its own or reaches over most of the others, whichever is wider.
    """
    ordered = sorted(several, key=lambda one: one.value)
    chosen = min(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1], key=half_width)
    edge = len(ordered) // EDGE
    over = (ordered[-1 - edge].value - ordered[edge].value) / 2
    names = (row for one in several for row in one.rests_on)
    return around(chosen.value, max(over, half_width(chosen)), names, chosen.assumed)


def stand_in(constant: Constant, assumed: str, share: float = STAND_IN) -> Constant:
    """A constant in place of one that was not measured: within ``share`` of it, or its own interval."""
    return around(constant.value, max(half_width(constant), share * constant.value), constant.rests_on, assumed)


def straight(
    points: Sequence[tuple[int, Constant]], one_size: Literal["constant", "slope"], unknown: str
) -> tuple[Constant, Constant] | None:
    """Constant and slope of a cost over a count, in ascending order; None without points.

    The constant's interval is that of the smallest point, the slope's that of the largest, or what the line misses
    them by. A single point leaves the two open: ``one_size`` says which of them takes all of it, and ``unknown`` why.
    """
    if not points:
        return None
    names = [row for _, one in points for row in one.rests_on]
    (x0, first), (x1, last) = points[0], points[-1]
    if x0 == x1:
        each = around(first.value / x0, half_width(first) / x0, names)
        if one_size == "slope":
            return Constant(0.0, 0.0, first.value / 2, tuple(names), unknown), stand_in(each, unknown)
        return msgspec.structs.replace(first, assumed=unknown), Constant(0.0, 0.0, each.value, tuple(names), unknown)
    fitted = line((x, one.value) for x, one in points)
    if fitted is None:
        slope = max((last.value - first.value) / (x1 - x0), 0.0)
        constant = max(first.value - slope * x0, 0.0)
    else:
        slope, constant = fitted.slope, fitted.constant
    at_first = max(half_width(first), abs(constant + slope * x0 - first.value))
    at_last = max(half_width(last), abs(constant + slope * x1 - last.value))
    return around(constant, at_first, names), around(slope, at_last / (x1 - x0), names)

"""THE DECISION: rounds of many rows in two runs -> which rows changed, arrays only, so that simulation can judge it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from microbench.compare_levels import BoolArray, chance_of_levels, levels
from microbench.compare_spread import FloatArray, IntArray, moderated, student_95, student_p

# Nobody should act on less, and two runs of one machine an hour apart may differ by it.
SMALLEST_CHANGE = math.log(1.015)
# The most that a change, taken alone, may be due to chance, however many rows move with it.
LARGEST_P = 1e-3
# Share of false discoveries among what is named in one comparison; every suite gets its part of it.
FALSE_DISCOVERIES = 0.005
# Rows expected to scatter less than this are worth more attention: a small change can be seen there.
QUIET_VARIANCE = 0.005**2
MOST_ATTENTION = 10.0
# A virtual machine's submit drifted by 12 % either way within a minute: less of all host rows together is the host.
HOST_DRIFT = math.log(1.15)
# What one run's host may differ by from the next, row by row, where too few host rows are there to show it.
UNSEEN_HOST_DEVIATION = 0.03
LEAST_HOST_ROWS = 20
# No drift is felt that differently by the rows: what scatters further is some rows' own change.
LARGEST_HOST_DEVIATION = 0.05
# Median of the square of a Student's t with about ten degrees of freedom.
MEDIAN_SQUARE = 0.49
BISECTIONS = 40


@dataclass(frozen=True)
class Figures:
    """Rows that both runs have, as arrays.

    ``base`` and ``new`` are the natural logarithms of what the rounds' medians cost (of a rate, its inverse: what slows
    the host slows both), rows x rounds, NaN where a row has fewer rounds than the most; ``base_at_clock`` and
    ``new_at_clock`` the same at one SM clock, equal to them for rows that do not depend on it. ``partly``: the SM clock
    may bind the row or may not, so that both must agree. ``within`` is the relative half width of one round's own
    interval. ``suite`` and ``family`` are numbers, ``host`` says that the host's clock timed it.
    """

    base: FloatArray
    new: FloatArray
    base_at_clock: FloatArray
    new_at_clock: FloatArray
    partly: BoolArray
    within: FloatArray
    suite: IntArray
    family: IntArray
    host: BoolArray


class Drift(NamedTuple):
    """How the host rows of a suite moved together: the median shift, and how far they scatter about it beyond what
    their rounds explain. ``seen``: there were enough rows to tell."""

    shift: float
    deviation: float
    seen: bool


class Shifts(NamedTuple):
    """What the rounds say of each row. Logarithms; ``half`` is half the 95 % interval, ``own`` without what
    the host may add to it; ``moved`` is the shift less the host's drift; ``noise`` and ``chance`` are probabilities
    without a change."""

    shift: FloatArray
    half: FloatArray
    own: FloatArray
    moved: FloatArray
    noise: FloatArray
    chance: FloatArray
    jumps: BoolArray
    reach: FloatArray
    expected: FloatArray | None
    drift: dict[int, Drift]


class Decision(NamedTuple):
    """Of each row: whether it changed, and whether it would have if rows like it did not jump between two levels.
    ``raw`` holds shifts as measured, ``judged`` those that were decided by: at one SM clock where that binds."""

    changed: BoolArray
    jumping: BoolArray
    raw: Shifts
    judged: Shifts


def decide(figures: Figures) -> Decision:
    """Which rows changed, false discoveries held in check within each suite.

    A row changed if its whole interval lies beyond SMALLEST_CHANGE, as measured and less what all host rows did
    together, if it does not jump between two levels, and if its probability without a change passes weighted
    Benjamini-Hochberg (Genovese et al. 2006) in its suite. Rows whose rounds lie too near each other for such a change
    are none of the tests (independent filtering, Bourgon et al. 2010). There is at least one row, and each has rounds
    on both sides.
    """
    raw = shifts(figures, figures.base, figures.new)
    at_clock = shifts(figures, figures.base_at_clock, figures.new_at_clock)
    judged = _weaker(raw, at_clock, figures.partly)
    least = np.minimum(np.abs(judged.shift), np.abs(judged.moved)) - judged.half
    moves = (least >= SMALLEST_CHANGE) & (judged.shift * judged.moved > 0)
    p = np.minimum(judged.noise + judged.chance, 1.0)
    changed = discoveries(p, judged, figures.suite) & moves & (p <= LARGEST_P) & ~judged.jumps
    without_levels = discoveries(judged.noise, judged, figures.suite) & moves & (judged.noise <= LARGEST_P)
    return Decision(changed, without_levels & ~changed, raw, judged)


def shifts(figures: Figures, base: FloatArray, new: FloatArray) -> Shifts:
    """Shift of each row with its interval and probabilities, from its rounds in both runs."""
    n, m = np.isfinite(base).sum(axis=1), np.isfinite(new).sum(axis=1)
    shift = np.nanmedian((new[:, :, None] - base[:, None, :]).reshape(len(base), -1), axis=1)
    inverse, freedom = 1 / n + 1 / m, (n + m - 2).astype(np.float64)
    spread = moderated((_squares(base) + _squares(new)) / freedom, freedom, figures.within, figures.family)
    error = spread.variance * inverse
    quantile = student_95(spread.freedom)
    own = quantile * np.sqrt(error)
    drift = {int(one): host_drift(shift, error, figures, int(one)) for one in np.unique(figures.suite)}
    moved, error = _beyond_drift(shift, error, figures, drift)
    found = levels(base, new)
    return Shifts(
        shift=shift,
        half=quantile * np.sqrt(error),
        own=own,
        moved=moved,
        noise=student_p(moved / np.sqrt(error), spread.freedom),
        chance=chance_of_levels(found, moved, figures.suite, figures.family),
        jumps=found.jumps,
        reach=np.sqrt(_squares(np.concatenate([base, new], axis=1)) * inverse),
        expected=spread.expected,
        drift=drift,
    )


def _squares(values: FloatArray) -> FloatArray:
    """Sum of squares about its mean of each row's finite values."""
    result: FloatArray = np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2, axis=1)
    return result


def host_drift(shift: FloatArray, error: FloatArray, figures: Figures, suite: int) -> Drift:
    """How the host rows of a suite (of all suites, where it has few) moved together between the runs.

    Rounds of one run share the host's state of those minutes, so their scatter does not show what the host does from
    one run to the next; hundreds of rows that move together do. ``error`` is the variance of each shift.
    """
    rows = figures.host & (figures.suite == suite)
    if rows.sum() < LEAST_HOST_ROWS:
        rows = figures.host
    if rows.sum() < LEAST_HOST_ROWS:
        return Drift(0.0, UNSEEN_HOST_DEVIATION, False)
    centre = float(np.median(shift[rows]))
    squares, own = (shift[rows] - centre) ** 2, error[rows]
    low, high = 0.0, LARGEST_HOST_DEVIATION**2
    if float(np.median(squares / own)) <= MEDIAN_SQUARE:
        return Drift(centre, 0.0, True)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float(np.median(squares / (own + middle))) > MEDIAN_SQUARE:
            low = middle
        else:
            high = middle
    return Drift(centre, math.sqrt(high), True)


def _beyond_drift(
    shift: FloatArray, error: FloatArray, figures: Figures, drift: dict[int, Drift]
) -> tuple[FloatArray, FloatArray]:
    """Shifts less the host's drift, and their variance with its scatter. What exceeds HOST_DRIFT is no drift."""
    moved, variance = shift.copy(), error.copy()
    for suite, one in drift.items():
        rows = figures.host & (figures.suite == suite)
        variance[rows] += one.deviation**2
        if abs(one.shift) < HOST_DRIFT:
            moved[rows] -= one.shift
    return moved, variance


def _weaker(raw: Shifts, at_clock: Shifts, partly: BoolArray) -> Shifts:
    """The shifts at one clock; of rows that may depend on it, whichever speaks less for a change."""
    if not partly.any():
        return at_clock
    opposed = raw.moved * at_clock.moved <= 0
    take = partly & (raw.noise > at_clock.noise)
    chosen = {
        name: np.where(take, getattr(raw, name), getattr(at_clock, name))
        for name in ("shift", "half", "own", "moved", "chance", "jumps", "reach")
    }
    noise = np.where(take, raw.noise, at_clock.noise)
    return at_clock._replace(**chosen, noise=np.where(partly & opposed, 1.0, noise))


def discoveries(p: FloatArray, judged: Shifts, suite: IntArray) -> BoolArray:
    """Weighted Benjamini-Hochberg in each suite, FALSE_DISCOVERIES shared out among the suites."""
    result: BoolArray = np.zeros(len(p), dtype=np.bool_)
    names = np.unique(suite)
    for one in names:
        rows = np.flatnonzero((suite == one) & (judged.reach >= SMALLEST_CHANGE))
        if not len(rows):
            continue
        weighted = p[rows] / _attention(judged.expected, rows)
        order = np.argsort(weighted)
        allowed = FALSE_DISCOVERIES / len(names) * np.arange(1, len(rows) + 1) / len(rows)
        passing = np.flatnonzero(weighted[order] <= allowed)
        if len(passing):
            result[rows[order[: passing[-1] + 1]]] = True
    return result


def _attention(expected: FloatArray | None, rows: IntArray) -> FloatArray:
    """Weights of the tests, 1 in the mean, from what the other rows lead to expect of each: never from its own."""
    if expected is None:
        return np.ones(len(rows))
    weight = 1 / (1 + expected[rows] / QUIET_VARIANCE)
    result: FloatArray = np.minimum(weight / weight.mean(), MOST_ATTENTION)
    return result

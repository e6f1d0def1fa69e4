"""THE DECISION: rounds of many rows in two runs -> which rows changed, arrays only, so that simulation can judge it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import NORMAL_95, student_95

# How much a figure scatters from process to process: its own rounds, tempered by those of the rows around it.


FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]

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


# Rows that jump between two levels from process to process: which do, and how easily chance sorts them by run.


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

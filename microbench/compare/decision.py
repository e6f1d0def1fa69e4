"""Decides from the rounds of two runs which figures changed. It works on arrays only, so that simulations can test it.

``decide`` takes five steps: how far each figure shifted and how much its rounds scatter, the drift of the whole host,
figures that jump between two levels, the SM clock, and false discoveries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import NORMAL_95, STABLE_HALF_WIDTH, student_95

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]
# Why rounds show neither a change nor its absence: the figure jumps between two levels; the host may have drifted as
# far; the interval holds a change as well as none.
Undecided = Literal["levels", "host", "noise"]

# A smaller change is not worth acting on, and two runs of one machine an hour apart may differ by it.
SMALLEST_CHANGE = math.log(1.015)
# A figure is "the same" if a change beyond this would have shown.
WIDEST_SAME = math.log(1 + STABLE_HALF_WIDTH)
# The most that a change, taken alone, may be due to chance, however many figures move with it.
LARGEST_P = 1e-3
# Share of false discoveries among the changes of one comparison; the suites share it equally.
FALSE_DISCOVERIES = 0.005
# Figures expected to scatter less than this get more weight: a small change can be seen there.
QUIET_VARIANCE = 0.005**2
MOST_ATTENTION = 10.0

# The host of a virtual machine drifted by 12 % either way within a minute, so a common shift below this is drift.
HOST_DRIFT = math.log(1.15)
# Assumed drift of each figure between two runs where too few host-timed figures exist to show it.
UNSEEN_HOST_DEVIATION = 0.03
LEAST_HOST_ROWS = 20
# Host-timed figures feel a drift more alike than this; figures that scatter further have changed themselves.
LARGEST_HOST_DEVIATION = 0.05
# Median of the square of a Student's t with about ten degrees of freedom.
MEDIAN_SQUARE = 0.49
BISECTIONS = 40

# Two levels lie this many standard deviations of either apart.
APART = 4.0
# Levels of another figure count as evidence if they are at most this many times wider or narrower than the shift.
COMPARABLE = 2.0
# Weight of the whole suite against a figure's own family, in figures.
SUITE_WEIGHT = 3.0

# No figure is known better than to 0.05 %, even if its rounds agree to the last digit.
LEAST_DEVIATION = 0.0005
LEAST_WITHIN = 1e-4
# With fewer figures nothing is learned from the others about the scatter of each.
LEAST_ROWS = 20
# Weight of the whole run against a figure's own family, in figures.
FAMILY_WEIGHT = 2.0
LEAST_UNEXPLAINED = 0.01
HUBER = 1.5
FITS = 4
NORMAL_MAD = 1.4826


@dataclass(frozen=True)
class Figures:
    """Figures that both runs have, one a row.

    ``base`` and ``new`` are rows x rounds: natural logarithms of the cost in each round (a rate costs its inverse,
    because what slows the host slows both), NaN where a figure has fewer rounds. ``base_at_clock`` and
    ``new_at_clock`` are the same at one SM clock, and equal to them where the clock does not matter. ``partly``: the SM
    clock may or may not bind the figure, so both must agree. ``within``: relative half width of one round's interval.
    ``suite`` and ``family`` are numbers; a family is what one benchmark measured together. ``host``: timed by the
    host's clock.
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
    """How the host-timed figures of a suite moved together: their median shift, and how far they scatter about it
    beyond what their rounds explain. ``seen``: there were enough figures to tell."""

    shift: float
    deviation: float
    seen: bool


class Shifts(NamedTuple):
    """The shift of each figure, as logarithms. ``half`` is half the 95 % interval, ``own`` the same without the host's
    part; ``moved`` is the shift less the host's drift. ``noise`` and ``chance`` are the probabilities of the shift
    without a change: by scatter, and by levels. ``reach`` is the scatter of all rounds of both runs together."""

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
    """Whether each figure changed, and whether it would have if figures like it did not jump between two levels.

    ``raw`` holds the shifts as measured, ``judged`` those that decided: at one SM clock where that binds.
    """

    changed: BoolArray
    jumping: BoolArray
    raw: Shifts
    judged: Shifts

    def undecided(self, row: int) -> Undecided | None:
        """Why a figure that did not change is unclear; None if it is the same.

        "host" is what more rounds of one run cannot settle.
        """
        shift, half, moved, own = (
            float(values[row]) for values in (self.judged.shift, self.judged.half, self.judged.moved, self.judged.own)
        )
        if self.jumping[row]:
            return "levels"
        if abs(shift) + half <= WIDEST_SAME and abs(shift) - half <= SMALLEST_CHANGE:
            return None
        without_host = abs(moved) + half <= WIDEST_SAME and abs(moved) - half <= SMALLEST_CHANGE
        settled = abs(shift) + own <= WIDEST_SAME or abs(shift) - own >= SMALLEST_CHANGE
        return "host" if without_host or (settled and half**2 > 2 * own**2) else "noise"


def decide(figures: Figures) -> Decision:
    """Decide which figures changed, with false discoveries controlled within each suite.

    A figure changed if its whole interval lies beyond SMALLEST_CHANGE, both as measured and less the host's drift, if
    it does not jump between two levels, and if its probability without a change passes weighted Benjamini-Hochberg
    (Genovese et al. 2006) in its suite. Figures whose rounds lie too close together for such a change are not tested
    (independent filtering, Bourgon et al. 2010). There must be at least one figure, each with rounds on both sides.
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
    """The shift of each figure with its interval and probabilities, from its rounds in both runs."""
    n, m = np.isfinite(base).sum(axis=1), np.isfinite(new).sum(axis=1)
    shift = np.nanmedian((new[:, :, None] - base[:, None, :]).reshape(len(base), -1), axis=1)
    inverse, freedom = 1 / n + 1 / m, (n + m - 2).astype(np.float64)
    spread = _moderated((_squares(base) + _squares(new)) / freedom, freedom, figures.within, figures.family)
    error = spread.variance * inverse
    quantile = student_95(spread.freedom)
    own = quantile * np.sqrt(error)
    drift = {int(suite): _host_drift(shift, error, figures, int(suite)) for suite in np.unique(figures.suite)}
    moved, error = _beyond_drift(shift, error, figures, drift)
    split = levels(base, new)
    return Shifts(
        shift=shift,
        half=quantile * np.sqrt(error),
        own=own,
        moved=moved,
        noise=_student_p(moved / np.sqrt(error), spread.freedom),
        chance=chance_of_levels(split, moved, figures.suite, figures.family),
        jumps=split.jumps,
        reach=np.sqrt(_squares(np.concatenate([base, new], axis=1)) * inverse),
        expected=spread.expected,
        drift=drift,
    )


def _squares(values: FloatArray) -> FloatArray:
    """Sum of squares about its mean of each row's finite values."""
    result: FloatArray = np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2, axis=1)
    return result


def _student_p(t: FloatArray, freedom: FloatArray) -> FloatArray:
    """Two-sided probability of Student's t, by Wallace's normal approximation (Ann. Math. Statist. 30, 1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t * t / freedom))
    return np.array([math.erfc(value / math.sqrt(2)) for value in z], dtype=np.float64)


def _weaker(raw: Shifts, at_clock: Shifts, partly: BoolArray) -> Shifts:
    """The shifts at one clock; for figures that only may depend on it, the shift that speaks less for a change."""
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
    """Weighted Benjamini-Hochberg in each suite; the suites share FALSE_DISCOVERIES equally."""
    result: BoolArray = np.zeros(len(p), dtype=np.bool_)
    suites = np.unique(suite)
    for number in suites:
        rows = np.flatnonzero((suite == number) & (judged.reach >= SMALLEST_CHANGE))
        if not len(rows):
            continue
        weighted = p[rows] / _attention(judged.expected, rows)
        order = np.argsort(weighted)
        allowed = FALSE_DISCOVERIES / len(suites) * np.arange(1, len(rows) + 1) / len(rows)
        passing = np.flatnonzero(weighted[order] <= allowed)
        if len(passing):
            result[rows[order[: passing[-1] + 1]]] = True
    return result


def _attention(expected: FloatArray | None, rows: IntArray) -> FloatArray:
    """Weights of the tests, 1 on average. They come from the scatter expected by the other rows, never from a row's own
    rounds."""
    if expected is None:
        return np.ones(len(rows))
    weight = 1 / (1 + expected[rows] / QUIET_VARIANCE)
    result: FloatArray = np.minimum(weight / weight.mean(), MOST_ATTENTION)
    return result


def _host_drift(shift: FloatArray, error: FloatArray, figures: Figures, suite: int) -> Drift:
    """How the host-timed figures of a suite moved together; those of all suites if it has few.

    Rounds of one run share the host's state of those minutes, so their scatter does not show how the host differs from
    one run to the next. Many figures that move together do. ``error`` is the variance of each shift.
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
    shift: FloatArray, error: FloatArray, figures: Figures, drifts: dict[int, Drift]
) -> tuple[FloatArray, FloatArray]:
    """Shifts less the host's drift, and their variance plus its scatter. A shift beyond HOST_DRIFT is not subtracted,
    because hosts do not drift that far."""
    moved, variance = shift.copy(), error.copy()
    for suite, drift in drifts.items():
        rows = figures.host & (figures.suite == suite)
        variance[rows] += drift.deviation**2
        if abs(drift.shift) < HOST_DRIFT:
            moved[rows] -= drift.shift
    return moved, variance


class Levels(NamedTuple):
    """Per figure: whether its rounds lie on two levels and at least one run was on both (``jumps``), how far apart
    these are, and how likely chance alone puts each run on a level of its own (``sorted_by_chance``)."""

    jumps: BoolArray
    apart: FloatArray
    sorted_by_chance: FloatArray


def levels(base: FloatArray, new: FloatArray) -> Levels:
    """Two levels in the rounds of both runs together (rows x rounds, NaN where a row has fewer).

    The rounds are split at the widest gap that leaves at least two on either side. A figure with BASE on one level and
    NEW on the other does not jump by this test: it either changed, or it jumps and chance sorted it.
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


def chance_of_levels(split: Levels, shift: FloatArray, suite: IntArray, family: IntArray) -> FloatArray:
    """The probability that a figure's shift is no change, but two levels that chance sorted by run.

    Five processes a side cannot exclude it: a figure that takes either level half of the time is sorted once in 512
    pairs of runs. The probability is the share of figures in the family that jump about as far, and to a small part
    those of the suite, times the chance that their levels are sorted by run.
    """
    result: FloatArray = np.zeros_like(shift)
    for number in np.unique(suite):
        rows = np.flatnonzero(suite == number)
        jumping = rows[split.jumps[rows]]
        wide, apart = np.abs(shift[rows])[:, None], split.apart[jumping][None, :]
        comparable = (apart > wide / COMPARABLE) & (apart < wide * COMPARABLE)
        chance = comparable * split.sorted_by_chance[jumping][None, :]
        related = (chance * (family[rows][:, None] == family[jumping][None, :])).sum(axis=1)
        _, member = np.unique(family[rows], return_inverse=True)
        whole = chance.sum(axis=1) / len(rows)
        result[rows] = (related + SUITE_WEIGHT * whole) / (np.bincount(member)[member] + SUITE_WEIGHT)
    return result


class _Spread(NamedTuple):
    """Variance of each row's rounds with its degrees of freedom, and the variance that the other rows alone predict
    (``expected``; None if there are too few rows)."""

    variance: FloatArray
    freedom: FloatArray
    expected: FloatArray | None


def _moderated(variance: FloatArray, freedom: FloatArray, within: FloatArray, family: IntArray) -> _Spread:
    """The variance of each row, moderated by the variance that its family and the spread inside its processes predict.

    With five rounds a side a row's own variance is a matter of luck: some of hundreds of rows look ten times quieter
    than they are and would raise false alarms. Empirical Bayes counts the expected variance as ``borrowed`` more
    degrees of freedom: as many as the rows' scatter about their expectation is worth, but no more than a row has
    itself. Source: Smyth (2004), Linear models and empirical Bayes methods, section 6; with a trend and limited
    outliers as in Phipson et al. (2016).

    ``variance`` is that of the rounds' logarithms, pooled over both runs; ``within`` is the relative half width of one
    round's own interval, below which no row scatters.
    """
    least = np.maximum((within / NORMAL_95) ** 2, LEAST_DEVIATION**2)
    own = np.maximum(variance, least)
    if len(own) < LEAST_ROWS:
        return _Spread(own, freedom, None)
    level = np.log(own) - _digamma(freedom / 2) + np.log(freedom / 2)
    predicted = _predicted(level, np.log(np.maximum(within, LEAST_WITHIN)), family)
    centre, deviation = _centre(level - predicted)
    unexplained = max(deviation**2 - float(np.mean(_trigamma(freedom / 2))), LEAST_UNEXPLAINED)
    # The inverse of trigamma by two of its terms is a little low, so that less is borrowed.
    borrowed = np.minimum(2 * ((1 + math.sqrt(1 + 2 * unexplained)) / (2 * unexplained)), freedom)
    expected = np.exp(predicted + centre + _digamma(borrowed / 2) - np.log(borrowed / 2))
    return _Spread((borrowed * expected + freedom * own) / (borrowed + freedom), freedom + borrowed, expected)


def _predicted(level: FloatArray, within: FloatArray, family: IntArray) -> FloatArray:
    """Each row's log variance as the other rows predict it: a robust line over the level of the rest of its family,
    that family's log spread inside a process, and how the row's own log spread differs from it."""
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
    """The mean of the rest of each row's family, with outliers clipped; small families are drawn to the middle."""
    centre, scale = _centre(values)
    clipped = np.clip(values, centre - 2 * scale, centre + 2 * scale) - centre
    _, member = np.unique(family, return_inverse=True)
    size, total = np.bincount(member), np.bincount(member, clipped)
    result: FloatArray = centre + (total[member] - clipped) / (size[member] - 1 + FAMILY_WEIGHT)
    return result


def _centre(values: FloatArray) -> tuple[float, float]:
    """The median, and the standard deviation estimated from the median distance to it; never 0."""
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

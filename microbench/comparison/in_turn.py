"""Decides which figures of two sides differ that were measured in turn, A B, B A, …, and when that is decided.

What the host does to both processes of a pair falls out of their ratio. ``looks`` says after how many pairs the rule
looks at them. The false alarms of all looks together are limited to FALSE_ALARMS: of two equal sides, at most 1 % of
measurements name any change, whenever they stop. The last look may spend half of that, those before it share the rest
(Bonferroni). Within a look the figures share it by Benjamini and Hochberg.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from microbench.analysis.quantiles import LEAST_DISTANCE, FloatArray
from microbench.comparison.compare import Change, Comparison, Verdict, compared, direction, ratio_of
from microbench.comparison.decision import LEAST_DEVIATION, NORMAL_MAD, SAME_WITHIN, BoolArray, Undecided, by_chance
from microbench.comparison.pairs import Pair, cost_sign, figures, paired
from microbench.core.model import Run

FALSE_ALARMS = 0.01
FIRST_LOOK, MORE_AT_EACH = 6, 1.6
# A smaller change is not worth acting on.
SMALLEST_CHANGE = math.log(1.01)
# The share of changes as large as ``smallest`` that is found.
FOUND = 0.95
# The host changed its state inside a pair that lies so many deviations from the middle one, and as far as levels do.
APART = 5.0
FEWEST_KEPT = 5


class Judged(NamedTuple):
    """A look at figures, as logarithms of the cost of B over A.

    ``half`` is half the interval that decides, ``smallest`` the change that 95 of 100 such measurements find. ``open``:
    more pairs may decide the figure. ``levels``: the pairs lie on several levels, which says nothing.
    """

    shift: FloatArray
    half: FloatArray
    smallest: FloatArray
    changed: BoolArray
    same: BoolArray
    open: BoolArray
    levels: BoolArray


class InTurn(NamedTuple):
    """Two sides compared after ``pairs`` pairs of rounds; the intervals have the ``confidence`` of this look.

    ``smallest`` is what would have been found of each change of the comparison, as a share; None if it is not judged.
    ``decided``: no more pairs are needed.
    """

    comparison: Comparison
    pairs: int
    confidence: float
    smallest: tuple[float | None, ...]
    decided: bool

    @property
    def unmeasured(self) -> tuple[tuple[str, str], ...]:
        """The side ("A" or "B") and the reason of each kind of case that was not measured there, each once."""
        sides = ("A", self.comparison.base), ("B", self.comparison.new)
        return tuple(
            dict.fromkeys(
                (side, f"{one.case.benchmark} {one.status.replace('_', ' ')}: {one.reason}")
                for side, run in sides
                for one in run.outcomes
                if one.status != "ok"
            )
        )


def looks(most: int) -> dict[int, float]:
    """After how many of at most ``most`` pairs the rule looks at them, and the false alarms allowed at each look."""
    counts = [FIRST_LOOK]
    while counts[-1] < most:
        counts.append(min(math.ceil(counts[-1] * MORE_AT_EACH), most))
    *early, last = counts
    return {count: FALSE_ALARMS / 2 / len(early) for count in early} | {last: FALSE_ALARMS / (2 if early else 1)}


def compare_in_turn(base: Run, new: Run, done: int, most: int, same_within: float = SAME_WITHIN) -> InTurn:
    """Compare two runs that were measured in turn: ``done`` times of at most ``most``, at one of ``looks``."""
    matched, allowed = paired(base, new), looks(most)[done]
    # A round that failed on one side leaves rounds that are no pairs.
    rounds = [[[outcome.round for outcome in row.outcomes] for row in pair[:2]] for pair in matched.pairs]
    alike = zip(matched.pairs, rounds, strict=True)
    ready = [pair for pair, (one, other) in alike if pair.reason is None and one == other]
    changes, smallest, decided = dict[int, Change](), dict[int, float](), True
    if ready:
        arrays = figures(ready, {})
        judged = judge(arrays.new - arrays.base, allowed, most, same_within)
        changes = {id(pair): _change(pair, judged, row) for row, pair in enumerate(ready)}
        smallest = {id(pair): math.expm1(float(judged.smallest[row])) for row, pair in enumerate(ready)}
        decided = not judged.open.any()
    comparison = compared(base, new, matched, changes, same_within)
    return InTurn(comparison, done, 1 - allowed, tuple(smallest.get(id(pair)) for pair in matched.pairs), decided)


def _change(pair: Pair, judged: Judged, row: int) -> Change:
    shift, half = float(judged.shift[row]), float(judged.half[row])
    reason: Undecided | None = None
    verdict: Verdict
    if judged.same[row]:
        verdict = "same"
    elif not judged.changed[row]:
        verdict, reason = "unclear", "levels" if judged.levels[row] else "noise"
    else:
        verdict = direction(pair, shift)
    ratio = ratio_of(shift, half, cost_sign(pair))
    return Change(pair.base, pair.new, verdict, reason, ratio, ratio)


def judge(shifts: FloatArray, allowed: float, most: int, same_within: float = SAME_WITHIN) -> Judged:
    """Judge figures (rows) by the logarithm of the cost of B over A in each pair, NaN where a figure has fewer.

    ``allowed`` are the false alarms of this look. Pairs are left out where the host changed its state between their two
    processes. If not minutes but processes have levels, chance may put the two sides on different ones: then a shift
    that is not small beside their distance is none, unless nearly all pairs agree.
    """
    pairs = np.isfinite(shifts).sum(axis=1)
    distance = np.abs(shifts - np.nanmedian(shifts, axis=1, keepdims=True))
    scatter = NORMAL_MAD * np.nanmedian(distance, axis=1, keepdims=True)
    kept = distance <= np.maximum(APART * scatter, LEAST_DISTANCE)
    count = kept.sum(axis=1)
    shift = np.where(kept, shifts, 0.0).sum(axis=1) / count
    freedom = np.maximum(count - 1.0, 1.0)
    squares = (np.where(kept, shifts - shift[:, None], 0.0) ** 2).sum(axis=1)
    deviation = np.sqrt(np.maximum(squares / freedom, 2 * LEAST_DEVIATION**2))
    # A pair that is left out adds to the uncertainty.
    error = deviation * np.sqrt(pairs) / count
    nearest = np.where(kept, np.inf, distance).min(axis=1, where=np.isfinite(shifts), initial=np.inf)
    by_side = (3 * np.abs(shift) > nearest) & (pairs - count > (pairs - FIRST_LOOK) // 2)
    levels = (count < np.maximum(FEWEST_KEPT, pairs / 2)) | by_side
    half = _quantile(allowed, freedom) * error
    p = by_chance(shift / error, freedom)
    order = np.argsort(p)
    passing = np.flatnonzero(p[order] <= allowed * np.arange(1, len(p) + 1) / len(p))
    found = np.isin(np.arange(len(p)), order[: passing[-1] + 1 if len(passing) else 0])
    changed = found & (np.abs(shift) - half >= SMALLEST_CHANGE) & ~levels
    within = math.log1p(same_within)
    same = ~changed & ~levels & (np.abs(shift) + half <= within)
    # Where one figure changed, others are not waited for until they are the same.
    undecided = ~changed & ~same & (~changed.any() | (np.abs(shift) >= SMALLEST_CHANGE))
    # A change that stands alone must be certain enough for all figures.
    alone = _quantile(allowed / len(p), freedom) + NormalDist().inv_cdf(FOUND)
    return Judged(shift, half, SMALLEST_CHANGE + alone * error, changed, same, undecided & (pairs < most), levels)


def _quantile(chance: float, freedom: FloatArray) -> FloatArray:
    """The two-sided quantile of Student's t, by Wallace's approximation as in ``by_chance``."""
    z = NormalDist().inv_cdf(1 - chance / 2) * (8 * freedom + 3) / (8 * freedom + 1)
    return np.sqrt(freedom * np.expm1(z * z / freedom))

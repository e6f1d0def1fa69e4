"""Decides from the rounds of two runs which figures changed. It works on arrays only, so that simulations can test it.

``decide`` takes six steps: how far each figure shifted and how much its rounds scatter; what each suite's figures did
together, and how far they scatter between runs beyond what their rounds explain; figures that jump between two levels;
the SM clock; false discoveries; and whether another figure, or another session, confirms a change.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.quantiles import FloatArray
from microbench.analysis.stats import NORMAL_95, STABLE_HALF_WIDTH, student_95

IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]
# A figure that did not change is the same, certainly within 10 %, or unclear. Reasons for unclear: it jumps between two
# levels ("levels"); it moved, but nothing confirms that, and it may keep one level for a whole session ("unconfirmed");
# the host or the GPU may differ as much from run to run; or the interval contains both a change and no change
# ("noise").
Undecided = Literal["levels", "unconfirmed", "host", "gpu", "noise"]
Unchanged = Literal["same", "within 10 %", "unclear"]

# Differences between rounds that are held at once: 32 MB.
MOST_DIFFERENCES = 1 << 22
# A smaller change is not worth acting on, and two runs of one machine an hour apart may differ by it.
SMALLEST_CHANGE = math.log(1.015)
# A figure is "the same" if its whole interval lies within this and includes 0; `compare --same-within` sets it.
SAME_WITHIN = 0.03
# A figure that is neither changed nor the same is unclear if its interval reaches beyond this.
WIDEST_KNOWN = math.log(1 + STABLE_HALF_WIDTH)
# The most that a change, taken alone, may be due to chance, however many figures move with it.
LARGEST_P = 1e-3
# Share of false discoveries among the changes of one comparison; the suites share it equally.
FALSE_DISCOVERIES = 0.005
# Figures expected to scatter less than this get more weight: a small change can be seen there.
QUIET_VARIANCE = 0.005**2
MOST_ATTENTION = 10.0

# Without controls, a common shift of host-timed figures below this counts as drift: the host of a virtual machine
# drifted by 12 % either way within a minute.
HOST_DRIFT = math.log(1.15)
# The fewest controls that say whether the host moved, and how well they must know that it did not.
LEAST_CONTROLS = 5
CONTROLS_WITHIN = math.log(1.03)
# A suite may feel a drift of the host this many times as much as the controls do, where its rounds do not say how much.
FEELS_MORE = 2.0
# One suite may feel it so many times as much as the others.
ALIKE = 1.5
# Assumed standard deviations between two runs. The first two are of one figure timed by the host or by the device, and
# apply where too few figures show it. The third is of all device-timed figures of a suite together, which one pair of
# runs cannot show.
UNSEEN_HOST_DEVIATION = 0.03
UNSEEN_DEVICE_DEVIATION = 0.01
DEVICE_TOGETHER = 0.007 * math.sqrt(2)
LEAST_ROWS_TOGETHER = 20
# A drift shifts all figures with less scatter than this; figures that scatter more have changed themselves.
LARGEST_DEVIATION = 0.05
# Median and upper quartile of the square of a Student's t with about ten degrees of freedom.
MEDIAN_SQUARE, UPPER_SQUARE = 0.49, 1.49
# Variance of a median over that of a mean.
MEDIAN_VARIANCE = math.pi / 2
# Rounds that resemble their neighbours understate the variance of a run, at most by this.
MOST_UNDERSTATED = 16.0

# A change is confirmed by its family if at least so many of it, and this share, changed the same way.
LEAST_CONFIRMING, SHARE_CONFIRMING = 3, 1 / 3
# Levels that a figure keeps for a session were seen up to 36 % apart (a node of a graph), so farther is a change.
LARGEST_LEVEL = math.log(1.4)

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
NORMAL_MAD = 1.4826


@dataclass(frozen=True)
class Figures:
    """Figures that both runs have, one a row.

    ``base`` and ``new`` are rows x rounds: natural logarithms of the cost in each round (a rate costs its inverse,
    because what slows the host slows both), NaN where a figure has fewer rounds. ``base_at_clock`` and
    ``new_at_clock`` are the same at one SM clock, and equal to them where the clock does not matter. ``partly``: the SM
    clock may or may not bind the figure, so both must agree. ``within``: relative half width of one round's interval.
    ``suite`` and ``family`` are numbers; a family is what one benchmark measured together. ``host``: timed by the
    host's clock. ``control``: such a figure that no driver can change. ``counted``: a count, which no clock times.
    ``session`` is a number for the sessions in which both runs measured a figure: equal ones share their rounds.
    ``in_turn``: the rounds of the two runs alternated, so that their scatter shows what differs from run to run.
    """

    base: FloatArray
    new: FloatArray
    base_at_clock: FloatArray
    new_at_clock: FloatArray
    partly: BoolArray
    within: FloatArray
    suite: IntArray
    family: IntArray
    session: IntArray
    host: BoolArray
    control: BoolArray
    counted: BoolArray
    in_turn: BoolArray


class Shift(NamedTuple):
    """The shift that figures have in common, and half its 95 % interval, as logarithms."""

    median: float
    half: float

    @property
    def least(self) -> float:
        return abs(self.median) - self.half

    @property
    def most(self) -> float:
        return abs(self.median) + self.half


class Together(NamedTuple):
    """What the figures of a suite with one clock (the host's or the device's) did together.

    ``variance`` is how far figures scatter about the common shift from run to run, and ``factor`` by how much the
    scatter of rounds understates that of runs. ``changed``: the common shift is a change of the suite; if not, it is
    taken off its figures. ``seen``: the suite has enough figures to tell; if not, those of all suites stand in.
    ``least``: a change of the whole suite by so much would have been found in 95 of 100 such pairs of runs.
    """

    shift: Shift
    variance: float
    factor: float
    changed: bool
    seen: bool
    least: float = math.inf


class Measured(NamedTuple):
    """The shift of each figure, half its 95 % interval and its variance, by its rounds alone; the degrees of freedom,
    and the variance of its rounds that the other figures alone predict (None if they are too few)."""

    shift: FloatArray
    own: FloatArray
    error: FloatArray
    freedom: FloatArray
    expected: FloatArray | None


class Shifts(NamedTuple):
    """The shift of each figure, as logarithms. ``half`` is half the 95 % interval, ``own`` the same from the rounds
    alone; ``moved`` is the shift less the common drift. ``noise`` and ``chance`` are the probabilities of the shift
    without a change: by scatter, and by levels. ``reach`` is the scatter of all rounds of both runs together.
    ``together`` is by suite and whether the host times it; ``controls`` is None if there are too few."""

    shift: FloatArray
    half: FloatArray
    own: FloatArray
    moved: FloatArray
    noise: FloatArray
    chance: FloatArray
    jumps: BoolArray
    reach: FloatArray
    expected: FloatArray | None
    together: dict[tuple[int, bool], Together]
    controls: Shift | None


class Decision(NamedTuple):
    """Whether each figure changed; ``unconfirmed``: it would have, but nothing confirms it; ``jumping``: it would have,
    if figures like it did not jump between two levels.

    ``raw`` holds the shifts as measured, ``judged`` those that decided: at one SM clock where that binds.
    """

    changed: BoolArray
    unconfirmed: BoolArray
    jumping: BoolArray
    host: BoolArray
    raw: Measured
    judged: Shifts

    def unchanged(self, row: int, same_within: float = SAME_WITHIN) -> tuple[Unchanged, Undecided | None]:
        """What a figure that did not change is, and why it is unclear. "Same" is an interval within ``same_within``.

        "host" and "gpu": the host or GPU may differ as much from run to run, so more rounds of one run cannot settle
        it.
        """
        shift, half, moved, own = (
            float(values[row]) for values in (self.judged.shift, self.judged.half, self.judged.moved, self.judged.own)
        )
        if self.jumping[row]:
            return "unclear", "levels"
        if self.unconfirmed[row]:
            return "unclear", "unconfirmed"
        if abs(shift) + half <= math.log1p(same_within) and abs(shift) <= half:
            return "same", None
        if _known(shift, half):
            return "within 10 %", None
        settled = _known(shift, own) or abs(shift) - own >= SMALLEST_CHANGE
        if _known(moved, half) or (settled and half**2 > 2 * own**2):
            return "unclear", "host" if self.host[row] else "gpu"
        return "unclear", "noise"


def _known(shift: float, half: float) -> bool:
    """True if the interval stays within 10 % and holds no change that counts."""
    return abs(shift) + half <= WIDEST_KNOWN and abs(shift) - half <= SMALLEST_CHANGE


def decide(figures: Figures) -> Decision:
    """Decide which figures changed, with false discoveries controlled within each suite.

    A figure changed if its whole interval lies beyond SMALLEST_CHANGE, both as measured and less the common drift, if
    it does not jump between two levels, if its probability without a change passes weighted Benjamini-Hochberg
    (Genovese et al. 2006) in its suite, and if something confirms it (``_confirmed``). Figures whose rounds lie too
    close together for such a change are not tested (independent filtering, Bourgon et al. 2010). There must be at least
    one figure, each with rounds on both sides.
    """
    raw = _measured(figures, figures.base, figures.new)
    at_clock = _measured(figures, figures.base_at_clock, figures.new_at_clock)
    # Where it is unknown whether the SM clock binds a figure, the weaker of the two shifts counts, and both must have
    # one sign.
    weaker = figures.partly & (np.abs(raw.shift) * at_clock.own < np.abs(at_clock.shift) * raw.own)
    opposed = figures.partly & (raw.shift * at_clock.shift <= 0)
    judged = shifts(
        figures,
        np.where(weaker[:, None], figures.base, figures.base_at_clock),
        np.where(weaker[:, None], figures.new, figures.new_at_clock),
    )
    judged = judged._replace(noise=np.where(opposed, 1.0, judged.noise))
    least = np.minimum(np.abs(judged.shift), np.abs(judged.moved)) - judged.half
    moves = (least >= SMALLEST_CHANGE) & (judged.shift * judged.moved > 0)
    p = np.minimum(judged.noise + judged.chance, 1.0)
    found = discoveries(p, judged, figures.suite) & moves & (p <= LARGEST_P) & ~judged.jumps
    without_levels = discoveries(judged.noise, judged, figures.suite) & moves & (judged.noise <= LARGEST_P)
    changed = found & _confirmed(found, judged, figures)
    return Decision(changed, found & ~changed, without_levels & ~found, figures.host, raw, judged)


def _confirmed(found: BoolArray, judged: Shifts, figures: Figures) -> BoolArray:
    """Which changes something confirms, so that they are not just one figure at another level in the second session.

    A figure that sits on one of two levels for a whole session gives the same rounds as one that changed, so that no
    test of its own rounds can tell. It is confirmed by rounds that alternate, by its suite, by its family, or by a
    distance that levels never had. A count does not depend on how a process settled. Figures of other suites, which
    stand in for a suite with few figures, confirm nothing in it.
    """
    confirmed = figures.in_turn | figures.counted | (np.abs(judged.shift) >= LARGEST_LEVEL)
    _, member = np.unique(figures.family, return_inverse=True)
    size = np.bincount(member)
    for sign in (1, -1):
        same_way = found & (judged.moved * sign > 0)
        count = np.bincount(member, same_way)
        confirmed |= same_way & ((count >= LEAST_CONFIRMING) & (count >= SHARE_CONFIRMING * size))[member]
    for (suite, host), group in judged.together.items():
        if group.changed and group.seen:
            of_it = (figures.suite == suite) & (figures.host == host) & ~figures.counted
            confirmed |= of_it & (judged.moved * group.shift.median > 0)
    return confirmed


def _measured(figures: Figures, base: FloatArray, new: FloatArray) -> Measured:
    """The shift of each figure, and what its rounds say about its error."""
    n, m = np.isfinite(base).sum(axis=1), np.isfinite(new).sum(axis=1)
    differences = base.shape[1] * new.shape[1]
    step = max(1, MOST_DIFFERENCES // max(1, differences))
    shift = np.concatenate([
        _median((new[at : at + step, :, None] - base[at : at + step, None, :]).reshape(-1, differences), axis=1)
        for at in range(0, max(1, len(base)), step)
    ])  # fmt: skip
    freedom = (n + m - 2).astype(np.float64)
    variance = (_squares(base) + _squares(new)) / freedom
    variance, freedom, expected = _moderated(variance, freedom, figures.within, figures.family)
    error = variance * (1 / n + 1 / m)
    return Measured(shift, student_95(freedom) * np.sqrt(error), error, freedom, expected)


def shifts(figures: Figures, base: FloatArray, new: FloatArray) -> Shifts:
    """The shift of each figure with its interval and probabilities, from its rounds in both runs."""
    shift, own, own_error, freedom, expected = _measured(figures, base, new)
    error = own_error.copy()
    control = figures.control & ~figures.in_turn
    if control.sum() < LEAST_CONTROLS:
        control = np.zeros_like(control)
    controls = _in_common(base, new, shift, control) if control.any() else None
    together: dict[tuple[int, bool], Together] = {}
    moved, about = shift.copy(), shift.copy()
    for host in (True, False):
        timed = (figures.host == host) & ~figures.counted
        for suite in np.unique(figures.suite[timed & ~control]):
            rows = timed & ~control & (figures.suite == suite)
            group = _together(base, new, shift, own_error, figures, rows, timed, controls)
            together[int(suite), host] = group
            rows &= ~figures.in_turn
            error[rows] = error[rows] * group.factor + group.variance
            if not group.changed:
                moved[rows] -= group.shift.median
            about[rows] = shift[rows] - group.shift.median
    if controls is not None:
        # The controls are few, so how far they scatter between runs is learned from all that the host times.
        about[control] = shift[control] - controls.median
        rows = figures.host & ~figures.counted & ~figures.in_turn
        variance, factor = _between_runs(about[rows], own_error[rows], figures.family[rows])
        error[control] = error[control] * factor + variance
        moved[control] = about[control]
    split, both = levels(base, new), np.concatenate([base, new], axis=1)
    return Shifts(
        shift=shift,
        half=student_95(freedom) * np.sqrt(error),
        own=own,
        moved=moved,
        noise=by_chance(moved / np.sqrt(error), freedom),
        chance=chance_of_levels(split, moved, figures.suite, figures.family),
        jumps=split.jumps,
        reach=np.sqrt(_squares(both) * (1 / np.isfinite(base).sum(axis=1) + 1 / np.isfinite(new).sum(axis=1))),
        expected=expected,
        together=together,
        controls=controls,
    )


def by_chance(t: FloatArray, freedom: FloatArray) -> FloatArray:
    """The two-sided probability of Student's t, by Wallace's normal approximation (Ann. Math. Statist. 30, 1959)."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t * t / freedom))
    return np.array([math.erfc(value / math.sqrt(2)) for value in z], dtype=np.float64)


def _median(values: FloatArray, axis: int) -> FloatArray:
    """The median of the finite values; NumPy takes ten times as long where some may be missing."""
    return (np.median if np.isfinite(values).all() else np.nanmedian)(values, axis=axis)


def _squares(values: FloatArray) -> FloatArray:
    """Sum of squares about its mean of each row's finite values."""
    result: FloatArray = np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2, axis=1)
    return result


def discoveries(p: FloatArray, judged: Shifts, suite: IntArray) -> BoolArray:
    """Weighted Benjamini-Hochberg in each suite; the suites share FALSE_DISCOVERIES equally."""
    result: BoolArray = np.zeros(len(p), dtype=np.bool_)
    suites = np.unique(suite)
    for number in suites:
        rows = np.flatnonzero((suite == number) & (judged.reach >= SMALLEST_CHANGE))
        if not len(rows):
            continue
        # Weights of the tests, 1 on average. They come from the scatter expected by the other rows, never from a row's
        # own rounds.
        weight = np.ones(len(rows)) if judged.expected is None else 1 / (1 + judged.expected[rows] / QUIET_VARIANCE)
        weighted = p[rows] / np.minimum(weight / weight.mean(), MOST_ATTENTION)
        order = np.argsort(weighted)
        allowed = FALSE_DISCOVERIES / len(suites) * np.arange(1, len(rows) + 1) / len(rows)
        passing = np.flatnonzero(weighted[order] <= allowed)
        if len(passing):
            result[rows[order[: passing[-1] + 1]]] = True
    return result


def _together(
    base: FloatArray,
    new: FloatArray,
    shift: FloatArray,
    error: FloatArray,
    figures: Figures,
    rows: BoolArray,
    alike: BoolArray,
    controls: Shift | None,
) -> Together:
    """What these ``rows`` did together, or all figures ``alike`` if the suite has few of them.

    Rounds of one run share the state of those minutes, so their scatter does not show how runs differ. Many figures
    that move together, or apart, do. ``error`` is the variance of each shift.
    """
    host = bool(figures.host[rows].any())
    in_turn = bool(figures.in_turn[rows].all())
    chosen = rows if in_turn else rows & ~figures.in_turn
    seen = bool(chosen.sum() >= LEAST_ROWS_TOGETHER)
    if not seen:
        chosen = alike & (figures.in_turn == in_turn)
    if chosen.sum() < LEAST_ROWS_TOGETHER:
        unseen = UNSEEN_HOST_DEVIATION if host else UNSEEN_DEVICE_DEVIATION
        return Together(Shift(0.0, math.inf), unseen**2, 1.0, changed=False, seen=False)
    felt = _felt(base, new, chosen, figures) if host and controls is not None and not in_turn else Felt()
    # Where rounds show what the host does to these rows, a drift of it that goes on shows in the controls.
    common = _in_common(base, new, shift, chosen, goes_on=not felt.reach)
    smallest, low, high, half, variance, factor = SMALLEST_CHANGE, 0.0, 0.0, common.half, 0.0, 1.0
    if not in_turn:
        variance, factor = _between_runs(shift[chosen] - common.median, error[chosen], figures.family[chosen])
    if not in_turn and not host:
        half = math.hypot(half, NORMAL_95 * DEVICE_TOGETHER)
        common = Shift(common.median, half)
    elif not in_turn and controls is None:
        smallest, half = HOST_DRIFT, 0.0
    elif not in_turn and controls is not None:
        # Where the controls moved farther than from round to round, the host is another one.
        inside = max(-felt.reach, min(controls.median, felt.reach))
        outside = controls.median - inside
        low, high = (felt.slope * inside + end for end in sorted((0.0, FEELS_MORE * outside)))
        half = math.hypot(half, felt.half * inside, felt.slope * controls.half)
        if outside and controls.most > CONTROLS_WITHIN:
            smallest = HOST_DRIFT
        # What all other suites did alike is the host's doing, unless the controls exclude it.
        others = alike & ~rows & ~figures.control & ~figures.in_turn
        if felt.reach and others.sum() >= LEAST_ROWS_TOGETHER and controls.most >= abs(common.median):
            elsewhere = float(np.median(shift[others]))
            low, high = min(low, ALIKE * elsewhere), max(high, ALIKE * elsewhere)
    changed = max(common.median - high, low - common.median) - half >= smallest
    least = smallest + 2 * max(half, common.half) + max(high, -low)
    return Together(common, variance, factor, changed, seen, least)


class Felt(NamedTuple):
    """How much rows move with the controls: a slope with half its 95 % interval, which holds for shifts of the controls
    up to ``reach``; 0 if the rounds cannot say."""

    slope: float = 1.0
    half: float = 1.0
    reach: float = 0.0


def _felt(base: FloatArray, new: FloatArray, rows: BoolArray, figures: Figures) -> Felt:
    """How much these rows feel of what the controls do, by the rounds of both runs: at least 0, at most FEELS_MORE.

    Rows of other sessions than the controls show nothing, because their rounds had other minutes.
    """
    control = figures.control & ~figures.in_turn
    if len(np.unique(figures.session[rows | control])) > 1:
        return Felt()
    states = []
    for side in (base, new):
        used = np.isfinite(side[control]).any(axis=0) & np.isfinite(side[rows]).any(axis=0)
        states.append([_state(side[chosen][:, used]) for chosen in (control, rows)])
    host, felt = (np.concatenate(several) for several in zip(*states, strict=True))
    squares, freedom = max(float(host @ host), LEAST_DEVIATION**2), len(host) - len(states) - 1
    if freedom < 1:
        return Felt()
    slope = float(host @ felt) / squares
    error = math.sqrt(float(np.sum((felt - slope * host) ** 2)) / freedom / squares)
    quantile = float(student_95(np.array(float(freedom))))
    slope, half = min(max(slope, 0.0), FEELS_MORE), min(quantile * error, FEELS_MORE)
    return Felt(slope, half, float(np.abs(host).max()))


def _state(values: FloatArray) -> FloatArray:
    """How far each round lies from the mean of all rounds: the median over the rows."""
    state = _median(values - np.nanmean(values, axis=1, keepdims=True), axis=0)
    result: FloatArray = state - state.mean()
    return result


def _in_common(base: FloatArray, new: FloatArray, shift: FloatArray, rows: BoolArray, *, goes_on: bool = True) -> Shift:
    """The shift that rows have in common, with an interval from the rounds of both runs.

    In each round the common state is the median over the rows, each about its own mean in its run. The interval is
    Student's t on these states. If a drift may have gone on, it is no narrower than the one seen within a run,
    extrapolated to the middle of the other run. The uncertainty of the median over the rows is added.
    """
    centre = float(np.median(shift[rows]))
    squares, freedom, carried = 0.0, 0, 0.0
    inverse, counts = 0.0, []
    for side in (base, new):
        state = _state(side[rows][:, np.isfinite(side[rows]).any(axis=0)])
        count = len(state)
        turns = np.arange(count) - (count - 1) / 2
        squares += float(state @ state)
        freedom += count - 1
        inverse += 1 / count
        counts.append(count)
        carried = max(carried, goes_on * abs(float(turns @ state)) / max(float(turns @ turns), 1.0))
    quantile = float(student_95(np.array(float(max(freedom, 1)))))
    by_rounds = quantile * math.sqrt(squares / max(freedom, 1) * inverse)
    spread = NORMAL_MAD * float(np.median(np.abs(shift[rows] - centre)))
    blur = NORMAL_95 * spread * math.sqrt(MEDIAN_VARIANCE / rows.sum())
    return Shift(centre, math.hypot(max(by_rounds, carried * sum(counts) / 2), blur))


def _between_runs(shift: FloatArray, error: FloatArray, family: IntArray) -> tuple[float, float]:
    """How far figures scatter from run to run beyond their rounds: a variance that all have alike, and the factor by
    which rounds understate the scatter, from the half whose rounds scatter more.

    ``shift`` is each figure's shift less the common one, ``error`` its variance by the rounds alone. The variance is
    the larger of two estimates: the one at which half of the figures lie within the median of Student's t, and the one
    at which three quarters of the quieter half, each about the median of its family, lie within the upper quartile. The
    second one covers figures that move in two directions, of which the median may see only one.
    """
    middle = float(np.median(error))
    _, member = np.unique(family, return_inverse=True)
    size = np.bincount(member)
    ordered, first = shift[np.lexsort((shift, member))], np.cumsum(size) - size
    centres = (ordered[first + (size - 1) // 2] + ordered[first + size // 2]) / 2  # the medians of the families
    apart = (shift - centres[member]) ** 2
    variance = max(
        float(np.median(shift**2 / MEDIAN_SQUARE - error)),
        float(np.quantile((apart / UPPER_SQUARE - error)[error <= middle], 0.75)),
    )
    variance = min(max(variance, 0.0), LARGEST_DEVIATION**2)
    understated = float(np.median(((shift**2 / MEDIAN_SQUARE - variance) / error)[error >= middle]))
    return variance, min(max(understated, 1.0), MOST_UNDERSTATED)


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


def _moderated(
    variance: FloatArray, freedom: FloatArray, within: FloatArray, family: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """The variance of each row, moderated by the variance that its family and the spread inside its processes predict,
    its degrees of freedom, and that prediction.

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
        return own, freedom, None
    level = np.log(own) - _digamma(freedom / 2) + np.log(freedom / 2)
    predicted = _predicted(level, np.log(np.maximum(within, LEAST_WITHIN)), family)
    centre, deviation = _centre(level - predicted)
    # Three terms of trigamma's asymptotic series (Abramowitz and Stegun 6.4.12): within 2 % from 1 on.
    x = freedom / 2
    trigamma = float(np.mean(1 / x + 1 / (2 * x * x) + 1 / (6 * x**3)))
    unexplained = max(deviation**2 - trigamma, LEAST_UNEXPLAINED)
    # The inverse of trigamma by two of its terms is a little low, so that less is borrowed.
    borrowed = np.minimum(2 * ((1 + math.sqrt(1 + 2 * unexplained)) / (2 * unexplained)), freedom)
    expected = np.exp(predicted + centre + _digamma(borrowed / 2) - np.log(borrowed / 2))
    return (borrowed * expected + freedom * own) / (borrowed + freedom), freedom + borrowed, expected


def _predicted(level: FloatArray, within: FloatArray, family: IntArray) -> FloatArray:
    """Each row's log variance as the other rows predict it: a robust line over the level of the rest of its family,
    that family's log spread inside a process, and how the row's own log spread differs from it."""
    others, others_within = _others(level, family), _others(within, family)
    design = np.column_stack([np.ones_like(within), others, others_within, within - others_within])
    weight, fitted = np.ones_like(level), level
    for _ in range(4):
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
    return np.log(x) - 1 / (2 * x) - 1 / (12 * x * x)

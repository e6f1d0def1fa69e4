"""Compares two runs: the verdict on each figure and suite with its ratio, and how the machines differ.

Each verdict is decided in one place. ``pairs.paired`` decides "incomparable", and "unclear" for figures without a
ratio, enough rounds or a sound grade. ``decision.decide`` decides whether the rest changed, and whether a suite did.
This file names the direction of a change.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from microbench.analysis.stats import Interval, Row
from microbench.comparison import pairs as matching
from microbench.comparison.decision import (
    CONTROLS_WITHIN,
    SAME_WITHIN,
    SMALLEST_CHANGE,
    Decision,
    Figures,
    Undecided,
    decide,
)  # fmt: skip
from microbench.comparison.pairs import Incomparable, Pair, TwoGpus, Unready, cost_sign
from microbench.core.model import Fact, Metric, Run

Verdict = Literal[
    "slower", "farther", "faster", "nearer", "more", "fewer", "same", "within 10 %", "unclear", "incomparable"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
By = Literal["value", "clock", "drift"]
# Changes for the worse and for the better. A count is neither. "farther" and "nearer" mean: from the ceiling.
WORSE: tuple[Verdict, ...] = ("slower", "farther")
BETTER: tuple[Verdict, ...] = ("faster", "nearer")
COUNTED: tuple[Verdict, ...] = ("more", "fewer")
# The fewest figures of a benchmark that are worth a line of their own.
LEAST_TOGETHER = 4
LOST = ("failed", "crashed", "timed_out")
# Facts that are different at every look, or follow from what the user asked for.
OF_THE_MOMENT = frozenset(
    {
        "load_average_1min", "swap_used_bytes", "submit_core", "submit_core_siblings", "watcher_core", "parent_cores",
        "cpu_affinity_count", "NVIDIA_VISIBLE_DEVICES",
    }
)  # fmt: skip
GPU_FIELDS = (
    "memory_bytes", "sm_clock_max_hz", "memory_clock_max_hz", "power_limit_w", "ecc", "mig", "persistence",
    "confidential_computing", "numa_node", "link.generation_max", "link.lanes_max", "link.lanes_now",
    "link.max_payload_bytes", "link.nvlinks", "other_processes",
)  # fmt: skip


class Change(msgspec.Struct, frozen=True):
    """The verdict on one figure, from BASE to NEW.

    ``ratio`` is NEW over BASE: the median over all pairs of rounds, with the 95 % interval that the rounds alone give.
    With ``shares`` it compares shares of each GPU's ceiling. ``judged`` is the ratio that the verdict rests on, with an
    interval that includes the variation between runs. If ``by`` is "clock", this ratio is at one SM clock; if ``by`` is
    "drift", the common shift of the suite is taken off. ``reason`` says why a figure is unclear or incomparable. A
    figure that was never judged has the ratio of its two values, with the interval of its rounds.
    """

    base: Row
    new: Row
    verdict: Verdict
    reason: Unready | Undecided | Incomparable | None = None
    ratio: Interval | None = None
    judged: Interval | None = None
    by: By = "value"
    shares: bool = False

    @property
    def metric(self) -> Metric:
        return self.new.metric

    @property
    def costs_more(self) -> bool:
        """True if the ratio judged is a higher cost: a longer time, a lower rate."""
        if self.judged is None:
            return False
        return self.judged.median < 1 if self.metric.kind == "rate" else self.judged.median > 1

    @property
    def size(self) -> float:
        """The size of the change in either direction: the absolute logarithm of the ratio judged, 0 without one."""
        return abs(math.log(self.judged.median)) if self.judged is not None else 0.0


class SuiteShift(NamedTuple):
    """The common shift of a suite's figures that the host times (``host``), or of those that the device times.

    ``ratio`` is the cost in NEW over BASE (a rate costs its inverse), the median over the figures with its 95 %
    interval. ``rows`` counts the figures, ``went`` those that moved in the direction of the shift. ``changed``: the
    suite itself changed. If not, the shift is taken off each figure, because the host or GPU may differ as much from
    run to run.
    """

    suite: str
    host: bool
    ratio: Interval
    rows: int
    went: int
    changed: bool

    @property
    def slower(self) -> bool:
        return self.ratio.median > 1


class BenchmarkShift(NamedTuple):
    """Figures of one kind in a benchmark that have one verdict (``moved``), and those with other ones (``others``)."""

    benchmark: str
    verdict: Verdict
    kind: str
    moved: tuple[Change, ...]
    others: tuple[Change, ...]

    @property
    def total(self) -> int:
        return len(self.moved) + len(self.others)

    @property
    def ratio(self) -> Interval:
        """The median of the ratios judged, with the smallest and the largest one."""
        ratios = [change.judged.median for change in self.moved if change.judged is not None]
        return Interval(float(np.median(ratios)), min(ratios), max(ratios))


class Controls(NamedTuple):
    """The common shift of the controls: figures that show how fast the host is and that no driver can change.

    ``ratio`` is their common change in cost. ``unchanged``: its interval is so narrow about 1 that the host did not
    move; ``moved``: its interval shows that the host did.
    """

    rows: int
    ratio: Interval
    unchanged: bool
    moved: bool

    @property
    def most(self) -> float:
        """The largest change of the host that the interval holds, as a share."""
        return max(self.ratio.high, 1 / self.ratio.low) - 1


class Difference(msgspec.Struct, frozen=True):
    """A property of the machines that both runs know and that differs, with its values as facts."""

    name: str
    base: Fact
    new: Fact


class Comparison(msgspec.Struct, frozen=True):
    """Two runs compared. ``changes`` are all figures that both have, in NEW's order; ``suites`` are the suites whose
    figures moved together, the largest shift first. ``smallest`` is the change, as a share, that would have been found
    in each suite, of figures timed by the host (True) or the device. ``same_within`` is the share within which a figure
    is the same."""

    base: Run
    new: Run
    changes: tuple[Change, ...]
    only_base: tuple[Row, ...]
    only_new: tuple[Row, ...]
    gpus: tuple[TwoGpus, ...]
    other_models: tuple[TwoGpus, ...]
    same_within: float
    differences: tuple[Difference, ...]
    suites: tuple[SuiteShift, ...] = ()
    smallest: dict[tuple[str, bool], float] = {}
    controls: Controls | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """Cases that BASE measured and that failed, crashed or ran out of time in NEW."""
        tried = {outcome.case.id for outcome in self.new.outcomes if outcome.status in LOST}
        return tuple(dict.fromkeys(row.case_id for row in self.only_base if row.case_id in tried))

    @property
    def nothing_comparable(self) -> bool:
        """True if every figure that both runs have is incomparable."""
        return all(change.verdict == "incomparable" for change in self.changes)

    @property
    def unconfirmed(self) -> list[Change]:
        """Figures that would have changed if something confirmed them, the largest first."""
        return [change for change in self.of("unclear") if change.reason == "unconfirmed"]

    @property
    def benchmarks(self) -> list[BenchmarkShift]:
        """Benchmarks of which LEAST_TOGETHER or more figures are slower, or faster, those with most figures first."""
        groups: dict[tuple[str, Verdict, str], list[Change]] = {}
        for change in self.of(*WORSE, *BETTER):
            groups.setdefault((change.new.benchmark, change.verdict, change.metric.kind), []).append(change)
        found = []
        for (benchmark, verdict, kind), moved in groups.items():
            if len(moved) >= LEAST_TOGETHER:
                same = (one for one in self.changes if (one.new.benchmark, one.metric.kind) == (benchmark, kind))
                others = tuple(one for one in same if one.verdict != verdict)
                found.append(BenchmarkShift(benchmark, verdict, kind, tuple(moved), others))
        return sorted(found, key=lambda group: -len(group.moved))

    def has_changed(self, *verdicts: Verdict) -> bool:
        """True if a figure, or a suite as a whole (slower or faster), has one of these verdicts."""
        ways = {"slower" if suite.slower else "faster" for suite in self.suites if suite.changed}
        return bool(self.of(*verdicts)) or not ways.isdisjoint(verdicts)

    def of(self, *verdicts: Verdict) -> list[Change]:
        """The changes with one of these verdicts, the largest first; equal ones in NEW's order."""
        return sorted(
            (change for change in self.changes if change.verdict in verdicts), key=lambda change: -change.size
        )


def compare(base: Run, new: Run, same_within: float = SAME_WITHIN) -> Comparison:
    """Compare every figure that both runs have; ``same_within`` is a share, at most 0.1.

    Raises RunUnreadableError for samples that are not numbers.
    """
    matched = matching.paired(base, new)
    ready = [pair for pair in matched.pairs if pair.reason is None]
    judged: dict[int, Change] = {}
    suites: list[SuiteShift] = []
    smallest: dict[tuple[str, bool], float] = {}
    controls: Controls | None = None
    if ready:
        arrays = matching.figures(ready, {gpu.uuid: gpu for two in matched.gpus for gpu in two})
        decision = decide(arrays)
        judged = {id(pair): _judged(pair, row, decision, same_within) for row, pair in enumerate(ready)}
        suites = _suites(ready, arrays, decision)
        names = {int(number): pair.new.suite for number, pair in zip(arrays.suite, ready, strict=True)}
        for (number, host), group in decision.judged.together.items():
            if group.seen:
                least = math.expm1(group.least)
                smallest[names[number], host] = max(least, smallest.get((names[number], host), 0.0))
        if (common := decision.judged.controls) is not None:
            controls = Controls(
                rows=int(np.sum(arrays.control & ~arrays.in_turn)),
                ratio=ratio_of(common.median, common.half),
                unchanged=common.most <= CONTROLS_WITHIN,
                moved=common.least > 0,
            )
    found = compared(base, new, matched, judged, same_within)
    return msgspec.structs.replace(found, suites=tuple(suites), smallest=smallest, controls=controls)


def compared(
    base: Run, new: Run, matched: matching.Matched, judged: Mapping[int, Change], same_within: float
) -> Comparison:
    """The comparison with these verdicts, by the ``id`` of their pairs; the other pairs have none."""
    return Comparison(
        base=base,
        new=new,
        changes=tuple(judged.get(id(pair)) or _not_judged(pair) for pair in matched.pairs),
        only_base=matched.only_base,
        only_new=matched.only_new,
        gpus=matched.gpus,
        other_models=tuple(two for two in matched.gpus if not matching.same_model(*two)),
        same_within=same_within,
        differences=_differences(base, new, matched.gpus),
    )


def direction(pair: Pair, shift: float) -> Verdict:
    """What a change by this logarithm of the cost is called."""
    if pair.new.metric.kind == "count":
        return "more" if shift > 0 else "fewer"
    if pair.ceilings is not None:
        return "farther" if shift > 0 else "nearer"
    return "slower" if shift > 0 else "faster"


def _judged(pair: Pair, row: int, decision: Decision, same_within: float) -> Change:
    """The verdict on a pair by its row in the decision."""
    raw, judged = decision.raw, decision.judged
    shift, half, moved = float(judged.shift[row]), float(judged.half[row]), float(judged.moved[row])
    verdict, reason = direction(pair, shift), None
    if not decision.changed[row]:
        verdict, reason = decision.unchanged(row, same_within)
    ratio = ratio_of(float(raw.shift[row]), float(raw.own[row]), cost_sign(pair))
    by: By = "clock" if shift != raw.shift[row] else "drift" if moved != shift else "value"
    judged_ratio = ratio_of(moved, half, cost_sign(pair))
    return Change(pair.base, pair.new, verdict, reason, ratio, judged_ratio, by, pair.ceilings is not None)


def _not_judged(pair: Pair) -> Change:
    """The verdict on a pair that has a reason. An unclear one shows the ratio by the figures' own intervals."""
    ratio = None
    base, new = pair.base.interval, pair.new.interval
    verdict: Verdict = "incomparable" if pair.reason in get_args(Incomparable) else "unclear"
    if (
        verdict == "unclear"
        and pair.reason != "no ratio"
        and min(base.median, new.median) > 0
        and math.isfinite(base.half_width + new.half_width)
    ):
        share = pair.ceilings[0].value / pair.ceilings[1].value if pair.ceilings else 1.0
        ratio = ratio_of(math.log(new.median / base.median * share), math.hypot(base.half_width, new.half_width))
    return Change(pair.base, pair.new, verdict, pair.reason, ratio, ratio, shares=pair.ceilings is not None)


def ratio_of(shift: float, half: float, sign: int = 1) -> Interval:
    """A ratio with its interval, from the logarithm of the cost; ``sign`` is -1 for a rate."""
    return Interval(math.exp(sign * shift), math.exp(sign * shift - half), math.exp(sign * shift + half))


def _suites(ready: Sequence[Pair], arrays: Figures, decision: Decision) -> list[SuiteShift]:
    """The suites whose figures moved together, the largest shift first; of several GPUs the one that moved most."""
    largest: dict[tuple[str, bool], SuiteShift] = {}
    for (number, host), group in decision.judged.together.items():
        shift = group.shift
        of_it = (arrays.host == host) & ~arrays.counted & ~arrays.control & (arrays.suite == number)
        rows = [row for row in range(len(ready)) if of_it[row]]
        # Two GPU models are compared figure by figure only: a ratio of shares of two ceilings is not a ratio of costs.
        shares = any(ready[row].ceilings is not None for row in rows)
        if not group.seen or shares or (abs(shift.median) < SMALLEST_CHANGE and not group.changed):
            continue
        suite = ready[rows[0]].new.suite
        went = int(np.sum(decision.judged.shift[rows] * np.sign(shift.median) >= SMALLEST_CHANGE))
        one = SuiteShift(suite, host, ratio_of(shift.median, shift.half), len(rows), went, group.changed)
        largest[suite, host] = max(
            largest.get((suite, host), one), one, key=lambda each: abs(math.log(each.ratio.median))
        )
    return sorted(largest.values(), key=lambda one: -abs(math.log(one.ratio.median)))


def _differences(base: Run, new: Run, gpus: Sequence[TwoGpus]) -> tuple[Difference, ...]:
    """How the machines of the newest sessions differ, in properties that both runs know. ``gpus`` pairs the GPUs
    compared, BASE's first."""
    if not base.sessions or not new.sessions:
        return ()
    before, after = base.sessions[-1], new.sessions[-1]
    here, there = before.environment, after.environment
    packages = sorted(here.packages.keys() & there.packages.keys())
    values = [
        *((f"GPU {own.index}", own.uuid, other.uuid) for own, other in gpus),
        ("driver", here.driver_version, there.driver_version),
        ("CUDA", here.cuda_driver_version, there.cuda_driver_version),
        ("toolkit", here.cuda_toolkit_version, there.cuda_toolkit_version),
        *((name, here.packages[name], there.packages[name]) for name in packages),
        ("microbench", before.tool_version, after.tool_version),
        ("commit", before.commit, after.commit),
        *(
            (f"GPU {own.index} {path}" if len(gpus) > 1 else f"GPU {path}", *map(attrgetter(path), (own, other)))
            for own, other in gpus
            for path in GPU_FIELDS
        ),
    ]
    known = {fact.name: fact for fact in here.facts if fact.name not in OF_THE_MOMENT}
    pairs = [(name, Fact(name, _scalar(old)), Fact(name, _scalar(now))) for name, old, now in values]
    pairs += [(fact.name, known[fact.name], fact) for fact in there.facts if fact.name in known]
    return tuple(
        Difference(name, old, now)
        for name, old, now in pairs
        if old.value is not None and now.value is not None and old.value != now.value
    )


def _scalar(value: Any) -> Any:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else value

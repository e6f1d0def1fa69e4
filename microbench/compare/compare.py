"""Two runs held against each other: each figure slower, faster, same, unclear or incomparable, with its ratio. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.stats import STABLE_HALF_WIDTH, Interval, Row, Trust
from microbench.compare.decision import HOST_DRIFT, SMALLEST_CHANGE, Decision, Figures, decide
from microbench.compare.pairs import (
    MINIMUM_ROUNDS,
    Incomparable,
    Pair,
    at_one_clock,
    cost_sign,
    figures,
    has_ratio,
    paired,
)
from microbench.core.model import Environment, Fact, GpuInfo, Metric, Run

# What differs between the machines of two runs: boards, driver, packages, and every fact that is not of the moment.


# These are another thing every time they are asked for, or follow from what is asked.
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


class Difference(msgspec.Struct, frozen=True):
    """Something that both runs know and that is not the same: its name, and its values as facts."""

    name: str
    base: Fact
    new: Fact


def differences(base: Run, new: Run, gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> tuple[Difference, ...]:
    """What the newest sessions of two runs tell differently of their machines; what one of them does not know is left
    out. ``gpus`` are the boards held against each other, BASE's first."""
    if not base.sessions or not new.sessions:
        return ()
    before, after = base.sessions[-1], new.sessions[-1]
    told: list[tuple[str, Any, Any]] = [
        *((f"GPU {one.index}", one.uuid, other.uuid) for one, other in gpus),
        *_versions(before.environment, after.environment),
        ("microbench", before.tool_version, after.tool_version),
        ("commit", before.commit, after.commit),
        *_boards(gpus),
    ]
    simple = [
        Difference(name, Fact(name, _scalar(one)), Fact(name, _scalar(other)))
        for name, one, other in told
        if one is not None and other is not None and one != other
    ]
    return (*simple, *_facts(before.environment.facts, after.environment.facts))


def _versions(base: Environment, new: Environment) -> Iterator[tuple[str, Any, Any]]:
    yield "driver", base.driver_version, new.driver_version
    yield "CUDA", base.cuda_driver_version, new.cuda_driver_version
    yield "toolkit", base.cuda_toolkit_version, new.cuda_toolkit_version
    for package in sorted(base.packages.keys() & new.packages.keys()):
        yield package, base.packages[package], new.packages[package]


def _boards(gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> Iterator[tuple[str, Any, Any]]:
    for one, other in gpus:
        for field in GPU_FIELDS:
            place = f"GPU {one.index} {field}" if len(gpus) > 1 else f"GPU {field}"
            yield place, _field(one, field), _field(other, field)


def _field(gpu: GpuInfo, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _facts(base: Iterable[Fact], new: Iterable[Fact]) -> Iterator[Difference]:
    known = {fact.name: fact for fact in base if fact.value is not None and fact.name not in OF_THE_MOMENT}
    for fact in new:
        other = known.get(fact.name)
        if other is not None and fact.value is not None and fact.value != other.value:
            yield Difference(fact.name, other, fact)


def _scalar(value: Any) -> Any:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else value


LOST = ("failed", "crashed", "timed_out")
Verdict = Literal["slower", "faster", "farther", "nearer", "more", "fewer", "same", "unclear", "incomparable"]
# Why a figure is unclear: too few rounds; a grade that forbids any verdict; a figure of 0 or less; two levels between
# which its rounds jump; what the host may have drifted by; an interval that holds a change as well as none.
Unclear = Literal["rounds", "grade", "no ratio", "levels", "host", "noise"]
VERDICTS: tuple[Verdict, ...] = (
    "slower", "farther", "faster", "nearer", "more", "fewer", "same", "unclear", "incomparable",
)  # fmt: skip
# Where a change was for the worse, and for the better; a count is neither.
WORSE: tuple[Verdict, ...] = ("slower", "farther")
BETTER: tuple[Verdict, ...] = ("faster", "nearer")
COUNTED: tuple[Verdict, ...] = ("more", "fewer")
UNFIT: tuple[Trust, ...] = ("unverified", "below floor", "throttled")
# "same" says that a change beyond this would have been seen.
WIDEST_SAME = math.log(1 + STABLE_HALF_WIDTH)


class Change(msgspec.Struct, frozen=True):
    """What became of one figure from BASE to NEW.

    ``ratio`` is NEW over BASE, the median over all pairs of rounds, with the interval that holds it at 95 %; of shares
    of the ceiling where ``shares``. ``judged`` is what the verdict rests on: the ratio, but at one SM clock if
    ``by`` is "clock", and less what all host rows did together if it is "host".
    """

    base: Row
    new: Row
    verdict: Verdict
    reason: Unclear | Incomparable | None = None
    ratio: Interval | None = None
    judged: Interval | None = None
    by: Literal["value", "clock", "host"] = "value"
    shares: bool = False

    @property
    def metric(self) -> Metric:
        """What is compared."""
        return self.new.metric

    @property
    def size(self) -> float:
        """How large the change is, up or down: the logarithm of the ratio judged; 0 without one."""
        return abs(math.log(self.judged.median)) if self.judged is not None else 0.0


class HostDrift(NamedTuple):
    """How the host-timed figures of a suite moved together: the median of what NEW costs over BASE (of a rate, the
    inverse), of how many, and how many of these ``went`` that way; where they are few, the median of all suites.
    ``counted``: too far for a drift, so that each is judged as it was measured."""

    suite: str
    ratio: float
    rows: int
    went: int
    counted: bool


class Comparison(msgspec.Struct, frozen=True):
    """Two runs compared. ``changes`` are all figures that both have, in NEW's order."""

    base: Run
    new: Run
    changes: tuple[Change, ...]
    only_base: tuple[Row, ...]
    only_new: tuple[Row, ...]
    gpus: tuple[tuple[GpuInfo, GpuInfo], ...]
    other_models: tuple[tuple[GpuInfo, GpuInfo], ...]
    drifts: tuple[HostDrift, ...]
    differences: tuple[Difference, ...]

    @property
    def lost(self) -> tuple[str, ...]:
        """Cases that BASE measured, and that failed, crashed or ran out of time in NEW."""
        tried = {one.case.id for one in self.new.outcomes if one.status in LOST}
        return tuple(dict.fromkeys(row.case_id for row in self.only_base if row.case_id in tried))

    def of(self, *verdicts: Verdict) -> list[Change]:
        """The changes with one of these verdicts, the largest first; equal ones in NEW's order."""
        return sorted((one for one in self.changes if one.verdict in verdicts), key=lambda one: -one.size)


def compare(base: Run, new: Run) -> Comparison:
    """Every figure of NEW held against the same of BASE. Raises RunUnreadableError for samples that are no numbers."""
    found = paired(base, new)
    gpus = {gpu.uuid: gpu for pair in found.devices for gpu in pair}
    ready = [pair for pair in found.pairs if _unready(pair) is None]
    decided, drifts = _judged(ready, gpus)
    return Comparison(
        base=base,
        new=new,
        changes=tuple(decided.get(id(pair.new)) or _undecided(pair) for pair in found.pairs),
        only_base=found.only_base,
        only_new=found.only_new,
        gpus=found.devices,
        other_models=found.other_models,
        drifts=drifts,
        differences=differences(base, new, found.devices),
    )


def _judged(ready: Sequence[Pair], gpus: dict[str, GpuInfo]) -> tuple[dict[int, Change], tuple[HostDrift, ...]]:
    """The changes of pairs that can be decided on, by the identity of NEW's row, and what the host did meanwhile."""
    if not ready:
        return {}, ()
    arrays = figures(ready, gpus)
    decision = decide(arrays)
    changes = (_decided(pair, row, decision, at_one_clock(pair, gpus)) for row, pair in enumerate(ready))
    return {id(one.new): one for one in changes}, tuple(_drifts(ready, arrays, decision))


def _unready(pair: Pair) -> Unclear | Incomparable | None:
    """Why a pair is not decided on, if it is not."""
    if pair.reason is not None:
        return pair.reason
    if not has_ratio(pair):
        return "no ratio"
    if min(len(pair.base.outcomes), len(pair.new.outcomes)) < MINIMUM_ROUNDS:
        return "rounds"
    return "grade" if pair.base.trust in UNFIT or pair.new.trust in UNFIT else None


def _undecided(pair: Pair) -> Change:
    reason = _unready(pair)
    verdict: Verdict = "incomparable" if pair.reason is not None else "unclear"
    ratio = _few_rounds(pair) if verdict == "unclear" and reason != "no ratio" else None
    return Change(pair.base, pair.new, verdict, reason, ratio, ratio, shares=pair.ceilings is not None)


def _few_rounds(pair: Pair) -> Interval | None:
    """The ratio of two figures by their own intervals, where nothing more can be said of it."""
    base, new = pair.base.interval, pair.new.interval
    if min(base.median, new.median) <= 0 or not math.isfinite(base.half_width + new.half_width):
        return None
    share = pair.ceilings[0].value / pair.ceilings[1].value if pair.ceilings else 1.0
    return _interval(math.log(new.median / base.median * share), math.hypot(base.half_width, new.half_width))


def _interval(shift: float, half: float, sign: int = 1) -> Interval:
    """A ratio from the logarithm of what it costs; ``sign`` is -1 for a rate."""
    return Interval(math.exp(sign * shift), math.exp(sign * shift - half), math.exp(sign * shift + half))


def _decided(pair: Pair, row: int, decision: Decision, at_clock: bool) -> Change:
    raw, judged = decision.raw, decision.judged
    shift, half, moved = float(judged.shift[row]), float(judged.half[row]), float(judged.moved[row])
    reason = None if decision.changed[row] else _why_unclear(row, decision, shift, half, moved)
    verdict = _direction(pair, shift) if decision.changed[row] else "unclear" if reason else "same"
    return Change(
        base=pair.base,
        new=pair.new,
        verdict=verdict,
        reason=reason,
        ratio=_interval(float(raw.shift[row]), float(raw.half[row]), cost_sign(pair)),
        judged=_interval(moved, half, cost_sign(pair)),
        by="clock" if at_clock and shift != raw.shift[row] else "host" if moved != shift else "value",
        shares=pair.ceilings is not None,
    )


def _why_unclear(row: int, decision: Decision, shift: float, half: float, moved: float) -> Unclear | None:
    """Why neither a change nor its absence can be told; None for the same. What the host does no more rounds settle."""
    if decision.jumping[row]:
        return "levels"
    if abs(shift) + half <= WIDEST_SAME and abs(shift) - half <= SMALLEST_CHANGE:
        return None
    without_host = abs(moved) + half <= WIDEST_SAME and abs(moved) - half <= SMALLEST_CHANGE
    own = float(decision.judged.own[row])
    settled = abs(shift) + own <= WIDEST_SAME or abs(shift) - own >= SMALLEST_CHANGE
    return "host" if without_host or (settled and half**2 > 2 * own**2) else "noise"


def _direction(pair: Pair, shift: float) -> Verdict:
    if pair.new.metric.kind == "count":
        return "more" if shift > 0 else "fewer"
    if pair.ceilings is not None:
        return "farther" if shift > 0 else "nearer"
    return "slower" if shift > 0 else "faster"


def _drifts(ready: Sequence[Pair], arrays: Figures, decision: Decision) -> Iterator[HostDrift]:
    """The suites whose host-timed figures moved together; of several GPUs the one where they moved farthest."""
    found: dict[str, HostDrift] = {}
    for number, drift in decision.judged.drift.items():
        rows = np.flatnonzero(arrays.host & (arrays.suite == number))
        if not len(rows) or not drift.seen or abs(drift.shift) < SMALLEST_CHANGE:
            continue
        suite = ready[rows[0]].new.suite
        went = int(np.sum(decision.judged.shift[rows] * np.sign(drift.shift) >= SMALLEST_CHANGE))
        one = HostDrift(suite, math.exp(drift.shift), len(rows), went, counted=abs(drift.shift) >= HOST_DRIFT)
        found[suite] = max(found.get(suite, one), one, key=lambda each: abs(math.log(each.ratio)))
    yield from found.values()


__all__ = ["MINIMUM_ROUNDS", "Change", "Comparison", "HostDrift", "compare"]

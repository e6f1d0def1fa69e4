"""Compares two runs: the verdict on each figure with its ratio, the drift of the host, and how the machines differ.

Each verdict is decided in one place. ``pairs.paired`` decides "incomparable", and "unclear" for figures without a
ratio, enough rounds or a sound grade. ``decision.decide`` decides whether the rest changed, are the same or unclear.
This file names the direction of a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.stats import Interval, Row
from microbench.compare.decision import HOST_DRIFT, SMALLEST_CHANGE, Decision, Figures, Undecided, decide
from microbench.compare.pairs import Incomparable, Pair, Unready, cost_sign, figures, paired
from microbench.core.model import Fact, GpuInfo, Metric, Run

Verdict = Literal["slower", "faster", "farther", "nearer", "more", "fewer", "same", "unclear", "incomparable"]
VERDICTS: tuple[Verdict, ...] = (
    "slower", "farther", "faster", "nearer", "more", "fewer", "same", "unclear", "incomparable",
)  # fmt: skip
# Changes for the worse and for the better. A count is neither. "farther" and "nearer" mean: from the ceiling.
WORSE: tuple[Verdict, ...] = ("slower", "farther")
BETTER: tuple[Verdict, ...] = ("faster", "nearer")
COUNTED: tuple[Verdict, ...] = ("more", "fewer")
INCOMPARABLE: tuple[Incomparable, ...] = ("simulated", "method", "model")
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

    ``ratio`` is NEW over BASE: the median over all pairs of rounds with its 95 % interval. With ``shares`` it compares
    shares of each GPU's ceiling. ``judged`` is the ratio that the verdict rests on: at one SM clock if ``by`` is
    "clock", less the drift of the whole host if it is "host". ``reason`` says why a figure is unclear or incomparable.
    """

    base: Row
    new: Row
    verdict: Verdict
    reason: Unready | Undecided | Incomparable | None = None
    ratio: Interval | None = None
    judged: Interval | None = None
    by: Literal["value", "clock", "host"] = "value"
    shares: bool = False

    @property
    def metric(self) -> Metric:
        """The metric compared."""
        return self.new.metric

    @property
    def size(self) -> float:
        """The size of the change in either direction: the absolute logarithm of the ratio judged, 0 without one."""
        return abs(math.log(self.judged.median)) if self.judged is not None else 0.0


class HostDrift(NamedTuple):
    """How the host-timed figures of a suite moved together.

    ``ratio`` is the median cost in NEW over BASE (a rate costs its inverse), over all suites if this one has few such
    figures. ``rows`` counts the figures, ``went`` those that moved that way. ``counted``: the shift is too large for a
    drift, so that each figure is judged as measured.
    """

    suite: str
    ratio: float
    rows: int
    went: int
    counted: bool


class Difference(msgspec.Struct, frozen=True):
    """A property of the machines that both runs know and that differs, with its values as facts."""

    name: str
    base: Fact
    new: Fact


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
        """Cases that BASE measured and that failed, crashed or ran out of time in NEW."""
        tried = {outcome.case.id for outcome in self.new.outcomes if outcome.status in LOST}
        return tuple(dict.fromkeys(row.case_id for row in self.only_base if row.case_id in tried))

    def of(self, *verdicts: Verdict) -> list[Change]:
        """The changes with one of these verdicts, the largest first; equal ones in NEW's order."""
        return sorted(
            (change for change in self.changes if change.verdict in verdicts), key=lambda change: -change.size
        )


def compare(base: Run, new: Run) -> Comparison:
    """Compare every figure that both runs have. Raises RunUnreadableError for samples that are not numbers."""
    matched = paired(base, new)
    ready = [pair for pair in matched.pairs if pair.reason is None]
    judged: dict[int, Change] = {}
    drifts: list[HostDrift] = []
    if ready:
        arrays = figures(ready, {gpu.uuid: gpu for pair in matched.devices for gpu in pair})
        decision = decide(arrays)
        judged = {id(pair): _judged(pair, row, decision) for row, pair in enumerate(ready)}
        drifts = _drifts(ready, arrays, decision)
    return Comparison(
        base=base,
        new=new,
        changes=tuple(judged.get(id(pair)) or _not_judged(pair) for pair in matched.pairs),
        only_base=matched.only_base,
        only_new=matched.only_new,
        gpus=matched.devices,
        other_models=matched.other_models,
        drifts=tuple(drifts),
        differences=differences(base, new, matched.devices),
    )


def _judged(pair: Pair, row: int, decision: Decision) -> Change:
    """The verdict on a pair by its row in the decision."""
    raw, judged = decision.raw, decision.judged
    shift, half, moved = float(judged.shift[row]), float(judged.half[row]), float(judged.moved[row])
    reason = None
    verdict: Verdict
    if not decision.changed[row]:
        reason = decision.undecided(row)
        verdict = "unclear" if reason else "same"
    elif pair.new.metric.kind == "count":
        verdict = "more" if shift > 0 else "fewer"
    elif pair.ceilings is not None:
        verdict = "farther" if shift > 0 else "nearer"
    else:
        verdict = "slower" if shift > 0 else "faster"
    return Change(
        base=pair.base,
        new=pair.new,
        verdict=verdict,
        reason=reason,
        ratio=_ratio(float(raw.shift[row]), float(raw.half[row]), cost_sign(pair)),
        judged=_ratio(moved, half, cost_sign(pair)),
        by="clock" if shift != raw.shift[row] else "host" if moved != shift else "value",
        shares=pair.ceilings is not None,
    )


def _not_judged(pair: Pair) -> Change:
    """The verdict on a pair that has a reason. An unclear one shows the ratio by the figures' own intervals."""
    ratio = None
    base, new = pair.base.interval, pair.new.interval
    verdict: Verdict = "incomparable" if pair.reason in INCOMPARABLE else "unclear"
    if (
        verdict == "unclear"
        and pair.reason != "no ratio"
        and min(base.median, new.median) > 0
        and math.isfinite(base.half_width + new.half_width)
    ):
        share = pair.ceilings[0].value / pair.ceilings[1].value if pair.ceilings else 1.0
        ratio = _ratio(math.log(new.median / base.median * share), math.hypot(base.half_width, new.half_width))
    return Change(pair.base, pair.new, verdict, pair.reason, ratio, ratio, shares=pair.ceilings is not None)


def _ratio(shift: float, half: float, sign: int = 1) -> Interval:
    """A ratio with its interval, from the logarithm of the cost; ``sign`` is -1 for a rate."""
    return Interval(math.exp(sign * shift), math.exp(sign * shift - half), math.exp(sign * shift + half))


def _drifts(ready: Sequence[Pair], arrays: Figures, decision: Decision) -> list[HostDrift]:
    """The suites whose host-timed figures moved together; of several GPUs the one with the largest drift."""
    largest: dict[str, HostDrift] = {}
    for number, drift in decision.judged.drift.items():
        rows = np.flatnonzero(arrays.host & (arrays.suite == number))
        if not len(rows) or not drift.seen or abs(drift.shift) < SMALLEST_CHANGE:
            continue
        suite = ready[rows[0]].new.suite
        went = int(np.sum(decision.judged.shift[rows] * np.sign(drift.shift) >= SMALLEST_CHANGE))
        host = HostDrift(suite, math.exp(drift.shift), len(rows), went, counted=abs(drift.shift) >= HOST_DRIFT)
        largest[suite] = max(largest.get(suite, host), host, key=lambda each: abs(math.log(each.ratio)))
    return list(largest.values())


def differences(base: Run, new: Run, gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> tuple[Difference, ...]:
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
        *_boards(gpus),
    ]
    known = {fact.name: fact for fact in here.facts if fact.name not in OF_THE_MOMENT}
    pairs = [(name, Fact(name, _scalar(old)), Fact(name, _scalar(now))) for name, old, now in values]
    pairs += [(fact.name, known[fact.name], fact) for fact in there.facts if fact.name in known]
    return tuple(
        Difference(name, old, now)
        for name, old, now in pairs
        if old.value is not None and now.value is not None and old.value != now.value
    )


def _boards(gpus: Sequence[tuple[GpuInfo, GpuInfo]]) -> Iterator[tuple[str, Any, Any]]:
    for own, other in gpus:
        for path in GPU_FIELDS:
            name = f"GPU {own.index} {path}" if len(gpus) > 1 else f"GPU {path}"
            yield name, attrgetter(path)(own), attrgetter(path)(other)


def _scalar(value: Any) -> Any:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else value

"""Explains a step before and after a change, or on two machines: what becomes of it, and of what sets its pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from microbench.explain.changes import Change
from microbench.explain.finding import Finding
from microbench.explain.forecast import Forecast, Prediction
from microbench.explain.prediction import PACES, outside
from microbench.units import as_time, round_percent, times

SUITE = "what if"
# Within this of one another two predictions are the same.
SAME = 0.02


class Pair(NamedTuple):
    """One way, before and after."""

    before: Prediction
    after: Prediction

    @property
    def ratio(self) -> float:
        """How many times as fast it becomes."""
        return self.before.step_s / self.after.step_s if self.after.step_s > 0 else 1.0

    @property
    def same(self) -> bool:
        """Whether it stays as it is, or nearly."""
        return abs(self.after.step_s - self.before.step_s) <= SAME * self.before.step_s

    @property
    def equal(self) -> bool:
        """Whether both read the same."""
        return as_time(self.after.step_s) == as_time(self.before.step_s)


def pairs(before: Forecast, after: Forecast) -> list[Pair]:
    """The stream and, where both have one, the graph."""
    found = [Pair(before.stream, after.stream)]
    if before.graph is not None and after.graph is not None:
        found.append(Pair(before.graph, after.graph))
    return found


def findings(before: Forecast, after: Forecast, changes: Sequence[Change], names: tuple[str, str]) -> list[Finding]:
    """What the difference comes down to first; then each way, then what changed nothing. ``names`` are those of before
    and after."""
    found = pairs(before, after)
    verdict = _verdict(before, after, found) if changes else _machines(before, after, found, names)
    return [verdict, *(_way(pair, names) for pair in found), *_idle(changes), *outside(after)]


def _verdict(before: Forecast, after: Forecast, found: Sequence[Pair]) -> Finding:
    unchanged = all(pair.same for pair in found)
    first, *others = found
    told = [
        f"{_where(first)} the step takes {_instead(first)}",
        *(f"{_where(pair)} {_instead(pair)}" for pair in others),
    ]
    title = ", ".join(told)
    if unchanged:
        much = "nothing" if all(pair.equal for pair in found) else "little"
        title = f"It changes {much}: " + ", ".join(f"{_both_times(pair)} {_where(pair)}" for pair in found)
    better = not unchanged and all(pair.same or pair.ratio > 1 for pair in found)
    return Finding(
        rule="whatif.gain",
        severity="good" if better else "note",
        title=title[0].upper() + title[1:],
        text="",
        threshold=f"predicted, not measured; within {round_percent(SAME)} is the same",
        rests_on=before.fit.rests_on(before.stream.names) + after.fit.rests_on(after.stream.names),
        suite=SUITE,
    )


def _machines(before: Forecast, after: Forecast, found: Sequence[Pair], names: tuple[str, str]) -> Finding:
    """The same where nothing was changed but the machine: each time with whose it is."""
    ways = (
        f"{as_time(pair.before.step_s)} {_where(pair)} {names[0]}, {as_time(pair.after.step_s)} {names[1]}"
        for pair in found
    )
    finding = _verdict(before, after, found)
    return msgspec.structs.replace(finding, severity="note", title=f"The step takes {'; '.join(ways)}")


def _where(pair: Pair) -> str:
    return "in the stream" if pair.after.way == "stream" else "as a graph"


def _instead(pair: Pair) -> str:
    return f"still {as_time(pair.after.step_s)}" if pair.equal else _both_times(pair)


def _both_times(pair: Pair) -> str:
    after = as_time(pair.after.step_s)
    return after if pair.equal else f"{after} instead of {as_time(pair.before.step_s)}"


def in_words(pair: Pair) -> str:
    """What becomes of a way: "1.29× as fast", "2.9× as long", "the same", "about the same"."""
    if pair.same:
        return "the same" if pair.equal else "about the same"
    return f"{times(pair.ratio)} as fast" if pair.ratio > 1 else f"{times(1 / pair.ratio)} as long"


def _way(pair: Pair, names: tuple[str, str]) -> Finding:
    """What sets the pace of one way, before and after."""
    first, then = PACES[pair.before.limit], PACES[pair.after.limit]
    where = _where(pair)
    if first == then:
        title = f"{where[0].upper()}{where[1:]} {first}, {names[0]} as {names[1]}"
    else:
        title = f"{where[0].upper()}{where[1:]} {first} {names[0]}, {names[1]} {then}"
    idle = [round_percent(one.idle_share) for one in pair]
    return Finding(
        rule=f"whatif.{pair.after.way}",
        severity="note",
        title=title,
        text=f"The GPU has no kernel for {idle[0]} of the step {names[0]}, for {idle[1]} {names[1]}.",
        threshold="what most of the critical path is spent on",
        rests_on=(),
        suite=SUITE,
    )


def _idle(changes: Sequence[Change]) -> Iterator[Finding]:
    """What was changed for nothing."""
    unused = [change.what for change in changes if not change.matters]
    if unused:
        yield Finding(
            rule="whatif.unused",
            severity="advice",
            title=f"Nothing in this step uses what was changed: {'; '.join(unused)}",
            text="The memory's rate matters to kernels with bytes, the program's own time where a step has any, the "
            "PCIe link to copies from or to pinned memory: pageable ones go at the host's pace unless it is slower.",
            threshold="no way of submitting the step rests on it",
            rests_on=(),
            suite=SUITE,
        )

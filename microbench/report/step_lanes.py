"""One way of submitting a step as lanes: host, queue, GPU and copy engines, call by call or in whole stretches."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

from microbench.report import host_lane
from microbench.report.document import Lane, Span, Tone
from microbench.report.steps import GPU, HOST, LINK, Item, Step, items
from microbench.units import percent

INDENT = " " * 7
ENGINES = ("h2d", "d2h")
# Kernels side by side have a line each up to so many; of more one line shows how many run.
MOST_ROWS = 4
# Kernels further apart than this share of the step are drawn apart; closer ones together, unless their gap is as many
# times as long as the usual one: then at LEAST_APART already.
APART, LEAST_APART, UNUSUAL = 0.03, 0.01, 3.0
# So large a share of the time is all of it.
ALL = 0.995
# Sums of the same seconds in another order differ by less.
ROUNDING_S = 1e-12


def each(step: Step) -> list[Lane]:
    """Every call, kernel and copy by itself, launches and their kernels by number."""
    ran = items(step)
    kernels = [item for item in ran if item.span.lane == "gpu"]
    rows = _rows(kernels)
    idle = _idle(step, kernels, ran, 0.0)
    if len(rows) > MOST_ROWS:
        drawn = [_levels("GPU", [one.ran for one in kernels], GPU, idle)]
    else:
        drawn = [Lane(f"{INDENT}GPU" if not index else "", tuple(row)) for index, row in enumerate(rows)]
        drawn[0] = Lane(f"{INDENT}GPU", (*idle, *drawn[0].spans))
    return [host_lane.each(step), _queue(ran), *drawn, *_links(ran)]


def merged(step: Step) -> list[Lane]:
    """Calls, kernels and copies in stretches."""
    ran = items(step)
    kernels = [item for item in ran if item.span.lane == "gpu"]
    near_s = _near_s(kernels, step.end_s)
    busy = [_busy(stretch, kernels) for stretch in _stretches(kernels, near_s)]
    gpu = Lane(f"{INDENT}GPU", (*_idle(step, kernels, ran, near_s), *busy))
    return [host_lane.merged(step), _queue(ran), gpu, *_links(ran)]


# -- counts -------------------------------------------------------------------------------------------------------


def _queue(ran: Sequence[Item]) -> Lane:
    """How many kernels and copies have come to the GPU and wait for their turn."""
    waiting = [(one.ready_s, one.span.begin_s) for one in ran if one.span.begin_s > one.ready_s + ROUNDING_S]
    return _levels("queue", waiting, HOST)


def _levels(name: str, intervals: Sequence[tuple[float, float]], tone: Tone, behind: Sequence[Span] = ()) -> Lane:
    """A lane as high as the number of intervals at a time; its name says how high that goes."""
    counted = _counted(intervals)
    most = max((count for _, _, count in counted), default=0)
    spans = [Span(begin_s, end_s, "", tone, "level", count / most) for begin_s, end_s, count in counted]
    return Lane(f"{INDENT}{name} 0–{most}" if most else f"{INDENT}{name}", (*behind, *spans))


def _counted(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float, int]]:
    """From when to when how many of the intervals lie over one another, where any does."""
    changes: dict[float, int] = {}
    for begin_s, end_s in intervals:
        changes[begin_s] = changes.get(begin_s, 0) + 1
        changes[end_s] = changes.get(end_s, 0) - 1
    found, count = [], 0
    for begin_s, end_s in itertools.pairwise(sorted(changes)):
        count += changes[begin_s]
        if count:
            found.append((begin_s, end_s, count))
    return found


# -- the GPU and the link -----------------------------------------------------------------------------------------


def _rows(kernels: Sequence[Item]) -> list[list[Span]]:
    """Kernels by number, each on the first line that is free when it begins."""
    rows: list[list[Span]] = [[]]
    numbered = enumerate(kernels, start=1)
    for number, one in sorted(numbered, key=lambda pair: pair[1].span.begin_s):
        begin_s, end_s = one.span.begin_s, one.span.end_s
        drawn = Span(begin_s, end_s, str(number) if end_s > begin_s else "", GPU)
        free = next((row for row in rows if not row or row[-1].end_s <= begin_s + ROUNDING_S), None)
        if free is None:
            rows.append(free := [])
        free.append(drawn)
    return rows


def _stretches(ran: Sequence[Item], near_s: float) -> list[list[Item]]:
    """Work in the order of its begin, parted where nothing runs for longer than ``near_s``."""
    found: list[list[Item]] = []
    until_s = 0.0
    for one in sorted(ran, key=lambda item: item.span.begin_s):
        if found and one.span.begin_s - until_s <= near_s:
            found[-1].append(one)
        else:
            found.append([one])
        until_s = max(until_s, one.span.end_s)
    return found


def _near_s(kernels: Sequence[Item], end_s: float) -> float:
    """Up to which gap kernels are drawn together."""
    gaps = [later.span.begin_s - earlier.span.end_s for earlier, later in itertools.pairwise(kernels)]
    usual_s = UNUSUAL * statistics.median(gaps) if gaps else 0.0
    return min(max(usual_s, end_s * LEAST_APART), end_s * APART)


def _busy(stretch: Sequence[Item], kernels: Sequence[Item]) -> Span:
    """Kernels as one stretch: how many; where those are all, also for how much of it any runs."""
    begin_s, end_s = stretch[0].span.begin_s, max(one.span.end_s for one in stretch)
    if len(stretch) == 1:
        return Span(begin_s, end_s, "", GPU)
    words, busy = f"{len(stretch)} kernels", 0.0
    if len(stretch) == len(kernels) and end_s > begin_s:
        counted = _counted([one.ran for one in stretch])
        most = max((count for _, _, count in counted), default=0)
        words += f", up to {most} at once" if most > 1 else ""
        busy = sum(end - begin for begin, end, _ in counted) / (end_s - begin_s)
        words += f", {percent(busy)} busy"
    return Span(begin_s, end_s, words, GPU, "shaded" if busy < ALL else "solid")


def _idle(step: Step, kernels: Sequence[Item], ran: Sequence[Item], near_s: float) -> list[Span]:
    """Where no kernel runs, and what the next one waits for."""
    found: list[Span] = []
    until_s = 0.0
    copies = [one.span.end_s for one in ran if one.span.lane != "gpu"]
    for stretch in _stretches(kernels, near_s):
        first = stretch[0]
        if first.span.begin_s > until_s:
            found.append(Span(until_s, first.span.begin_s, _waits_for(first, copies), "quiet", "idle"))
        until_s = max(one.span.end_s for one in stretch)
    if until_s < step.end_s:
        found.append(Span(until_s, step.end_s, "", "quiet", "idle"))
    return found


def _waits_for(one: Item, copied: Sequence[float]) -> str:
    if one.span.begin_s <= one.ready_s + ROUNDING_S:
        return "waits for the host"
    begun_s = one.span.begin_s - one.work.gap_s
    return "waits for a copy" if any(abs(end_s - begun_s) < ROUNDING_S for end_s in copied) else ""


def _links(ran: Sequence[Item]) -> Iterator[Lane]:
    """A lane for each direction in which anything is copied."""
    for lane in ENGINES:
        copies = tuple(Span(*one.ran, "copy", LINK) for one in ran if one.span.lane == lane)
        if copies:
            yield Lane(f"{INDENT}{lane}", copies)

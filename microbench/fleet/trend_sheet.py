"""Lays out what changed over the campaigns of a store, on one screen."""

import math

from microbench.analysis.evidence import Finding, Severity
from microbench.core.units import counted, percent, plain
from microbench.fleet.changes import ANY_TOLD, LEAST_CAMPAIGNS, LEAST_SIDE
from microbench.fleet.outliers import LEAST_LOSS
from microbench.fleet.series import Board
from microbench.fleet.sheet import FACTOR, LONGEST, MOST_NAMED, MOST_SLOW, name_of, slower
from microbench.fleet.trend import Event, Moved, Trend
from microbench.report.document import AnswerLine, Banner, Block, Cell, Screen
from microbench.report.heading import SIMULATED

MOST_CAUSES, MOST_EXCEPT, MOST_GROUPS = 3, 3, 3
# For several GPUs the range is shown if the largest change is at least this many times the smallest.
WIDE = 1.5
THRESHOLD = (
    f"a change of {percent(math.expm1(LEAST_LOSS))} or more between at least {LEAST_SIDE} campaigns before it and "
    f"{LEAST_SIDE} after it, larger than the scatter of the GPU, its class and repeated measurements explains; the "
    f"chance that any change is told if nothing changed is {percent(ANY_TOLD)}"
)


def screen(trend: Trend, footer: str) -> Screen:
    """One screen: over how many campaigns, how many GPUs changed, in what, since when and what changed with it."""
    found = [_finding(event, trend) for event in trend.events]
    more = f"{len(found) - MOST_NAMED} more changes are not shown" if len(found) > MOST_NAMED else ""
    nodes = len({gpu.node for gpu in trend.gpus})
    name = f"trend over {counted(trend.campaigns, 'campaign')}"
    about = f"{counted(len(trend.gpus), 'GPU')} on {counted(nodes, 'node')}"
    banners = (Banner(SIMULATED, "These figures come from simulated GPUs."),) if trend.simulated else ()
    return Screen(
        mark=SIMULATED if trend.simulated else "",
        banners=banners,
        blocks=(Block(name, (about,), tuple(_lines(trend))),),
        findings=tuple(found[:MOST_NAMED]),
        left_out=more,
        footer=footer,
    )


def answer(trend: Trend) -> dict[str, object]:
    """What the screen says as one object for JSON, with every change; a change above 0 is slower."""
    names = ("campaign", "simulated", "first", "last", "campaigns", "judged")
    return {
        **{name: getattr(trend, name) for name in names},
        "gpus": list(map(name_of, trend.gpus)),
        "changes": [
            {
                "gpus": list(map(name_of, event.gpus)),
                "since": event.since,
                "slower_in": {one.group: math.expm1(one.size) for one in event.moved},
                "causes": [one._asdict() for one in event.causes],
                **_finding(event, trend).words,
            }
            for event in trend.events
        ],
        "swapped": [{"gpu": name_of(one.gpu), "since": one.since} for one in trend.swapped],
        "smallest_detectable": {group: math.expm1(size) for group, size in trend.smallest},
        "left_out": trend.left_out,
    }


def minute(moment: str) -> str:
    """A time in UTC to the minute: "2026-11-20 06:00"."""
    return plain(moment[:16].replace("T", " "))


def _lines(trend: Trend) -> list[AnswerLine]:
    """How many GPUs changed, what was compared, and the smallest detectable change."""
    severity: Severity = "problem" if any(event.slower for event in trend.events) else "good"
    changed = tuple(map(Cell, _changed(trend)))
    lines = [AnswerLine("changed", changed, verdict=severity if trend.judged else "note")]
    if trend.campaigns:
        compared = [f"{minute(trend.first)} to {minute(trend.last)} UTC"]
        if trend.others:
            compared.append(f"without {counted(trend.others, 'campaign')} of other settings")
        lines.append(AnswerLine("compared", tuple(map(Cell, compared))))
    if trend.smallest:
        sizes = dict(trend.smallest)
        least = [group for group, size in sizes.items() if size <= LEAST_LOSS]
        words = []
        if least:
            of = "every group" if len(least) == len(sizes) else f"{len(least)} of {len(sizes)} groups"
            words.append(f"smallest detectable change: {percent(math.expm1(LEAST_LOSS))} in {of} of figures")
        others = sorted(set(sizes) - set(least), key=lambda group: -sizes[group])
        words += [f"{percent(math.expm1(sizes[group]))} in {group}" for group in others[:MOST_GROUPS]]
        lines.append(AnswerLine("detectable", tuple(map(Cell, [*words, f"after {LEAST_SIDE} campaigns"]))))
    if trend.swapped:
        told = [f"{name_of(one.gpu)} since {minute(one.since)}" for one in trend.swapped[:MOST_NAMED]]
        more = [f"and {len(trend.swapped) - MOST_NAMED} more"] if len(trend.swapped) > MOST_NAMED else []
        lines.append(AnswerLine("swapped", tuple(map(Cell, (*told, *more)))))
    if trend.left_out:
        lines.append(AnswerLine("left out", tuple(map(Cell, trend.left_out[:MOST_NAMED])), verdict="warning"))
    return lines


def _changed(trend: Trend) -> list[str]:
    if not trend.gpus:
        return ["nothing can be said: no campaign measured a GPU"]
    if not trend.judged:
        needed = f"a change needs {LEAST_SIDE} before it and after it"
        return [f"too early: {trend.longest} of {LEAST_CAMPAIGNS} campaigns; {needed}"]
    changed = {True: set[Board](), False: set[Board]()}
    for event in trend.events:
        changed[event.slower] |= set(event.gpus)
    slow, fast, of = len(changed[True]), len(changed[False]), f"of {counted(trend.judged, 'GPU')}"
    words = [f"{slow} {of} became slower"] if slow else []
    if fast:
        words.append(f"{fast} became faster" if slow else f"{fast} {of} became faster")
    if trend.judged < len(trend.gpus):
        words.append(f"{len(trend.gpus) - trend.judged} have fewer than {LEAST_CAMPAIGNS} campaigns")
    return words if slow or fast else [f"none {of} changed", *words]


def _finding(event: Event, trend: Trend) -> Finding:
    moved = [_moved(one) for one in event.moved[:MOST_SLOW]]
    if len(event.moved) > MOST_SLOW:
        moved[-1] += f" and {len(event.moved) - MOST_SLOW} more"
    seen = "; ".join(": ".join(filter(None, cause[:2])) for cause in event.causes[:MOST_CAUSES])
    seen = seen or "no recorded fact changed with it"
    largest = max(one.size for one in event.moved)
    severity: Severity = "note" if largest <= 0 else "problem" if largest >= math.log(FACTOR) else "warning"
    return Finding(
        rule="fleet.changed",
        severity=severity,
        title=f"{_who(event, trend)}: {', '.join(moved)} since {minute(event.since)} ({seen})",
        text="",
        advice=next((cause.check for cause in event.causes if cause.check), ""),
        threshold=THRESHOLD,
    )


def _who(event: Event, trend: Trend) -> str:
    """The GPUs of an event: "n3 GPU 0", "all 16 GPUs", "all 8 GPUs of n3 but GPU 1"."""
    if not event.but and not event.node and len(event.gpus) == 1:
        return name_of(event.gpus[0])
    whole = len(event.gpus) + len(event.but)
    of = f" of {plain(event.node, LONGEST)}" if event.node else ""
    if not of and trend.classes > 1:
        of = f" {plain(event.of_class.partition(',')[0], LONGEST)}"
    if len(event.but) > MOST_EXCEPT:
        return f"{len(event.gpus)} of {whole} GPUs{of}"
    but = f" but {', '.join(map(name_of, event.but))}" if event.but else ""
    return f"all {whole} GPUs{of}{but}"


def _moved(one: Moved) -> str:
    """What changed and by how much: "DRAM bandwidth 3.1 % slower"."""
    low, high = sorted((abs(one.low), abs(one.high)))
    words = slower(math.expm1(abs(one.size)))
    if high > WIDE * low:
        words = f"{percent(math.expm1(low))} to {slower(math.expm1(high))}"
    return f"{one.group} {words if one.size > 0 else words.replace('slower', 'faster')}"

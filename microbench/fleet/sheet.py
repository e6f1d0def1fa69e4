"""Lays out the verdict on a campaign, as a screen and a page, and what changed over campaigns, as a screen."""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from microbench.analysis.evidence import SEVERITIES, Finding, Severity
from microbench.core.units import counted, percent, plain, times
from microbench.explain.environment import repair_due
from microbench.fleet.causes import WORRYING, Gpu
from microbench.fleet.changes import ANY_TOLD, LEAST_CAMPAIGNS, LEAST_SIDE
from microbench.fleet.outliers import ANY_NAMED, LEAST_GPUS, LEAST_LOSS
from microbench.fleet.series import Board
from microbench.fleet.trend import Event, Moved, Trend
from microbench.fleet.verdict import BOUNDS, HOST, Compared, Named, Verdict
from microbench.report.document import (
    AnswerLine,
    Banner,
    Block,
    Cell,
    Curve,
    Line,
    Mark,
    Screen,
    Table,
    Tile,
    TileRow,
    Tiles,
    Tone,
    columns,
)
from microbench.report.heading import SIMULATED
from microbench.report.page.page import answer_page

# How much the screen and the page show.
MOST_NAMED, MOST_SLOW, MOST_CURVES, MOST_FAILED = 8, 3, 12, 20
LONGEST = 60
VERDICT = ".verdict"
# Losses from this factor on are shown as factors, smaller ones as shares.
FACTOR = 1.5
# The axis of losses reaches at least as far: the least loss that is a change.
LEAST_AXIS = 0.015
STATES: dict[str, tuple[Tone, str]] = {
    "slow": ("problem", "slower than the others"),
    "alike": ("good", "like the others"),
    "low": ("problem", "slow against its ceilings"),
    "alone": ("quiet", f"fewer than {LEAST_GPUS} of its class: not compared"),
}
THRESHOLD = (
    f"a loss of {percent(math.expm1(LEAST_LOSS))} or more that is larger than repeated measurements explain; the "
    f"chance that any GPU is named if all are equal is {percent(ANY_NAMED)}"
)
NOT_COMPARED = f"not compared: each class has fewer than {LEAST_GPUS} GPUs"
CEILINGS = f"a class of fewer than {LEAST_GPUS} GPUs: each GPU is held against its own ceilings, as by microbench check"
# A line of a screen: its name, what it says, and how that is judged.
Said = tuple[str, list[str], Severity | None]


def screen(verdict: Verdict, store: str) -> Screen:
    """One screen: how many GPUs there are, which of them are outliers and why, and what to type next."""
    footer = (
        f"more: microbench fleet report --store {plain(store)} -o page.html · microbench fleet query --store "
        f'{plain(store)} "SELECT * FROM findings" · microbench fleet trend --store {plain(store)}'
    )
    block = f"campaign {plain(verdict.campaign)}", _counted(verdict.gpus), _lines(verdict)
    return _screen(verdict.simulated, *block, findings(verdict), "are on the page", footer)


def _screen(
    simulated: bool, name: str, about: str, lines: Iterable[Said], found: list[Finding], others: str, footer: str
) -> Screen:
    """A screen of one block and the first findings, which says where the ``others`` are."""
    left = len(found) - MOST_NAMED
    answers = (AnswerLine(line, tuple(map(Cell, words)), verdict=severity) for line, words, severity in lines)
    return Screen(
        mark=SIMULATED if simulated else "",
        banners=(Banner(SIMULATED, "These figures come from simulated GPUs."),) if simulated else (),
        blocks=(Block(name, (about,), tuple(answers)),),
        findings=tuple(found[:MOST_NAMED]),
        left_out=f"{left} more {others}" if left > 0 else "",
        footer=footer,
    )


def answer(verdict: Verdict) -> dict[str, object]:
    """The JSON of what the screen and the page say, with every outlier."""
    return {
        "campaign": verdict.campaign,
        "simulated": verdict.simulated,
        "classes": [
            {
                "name": one.name,
                "gpus": list(map(name_of, one.gpus)),
                "compared": one.judged,
                "smallest_detectable": dict(zip(one.groups, np.expm1(one.smallest).tolist(), strict=True)),
            }
            for one in verdict.classes
        ],
        "outliers": [
            {
                "gpu": name_of(named.gpu),
                "device": named.gpu.device,
                "slower_in": named.slow,
                "causes": [cause._asdict() for cause in named.causes],
                **_finding(named).words,
            }
            for named in verdict.named
        ],
        "slow_against_ceilings": [{"gpu": name_of(gpu), **found.words} for gpu, found in _low(verdict)],
        "in_common": verdict.shared,
        "no_run": [msgspec.to_builtins(task) for task in verdict.failed],
        "left_out": verdict.left_out,
    }


def page(verdict: Verdict) -> str:
    """One page: the map of GPUs, distributions with the slow ones marked, and what to check on which node."""
    facts = [(name, " · ".join(words)) for name, words, _ in _lines(verdict)]
    title = next((" · ".join(words) for _, words, severity in _lines(verdict) if severity == "problem"), facts[0][1])
    everything = findings(verdict)
    if not any(one.judged for one in verdict.classes):
        everything.append(Finding("fleet.alike", "note", f"{NOT_COMPARED[0].upper()}{NOT_COMPARED[1:]}", "", CEILINGS))
    elif not everything:
        everything = [Finding("fleet.alike", "good", "No GPU is an outlier", "", THRESHOLD)]
    return answer_page(
        kind=f"campaign {plain(verdict.campaign)}: {_counted(verdict.gpus)}",
        title=f"{title[:1].upper()}{title[1:]}",
        mark=SIMULATED if verdict.simulated else "",
        facts=facts,
        findings=everything,
        pictures=[_map(verdict), *_curves(verdict)],
        tables=[table for table in (_checks(verdict), _least(verdict), _failures(verdict)) if table.rows],
    )


def findings(verdict: Verdict) -> list[Finding]:
    """A finding for each outlier, the slowest first, then for GPUs that are slow against their ceilings."""
    return [*map(_finding, verdict.named), *(found for _, found in _low(verdict))]


def _low(verdict: Verdict) -> list[tuple[Gpu, Finding]]:
    """The verdicts on GPUs of classes that are too small, where their own runs say that they are slow."""
    return [
        (gpu, Finding("fleet.ceiling", severity, f"{name_of(gpu)}: {plain(title)}", "", CEILINGS, advice=plain(advice)))
        for gpu in _alone(verdict)
        for rule, known, title, advice in gpu.findings
        for severity in SEVERITIES
        if rule.endswith(VERDICT) and known == severity and severity in WORRYING
    ]


def _alone(verdict: Verdict) -> list[Gpu]:
    return [gpu for one in verdict.classes if not one.judged for gpu in one.gpus]


def _finding(named: Named) -> Finding:
    most = f" and {len(named.slow) - MOST_SLOW} more" if len(named.slow) > MOST_SLOW else ""
    first, *others = named.causes
    severity: Severity = "problem" if max(named.slow.values()) >= FACTOR - 1 else "warning"
    title = f"{name_of(named.gpu)}: {_slow(named)}{most} ({first.kind}: {first.seen})"
    text = " ".join(f"Perhaps also {cause.kind}: {cause.seen}." for cause in others)
    advice = next((cause.check for cause in named.causes if cause.check), "")
    return Finding("fleet.slow", severity, title, text, THRESHOLD, advice=advice)


def _slow(named: Named) -> str:
    return ", ".join(f"{group} {slower(loss)}" for group, loss in list(named.slow.items())[:MOST_SLOW])


def slower(loss: float) -> str:
    """How much slower something is: "3.1 % slower", "2.0× slower"."""
    return f"{times(1 + loss)} slower" if 1 + loss >= FACTOR else f"{percent(loss)} slower"


def name_of(gpu: Gpu | Board) -> str:
    """The node, and which of its GPUs."""
    return f"{plain(gpu.node, LONGEST)} GPU {gpu.number if gpu.number is not None else '?'}"


def _counted(gpus: Sequence[Gpu | Board]) -> str:
    return f"{counted(len(gpus), 'GPU')} on {counted(len({gpu.node for gpu in gpus}), 'node')}"


def _first(words: list[str]) -> list[str]:
    return [*words[:MOST_NAMED], *([f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else [])]


def _lines(verdict: Verdict) -> list[Said]:
    """What the screen and the head of the page say, line by line."""
    judged = sum(len(one.gpus) for one in verdict.classes if one.judged)
    slow = len(verdict.named)
    words = f"{slow} of {judged} GPUs are outliers" if slow else f"none of {judged} GPUs is an outlier"
    if not judged:
        words = NOT_COMPARED
    lines: list[Said] = [("slow", [words], "problem" if slow else "good" if judged else "note")]
    if known := [gpu for gpu in _alone(verdict) if any(rule.endswith(VERDICT) for rule, *_ in gpu.findings)]:
        low = {id(gpu) for gpu, _ in _low(verdict)}
        words = f"{len(low) or 'none'} of {len(known)} GPUs {'are' if len(low) > 1 else 'is'} slow against the ceilings"
        lines.append(("ceilings", [words], "problem" if low else "good"))
    for name, compared in (("compared", True), ("too few", False)):
        if told := [f"{len(one.gpus)}: {plain(one.name, 120)}" for one in verdict.classes if one.judged is compared]:
            lines.append((name, told, None))
    due: dict[tuple[Severity, str, str], list[str]] = {}  # GPUs whose memory must be repaired, slow or not
    for gpu in verdict.gpus:
        if repair := repair_due(gpu.memory_errors):
            due.setdefault(repair, []).append(name_of(gpu))
    told = []
    for (_, what, step), names in due.items():
        others = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        told.append(f"{what} on {', '.join(names[:MOST_NAMED])}{others}: {step}")
    if told:
        lines.append(("repair due", told, max((severity for severity, *_ in due), key=SEVERITIES.index)))
    if verdict.shared:
        lines.append(("in common", list(verdict.shared), "advice"))
    if verdict.failed:
        told = [f"{plain(task.node, LONGEST)} {plain(task.status)}" for task in verdict.failed]
        lines.append(("no run", _first(told), "warning"))
    if verdict.left_out:
        lines.append(("left out", list(verdict.left_out[:MOST_NAMED]), "warning"))
    return lines


def _map(verdict: Verdict) -> Tiles:
    """A cell each GPU, coloured by its state, in a row each value of the first label, else each class."""
    slow = {(one.gpu.node, one.gpu.device): one for one in verdict.named}
    low = {id(gpu): found.title for gpu, found in _low(verdict)}
    states: set[str] = set()
    label = next((key for gpu in verdict.gpus for key in gpu.labels), None)
    rows: dict[str, list[Tile]] = {}
    for one in verdict.classes:
        for gpu in one.gpus:
            key = gpu.node, gpu.device
            state = "slow" if key in slow else "alike" if one.judged else "low" if id(gpu) in low else "alone"
            states.add(state)
            row = one.name if label is None else f"{label} {gpu.labels.get(label, 'unknown')}"
            words = low.get(id(gpu), f"{name_of(gpu)}: {STATES[state][1]}")
            words = _finding(slow[key]).title if key in slow else words
            rows.setdefault(row, []).append(Tile(words, STATES[state][0]))
    used = [STATES[state] for state in STATES if state in states]
    groups = len({group for one in verdict.classes if one.judged for group in one.groups})
    title = f"The GPUs, compared in {counted(groups, 'group')} of figures" if groups else "The GPUs, not compared"
    about = f"a cell is a GPU, a row {'a class' if label is None else f'a {plain(label)}'}"
    ordered = tuple(TileRow(plain(name, LONGEST), tuple(tiles)) for name, tiles in sorted(rows.items()))
    return Tiles(title, about, ordered, tuple(used))


def _curves(verdict: Verdict) -> list[Curve]:
    """The losses of each group in which a GPU was named, else of the groups that are bound by a ceiling."""
    drawn = []
    for one in verdict.classes:
        own = [named for named in verdict.named if named.gpu in one.gpus]
        slow = {group for named in own for group in named.slow}
        shown = [group for group in one.groups if group in (slow or {*BOUNDS.values(), HOST})]
        drawn += [_curve(one, group, own) for group in shown if one.judged]
    return drawn[:MOST_CURVES]


def _curve(one: Compared, group: str, own: Sequence[Named]) -> Curve:
    loss = one.loss[one.groups.index(group)]
    slow = {one.gpus.index(named.gpu) for named in own if group in named.slow}
    ordered = [int(place) for place in np.argsort(loss) if np.isfinite(loss[place])]
    points = [(float(rank), math.expm1(float(loss[place])), place) for rank, place in enumerate(ordered, 1)]
    lines = [
        Line("like the others", tuple((x, y) for x, y, place in points if place not in slow), "first", "points"),
        Line("slower", tuple((x, y) for x, y, place in points if place in slow), "problem", "points"),
    ]
    least = float(one.smallest[one.groups.index(group)])
    high, low = max((y for _, y, _ in points), default=0.0), min((y for _, y, _ in points), default=0.0)
    ticks = sorted({0.0, min(low, -LEAST_AXIS), max(high, LEAST_AXIS)})  # else chance fills the whole axis
    return Curve(
        title=f"{group}: the loss of each GPU against its class",
        about=f"{plain(one.name, 120)}; from {percent(math.expm1(least))} on a loss is named",
        x_title="GPUs, the fastest first",
        lines=tuple(line for line in lines if line.points),
        x_ticks=(Mark(1.0, "1"), Mark(float(len(points)), str(len(points)))),
        y_ticks=tuple(Mark(at, f"{'+' if at > 0 else ''}{at * 100:.1f} %") for at in ticks),
        x_log=False,
        y_log=False,
    )


def _checks(verdict: Verdict) -> Table:
    rows = tuple(
        (
            Cell(name_of(named.gpu)), Cell(", ".join(f"{key}={value}" for key, value in named.gpu.labels.items())),
            Cell(_slow(named)),
            Cell(", ".join(dict.fromkeys(cause.kind for cause in named.causes)), tone="problem"),
            Cell("; ".join(cause.seen for cause in named.causes)),
            Cell(". ".join(dict.fromkeys(cause.check for cause in named.causes if cause.check))),
        )
        for named in verdict.named
    )  # fmt: skip
    titles = columns("GPU", "labels", "slow in", "likely", "seen", "check", left=6)
    return Table("What to check on which node", "the slowest first", titles, rows)


def _least(verdict: Verdict) -> Table:
    """The smallest loss that would be named, by class and group."""
    rows = tuple(
        (Cell(plain(one.name, 120)), Cell(group), Cell(percent(math.expm1(float(least)))))
        for one in verdict.classes
        if one.judged
        for group, least in zip(one.groups, one.smallest, strict=True)
        if np.isfinite(least)
    )
    titles = columns("class", "figures", "smallest loss that is named", left=2)
    return Table(
        "Smallest detectable change", "smaller losses may be chance in this campaign", titles, rows, (THRESHOLD,)
    )


def _failures(verdict: Verdict) -> Table:
    rows = tuple(
        (Cell(plain(task.node, LONGEST)), Cell(plain(task.status), tone="warning"), Cell(plain(task.reason)))
        for task in verdict.failed[:MOST_FAILED]
    )
    more = len(verdict.failed) - MOST_FAILED
    notes = (f"and {more} more",) if more > 0 else ()
    return Table("Tasks without a run", "", columns("node", "what", "why", left=3), rows, notes)


# What changed over campaigns.

MOST_CAUSES, MOST_EXCEPT, MOST_GROUPS = 3, 3, 3
# For several GPUs the range is shown if the largest change is at least this many times the smallest.
WIDE = 1.5
CHANGED = (
    f"a change of {percent(math.expm1(LEAST_LOSS))} or more between at least {LEAST_SIDE} campaigns before it and "
    f"{LEAST_SIDE} after it, larger than the scatter of the GPU, its class and repeated measurements explains; the "
    f"chance that any change is told if nothing changed is {percent(ANY_TOLD)}"
)


def trend_screen(trend: Trend, footer: str) -> Screen:
    """One screen: over how many campaigns, how many GPUs changed, in what, since when and what changed with it."""
    found = [_change(event, trend) for event in trend.events]
    block = f"trend over {counted(trend.campaigns, 'campaign')}", _counted(trend.gpus), _trend_lines(trend)
    return _screen(trend.simulated, *block, found, "changes are not shown", footer)


def trend_answer(trend: Trend) -> dict[str, object]:
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
                **_change(event, trend).words,
            }
            for event in trend.events
        ],
        "swapped": [{"gpu": name_of(gpu), "since": since} for gpu, since in trend.swapped],
        "smallest_detectable": {group: math.expm1(size) for group, size in trend.smallest},
        "left_out": trend.left_out,
    }


def minute(moment: str) -> str:
    """A time in UTC to the minute: "2026-11-20 06:00"."""
    return plain(moment[:16].replace("T", " "))


def _trend_lines(trend: Trend) -> Iterable[Said]:
    """How many GPUs changed, what was compared, and the smallest detectable change."""
    slower = any(event.slower for event in trend.events)
    yield "changed", _changed(trend), "note" if not trend.judged else "problem" if slower else "good"
    if trend.campaigns:
        compared = [f"{minute(trend.first)} to {minute(trend.last)} UTC"]
        if trend.others:
            compared.append(f"without {counted(trend.others, 'campaign')} of other settings")
        yield "compared", compared, None
    if trend.smallest:
        sizes = dict(trend.smallest)
        least = [group for group, size in sizes.items() if size <= LEAST_LOSS]
        words = []
        if least:
            of = "every group" if len(least) == len(sizes) else f"{len(least)} of {len(sizes)} groups"
            words.append(f"smallest detectable change: {percent(math.expm1(LEAST_LOSS))} in {of} of figures")
        others = sorted(set(sizes) - set(least), key=lambda group: -sizes[group])
        words += [f"{percent(math.expm1(sizes[group]))} in {group}" for group in others[:MOST_GROUPS]]
        yield "detectable", [*words, f"after {LEAST_SIDE} campaigns"], None
    if trend.swapped:
        yield "swapped", _first([f"{name_of(gpu)} since {minute(since)}" for gpu, since in trend.swapped]), None
    if trend.left_out:
        yield "left out", list(trend.left_out[:MOST_NAMED]), "warning"


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


def _change(event: Event, trend: Trend) -> Finding:
    moved = [_moved(one) for one in event.moved[:MOST_SLOW]]
    if len(event.moved) > MOST_SLOW:
        moved[-1] += f" and {len(event.moved) - MOST_SLOW} more"
    seen = "; ".join(": ".join(filter(None, cause[:2])) for cause in event.causes[:MOST_CAUSES])
    seen = seen or "no recorded fact changed with it"
    largest = max(one.size for one in event.moved)
    severity: Severity = "note" if largest <= 0 else "problem" if largest >= math.log(FACTOR) else "warning"
    title = f"{_who(event, trend)}: {', '.join(moved)} since {minute(event.since)} ({seen})"
    advice = next((cause.check for cause in event.causes if cause.check), "")
    return Finding("fleet.changed", severity, title, "", CHANGED, advice=advice)


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

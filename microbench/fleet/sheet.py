"""Lays out the verdict on a campaign: one screen, and the pictures and tables of one page."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from microbench.analysis.evidence import SEVERITIES, Finding, Severity
from microbench.core.units import counted, percent, plain, times
from microbench.explain.environment import repair_due
from microbench.fleet.causes import WORRYING, Gpu
from microbench.fleet.outliers import ANY_NAMED, LEAST_GPUS, LEAST_LOSS
from microbench.fleet.series import Board
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
ALIKE = Finding("fleet.alike", "good", "No GPU is an outlier", "", THRESHOLD)
NOT_COMPARED = f"not compared: each class has fewer than {LEAST_GPUS} GPUs"
CEILINGS = f"a class of fewer than {LEAST_GPUS} GPUs: each GPU is held against its own ceilings, as by microbench check"


def screen(verdict: Verdict, store: str) -> Screen:
    """One screen: how many GPUs there are, which of them are outliers and why, and what to type next."""
    found = findings(verdict)
    more = f"{len(found) - MOST_NAMED} more are on the page" if len(found) > MOST_NAMED else ""
    lines = [AnswerLine(name, tuple(map(Cell, words)), verdict=severity) for name, words, severity in _lines(verdict)]
    banners = (Banner(SIMULATED, "These figures come from simulated GPUs."),) if verdict.simulated else ()
    return Screen(
        mark=SIMULATED if verdict.simulated else "",
        banners=banners,
        blocks=(Block(f"campaign {plain(verdict.campaign)}", (_counted(verdict),), tuple(lines)),),
        findings=tuple(found[:MOST_NAMED]),
        left_out=more,
        footer=f"more: microbench fleet report --store {plain(store)} -o page.html · microbench fleet query --store "
        f'{plain(store)} "SELECT * FROM findings" · microbench fleet trend --store {plain(store)}',
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
                "slower_in": {one.group: one.loss for one in named.slow},
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
        everything = [ALIKE]
    return answer_page(
        kind=f"campaign {plain(verdict.campaign)}: {_counted(verdict)}",
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
    slow = ", ".join(f"{one.group} {slower(one.loss)}" for one in named.slow[:MOST_SLOW])
    first, *others = named.causes
    severity: Severity = "problem" if named.slow[0].loss >= FACTOR - 1 else "warning"
    return Finding(
        rule="fleet.slow",
        severity=severity,
        title=f"{name_of(named.gpu)}: {slow}{most} ({first.kind}: {first.seen})",
        text=" ".join(f"Perhaps also {cause.kind}: {cause.seen}." for cause in others),
        advice=next((cause.check for cause in named.causes if cause.check), ""),
        threshold=THRESHOLD,
    )


def slower(loss: float) -> str:
    """How much slower something is: "3.1 % slower", "2.0× slower"."""
    return f"{times(1 + loss)} slower" if 1 + loss >= FACTOR else f"{percent(loss)} slower"


def name_of(gpu: Gpu | Board) -> str:
    """The node, and which of its GPUs."""
    return f"{plain(gpu.node, LONGEST)} GPU {gpu.number if gpu.number is not None else '?'}"


def _counted(verdict: Verdict) -> str:
    gpus = verdict.gpus
    nodes = len({gpu.node for gpu in gpus})
    return f"{counted(len(gpus), 'GPU')} on {counted(nodes, 'node')}"


def _lines(verdict: Verdict) -> list[tuple[str, list[str], Severity | None]]:
    """What the screen and the head of the page say, line by line."""
    judged = sum(len(one.gpus) for one in verdict.classes if one.judged)
    slow = len(verdict.named)
    words = f"{slow} of {judged} GPUs are outliers" if slow else f"none of {judged} GPUs is an outlier"
    if not judged:
        words = NOT_COMPARED
    lines: list[tuple[str, list[str], Severity | None]] = [
        ("slow", [words], "problem" if slow else "good" if judged else "note"),
    ]
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
        told = [f"{plain(task.node, LONGEST)} {plain(task.status)}" for task in verdict.failed[:MOST_NAMED]]
        more = [f"and {len(verdict.failed) - MOST_NAMED} more"] if len(verdict.failed) > MOST_NAMED else []
        lines.append(("no run", [*told, *more], "warning"))
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
        slow = {each.group for named in own for each in named.slow}
        shown = [group for group in one.groups if group in (slow or {*BOUNDS.values(), HOST})]
        drawn += [_curve(one, group, own) for group in shown if one.judged]
    return drawn[:MOST_CURVES]


def _curve(one: Compared, group: str, own: Sequence[Named]) -> Curve:
    loss = one.loss[one.groups.index(group)]
    slow = {one.gpus.index(named.gpu) for named in own for each in named.slow if each.group == group}
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
            Cell(", ".join(f"{one.group} {slower(one.loss)}" for one in named.slow[:MOST_SLOW])),
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

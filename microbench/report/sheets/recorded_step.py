"""Draws the typical step of a trace to scale: the host's threads, the GPU's streams, and each idle moment's cause."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from microbench.core.units import as_time, plain
from microbench.diagnosis import lanes, words
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.host_time import BETWEEN
from microbench.diagnosis.idle import CAUSES, OWN_TIME
from microbench.diagnosis.lanes import IDLE, Stretch, What
from microbench.report.document import Lane, Report, Section, Span, Table, TimeLine, Tone
from microbench.report.suites.timeline import time_ticks

# The colour of each cause, in the drawing and in the table of where the time goes.
TONES: Mapping[What, Tone] = {
    "work": "second",
    "Python and framework time between CUDA calls": "first", "launch calls": "third", "other calls": "fifth",
    "waits": "problem",
    "copies": "fourth", "allocation": "advice", "module load": "sixth", "another stream's event": "note",
    "another stream": "good", "launch latency": "quiet", "device gaps": "seventh", "profiler": "eighth",
    "unknown": "plain",
}  # fmt: skip
# Rows of nested host code for a thread, and threads and streams, that a drawing has at most.
MOST_DEPTH, MOST_THREADS, MOST_STREAMS = 6, 8, 16
# The same in a terminal, which shows only the outermost code.
FEW_THREADS, FEW_STREAMS = 3, 6
# A terminal's line is divided into so many cells. Lanes with more spans than FEW show how much of each cell is covered.
CELLS, FEW = 100, 40
# Kernels in the picture of the step's beginning.
BEGINNING = 8
Kind = Literal["solid", "shaded", "pale"]
SHADES: Mapping[str, Kind] = {BETWEEN: "solid", OWN_TIME: "solid", "launch calls": "shaded"}
OTHER_SHADE: Kind = "pale"
SHADES_IN_WORDS = "idle: █ between calls, ▒ launch calls, ░ other causes"
TEMPLATE = re.compile(r"[<(].*")


def drawn(found: Sequence[lanes.Lane]) -> tuple[Lane, ...]:
    """The lanes with each piece in its colour."""
    return tuple(
        Lane(
            lane.name,
            tuple(
                Span(one.begin_s, one.end_s, one.name, TONES[one.what], "shaded" if one.code else "solid")
                for one in lane.pieces
            ),
        )
        for lane in found
    )


def simplified(lane: Lane, length_s: float) -> Lane:
    """The lane as CELLS cells of a terminal can show it: short spans by how much of each cell they cover."""
    spans = tuple(span for span in (_short(span) for span in lane.spans) if span.end_s > span.begin_s)
    if lane.name == IDLE:
        spans = _joined(spans)
    if len(spans) <= FEW or length_s <= 0:
        return Lane(lane.name, spans)
    cell_s = length_s / CELLS
    covered: list[dict[tuple[str, Tone], float]] = [{} for _ in range(CELLS)]
    for span in spans:
        last = min(int(span.end_s / cell_s), CELLS - 1)
        for cell in range(int(span.begin_s / cell_s), last + 1):
            part_s = min(span.end_s, (cell + 1) * cell_s) - max(span.begin_s, cell * cell_s)
            key = (span.text, span.tone)
            covered[cell][key] = covered[cell].get(key, 0.0) + max(part_s, 0.0)
    if lane.name == IDLE:
        return Lane(lane.name, tuple(_most(covered, cell_s)))
    long = [span for span in spans if span.end_s - span.begin_s >= 2 * cell_s]
    within = [any(span.begin_s <= (cell + 0.5) * cell_s < span.end_s for span in long) for cell in range(CELLS)]
    levels = [
        Span(cell * cell_s, (cell + 1) * cell_s, "", spans[0].tone, "level", min(sum(parts.values()) / cell_s, 1.0))
        for cell, parts in enumerate(covered)
        if parts and not within[cell]
    ]
    return Lane(lane.name, tuple(sorted([*long, *levels], key=lambda span: span.begin_s)))


def _most(covered: Sequence[Mapping[tuple[str, Tone], float]], cell_s: float) -> Iterator[Span]:
    """The cause that takes most of each cell, where the GPU idles for at least half of it."""
    idle = (parts if sum(parts.values()) >= cell_s / 2 else {} for parts in covered)
    causes = (max(parts, key=parts.__getitem__, default=None) for parts in idle)
    for cause, cells in itertools.groupby(enumerate(causes), key=lambda pair: pair[1]):
        places = [place for place, _ in cells]
        if cause is not None:
            yield _of_cause(places[0] * cell_s, (places[-1] + 1) * cell_s, *cause)


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Neighbouring spans of one cause as one."""
    whole: list[Span] = []
    for span in spans:
        if whole and whole[-1].end_s == span.begin_s and whole[-1].text == span.text:
            span = _of_cause(whole.pop().begin_s, span.end_s, span.text, span.tone)
        whole.append(span)
    return tuple(whole)


def _of_cause(begin_s: float, end_s: float, cause: str, tone: Tone) -> Span:
    """Idle time of one cause, shaded for terminals without colour."""
    return Span(begin_s, end_s, cause, tone, SHADES.get(cause, OTHER_SHADE))


def _short(span: Span) -> Span:
    """The span with a name that may fit into a line: the cause alone, a function without its template."""
    cause = span.text.partition(": ")[0]
    if cause in CAUSES or cause in SHADES:
        return _of_cause(span.begin_s, span.end_s, cause, span.tone)
    text = TEMPLATE.sub("", span.text.removeprefix("void ")).strip()
    text = text if text.startswith("aten::") else text.rpartition("::")[2]
    return Span(span.begin_s, span.end_s, text or span.text, span.tone, span.kind)


def about(diagnosis: Diagnosis, step: Stretch) -> str:
    """Which stretch of the trace this is."""
    begins = f"it begins {as_time(step.after_s(diagnosis.trace))} after the trace's first event"
    return "; ".join(filter(None, ("to scale, as recorded", begins, step.left_out)))


def pictures(diagnosis: Diagnosis) -> list[TimeLine]:
    """The typical step for a terminal: all of it, and its first kernels."""
    begin_ns, end_ns = lanes.window(diagnosis)
    what = "A typical step" if diagnosis.steps is not None else "The trace"
    titled = [(f"{what}, {as_time((end_ns - begin_ns) * 1e-9)}", end_ns)]
    soon_ns = lanes.beginning(diagnosis.trace, begin_ns, end_ns, BEGINNING)
    if soon_ns is not None:
        titled.append((f"Its first {as_time((soon_ns - begin_ns) * 1e-9)}, with {BEGINNING} pieces of work", soon_ns))
    result: list[TimeLine] = []
    for title, until_ns in titled:
        shown = lanes.lanes_of(diagnosis, begin_ns, until_ns, threads=FEW_THREADS, streams=FEW_STREAMS, depth=1)
        simple = tuple(simplified(lane, shown.length_s) for lane in drawn(shown.lanes))
        said = [about(diagnosis, shown)] if not result else []
        if not result and any(span.kind == "level" for one in simple for span in one.spans):
            said.append("height: the share of the time")
        if not result and diagnosis.idle is not None:
            said.append(SHADES_IN_WORDS)
        result.append(TimeLine(title, "; ".join(said), shown.length_s, time_ticks(shown.length_s), simple))
    return result


def sheet(diagnosis: Diagnosis, costs: str, tables: Sequence[Table]) -> Report:
    """The typical step drawn in a terminal, below the verdict; the first table has the causes in the same colours."""
    verdict, *_ = [*words.findings(diagnosis), None]
    section = Section(words.SUITE, plain(diagnosis.trace.source), (*pictures(diagnosis), *tables), (), (), verdict)
    gpu = diagnosis.trace.gpus.get(diagnosis.idle.device) if diagnosis.idle is not None else None
    facts = (("trace", diagnosis.trace.format), ("constants", costs))
    return Report(plain(gpu or "unknown GPU"), "", (), facts, sections=(section,))

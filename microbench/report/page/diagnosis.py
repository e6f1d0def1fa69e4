"""Makes one HTML page of diagnoses: answer, findings, a flame graph of the idle time, a typical step, and tables."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, percent, plain
from microbench.diagnosis import lanes, stacks
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.idle import CAUSES, said
from microbench.diagnosis.owners import owners
from microbench.diagnosis.words import speedup
from microbench.report.document import Lane, Span, Table, TimeLine, Tone
from microbench.report.page.page import packed
from microbench.report.page.templates import environment, page_context
from microbench.report.sheets import recorded_step
from microbench.report.sheets.diagnosis import screen
from microbench.report.sheets.recorded_step import TONES
from microbench.report.suites.timeline import time_ticks

# Rows of the flame graph at most, and the smallest share of the idle time that it shows.
MOST_FLAMES, SMALLEST = 40, 0.002
FLAME = "as wide as its time, below what calls it; the colour is the cause"


class _Figure(NamedTuple):
    """A drawing that the page's script makes of the data under its ``id``; ``still`` is for readers without scripts."""

    id: str
    kind: Literal["step", "flame"]
    title: str
    about: str
    still: TimeLine
    legend: tuple[tuple[Tone, str], ...]


class _Part(NamedTuple):
    """A trace for the template."""

    id: str
    name: str
    heading: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    figures: tuple[_Figure, ...]
    tables: tuple[Table, ...]


def build(several: Sequence[Diagnosis], costs: str) -> str:
    """The page of these diagnoses. ``costs`` says whose constants the predictions use."""
    parts, blocks = [], {}
    for place, diagnosis in enumerate(several):
        figures = []
        for figure, data in _figures(diagnosis, f"trace-{place}"):
            figures.append(figure)
            blocks[figure.id] = packed(data)
        parts.append(_part(diagnosis, f"trace-{place}", costs, tuple(figures)))
    return (
        environment()
        .get_template("diagnosis.html")
        .render(
            page_context(), title=", ".join(part.name for part in parts), traces=parts, blocks=blocks,
            contents=[(part.id, part.name) for part in parts],
        )
    )  # fmt: skip


def _part(diagnosis: Diagnosis, name: str, costs: str, figures: tuple[_Figure, ...]) -> _Part:
    shown = screen(diagnosis, costs, "", everything=True)
    (block,) = shown.blocks
    lines = [(line.name, " · ".join(cell.text for cell in line.parts)) for line in block.lines]
    return _Part(
        id=name,
        name=plain(diagnosis.trace.source),
        heading=_heading(diagnosis),
        facts=(("trace", " · ".join(block.about)), *lines, ("constants", costs)),
        findings=shown.findings,
        figures=figures,
        tables=shown.tables,
    )


def _heading(diagnosis: Diagnosis) -> str:
    """What a graph gives and whose the idle time is, else the name of the trace."""
    graph, idle = diagnosis.graph, diagnosis.idle
    faster = speedup(diagnosis) if graph is not None and not graph.doubtful else ""
    words = [f"as a graph {faster} as fast"] if faster else []
    if idle is not None and idle.span_s > 0:
        whose = f", most in {plain(owned[0].name)}" if (owned := owners(idle)) else ""
        words.append(f"the GPU idles for {percent(idle.idle_s / idle.span_s)}{whose}")
    heading = "; ".join(words) or plain(diagnosis.trace.source)
    return heading[:1].upper() + heading[1:]


def _figures(diagnosis: Diagnosis, name: str) -> Iterator[tuple[_Figure, bytes]]:
    """The idle time as a flame graph, and the typical step, each with its data."""
    if diagnosis.idle is not None and (flame := stacks.flame(diagnosis, MOST_FLAMES, SMALLEST)):
        whole_s = flame[0].pieces[-1].end_s
        drawn = recorded_step.drawn(flame)
        what = "each step" if diagnosis.steps is not None else "the trace"
        still = TimeLine("", "", whole_s, time_ticks(whole_s), drawn)
        title = f"The idle time of {what}, {as_time(whole_s)}, by cause and function"
        figure = _Figure(f"{name}-idle", "flame", title, FLAME, still, _legend(diagnosis, flame))
        yield figure, _encoded(drawn, whole_s)
    begin_ns, end_ns = lanes.window(diagnosis)
    stretch = lanes.lanes_of(
        diagnosis, begin_ns, end_ns, threads=recorded_step.MOST_THREADS, streams=recorded_step.MOST_STREAMS,
        depth=recorded_step.MOST_DEPTH,
    )  # fmt: skip
    title = f"{'A typical step' if diagnosis.steps is not None else 'The trace'}, {as_time(stretch.length_s)}"
    about, still = recorded_step.about(diagnosis, stretch), recorded_step.pictures(diagnosis)[0]
    figure = _Figure(f"{name}-step", "step", title, about, still, _legend(diagnosis, stretch.lanes))
    yield figure, _encoded(recorded_step.drawn(stretch.lanes), stretch.length_s)


def _legend(diagnosis: Diagnosis, drawn: Sequence[lanes.Lane]) -> tuple[tuple[Tone, str], ...]:
    used = {piece.what for lane in drawn for piece in lane.pieces}
    legend = (("work", "work of the GPU"), *((cause, said(diagnosis.trace, cause)) for cause in CAUSES))
    return tuple((TONES[what], words) for what, words in legend if what in used)


def _encoded(drawn: Sequence[Lane], length_s: float) -> bytes:
    """The drawing for the page's script: of each span its begin and length in s, name, tone, and if it is shaded."""
    names: dict[str, int] = {}
    tones: dict[str, int] = {}

    def encoded(span: Span) -> tuple[float, float, int, int, int]:
        length_s = round(span.end_s - span.begin_s, 9)
        name, tone = names.setdefault(span.text, len(names)), tones.setdefault(span.tone, len(tones))
        return round(span.begin_s, 9), length_s, name, tone, int(span.kind == "shaded")

    found = [{"name": lane.name, "spans": [encoded(span) for span in lane.spans]} for lane in drawn]
    return msgspec.json.encode({"length": length_s, "lanes": found, "names": list(names), "tones": list(tones)})

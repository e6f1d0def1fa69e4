"""Makes one HTML page of diagnoses: the answer, findings, a typical step to zoom into, and the tables."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, percent, plain
from microbench.diagnosis import lanes
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.idle import CAUSES
from microbench.diagnosis.lanes import Stretch
from microbench.diagnosis.owners import owners
from microbench.diagnosis.words import speedup
from microbench.report.document import Span, Table, TimeLine, Tone
from microbench.report.page.page import packed
from microbench.report.page.templates import environment, page_context
from microbench.report.sheets import recorded_step
from microbench.report.sheets.diagnosis import screen
from microbench.report.sheets.recorded_step import TONES


class _Part(NamedTuple):
    """A trace for the template. ``still`` is its step for readers without scripts."""

    id: str
    name: str
    heading: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    step: TimeLine
    still: TimeLine
    legend: tuple[tuple[Tone, str], ...]
    tables: tuple[Table, ...]


def build(several: Sequence[Diagnosis], costs: str) -> str:
    """The page of these diagnoses. ``costs`` says whose constants the predictions use."""
    parts, blocks = [], {}
    for place, diagnosis in enumerate(several):
        begin_ns, end_ns = lanes.window(diagnosis)
        stretch = lanes.lanes_of(
            diagnosis, begin_ns, end_ns, threads=recorded_step.MOST_THREADS, streams=recorded_step.MOST_STREAMS,
            depth=recorded_step.MOST_DEPTH,
        )  # fmt: skip
        parts.append(_part(diagnosis, f"trace-{place}", costs, stretch))
        blocks[f"trace-{place}"] = packed(_encoded(stretch))
    return (
        environment()
        .get_template("diagnosis.html")
        .render(
            page_context(), title=", ".join(part.name for part in parts), traces=parts, blocks=blocks,
            contents=[(part.id, part.name) for part in parts],
        )
    )  # fmt: skip


def _part(diagnosis: Diagnosis, name: str, costs: str, stretch: Stretch) -> _Part:
    shown = screen(diagnosis, costs, "", everything=True)
    what = "A typical step" if diagnosis.steps is not None else "The trace"
    title = f"{what}, {as_time(stretch.length_s)}"
    line = TimeLine(title, recorded_step.about(diagnosis, stretch), stretch.length_s, (), ())
    (block,) = shown.blocks
    lines = [(line.name, " · ".join(cell.text for cell in line.parts)) for line in block.lines]
    used = {piece.what for lane in stretch.lanes for piece in lane.pieces}
    legend = (("work", "work of the GPU"), *((cause, cause) for cause in CAUSES))
    return _Part(
        id=name,
        name=plain(diagnosis.trace.source),
        heading=_heading(diagnosis),
        facts=(("trace", " · ".join(block.about)), *lines, ("constants", costs)),
        findings=shown.findings,
        step=line,
        still=recorded_step.pictures(diagnosis)[0],
        legend=tuple((TONES[what], words) for what, words in legend if what in used),
        tables=shown.tables,
    )


def _heading(diagnosis: Diagnosis) -> str:
    """What a graph gives and whose the idle time is, else the name of the trace."""
    faster, idle = speedup(diagnosis), diagnosis.idle
    words = [f"{faster} as fast as a graph"] if faster else []
    if idle is not None and idle.span_s > 0:
        whose = f", most in {plain(owned[0].name)}" if (owned := owners(idle)) else ""
        words.append(f"the GPU idles for {percent(idle.idle_s / idle.span_s)}{whose}")
    heading = "; ".join(words) or plain(diagnosis.trace.source)
    return heading[:1].upper() + heading[1:]


def _encoded(stretch: Stretch) -> bytes:
    """The drawing for the page's script: of each span its begin and length in s, name, tone, and if it is shaded."""
    names: dict[str, int] = {}
    tones: dict[str, int] = {}

    def encoded(span: Span) -> tuple[float, float, int, int, int]:
        length_s = round(span.end_s - span.begin_s, 9)
        name, tone = names.setdefault(span.text, len(names)), tones.setdefault(span.tone, len(tones))
        return round(span.begin_s, 9), length_s, name, tone, int(span.kind == "shaded")

    drawn = recorded_step.drawn(stretch)
    found = [{"name": lane.name, "spans": [encoded(span) for span in lane.spans]} for lane in drawn]
    return msgspec.json.encode({"length": stretch.length_s, "lanes": found, "names": list(names), "tones": list(tones)})

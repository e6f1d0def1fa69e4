"""Makes one HTML page of diagnoses: answer, findings, a flame graph of the idle time, a typical step, and tables."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from microbench.core.units import as_time, percent, plain
from microbench.diagnosis import lanes, stacks
from microbench.diagnosis.diagnosis import Diagnosis
from microbench.diagnosis.idle import CAUSES, owners, said
from microbench.diagnosis.words import speedup
from microbench.report.document import Lane, Span, TimeLine
from microbench.report.page.page import packed
from microbench.report.page.templates import environment, page_context
from microbench.report.sheets import recorded_step
from microbench.report.sheets.diagnosis import screen
from microbench.report.sheets.recorded_step import TONES
from microbench.report.suites.timeline import time_ticks

# Rows of the flame graph at most, and the smallest share of the idle time that it shows.
MOST_FLAMES, SMALLEST = 40, 0.002
FLAME = "as wide as its time, below what calls it; the colour is the cause"


def build(several: Sequence[Diagnosis], costs: str) -> str:
    """The page of these diagnoses. ``costs`` says whose constants the predictions use."""
    parts: list[dict[str, Any]] = []
    blocks: dict[str, Markup] = {}
    for place, diagnosis in enumerate(several):
        shown = screen(diagnosis, costs, "", everything=True)
        (block,) = shown.blocks
        lines = [(line.name, " · ".join(cell.text for cell in line.parts)) for line in block.lines]
        drawn = list(_figures(diagnosis, f"trace-{place}"))
        blocks |= {figure["id"]: packed(data) for figure, data in drawn}
        part: dict[str, Any] = {
            "id": f"trace-{place}",
            "name": plain(diagnosis.trace.source),
            "heading": _heading(diagnosis),
            "facts": (("trace", " · ".join(block.about)), *lines, ("constants", costs)),
            "findings": shown.findings,
            "figures": [figure for figure, _ in drawn],
            "tables": shown.tables,
        }
        parts.append(part)
    contents = [(part["id"], part["name"]) for part in parts]
    title = ", ".join(name for _, name in contents)
    page = environment().get_template("diagnosis.html")
    return page.render(page_context(), title=title, traces=parts, blocks=blocks, contents=contents)


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


def _figures(diagnosis: Diagnosis, name: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The idle time as a flame graph, and the typical step: each for the template and as the data that the page's
    script draws under its ``id``. ``still`` is for readers without scripts."""
    if diagnosis.idle is not None and (flame := stacks.flame(diagnosis, MOST_FLAMES, SMALLEST)):
        whole_s = flame[0].pieces[-1].end_s
        what = "each step" if diagnosis.steps is not None else "the trace"
        still = TimeLine("", "", whole_s, time_ticks(whole_s), recorded_step.drawn(flame))
        title = f"The idle time of {what}, {as_time(whole_s)}, by cause and function"
        yield _figure(f"{name}-idle", "flame", title, FLAME, diagnosis, flame, still)
    begin_ns, end_ns = lanes.window(diagnosis)
    stretch = lanes.lanes_of(
        diagnosis, begin_ns, end_ns, threads=recorded_step.MOST_THREADS, streams=recorded_step.MOST_STREAMS,
        depth=recorded_step.MOST_DEPTH,
    )  # fmt: skip
    title = f"{'A typical step' if diagnosis.steps is not None else 'The trace'}, {as_time(stretch.length_s)}"
    about, still = recorded_step.about(diagnosis, stretch), recorded_step.pictures(diagnosis)[0]
    yield _figure(f"{name}-step", "step", title, about, diagnosis, stretch.lanes, still)


def _figure(
    name: str,
    kind: str,
    title: str,
    about: str,
    diagnosis: Diagnosis,
    drawn: Sequence[lanes.Lane],
    still: TimeLine,
) -> tuple[dict[str, Any], bytes]:
    used = {piece.what for lane in drawn for piece in lane.pieces}
    colours = (("work", "work of the GPU"), *((cause, said(diagnosis.trace, cause)) for cause in CAUSES))
    legend = [(TONES[what], words) for what, words in colours if what in used]
    figure = {"id": name, "kind": kind, "title": title, "about": about, "still": still, "legend": legend}
    return figure, _encoded(recorded_step.drawn(drawn), still.end_s)


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

"""Memory hierarchy: bandwidth and latency over the working set, with the levels that answer."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.core.units import about_size, as_time, quantity
from microbench.explain.memory_levels import latency, levels
from microbench.report.document import Line
from microbench.report.figures.curves import Panel, Style, drawing, found_in
from microbench.report.figures.figure import Drawing, Source
from microbench.report.suites.memory import hierarchy, latencies

ABOUT = "bandwidth: all SMs read one set again and again; latency: one thread, each read waits for the last"


def draw(sources: Sequence[Source]) -> Drawing | None:
    """Bandwidth above, latency below; of several runs the curves without their levels."""
    panels = [
        Panel("bandwidth", found_in(sources, lambda one: hierarchy(one.evidence)), about_size, _rate),
        Panel("latency", found_in(sources, lambda one: latencies(one.evidence)), about_size, as_time),
    ]
    return drawing(panels, Style(main=_is_whole), _conclusion, ABOUT)


def _is_whole(line: Line) -> bool:
    """The curve itself; the others are its levels, named."""
    return not line.name


def _conclusion(source: Source) -> str:
    return ". ".join(one.title for one in (*levels(source.evidence), *latency(source.evidence)))


def _rate(value: float) -> str:
    return quantity(value, "B/s")

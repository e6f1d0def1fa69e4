"""Graph gain: how many times as fast a step is as a graph, over the duration of its kernels, with its crossovers."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.core.units import as_time, times
from microbench.explain.graph_rules import crossovers
from microbench.report.figures.curves import Panel, Style, drawing, found_in
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.suites.graph import gain


def draw(sources: Sequence[Source]) -> Drawing | None:
    """Speed-up over kernel duration for each submitter; of several runs, that of the first submitter."""
    found = found_in(sources, lambda one: gain(one.evidence))
    first = {curve.lines[0].name for _, curve in found}
    return drawing(
        [Panel("stream / graph", found, as_time, times)],
        Style(main=lambda line: line.name in first),
        lambda one: first_title(crossovers(one.evidence)),
        found[0][1].about if found else "",
    )

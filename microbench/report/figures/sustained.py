"""Sustained products: rate and clock over time, power and temperature below, from rest until they no longer change."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.core.units import as_time, percent
from microbench.explain.compute_power import sustained
from microbench.report.document import Line
from microbench.report.figures.curves import Panel, Style, drawing, found_in
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.suites.roofline import rates_over_time, state_over_time


def draw(sources: Sequence[Source]) -> Drawing | None:
    """Rate and clocks above, power and temperature below; of several runs rate and power."""
    rates = found_in(sources, lambda one: rates_over_time(one.evidence))
    states = found_in(sources, lambda one: state_over_time(one.evidence))
    panels = [
        Panel("rate and clock", rates, as_time, percent),
        Panel("power and temperature", states, as_time, percent),
    ]
    about = f"{rates[0][1].title}, {rates[0][1].about}" if rates else ""
    return drawing(panels, Style(main=_is_first), lambda one: first_title(sustained(one.evidence)), about)


def _is_first(line: Line) -> bool:
    return line.tone == "first"

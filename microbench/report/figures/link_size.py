"""Link over size: what copies reach in each direction, the fit through them, and the ceiling of the link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from microbench.core.units import about_size, quantity
from microbench.explain.link_copy import copy_size
from microbench.explain.link_facts import DIRECTIONS
from microbench.report.document import Curve, Line, Mark
from microbench.report.figures.curves import Kind, Panel, Style, drawing, found_in
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.suites.link import rates

ABOUT = "pinned copies timed by the device, pageable ones by the host with a wait; fit T = a + V / b"
PINNED, FIT = "pinned", "fit"


def draw(sources: Sequence[Source]) -> Drawing | None:
    """A view for each direction; of several runs their pinned copies and their ceilings."""
    panels = [
        Panel(words, found_in(sources, partial(_curve, way)), about_size, _rate) for way, words in DIRECTIONS.items()
    ]
    return drawing(panels, Style(_kind, _is_main), lambda one: first_title(copy_size(one.evidence)), ABOUT)


def _curve(direction: str, source: Source) -> Curve | None:
    """The curve of a direction, its marks with the sizes that they are at."""
    found = rates(source.evidence, direction)
    if found is None:
        return None
    marks = tuple(Mark(mark.at, f"{mark.text} at {about_size(mark.at)}") for mark in found.marks)
    return msgspec.structs.replace(found, marks=marks)


def _kind(line: Line) -> Kind:
    return "limit" if line.tone == "quiet" else "computed" if line.name == FIT else "measured"


def _is_main(line: Line) -> bool:
    return line.name == PINNED or line.tone == "quiet"


def _rate(value: float) -> str:
    return quantity(value, "B/s")

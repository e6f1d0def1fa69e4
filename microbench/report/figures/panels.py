"""Figures made of curves: a view for each curve, one below the other, and all that was measured as one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import altair as alt

from microbench.report.document import Cell, Column, Curve, Line, Table
from microbench.report.figures.curve_view import HEIGHT, NAMELESS, Kind, Names, Series, View, Words, view
from microbench.report.figures.figure import Drawing, Source
from microbench.report.figures.overlay import Found, Overlay, overlaid
from microbench.report.shapes import NOTHING

# Of a table beside a figure: more are thinned evenly.
MOST_ROWS = 60
# Of several views below each other, each is less high than one alone.
LOWER = 240.0


class Panel(NamedTuple):
    """A view: what stands above its vertical axis, its curves, words for values at both axes, and names of points."""

    title: str
    found: Found
    x_words: Words
    y_words: Words
    names: Names = NAMELESS


class Style(NamedTuple):
    """How lines are drawn, and which of them are where several runs lie over each other."""

    kind_of: Callable[[Line], Kind] = lambda line: "measured"
    main: Callable[[Line], bool] = lambda line: True


def found_in(sources: Sequence[Source], curve_of: Callable[[Source], Curve | None]) -> list[tuple[Source, Curve]]:
    """The curve of each source that has one."""
    return [(source, curve) for source in sources if (curve := curve_of(source)) is not None]


def drawing(panels: Sequence[Panel], style: Style, conclusion: Callable[[Source], str], about: str) -> Drawing | None:
    """The drawing of these panels, those without a curve left out; None where none has any."""
    kept = [panel for panel in panels if panel.found]
    if not kept:
        return None
    overlays = [overlaid(panel.found, style.kind_of, style.main) for panel in kept]
    views = [
        _view(panel, overlay, HEIGHT if len(kept) == 1 else LOWER, first=place == 0)
        for place, (panel, overlay) in enumerate(zip(kept, overlays, strict=True))
    ]
    told_by = {source.label: (source, conclusion(source)) for panel in kept for source, _ in panel.found}
    return Drawing(
        told=list(told_by.values()),
        about=about,
        table=_table(kept, overlays),
        chart=alt.vconcat(*views).resolve_scale(color="independent") if len(views) > 1 else views[0],
    )


def _view(panel: Panel, overlay: Overlay, height: float, *, first: bool) -> alt.LayerChart:
    """Several runs, and points, are named by a legend above the first view."""
    points = any(one.kind == "points" for one in overlay.series)
    how = View(
        colours=overlay.colours,
        y_title=panel.title,
        x_words=panel.x_words,
        y_words=panel.y_words,
        legend=points or (first and len(panel.found) > 1),
        height=height,
        names=panel.names,
    )
    return view(overlay.curve, overlay.series, how)


def _table(panels: Sequence[Panel], overlays: Sequence[Overlay]) -> Table:
    """Places on the axis down, what was measured across."""
    drawn = [
        (panel, one)
        for panel, overlay in zip(panels, overlays, strict=True)
        for one in overlay.series
        if one.kind in ("measured", "points")
    ]
    values = [dict(one.line.points) for _, one in drawn]
    places = sorted({x for one in values for x in one})
    step = max(1, -(-len(places) // MOST_ROWS))
    rows = tuple(
        (
            Cell(panels[0].x_words(x), tone="strong"),
            *(
                Cell(panel.y_words(one[x])) if x in one else NOTHING
                for (panel, _), one in zip(drawn, values, strict=True)
            ),
        )
        for x in places[::step]
    )
    first = overlays[0].curve
    names = (Column(_heading(panel, one, several=len(panels) > 1)) for panel, one in drawn)
    return Table(first.title, first.about, (Column(first.x_title, "left"), *names), rows)


def _heading(panel: Panel, one: Series, *, several: bool) -> str:
    return ": ".join(filter(None, (panel.title if several or not one.line.name else "", one.line.name)))

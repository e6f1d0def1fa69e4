"""The ink that figures share: inline data, axes with words for people, colours by series, words on a halo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from microbench.report.document import Mark
from microbench.report.figures.placing import Align
from microbench.report.figures.scales import Scale
from microbench.report.figures.theme import PADDING, USUAL, WIDTH
from microbench.text import plain

SERIES = "series"
SHAPES = ("circle", "square", "diamond", "triangle-up")
# Pixels of a figure's width beside a view: its padding; with a vertical axis that axis and its words as well.
BESIDE = 2 * PADDING + 6  # half a dot at the edge
AXIS = 66
BESIDE_AXIS = BESIDE + AXIS
LONGEST_OF_TWO = 18
# Characters of anything that is written.
LONGEST = 120
Row = dict[str, float | str | None]
Layer = alt.Chart | alt.LayerChart


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Rows as inline data; words are shown as they are, and have an end."""
    return alt.InlineData(values=[{name: _shown(value) for name, value in row.items()} for row in rows])


def _shown(value: float | str | None) -> float | str | None:
    return plain(value, LONGEST) if isinstance(value, str) else value


def scale(one: Scale) -> alt.Scale:
    """A scale for Vega-Lite, its ends as given. A logarithmic one has no zero to speak of: Vega-Lite warns of one."""
    zero: dict[str, Any] = {} if one.log else {"zero": False}
    return alt.Scale(type="log" if one.log else "linear", domain=[one.low, one.high], nice=False, **zero)


def axis(ticks: Sequence[Mark], title: str | None = None, **options: Any) -> alt.Axis:
    """An axis with these ticks and their words: units.py made them, Vega only looks them up."""
    values, words = [tick.at for tick in ticks], [tick.text for tick in ticks]
    lookup = f"{json.dumps(words)}[indexof({json.dumps(values)}, datum.value)]"
    return alt.Axis(values=values, labelExpr=lookup, title=title, **options)


def vertical(ticks: Sequence[Mark], title: str) -> alt.Axis:
    """A vertical axis whose words take as much room in any view, with its title lying flat above it."""
    flat = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -8,
            "titleBaseline": "bottom"}  # fmt: skip
    return axis(ticks, title, minExtent=AXIS, maxExtent=AXIS, **flat)


def view_width(beside: int) -> int:
    """A view's width in a figure of WIDTH pixels."""
    return WIDTH - beside


def domain(series: Sequence[str]) -> list[str]:
    """Series by the words that their rows have."""
    return [plain(one, LONGEST) for one in series]


def colours(series: Sequence[str], *, legend: bool = False) -> alt.Color:
    """Each series in its colour of the theme, in this order."""
    return alt.Color(f"{SERIES}:N", scale=alt.Scale(domain=domain(series)), legend=_legend(series) if legend else None)


def shapes(series: Sequence[str], *, legend: bool = False) -> alt.Shape:
    """Each series with a shape of its own, for those who do not tell its colour from others."""
    used = [SHAPES[place % len(SHAPES)] for place in range(len(series))]
    scale = alt.Scale(domain=domain(series), range=used)
    return alt.Shape(f"{SERIES}:N", scale=scale, legend=_legend(series) if legend else None)


def _legend(series: Sequence[str]) -> alt.Legend:
    """In two columns where that fits a narrow page."""
    return alt.Legend(title=None, columns=2 if max(map(len, series)) <= LONGEST_OF_TWO else 1)


def layered(
    layers: Sequence[Layer], width: int, height: float, rows: Sequence[Row] | None = None, title: str | None = None
) -> alt.LayerChart:
    """A view of these layers, the first at the bottom; ``rows`` are the data of those without their own."""
    more: dict[str, Any] = {} if rows is None else {"data": data(rows)}
    if title is not None:
        more["title"] = alt.TitleParams(plain(title, LONGEST), anchor="start", fontSize=USUAL, offset=8)
    return alt.LayerChart(layer=list(layers), width=width, height=height, **more)


def words(
    chart: alt.Chart, style: str = "label", *, align: Align = "left", dx: float = 0.0, y_offset: float = 0.0
) -> alt.LayerChart:
    """The field ``text`` where the chart has it, on a halo in the ground's colour."""
    placed: dict[str, Any] = {"align": align, "dx": dx, "yOffset": y_offset, "baseline": "middle"}
    ground = chart.encode(color=alt.Undefined, tooltip=alt.Undefined)
    return alt.LayerChart(
        layer=[
            # The halo is the same words again: nobody is to hear them twice.
            ground.mark_text(style=[style, "halo"], aria=False, **placed),
            chart.mark_text(style=[style], **placed),
        ]
    )

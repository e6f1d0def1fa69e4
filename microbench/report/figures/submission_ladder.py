"""Submission ladder: what the host pays to launch the same kernel from each layer, and an operation on an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import altair as alt

from microbench.analysis.graph_steps import TITLES
from microbench.analysis.stats import Row
from microbench.core.units import as_time, times
from microbench.explain.launch_facts import FOUR_ARGUMENTS, NATIVE, layer, layer_rows, title
from microbench.explain.launch_rules import same_kernel
from microbench.report.document import Cell, Column, Table
from microbench.report.figures import theme
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.tables import NOTHING, ticks_beyond

TITLE = "Submission ladder"
ABOUT = "host time of one call (submit), before it how many times the compiled loop's; paler: with four arguments"
PYTHON, COMPILED = "from Python", "compiled"
# Of a layer in pixels: its name above its bars, a bar, what is between bars of several runs, and to the next layer.
NAME, BAR, BETWEEN, APART = 18.0, 9.0, 3.0, 12.0
PALE = 0.32
ROOM = 1.02


class Family(NamedTuple):
    """Layers that do the same: what is told above them, and of how many arguments (None: whatever there was)."""

    name: str
    title: str
    arguments: int | None


FAMILIES = (
    Family("same_kernel", "the same empty kernel, without arguments", 0),
    Family("one_op", "one operation of an array library: x + 1 on one element", None),
)


class Ladder(NamedTuple):
    """One family's rows by run and layer; ``four`` holds the rows with four arguments."""

    family: Family
    sources: Sequence[Source]
    rows: Sequence[dict[str, Row]]
    four: Sequence[dict[str, Row]]

    @property
    def order(self) -> list[str]:
        """Layers from the cheapest on, by the first run that has each."""
        return list(dict.fromkeys(name for found in self.rows for name in found))

    @property
    def most_s(self) -> float:
        """How far the longest bar reaches."""
        return max(row.value for found in (*self.rows, *self.four) for row in found.values())


def draw(sources: Sequence[Source]) -> Drawing | None:
    """A bar for each layer and run, a view for each family; None where no layer was measured."""
    kept = [one for one in sources if layer_rows(one.evidence, "same_kernel", 0)]
    ladders = [ladder for family in FAMILIES if (ladder := _ladder(family, kept)) is not None]
    if not kept:
        return None
    most_s = max(ladder.most_s for ladder in ladders)
    views = [_view(ladder, most_s, first=not place) for place, ladder in enumerate(ladders)]
    told = [(one, first_title(same_kernel(one.evidence))) for one in kept]
    return Drawing(told, ABOUT, _table(ladders), _below(views))


def _below(views: Sequence[alt.LayerChart]) -> alt.LayerChart | alt.VConcatChart:
    """Colours are alike, but only the first view names them: shared, its legend and none would be at odds."""
    return alt.vconcat(*views).resolve_scale(color="independent") if len(views) > 1 else views[0]


def _ladder(family: Family, sources: Sequence[Source]) -> Ladder | None:
    rows = [_by_layer(layer_rows(one.evidence, family.name, family.arguments)) for one in sources]
    four = [
        _by_layer(layer_rows(one.evidence, family.name, FOUR_ARGUMENTS)) if family.arguments is not None else {}
        for one in sources
    ]
    return Ladder(family, sources, rows, four) if any(rows) else None


def _by_layer(rows: Sequence[Row]) -> dict[str, Row]:
    return {layer(row): row for row in rows}


def _bars(ladder: Ladder, place: int) -> list[theme.Row]:
    """What is drawn of one run, a row a bar."""
    source, rows, four = ladder.sources[place], ladder.rows[place], ladder.four[place]
    several = len(ladder.sources) > 1
    loop = rows.get(NATIVE)
    return [
        {
            "layer": name,
            "name": title(row),
            "value": row.value,
            "beyond": four[name].value if name in four else row.value,
            "submit": as_time(row.value),
            "four": as_time(four[name].value) if name in four else "",
            "over": times(row.value / loop.value) if loop is not None and row is not loop else "",
            theme.SERIES: source.label if several else COMPILED if row is loop else PYTHON,
        }
        for name, row in rows.items()
    ]


def _view(ladder: Ladder, most_s: float, *, first: bool) -> alt.LayerChart:
    """A family; all views have one scale, several runs are named above the first."""
    several = len(ladder.sources) > 1
    step = NAME + len(ladder.sources) * (BAR + BETWEEN) + APART
    series = [one.label for one in ladder.sources] if several else [PYTHON, COMPILED]
    y = alt.Y("layer:N", sort=theme.domain(ladder.order), axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    end_s = most_s * ROOM
    axis = theme.axis([tick for tick in ticks_beyond(most_s, "s") if tick.at <= end_s], grid=False)
    x = alt.X("value:Q", scale=alt.Scale(domain=[0, end_s], nice=False), axis=axis)
    every = [_bars(ladder, place) for place in range(len(ladder.sources))]
    layers: list[theme.Layer] = []
    for place, rows in enumerate(every):
        offset = NAME + place * (BAR + BETWEEN) + BAR / 2 - (step - APART) / 2
        base = alt.Chart(theme.data(rows)).encode(
            x=x, y=y, color=theme.colours(series, legend=several and first), tooltip=_tooltip()
        )
        layers.append(base.mark_bar(height=BAR, yOffset=offset).encode(x2=alt.datum(0)))
        layers.append(base.mark_bar(height=BAR, yOffset=offset, opacity=PALE).encode(x2="beyond:Q"))
    layers += _names(every, y, (NAME - step + APART) / 2)
    return theme.layered(layers, theme.view_width(theme.BESIDE), step * len(ladder.order), title=ladder.family.title)


def _tooltip() -> list[alt.Tooltip]:
    titles = {"name": " ", "submit": "submit", "four": "with four arguments", "over": "over compiled loop"}
    return [alt.Tooltip(f"{field}:N", title=words) for field, words in titles.items()]


def _names(every: Sequence[Sequence[theme.Row]], y: alt.Y, at: float) -> list[alt.LayerChart]:
    """Each layer's name at the left above its bars, its figures at the right: of one run with their ratio."""
    by_layer: dict[str, list[theme.Row]] = {}
    for rows in every:
        for row in rows:
            by_layer.setdefault(str(row["layer"]), []).append(row)
    named: list[theme.Row] = [{"layer": name, "text": str(rows[0]["name"])} for name, rows in by_layer.items()]
    told: list[theme.Row] = [{"layer": name, "text": _figures(rows, len(every))} for name, rows in by_layer.items()]
    left = alt.Chart(theme.data(named)).encode(y=y, text="text:N", x=alt.value(0))
    right = alt.Chart(theme.data(told)).encode(y=y, text="text:N", x=alt.value("width"))
    return [
        theme.words(left, align="left", y_offset=at),
        theme.words(right, "heading", align="right", y_offset=at),
    ]


def _figures(rows: Sequence[theme.Row], runs: int) -> str:
    if runs > 1:
        return " / ".join(str(row["submit"]) for row in rows)
    return " · ".join(str(rows[0][name]) for name in ("over", "submit") if rows[0][name])


def _table(ladders: Sequence[Ladder]) -> Table:
    columns = [Column("layer", "left")]
    for one in ladders[0].sources:
        of = f"{one.label}: " if len(ladders[0].sources) > 1 else ""
        columns += [Column(f"{of}submit"), Column(f"{of}with four arguments")]
    rows = tuple(
        (Cell(TITLES.get(name, name), tone="strong"), *_cells(ladder, name))
        for ladder in ladders
        for name in ladder.order
    )
    return Table(TITLE, ABOUT, tuple(columns), rows)


def _cells(ladder: Ladder, name: str) -> list[Cell]:
    pairs = zip(ladder.rows, ladder.four, strict=True)
    return [
        Cell(as_time(row.value), trust=row.trust) if (row := found.get(name)) is not None else NOTHING
        for pair in pairs
        for found in pair
    ]

"""Curves as a view: lines in their colours with their names beside them, limits dashed, marks named above."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import altair as alt
import msgspec

from microbench.report.document import Cell, Column, Curve, Line, Mark, Table, Tone
from microbench.report.figures import theme
from microbench.report.figures.figure import Drawing, Source
from microbench.report.figures.theme import CHARACTER, DASHED, LIMIT_WIDTH, Align, Scale, fits, places
from microbench.report.tables import NOTHING

# Names are given their places as if the plot were so wide: between that of a telephone and that of a page.
NARROW = 520.0
HEIGHT = 320.0
# Beyond the highest value, on an axis that does not begin at 0 also below the lowest: for names.
ROOM = 20.0
# Of more points none has a dot.
MOST_DOTS = 40
# Enough for the eye: digits of a value, pixels between points of a line without dots.
DIGITS, COLUMN = 5, 2.0
# A line of words above the view.
ROW = 15.0
# The title of the axis stands below those lines, and does not touch them.
TITLE_ROOM = 8.0
# How lines of one colour are told apart. Limits are dashed in the theme's way.
DASHES = ([1, 0], [2, 3], [10, 3, 2, 3], [4, 2])

Words = Callable[[float], str]
# What a point is called, where that is more than its line.
Names = Mapping[tuple[float, float], str]
NAMELESS: Names = MappingProxyType({})
Kind = Literal["measured", "computed", "limit", "points"]


class Series(NamedTuple):
    """A line and how it is drawn.

    ``measured`` lines have dots that answer to a pointer, ``computed`` ones have none, a ``limit`` is dashed and
    ``points`` are not joined. ``colour`` is the series whose colour it has; without one it is quiet. ``name`` stands
    beside it, nothing if empty.
    """

    line: Line
    kind: Kind = "measured"
    colour: str = ""
    name: str = ""
    dash: int = 0


class View(NamedTuple):
    """How a view speaks: the series that have ``colours``, in order, what stands above the vertical axis, words for
    values under a pointer, whether a legend names the colours, and points with names of their own."""

    colours: Sequence[str]
    y_title: str
    x_words: Words
    y_words: Words
    legend: bool = False
    height: float = HEIGHT
    names: Names = NAMELESS


Layers = list[theme.Layer]


def view(curve: Curve, found: Sequence[Series], how: View) -> alt.LayerChart:
    """A layered view of these series over the axes and marks of ``curve``."""
    x_scale, y_scale = _scales(curve, found, how.height)
    rows = [row for place, one in enumerate(found) for row in _rows(place, one, how, x_scale)]
    base = (
        alt.Chart()
        .transform_lookup("place", alt.LookupData(theme.data(_told(found)), "place", [theme.SERIES, "kind", "dash"]))
        .encode(
            x=alt.X("x:Q", scale=theme.scale(x_scale), axis=theme.axis(curve.x_ticks, curve.x_title, grid=False)),
            y=alt.Y("y:Q", scale=theme.scale(y_scale), axis=theme.vertical(curve.y_ticks, how.y_title)),
        )
    )
    layers: Layers = [*_marks(curve.marks, x_scale), *_quiet(base, found), *_coloured(base, found, how)]
    layers += _names(found, x_scale, y_scale, how)
    return theme.layered(layers, theme.view_width(theme.BESIDE_AXIS), how.height, rows)


def _scales(curve: Curve, found: Sequence[Series], height: float) -> tuple[Scale, Scale]:
    xs = [x for one in found for x, _ in one.line.points]
    ys = [y for one in found for _, y in one.line.points] + [tick.at for tick in curve.y_ticks]
    below = 0.0 if min(ys) == 0 else ROOM
    inner = Scale(min(ys), max(ys), height - ROOM - below, curve.y_log)
    y_scale = Scale(inner.to_value(-below), inner.to_value(inner.pixels + ROOM), height, curve.y_log)
    return Scale(min(xs), max(xs), NARROW, curve.x_log), y_scale


def _rows(place: int, one: Series, how: View, x_scale: Scale) -> list[theme.Row]:
    """The points of a series: with words where they have dots to point at, thinned where they have none."""
    if not _has_dots(one):
        return [{"x": _short(x), "y": _short(y), "place": place} for x, y in _thinned(one.line.points, x_scale)]
    return [
        {
            "x": _short(x), "y": _short(y), "place": place, "name": how.names.get((x, y), one.line.name),
            "at": how.x_words(x), "value": how.y_words(y),
        }
        for x, y in one.line.points
    ]  # fmt: skip


def _thinned(points: Sequence[tuple[float, float]], x_scale: Scale) -> list[tuple[float, float]]:
    """Of the points within COLUMN pixels only the lowest and the highest, and both ends: a line looks the same."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int(x_scale.to_pixels(point[0]) / COLUMN), []).append(point)
    extremes = ({min(each, key=_height), max(each, key=_height)} for each in columns.values())
    return sorted({points[0], points[-1]}.union(*extremes))


def _height(point: tuple[float, float]) -> float:
    return point[1]


def _has_dots(one: Series) -> bool:
    return one.kind == "points" or (one.kind == "measured" and len(one.line.points) <= MOST_DOTS)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _told(found: Sequence[Series]) -> list[theme.Row]:
    """What is alike for all points of a series."""
    return [
        {"place": place, theme.SERIES: one.colour, "kind": _drawn_as(one), "dash": str(one.dash)}
        for place, one in enumerate(found)
    ]


def _drawn_as(one: Series) -> str:
    """The kind by which layers choose their series."""
    kind = "dense" if one.kind == "measured" and not _has_dots(one) else one.kind
    return kind if one.colour else f"quiet {kind}"


def _marks(marks: Sequence[Mark], x_scale: Scale) -> Layers:
    """Vertical lines, each named on a row of its own above the view; the name that reaches furthest stands highest."""
    inside = sorted((mark for mark in marks if x_scale.low <= mark.at <= x_scale.high), key=lambda mark: mark.at)
    all_right = all(_fits(mark, x_scale, "left") for mark in inside)
    left = [mark for mark in inside if not all_right and _fits(mark, x_scale, "right")]
    right = [mark for mark in inside if mark not in left]
    layers: Layers = []
    for row, mark in enumerate((*left, *reversed(right)), 1):
        top = -ROW * (row + 1) - TITLE_ROOM
        chart = alt.Chart(theme.data([{"x": mark.at, "text": mark.text}])).encode(
            x=alt.X("x:Q", scale=theme.scale(x_scale))
        )
        layers.append(chart.mark_rule(style="mark").encode(y=alt.value(top), y2=alt.value("height")))
        text = chart.encode(text="text:N", y=alt.value(top + ROW / 2))
        sign = -1 if mark in left else 1
        layers.append(theme.words(text, "muted", align="right" if mark in left else "left", dx=5 * sign))
    return layers


def _fits(mark: Mark, x_scale: Scale, align: Align) -> bool:
    return fits(x_scale.to_pixels(mark.at) / x_scale.pixels, len(mark.text) * CHARACTER, align)


def _quiet(base: alt.Chart, found: Sequence[Series]) -> Layers:
    """Lines in no colour: limits dashed, what was measured with dots."""
    kinds = dict.fromkeys(_drawn_as(one) for one in found if not one.colour)
    layers: Layers = []
    for kind in kinds:
        chart = base.transform_filter(_any_of(kind))
        layers.append(chart.mark_line(style="limit" if kind == "quiet limit" else "quiet").encode(detail="place:N"))
        if kind == "quiet measured":
            layers.append(chart.mark_point(style="quiet-point").encode(tooltip=_tooltip()))
    return layers


def _coloured(base: alt.Chart, found: Sequence[Series], how: View) -> Layers:
    """Lines and points in colour; those of one colour differ in dashes and shapes."""
    colour = theme.colours(how.colours, legend=how.legend)
    kinds = {_drawn_as(one) for one in found}
    layers: Layers = []
    if "limit" in kinds:
        # Dashes as values: as properties of the mark, or in the theme, a legend's symbols would have them too.
        dashed = {"strokeDash": alt.value(list(DASHED)), "strokeWidth": alt.value(LIMIT_WIDTH)}
        limits = base.transform_filter(_any_of("limit")).encode(color=colour, detail="place:N", **dashed)
        layers.append(limits.mark_line())
    if kinds & {"measured", "dense", "computed"}:
        lines = base.transform_filter(_any_of("measured", "dense", "computed"))
        layers.append(lines.mark_line().encode(color=colour, detail="place:N", strokeDash=_dash(found)))
    if kinds & {"measured", "points"}:
        dots = base.transform_filter(_any_of("measured", "points"))
        shape = {"shape": theme.shapes(how.colours, legend=how.legend)} if "points" in kinds else {}
        layers.append(dots.mark_point().encode(color=colour, tooltip=_tooltip(), **shape))
    return layers


def _any_of(*kinds: str) -> str:
    return " || ".join(f"datum.kind === '{kind}'" for kind in kinds)


def _dash(found: Sequence[Series]) -> alt.StrokeDash:
    used = sorted({one.dash for one in found})
    scale = alt.Scale(domain=[str(one) for one in used], range=[DASHES[one % len(DASHES)] for one in used])
    return alt.StrokeDash("dash:N", scale=scale, legend=None)


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip(f"{field}:N", title=title) for field, title in (("line", " "), ("at", "at"), ("value", "value"))
    ]


def _names(found: Sequence[Series], x_scale: Scale, y_scale: Scale, how: View) -> Layers:
    paths = [
        [(x_scale.to_pixels(x), y_scale.to_pixels(y)) for x, y in one.line.points] for one in found
    ]  # fmt: skip
    dots = [dot for one, path in zip(found, paths, strict=True) if _has_dots(one) for dot in path]
    lines = [(one, path) for one, path in zip(found, paths, strict=True) if one.kind != "points"]
    placed = places([path for _, path in lines], [one.name for one, _ in lines], dots, x_scale.pixels, y_scale.pixels)
    layers: Layers = []
    for (one, _), place in zip(lines, placed, strict=True):
        if not one.name:
            continue
        at: theme.Row = {
            "x": x_scale.to_value(place.x), "y": y_scale.to_value(place.y), "text": one.name, theme.SERIES: one.colour,
        }  # fmt: skip
        chart = alt.Chart(theme.data([at])).encode(
            x=alt.X("x:Q", scale=theme.scale(x_scale)), y=alt.Y("y:Q", scale=theme.scale(y_scale)), text="text:N"
        )
        coloured = chart.encode(color=theme.colours(how.colours, legend=how.legend)) if one.colour else chart
        layers.append(theme.words(coloured, "label" if one.colour else "muted", align=place.align))
    return layers


# Curves of one run or of several as one: of one run each line has its colour, of several each run has.


TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
# Ticks are shown up to so many times the highest value.
BEYOND = 1.15
Found = Sequence[tuple[Source, Curve]]


class Overlay(NamedTuple):
    """Axes for all, what is drawn over them, and the series with a colour, in order."""

    curve: Curve
    series: list[Series]
    colours: list[str]


def overlaid(found: Found, kind_of: Callable[[Line], Kind], main: Callable[[Line], bool]) -> Overlay:
    """One curve of one or of several. ``kind_of`` says how a line is drawn; of several runs only ``main`` lines are."""
    found = [(source, _drawable(curve)) for source, curve in found]
    if len(found) == 1:
        curve = found[0][1]
        series = [_alone(line, kind_of(line)) for line in curve.lines]
        coloured = sorted((one for one in series if one.colour), key=lambda one: _place_of(one.line.tone))
        return Overlay(curve, series, list(dict.fromkeys(one.colour for one in coloured)))
    kept = [(source, line) for source, curve in found for line in filter(main, curve.lines)]
    kept = kept or [(source, line) for source, curve in found for line in curve.lines]
    names = list(dict.fromkeys(line.name for _, line in kept if kind_of(line) != "limit"))
    series = [_of_several(source, line, kind_of(line), names) for source, line in kept]
    drawn = [*_limits([one for one in series if one.kind == "limit"]), *(one for one in series if one.kind != "limit")]
    return Overlay(_axes([curve for _, curve in found], drawn), drawn, [source.label for source, _ in found])


def _drawable(curve: Curve) -> Curve:
    return msgspec.structs.replace(curve, lines=tuple(line for line in curve.lines if line.points))


def _limits(found: Sequence[Series]) -> list[Series]:
    """Each limit once: one that runs share has no run's colour."""
    by_name: dict[str, list[Series]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    return [
        max(alike, key=lambda one: one.line.points[-1][0])._replace(colour=alike[0].colour if len(alike) == 1 else "")
        for alike in by_name.values()
    ]


def _place_of(tone: Tone) -> int:
    """The place of a tone's colour in the theme's."""
    return TONES.index(tone) if tone in TONES else len(TONES)


def _alone(line: Line, kind: Kind) -> Series:
    quiet = kind == "limit" or line.tone == "quiet"
    return Series(line, kind, "" if quiet else line.name, "" if kind == "points" else line.name)


def _of_several(source: Source, line: Line, kind: Kind, names: Sequence[str]) -> Series:
    own = msgspec.structs.replace(line, name=", ".join(filter(None, (source.label, line.name))))
    if kind == "limit":
        return Series(own, kind, source.label, line.name)
    return Series(own, kind, source.label, line.name if len(names) > 1 and kind != "points" else "",
                  names.index(line.name))  # fmt: skip


def _axes(curves: Sequence[Curve], drawn: Sequence[Series]) -> Curve:
    """Axes with the ticks of all that lie beside what is drawn, marks of none."""
    first = curves[0]
    highest = max(y for one in drawn for _, y in one.line.points) * BEYOND
    y_ticks = _ticks([curve.y_ticks for curve in curves], log=first.y_log)
    return msgspec.structs.replace(
        first,
        x_ticks=_ticks([curve.x_ticks for curve in curves], log=first.x_log),
        y_ticks=tuple(tick for tick in y_ticks if tick.at <= highest),
        marks=(),
    )


def _ticks(several: Sequence[tuple[Mark, ...]], *, log: bool) -> tuple[Mark, ...]:
    """All of them on a logarithmic axis; on an even one those of the curve that reaches furthest."""
    if not log:
        return max(several, key=lambda ticks: max((tick.at for tick in ticks), default=0.0))
    every = {tick.at: tick for ticks in several for tick in ticks}
    return tuple(every[at] for at in sorted(every))


# Figures made of curves: a view for each curve, one below the other, and all that was measured as one table.


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

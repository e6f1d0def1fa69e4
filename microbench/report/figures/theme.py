"""What figures look like on light and on dark ground: colours and type, as a Vega-Lite config that no spec repeats."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import altair as alt

from microbench.core.units import plain
from microbench.report.document import Mark

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# In CSS pixels: a figure's, of which PADDING are free at each side. A page gives its figures a width of its own.
WIDTH, PADDING = 640, 12
SMALL, USUAL, LARGE = 11, 12, 15
# Ceilings and other computed limits are dashed, what was measured is not.
DASHED, DOTTED, LIMIT_WIDTH = (6, 4), (2, 3), 1.5


class Palette(NamedTuple):
    """Colours by what they are for. ``first`` to ``fourth`` tell series apart, ``quiet`` is for what only helps to read
    them. Any colour that an SVG attribute takes, so ``var(--name)`` as well."""

    ground: str
    ink: str
    muted: str
    quiet: str
    grid: str
    first: str
    second: str
    third: str
    fourth: str

    @property
    def series(self) -> tuple[str, str, str, str]:
        """The colours of series, in order."""
        return self.first, self.second, self.third, self.fourth


# The same four hues on both grounds. Each is text as well, so its contrast is at least 4.5 : 1 (WCAG 2.2, 1.4.3), and
# any two of them differ for every kind of colour blindness (tests/test_figures.py computes both).
LIGHT = Palette(
    ground="#ffffff", ink="#1b1f24", muted="#59636e", quiet="#7d8590", grid="#e4e8ec",
    first="#1456c4", second="#b35a00", third="#00836f", fourth="#7d2a66",
)  # fmt: skip
DARK = Palette(
    ground="#14181f", ink="#e8ebef", muted="#9aa4b0", quiet="#77818d", grid="#2a313b",
    first="#4fa3ff", second="#f0803a", third="#3fe0b8", fourth="#c27ab0",
)  # fmt: skip


def config(palette: Palette) -> dict[str, Any]:
    """The Vega-Lite config of a palette: give it to the renderer, or put it into a spec as ``config``."""
    return {
        "background": palette.ground,
        "font": FONT,
        "padding": PADDING,
        "view": {"stroke": None},
        "title": _title(palette),
        "axis": _axis(palette),
        "legend": {
            "labelColor": palette.ink, "labelFontSize": USUAL, "labelLimit": 0, "title": None, "orient": "top",
            "symbolSize": 120, "symbolStrokeWidth": 0, "padding": 0, "offset": 32, "symbolOpacity": 1,
        },
        "range": {"category": list(palette.series)},
        "text": {"font": FONT, "fontSize": USUAL, "color": palette.ink},
        "rule": {"color": palette.quiet},
        "line": {"strokeWidth": 2, "strokeCap": "round", "strokeJoin": "round"},
        "point": {"filled": True, "size": 36, "opacity": 1},
        "bar": {"cornerRadiusEnd": 2},
        "style": {
            "halo": {"color": palette.ground, "stroke": palette.ground, "strokeWidth": 4, "strokeJoin": "round"},
            "muted": {"color": palette.muted},
            "heading": {"fontWeight": 600},
            "limit": {"color": palette.quiet, "strokeWidth": LIMIT_WIDTH, "strokeDash": list(DASHED)},
            "quiet": {"color": palette.quiet, "strokeWidth": 1.5},
            "quiet-point": {"color": palette.quiet, "size": 16},
            "quiet-bar": {"color": palette.quiet},
            "on-bar": {"color": palette.ground},
            "length": {"color": palette.muted, "strokeWidth": 1},
            "mark": {"color": palette.quiet, "strokeWidth": 1, "strokeDash": list(DOTTED)},
        },
    }  # fmt: skip


def _title(palette: Palette) -> dict[str, Any]:
    return {
        "anchor": "start", "frame": "bounds", "offset": 14, "font": FONT, "subtitleFont": FONT,
        "color": palette.ink, "fontSize": LARGE, "fontWeight": 600, "lineHeight": LARGE + 5,
        "subtitleColor": palette.muted, "subtitleFontSize": USUAL, "subtitleLineHeight": USUAL + 5,
        "subtitlePadding": 6,
    }  # fmt: skip


def _axis(palette: Palette) -> dict[str, Any]:
    return {
        "domain": False, "ticks": False, "gridColor": palette.grid, "gridWidth": 1,
        "labelColor": palette.muted, "labelFontSize": SMALL, "labelFont": FONT, "labelPadding": 6,
        "titleColor": palette.muted, "titleFontSize": SMALL, "titleFontWeight": "normal", "titleFont": FONT,
        "labelOverlap": "greedy",
    }  # fmt: skip


# Where the names of lines stand: beside their own line, clear of the others and of each other.


# A character and a line of the usual type in pixels, on the generous side.
CHARACTER, HEIGHT = 6.6, 15.0
# The plot of a page 360 pixels wide.
NARROWEST = 236.0
# Between a line and its name; what a name should keep from other lines, and beyond which more room is worth nothing.
GAP, ENOUGH = 4.0, 40.0
# What a pixel costs that a name is away from its own line, or reaches beyond it, in pixels of room.
FAR = 0.03
STEPS = 40

Align = Literal["left", "center", "right"]
Point = tuple[float, float]
# In pixels from the lower left of the view.
Path = Sequence[Point]


class Box(NamedTuple):
    """What a name covers."""

    left: float
    right: float
    bottom: float
    top: float

    def apart(self, other: Box) -> bool:
        """True if the two share nothing."""
        beside = self.right <= other.left or other.right <= self.left
        return beside or self.top <= other.bottom or other.top <= self.bottom


class Place(NamedTuple):
    """Where a name is anchored: ``x`` is its left end, middle or right end by ``align``, ``y`` its middle."""

    x: float
    y: float
    align: Align


def places(paths: Sequence[Path], names: Sequence[str], dots: Path, width: float, height: float) -> list[Place]:
    """A place for each path's name, in the order given; one without a name stands in the way of others only where it
    is crossed, as does a dot.

    Every position along a line is tried, above and below it; the one with most room to the other lines wins, and
    among equals the one closest to its own line and furthest right. ``width`` should be that of a narrow page: a name
    that has room there has it on a wider one.
    """
    taken: list[Box] = []
    found = []
    for place, (path, name) in enumerate(zip(paths, names, strict=True)):
        if not name:
            found.append(Place(*path[0], "left"))
            continue
        named = [other for index, other in enumerate(paths) if index != place and names[index]]
        nameless = [other for index, other in enumerate(paths) if index != place and not names[index]]
        around = Around(path, named, nameless, dots, taken)
        boxes = _boxes(path, min(len(name) * CHARACTER, width), width, height)
        best = max(boxes, key=around.worth)
        taken.append(best)
        found.append(_place(best, path, width))
    return found


def _boxes(path: Path, length: float, width: float, height: float) -> Iterator[Box]:
    """Along a path, above and below it; the last over its first point, however short both are."""
    first = min(max(path[0][0] - length / 2, 0.0), width - length)
    for left in (*((width - length) * step / STEPS for step in range(STEPS + 1)), first):
        ys = _within(path, left, left + length)
        for bottom in (max(ys) + GAP, min(ys) - GAP - HEIGHT) if ys else ():
            kept = min(max(bottom, 0.0), height - HEIGHT)
            yield Box(left, left + length, kept, kept + HEIGHT)


def _within(path: Path, left: float, right: float) -> list[float]:
    """Heights of a path between two places, its corners and where it enters and leaves."""
    found = [y for x, y in path if left <= x <= right]
    for (x, y), (next_x, next_y) in itertools.pairwise(path):
        for edge in (left, right):
            if x <= edge <= next_x and next_x > x:
                found.append(y + (next_y - y) * (edge - x) / (next_x - x))
    return found


class Around(NamedTuple):
    """What a name must look after: its own line, lines with a name, those without, dots, and names placed before."""

    own: Path
    named: Sequence[Path]
    nameless: Sequence[Path]
    dots: Path
    taken: Sequence[Box]

    def worth(self, box: Box) -> tuple[float, float]:
        """How much nearer its own line is than any other counts most; a name on a line or a name is worth least."""
        covered = sum(not box.apart(other) for other in self.taken)
        hidden = sum(box.left <= x <= box.right and box.bottom <= y <= box.top for x, y in self.dots)
        crossed = sum(_room(box, path) < 0 for path in self.nameless)
        nearer = min([_room(box, path) for path in self.named], default=ENOUGH) - abs(_room(box, self.own))
        middle = (box.bottom + box.top) / 2
        distances = [abs(y - middle) for y in _within(self.own, box.left, box.right)]
        distance = sum(distances) / len(distances) if distances else ENOUGH
        over_own = min(box.right, self.own[-1][0]) - max(box.left, self.own[0][0])
        beyond = box.right - box.left - over_own
        return min(nearer, ENOUGH) - ENOUGH * (4 * covered + crossed + hidden) - FAR * (distance + beyond), box.left


def _room(box: Box, path: Path) -> float:
    """Pixels between a box and a path above or below it; negative where the path runs through it."""
    ys = _within(path, box.left, box.right)
    if not ys:
        return ENOUGH
    if min(ys) < box.top and max(ys) > box.bottom:
        return -ENOUGH
    return min(abs(y - edge) for y in ys for edge in (box.bottom, box.top))


def _place(box: Box, path: Path, width: float) -> Place:
    """Anchored at that end which is nearest to its own line, so that it stays there on a page of another width; at
    another one where a narrow page would cut it off."""
    middle = (box.bottom + box.top) / 2
    ways: list[tuple[float, Align]] = [(box.left, "left"), (box.right, "right"), ((box.left + box.right) / 2, "center")]
    away = [min((abs(y - middle) for y in _within(path, x, x)), default=width) for x, _ in ways[:2]]
    if away[1] < away[0]:
        ways[:2] = ways[1::-1]
    ways += [(0.0, "left"), (width, "right")]
    fitting = (one for one in ways if fits(one[0] / width, box.right - box.left, one[1]))
    x, align = next(fitting, ways[-1])
    return Place(x, middle, align)


def fits(share: float, length: float, align: Align) -> bool:
    """Whether words of that length, anchored at a share of the plot's width, stay within the narrowest plot."""
    at = share * NARROWEST
    before = {"left": 0.0, "center": length / 2, "right": length}[align]
    return at - before >= 0 and at - before + length <= NARROWEST


# From values to pixels and back, as Vega does it: whoever places words has to know where lines run.


FLAT = 1e-12
# Stands for 0 on a logarithmic scale, which has none.
LEAST = 1e-300


class Scale(NamedTuple):
    """Values from ``low`` to ``high`` over so many ``pixels``, evenly or by logarithm; 0 pixels is at ``low``."""

    low: float
    high: float
    pixels: float
    log: bool

    def to_pixels(self, value: float) -> float:
        """Where a value lies."""
        return (self._of(value) - self._of(self.low)) / self._length * self.pixels

    def to_value(self, pixels: float) -> float:
        """What lies there."""
        found = self._of(self.low) + self._length * pixels / self.pixels
        return 10.0**found if self.log else found

    @property
    def _length(self) -> float:
        return max(self._of(self.high) - self._of(self.low), FLAT)

    def _of(self, value: float) -> float:
        return math.log10(max(value, LEAST)) if self.log else value


# The ink that figures share: inline data, axes with words for people, colours by series, words on a halo.


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
    """An axis with these ticks and their words: core/units.py made them, Vega only looks them up."""
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

"""Draws curves, time lines, histograms and bars on a canvas, for the page and for files."""

import itertools
import math
import operator
import textwrap
from collections.abc import Callable, Sequence

from microbench.core.units import BEFORE_UNIT
from microbench.report.curves import Scale
from microbench.report.document import Bars, Curve, Histogram, Lane, Line, Span, Tiles, TimeLine
from microbench.report.figures.canvas import (
    SMALL,
    USUAL,
    Canvas,
    Colour,
    Dots,
    Point,
    Rectangle,
    Stroke,
    Symbol,
    Words,
    width_of,
)
from microbench.report.figures.labels import Box, placed

# All lengths are CSS pixels.
ROW = 16.0
GAP = 8.0
CURVE_HEIGHT, HISTOGRAM_HEIGHT = 240.0, 110.0
# Above the highest line and below the lowest there is room for names.
ROOM = 20.0
DASHED, DOTTED = (6.0, 4.0), (2.0, 3.0)
# A line of more points has no dots, and keeps only the lowest and the highest point of every THINNED pixels.
MOST_DOTS = 40
THINNED = 2.0
SYMBOLS: tuple[Symbol, ...] = ("circle", "square", "diamond", "triangle")
# Names longer than this share of a plot go into a legend.
LONGEST_NAME = 0.7
LANE, BLANK_LANE, BLOCK = 26.0, 10.0, 18.0
OPACITIES = {"solid": 1.0, "shaded": 0.5, "pale": 0.22, "level": 0.45, "idle": 0.12}
BAR, BETWEEN_BARS = 9.0, 3.0
PALE = 0.32
TILE, BETWEEN_TILES = 16.0, 2.0

Hints = tuple[Callable[[float], str], Callable[[float], str]] | None


def paragraph(canvas: Canvas, text: str, size: float = USUAL, colour: Colour = "ink", *, bold: bool = False) -> None:
    """Text in lines of about the same length; a number and its unit stay on one line."""
    text = BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)
    most = max(int(canvas.width / width_of("n", size, bold=bold)), 1)
    count = len(textwrap.wrap(text, most))
    widths = range(len(text) // max(count, 1), most + 1)
    lines = next((found for width in widths if len(found := textwrap.wrap(text, max(width, 1))) == count), [])
    for line in lines:
        canvas.shapes.append(Words(0.0, canvas.height + size * 0.7, line, colour, size=size, bold=bold))
        canvas.height += size * 1.4


def legend(canvas: Canvas, entries: Sequence[tuple[str, Colour, Symbol | None]]) -> None:
    """Names behind their symbol, or behind a piece of their line, on as many rows as they take."""
    x, y = 0.0, canvas.height + ROW / 2
    for whole, colour, symbol in entries:
        most = int((canvas.width - 22) / width_of("n"))
        name = whole if len(whole) <= most else f"{whole[: most - 1]}…"
        length = 22.0 + width_of(name)
        if x > 0 and x + length > canvas.width:
            x, y = 0.0, y + ROW
        if symbol is None:
            canvas.shapes.append(Stroke([(x, y), (x + 14, y)], colour, 2.0))
        else:
            canvas.shapes.append(Dots([(x + 7, y)], colour, 4.0, symbol))
        canvas.shapes.append(Words(x + 19, y, name))
        x += length + 14
    canvas.height = y + ROW / 2 + GAP / 2


def curve(canvas: Canvas, picture: Curve, *, height: float = CURVE_HEIGHT, hints: Hints = None) -> None:
    """The lines of a curve between its axes. ``hints`` put x and y into words for a pointer on a dot."""
    lines = [line for line in picture.lines if line.points]
    left = max((width_of(tick.text, SMALL, bold=True) for tick in picture.y_ticks), default=0.0) + GAP
    right = canvas.width - GAP
    xs = [x for line in lines for x, _ in line.points]
    x_scale = Scale(min(xs), max(xs), right - left, picture.x_log)
    symbols = dict(zip((line.name for line in lines if line.kind == "points"), itertools.cycle(SYMBOLS), strict=False))
    too_long = any(width_of(line.name) > LONGEST_NAME * (right - left) for line in lines if line.kind != "points")
    listed = [line for line in lines if line.name and (too_long or line.kind == "points")]
    if listed:
        entries = {line.name: (line.name, line.tone, symbols.get(line.name)) for line in listed}
        legend(canvas, list(entries.values()))
    _marks(canvas, [(left + x_scale(mark.at), mark.text) for mark in picture.marks], height)
    area = Box(left, right, canvas.height, canvas.height + height)
    ys = [y for line in lines for _, y in line.points] + [tick.at for tick in picture.y_ticks]
    below = 0.0 if min(ys) == 0 else ROOM / 2  # only an axis that begins at 0 has no room below
    y_scale = Scale(min(ys), max(ys), area.bottom - area.top - ROOM - below, picture.y_log)

    def y_of(value: float) -> float:
        return area.bottom - below - y_scale(value)

    for y, text in _apart([(y_of(tick.at), tick.text) for tick in picture.y_ticks], lambda text: ROW):
        canvas.shapes.append(Stroke([(left, y), (right, y)], "grid"))
        canvas.shapes.append(Words(left - GAP, y, text, "muted", "end", SMALL))
    paths = [_thinned([(left + x_scale(x), y_of(y)) for x, y in line.points], line) for line in lines]
    for line, path in reversed(list(zip(lines, paths, strict=True))):  # the first line on top
        _line(canvas, line, path, symbols.get(line.name, "circle"), hints)
    joined = [(line, path) for line, path in zip(lines, paths, strict=True) if line.kind != "points"]
    dots = [dot for line, path in zip(lines, paths, strict=True) if _has_dots(line) for dot in path]
    names = [("" if too_long else line.name, path) for line, path in joined]
    for (line, _), box in zip(joined, placed(names, dots, area), strict=True):
        if box is not None:
            colour: Colour = "muted" if line.tone == "quiet" else line.tone
            canvas.shapes.append(Words(box.left, (box.top + box.bottom) / 2, line.name, colour, halo=True))
    canvas.height = area.bottom
    _below(canvas, [(left + x_scale(tick.at), tick.text) for tick in picture.x_ticks], left, right)
    if picture.x_title:
        canvas.shapes.append(Words(right, canvas.height + ROW / 2, picture.x_title, "muted", "end", SMALL))
        canvas.height += ROW


def _has_dots(line: Line) -> bool:
    return line.kind == "points" or (line.kind == "measured" and len(line.points) <= MOST_DOTS)


def _thinned(path: list[Point], line: Line) -> list[Point]:
    """A long line keeps both ends, and the lowest and the highest point of every THINNED pixels."""
    if len(path) <= MOST_DOTS or line.kind == "points":
        return path
    columns: dict[int, list[Point]] = {}
    for point in path:
        columns.setdefault(int(point[0] / THINNED), []).append(point)
    height = operator.itemgetter(1)
    extremes = ({min(each, key=height), max(each, key=height)} for each in columns.values())
    return sorted({path[0], path[-1]}.union(*extremes))


def _line(canvas: Canvas, line: Line, path: Sequence[Point], symbol: Symbol, hints: Hints) -> None:
    quiet = line.tone == "quiet"
    if line.kind != "points":
        width = 1.5 if quiet or line.kind == "limit" else 2.0
        canvas.shapes.append(Stroke(path, line.tone, width, DASHED if line.kind == "limit" else ()))
    if _has_dots(line):
        begin = f"{line.name}, " if line.name else ""
        words = [f"{begin}{hints[0](x)}: {hints[1](y)}" for x, y in line.points] if hints is not None else []
        canvas.shapes.append(Dots(path, line.tone, 2.0 if quiet else 3.0, symbol, words))


def _marks(canvas: Canvas, marks: Sequence[tuple[float, str]], height: float) -> None:
    """Vertical lines over the plot, each with its name on a row of its own above, so that no line crosses a name.

    A name is to the right of its line if it fits there, else to the left.
    """
    room = 5.0  # between a line and its name
    lefts = [mark for mark in sorted(marks) if mark[0] + room + width_of(mark[1]) > canvas.width]
    rights = [mark for mark in sorted(marks) if mark not in lefts]
    bottom = canvas.height + len(marks) * ROW + height
    for row, (x, text) in enumerate((*reversed(lefts), *rights)):
        middle = canvas.height + (row + 0.5) * ROW
        canvas.shapes.append(Stroke([(x, middle - ROW / 2 + 3), (x, bottom)], "quiet", 1.0, DOTTED))
        begin = max(x - room - width_of(text), 0.0) if (x, text) in lefts else x + room
        canvas.shapes.append(Words(begin, middle, text, "muted", halo=True))
    canvas.height += len(marks) * ROW


def _below(canvas: Canvas, places: Sequence[tuple[float, str]], left: float, right: float) -> None:
    """Texts centred below their places between two edges: the last one, and the others that would not touch another."""
    seen = [(at, text) for at, text in places if left - 1 <= at <= right + 1]
    for at, text in _apart([*seen[-1:], *seen[:-1]], lambda text: width_of(text, SMALL) + GAP):
        half = width_of(text, SMALL) / 2
        x = min(max(at, half), canvas.width - half)
        canvas.shapes.append(Words(x, canvas.height + ROW / 2 + 2, text, "muted", "middle", SMALL))
    canvas.height += ROW + 2


def _apart(places: Sequence[tuple[float, str]], length: Callable[[str], float]) -> list[tuple[float, str]]:
    """The places that touch none before them."""
    apart: list[tuple[float, str]] = []
    for at, text in places:
        if all(abs(at - other) >= (length(text) + length(words)) / 2 for other, words in apart):
            apart.append((at, text))
    return apart


def histogram(canvas: Canvas, picture: Histogram) -> None:
    """Columns over a logarithmic axis with the marks above; even a single count can be seen."""
    width = canvas.width / max(len(picture.counts), 1)
    step = math.log(picture.ratio)
    marks = [
        (math.log(mark.at / picture.first_edge) / step * width, mark.text) for mark in picture.marks if mark.at > 0
    ]
    _marks(canvas, [(min(max(at, 0.5), canvas.width - 0.5), text) for at, text in marks], HISTOGRAM_HEIGHT)
    most = max(picture.counts, default=0) or 1
    bottom = canvas.height + HISTOGRAM_HEIGHT
    for index, count in enumerate(picture.counts):
        if count:
            high = max(count / most * (HISTOGRAM_HEIGHT - GAP), 2.0)
            column = Rectangle(index * width, bottom - high, max(width - 0.5, 0.5), high, "first")
            canvas.shapes.append(column)
    canvas.shapes.append(Stroke([(0, bottom), (canvas.width, bottom)], "quiet"))
    canvas.height = bottom + GAP / 2


def time_line(canvas: Canvas, picture: TimeLine, *, end_s: float | None = None) -> None:
    """Lanes over one axis of time up to ``end_s`` (left out: the end); a text without room in its span is a hint."""
    end_s = end_s or picture.end_s
    names = [" ".join(lane.name.split()) for lane in picture.lanes]
    left = max((width_of(name) for name in names), default=0.0) + GAP
    right = canvas.width - GAP
    scale = Scale(0.0, end_s, right - left, log=False)
    heights = [LANE if lane.spans or name else BLANK_LANE for lane, name in zip(picture.lanes, names, strict=True)]
    ticks = [(left + scale(tick.at), tick.text) for tick in picture.ticks]
    bottom = canvas.height + sum(heights)
    for x, _ in ticks:
        canvas.shapes.append(Stroke([(x, canvas.height), (x, bottom)], "grid"))
    for lane, name, height in zip(picture.lanes, names, heights, strict=True):
        if name:
            canvas.shapes.append(Words(left - GAP, canvas.height + height / 2, name, "muted", "end"))
        _lane(canvas, lane, lambda value: left + scale(value), canvas.height + height / 2)
        canvas.height += height
    _below(canvas, ticks, left, right)


def _lane(canvas: Canvas, lane: Lane, x_of: Callable[[float], float], middle: float) -> None:
    moments = [span for span in lane.spans if span.begin_s == span.end_s and span.text]
    taken = [_moment(canvas, span, x_of(span.begin_s), middle) for span in moments]
    for span in lane.spans:
        begin, end = x_of(span.begin_s), x_of(span.end_s)
        if span.kind == "distance":
            _distance(canvas, span, begin, end, middle)
        elif span.begin_s < span.end_s:
            high = BLOCK * (span.level if span.kind == "level" else 1.0)
            radius = 2.0 if span.kind in ("solid", "shaded", "pale") else 0.0
            width = max(end - begin - (0.75 if span.kind == "solid" else 0.0), 0.5)  # a gap to the next one
            place = (begin, middle + BLOCK / 2 - high, width, high)
            canvas.shapes.append(Rectangle(*place, span.tone, OPACITIES[span.kind], radius, span.text))
            length, centre = width_of(span.text), (begin + end) / 2
            clear = span.text and all(
                centre + length / 2 < left or right < centre - length / 2 for left, right in taken
            )
            if clear and length + GAP < width:
                colour: Colour = "ground" if span.kind == "solid" else "ink"
                canvas.shapes.append(Words(centre, middle, span.text, colour, "middle"))


def _moment(canvas: Canvas, span: Span, x: float, middle: float) -> tuple[float, float]:
    """An upright line with its text on the right, or on the left if there is no room; returns both ends of the text."""
    canvas.shapes.append(Stroke([(x, middle - BLOCK / 2), (x, middle + BLOCK / 2)], span.tone, 2.0))
    length = width_of(span.text)
    if x + 6 + length <= canvas.width:
        canvas.shapes.append(Words(x + 6, middle, span.text, span.tone))
        return x, x + 6 + length
    canvas.shapes.append(Words(x - 6, middle, span.text, span.tone, "end"))
    return x - 6 - length, x


def _distance(canvas: Canvas, span: Span, begin: float, end: float, middle: float) -> None:
    """A line between two ends, broken where its text stands."""
    for x in (begin, end):
        canvas.shapes.append(Stroke([(x, middle - 5), (x, middle + 5)], "muted"))
    gap = width_of(span.text) + GAP
    if gap > end - begin:
        canvas.shapes.append(Stroke([(begin, middle), (end, middle)], "muted"))
        return
    centre = (begin + end) / 2
    canvas.shapes.append(Stroke([(begin, middle), (centre - gap / 2, middle)], "muted"))
    canvas.shapes.append(Stroke([(centre + gap / 2, middle), (end, middle)], "muted"))
    canvas.shapes.append(Words(centre, middle, span.text, anchor="middle"))


def tiles(canvas: Canvas, picture: Tiles) -> None:
    """The legend, then the rows of a map; a row that is too long goes on below."""
    legend(canvas, [(words, tone, "square") for tone, words in picture.legend])
    canvas.height += GAP
    longest = max((width_of(row.name) for row in picture.rows), default=0.0)
    left = min(longest + GAP, canvas.width / 2)
    across = max(int((canvas.width - left) / TILE), 1)
    for row in picture.rows:
        most = max(int((left - GAP) / width_of("n")), 1)
        name = row.name if len(row.name) <= most else f"{row.name[: most - 1]}…"
        canvas.shapes.append(Words(0.0, canvas.height + TILE / 2, name))
        for number, tile in enumerate(row.tiles):
            x, y = left + number % across * TILE, canvas.height + number // across * TILE
            size = TILE - BETWEEN_TILES
            canvas.shapes.append(Rectangle(x, y, size, size, tile.tone, radius=2.0, hint=tile.text))
        canvas.height += -(-len(row.tiles) // across) * TILE + BETWEEN_TILES


def bars(canvas: Canvas, picture: Bars, *, most: float | None = None) -> None:
    """Bars on one scale from 0 to ``most`` (left out: the longest bar). Neighbours with one label are a group."""
    most = most or max(max(bar.value, bar.beyond or 0.0) for bar in picture.bars)
    scale = Scale(0.0, most, canvas.width, log=False)
    groups = [list(group) for _, group in itertools.groupby(picture.bars, key=lambda bar: bar.label)]
    several = any(len(group) > 1 for group in groups)
    texts = [
        [" / ".join(bar.cells[0].text for bar in group)] if several else [cell.text for cell in group[0].cells]
        for group in groups
    ]
    titles = [column.title for column in picture.columns[: len(texts[0])]]
    # The columns of figures that fit next to the labels, each with its right edge; the first one always stays.
    labels = [group[0].label for group in groups]
    drops = [c.drop for c in picture.columns]
    room = canvas.width - max(width_of(label) for label in labels) - GAP
    widths = [
        2 * GAP + max(width_of(title, SMALL), *(width_of(row[index], bold=index == 0) for row in texts))
        for index, title in enumerate(titles)
    ]
    shown = list(range(len(titles)))
    while len(shown) > 1 and sum(widths[index] for index in shown) > room:
        shown.remove(max(shown[1:], key=lambda index: (drops[index], index)))
    edges = itertools.accumulate((widths[index] for index in reversed(shown)), initial=0.0)
    columns = [(index, canvas.width - edge) for index, edge in zip(reversed(shown), edges, strict=False)]
    for index, x in columns:
        canvas.shapes.append(Words(x, canvas.height + ROW / 2, titles[index], "muted", "end", SMALL))
    canvas.height += ROW
    for group, cells in zip(groups, texts, strict=True):
        canvas.shapes.append(Words(0.0, canvas.height + ROW / 2, group[0].label))
        for index, x in columns:
            if cells[index]:
                canvas.shapes.append(Words(x, canvas.height + ROW / 2, cells[index], anchor="end", bold=index == 0))
        canvas.height += ROW + 2
        for bar in group:
            place = (0.0, canvas.height, max(scale(bar.value), 1.0), BAR)
            canvas.shapes.append(Rectangle(*place, bar.tone, radius=1.0, hint=f"{bar.label}: {bar.cells[0].text}"))
            if bar.beyond is not None and bar.beyond > bar.value:
                begin, end = scale(bar.value), scale(bar.beyond)
                canvas.shapes.append(Rectangle(begin, canvas.height, end - begin, BAR, bar.tone, PALE, 1.0))
            canvas.height += BAR + BETWEEN_BARS
        canvas.height += GAP

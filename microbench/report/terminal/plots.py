"""Draws curves and time lines in characters: braille dots and block elements."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from microbench.report.curves import Scale
from microbench.report.document import Curve, Lane, Line, Span, TimeLine, Tone
from microbench.report.terminal.charts import HEIGHTS
from microbench.report.terminal.layout import Drawn, Piece, joined

# Dots of a braille character by (column, row): bits of its code point above U+2800.
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800
POINT_MARKS = "●◆■▲"


# Dots of a character.
ACROSS, DOWN = 2, 4


class Canvas:
    """Characters of braille, over which texts can be written."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._dots: dict[tuple[int, int], int] = {}
        self._cells: dict[tuple[int, int], Piece] = {}

    def text(self, column: int, row: int, text: str, tone: Tone) -> None:
        """Write over what is there, cut at the right edge."""
        for index, character in enumerate(text[: max(self.width - column, 0)]):
            self._cells[column + index, row] = (character, tone)

    def line(self, begin: tuple[float, float], end: tuple[float, float], tone: Tone) -> None:
        """A straight line between two places in dots, counted from the lower left."""
        steps = max(1, round(max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))))
        for step in range(steps + 1):
            x = round(begin[0] + (end[0] - begin[0]) * step / steps)
            y = self.height * DOWN - 1 - round(begin[1] + (end[1] - begin[1]) * step / steps)
            cell = (x // ACROSS, y // DOWN)
            if 0 <= cell[0] < self.width and 0 <= cell[1] < self.height:
                self._dots[cell] = self._dots.get(cell, 0) | DOTS[x % ACROSS][y % DOWN]
                self._cells[cell] = (chr(BLANK + self._dots[cell]), tone)

    def row(self, row: int) -> list[Piece]:
        return joined([self._cells.get((column, row), (" ", "plain")) for column in range(self.width)])


def curve(picture: Curve, width: int, height: int) -> Drawn:
    """The lines of a curve between its axes, its vertical marks behind them, and the names of the lines below."""
    margin = max((len(tick.text) for tick in picture.y_ticks), default=0) + 1
    canvas = Canvas(width - margin - 1, height)
    xs = [x for line in picture.lines for x, _ in line.points]
    ys = [y for line in picture.lines for _, y in line.points] + [tick.at for tick in picture.y_ticks]
    x_scale = Scale(min(xs), max(xs), canvas.width * ACROSS - 1, picture.x_log)
    y_scale = Scale(min(ys), max(ys), canvas.height * DOWN - 1, picture.y_log)
    marks = [(round(x_scale(mark.at)) // ACROSS, mark.text) for mark in picture.marks]
    for column, _ in marks:
        for row in range(canvas.height):
            canvas.text(column, row, "┊", "advice")
    signs = cycle(POINT_MARKS)
    signed = [(line, next(signs) if line.kind == "points" else "") for line in picture.lines]
    backwards = signed[::-1]  # the first line on top, and points over all lines
    for line, sign in sorted(backwards, key=lambda pair: pair[0].kind == "points"):
        places = [(x_scale(x), y_scale(y)) for x, y in line.points]
        if sign:
            for x, y in places:
                canvas.text(round(x) // ACROSS, canvas.height - 1 - round(y) // DOWN, sign, line.tone)
        else:
            for begin, end in zip(places, places[1:] or places, strict=False):
                canvas.line(begin, end, line.tone)
    _write_marks(canvas, marks)
    # A letter for each of several lines of dots, which without colour look alike.
    alike = [line for line in picture.lines if line.kind != "points" and line.name and line.points]
    letters = dict(zip(alike, "abcdefghijkl", strict=False)) if len(alike) > 1 else {}
    for line, letter in letters.items():
        # At its point that is farthest from the points of the others.
        taken = [(x_scale(x), y_scale(y)) for other in letters if other is not line for x, y in other.points]
        places = [(x_scale(x), y_scale(y)) for x, y in line.points]
        x, y = max(places, key=lambda place: min(math.dist(place, other) for other in taken))
        canvas.text(round(x) // ACROSS, canvas.height - 1 - round(y) // DOWN, letter, line.tone)
    at_row = {canvas.height - 1 - round(y_scale(tick.at)) // DOWN: tick.text for tick in reversed(picture.y_ticks)}
    lines: Drawn = [
        [(at_row.get(row, "").rjust(margin - 1) + (" ┤" if row in at_row else " │"), "quiet"), *canvas.row(row)]
        for row in range(canvas.height)
    ]
    x_places = [(round(x_scale(tick.at)) // ACROSS, tick.text) for tick in picture.x_ticks]
    return lines + _below(x_places, canvas.width, margin, picture.x_title) + _legend(signed, letters, margin, width)


def _write_marks(canvas: Canvas, marks: Sequence[tuple[int, str]]) -> None:
    """The texts of vertical marks, each next to its own mark, on as many rows as keep them apart.

    A text is right of its mark if it fits there and crosses no other mark.
    """
    ends: list[int] = []
    for column, text in sorted(marks):
        sides = [column + 2, max(column - 1 - len(text), 0)]
        fitting = [begin for begin in sides if begin + len(text) <= canvas.width] or sides[1:]
        others = [other for other, _ in marks if other != column]
        alone = [begin for begin in fitting if not any(begin <= other <= begin + len(text) for other in others)]
        begin = (alone or fitting)[0]
        row = next((index for index, end in enumerate(ends) if end < begin), len(ends))
        ends[row : row + 1] = [begin + len(text)]
        canvas.text(begin, row, text, "advice")


def _below(places: Sequence[tuple[int, str]], width: int, margin: int, title: str) -> Drawn:
    """The horizontal axis with the texts of its ticks, and its title in the first line that has room."""
    axis, words = ["─"] * width, ""
    for column, text in places:
        begin = min(max(column - len(text) // 2, 0), width - len(text))
        if begin >= len(words) + (1 if words else 0) and begin >= 0:
            words = words.ljust(begin) + text
            axis[min(max(column, 0), width - 1)] = "┴"
    begin = width - len(title)
    named = words.ljust(begin) + title if len(words) + 2 <= begin else words
    pad = " " * margin
    lines: Drawn = [[(f"{pad}└{''.join(axis)}", "quiet")], [(f"{pad} {named}", "quiet")]]
    return lines if named != words or not title else [*lines, [(f"{pad} {title.rjust(width)}", "quiet")]]


def _legend(signed: Sequence[tuple[Line, str]], letters: Mapping[Line, str], margin: int, width: int) -> Drawn:
    """The lines' names behind a sample of each, side by side if they fit."""
    samples: Drawn = [
        [((sign or f"⠤{letters.get(line, '⠤')}⠤") + " ", line.tone), (f"{line.name}   ", "plain")]
        for line, sign in signed
        if line.name
    ]
    pad: Piece = (" " * (margin + 1), "plain")
    if sum(len(text) for sample in samples for text, _ in sample) <= width - margin - 1:
        return [[pad, *(piece for sample in samples for piece in sample)]] if samples else []
    return [[pad, *sample] for sample in samples]


HALVES = 2
FULL, LEFT, RIGHT = "█", "▌", "▐"
ON: dict[Tone, Tone] = {"first": "on_first", "second": "on_second", "third": "on_third"}
FILLS = {"solid": FULL, "shaded": "▒", "pale": "░", "idle": "─"}


def time_line(picture: TimeLine, width: int, *, inverse: bool) -> Drawn:
    """Lanes to scale below an axis of time. ``inverse`` writes inverted on blocks."""
    name_width = max(len(lane.name) for lane in picture.lanes) + 2
    inner = width - name_width
    scale = (inner - 1) / picture.end_s if picture.end_s > 0 else 0.0
    axis = ""
    for tick in picture.ticks:
        begin = round(tick.at * scale)
        if begin >= len(axis) and begin + len(tick.text) <= inner:
            axis = axis.ljust(begin) + tick.text + " "
    lines: Drawn = [[(" " * name_width, "plain"), (axis.ljust(inner)[:inner], "quiet")]]
    for lane in picture.lanes:
        lines.append([(lane.name.ljust(name_width), "strong"), *_lane(lane, scale, inner, inverse)])
    return lines


def _lane(lane: Lane, scale: float, width: int, inverse: bool) -> list[Piece]:
    cells: list[Piece] = [(" ", "plain")] * width
    work = [span for span in lane.spans if span.kind == "solid" and not _is_moment(span)]
    for span in lane.spans:
        begin, end = round(span.begin_s * scale), round(span.end_s * scale)
        if _is_moment(span):
            text = f"▌{span.text}"
            _write(cells, min(begin, max(width - len(text), 0)), text, span.tone)
        elif span.kind not in ("solid", "level") and (span.kind != "distance" or end > begin):
            _write(cells, begin, _stretch(span, max(end - begin, 1)), span.tone)
    _write_levels(cells, [span for span in lane.spans if span.kind == "level"], scale)
    for span, begin, end in _apart(work, scale):
        head, tail = RIGHT if begin % HALVES else "", LEFT if end % HALVES else ""
        at, block = begin // HALVES, head + FULL * max(end // HALVES - (begin + 1) // HALVES, 0) + tail
        _write(cells, at, block, span.tone)
        whole = block.count(FULL)  # the text is written where it fits into the whole characters of the block
        label = f" {span.text} " if span.text and whole >= len(span.text) + 4 else span.text
        if label and whole >= len(label) + 2:
            within = block.index(FULL) + (whole - len(label)) // 2
            _write(cells, at + within, label, ON.get(span.tone, span.tone) if inverse else span.tone)
    return joined(cells)


def _is_moment(span: Span) -> bool:
    return span.begin_s == span.end_s and bool(span.text)


def _write(cells: list[Piece], begin: int, text: str, tone: Tone) -> None:
    for index, character in enumerate(text[: max(len(cells) - begin, 0)]):
        cells[begin + index] = (character, tone)


def _write_levels(cells: list[Piece], spans: Sequence[Span], scale: float) -> None:
    """Each character as high as the mean level within it; even the lowest level shows."""
    means: dict[int, float] = {}
    for span in spans:
        begin, end = span.begin_s * scale, span.end_s * scale
        for index in range(int(begin), math.ceil(end)):
            means[index] = means.get(index, 0.0) + span.level * (min(end, index + 1) - max(begin, index))
    for index, mean in means.items():
        _write(cells, index, HEIGHTS[max(round(mean * (len(HEIGHTS) - 1)), 1)], spans[0].tone)


def _apart(spans: Sequence[Span], scale: float) -> list[tuple[Span, int, int]]:
    """Work with its begin and end in half characters.

    A span that would touch the next one ends sooner, so that both are seen; spans narrower than that run together.
    """
    placed: list[tuple[Span, int, int]] = []
    for span in spans:
        begin = round(span.begin_s * scale * HALVES)
        end = max(round(span.end_s * scale * HALVES), begin + 1)
        if placed:
            before, its_begin, its_end = placed[-1]
            if its_end >= begin > its_begin + 1:
                placed[-1] = (before, its_begin, begin - 1)
        placed.append((span, begin, end))
    return placed


def _stretch(span: Span, length: int) -> str:
    if span.kind == "distance":
        inner = max(length - 1, 0)
        text = f" {span.text} " if inner >= len(span.text) + 3 else span.text if inner > len(span.text) else ""
        return f"├{text.center(inner, '─')}┤"
    text = f" {span.text} " if span.text and length >= len(span.text) + 5 else ""
    return text.center(length, FILLS[span.kind])

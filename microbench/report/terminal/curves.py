"""Curves in characters: a canvas of braille dots (or plain marks in ASCII) with ticks at both axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

from microbench.report.document import Curve, Lane, Line, Mark, Span, TimeLine, Tone
from microbench.report.terminal.charts import HEIGHTS, Drawn, Piece, joined

# Dots of a braille character by (column, row): bits of its code point above U+2800.
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800
PLAIN_MARKS = "*o+x#@"
POINT_MARKS = "●◆■▲"
FLAT = 1e-12


class Scale:
    """From values to dots: ``dots`` of them between ``low`` and ``high``, evenly or by logarithm."""

    def __init__(self, low: float, high: float, dots: int, log: bool) -> None:
        self._log = log
        self._low, high = self._of(low), self._of(high)
        self._factor = (dots - 1) / (high - self._low) if high - self._low > FLAT else 0.0

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self._log else value

    def __call__(self, value: float) -> float:
        """Where ``value`` lies, from 0 to dots - 1 for what is inside."""
        return (self._of(value) - self._low) * self._factor


class Canvas:
    """Characters of ``across`` x ``down`` dots each: 2 x 4 in braille, 1 x 1 in ASCII."""

    def __init__(self, width: int, height: int, fine: bool) -> None:
        self.width, self.height, self.fine = width, height, fine
        self.across, self.down = (2, 4) if fine else (1, 1)
        self._dots: dict[tuple[int, int], int] = {}
        self._cells: dict[tuple[int, int], Piece] = {}

    def text(self, column: int, row: int, text: str, tone: Tone) -> None:
        """Write over what is there, cut at the right edge."""
        for index, character in enumerate(text[: max(self.width - column, 0)]):
            self._cells[column + index, row] = (character, tone)

    def line(self, begin: tuple[float, float], end: tuple[float, float], mark: str, tone: Tone) -> None:
        """A straight line between two places in dots, counted from the lower left."""
        steps = max(1, round(max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))))
        for step in range(steps + 1):
            x = begin[0] + (end[0] - begin[0]) * step / steps
            y = begin[1] + (end[1] - begin[1]) * step / steps
            self._dot(round(x), self.height * self.down - 1 - round(y), mark, tone)

    def _dot(self, x: int, y: int, mark: str, tone: Tone) -> None:
        cell = (x // self.across, y // self.down)
        if not (0 <= cell[0] < self.width and 0 <= cell[1] < self.height):
            return
        if self.fine:
            self._dots[cell] = self._dots.get(cell, 0) | DOTS[x % 2][y % 4]
            mark = chr(BLANK + self._dots[cell])
        self._cells[cell] = (mark, tone)

    def row(self, row: int) -> list[Piece]:
        """One line of the canvas."""
        return joined([self._cells.get((column, row), (" ", "plain")) for column in range(self.width)])


def curve(one: Curve, width: int, height: int, *, fine: bool) -> Drawn:
    """The lines of a curve between its axes, its vertical marks behind them, and the names of the lines below."""
    margin = max((len(tick.text) for tick in one.y_ticks), default=0) + 1
    canvas = Canvas(width - margin - 1, height, fine)
    xs = [x for line in one.lines for x, _ in line.points]
    ys = [y for line in one.lines for _, y in line.points] + [tick.at for tick in one.y_ticks]
    x_scale = Scale(min(xs), max(xs), canvas.width * canvas.across, one.x_log)
    y_scale = Scale(min(ys), max(ys), canvas.height * canvas.down, one.y_log)
    marks = [(round(x_scale(mark.at)) // canvas.across, mark.text) for mark in one.marks]
    for column, _ in marks:
        for row in range(canvas.height):
            canvas.text(column, row, "┊", "advice")
    signed = _signed(one.lines, fine)[::-1]  # the first line comes last, on top; points over all lines
    for line, sign in (*(pair for pair in signed if pair[0].joined), *(pair for pair in signed if not pair[0].joined)):
        _draw(canvas, line, x_scale, y_scale, sign)
    _label(canvas, marks)
    at_row = {canvas.height - 1 - round(y_scale(tick.at)) // canvas.down: tick.text for tick in reversed(one.y_ticks)}
    lines: Drawn = [
        [(at_row.get(row, "").rjust(margin - 1) + (" ┤" if row in at_row else " │"), "quiet"), *canvas.row(row)]
        for row in range(canvas.height)
    ]
    places = [(round(x_scale(tick.at)) // canvas.across, tick.text) for tick in one.x_ticks]
    return lines + _below(places, canvas.width, margin, one.x_title) + _legend(one.lines, margin, width, fine)


def _signed(lines: Sequence[Line], fine: bool) -> list[tuple[Line, str]]:
    """Lines with what draws their points; in braille joined lines are dots."""
    points, marks = cycle(POINT_MARKS), cycle(PLAIN_MARKS)
    return [(line, next(points) if fine and not line.joined else next(marks)) for line in lines]


def _draw(canvas: Canvas, line: Line, x_scale: Scale, y_scale: Scale, sign: str) -> None:
    places = [(x_scale(x), y_scale(y)) for x, y in line.points]
    if not line.joined:
        for x, y in places:
            row = canvas.height - 1 - round(y) // canvas.down
            canvas.text(round(x) // canvas.across, row, sign, line.tone)
        return
    for begin, end in zip(places, places[1:] or places, strict=False):
        canvas.line(begin, end, sign, line.tone)


def _label(canvas: Canvas, marks: Sequence[tuple[int, str]]) -> None:
    """What the vertical marks say, each beside its own, on as many rows as it takes for none to touch another.

    On the right where it fits, and crosses no other mark that it could be taken for.
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


def _legend(lines: Sequence[Line], margin: int, width: int, fine: bool) -> Drawn:
    """The lines' names behind a sample of each, side by side where they fit."""
    samples: Drawn = [
        [
            (f"{sign} " if not line.joined else "⠤⠤ " if fine else f"{sign}{sign} ", line.tone),
            (f"{line.name}   ", "plain"),
        ]
        for line, sign in _signed(lines, fine)
        if line.name
    ]
    pad: Piece = (" " * (margin + 1), "plain")
    if sum(len(text) for sample in samples for text, _ in sample) <= width - margin - 1:
        return [[pad, *(piece for sample in samples for piece in sample)]] if samples else []
    return [[pad, *sample] for sample in samples]


# Time lines in characters: lanes under one axis of time, to scale, half a character fine.


HALVES = 2
FULL, LEFT, RIGHT = "█", "▌", "▐"
ON: dict[Tone, Tone] = {"first": "on_first", "second": "on_second", "third": "on_third"}
# The same nine heights where there is nothing but ASCII.
PLAIN_HEIGHTS = " .:-=+*%#"
FILLS = {"solid": FULL, "shaded": "▒", "pale": "░", "idle": "─"}


def time_line(one: TimeLine, width: int, *, fine: bool, inverse: bool) -> Drawn:
    """Lanes to scale under an axis of time. ``fine`` begins and ends work at half a character; ``inverse`` writes on
    blocks rather than between their halves."""
    name_width = max(len(lane.name) for lane in one.lanes) + 2
    inner = width - name_width
    scale = (inner - 1) / one.end_s if one.end_s > 0 else 0.0
    lines: Drawn = [[(" " * name_width, "plain"), (_axis(one.ticks, scale, inner), "quiet")]]
    for lane in one.lanes:
        lines.append([(lane.name.ljust(name_width), "strong"), *_lane(lane, scale, inner, fine, inverse)])
    return lines


def _axis(ticks: Sequence[Mark], scale: float, width: int) -> str:
    line = ""
    for tick in ticks:
        begin = round(tick.at * scale)
        if begin >= len(line) and begin + len(tick.text) <= width:
            line = line.ljust(begin) + tick.text + " "
    return line.ljust(width)[:width]


def _lane(lane: Lane, scale: float, width: int, fine: bool, inverse: bool) -> list[Piece]:
    cells: list[Piece] = [(" ", "plain")] * width
    work = [span for span in lane.spans if span.kind == "solid" and not _instant(span)]
    for span in lane.spans:
        begin, end = round(span.begin_s * scale), round(span.end_s * scale)
        if _instant(span):
            text = f"▌{span.text}"
            _write(cells, min(begin, max(width - len(text), 0)), text, span.tone)
        elif span.kind not in ("solid", "level") and (span.kind != "distance" or end > begin):
            _write(cells, begin, _stretch(span, max(end - begin, 1)), span.tone)
    _raise(cells, [span for span in lane.spans if span.kind == "level"], scale, HEIGHTS if fine else PLAIN_HEIGHTS)
    for span, begin, end in _apart(work, scale, fine):
        at, block = begin // HALVES, _block(begin, end)
        _write(cells, at, block, span.tone)
        label, within = _span_label(span.text, block)
        _write(cells, at + within, label, ON.get(span.tone, span.tone) if inverse else span.tone)
    return joined(cells)


def _instant(span: Span) -> bool:
    """Whether it is a moment with words, and no stretch of time."""
    return span.begin_s == span.end_s and bool(span.text)


def _write(cells: list[Piece], begin: int, text: str, tone: Tone) -> None:
    for index, character in enumerate(text[: max(len(cells) - begin, 0)]):
        cells[begin + index] = (character, tone)


def _raise(cells: list[Piece], spans: Sequence[Span], scale: float, heights: str) -> None:
    """Each character as high as the level is on average within it; however low, it can be seen."""
    means: dict[int, float] = {}
    for span in spans:
        begin, end = span.begin_s * scale, span.end_s * scale
        for index in range(int(begin), math.ceil(end)):
            means[index] = means.get(index, 0.0) + span.level * (min(end, index + 1) - max(begin, index))
    for index, mean in means.items():
        _write(cells, index, heights[max(round(mean * (len(heights) - 1)), 1)], spans[0].tone)


def _apart(spans: Sequence[Span], scale: float, fine: bool) -> list[tuple[Span, int, int]]:
    """Work with its begin and end in half characters. One that would touch the next ends sooner, so that each is seen
    by itself; where they are narrower than that, they run together."""
    step = 1 if fine else HALVES
    placed: list[tuple[Span, int, int]] = []
    for span in spans:
        begin = round(span.begin_s * scale * HALVES / step) * step
        end = max(round(span.end_s * scale * HALVES / step) * step, begin + step)
        if placed:
            before, its_begin, its_end = placed[-1]
            if its_end >= begin > its_begin + step:
                placed[-1] = (before, its_begin, begin - step)
        placed.append((span, begin, end))
    return placed


def _block(begin: int, end: int) -> str:
    """A block between two half characters."""
    head, tail = RIGHT if begin % HALVES else "", LEFT if end % HALVES else ""
    return head + FULL * max(end // HALVES - (begin + 1) // HALVES, 0) + tail


def _span_label(text: str, block: str) -> tuple[str, int]:
    """The text as it fits into the whole characters of a block, and where in the block it begins."""
    whole = block.count(FULL)
    text = f" {text} " if text and whole >= len(text) + 4 else text
    if not text or whole < len(text) + 2:
        return "", 0
    return text, block.index(FULL) + (whole - len(text)) // 2


def _stretch(span: Span, length: int) -> str:
    if span.kind == "distance":
        inner = max(length - 1, 0)
        text = f" {span.text} " if inner >= len(span.text) + 3 else span.text if inner > len(span.text) else ""
        return f"├{text.center(inner, '─')}┤"
    text = f" {span.text} " if span.text and length >= len(span.text) + 5 else ""
    return text.center(length, FILLS[span.kind])

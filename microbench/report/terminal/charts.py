"""Pictures in characters: each becomes lines of (text, tone) pieces of a given width; the terminal adds only colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from microbench.report.document import (
    TRUST_MARKS,
    UNKNOWN_MARK,
    Bar,
    Bars,
    Cell,
    Column,
    Histogram,
    Phrase,
    Portion,
    Prose,
    Stack,
    Stacks,
    Station,
    Stretch,
    Table,
    Tone,
    Way,
)

# What fits a page: columns of a table, pieces of a line. Arithmetic on characters, no drawing.


# Two spaces between columns, one at each edge; a cell's note and its grade's mark stand one space off.
BETWEEN, EDGES = 2, 2


# What stands between things that are told in one line.
SEPARATOR, GOES_ON = " · ", " ·"


def packed(words: str, width: int, length: Callable[[str], int] = len) -> list[str]:
    """Lines of at most ``width`` that break only between the pieces of ``words``: "PCIe 5 x16" stays together. A piece
    that is longer by itself has a line of its own."""
    first, *others = words.split(SEPARATOR)
    lines = [first]
    for left, piece in zip(range(len(others) - 1, -1, -1), others, strict=True):
        joined = f"{lines[-1]}{SEPARATOR}{piece}"
        if length(joined) + (len(GOES_ON) if left else 0) <= width:
            lines[-1] = joined
        else:
            lines[-1] += GOES_ON
            lines.append(piece)
    return lines


class Widths:
    """The widths of one table's columns. ``shown`` says what the page shows of a text; ``notes`` whether cells keep
    theirs."""

    def __init__(self, table: Table, shown: Callable[[str], str], *, notes: bool = True) -> None:
        self._table = table
        self._shown = shown
        self._columns = range(len(table.columns))
        # Notes are padded to the longest of their column, so that figures stand under each other.
        self.notes = [
            max((len(shown(row[index].note)) for row in table.rows), default=0) if notes else 0
            for index in self._columns
        ]
        self.needed = [self._column(index) for index in self._columns]

    def _column(self, index: int) -> int:
        cells = (row[index] for row in self._table.rows)
        return max(
            [
                len(self._shown(self._table.columns[index].title)),
                *(
                    len(self._shown(cell.text))
                    + (1 + self.notes[index] if cell.note and self.notes[index] else 0)
                    + (2 if cell.trust else 0)
                    for cell in cells
                ),
            ]
        )

    def total(self, kept: Sequence[int]) -> int:
        """Characters that the table takes with these columns, nothing wrapped."""
        return sum(self.needed[index] for index in kept) + BETWEEN * max(len(kept) - 1, 0) + EDGES

    def fitting(self, width: int) -> list[int]:
        """Indexes of the columns to show in ``width`` characters: those that may go do, until the rest fits."""
        kept = list(self._columns)
        while self.total(kept) > width and any(self._table.columns[index].drop for index in kept):
            kept.remove(max(kept, key=lambda index: self._table.columns[index].drop))
        return kept


def fitted(table: Table, width: int, shown: Callable[[str], str]) -> tuple[Widths, list[int]]:
    """The widths and columns in which a table fits ``width``: columns that may go do, then the notes beside figures."""
    widths = Widths(table, shown)
    kept = widths.fitting(width)
    if widths.total(kept) > width:
        widths = Widths(table, shown, notes=False)
        kept = widths.fitting(width)
    return widths, kept


Piece = tuple[str, Tone]
Drawn = list[list[Piece]]

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
HISTOGRAM_ROWS = 6
SHORTEST_BARS = 16


def joined(cells: Sequence[tuple[str, Tone]]) -> list[Piece]:
    """Neighbouring characters of one tone as one piece."""
    pieces: list[Piece] = []
    for text, tone in cells:
        if pieces and pieces[-1][1] == tone:
            pieces[-1] = (pieces[-1][0] + text, tone)
        else:
            pieces.append((text, tone))
    return pieces


def bars(one: Bars, width: int, *, fine: bool, shown: Callable[[str], str]) -> Drawn:
    """Labels, bars on one scale as long as the figures leave room, and the figures under their headings. ``shown`` says
    what the page shows of a text."""
    columns = (Column("", "left"), Column("", "left"), *one.columns)
    table = Table("", "", columns, tuple((Cell(bar.label), Cell(""), *bar.cells) for bar in one.bars))
    widths = Widths(table, shown)
    kept = widths.fitting(width - SHORTEST_BARS)
    room = max(width - widths.total(kept), SHORTEST_BARS)
    largest = max((max(bar.value, bar.beyond or 0.0) for bar in one.bars), default=0.0)
    lines: Drawn = [[(" " * (widths.needed[0] + BETWEEN + room), "plain")]]
    for index in kept[2:]:
        lines[0].append((shown(columns[index].title).rjust(widths.needed[index] + BETWEEN), "quiet"))
    for bar, cells in zip(one.bars, table.rows, strict=True):
        line: list[Piece] = [(shown(bar.label).ljust(widths.needed[0]) + " " * BETWEEN, "plain")]
        line += drawn_bar(bar, largest, room, fine=fine)
        for index in kept[2:]:
            line += _figure(cells[index], widths.needed[index] + BETWEEN, widths.notes[index], shown)
        lines.append(line)
    return lines


def _figure(cell: Cell, width: int, note_width: int, shown: Callable[[str], str]) -> list[Piece]:
    pieces = cell_pieces(cell, note_width, shown)
    return [(" " * max(width - sum(len(text) for text, _ in pieces), 0), "plain"), *pieces]


def cell_pieces(cell: Cell, note_width: int, shown: Callable[[str], str]) -> list[Piece]:
    """A cell's text, its note padded to ``note_width`` to align figures (0: left out), its grade's mark."""
    pieces: list[Piece] = [(shown(cell.text), cell.tone)]
    if cell.note and note_width:
        pieces.append((f" {shown(cell.note).ljust(note_width)}", "quiet"))
    if cell.trust is not None:
        sign, tone = TRUST_MARKS.get(cell.trust, UNKNOWN_MARK)
        pieces.append((f" {shown(sign)}", tone))
    return pieces


def table_lines(table: Table, widths: Widths, kept: Sequence[int], *, shown: Callable[[str], str]) -> Drawn:
    """A table that fits its page, a line a row. Laying out rows as if they could wrap takes ten times as long."""
    edge: Piece = (" ", "plain")
    rule: Piece = (" ", "quiet")
    head = [rule]
    for index in kept:
        title = shown(table.columns[index].title)
        aligned = str.rjust if table.columns[index].align == "right" else str.ljust
        head += [(aligned(title, widths.needed[index]), "quiet"), rule, rule]
    lines: Drawn = [head[:-1], [(shown("─" * widths.total(kept)), "quiet")]]
    for row in table.rows:
        line = [edge]
        for index in kept:
            pieces = cell_pieces(row[index], widths.notes[index], shown)
            blank: Piece = (" " * (widths.needed[index] - sum(len(text) for text, _ in pieces)), "plain")
            line += [blank, *pieces] if table.columns[index].align == "right" else [*pieces, blank]
            line += [edge, rule]
        lines.append(line[:-1])
    return lines


def drawn_bar(one: Bar, largest: float, width: int, *, fine: bool) -> list[Piece]:
    """A bar on a scale to ``largest``: solid to its value, paler beyond. ``fine`` ends a bar without a paler end at an
    eighth of a character."""
    scale = width / largest if largest > 0 else 0.0
    length = one.value * scale
    if one.beyond is not None:
        solid = "█" * max(round(length), 1)
        pale = "░" * max(round(one.beyond * scale) - len(solid), 0)
        return [(solid, one.tone), (pale, one.tone), (" " * max(width - len(solid) - len(pale), 0), "plain")]
    whole = int(length)
    solid = "█" * whole + (EIGHTHS[round((length - whole) * 8)].strip() if fine else "")
    return [(solid, one.tone), (" " * max(width - len(solid), 0), "plain")]


def histogram(one: Histogram, width: int, *, fine: bool) -> Drawn:
    """Columns of counts over a logarithmic axis, the marks below. Even a single count stays visible."""
    per_column = max(1, math.ceil(len(one.counts) / width))
    repeat = max(1, width // max(math.ceil(len(one.counts) / per_column), 1))
    counts = [sum(one.counts[index : index + per_column]) for index in range(0, len(one.counts), per_column)]
    most = max(counts) or 1
    lines: Drawn = []
    for row in range(HISTOGRAM_ROWS - 1, -1, -1):
        filled = ((count / most * HISTOGRAM_ROWS - row, count > 0 and row == 0) for count in counts)
        lines.append([("".join(_column(part, keep, fine) * repeat for part, keep in filled), "first")])
    drawn_width = len(counts) * repeat
    lines.append([("─" * drawn_width, "quiet")])
    bin_width = math.log(one.ratio) * per_column / repeat
    places = [(int(math.log(mark.at / one.first_edge) / bin_width), mark.text) for mark in one.marks if mark.at > 0]
    return lines + labels([(min(max(at, 0), drawn_width - 1), text) for at, text in places], width)


def _column(filled: float, keep: bool, fine: bool) -> str:
    if filled >= 1:
        return "█"
    if not fine:
        return "█" if filled >= 0.5 else "." if keep else " "
    eighths = max(round(max(filled, 0.0) * 8), 1 if keep else 0)
    return HEIGHTS[eighths]


def labels(places: Sequence[tuple[int, str]], width: int) -> Drawn:
    """Texts below their places, each behind a small arrow, on as many lines as it takes for none to touch another."""
    rows: list[str] = []
    for at, text in places:
        whole = f"▲ {text}"
        begin, whole = (at, whole) if at + len(whole) <= width else (max(at - len(whole) + 1, 0), f"{text} ▲")
        for index in range(len(rows) + 1):
            if index == len(rows):
                rows.append("")
            if len(rows[index]) + (2 if rows[index] else 0) <= begin:
                rows[index] = rows[index].ljust(begin) + whole
                break
    return [[(row[:width], "quiet")] for row in rows]


# Running text in characters: paragraphs wrapped to the page, with no break inside a figure.


# Lines longer than this are hard to read, however wide the page.
WIDEST = 96
INDENT: Piece = (" ", "plain")


def prose(one: Prose, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """The paragraphs, a blank line between them. ``shown`` says what the page shows of a text."""
    lines: Drawn = []
    for paragraph in one.paragraphs:
        wrapped = _wrapped(paragraph, min(width, WIDEST) - len(INDENT[0]), shown)
        lines += [[], *([INDENT, *line] for line in wrapped)]
    return lines[1:]


def _wrapped(paragraph: tuple[Phrase, ...], width: int, shown: Callable[[str], str]) -> Drawn:
    lines: Drawn = [[]]
    used = 0
    for word in _words(paragraph, width, shown):
        length = sum(len(text) for text, _ in word)
        if used and used + 1 + length > width:
            lines.append([])
            used = 0
        if used:
            lines[-1].append((" ", "plain"))
            used += 1
        lines[-1] += word
        used += length
    return lines


def _words(paragraph: tuple[Phrase, ...], width: int, shown: Callable[[str], str]) -> Iterator[list[Piece]]:
    """What a line may break between: words, and whole phrases that fit one, with the punctuation that follows them."""
    word: list[Piece] = []
    for phrase in paragraph:
        parts = [phrase.text] if phrase.whole and len(phrase.text) <= width else phrase.text.split(" ")
        for index, part in enumerate(parts):
            if index and word:
                yield word
                word = []
            if part:
                word.append((shown(part), phrase.tone))
    if word:
        yield word


# Stacked bars in characters: portions behind one another on one scale, their names and figures below each bar.


# Told apart without colour as well.
FILLS: dict[Tone, str] = {"first": "█", "second": "▓", "third": "▒", "advice": "░", "quiet": "─"}
OTHER = "█"
BETWEEN_NAMES = 2
SHORTEST_STACK = 10
NOTHING = 1e-300  # no scale bears less


def stacks(one: Stacks, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """Each bar on a line, what it is made of on the lines below. ``shown`` says what the page shows of a text."""
    labels = max((len(shown(stack.label)) for stack in one.stacks), default=0) + BETWEEN_NAMES
    totals = max((len(shown(stack.total)) for stack in one.stacks), default=0) + BETWEEN_NAMES
    room = max(width - labels - totals, SHORTEST_STACK)
    largest = max((sum(portion.value for portion in stack.portions) for stack in one.stacks), default=0.0)
    scale = room / largest if largest > NOTHING else 0.0
    lines: Drawn = []
    for index, stack in enumerate(one.stacks):
        if index:
            lines.append([("", "plain")])
        bar = _bar(stack, scale)
        length = sum(len(text) for text, _ in bar)
        label = shown(stack.label).ljust(labels)
        # The total follows its bar, so that a short one shows how much shorter it is.
        lines.append(
            [(label, "strong"), *bar, (f"{' ' * (BETWEEN_NAMES if length else 0)}{shown(stack.total)}", "strong")]
        )
        lines += [[(" " * labels, "plain"), *pieces] for pieces in _named(stack.portions, width - labels, shown)]
    return lines


def _bar(stack: Stack, scale: float) -> list[Piece]:
    """Ends are rounded, not lengths, so that the whole is as long as it should be."""
    pieces: list[Piece] = []
    end, drawn = 0.0, 0
    for portion in stack.portions:
        end += portion.value
        length = round(end * scale) - drawn
        drawn += length
        pieces.append((_fill(portion) * length, portion.tone))
    return pieces


def _named(portions: Sequence[Portion], width: int, shown: Callable[[str], str]) -> Iterable[list[Piece]]:
    """A sample, the name and the figure of each, on as many lines as that takes."""
    line: list[Piece] = []
    used = 0
    for portion in portions:
        name, text = shown(portion.name), f"{shown(portion.text)}  "
        pieces: list[Piece] = [(f"{_fill(portion)} ", portion.tone), (f"{name} ", "plain"), (text, "quiet")]
        length = sum(len(piece) for piece, _ in pieces)
        if used and used + length - BETWEEN_NAMES > width:
            yield line
            line, used = [], 0
        line += pieces
        used += length
    if line:
        yield line


def _fill(portion: Portion) -> str:
    return FILLS.get(portion.tone, OTHER)


# A way in characters: stations as boxes on one line with what joins them between, or down the page if many.


PADDING = 2  # a space at each side of a box's words and, where there is room, of what stands over a stretch
SHORTEST_LINK = 3
LINE, HIDDEN_LINE = "─", "┄"


def way(one: Way, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """Boxes on one line where they fit into ``width``, else one below the other. ``shown`` says what the page shows of
    a text."""
    boxes = [max(len(shown(station.name)), len(shown(station.which))) + PADDING for station in one.stations]
    for padding in (PADDING, 0):
        gaps = [max(len(shown(stretch.text)) + padding, SHORTEST_LINK) for stretch in one.stretches]
        if sum(boxes) + 2 * len(boxes) + sum(gaps) <= width:
            return _across(one, boxes, gaps, shown)
    return _down(one, shown)


def _across(one: Way, boxes: list[int], gaps: list[int], shown: Callable[[str], str]) -> Drawn:
    lines: Drawn = [[], [], [], []]
    for index, (station, box) in enumerate(zip(one.stations, boxes, strict=True)):
        last = index == len(one.stations) - 1
        left, right = "┤" if index else "│", "│" if last else "├"
        words = (shown(station.name), shown(station.which))
        lines[0].append((f"┌{LINE * box}┐", station.tone))
        lines[1] += [("│", station.tone), (f" {words[0]}".ljust(box), "strong"), ("│", station.tone)]
        lines[2] += [(left, station.tone), (f" {words[1]}".ljust(box), "quiet"), (right, station.tone)]
        lines[3].append((f"└{LINE * box}┘", station.tone))
        if not last:
            for line, piece in zip(lines, _between(one.stretches[index], gaps[index], shown), strict=True):
                line.append(piece)
    return lines


def _between(stretch: Stretch, gap: int, shown: Callable[[str], str]) -> tuple[Piece, ...]:
    blank: Piece = (" " * gap, "plain")
    line = HIDDEN_LINE if stretch.hidden else LINE
    return blank, (shown(stretch.text).center(gap), stretch.tone), (line * gap, stretch.tone), blank


def _down(one: Way, shown: Callable[[str], str]) -> Drawn:
    lines: Drawn = []
    for index, station in enumerate(one.stations):
        if index:
            lines.append(_step(one.stretches[index - 1], shown))
        lines.append(_station(station, shown))
    return lines


def _station(station: Station, shown: Callable[[str], str]) -> list[Piece]:
    return [("• ", station.tone), (shown(station.name), "strong"), (f"  {shown(station.which)}".rstrip(), "quiet")]


def _step(stretch: Stretch, shown: Callable[[str], str]) -> list[Piece]:
    return [("┊ " if stretch.hidden else "│ ", stretch.tone), (f"  {shown(stretch.text)}".rstrip(), stretch.tone)]

"""Pictures in characters: each becomes lines of (text, tone) pieces of a given width; the terminal adds only colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from microbench.report.document import Bar, Bars, Cell, Column, Histogram, Table, Tone
from microbench.report.layout import BETWEEN, Widths
from microbench.report.marks import TRUST_MARKS, UNKNOWN_MARK

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

"""Draws bars, histograms, stacked bars and paths in characters."""

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from microbench.report.curves import LEAST
from microbench.report.document import Bar, Bars, Cell, Column, Histogram, Portion, Stacks, Table, Tone, Way
from microbench.report.terminal.layout import BETWEEN, Drawn, Piece, Widths, cell_pieces, length_of, shown

EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
HISTOGRAM_ROWS = 6
SHORTEST_BARS, SHORTEST_STACK, SHORTEST_LINK = 16, 10, 3
# Portions of a stack differ by colour and by shade, for outputs without colour.
FILLS: dict[Tone, str] = {"first": "█", "second": "▓", "third": "▒", "advice": "░", "quiet": "─"}
# A space on each side of a station's words and, if there is room, of the words over a stretch.
PADDING = 2
LINE, HIDDEN_LINE = "─", "┄"


def bars(picture: Bars, width: int) -> Drawn:
    """Labels, bars on one scale as long as the figures leave room, and the figures under their headings."""
    columns = (Column("", "left"), Column("", "left"), *picture.columns)
    table = Table("", "", columns, tuple((Cell(bar.label), Cell(""), *bar.cells) for bar in picture.bars))
    widths = Widths(table)
    shown_columns = widths.fitting(width - SHORTEST_BARS)
    room = max(width - widths.total(shown_columns), SHORTEST_BARS)
    largest = max((max(bar.value, bar.beyond or 0.0) for bar in picture.bars), default=0.0)
    lines: Drawn = [[(" " * (widths.needed[0] + BETWEEN + room), "plain")]]
    for index in shown_columns[2:]:
        title, place = shown(columns[index].title), widths.needed[index] + BETWEEN
        lines[0].append((" " * (place - cell_len(title)) + title, "quiet"))
    for bar, cells in zip(picture.bars, table.rows, strict=True):
        line: list[Piece] = [(_left(shown(bar.label), widths.needed[0] + BETWEEN), "plain")]
        line += _bar(bar, largest, room)
        for index in shown_columns[2:]:
            pieces = cell_pieces(cells[index], widths.notes[index])
            blank = " " * max(widths.needed[index] + BETWEEN - length_of(pieces), 0)
            line += [(blank, "plain"), *pieces]
        lines.append(line)
    return lines


def _bar(bar: Bar, largest: float, width: int) -> list[Piece]:
    """Solid to the value, paler beyond; a bar without a paler end can end at an eighth of a character."""
    scale = width / largest if largest > 0 else 0.0
    length = bar.value * scale
    if bar.beyond is not None:
        solid = "█" * max(round(length), 1)
        pale = "░" * max(round(bar.beyond * scale) - len(solid), 0)
        return [(solid, bar.tone), (pale, bar.tone), (" " * max(width - len(solid) - len(pale), 0), "plain")]
    whole = int(length)
    solid = "█" * whole + EIGHTHS[round((length - whole) * 8)].strip()
    return [(solid, bar.tone), (" " * max(width - len(solid), 0), "plain")]


def _left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def histogram(picture: Histogram, width: int) -> Drawn:
    """Columns of counts over a logarithmic axis, the marks below. Even a single count stays visible."""
    per_column = max(1, math.ceil(len(picture.counts) / width))
    repeat = max(1, width // max(math.ceil(len(picture.counts) / per_column), 1))
    counts = [sum(picture.counts[index : index + per_column]) for index in range(0, len(picture.counts), per_column)]
    most = max(counts) or 1
    lines: Drawn = []
    for row in range(HISTOGRAM_ROWS - 1, -1, -1):
        filled = ((count / most * HISTOGRAM_ROWS - row, count > 0 and row == 0) for count in counts)
        lines.append([("".join(_column(part, visible) * repeat for part, visible in filled), "first")])
    drawn_width = len(counts) * repeat
    lines.append([("─" * drawn_width, "quiet")])
    bin_width = math.log(picture.ratio) * per_column / repeat
    places = [
        (int(math.log(mark.at / picture.first_edge) / bin_width), shown(mark.text))
        for mark in picture.marks
        if mark.at > 0
    ]
    return lines + _labels([(min(max(at, 0), drawn_width - 1), text) for at, text in places], width)


def _column(filled: float, visible: bool) -> str:
    return "█" if filled >= 1 else HEIGHTS[max(round(max(filled, 0.0) * 8), 1 if visible else 0)]


def _labels(places: Sequence[tuple[int, str]], width: int) -> Drawn:
    """Labels below a chart, each with an arrow at its place. Labels that would overlap go on separate lines."""
    rows: list[str] = []
    for at, text in places:
        whole = f"▲ {text}"
        begin, whole = (at, whole) if at + len(whole) <= width else (max(at - len(whole) + 1, 0), f"{text} ▲")
        row = next((index for index, used in enumerate(rows) if len(used) + 2 <= begin), len(rows))
        rows[row : row + 1] = [(rows[row] if row < len(rows) else "").ljust(begin) + whole]
    return [[(row[:width], "quiet")] for row in rows]


def stacks(picture: Stacks, width: int) -> Drawn:
    """Each bar on a line, its portions named on the lines below."""
    labels = max((cell_len(shown(stack.label)) for stack in picture.stacks), default=0) + BETWEEN
    totals = max((cell_len(shown(stack.total)) for stack in picture.stacks), default=0) + BETWEEN
    room = max(width - labels - totals, SHORTEST_STACK)
    largest = max((sum(portion.value for portion in stack.portions) for stack in picture.stacks), default=0.0)
    scale = room / largest if largest > LEAST else 0.0
    lines: Drawn = []
    for stack in picture.stacks:
        if lines:
            lines.append([])
        bar: list[Piece] = []
        end, drawn = 0.0, 0
        for portion in stack.portions:  # ends are rounded, not lengths, so that the whole bar has the right length
            end += portion.value
            length = round(end * scale) - drawn
            drawn += length
            bar.append((FILLS.get(portion.tone, "█") * length, portion.tone))
        # The total follows its bar, which shows how much shorter a short bar is.
        total = f"{' ' * (BETWEEN if length_of(bar) else 0)}{shown(stack.total)}"
        lines.append([(_left(shown(stack.label), labels), "strong"), *bar, (total, "strong")])
        lines += [[(" " * labels, "plain"), *pieces] for pieces in _named(stack.portions, width - labels)]
    return lines


def _named(portions: Sequence[Portion], width: int) -> Iterable[list[Piece]]:
    """A sample, the name and the figure of each portion, on as many lines as they take."""
    line: list[Piece] = []
    for portion in portions:
        sample = FILLS.get(portion.tone, "█")
        pieces: list[Piece] = [
            (f"{sample} ", portion.tone),
            (f"{shown(portion.name)} ", "plain"),
            (f"{shown(portion.text)}  ", "quiet"),
        ]
        if line and length_of(line) + length_of(pieces) - BETWEEN > width:
            yield line
            line = []
        line += pieces
    if line:
        yield line


def way(picture: Way, width: int) -> Drawn:
    """Stations as boxes on one line if they fit into ``width``, else one below the other."""
    names = [(shown(station.name), shown(station.which)) for station in picture.stations]
    links = [shown(stretch.text) for stretch in picture.stretches]
    boxes = [max(map(cell_len, name)) + PADDING for name in names]
    for padding in (PADDING, 0):
        gaps = [max(cell_len(link) + padding, SHORTEST_LINK) for link in links]
        if sum(boxes) + 2 * len(boxes) + sum(gaps) <= width:
            return _across(picture, names, links, boxes, gaps)
    lines: Drawn = []
    for index, (station, (name, which)) in enumerate(zip(picture.stations, names, strict=True)):
        if index:
            stretch = picture.stretches[index - 1]
            line = "┊ " if stretch.hidden else "│ "
            lines.append([(line, stretch.tone), (f"  {links[index - 1]}".rstrip(), stretch.tone)])
        lines.append([("• ", station.tone), (name, "strong"), (f"  {which}".rstrip(), "quiet")])
    return lines


def _across(
    picture: Way, names: Sequence[tuple[str, str]], links: Sequence[str], boxes: Sequence[int], gaps: Sequence[int]
) -> Drawn:
    lines: Drawn = [[], [], [], []]
    for index, (station, (name, which), box) in enumerate(zip(picture.stations, names, boxes, strict=True)):
        last = index == len(picture.stations) - 1
        left, right = "┤" if index else "│", "│" if last else "├"
        lines[0].append((f"┌{LINE * box}┐", station.tone))
        lines[1] += [("│", station.tone), (_left(f" {name}", box), "strong"), ("│", station.tone)]
        lines[2] += [(left, station.tone), (_left(f" {which}", box), "quiet"), (right, station.tone)]
        lines[3].append((f"└{LINE * box}┘", station.tone))
        if not last:
            stretch, gap = picture.stretches[index], gaps[index]
            line = HIDDEN_LINE if stretch.hidden else LINE
            for row, text in enumerate((" " * gap, links[index].center(gap), line * gap, " " * gap)):
                lines[row].append((text, "plain" if row in (0, 3) else stretch.tone))
    return lines

"""A way in characters: stations as boxes on one line with what joins them between, or down the page if many."""

from __future__ import annotations

from collections.abc import Callable

from microbench.report.charts import Drawn, Piece
from microbench.report.document import Station, Stretch, Way

PADDING = 2  # a space at each side of a box's words and, where there is room, of what stands over a stretch
SHORTEST = 3
LINE, HIDDEN_LINE = "─", "┄"


def way(one: Way, width: int, *, shown: Callable[[str], str]) -> Drawn:
    """Boxes on one line where they fit into ``width``, else one below the other. ``shown`` says what the page shows of
    a text."""
    boxes = [max(len(shown(station.name)), len(shown(station.which))) + PADDING for station in one.stations]
    for padding in (PADDING, 0):
        gaps = [max(len(shown(stretch.text)) + padding, SHORTEST) for stretch in one.stretches]
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

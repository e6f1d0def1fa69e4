"""Places the names of lines: each next to its own line, away from other lines and other names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from microbench.report.figures.canvas import Point, width_of

# The height of a name, and the gap between it and its line.
HEIGHT, GAP = 15.0, 3.0
# Pixels between the positions that are tried along a line.
STEP = 8.0
# More room than this does not make a position better.
ENOUGH = 40.0
# The cost of each pixel between a name and its line, or beyond the line's end, in pixels of room.
FAR = 0.03


class Box(NamedTuple):
    """A rectangle; ``top`` is less than ``bottom``."""

    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """True if the two share a point inside both."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


class Outline:
    """The highest and the lowest point of a line within each step of the area's width."""

    def __init__(self, points: Sequence[Point], area: Box) -> None:
        xs, ys = np.array(points).T
        edges = np.arange(area.left, area.right + STEP, STEP)
        at_edges = edges[(xs[0] < edges) & (edges < xs[-1])]
        order = np.argsort(np.concatenate([xs, at_edges]), kind="stable")
        self._left, self._xs = area.left, np.concatenate([xs, at_edges])[order]
        self._ys = np.concatenate([ys, np.interp(at_edges, xs, ys)])[order]

    def between(self, left: float, right: float) -> tuple[float, float]:
        """The highest and the lowest point between two places; (inf, -inf) outside the line."""
        first, last = (math.floor((x - self._left) / STEP) for x in (left, right))
        ends = (self._left + STEP * first, self._left + STEP * (last + 1))
        ys = self._ys[np.searchsorted(self._xs, ends[0], "left") : np.searchsorted(self._xs, ends[1], "right")]
        return (float(ys.min()), float(ys.max())) if len(ys) else (math.inf, -math.inf)

    def room(self, box: Box) -> float:
        """Pixels between the line and a box above or below it, at most ENOUGH; -ENOUGH if the line crosses the box."""
        top, bottom = self.between(box.left, box.right)
        gap = max(top - box.bottom, box.top - bottom)
        return -ENOUGH if gap < 0 else min(gap, ENOUGH)


def placed(lines: Sequence[tuple[str, Sequence[Point]]], dots: Sequence[Point], area: Box) -> list[Box | None]:
    """A box for the name of each line, in the order given; None for a line without a name.

    Every position along a line is tried, above and below it. The one with the most room to the other lines and to
    names already placed wins; of equals the closest to its own line, then the one furthest right.
    """
    outlines = [Outline(points, area) for _, points in lines]
    taken: list[Box] = []
    chosen: list[Box | None] = []
    for place, ((name, points), own) in enumerate(zip(lines, outlines, strict=True)):
        if not name:
            chosen.append(None)
            continue
        named = [outlines[index] for index, (other, _) in enumerate(lines) if other and index != place]
        nameless = [outlines[index] for index, (other, _) in enumerate(lines) if not other]
        ends = points[0][0], points[-1][0]
        boxes = _boxes(own, ends[0], min(width_of(name), area.right - area.left), area)
        best = max(boxes, key=lambda box: (_worth(box, own, ends, named, nameless, dots, taken), box.left))
        taken.append(best)
        chosen.append(best)
    return chosen


def _boxes(own: Outline, begin: float, length: float, area: Box) -> Iterator[Box]:
    """Boxes along a line, above and below it; the first two at its begin, so that a short line has some too."""
    first = min(max(begin - length / 2, area.left), area.right - length)
    steps = int((area.right - area.left - length) / STEP)
    for left in (first, *(area.left + step * STEP for step in range(steps + 1)), area.right - length):
        top, bottom = own.between(left, left + length)
        for at in (top - GAP - HEIGHT, bottom + GAP) if top <= bottom else ():
            inside = min(max(at, area.top), area.bottom - HEIGHT)
            yield Box(left, left + length, inside, inside + HEIGHT)


def _worth(
    box: Box,
    own: Outline,
    ends: tuple[float, float],
    named: Sequence[Outline],
    nameless: Sequence[Outline],
    dots: Sequence[Point],
    taken: Sequence[Box],
) -> float:
    """Room to the nearest other line with a name, less the cost of what the box hides and of its distance."""
    rooms = [outline.room(box) for outline in named]
    covered = sum(box.overlaps(other) for other in taken)
    hidden = sum(box.left <= x <= box.right and box.top <= y <= box.bottom for x, y in dots)
    crossed = sum(room < 0 for room in rooms) + sum(outline.room(box) < 0 for outline in nameless)
    top, bottom = own.between(box.left, box.right)
    distance = abs(box.top + box.bottom - top - bottom) / 2
    beyond = max(ends[0] - box.left, 0.0) + max(box.right - ends[1], 0.0)
    near = min(rooms, default=ENOUGH) - abs(own.room(box))
    return near - ENOUGH * (4 * covered + hidden + crossed) - FAR * (distance + beyond)

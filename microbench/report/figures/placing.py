"""Where the names of lines stand: beside their own line, clear of the others and of each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

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

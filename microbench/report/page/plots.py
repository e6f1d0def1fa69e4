"""Pictures in percent of their own size: what lies where, so that one drawing fits a phone, a screen and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.report.document import Curve, Histogram, Lane, Line, Mark, Span, TimeLine, Tone
from microbench.report.terminal.curves import Scale

WHOLE = 100.0
# A scale of so many dots has its last one at 100.
PERCENT_DOTS = 101
# Words beyond this begin left of their place, so that they stay inside.
RIGHT_PART = 60.0
# About how much of a narrow page one letter takes: marks nearer than their words are long go below each other.
LETTER = 2.2
MOST_DOTS = 40
# A single count among thousands can still be seen.
LOWEST_COLUMN = 2.0


class Place(NamedTuple):
    """Words at ``at`` percent, on line ``line`` where several would touch; ``late``: their end is there, else their
    begin."""

    at: float
    text: str
    line: int = 0
    late: bool = False


class Stroke(NamedTuple):
    """A curve as SVG paths over 0 to 100 both ways, downwards: ``line`` joins its points, if anything does; ``points``
    are dots, where a line has not so many that they would hide it."""

    name: str
    tone: Tone
    line: str
    points: str


class Plot(NamedTuple):
    """Strokes between two axes, the words of ``marks`` on ``lines`` lines above; ``gutter`` is how many letters the
    words at the vertical axis take."""

    strokes: tuple[Stroke, ...]
    x_ticks: tuple[Place, ...]
    y_ticks: tuple[Place, ...]
    marks: tuple[Place, ...]
    lines: int
    gutter: int


class Columns(NamedTuple):
    """A histogram as one SVG path, and its marks."""

    path: str
    marks: tuple[Place, ...]
    lines: int


class Stretch(NamedTuple):
    """A span of a lane, from ``begin`` over ``width`` percent; ``instant``: it is a moment with words."""

    begin: float
    width: float
    span: Span
    instant: bool


def plot(curve: Curve) -> Plot:
    """A curve between its axes."""
    xs = [x for line in curve.lines for x, _ in line.points]
    ys = [y for line in curve.lines for _, y in line.points] + [tick.at for tick in curve.y_ticks]
    x_scale = Scale(min(xs), max(xs), PERCENT_DOTS, curve.x_log)
    y_scale = Scale(min(ys), max(ys), PERCENT_DOTS, curve.y_log)
    marks = _apart([Place(_inside(x_scale(mark.at)), mark.text) for mark in curve.marks])
    return Plot(
        tuple(_stroke(line, x_scale, y_scale) for line in curve.lines),
        _thinned(_places(curve.x_ticks, x_scale)),
        tuple(place._replace(at=WHOLE - place.at) for place in _places(curve.y_ticks, y_scale)),
        marks,
        _lines(marks),
        max((len(tick.text) for tick in curve.y_ticks), default=0),
    )


def _stroke(line: Line, x_scale: Scale, y_scale: Scale) -> Stroke:
    places = [f"{x_scale(x):.2f} {WHOLE - y_scale(y):.2f}" for x, y in line.points]
    # A path of no length has round ends: a dot that keeps its shape however the picture is stretched.
    dots = " ".join(f"M{place}h0" for place in places)
    if not line.joined:
        return Stroke(line.name, line.tone, "", dots)
    return Stroke(line.name, line.tone, f"M{' L'.join(places)}", dots if len(places) <= MOST_DOTS else "")


def _places(ticks: Sequence[Mark], scale: Scale) -> tuple[Place, ...]:
    found = (Place(scale(tick.at), tick.text) for tick in ticks)
    return tuple(place for place in found if -0.5 <= place.at <= WHOLE + 0.5)


def _thinned(places: Sequence[Place]) -> tuple[Place, ...]:
    """Those whose words, set around their places, touch no other's: the last one, and of the rest what has room."""
    kept = list(places[-1:])
    for place in places[:-1]:
        reach = len(place.text) * LETTER / 2
        if all(abs(other.at - place.at) > reach + len(other.text) * LETTER / 2 for other in kept):
            kept.append(place)
    return tuple(kept)


def columns(histogram: Histogram) -> Columns:
    """A histogram's columns over its logarithmic axis."""
    width = WHOLE / max(len(histogram.counts), 1)
    most = max(histogram.counts, default=0) or 1
    path = "".join(
        f"M{index * width:.2f} 100V{WHOLE - max(count / most * WHOLE, LOWEST_COLUMN):.2f}h{width:.2f}V100Z"
        for index, count in enumerate(histogram.counts)
        if count
    )
    step = math.log(histogram.ratio)
    marks = _apart(
        [
            Place(_inside(math.log(mark.at / histogram.first_edge) / step * width), mark.text)
            for mark in histogram.marks
            if mark.at > 0
        ]
    )
    return Columns(path, marks, _lines(marks))


def _lines(places: Sequence[Place]) -> int:
    """How many lines their words take."""
    return max((place.line + 1 for place in places), default=0)


def _inside(at: float) -> float:
    return min(max(at, 0.0), WHOLE)


def _apart(places: Sequence[Place]) -> tuple[Place, ...]:
    """Each place on the first line where its words touch no other's."""
    lines: list[list[tuple[float, float]]] = []
    found = []
    for place in sorted(places):
        late = place.at > RIGHT_PART
        length = len(place.text) * LETTER
        begin, end = (place.at - length, place.at) if late else (place.at, place.at + length)
        free = (index for index, taken in enumerate(lines) if all(end < left or begin > right for left, right in taken))
        line = next(free, len(lines))
        if line == len(lines):
            lines.append([])
        lines[line].append((begin, end))
        found.append(Place(place.at, place.text, line, late))
    return tuple(found)


def time_axis(line: TimeLine) -> tuple[Place, ...]:
    """A time line's ticks."""
    return _places(line.ticks, Scale(0.0, line.end_s, PERCENT_DOTS, log=False))


def stretches(lane: Lane, end_s: float) -> tuple[Stretch, ...]:
    """A lane's spans."""
    scale = Scale(0.0, end_s, PERCENT_DOTS, log=False)
    return tuple(
        Stretch(
            scale(span.begin_s),
            max(scale(span.end_s) - scale(span.begin_s), 0.0),
            span,
            span.begin_s == span.end_s and bool(span.text),
        )
        for span in lane.spans
    )

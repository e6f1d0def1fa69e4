"""Curves of one run or of several as one: of one run each line has its colour, of several each run has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from microbench.report.document import Curve, Line, Mark, Tone
from microbench.report.figures.curve_view import Kind, Series
from microbench.report.figures.figure import Source

TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
# Ticks are shown up to so many times the highest value.
BEYOND = 1.15
Found = Sequence[tuple[Source, Curve]]


class Overlay(NamedTuple):
    """Axes for all, what is drawn over them, and the series with a colour, in order."""

    curve: Curve
    series: list[Series]
    colours: list[str]


def overlaid(found: Found, kind_of: Callable[[Line], Kind], main: Callable[[Line], bool]) -> Overlay:
    """One curve of one or of several. ``kind_of`` says how a line is drawn; of several runs only ``main`` lines are."""
    found = [(source, _drawable(curve)) for source, curve in found]
    if len(found) == 1:
        curve = found[0][1]
        series = [_alone(line, kind_of(line)) for line in curve.lines]
        coloured = sorted((one for one in series if one.colour), key=lambda one: _place_of(one.line.tone))
        return Overlay(curve, series, list(dict.fromkeys(one.colour for one in coloured)))
    kept = [(source, line) for source, curve in found for line in filter(main, curve.lines)]
    kept = kept or [(source, line) for source, curve in found for line in curve.lines]
    names = list(dict.fromkeys(line.name for _, line in kept if kind_of(line) != "limit"))
    series = [_of_several(source, line, kind_of(line), names) for source, line in kept]
    drawn = [*_limits([one for one in series if one.kind == "limit"]), *(one for one in series if one.kind != "limit")]
    return Overlay(_axes([curve for _, curve in found], drawn), drawn, [source.label for source, _ in found])


def _drawable(curve: Curve) -> Curve:
    return msgspec.structs.replace(curve, lines=tuple(line for line in curve.lines if line.points))


def _limits(found: Sequence[Series]) -> list[Series]:
    """Each limit once: one that runs share has no run's colour."""
    by_name: dict[str, list[Series]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    return [
        max(alike, key=lambda one: one.line.points[-1][0])._replace(colour=alike[0].colour if len(alike) == 1 else "")
        for alike in by_name.values()
    ]


def _place_of(tone: Tone) -> int:
    """The place of a tone's colour in the theme's."""
    return TONES.index(tone) if tone in TONES else len(TONES)


def _alone(line: Line, kind: Kind) -> Series:
    quiet = kind == "limit" or line.tone == "quiet"
    return Series(line, kind, "" if quiet else line.name, "" if kind == "points" else line.name)


def _of_several(source: Source, line: Line, kind: Kind, names: Sequence[str]) -> Series:
    own = msgspec.structs.replace(line, name=", ".join(filter(None, (source.label, line.name))))
    if kind == "limit":
        return Series(own, kind, source.label, line.name)
    return Series(own, kind, source.label, line.name if len(names) > 1 and kind != "points" else "",
                  names.index(line.name))  # fmt: skip


def _axes(curves: Sequence[Curve], drawn: Sequence[Series]) -> Curve:
    """Axes with the ticks of all that lie beside what is drawn, marks of none."""
    first = curves[0]
    highest = max(y for one in drawn for _, y in one.line.points) * BEYOND
    y_ticks = _ticks([curve.y_ticks for curve in curves], log=first.y_log)
    return msgspec.structs.replace(
        first,
        x_ticks=_ticks([curve.x_ticks for curve in curves], log=first.x_log),
        y_ticks=tuple(tick for tick in y_ticks if tick.at <= highest),
        marks=(),
    )


def _ticks(several: Sequence[tuple[Mark, ...]], *, log: bool) -> tuple[Mark, ...]:
    """All of them on a logarithmic axis; on an even one those of the curve that reaches furthest."""
    if not log:
        return max(several, key=lambda ticks: max((tick.at for tick in ticks), default=0.0))
    every = {tick.at: tick for ticks in several for tick in ticks}
    return tuple(every[at] for at in sorted(every))

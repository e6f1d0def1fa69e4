"""What a report consists of: frozen structs of words and numbers, with nothing left to compute but the layout."""

from __future__ import annotations

from typing import Literal

import msgspec

from microbench.analysis.evidence import Finding, Severity

Tone = Literal[
    "plain", "strong", "quiet", "good", "note", "advice", "warning", "problem", "first", "second", "third", "fourth",
    "on_first", "on_second", "on_third",
]  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """A figure or word; ``note`` follows it quietly (its spread), ``trust`` is its grade where it is a figure. ``of``
    names the measured row that it shows, as findings do ("case-id metric"): a page can tell more of it."""

    text: str
    note: str = ""
    tone: Tone = "plain"
    trust: str | None = None
    of: str = ""


class Column(msgspec.Struct, frozen=True):
    """A column; where the page is narrow the columns with the highest ``drop`` go first, 0 stays."""

    title: str
    align: Literal["left", "right"] = "right"
    drop: int = 0


class Table(msgspec.Struct, frozen=True, tag=True):
    """Rows of as many cells as there are columns; ``notes`` are lines below it."""

    title: str
    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


class Bar(msgspec.Struct, frozen=True):
    """A horizontal bar to ``value`` and, paler, on to ``beyond``; ``cells`` stand to its right."""

    label: str
    value: float
    beyond: float | None
    cells: tuple[Cell, ...]
    tone: Tone = "first"


class Bars(msgspec.Struct, frozen=True, tag=True):
    """Bars on one linear scale from 0."""

    title: str
    about: str
    columns: tuple[Column, ...]
    bars: tuple[Bar, ...]
    notes: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """A place on an axis and what is written there."""

    at: float
    text: str


class Line(msgspec.Struct, frozen=True):
    """Points of one curve, ascending in x; ``joined`` draws straight lines between them, else each stands alone."""

    name: str
    points: tuple[tuple[float, float], ...]
    tone: Tone = "first"
    joined: bool = True


class Curve(msgspec.Struct, frozen=True, tag=True):
    """Lines over one axis. ``x_log`` and ``y_log`` say which scales are logarithmic; ``marks`` are vertical lines."""

    title: str
    about: str
    x_title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    x_log: bool = True
    y_log: bool = True
    marks: tuple[Mark, ...] = ()


class Histogram(msgspec.Struct, frozen=True, tag=True):
    """Counts in logarithmic bins: bin i covers ``first_edge * ratio**i`` to the next. ``marks`` are quantiles."""

    title: str
    about: str
    first_edge: float
    ratio: float
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]


class Span(msgspec.Struct, frozen=True):
    """A stretch of time on a lane.

    ``solid`` is work, ``shaded`` partly work, ``pale`` waiting, ``idle`` nothing at all, ``distance`` a measure,
    ``level`` a count as a share of the lane's highest.
    """

    begin_s: float
    end_s: float
    text: str
    tone: Tone = "first"
    kind: Literal["solid", "shaded", "pale", "idle", "distance", "level"] = "solid"
    level: float = 1.0


class Lane(msgspec.Struct, frozen=True):
    """One line of a time line."""

    name: str
    spans: tuple[Span, ...]


class TimeLine(msgspec.Struct, frozen=True, tag=True):
    """What happens when, to scale, on several lanes."""

    title: str
    about: str
    end_s: float
    ticks: tuple[Mark, ...]
    lanes: tuple[Lane, ...]


class Portion(msgspec.Struct, frozen=True):
    """A part of a stacked bar: what it is, how long it is, and its figure."""

    name: str
    value: float
    text: str
    tone: Tone = "first"


class Stack(msgspec.Struct, frozen=True):
    """A bar made of portions, one behind the other; ``total`` stands at its end."""

    label: str
    portions: tuple[Portion, ...]
    total: str


class Stacks(msgspec.Struct, frozen=True, tag=True):
    """Stacked bars on one linear scale from 0, each with its portions named below it."""

    title: str
    about: str
    stacks: tuple[Stack, ...]


class Station(msgspec.Struct, frozen=True):
    """One thing on a way: what it is, and quietly below which one."""

    name: str
    which: str
    tone: Tone = "plain"


class Stretch(msgspec.Struct, frozen=True):
    """What joins two neighbours on a way; ``hidden`` where it cannot be seen."""

    text: str
    tone: Tone = "plain"
    hidden: bool = False


class Way(msgspec.Struct, frozen=True, tag=True):
    """Stations from one end to the other, with one stretch fewer between them."""

    title: str
    about: str
    stations: tuple[Station, ...]
    stretches: tuple[Stretch, ...]


class Phrase(msgspec.Struct, frozen=True):
    """Words within a paragraph; a ``whole`` one, a figure with its unit, is not broken where it fits a line."""

    text: str
    tone: Tone = "plain"
    whole: bool = False


class Prose(msgspec.Struct, frozen=True, tag=True):
    """Paragraphs of running text."""

    title: str
    about: str
    paragraphs: tuple[tuple[Phrase, ...], ...]


# Tagged, so that a report that was kept can be read again.
Picture = Bars | Curve | Histogram | Prose | Stacks | Table | TimeLine | Way


class Study(msgspec.Struct, frozen=True):
    """One benchmark in figures: its tables and, over its first numeric axis, its curve."""

    benchmark: str
    tables: tuple[Table, ...]
    curve: Curve | None = None


class Section(msgspec.Struct, frozen=True):
    """One suite on one GPU (``device`` is its UUID): pictures first, then the figures, then what they mean. ``verdict``
    is the finding whose title stands above all of it, where the suite comes down to one."""

    suite: str
    title: str
    pictures: tuple[Picture, ...]
    studies: tuple[Study, ...]
    findings: tuple[Finding, ...]
    verdict: Finding | None = None
    device: str | None = None


class Banner(msgspec.Struct, frozen=True):
    """What a reader must know before any figure, and what to do about it."""

    word: str
    text: str
    next_step: str = ""
    tone: Tone = "warning"


class Report(msgspec.Struct, frozen=True):
    """A run, told. ``mark`` (SIMULATED, REFERENCE or nothing) is repeated at every table and picture."""

    title: str
    mark: str
    banners: tuple[Banner, ...]
    facts: tuple[tuple[str, str], ...]
    environment: tuple[Finding, ...]
    sections: tuple[Section, ...]
    problems: Table | None
    grades: tuple[str, ...]
    footer: tuple[str, ...]


# The marks that stand for grades and severities, and the colours that stand for tones.


TRUST_MARKS: dict[str, tuple[str, Tone]] = {
    "stable": ("●", "good"),
    "steady": ("◐", "note"),
    "noisy": ("○", "advice"),
    "throttled": ("▼", "problem"),
    "single": ("◌", "advice"),
    "below floor": ("◇", "advice"),
    "unverified": ("?", "problem"),
}
UNKNOWN_MARK: tuple[str, Tone] = ("?", "problem")
SEVERITY_MARKS: dict[Severity, str] = {"good": "✓", "note": "•", "advice": "→", "warning": "▲", "problem": "✗"}
# In the terminal's own palette, so that a light and a dark one both read well.
STYLES: dict[Tone, str] = {
    "plain": "", "strong": "bold", "quiet": "dim", "good": "green", "note": "cyan", "advice": "yellow",
    "warning": "bold yellow", "problem": "bold red", "first": "cyan", "second": "green", "third": "magenta",
    "fourth": "red", "on_first": "reverse cyan", "on_second": "reverse green",
    "on_third": "reverse magenta",
}  # fmt: skip

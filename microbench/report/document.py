"""Defines a report: structs of words and numbers that the terminal, page, figures and Markdown lay out."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from microbench.analysis.clocks import CLOCK_LOSS
from microbench.analysis.evidence import Finding, Severity
from microbench.analysis.quantiles import LEAST_DISTANCE
from microbench.analysis.stats import (
    FLOORS_PER_SAMPLE,
    MINIMUM_SAMPLES,
    STABLE_HALF_WIDTH,
    STABLE_ROUNDS,
    STEADY_HALF_WIDTH,
)
from microbench.core.units import round_percent

Tone = Literal[
    "plain", "strong", "quiet", "good", "note", "advice", "warning", "problem", "first", "second", "third", "fourth",
    "fifth", "sixth", "seventh", "eighth", "on_first", "on_second", "on_third",
]  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """A figure or words in a table.

    ``note`` follows the text in a quiet tone (the spread of a figure). ``trust`` is the figure's grade. ``of`` names
    the measured row behind the figure, as findings do ("case-id metric"), so that the page can show its details.
    """

    text: str
    note: str = ""
    tone: Tone = "plain"
    trust: str | None = None
    of: str = ""


class Column(msgspec.Struct, frozen=True):
    """A column of a table. A narrow page drops the columns with the highest ``drop`` first; 0 always stays."""

    title: str
    align: Literal["left", "right"] = "right"
    drop: int = 0


def columns(*titles: str, left: int = 1, drop: Mapping[str, int] | None = None) -> tuple[Column, ...]:
    """Columns with these titles, the first ``left`` of them aligned left; ``drop`` by title."""
    drops = drop or {}
    return tuple(
        Column(title, "left" if at < left else "right", drops.get(title, 0)) for at, title in enumerate(titles)
    )


class Table(msgspec.Struct, frozen=True, tag=True):
    """Rows with one cell for each column; ``notes`` are lines below the table."""

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


class Titled(msgspec.Struct, frozen=True, tag=True):
    """A picture with its title and a line about it."""

    title: str
    about: str


class Bars(Titled, frozen=True):
    """Bars on one linear scale from 0."""

    columns: tuple[Column, ...]
    bars: tuple[Bar, ...]
    notes: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True):
    """A place on an axis with its text."""

    at: float
    text: str


class Line(msgspec.Struct, frozen=True):
    """One line of a curve, its points ascending in x.

    ``measured`` points are joined and drawn as dots, ``computed`` ones are joined without dots, a ``limit`` is dashed,
    and ``points`` stand alone.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    tone: Tone = "first"
    kind: Literal["measured", "computed", "limit", "points"] = "measured"


class Curve(Titled, frozen=True):
    """Lines over one axis. ``x_log`` and ``y_log`` say which scales are logarithmic; ``marks`` are vertical lines."""

    x_title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    x_log: bool = True
    y_log: bool = True
    marks: tuple[Mark, ...] = ()


class Histogram(Titled, frozen=True):
    """Counts in logarithmic bins: bin i covers ``first_edge * ratio**i`` up to the next. ``marks`` are quantiles."""

    first_edge: float
    ratio: float
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]


class Span(msgspec.Struct, frozen=True):
    """A stretch of time on a lane; without length it is a moment with its text.

    ``solid`` is work, ``shaded`` partly work, ``pale`` waiting, ``idle`` no work, ``distance`` a measured length and
    ``level`` a count, drawn as high as its share of the lane's highest one.
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


class TimeLine(Titled, frozen=True):
    """Spans of time on several lanes, to scale."""

    end_s: float
    ticks: tuple[Mark, ...]
    lanes: tuple[Lane, ...]


class Tile(msgspec.Struct, frozen=True):
    """One cell of a map; its text shows when a pointer rests on it."""

    text: str
    tone: Tone


class TileRow(msgspec.Struct, frozen=True):
    """The cells of a map that belong together, behind their name."""

    name: str
    tiles: tuple[Tile, ...]


class Tiles(Titled, frozen=True):
    """A map of many things, a cell each. ``legend`` says what each tone means. Only the page draws it."""

    rows: tuple[TileRow, ...]
    legend: tuple[tuple[Tone, str], ...]


class Portion(msgspec.Struct, frozen=True):
    """A part of a stacked bar: name, length and figure."""

    name: str
    value: float
    text: str
    tone: Tone = "first"


class Stack(msgspec.Struct, frozen=True):
    """A bar of portions, one behind the other, with ``total`` at its end."""

    label: str
    portions: tuple[Portion, ...]
    total: str


class Stacks(Titled, frozen=True):
    """Stacked bars on one linear scale from 0; the portions of each are named below it."""

    stacks: tuple[Stack, ...]


class Station(msgspec.Struct, frozen=True):
    """A device on a path: what it is, and ``which`` one of its kind."""

    name: str
    which: str
    tone: Tone = "plain"


class Stretch(msgspec.Struct, frozen=True):
    """The connection between two neighbours on a path; ``hidden`` if the system does not show it."""

    text: str
    tone: Tone = "plain"
    hidden: bool = False


class Way(Titled, frozen=True):
    """A path through devices: the stations in order, and one stretch between each two."""

    stations: tuple[Station, ...]
    stretches: tuple[Stretch, ...]


class Phrase(msgspec.Struct, frozen=True):
    """Words of a paragraph; a ``whole`` phrase, such as a figure with its unit, is not broken if it fits on a line."""

    text: str
    tone: Tone = "plain"
    whole: bool = False


class Prose(Titled, frozen=True):
    """Paragraphs of running text."""

    paragraphs: tuple[tuple[Phrase, ...], ...]


# Tagged, so that a stored report can be decoded.
Picture = Bars | Curve | Histogram | Prose | Stacks | Table | TimeLine | Way


class Study(msgspec.Struct, frozen=True):
    """One benchmark: its tables and, over its first numeric axis, its curve."""

    benchmark: str
    tables: tuple[Table, ...]
    curve: Curve | None = None


class Section(msgspec.Struct, frozen=True):
    """One suite on one GPU (``device`` is its UUID): pictures first, then tables, then findings.

    ``verdict`` is the finding that sums up the suite; its title comes first.
    """

    suite: str
    title: str
    pictures: tuple[Picture, ...]
    studies: tuple[Study, ...]
    findings: tuple[Finding, ...]
    verdict: Finding | None = None
    device: str | None = None


class Banner(msgspec.Struct, frozen=True):
    """A warning that comes before any figure, with the next step."""

    word: str
    text: str
    next_step: str = ""
    tone: Tone = "warning"


class Report(msgspec.Struct, frozen=True):
    """The report of a command about a run. Every table and picture repeats ``mark`` (SIMULATED, REFERENCE or "");
    ``environment`` are the findings about the machine's state."""

    title: str
    mark: str
    banners: tuple[Banner, ...]
    facts: tuple[tuple[str, str], ...]
    environment: tuple[Finding, ...] = ()
    sections: tuple[Section, ...] = ()
    problems: Table | None = None
    grades: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()


class AnswerLine(msgspec.Struct, frozen=True):
    """One question's figures on the screen; ``trust`` is the grade of most of them, ``verdict`` how they are judged."""

    name: str
    parts: tuple[Cell, ...]
    trust: str = ""
    verdict: Severity | None = None


def answer_line(name: str, *words: str, verdict: Severity | None = None) -> AnswerLine:
    """A line of words without grades."""
    return AnswerLine(name, tuple(map(Cell, words)), verdict=verdict)


class Block(msgspec.Struct, frozen=True):
    """The lines of one GPU, below its name and what it is connected by."""

    name: str
    about: tuple[str, ...]
    lines: tuple[AnswerLine, ...]


class Screen(msgspec.Struct, frozen=True):
    """What one screen shows of a run. ``tables`` are those of named benchmarks. ``left_out`` says what the time budget
    left out, "" if nothing. ``footer`` says what to type next."""

    mark: str = ""
    run: str = ""
    banners: tuple[Banner, ...] = ()
    blocks: tuple[Block, ...] = ()
    tables: tuple[Table, ...] = ()
    findings: tuple[Finding, ...] = ()
    distorting: tuple[Finding, ...] = ()
    left_out: str = ""
    footer: str = ""


TRUST_MARKS: dict[str, tuple[str, Tone]] = {
    "stable": ("●", "good"),
    "steady": ("◐", "note"),
    "noisy": ("○", "advice"),
    "throttled": ("▼", "problem"),
    "single": ("◌", "advice"),
    "below floor": ("◇", "advice"),
    "unverified": ("?", "problem"),
}
# Follows the spread of a figure from one process if nobody knows how far other processes lie from it.
WITHIN = "*"
SPREAD = "half the 95 % interval of the median"
SPREAD_WITHIN = f"with {WITHIN} within this process only"
GRADES = {
    "stable": f"{STABLE_ROUNDS} or more fresh processes agree within ±{round_percent(STABLE_HALF_WIDTH)}, at one level",
    "steady": f"one process agrees with itself within ±{round_percent(STEADY_HALF_WIDTH)}",
    "noisy": (
        f"wider than ±{round_percent(STEADY_HALF_WIDTH)} in one process or ±{round_percent(STABLE_HALF_WIDTH)} over "
        f"several, with a process farther off than that, or at two levels over {round_percent(LEAST_DISTANCE)} apart"
    ),
    "throttled": f"the SM clock fell by more than {round_percent(CLOCK_LOSS)} meanwhile",
    "single": f"fewer than {MINIMUM_SAMPLES} samples",
    "below floor": f"shorter than {FLOORS_PER_SAMPLE} readings of its clock",
    "unverified": "its result was not checked",
}
SEVERITY_MARKS: dict[Severity, str] = {"good": "✓", "note": "•", "advice": "→", "warning": "▲", "problem": "✗"}
# The tones of series, in order.
SERIES_TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
SUITE_TITLES = {
    "host": "host: what the CPU side costs",
    "launch": "launch: what it costs to submit a kernel",
    "graph": "graph: what CUDA Graphs gain",
    "link": "link: is it as fast as it should be",
    "memory": "memory: what each level gives, near which limit",
    "compute": "compute: what the units really do, and why it is not the data sheet",
    "own": "own: your functions and kernels, and what limits them",
}

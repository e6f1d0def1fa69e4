"""What a topic is: a text whose every number is a figure of a run, and how it is told with those that a run has."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from microbench.analysis.evidence import Evidence, listed, rests_on
from microbench.analysis.stats import Row
from microbench.core.units import quantity

# The figures that a topic's text may name: from which rows each is made, and which benchmark gives a missing one.


Kind = Literal["measured", "computed", "parameter", "reported"]
Shown = Callable[[float], str]


class Figure(msgspec.Struct, frozen=True):
    """A number as a text names it.

    ``kind``: the value of one row (then ``row`` is that), computed from rows, a parameter of rows, or what the machine
    reports of itself. ``what`` it is in words, ``origin`` where it comes from: benchmark and metric, or how it was
    computed. ``value`` is in its SI unit. ``rests_on`` lists rows as "case-id metric", and facts by their names.
    """

    slot: str
    text: str
    what: str
    value: float
    kind: Kind
    origin: str
    rests_on: tuple[str, ...]
    row: Row | None = None


Figures = Mapping[str, Figure]


class Gathering:
    """Figures by slot, and for each that a run lacks the benchmark that measures it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.figures: dict[str, Figure] = {}
        self.lacking: dict[str, str] = {}

    def measured(self, slot: str, what: str, benchmark: str, metric: str, /, **params: int | str) -> None:
        """The row of a benchmark, metric and parameters."""
        self.row(slot, what, self.evidence.row(benchmark, metric, **params), benchmark)

    def row(self, slot: str, what: str, row: Row | None, benchmark: str) -> None:
        """A row that was looked for; ``benchmark`` gives it where there is none."""
        if row is None or not row.value > 0:
            self.lacking[slot] = benchmark
            return
        text = quantity(row.value, row.metric.unit)
        origin = f"{row.benchmark} {row.metric.name}"
        self.figures[slot] = Figure(slot, text, what, row.value, "measured", origin, rests_on(row), row)

    def computed(
        self, slot: str, what: str, how: str, shown: Shown, compute: Callable[..., float | None], *inputs: str
    ) -> None:
        """What ``compute`` makes of other slots' values, left out where it makes nothing of them."""
        unknown = [name for name in inputs if name not in self.figures]
        if unknown:
            self._lacks(slot, unknown)
            return
        used = [self.figures[name] for name in inputs]
        value = compute(*(figure.value for figure in used))
        if value is not None and math.isfinite(value):
            rests = tuple(dict.fromkeys(row for figure in used for row in figure.rests_on))
            self.figures[slot] = Figure(slot, shown(value), what, value, "computed", how, rests)

    def fitted(
        self, slot: str, what: str, how: str, shown: Shown, value: float | None, found: Sequence[Row], benchmark: str
    ) -> None:
        """A number that takes many rows."""
        if value is None or not math.isfinite(value):
            self.lacking[slot] = benchmark
            return
        self.figures[slot] = Figure(slot, shown(value), what, value, "computed", how, rests_on(*found))

    def parameter(self, slot: str, what: str, value: float | None, shown: Shown, benchmark: str, name: str) -> None:
        """A parameter of rows that a benchmark gives; ``value`` is None where there are none."""
        if value is None:
            self.lacking[slot] = benchmark
            return
        origin = f"{benchmark} {name}"
        self.figures[slot] = Figure(slot, shown(value), what, value, "parameter", origin, (origin,))

    def reported(
        self, slot: str, what: str, value: float | None, shown: Shown, *names: str, benchmark: str = ""
    ) -> None:
        """What the machine says of itself, by these facts; ``benchmark`` asks for it where it is unknown."""
        if value is not None:
            self.figures[slot] = Figure(slot, shown(value), what, value, "reported", ", ".join(names), names)
        elif benchmark:
            self.lacking[slot] = benchmark

    def _lacks(self, slot: str, unknown: Sequence[str]) -> None:
        benchmark = next((self.lacking[name] for name in unknown if name in self.lacking), None)
        if benchmark is not None:
            self.lacking[slot] = benchmark


def in_unit(unit: str) -> Shown:
    """A value of that unit as people read it."""
    return partial(quantity, unit=unit)


def count(value: float) -> str:
    """A count."""
    return f"{value:.0f}"


def word(text: str) -> Shown:
    """A value that is a word and no number."""
    return lambda _: text


def counted(one: str, many: str) -> Shown:
    """A count with its noun: "1 replay", "4 replays"."""
    return lambda value: f"{value:.0f} {one if value == 1 else many}"


def difference(value: float, other: float) -> float:
    """value − other."""
    return value - other


def ratio(value: float, other: float) -> float | None:
    """value / other."""
    return value / other if other else None


def product(value: float, other: float) -> float:
    """value × other."""
    return value * other


def total(*values: float) -> float:
    """Their sum."""
    return sum(values)


ITEMS = "items"
# The command that goes on from what submission costs.
PREDICT = ("microbench predict --help", "what a step of your own takes")

Condition = Callable[[Figures], bool]
# Words as they are, and figures between them.
Piece = str | Figure
Pieces = tuple[Piece, ...]


def always(figures: Figures) -> bool:
    """No condition."""
    return True


class Passage(msgspec.Struct, frozen=True):
    """Some sentences as a template: ``{slot}`` stands for a figure, and no other number stands in it.

    It is told where all its slots are known and ``when`` holds. Of ``items``, templates themselves, those with known
    slots are listed where ``{items}`` stands; one of them at least must be.
    """

    template: str
    when: Condition = always
    items: tuple[str, ...] = ()

    def told(self, figures: Figures) -> Pieces | None:
        """Its words and figures; None where it cannot be told, or is not to be."""
        known = [item for item in self.items if _all_known(item, figures)]
        if not _all_known(self.template, figures) or (self.items and not known) or not self.when(figures):
            return None
        return _filled(self.template.replace(f"{{{ITEMS}}}", listed(known)), figures)

    def unknown(self, figures: Figures) -> list[str]:
        """The slots that keep it from being told."""
        own = [slot for slot in slots(self.template) if slot not in figures and slot != ITEMS]
        if self.items and not any(_all_known(item, figures) for item in self.items):
            own += [slot for item in self.items for slot in slots(item) if slot not in figures]
        return own


class Topic(msgspec.Struct, frozen=True):
    """A text about one question, with the figures of whatever run it is told from.

    ``about`` is its line in the list, ``suites`` measure its figures. ``figures`` gathers them; ``needs`` are the slots
    that a run must fill to be chosen for it. Of ``headline`` the first that can be told stands above the text.
    ``related``: topics to go on with; ``commands``: others, each with what it does.
    """

    name: str
    title: str
    about: str
    suites: tuple[str, ...]
    figures: Callable[[Evidence], Gathering]
    needs: tuple[str, ...]
    headline: tuple[Passage, ...]
    paragraphs: tuple[tuple[Passage, ...], ...]
    related: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()


class Told(msgspec.Struct, frozen=True):
    """A topic with the figures of one GPU. ``used`` are those that the words name, in their order, by slot; ``lacking``
    the benchmarks whose figures would say more."""

    topic: Topic
    headline: Pieces
    paragraphs: tuple[Pieces, ...]
    used: Mapping[str, Figure]
    lacking: tuple[str, ...]


def tell(topic: Topic, evidence: Evidence) -> Told:
    """The topic as this run knows it. Whatever is missing, something is told."""
    found = topic.figures(evidence)
    figures = found.figures
    headline = next((words for one in topic.headline if (words := one.told(figures)) is not None), ())
    paragraphs = tuple(words for one in topic.paragraphs if (words := _paragraph(one, figures)))
    named = {piece.slot: piece for words in (headline, *paragraphs) for piece in words if isinstance(piece, Figure)}
    unknown = (slot for one in topic.paragraphs for passage in one for slot in passage.unknown(figures))
    lacking = dict.fromkeys(found.lacking[slot] for slot in unknown if slot in found.lacking)
    return Told(topic, headline, paragraphs, named, tuple(lacking))


def slots(template: str) -> list[str]:
    """The slots of a template, in order."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def plain_words(pieces: Iterable[Piece]) -> str:
    """A told text as one string."""
    return "".join(piece.text if isinstance(piece, Figure) else piece for piece in pieces)


def _all_known(template: str, figures: Figures) -> bool:
    return all(slot in figures or slot == ITEMS for slot in slots(template))


def _filled(template: str, figures: Figures) -> Pieces:
    found: list[Piece] = []
    for words, slot, _, _ in string.Formatter().parse(template):
        found += [words] if words else []
        found += [figures[slot]] if slot else []
    return tuple(found)


def _paragraph(passages: Sequence[Passage], figures: Figures) -> Pieces:
    """What can be told of a paragraph, a space between its passages."""
    found: list[Piece] = []
    for passage in passages:
        if words := passage.told(figures):
            found += [" ", *words] if found else words
    return tuple(found)


# -- conditions: false where a figure is unknown ----------------------------------------------------------------------


def over(slot: str, other: str | float, factor: float = 1.0) -> Condition:
    """Whether a figure is more than ``factor`` times another one, or a number."""
    return _compared(slot, other, lambda value, limit: value > factor * limit)


def up_to(slot: str, other: str | float, factor: float = 1.0) -> Condition:
    """Whether a figure is at most ``factor`` times another one, or a number."""
    return _compared(slot, other, lambda value, limit: value <= factor * limit)


def without(slot: str) -> Condition:
    """Whether a figure is unknown."""
    return lambda figures: slot not in figures


def unless(condition: Condition) -> Condition:
    """Whether another one does not hold, or is unknown."""
    return lambda figures: not condition(figures)


def both(*conditions: Condition) -> Condition:
    """Whether all of them hold."""
    return lambda figures: all(condition(figures) for condition in conditions)


def _compared(slot: str, other: str | float, holds: Callable[[float, float], bool]) -> Condition:
    def condition(figures: Figures) -> bool:
        if slot not in figures or (isinstance(other, str) and other not in figures):
            return False
        limit = figures[other].value if isinstance(other, str) else other
        return holds(figures[slot].value, limit)

    return condition

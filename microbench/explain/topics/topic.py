"""What a topic is: a text whose every number is a figure of a run, filled in with the figures that the run has."""

import math
import string
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal

import msgspec

from microbench.analysis.evidence import Evidence, listed, rests_on
from microbench.analysis.stats import Row
from microbench.core.units import as_time, quantity
from microbench.model.constants import Constant

Kind = Literal["measured", "computed", "parameter", "reported"]
Shown = Callable[[float], str]


class Figure(msgspec.Struct, frozen=True):
    """A number as a text names it.

    ``kind``: the value of one ``row``, computed from rows, a parameter of rows, or reported by the machine. ``what`` it
    is in words, ``origin`` where it comes from: benchmark and metric, or how it was computed. ``value`` is in its SI
    unit. ``rests_on`` lists rows as "case-id metric", and facts by their names.
    """

    slot: str
    text: str
    what: str
    value: float
    kind: Kind
    origin: str
    rests_on: tuple[str, ...]
    row: Row | None = None


class TopicFigures:
    """The figures of one GPU by slot; ``lacking`` names the benchmark that measures a missing one."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.figures: dict[str, Figure] = {}
        self.lacking: dict[str, str] = {}

    def value(self, slot: str) -> float:
        """A figure's value; NaN for an unknown one, so that every comparison with it is false."""
        return self.figures[slot].value if slot in self.figures else math.nan

    def row(self, slot: str, what: str, row: Row | None, benchmark: str) -> None:
        """Adds the value of a row; without a row, ``benchmark`` is the one that would measure it."""
        if row is None or not row.value > 0:
            self.lacking[slot] = benchmark
            return
        text = quantity(row.value, row.metric.unit)
        origin = f"{row.benchmark} {row.metric.name}"
        self.figures[slot] = Figure(slot, text, what, row.value, "measured", origin, rests_on(row), row)

    def measured(self, slot: str, what: str, benchmark: str, metric: str, /, **params: int | str) -> None:
        """Adds the row of a benchmark, metric and parameters."""
        self.row(slot, what, self.evidence.row(benchmark, metric, **params), benchmark)

    def computed(
        self, slot: str, what: str, how: str, shown: Shown, compute: Callable[..., float | None], *inputs: str
    ) -> None:
        """Adds what ``compute`` returns for the values of other slots; nothing for None."""
        if any(name not in self.figures for name in inputs):
            if benchmark := next((self.lacking[name] for name in inputs if name in self.lacking), None):
                self.lacking[slot] = benchmark
            return
        used = [self.figures[name] for name in inputs]
        rests = tuple(dict.fromkeys(row for figure in used for row in figure.rests_on))
        self._add(slot, what, compute(*(figure.value for figure in used)), shown, "computed", how, rests, "")

    def fitted(
        self, slot: str, what: str, how: str, shown: Shown, value: float | None, rests: tuple[str, ...], benchmark: str
    ) -> None:
        """Adds a number that was computed from many rows."""
        self._add(slot, what, value, shown, "computed", how, rests, benchmark)

    def constant(self, slot: str, what: str, constant: Constant | None, benchmark: str) -> None:
        """Adds a time as it was fitted; ``benchmark`` measures it."""
        rests = constant.rests_on if constant is not None else ()
        how = f"fitted to {', '.join(dict.fromkeys(row.split(' ')[0].split('[')[0] for row in rests))}"
        self.fitted(slot, what, how, as_time, constant.value if constant is not None else None, rests, benchmark)

    def parameter(self, slot: str, what: str, value: float | None, shown: Shown, benchmark: str, name: str) -> None:
        """Adds a parameter of a benchmark's rows."""
        origin = f"{benchmark} {name}"
        self._add(slot, what, value, shown, "parameter", origin, (origin,), benchmark)

    def named(self, slot: str, what: str, name: str | None, benchmark: str, axis: str) -> None:
        """Adds a parameter that is a name."""
        self.parameter(slot, what, None if name is None else 0.0, word(name or ""), benchmark, axis)

    def reported(
        self, slot: str, what: str, value: float | None, shown: Shown, *names: str, benchmark: str = ""
    ) -> None:
        """Adds what the machine reports of itself by these facts; ``benchmark``, if any, asks for them."""
        self._add(slot, what, value, shown, "reported", ", ".join(names), names, benchmark)

    def _add(
        self,
        slot: str,
        what: str,
        value: float | None,
        shown: Shown,
        kind: Kind,
        origin: str,
        rests: tuple[str, ...],
        benchmark: str,
    ) -> None:
        if value is not None and math.isfinite(value):
            self.figures[slot] = Figure(slot, shown(value), what, value, kind, origin, rests)
        elif benchmark:
            self.lacking[slot] = benchmark


def in_unit(unit: str) -> Shown:
    """Shows a value with that unit and a prefix."""
    return partial(quantity, unit=unit)


def count(value: float) -> str:
    """Shows a whole number."""
    return f"{value:.0f}"


def counted(singular: str, plural: str) -> Shown:
    """Shows a whole number with its noun: "1 replay", "4 replays"."""
    return lambda value: f"{value:.0f} {singular if value == 1 else plural}"


def word(text: str) -> Shown:
    """Shows a word instead of the value."""
    return lambda _: text


def total(*values: float) -> float:
    """Their sum."""
    return sum(values)


ITEMS = "items"
PREDICT = ("microbench predict --help", "what a step of your own takes")

# Takes TopicFigures.value, which is NaN for an unknown figure.
Condition = Callable[[Callable[[str], float]], bool]
# Words as they are, and figures between them.
Piece = str | Figure
Pieces = tuple[Piece, ...]


class Passage(msgspec.Struct, frozen=True):
    """Some sentences as a template: ``{slot}`` stands for a figure, and no other number is in it.

    A text shows it where all its slots are known and ``when`` holds. Of ``items``, templates themselves, those with
    known slots are listed at ``{items}``; one of them at least must be known.
    """

    template: str
    when: Condition = lambda value: True
    items: tuple[str, ...] = ()

    def filled(self, known: TopicFigures) -> Pieces | None:
        """Its words and figures; None where a slot is unknown or ``when`` does not hold."""
        if self.unknown(known.figures) or not self.when(known.value):
            return None
        items = listed([item for item in self.items if _all_known(item, known.figures)])
        pieces: list[Piece] = []
        for words, slot, _, _ in string.Formatter().parse(self.template.replace(f"{{{ITEMS}}}", items)):
            pieces += [words] if words else []
            pieces += [known.figures[slot]] if slot else []
        return tuple(pieces)

    def unknown(self, figures: Mapping[str, Figure]) -> list[str]:
        """The slots whose figures are missing."""
        own = [slot for slot in slots(self.template) if slot not in figures and slot != ITEMS]
        if self.items and not any(_all_known(item, figures) for item in self.items):
            own += [slot for item in self.items for slot in slots(item) if slot not in figures]
        return own


class Topic(msgspec.Struct, frozen=True):
    """A text about one question, with the figures of any run.

    ``about`` is its line in the list, ``suites`` measure its figures. ``collect`` adds them; ``needs`` are the
    slots that a run must fill to be chosen for it. ``related``: topics to go on with; ``commands``: others, each with
    what it does.

    ``text`` has a blank line between paragraphs. A passage begins a line, and goes on further in. One behind a name in
    brackets has that condition, or those items, of ``when``. The first of the first paragraph's passages that can be
    filled is the headline.
    """

    name: str
    title: str
    about: str
    suites: tuple[str, ...]
    collect: Callable[[TopicFigures, Evidence], None]
    needs: tuple[str, ...]
    text: str
    when: Mapping[str, Condition | tuple[str, ...]] = {}
    related: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()

    def figures(self, evidence: Evidence) -> TopicFigures:
        """Those that this GPU has."""
        known = TopicFigures(evidence)
        self.collect(known, evidence)
        return known

    @property
    def headline(self) -> list[Passage]:
        """The passages of which one is the headline."""
        return self._passages()[0]

    @property
    def paragraphs(self) -> list[list[Passage]]:
        """The passages of each paragraph."""
        return self._passages()[1:]

    def _passages(self) -> list[list[Passage]]:
        whole = textwrap.dedent(self.text).strip().replace("\n  ", " ")
        return [[self._passage(line) for line in paragraph.split("\n")] for paragraph in whole.split("\n\n")]

    def _passage(self, line: str) -> Passage:
        name, _, words = line.removeprefix("[").partition("] ")
        if not line.startswith("["):
            return Passage(line)
        own = self.when[name]
        return Passage(words, items=own) if isinstance(own, tuple) else Passage(words, own)


class TopicText(msgspec.Struct, frozen=True):
    """A topic with the figures of one GPU. ``used`` are those in the text, in its order, by slot; ``lacking`` are the
    benchmarks whose figures would add to it."""

    headline: Pieces
    paragraphs: tuple[Pieces, ...]
    used: Mapping[str, Figure]
    lacking: tuple[str, ...]


def compose(topic: Topic, evidence: Evidence) -> TopicText:
    """The topic's text with this GPU's figures; whatever is missing, some text is left."""
    known = topic.figures(evidence)
    headline = next((words for passage in topic.headline if (words := passage.filled(known)) is not None), ())
    paragraphs: list[Pieces] = []
    for passages in topic.paragraphs:
        pieces: list[Piece] = []  # of the passages that can be filled, a space between them
        for passage in passages:
            if words := passage.filled(known):
                pieces += [" ", *words] if pieces else words
        paragraphs += [tuple(pieces)] if pieces else []
    used = {piece.slot: piece for words in (headline, *paragraphs) for piece in words if isinstance(piece, Figure)}
    unknown = (slot for several in topic.paragraphs for passage in several for slot in passage.unknown(known.figures))
    lacking = dict.fromkeys(known.lacking[slot] for slot in unknown if slot in known.lacking)
    return TopicText(headline, tuple(paragraphs), used, tuple(lacking))


def slots(template: str) -> list[str]:
    """The slots of a template, in order."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def plain_words(pieces: Iterable[Piece]) -> str:
    """A filled text as one string."""
    return "".join(piece.text if isinstance(piece, Figure) else piece for piece in pieces)


def _all_known(template: str, figures: Mapping[str, Figure]) -> bool:
    return all(slot in figures for slot in slots(template))

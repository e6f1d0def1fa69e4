"""What a topic is: a text whose every number is a figure of a run, and how it is told with those that a run has."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from microbench.explain.evidence import Evidence, listed
from microbench.explain.topics.gathering import Figure, Figures, Gathering

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

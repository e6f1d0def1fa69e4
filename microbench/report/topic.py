"""A topic as a sheet: its text with the figures of a run, a picture, the rows behind the figures, where to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from microbench.analysis.evidence import Evidence, evidence_by_device, listed
from microbench.core.errors import run_command
from microbench.core.model import Run
from microbench.core.units import axis_title, axis_value
from microbench.explain.topics.catalogue import TOPICS, find
from microbench.explain.topics.topic import Figure, Pieces, Topic, TopicText, compose, plain_words
from microbench.report.document import Cell, Column, Phrase, Picture, Prose, Report, Section, Table
from microbench.report.heading import head
from microbench.report.suites import compute, graph, launch, link, roofline
from microbench.report.tables import figure as figure_cell
from microbench.report.view import GRADES

PICTURES: dict[str, Callable[[Evidence], Picture | None]] = {
    "launch": launch.anatomy,
    "graphs": graph.gain,
    "pinned": lambda evidence: link.rates(evidence, "h2d"),
    "topology": link.path,
    "clocks": roofline.rates_over_time,
    "tensor": compute.alone,
}
FIGURES, NEXT = "The figures, and the rows they come from", "Where to go on"


def known(topic: Topic, run: Run) -> int:
    """How many of a topic's figures a run has, on that of its GPUs which has most."""
    return len(topic.figures(_evidence(topic, run)).figures)


def covers(topic: Topic, run: Run) -> bool:
    """Whether a run of a real GPU has the figures that the topic needs, on any of its GPUs."""
    return not run.simulated and any(
        set(topic.needs) <= set(topic.figures(one).figures) for one in evidence_by_device(run)
    )


def sheet(topic: Topic, run: Run, *, reference: bool = False, adding: Sequence[str] = ()) -> Report:
    """The topic as that run knows it, under the heading that says whose figures these are.

    ``adding`` are the options with which `microbench run` adds to that run.
    """
    evidence = _evidence(topic, run)
    text = compose(topic, evidence)
    drawn = PICTURES[topic.name](evidence) if topic.name in PICTURES else None
    paragraphs = [_phrases(pieces) for pieces in text.paragraphs] + _lacking(text, adding)
    pictures: list[Picture] = [Prose(plain_words(text.headline), "", tuple(paragraphs))]
    pictures += [drawn] if drawn is not None else []
    pictures += [_figures(text.used.values())] if text.used else []
    pictures.append(_next(topic, reference))
    section = Section("explain", f"{topic.name}: {topic.title}", tuple(pictures), (), ())
    seen = {one.row.trust for one in text.used.values() if one.row is not None}
    grades = tuple(grade for grade in GRADES if grade in seen)
    return msgspec.structs.replace(head(run, reference=reference), sections=(section,), grades=grades)


def listing() -> Table:
    """Every topic with the line that says what it is about."""
    rows = tuple((Cell(topic.name, tone="strong"), Cell(topic.about)) for topic in TOPICS)
    columns = (Column("topic", "left"), Column("what it explains", "left"))
    return Table(
        "What can be explained", "with this machine's numbers, or a recorded reference's", columns, rows,
        ("microbench explain TOPIC prints it",),
    )  # fmt: skip


def _evidence(topic: Topic, run: Run) -> Evidence:
    """The GPU that most is known of."""
    return max(evidence_by_device(run), key=lambda one: len(topic.figures(one).figures))


def _phrases(pieces: Pieces) -> tuple[Phrase, ...]:
    """A paragraph with its figures standing out."""
    return tuple(
        Phrase(piece.text, "first", whole=True) if isinstance(piece, Figure) else Phrase(piece) for piece in pieces
    )


def _lacking(text: TopicText, adding: Sequence[str]) -> list[tuple[Phrase, ...]]:
    """What was not measured and would say more; nobody adds to a bundled run."""
    if not text.lacking:
        return []
    if not adding:
        return [(Phrase(f"This run lacks figures of {listed(text.lacking)}, which would say more here.", "quiet"),)]
    command = Phrase(run_command(text.lacking, adding), "note", whole=True)
    before = Phrase("This run lacks figures that would say more here: ", "quiet")
    return [(before, command, Phrase(" measures them.", "quiet"))]


def _figures(used: Iterable[Figure]) -> Table:
    rows = tuple(
        (
            Cell(one.what),
            figure_cell(one.row) if one.row is not None else Cell(one.text, tone="strong"),
            Cell(one.origin, tone="quiet"),
            Cell(_case(one), tone="quiet"),
        )
        for one in used
        if one.kind != "parameter"
    )
    columns = (Column("what", "left"), Column("figure"), Column("from", "left"), Column("case", "left", drop=1))
    return Table(FIGURES, "", columns, rows)


def _case(one: Figure) -> str:
    """The parameters of a row's case as people write them: words speak for themselves, a zero says nothing."""
    params = one.row.params if one.row is not None else {}
    words = (value if isinstance(value, str) else _number(name, value) for name, value in params.items() if value != 0)
    return ", ".join(words)


def _number(name: str, value: int) -> str:
    return f"{axis_title(name)} {axis_value(name, value)}"


def _next(topic: Topic, reference: bool) -> Table:
    """How to measure this machine where another one's figures are shown, other commands, and topics that are near."""
    rows = [(f"microbench run {' '.join(topic.suites)}", "measures this machine, for a text of its own")]
    rows = [*(rows if reference else ()), *topic.commands]
    rows += [(f"microbench explain {name}", _within(find(name).title)) for name in topic.related]
    columns = (Column("command", "left"), Column("what it does", "left"))
    return Table(NEXT, "", columns, tuple((Cell(command, tone="note"), Cell(what)) for command, what in rows))


def _within(title: str) -> str:
    """A title as it stands within a line."""
    return title[:1].lower() + title[1:]

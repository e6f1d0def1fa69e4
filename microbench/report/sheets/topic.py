"""Makes the report of a topic: its text with a run's figures, a picture, the rows behind them, and related topics."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, evidence_by_device, listed
from microbench.core.errors import run_command
from microbench.core.model import Run
from microbench.explain.topics.catalogue import TOPICS, find
from microbench.explain.topics.topic import Figure, Topic, TopicText, compose, plain_words
from microbench.report.curves import param_words
from microbench.report.document import GRADES, Cell, Column, Phrase, Picture, Prose, Report, Section, Table
from microbench.report.heading import head
from microbench.report.suites import compute, graph, launch, link, roofline
from microbench.report.tables import figure as figure_cell

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
    """How many of a topic's figures a run has, on the GPU that has the most."""
    return len(topic.figures(_evidence(topic, run)).figures)


def covers(topic: Topic, run: Run) -> bool:
    """True if a run of a real GPU has the figures that the topic needs, on any of its GPUs."""
    return not run.simulated and any(
        set(topic.needs) <= set(topic.figures(one).figures) for one in evidence_by_device(run)
    )


def sheet(topic: Topic, run: Run, *, reference: bool = False, adding: Sequence[str] = ()) -> Report:
    """The topic with the figures of that run. ``adding`` are the options with which `microbench run` adds to it."""
    evidence = _evidence(topic, run)
    text = compose(topic, evidence)
    drawn = PICTURES[topic.name](evidence) if topic.name in PICTURES else None
    paragraphs = [
        tuple(Phrase(one.text, "first", True) if isinstance(one, Figure) else Phrase(one) for one in pieces)
        for pieces in text.paragraphs
    ]
    paragraphs += _lacking(text, adding)
    pictures: list[Picture] = [Prose(plain_words(text.headline), "", tuple(paragraphs))]
    pictures += [drawn] if drawn is not None else []
    pictures += [_figures_table(text.used.values())] if text.used else []
    rows = [(f"microbench run {' '.join(topic.suites)}", "measures this machine, for a text of its own")]
    rows = [*(rows if reference else ()), *topic.commands]
    for name in topic.related:
        title = find(name).title
        rows.append((f"microbench explain {name}", title[:1].lower() + title[1:]))
    columns = (Column("command", "left"), Column("what it does", "left"))
    pictures.append(Table(NEXT, "", columns, tuple((Cell(command, tone="note"), Cell(what)) for command, what in rows)))
    section = Section("explain", f"{topic.name}: {topic.title}", tuple(pictures), (), ())
    seen = {figure.row.trust for figure in text.used.values() if figure.row is not None}
    grades = tuple(grade for grade in GRADES if grade in seen)
    return replace(head(run, reference=reference), sections=(section,), grades=grades)


def listing() -> Table:
    """Every topic with the line that says what it is about."""
    rows = tuple((Cell(topic.name, tone="strong"), Cell(topic.about)) for topic in TOPICS)
    columns = (Column("topic", "left"), Column("what it explains", "left"))
    about = "with this machine's numbers, or a recorded reference's"
    return Table("What can be explained", about, columns, rows, ("microbench explain TOPIC prints it",))


def _evidence(topic: Topic, run: Run) -> Evidence:
    return max(evidence_by_device(run), key=lambda one: len(topic.figures(one).figures))


def _lacking(text: TopicText, adding: Sequence[str]) -> list[tuple[Phrase, ...]]:
    """Figures that would add to the text, with the command that measures them; no command for a bundled run."""
    if not text.lacking:
        return []
    if not adding:
        return [(Phrase(f"This run lacks figures of {listed(text.lacking)}, which would say more here.", "quiet"),)]
    command = Phrase(run_command(text.lacking, adding), "note", whole=True)
    before = Phrase("This run lacks figures that would say more here: ", "quiet")
    return [(before, command, Phrase(" measures them.", "quiet"))]


def _figures_table(figures: Iterable[Figure]) -> Table:
    rows = tuple(
        (
            Cell(figure.what),
            figure_cell(figure.row) if figure.row is not None else Cell(figure.text, tone="strong"),
            Cell(figure.origin, tone="quiet"),
            Cell(", ".join(param_words(*pair) for pair in params.items() if pair[1] != 0), tone="quiet"),
        )
        for figure in figures
        if figure.kind != "parameter"
        for params in [figure.row.params if figure.row is not None else {}]
    )
    columns = (Column("what", "left"), Column("figure"), Column("from", "left"), Column("case", "left", drop=1))
    return Table(FIGURES, "", columns, rows)

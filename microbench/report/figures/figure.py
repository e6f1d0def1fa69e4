"""What a figure is: a conclusion, its picture as a Vega-Lite spec, and the same data as a table of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from microbench.analysis.evidence import Evidence, Finding
from microbench.core.units import plain
from microbench.report.document import Table
from microbench.report.figures.theme import WIDTH
from microbench.report.heading import mark_of

if TYPE_CHECKING:
    import altair as alt

    Chart = alt.LayerChart | alt.VConcatChart


# Of what a run is called in a figure.
LONGEST_LABEL = 80


class Origin(NamedTuple):
    """One GPU of one run that figures may be drawn from. ``label`` is what a person calls the run, "" where nothing;
    a ``reference`` came with the tool."""

    evidence: Evidence
    label: str = ""
    reference: bool = False

    @property
    def name(self) -> str:
        """What it is called where there is no other."""
        return _short(self.label) or _gpu_name(self.evidence)

    def marked(self, text: str) -> str:
        """The text with SIMULATED or REFERENCE behind it, where it must not be mistaken for a measurement made here."""
        mark = mark_of(self.evidence.run, reference=self.reference)
        return text if mark in text else f"{text} · {mark}"


class Source(NamedTuple):
    """One GPU of one run, and what it is called beside others."""

    label: str
    evidence: Evidence


class Figure(NamedTuple):
    """A picture and what it says.

    ``name`` is what a person types, ``title`` what is shown in few words, ``conclusions`` what is to be seen, a
    sentence for each run, ``about`` how to read it, ``sources`` whose figures these are, one by one. ``table`` holds
    the drawn figures as words, for those who cannot see them. ``chart`` has neither title nor colours of its own: those
    are the page's.
    """

    name: str
    title: str
    conclusions: tuple[str, ...]
    about: str
    sources: tuple[str, ...]
    table: Table
    chart: Chart

    @property
    def conclusion(self) -> str:
        """All of it in one line: what stands for the picture where it cannot be seen."""
        return "; ".join(self.conclusions)

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec, data inline, without title and config: a layered view, or a ``vconcat`` of such.

        Each view's ``width`` may be set: to that of the whole less ``usermeta.beside``.
        """
        spec: dict[str, Any] = self.chart.to_dict()
        spec.pop("config", None)  # Altair's own theme
        views = spec.get("vconcat", [spec])
        return {**spec, "description": self.conclusion, "usermeta": {"beside": WIDTH - views[0]["width"]}}


class Drawing(NamedTuple):
    """What a figure's file gives: all but what every figure has alike. ``told`` are the runs that are drawn, each with
    its conclusion."""

    told: Sequence[tuple[Source, str]]
    about: str
    table: Table
    chart: Chart


Draw = Callable[[Sequence[Source]], Drawing | None]


def sources(origins: Sequence[Origin]) -> list[Source]:
    """Origins with what tells them apart: the run's label or else the GPU's name, with the GPU's index, the date or the
    run's id where it takes them."""
    ways: tuple[Callable[[Evidence], tuple[str, ...]], ...] = (
        lambda one: (),
        lambda one: (f"GPU {_index(one)}",),
        lambda one: (_started(one),),
        lambda one: (f"GPU {_index(one)}", _started(one)),
        lambda one: (f"GPU {_index(one)}", _short(one.run.run_id)),
    )
    for way in ways:
        told = [one.marked(" · ".join((one.name, *way(one.evidence)))) for one in origins]
        if len(set(told)) == len(told):
            break
    else:
        told = [f"{text} · {place}" for place, text in enumerate(told, 1)]
    return [Source(text, one.evidence) for text, one in zip(told, origins, strict=True)]


def source_words(one: Source) -> str:
    """Whose figures these are, for a picture that travels alone."""
    session = one.evidence.run.sessions[-1] if one.evidence.run.sessions else None
    words = [one.label]
    if _gpu_name(one.evidence) not in one.label:
        words.append(_gpu_name(one.evidence))
    if session is not None:
        driver = session.environment.driver_version
        words += [f"driver {_short(driver)}"] if driver else []
        words += [] if _started(one.evidence) in one.label else [_started(one.evidence)]
        words.append(f"microbench {_short(session.tool_version)}")
    return " · ".join(words)


def _short(text: str) -> str:
    return plain(text, LONGEST_LABEL)


def _gpu_name(evidence: Evidence) -> str:
    return _short(evidence.gpu.name) if evidence.gpu is not None else "no GPU"


def _index(evidence: Evidence) -> int:
    return evidence.gpu.index if evidence.gpu is not None else 0


def _started(evidence: Evidence) -> str:
    """When the newest session began, as in the report's heading."""
    return _short(evidence.run.sessions[-1].started_at[:16].replace("T", " ")) if evidence.run.sessions else ""


def conclusions(told: Sequence[tuple[Source, str]]) -> tuple[str, ...]:
    """What each run says; of several each begins with which."""
    return tuple(f"{source.label}: {text}" if len(told) > 1 else text for source, text in told if text)


def first_title(found: Sequence[Finding]) -> str:
    """The title of the first finding, which is a conclusion with its figures already; empty without one."""
    return found[0].title if found else ""

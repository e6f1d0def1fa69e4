"""The terminal's counterpart of each figure: the pictures that a run's report has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.core.model import Run
from microbench.explain.link_facts import DIRECTIONS
from microbench.report.document import Picture, Report, Section
from microbench.report.figures.catalogue import KINDS
from microbench.report.heading import head
from microbench.report.suites import graph, launch, link, memory, roofline

# By the names of figures; what a run has no rows for is None.
PICTURES: dict[str, Callable[[Evidence], Iterable[Picture | None]]] = {
    "ladder": lambda one: (launch.ladder(one), launch.one_op(one)),
    "gain": lambda one: (graph.gain(one), graph.surface(one)),
    "link": lambda one: (*(link.rates(one, direction) for direction in DIRECTIONS), link.fits(one)),
    "memory": lambda one: (memory.hierarchy(one), memory.latencies(one)),
    "roofline": roofline.rooflines,
    "sustained": lambda one: (roofline.rates_over_time(one), roofline.state_over_time(one)),
    "step": lambda one: (graph.step(one),),
}


def there(run: Run) -> list[str]:
    """The names of the figures that a run has rows for."""
    groups = evidence_by_device(run)
    return [name for name in PICTURES if any(_drawn(name, one) for one in groups)]


def sheet(name: str, run: Run, *, reference: bool = False) -> Report | None:
    """A figure for the terminal, a section for each GPU that has rows for it; None where none has."""
    groups = evidence_by_device(run)
    sections = [
        Section(name, _title(name, one, several=len(groups) > 1), tuple(pictures), (), ())
        for one in groups
        if (pictures := _drawn(name, one))
    ]
    if not sections:
        return None
    return msgspec.structs.replace(head(run, reference=reference), sections=tuple(sections))


def _drawn(name: str, evidence: Evidence) -> list[Picture]:
    return [picture for picture in PICTURES[name](evidence) if picture is not None]


def _title(name: str, one: Evidence, *, several: bool) -> str:
    title = f"{name}: {KINDS[name].title}"
    return f"{title} · GPU {one.gpu.index}, {one.gpu.name}" if several and one.gpu is not None else title

"""What a page carries besides its words: compressed, in letters that no markup can come out of; runs made to fit."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from microbench import __version__
from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.analysis.stats import rows
from microbench.core.model import SAMPLES_KEPT, Measurement, Run
from microbench.report.document import Curve, Picture, Report, Table, TimeLine
from microbench.report.figures.figure import Figure
from microbench.report.figures.pictures import PICTURES
from microbench.report.heading import SIMULATED
from microbench.report.page import scripts
from microbench.report.page.details import Details, details
from microbench.report.page.machine import commands, machine_tables
from microbench.report.page.templates import environment, slug, style
from microbench.report.view import GRADES
from microbench.runs import schema

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


# How many samples of a measurement may stay, the most first: a page takes the most of them that fit.
SAMPLE_STEPS = (SAMPLES_KEPT, 256, 128, 64, 32)
# The strongest takes three times as long for one percent.
LEVEL = 6


class Fitting(NamedTuple):
    """Runs as a page carries them: packed files, how many samples a measurement keeps, whether any lost some."""

    files: tuple[Markup, ...]
    samples: int
    thinned: bool


def packed(data: bytes) -> Markup:
    """``data`` through gzip and base64: letters, digits, ``+``, ``/`` and ``=``, so nothing in it is markup."""
    from markupsafe import Markup

    return Markup(base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii"))


def fitting(runs: Sequence[Run], room_bytes: int) -> Fitting:
    """The runs with as many samples of each measurement as fit into ``room_bytes`` together, else the fewest."""
    longest = max((_count(one) for run in runs for one in _measurements(run)), default=0)
    for samples in SAMPLE_STEPS:
        files = tuple(packed(schema.encode(thinned(run, samples))) for run in runs)
        if samples == SAMPLE_STEPS[-1] or sum(map(len, files)) <= room_bytes:
            break
    return Fitting(files, min(samples, longest), longest > samples)


def thinned(run: Run, most: int) -> Run:
    """The run with at most ``most`` samples of each measurement, evenly spaced over those there are; their true count
    stays."""
    outcomes = tuple(
        msgspec.structs.replace(outcome, measurements=tuple(_thinned(one, most) for one in outcome.measurements))
        for outcome in run.outcomes
    )
    return msgspec.structs.replace(run, outcomes=outcomes)


def _thinned(measurement: Measurement, most: int) -> Measurement:
    # Cut as text, so that those which stay keep every digit they were stored with.
    samples = bytes(measurement.samples).strip(b"[] \t\r\n").split(b",")
    if len(samples) <= most:
        return measurement
    kept = b",".join(samples[index * len(samples) // most] for index in range(most))
    return msgspec.structs.replace(measurement, samples=msgspec.Raw(b"[" + kept + b"]"))


def _count(measurement: Measurement) -> int:
    return bytes(measurement.samples).count(b",") + 1


def _measurements(run: Run) -> Sequence[Measurement]:
    return [one for outcome in run.outcomes for one in outcome.measurements]


# A report as one page of HTML that asks nothing of a network: findings, figures, tables, and the run itself.


# What a browser opens at once and a mail still takes.
MOST_BYTES = 3_000_000
# How many of the rows that a finding rests on are named.
MOST_RESTS = 6

Place = Callable[[str], int | None]


class Subject(NamedTuple):
    """One run that the page is about: what tells it from others, what was measured, and what a report says of it."""

    name: str
    run: Run
    report: Report


class Page(NamedTuple):
    """The page, and the runs as it carries them."""

    html: str
    carried: Fitting


class _Told(NamedTuple):
    """A subject as the template asks for it. ``id`` begins the names of its places on the page."""

    id: str
    name: str
    file: str
    report: Report
    machine: tuple[Table, ...]
    commands: tuple[str, ...]
    details: Details
    before: int

    def place(self, device: str | None) -> Place:
        """Where the details of that GPU's rows are among all on the page."""

        def find(name: str) -> int | None:
            found = self.details.place(device, name)
            return None if found is None else found + self.before

        return find


def build(subjects: Sequence[Subject], figures: Sequence[Figure], *, most_bytes: int = MOST_BYTES) -> Page:
    """The page about these runs, in at most ``most_bytes`` as UTF-8 if the fewest samples of its runs leave room.

    ``figures`` are drawn from all of the runs together.
    """
    told = _told(subjects, figures)
    script, vega = scripts.script(), scripts.vega() if figures else ""
    blocks: dict[str, str] = {
        "details": packed(msgspec.json.encode([detail for one in told for detail in one.details.found]))
    }
    if figures:
        blocks |= {"figures": packed(scripts.specs(figures)), "vega": packed(vega.encode())}
    context = _context(told, figures) | {"script": script, "policy": scripts.policy(*filter(None, (script, vega)))}
    template = environment().get_template("page.html")
    # With room for its runs first: how many of their samples may stay depends on what all else leaves of it.
    empty = {f"run-{index}": "" for index in range(len(subjects))}
    bare = _rendered(template, context, Fitting((), SAMPLES_KEPT, thinned=True), blocks | empty)
    found = fitting([one.run for one in subjects], most_bytes - len(bare.encode()))
    blocks |= {f"run-{index}": file for index, file in enumerate(found.files)}
    return Page(_rendered(template, context, found, blocks), found)


def _rendered(template: Template, context: Mapping[str, Any], found: Fitting, blocks: Mapping[str, str]) -> str:
    return template.render(context, carried=found, blocks=blocks, next_id=partial(next, count()))


def _told(subjects: Sequence[Subject], figures: Sequence[Figure]) -> list[_Told]:
    told: list[_Told] = []
    for index, one in enumerate(subjects):
        groups = evidence_by_device(one.run, rows(one.run))
        found = details(groups)
        told.append(
            _Told(
                id=f"run-{index}-" if len(subjects) > 1 else "",
                name=one.name,
                file=f"{slug(one.run.run_id)}.json",
                report=_without(one.report, _drawn(figures, groups)),
                machine=machine_tables(one.run),
                commands=commands(one.run),
                details=found,
                before=sum(len(other.details.found) for other in told),
            )
        )
    return told


def _drawn(figures: Sequence[Figure], groups: Sequence[Evidence]) -> list[Picture]:
    """The report's pictures that these figures draw as well. Tables and bars stay: they are to be sorted."""
    found = (
        picture for one in figures if one.name in PICTURES for group in groups for picture in PICTURES[one.name](group)
    )
    return [picture for picture in found if isinstance(picture, Curve | TimeLine)]


def _without(report: Report, drawn: Sequence[Picture]) -> Report:
    sections = tuple(
        msgspec.structs.replace(one, pictures=tuple(picture for picture in one.pictures if picture not in drawn))
        for one in report.sections
    )
    return msgspec.structs.replace(report, sections=sections)


def _context(told: Sequence[_Told], figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "version": __version__,
        "title": ", ".join(dict.fromkeys(one.report.title for one in told)),
        "mark": _mark([one.report.mark for one in told]),
        "style": style(),
        "contents": list(_contents(told, figures)),
        "runs": told,
        "several": len(told) > 1,
        "figures": figures,
        "grades": GRADES,
        "most_rests": MOST_RESTS,
        "nowhere": _nowhere,
    }


def _mark(marks: Sequence[str]) -> str:
    """What is said of figures from all runs: that some are simulated, else what all of them are."""
    return SIMULATED if SIMULATED in marks else marks[0] if len(set(marks)) == 1 else ""


def _contents(told: Sequence[_Told], figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """The parts of the page, by their places: of several runs the suites of the first one that has them."""
    suites: dict[str, str] = {}
    for one in told:
        for section in one.report.sections:
            suites.setdefault(section.suite, f"{one.id}{slug(section.title)}")
    parts = [("findings", "Findings"), *([("figures", "Figures")] if figures else [])]
    parts += [(place, suite) for suite, place in suites.items()]
    return [*parts, (f"{told[0].id}environment", "Environment"), (f"{told[0].id}repeat", "Repeat"), ("data", "Data")]


def _nowhere(_name: str) -> None:
    """Where details of figures are that have none."""

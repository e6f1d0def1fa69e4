"""Makes one HTML page of one or several runs: findings, figures, tables and the runs themselves, with no network."""

import base64
import gzip
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding
from microbench.core.model import SAMPLES_KEPT, Measurement, Run
from microbench.report.document import GRADES, SPREAD, SPREAD_WITHIN, Block, Report, Screen, Table
from microbench.report.figures.catalogue import KINDS
from microbench.report.figures.figure import Figure
from microbench.report.heading import SIMULATED
from microbench.report.page.details import Details, details
from microbench.report.page.machine import commands, machine_tables
from microbench.report.page.templates import HALF_WIDTH, NARROW_WIDTH, environment, page_context, slug

# A page of this size opens at once in a browser and can be sent by mail.
MOST_BYTES = 3_000_000
# How many samples of a measurement stay on the page: the most of these that fit.
SAMPLE_STEPS = (SAMPLES_KEPT, 256, 128, 64, 32)
# The default level takes 1.5 times as long and saves 2 %.
LEVEL = 5
# The findings with which the page opens, and the figures that it shows folded: a suite has one that is open.
FIRST_FINDINGS, FOLDED = 3, ("sustained", "step")
# A finding names at most this many of the rows behind it.
MOST_RESTS = 6

Place = Callable[[str], int | None]


class Subject(NamedTuple):
    """A run on the page: its name among others, what was measured, the evidence of each GPU, the report, and the screen
    with which the page opens."""

    name: str
    run: Run
    groups: Sequence[Evidence]
    report: Report
    screen: Screen = Screen()


class Carried(NamedTuple):
    """The runs inside a page: packed files, the samples kept of each measurement, and whether any were dropped."""

    files: tuple[Markup, ...]
    samples: int
    thinned: bool


class Page(NamedTuple):
    """The page and the runs inside it."""

    html: str
    carried: Carried


class _Part(NamedTuple):
    """A subject for the template. ``id`` begins its element ids; ``before`` details of other subjects come first."""

    id: str
    name: str
    file: str
    report: Report
    blocks: tuple[Block, ...]
    first: tuple[tuple[Finding, str | None], ...]  # with the GPU that each is about
    machine: tuple[Table, ...]
    commands: tuple[str, ...]
    details: Details
    before: int

    def place(self, device: str | None) -> Place:
        """A function that finds the index of a row of that GPU among all details on the page."""

        def find(name: str) -> int | None:
            index = self.details.place(device, name)
            return None if index is None else index + self.before

        return find


def build(subjects: Sequence[Subject], figures: Sequence[Figure], *, most_bytes: int = MOST_BYTES) -> Page:
    """The page of these runs, at most ``most_bytes`` long in UTF-8 unless even the fewest samples are too many.

    ``figures`` are drawn from all of the runs together.
    """
    templates = environment()
    parts = _parts(subjects, figures)
    context = _context(parts, figures)
    head = templates.get_template("page.html").render(context)
    found = packed(msgspec.json.encode([detail for part in parts for detail in part.details.found]))
    # Rendered without the runs first: the rest of the page decides how many of their samples fit.
    blocks = {"details": found, **{f"run-{index}": "" for index in range(len(subjects))}}
    end = partial(templates.get_template("end.html").render, context)
    bare = end(carried=Carried((), SAMPLES_KEPT, thinned=True), blocks=blocks)
    carried = fitting([subject.run for subject in subjects], most_bytes - len(head.encode()) - len(bare.encode()))
    blocks |= {f"run-{index}": file for index, file in enumerate(carried.files)}
    return Page(head + end(carried=carried, blocks=blocks), carried)


def packed(data: bytes) -> Markup:
    """``data`` as gzip in base64, which holds no character of markup."""
    return Markup(base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii"))


def fitting(runs: Sequence[Run], room_bytes: int) -> Carried:
    """The runs with the most of SAMPLE_STEPS that fit into ``room_bytes`` together, else with the fewest."""
    first, last = 0, len(SAMPLE_STEPS) - 1
    files: dict[int, tuple[Markup, ...]] = {}
    while first < last or last not in files:
        step = (first + last) // 2
        files[step] = tuple(packed(msgspec.json.encode(thinned(run, SAMPLE_STEPS[step])) + b"\n") for run in runs)
        if sum(map(len, files[step])) <= room_bytes:
            last = step
        else:
            first = min(step + 1, last)
    outcomes = (outcome for run in runs for outcome in run.outcomes)
    longest = max((_count(one) for outcome in outcomes for one in outcome.measurements), default=0)
    return Carried(files[last], min(SAMPLE_STEPS[last], longest), longest > SAMPLE_STEPS[last])


def thinned(run: Run, most: int) -> Run:
    """The run with at most ``most`` evenly spaced samples of each measurement; their true count stays."""

    def fewer(measurement: Measurement) -> Measurement:
        if _count(measurement) <= most:
            return measurement
        # As text, so that every stored digit stays.
        samples = bytes(measurement.samples).strip(b"[] \t\r\n").split(b",")
        some = b",".join(samples[index * len(samples) // most] for index in range(most))
        return replace(measurement, samples=msgspec.Raw(b"[" + some + b"]"))

    outcomes = (replace(one, measurements=tuple(map(fewer, one.measurements))) for one in run.outcomes)
    return replace(run, outcomes=tuple(outcomes))


def _count(measurement: Measurement) -> int:
    """The number of stored samples, counted without decoding them."""
    return bytes(measurement.samples).count(b",") + 1


def _parts(subjects: Sequence[Subject], figures: Sequence[Figure]) -> list[_Part]:
    drawn = [picture for figure in figures for picture in figure.pictures]
    charted = {
        name for one in figures if one.name in KINDS and one.name not in FOLDED for name in KINDS[one.name].benchmarks
    }
    parts: list[_Part] = []
    for index, subject in enumerate(subjects):
        # Pictures that the page's figures show are not shown again.
        sections = (
            replace(
                section,
                pictures=tuple(one for one in section.pictures if one not in drawn),
                studies=tuple(
                    replace(study, curve=None) if study.benchmark in charted else study for study in section.studies
                ),
            )
            for section in subject.report.sections
        )
        part = _Part(
            id=f"run-{index}-" if len(subjects) > 1 else "",
            name=subject.name,
            file=f"{slug(subject.run.run_id)}.json",
            report=replace(subject.report, sections=tuple(sections)),
            blocks=subject.screen.blocks,
            first=tuple(
                (one, next((part.device for part in subject.report.sections if one in part.findings), None))
                for one in subject.screen.findings[:FIRST_FINDINGS]
            ),
            machine=machine_tables(subject.run),
            commands=commands(subject.run),
            details=details(subject.groups),
            before=sum(len(part.details.found) for part in parts),
        )
        parts.append(part)
    return parts


def _context(parts: Sequence[_Part], figures: Sequence[Figure]) -> dict[str, Any]:
    marks = [part.report.mark for part in parts]
    suites: dict[str, str] = {}  # each leads to the first run that has it
    for part in parts:
        for section in part.report.sections:
            suites.setdefault(section.suite, f"{part.id}{slug(section.title)}")
    begin = [("findings", "Findings"), *([("figures", "Figures")] if figures else [])]
    end = [(f"{parts[0].id}environment", "Environment"), (f"{parts[0].id}repeat", "Repeat"), ("data", "Data")]
    return {
        **page_context(),
        "title": ", ".join(dict.fromkeys(part.report.title for part in parts)),
        # The mark of a figure from several runs: SIMULATED if one of them is simulated, else the mark that all of them
        # share.
        "mark": SIMULATED if SIMULATED in marks else marks[0] if len(set(marks)) == 1 else "",
        "contents": [*begin, *((place, suite) for suite, place in suites.items()), *end],
        "runs": parts,
        "several": len(parts) > 1,
        "figures": figures,
        "folded": FOLDED,
        "grades": GRADES,
        "spread": f"{SPREAD}, {SPREAD_WITHIN}",
        "most_rests": MOST_RESTS,
        "half_width": HALF_WIDTH,
        "narrow_width": NARROW_WIDTH,
    }

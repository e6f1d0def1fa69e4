"""Makes HTML: a page of runs with the runs themselves, a page of an answer, and a piece for a notebook. No network."""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding
from microbench.core.model import SAMPLES_KEPT, Measurement, Run
from microbench.report.document import GRADES, SPREAD, SPREAD_WITHIN, Curve, Report, Screen, Table, Tiles
from microbench.report.figures.catalogue import KINDS
from microbench.report.figures.figure import Figure
from microbench.report.heading import SIMULATED
from microbench.report.page.details import Detail, details
from microbench.report.page.machine import commands, machine_tables
from microbench.report.page.templates import (
    HALF_WIDTH,
    NARROW_WIDTH,
    element_context,
    environment,
    page_context,
    scoped_style,
    slug,
)

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


def build(subjects: Sequence[Subject], figures: Sequence[Figure], *, most_bytes: int = MOST_BYTES) -> Page:
    """The page of these runs, at most ``most_bytes`` long in UTF-8 unless even the fewest samples are too many.

    ``figures`` are drawn from all of the runs together.
    """
    templates = environment()
    found: list[Detail] = []
    context = _context(_parts(subjects, figures, found), figures)
    head = templates.get_template("page.html").render(context)
    # Rendered without the runs first: the rest of the page decides how many of their samples fit.
    blocks = {"details": packed(msgspec.json.encode(found)), **{f"run-{index}": "" for index in range(len(subjects))}}
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
    return bytes(measurement.samples).count(b",") + 1


def _parts(subjects: Sequence[Subject], figures: Sequence[Figure], found: list[Detail]) -> list[dict[str, Any]]:
    """The subjects for the template, their details added to ``found``."""
    drawn = [picture for figure in figures for picture in figure.pictures]
    open_figures = (KINDS[one.name] for one in figures if one.name in KINDS and one.name not in FOLDED)
    charted = {name for kind in open_figures for name in kind.benchmarks}
    parts: list[dict[str, Any]] = []
    for index, subject in enumerate(subjects):
        # Pictures that the page's figures show are not shown again.
        sections = tuple(
            replace(
                section,
                pictures=tuple(one for one in section.pictures if one not in drawn),
                studies=tuple(
                    replace(study, curve=None) if study.benchmark in charted else study for study in section.studies
                ),
            )
            for section in subject.report.sections
        )
        first = subject.screen.findings[:FIRST_FINDINGS]
        gpus = [next((part.device for part in sections if one in part.findings), None) for one in first]
        part = {
            "id": f"run-{index}-" if len(subjects) > 1 else "",  # begins its element ids
            "name": subject.name,
            "file": f"{slug(subject.run.run_id)}.json",
            "report": replace(subject.report, sections=sections),
            "blocks": subject.screen.blocks,
            "first": list(zip(first, gpus, strict=True)),
            "machine": machine_tables(subject.run),
            "commands": commands(subject.run),
            "place": details(subject.groups, found),
        }
        parts.append(part)
    return parts


def _context(parts: list[dict[str, Any]], figures: Sequence[Figure]) -> dict[str, Any]:
    reports = [part["report"] for part in parts]
    marks, first = [report.mark for report in reports], parts[0]["id"]
    suites: dict[str, str] = {}  # each leads to the first run that has it
    for part in parts:
        for section in part["report"].sections:
            suites.setdefault(section.suite, f"{part['id']}{slug(section.title)}")
    begin = [("findings", "Findings"), *([("figures", "Figures")] if figures else [])]
    end = [(f"{first}environment", "Environment"), (f"{first}repeat", "Repeat"), ("data", "Data")]
    return {
        **page_context(),
        "title": ", ".join(dict.fromkeys(report.title for report in reports)),
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


OWN = "\ue000"  # a private character, which stands for what makes ids unique


def fragment(shown: Report | Screen, figures: Sequence[Figure] = ()) -> str:
    """The report or the screen as one element with its style, without scripts; ``figures`` are folded at its end."""
    numbers = count()
    context = element_context() | {
        "style": scoped_style(), "figures": figures, "most_rests": MOST_RESTS, "mark": shown.mark,
        "banners": shown.banners, "next_id": lambda: f"{OWN}-{next(numbers)}",
    }  # fmt: skip
    if isinstance(shown, Screen):
        context |= {
            "title": shown.run, "facts": (), "blocks": shown.blocks, "sections": (), "tables": shown.tables,
            "findings": (*shown.distorting, *shown.findings), "footer": (shown.left_out,) if shown.left_out else (),
        }  # fmt: skip
    else:
        context |= {
            "title": shown.title, "facts": shown.facts, "blocks": (), "sections": shown.sections, "footer": (),
            "tables": () if shown.problems is None else (shown.problems,), "findings": shown.environment,
        }  # fmt: skip
    text = environment().get_template("fragment.html").render(context)
    # Ids must differ between the outputs of a notebook, and be the same for the same output on every machine.
    return text.replace(OWN, hashlib.sha256(text.encode()).hexdigest()[:8])


def answer_page(
    kind: str,
    title: str,
    mark: str,
    facts: Sequence[tuple[str, str]],
    findings: Sequence[Finding],
    pictures: Sequence[Curve | Tiles],
    tables: Sequence[Table],
) -> str:
    """The page. ``kind`` is a line above the title that says what the page is about; ``mark`` is SIMULATED or ""."""
    contents = [("findings", "Findings"), ("pictures", "Pictures"), *([("tables", "Tables")] if tables else [])]
    return (
        environment()
        .get_template("sheet.html")
        .render(
            page_context(), kind=kind, title=title, mark=mark, contents=contents, blocks={}, facts=facts,
            findings=findings, pictures=pictures, tables=tables,
        )
    )  # fmt: skip

"""The commands show, compare, plot and report. Heavy imports stay inside the commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench.cli import options
from microbench.cli.options import ANSWER, FAIL_ON, FORCE, RUN, RUN_NAME, SAME_WITHIN, WHY, FailOn, Picture, Theme
from microbench.cli.output import check_new, draw, paged, print_json, write_new
from microbench.core.bench import SUITES, discover
from microbench.core.errors import ExitCode, RunUnreadableError, UsageError
from microbench.core.options import REQUIRED, argument, flag, option
from microbench.core.units import plain
from microbench.library import runs
from microbench.library.runs import consistent, is_reference, load, part_sheet, report_of, screen_of
from microbench.report.figures.catalogue import KINDS

if TYPE_CHECKING:
    from microbench.report.document import Report


def show(
    *,
    name: str | None = RUN,
    part: str | None = argument(
        "[PART]", f"A suite, a benchmark or a figure ({options.NAMES}); default: one screen with all answers.", None
    ),
    everything: bool = flag(
        "Show everything, with the tables of all benchmarks, or of the suite that is PART.", "--all"
    ),
    picture: Picture,
    why: bool = WHY,
) -> None:
    """Show a recorded run on one screen, or a part of it.

    A suite shows its pictures and findings, a benchmark its tables, a figure is drawn alone, --all shows
    everything, of a suite too. The name of a suite, benchmark or figure alone means the newest run that has it.
    """
    if part is None and name and (name in (*SUITES, *KINDS) or (name.isidentifier() and name in discover())):
        name, part = None, name
    if part is not None:
        drawn = part_sheet(part, *load(name)) if name else newest_part(part)
        if everything and part in SUITES:
            with paged(_parts(drawn)):
                draw(drawn, picture, why=why)
        else:
            lines = 120 if part in SUITES else None  # the page of one suite is at most this long
            whole = shlex.join(["microbench", "show", *([name] if name and name != runs.LAST else []), part, "--all"])
            draw(drawn, picture, brief=part in (*SUITES, *KINDS), why=why, most_lines=lines, whole=whole)
        return
    path, run = load(name)
    if everything:
        whole_run = report_of(run, path)
        with paged(_parts(whole_run)):
            draw(whole_run, picture, why=why)
    else:
        draw(screen_of(run, path, name), picture, why=why)


def _parts(report: Report) -> list[str]:
    """The titles of the suites, or of the benchmarks of the only one, in the order in which they are drawn."""
    if len(report.sections) == 1:
        return [table.title for study in report.sections[0].studies for table in study.tables[:1]]
    return [section.title for section in report.sections]


def newest_part(part: str) -> Report:
    """The part of the newest run that has it: a later run of other benchmarks, or a check, does not hide it.

    Raises the error of the last run if none has it.
    """
    from microbench.archive import store

    for path in store.listing()[: runs.NEWEST_SEARCHED]:
        with suppress(RunUnreadableError):
            return part_sheet(part, path, store.read(path))
    return part_sheet(part, *load(None))


def compare(
    *,
    base: str = argument("BASE", f"The earlier run: {RUN_NAME}."),
    new: str | None = argument("[NEW]", "The run to judge, named the same way; default: the last run.", None),
    fail_on: FailOn | None = FAIL_ON,
    same_within: str = SAME_WITHIN,
    everything: bool = flag("List every figure, including the same and the unclear ones.", "--all"),
    json: bool = ANSWER,
    why: bool = WHY,
    picture: Picture,
) -> int:
    """Compare two runs and say which suites and figures changed.

    Each figure is slower, faster, the same, within 10 %, unclear or incomparable. A verdict needs five rounds of each
    run.
    """
    from microbench.library.answers import compared, fails, share_of

    found = compared(base, new, share_of(same_within))
    if json:
        from microbench.library.verdicts import ComparedRuns

        print_json(ComparedRuns(found).to_dict())
    else:
        draw(found.sheet(everything=everything), picture, brief=True, why=why)
    if fail_on is not None:
        return ExitCode.CHANGED if fails(found.comparison, fail_on) else ExitCode.MEASURED
    return ExitCode.MEASURED if found.comparison.changes else ExitCode.UNREADABLE_RUN


def plot(
    run: str = argument("RUN", f"The run: {RUN_NAME}."),
    figure: str = argument("FIGURE", f"One of {options.NAMES}."),
    out: Path = option("FILE", "The new SVG file.", "-o", "--out", default=REQUIRED),
    overlaid: Sequence[str] = option(
        "RUN", "Draw this run into the same figure. Repeatable.", "--with", default=(), read=tuple
    ),
    theme: Theme = option(None, "The background to draw for.", default="light"),
    force: bool = FORCE,
) -> None:
    """Draw a figure of one or several runs into a file."""
    if figure not in KINDS:
        raise UsageError(f"there is no figure {plain(figure, 40)}", f"give one of {options.NAMES}")
    check_new(out, force=force)
    if out.suffix.lower() != ".svg":
        named = plain(out.with_suffix(".svg").name, 60)
        raise UsageError(
            f"plots are written as SVG, not as {plain(out.name, 60)}",
            f"name the file {named}; a browser or rsvg-convert turns it into PNG or PDF",
        )
    from microbench.analysis.evidence import evidence_by_device
    from microbench.archive import remarks
    from microbench.report.figures.canvas import DARK, LIGHT
    from microbench.report.figures.figure import Origin, drawn

    origins = []
    for path, recorded in map(load, (run, *overlaid)):
        with consistent(recorded):
            label, reference = remarks.read(path).label, is_reference(path)
            own = [Origin(evidence, label, reference) for evidence in evidence_by_device(recorded)]
            own = [origin for origin in own if drawn(figure, [origin]) is not None]
        if not own:
            raise runs.absent(figure, recorded)
        origins += own
    if (together := drawn(figure, origins)) is None:
        raise runs.absent(figure, recorded)
    write_new(out, together.svg(DARK if theme == "dark" else LIGHT), force=force)


def report(
    names: Sequence[str] = argument(
        "[RUN]...", f"The runs, drawn over each other. Each is {RUN_NAME}; default: the last run.", (), read=tuple
    ),
    out: Path = option("FILE", "The new HTML file.", "-o", "--out", default=Path("report.html")),
    redact: bool = options.REDACT,
    force: bool = FORCE,
) -> None:
    """Write runs as one HTML page that opens in any browser.

    The page contains its data, so it can be sent to others.
    """
    from microbench.analysis.evidence import evidence_by_device
    from microbench.analysis.stats import rows
    from microbench.archive import remarks
    from microbench.archive.redaction import redacted
    from microbench.report.figures.figure import Origin, figures
    from microbench.report.page.page import Subject, build

    check_new(out, force=force)
    subjects, origins = [], []
    for path, run in dict(map(load, names or (None,))).items():  # each once
        label = "" if redact else remarks.read(path).label
        shown = redacted(run) if redact else run
        with consistent(shown):
            all_rows = rows(shown)
            devices = evidence_by_device(shown, all_rows)
        own_name = path.name.partition(".")[0] if is_reference(path) else shown.run_id
        subjects.append(
            Subject(label or own_name, shown, devices, report_of(shown, path, all_rows), screen_of(shown, path))
        )
        origins += [Origin(evidence, label, is_reference(path)) for evidence in devices]
    page = build(subjects, list(figures(origins).values()))
    data = page.html.encode()
    write_new(out, data, force=force)
    thinned = f", with at most {page.carried.samples} samples a measurement" if page.carried.thinned else ""
    typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB, including the data{thinned}")

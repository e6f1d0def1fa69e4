"""The commands show, compare, plot and report. Heavy imports stay inside the commands."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench.cli import options
from microbench.cli.options import NAMES, REFERENCE_RUN, FailOn, Theme
from microbench.cli.output import check_new, draw, paged, write_new
from microbench.cli.runs import NEWEST_SEARCHED, consistent, grows, is_reference, load, read, report_of, screen_of
from microbench.core.bench import SUITES, discover
from microbench.core.errors import ExitCode, RunUnreadableError, UsageError
from microbench.core.units import plain
from microbench.report.figures.catalogue import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from microbench.compare.compare import Comparison
    from microbench.core.model import Run
    from microbench.report.document import Report
    from microbench.report.figures.figure import Figure
    from microbench.report.page.page import Page


# The page of one suite is at most this long.
SUITE_LINES = 120


def show(
    name: options.RunName = None,
    part: options.Part = None,
    everything: options.Everything = False,
    svg: options.Svg = None,
    force: options.Force = False,
    why: options.Why = False,
) -> None:
    """Show a recorded run on one screen, or a part of it.

    A suite shows its pictures and findings, a benchmark its tables, a figure is drawn alone, --all shows everything.
    The name of a suite, benchmark or figure alone means the newest run that has it.
    """
    if part is None and name and (name in (*SUITES, *KINDS) or (name.isidentifier() and name in discover())):
        name, part = None, name
    if part is not None:
        drawn = part_sheet(part, *load(name)) if name else newest_part(part)
        lines = SUITE_LINES if part in SUITES else None
        draw(drawn, svg, force=force, brief=part in (*SUITES, *KINDS), why=why, most_lines=lines)
        return
    path, run = load(name)
    if everything:
        with paged():
            draw(report_of(run, path), svg, force=force, why=why)
    else:
        draw(screen_of(run, path, name), svg, force=force, why=why)


def newest_part(part: str) -> Report:
    """The part of the newest run that has it: a later run of other benchmarks, or a check, does not hide it.

    Raises the error of the last run if none has it.
    """
    from microbench.runs import store

    for path in store.listing()[:NEWEST_SEARCHED]:
        with suppress(RunUnreadableError):
            return part_sheet(part, path, read(path))
    return part_sheet(part, *load(None))


def part_sheet(part: str, path: Path, run: Run) -> Report:
    """The report of one suite, one figure, or the tables of one benchmark. A suite wins over a figure of its name.

    Raises UsageError for an unknown part, RunUnreadableError if the run has no figures of it.
    """
    import msgspec

    if part in KINDS and part not in SUITES:
        from microbench.report.figures.figure import sheet

        with consistent(run):
            figure = sheet(part, run, reference=is_reference(path))
        if figure is None:
            raise _absent(part, run)
        return figure
    whole = report_of(run, path)
    if part in SUITES:
        sections = [section for section in whole.sections if section.suite == part]
    else:
        if part not in discover() and run.benchmark(part) is None:
            known = f"give a suite ({', '.join(SUITES)}), a benchmark, or {NAMES}"
            raise UsageError(f"there is no part {plain(part, 40)}", known)
        own = {section: [study for study in section.studies if study.benchmark == part] for section in whole.sections}
        sections = [
            msgspec.structs.replace(section, pictures=(), studies=tuple(studies), findings=(), verdict=None)
            for section, studies in own.items()
            if studies
        ]
    if not sections:
        cause = f"run {plain(run.run_id, 60)} has no figures of {part}"
        raise RunUnreadableError(cause, f"microbench run {part} measures them")
    return msgspec.structs.replace(whole, sections=tuple(sections), problems=None, environment=())


def compare(
    base: options.Base,
    new: options.New = None,
    fail_on: options.Fail = None,
    same_within: options.SameWithin = "3%",
    everything: options.AllFigures = False,
    why: options.Why = False,
    svg: options.Svg = None,
    force: options.Force = False,
) -> int:
    """Compare two runs and say which suites and figures changed.

    Each figure is slower, faster, the same, within 10 %, unclear or incomparable. A verdict needs five rounds of each
    run.
    """
    from microbench.compare import compare as comparing
    from microbench.compare.words import Side
    from microbench.report.sheets import comparison as drawing

    within = _share(same_within)
    (base_path, before), (new_path, after) = load(base), load(new)
    if base_path.resolve() == new_path.resolve():
        raise UsageError("BASE and NEW are the same run", "name another run; `microbench history` lists them")
    with consistent(before), consistent(after):
        comparison = comparing.compare(before, after, within)
        sides = Side(base, grows(base_path)), Side(new or after.run_id, grows(new_path))
        sheet = drawing.sheet(comparison, *sides, everything=everything)
    draw(sheet, svg, force=force, brief=True, why=why)
    return ExitCode.CHANGED if fail_on is not None and _failed(comparison, fail_on) else ExitCode.MEASURED


def _share(text: str) -> float:
    """The share of a percentage like "3%". Raises UsageError unless it is above 0 and at most 10 %."""
    from microbench.analysis.stats import STABLE_HALF_WIDTH

    with suppress(ValueError):
        share = float(text.strip().removesuffix("%")) / 100
        if 0 < share <= STABLE_HALF_WIDTH:
            return share
    raise UsageError(f"--same-within {plain(text, 20)} is no percentage above 0 and up to 10 %", "give one like 3%")


def _failed(comparison: Comparison, fail_on: FailOn) -> bool:
    """True if --fail-on applies to a figure or to a suite; a figure that NEW failed to measure counts as slower.

    Raises UsageError if nothing could be compared.
    """
    from microbench.compare.compare import BETTER, COUNTED, WORSE

    if comparison.lost and fail_on is not FailOn.FASTER:
        return True
    if not comparison.changes:
        raise UsageError("the two runs have no figure in common", "measure the same benchmarks in both")
    verdicts = {FailOn.SLOWER: WORSE, FailOn.FASTER: BETTER, FailOn.ANY: (*WORSE, *BETTER, *COUNTED)}
    if fail_on is FailOn.SUSPECTED:
        return comparison.has_changed(*WORSE) or any(change.costs_more for change in comparison.unconfirmed)
    return comparison.has_changed(*verdicts[fail_on])


def plot(
    run: options.PlottedRun,
    figure: options.FigureName,
    out: options.PlotFile,
    overlaid: options.OverlaidRuns = None,
    theme: options.PlotTheme = Theme.LIGHT,
    force: options.Force = False,
) -> None:
    """Draw a figure of one or several runs into a file."""
    _check(figure)
    check_new(out, force=force)
    from microbench.report.figures import canvas, files

    render = files.RENDERERS.get(out.suffix.lower())
    if render is None:
        cause = f"a figure cannot be written as {plain(out.name, 60)}"
        raise UsageError(cause, f"give a file name that ends in {', '.join(files.RENDERERS)}")
    drawn = _drawn(figure, [load(name) for name in (run, *(overlaid or ()))])
    write_new(out, render(drawn, canvas.DARK if theme is Theme.DARK else canvas.LIGHT), force=force)


def _drawn(name: str, runs: Sequence[tuple[Path, Run]]) -> Figure:
    """The figure of these runs together. Raises RunUnreadableError if one of them has no rows for it."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.report.figures.figure import Origin, drawn
    from microbench.runs import remarks

    origins = []
    for path, run in runs:
        with consistent(run):
            label, reference = remarks.read(path).label, is_reference(path)
            own = [Origin(evidence, label, reference) for evidence in evidence_by_device(run)]
            own = [origin for origin in own if drawn(name, [origin]) is not None]
        if not own:
            raise _absent(name, run)
        origins += own
    figure = drawn(name, origins)
    if figure is None:
        raise _absent(name, runs[0][1])
    return figure


def _check(figure: str) -> None:
    """Raise UsageError, which lists the figures, if there is none of this name."""
    if figure not in KINDS:
        raise UsageError(f"there is no figure {plain(figure, 40)}", f"give one of {NAMES}")


def _absent(name: str, run: Run) -> RunUnreadableError:
    """The error for a run without rows for a figure. It names the figures that the run has."""
    from microbench.report.figures.figure import available

    others = available(run)
    cause = f"run {plain(run.run_id, 60)} lacks the measurements of the figure {name}"
    cause += f"; it has {', '.join(others)}" if others else "; it has those of no figure"
    return RunUnreadableError(cause, f"microbench run {' '.join(KINDS[name].benchmarks)} measures them")


def report(
    names: options.Reported = None,
    out: options.PageFile = Path("report.html"),
    redact: options.Redact = False,
    force: options.Force = False,
) -> None:
    """Write runs as one HTML page that opens in any browser.

    The page contains its data, so it can be sent to others.
    """
    check_new(out, force=force)
    page = _page(tuple(names or (None,)), redact=redact)
    data = page.html.encode()
    write_new(out, data, force=force)
    thinned = f", with at most {page.carried.samples} samples a measurement" if page.carried.thinned else ""
    typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB, including the data{thinned}")


def _page(names: tuple[str | None, ...], *, redact: bool) -> Page:
    """The page of the named runs, each once. A redacted page shows no labels either."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.analysis.stats import rows
    from microbench.report.figures.figure import Origin, figures
    from microbench.report.page.page import Subject, build
    from microbench.runs import remarks
    from microbench.runs.redaction import redacted

    subjects, origins = [], []
    for path, run in dict(load(name) for name in names).items():
        label = "" if redact else remarks.read(path).label
        shown = redacted(run) if redact else run
        with consistent(shown):
            all_rows = rows(shown)
            devices = evidence_by_device(shown, all_rows)
        own_name = path.name.partition(".")[0] if is_reference(path) else shown.run_id
        subjects.append(Subject(label or own_name, shown, devices, report_of(shown, path, all_rows)))
        origins += [Origin(evidence, label, is_reference(path)) for evidence in devices]
    return build(subjects, list(figures(origins).values()))


# In the order of --help, each with the example at the end of its own help.
COMMANDS = (
    (show, f"microbench show {REFERENCE_RUN}"),
    (compare, "microbench compare nvidia-h200 --fail-on slower"),
    (plot, "microbench plot nvidia-h200 ladder -o ladder.svg"),
    (report, f"microbench report {REFERENCE_RUN} -o h200.html"),
)

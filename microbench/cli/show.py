"""The commands show, compare, plot and report. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench.cli import options
from microbench.cli.options import NAMES, REFERENCE_RUN, FailOn, Theme
from microbench.cli.output import draw, write_new
from microbench.cli.output import reported_errors as told
from microbench.cli.runs import consistent, grows, is_reference, load, report_of
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


def show(
    name: options.RunName = None,
    figure: options.ShownFigure = None,
    svg: options.Svg = None,
    brief: options.Brief = False,
    why: options.Why = False,
) -> None:
    """Show a run again: the last one, or a bundled reference; all of it, or one figure."""
    path, run = load(name)
    if figure is not None:
        draw(figure_sheet(figure, path, run), svg, brief=True)
    else:
        draw(report_of(run, path), svg, brief=brief, why=why)


def compare(
    base: options.Base,
    new: options.New = None,
    fail_on: options.Fail = None,
    everything: options.AllFigures = False,
    why: options.Why = False,
    svg: options.Svg = None,
) -> int:
    """Compare two runs: what is slower, faster, the same, unclear, or cannot be compared."""
    from microbench.compare import compare as comparing
    from microbench.compare.words import Side
    from microbench.report.sheets import comparison as drawing

    (base_path, before), (new_path, after) = load(base), load(new)
    if base_path.resolve() == new_path.resolve():
        raise UsageError("this is one and the same run", "name another one: `microbench history` lists them")
    with consistent(before), consistent(after):
        comparison = comparing.compare(before, after)
        sides = Side(base, grows(base_path)), Side(new or after.run_id, grows(new_path))
        sheet = drawing.sheet(comparison, *sides, everything=everything)
    draw(sheet, svg, brief=True, why=why)
    return ExitCode.CHANGED if fail_on is not None and _failed(comparison, fail_on) else ExitCode.MEASURED


def _failed(comparison: Comparison, fail_on: FailOn) -> bool:
    """Whether --fail-on applies. A figure that NEW failed to measure counts like a slower one. Raises UsageError if
    nothing could be compared, which is no success either."""
    from microbench.compare.compare import BETTER, COUNTED, WORSE

    if comparison.lost and fail_on is not FailOn.FASTER:
        return True
    if not comparison.changes:
        raise UsageError("the two runs have no figure in common", "measure the same benchmarks in both")
    verdicts = {FailOn.SLOWER: WORSE, FailOn.FASTER: BETTER, FailOn.ANY: (*WORSE, *BETTER, *COUNTED)}
    return bool(comparison.of(*verdicts[fail_on]))


# The commands that draw figures: plot, and show with the name of a figure.


def plot(
    run: options.PlottedRun,
    figure: options.FigureName,
    out: options.PlotFile,
    overlaid: options.OverlaidRuns = None,
    theme: options.PlotTheme = Theme.LIGHT,
) -> None:
    """Draw a figure of a run into a file; several runs lie over each other."""
    with told():
        checked(figure)
        from microbench.report.figures import canvas, files

        render = files.RENDERERS.get(out.suffix.lower())
        if render is None:
            cause = f"a figure cannot be written as {plain(out.name, 60)}"
            raise UsageError(cause, f"name a file that ends in {', '.join(files.RENDERERS)}")
        drawn = _drawn(figure, [load(name) for name in (run, *(overlaid or ()))])
        write_new(out, render(drawn, canvas.DARK if theme is Theme.DARK else canvas.LIGHT))


def _drawn(name: str, runs: Sequence[tuple[Path, Run]]) -> Figure:
    """The figure of these runs together. Raises RunUnreadableError if one of them has no rows for it."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.report.figures.figure import Origin, drawn
    from microbench.runs import remarks

    origins = []
    for path, run in runs:
        with consistent(run):
            label, reference = remarks.read(path).label, is_reference(path)
            own = [Origin(one, label, reference) for one in evidence_by_device(run)]
            own = [one for one in own if drawn(name, [one]) is not None]
        if not own:
            raise absent(name, run)
        origins += own
    figure = drawn(name, origins)
    if figure is None:
        raise absent(name, runs[0][1])
    return figure


def figure_sheet(name: str, path: Path, run: Run) -> Report:
    """A figure of a run for the terminal.

    Raises UsageError for an unknown one, RunUnreadableError if the run has no rows for it.
    """
    from microbench.report.figures import figure

    with consistent(run):
        sheet = figure.sheet(checked(name), run, reference=is_reference(path))
    if sheet is None:
        raise absent(name, run)
    return sheet


def checked(name: str) -> str:
    """The name of a figure. Raises UsageError that lists the figures for any other name."""
    if name not in KINDS:
        raise UsageError(f"there is no figure {plain(name, 40)}", f"choose one of {NAMES}")
    return name


def absent(name: str, run: Run) -> RunUnreadableError:
    """The error for a run without rows for a figure: the figures that it has, and what measures this one."""
    from microbench.report.figures.figure import available

    others = available(run)
    cause = f"run {plain(run.run_id, 60)} lacks what the figure {name} shows"
    cause += f"; it has {', '.join(others)}" if others else "; it has no figure at all"
    return RunUnreadableError(cause, f"microbench run {' '.join(KINDS[name].benchmarks)} measures them")


# The command that makes a page of runs. Heavy imports stay inside it.


def report(
    names: options.Reported = None,
    out: options.PageFile = Path("report.html"),
    redact: options.Redact = False,
) -> None:
    """Make one page of a run, or of several over each other, to open in any browser and to hand on."""
    with told():
        page = _page(tuple(names or (None,)), redact=redact)
        data = page.html.encode()
        write_new(out, data)
        kept = f"; of each measurement at most {page.carried.samples} samples" if page.carried.thinned else ""
        typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB, the data with it{kept}")


def _page(names: tuple[str | None, ...], *, redact: bool) -> Page:
    """The page of the runs of these names, each once; a redacted page has no labels of runs either."""
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
            found = rows(shown)
            groups = evidence_by_device(shown, found)
        own_name = path.name.partition(".")[0] if is_reference(path) else shown.run_id
        subjects.append(Subject(label or own_name, shown, groups, report_of(shown, path, found)))
        origins += [Origin(one, label, is_reference(path)) for one in groups]
    return build(subjects, list(figures(origins).values()))


# In the order of --help, each with the example at the end of its own help.
COMMANDS = (
    (show, f"microbench show {REFERENCE_RUN}"),
    (compare, "microbench compare nvidia-h200 --fail-on slower"),
    (plot, "microbench plot nvidia-h200 ladder -o ladder.svg"),
    (report, f"microbench report {REFERENCE_RUN} -o h200.html"),
)

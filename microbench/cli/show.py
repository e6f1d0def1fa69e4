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
    from microbench.report.figures.figure import Figure, Origin
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
    from microbench.report import comparison as drawing

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


# The commands that draw figures: plot, and show's one figure. Heavy imports stay inside commands.


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
        from microbench.report.figures import rendering
        from microbench.report.figures import theme as themes

        render = rendering.RENDERERS.get(out.suffix.lower())
        if render is None:
            kinds = ", ".join(rendering.RENDERERS)
            raise UsageError(f"{plain(out.name, 60)} has no ending of a picture", f"name a file that ends in {kinds}")
        drawn = _drawn(figure, [load(name) for name in (run, *(overlaid or ()))])
        write_new(out, render(drawn, themes.DARK if theme is Theme.DARK else themes.LIGHT))


def _drawn(name: str, runs: Sequence[tuple[Path, Run]]) -> Figure:
    """The figure of these runs together. Raises RunUnreadableError where one of them has no rows for it."""
    from microbench.report.figures.catalogue import drawn

    origins = []
    for path, run in runs:
        with consistent(run):
            found = [one for one in origins_of(path, run) if drawn(name, [one]) is not None]
        if not found:
            raise absent(name, run)
        origins += found
    figure = drawn(name, origins)
    if figure is None:
        raise absent(name, runs[0][1])
    return figure


def origins_of(path: Path, run: Run, label: str | None = None) -> list[Origin]:
    """The GPUs of a run, for figures; ``label`` replaces what a person calls it."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.report.figures.figure import Origin
    from microbench.runs import remarks

    called = remarks.read(path).label if label is None else label
    return [Origin(one, called, is_reference(path)) for one in evidence_by_device(run)]


def figure_sheet(name: str, path: Path, run: Run) -> Report:
    """A figure of a run for the terminal. Raises UsageError for an unknown one, RunUnreadableError where the run has no
    rows for it."""
    from microbench.report.figures import pictures

    with consistent(run):
        sheet = pictures.sheet(checked(name), run, reference=is_reference(path))
    if sheet is None:
        raise absent(name, run)
    return sheet


def checked(name: str) -> str:
    """The name of a figure. Raises UsageError that lists them for any other."""
    if name not in KINDS:
        raise UsageError(f"there is no figure {plain(name, 40)}", f"choose one of {NAMES}")
    return name


def absent(name: str, run: Run) -> RunUnreadableError:
    """What is said where a run has no rows for a figure: which ones it has, and what measures this one."""
    from microbench.report.figures import pictures

    others = pictures.there(run)
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
        made = _page(tuple(names or (None,)), redact=redact)
        data = made.html.encode()
        write_new(out, data)
        kept = f"; of each measurement at most {made.carried.samples} samples" if made.carried.thinned else ""
        typer.echo(f"{plain(out)}: {len(data) / 1e6:.2f} MB, the data with it{kept}")


def _page(names: tuple[str | None, ...], *, redact: bool) -> Page:
    """The page of the runs of these names, each once. Without names of people and machines it has no labels either."""
    from microbench.report.page import page
    from microbench.runs import remarks

    runs = dict(load(name) for name in names)
    labels = {path: "" if redact else remarks.read(path).label for path in runs}
    if redact:
        from microbench.runs.redaction import redacted

        runs = {path: redacted(run) for path, run in runs.items()}
    subjects = [
        page.Subject(labels[path] or _called(path, run), run, report_of(run, path)) for path, run in runs.items()
    ]
    return page.build(subjects, _figures(runs, labels))


def _called(path: Path, run: Run) -> str:
    """The name by which a run is found."""
    return path.name.partition(".")[0] if is_reference(path) else run.run_id


def _figures(runs: dict[Path, Run], labels: dict[Path, str]) -> list[Figure]:
    from microbench.report.figures.catalogue import figures

    origins = []
    for path, run in runs.items():
        with consistent(run):
            origins += origins_of(path, run, labels[path])
    return list(figures(origins).values())


# In the order of --help, each with the example at the end of its own help.
COMMANDS = (
    (show, f"microbench show {REFERENCE_RUN}"),
    (compare, "microbench compare nvidia-h200 --fail-on slower"),
    (plot, "microbench plot nvidia-h200 ladder -o ladder.svg"),
    (report, f"microbench report {REFERENCE_RUN} -o h200.html"),
)

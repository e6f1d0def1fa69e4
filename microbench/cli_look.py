"""The commands that draw figures: plot, and show's one figure. Heavy imports stay inside commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from microbench import options_look
from microbench.cli_runs import consistent, is_reference, load, write_new
from microbench.ending import told
from microbench.errors import RunUnreadableError, UsageError
from microbench.options_look import NAMES, Theme
from microbench.report.figures import KINDS
from microbench.text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from microbench.model import Run
    from microbench.report.document import Report
    from microbench.report.figures.figure import Figure, Origin


def plot(
    run: options_look.PlottedRun,
    figure: options_look.FigureName,
    out: options_look.PlotFile,
    overlaid: options_look.OverlaidRuns = None,
    theme: options_look.PlotTheme = Theme.LIGHT,
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
    from microbench.report.figures import drawn

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
    from microbench import remarks
    from microbench.explain.evidence import evidence_by_device
    from microbench.report.figures.figure import Origin

    called = remarks.read(path).label if label is None else label
    return [Origin(one, called, is_reference(path)) for one in evidence_by_device(run)]


def figure_sheet(name: str, path: Path, run: Run) -> Report:
    """A figure of a run for the terminal. Raises UsageError for an unknown one, RunUnreadableError where the run has no
    rows for it."""
    from microbench.report import pictures

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
    from microbench.report import pictures

    others = pictures.there(run)
    cause = f"run {plain(run.run_id, 60)} lacks what the figure {name} shows"
    cause += f"; it has {', '.join(others)}" if others else "; it has no figure at all"
    return RunUnreadableError(cause, f"microbench run {' '.join(KINDS[name].benchmarks)} measures them")


# In the order in which --help lists them, each with the example that its own help ends with.
COMMANDS = ((plot, "microbench plot nvidia-h200 ladder -o ladder.svg"),)

"""The command that makes a page of runs. Heavy imports stay inside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench import options_page, options_share
from microbench.cli_look import origins_of
from microbench.cli_runs import consistent, is_reference, load, report_of, write_new
from microbench.ending import told
from microbench.options import REFERENCE_RUN
from microbench.text import plain

if TYPE_CHECKING:
    from microbench.model import Run
    from microbench.report.figures.figure import Figure
    from microbench.report.page import Page


def report(
    names: options_page.Reported = None,
    out: options_page.PageFile = Path("report.html"),
    redact: options_share.Redact = False,
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
    from microbench import remarks
    from microbench.report import page

    runs = dict(load(name) for name in names)
    labels = {path: "" if redact else remarks.read(path).label for path in runs}
    if redact:
        from microbench.redaction import redacted

        runs = {path: redacted(run) for path, run in runs.items()}
    subjects = [
        page.Subject(labels[path] or _called(path, run), run, report_of(run, path)) for path, run in runs.items()
    ]
    return page.build(subjects, _figures(runs, labels))


def _called(path: Path, run: Run) -> str:
    """The name by which a run is found."""
    return path.name.partition(".")[0] if is_reference(path) else run.run_id


def _figures(runs: dict[Path, Run], labels: dict[Path, str]) -> list[Figure]:
    from microbench.report.figures import figures

    origins = []
    for path, run in runs.items():
        with consistent(run):
            origins += origins_of(path, run, labels[path])
    return list(figures(origins).values())


# With the example that its own help ends with.
COMMANDS = ((report, f"microbench report {REFERENCE_RUN} -o h200.html"),)

"""The command diagnose. Heavy imports stay inside it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.cli.options import ANSWER, COSTS, WHY, Picture
from microbench.cli.output import check_new, draw, print_json, write_new
from microbench.core.errors import ExitCode, UsageError
from microbench.core.options import argument, flag, option
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.diagnosis.diagnosis import Diagnosis

PAGES = (".html", ".htm")
LIMIT = re.compile(r"(launch-bound|idle)\s*>\s*(\d+(?:\.\d+)?)\s*%")


def diagnose(
    *,
    traces: list[Path] = argument("TRACE...", "Traces, or folders of them: one for each rank."),
    step: str | None = option("TIME", "The time of a step without a profiler, or whose call is one: train.py:step."),
    run: str | None = COSTS,
    fail_on: str | None = option("LIMIT", "End with exit code 5 beyond this: launch-bound>30% or idle>50%."),
    json: bool = ANSWER,
    everything: bool = flag("Add tables: causes, places, changes, what a graph cannot hold.", "--all"),
    from_: str | None = option(
        "TIME", "Diagnose only what was submitted from this time after the first event on: 1.5s."
    ),
    to: str | None = option("TIME", "Diagnose only what was submitted before this time: 2s."),
    timeline: bool = flag("Draw a typical step to scale: host, streams, idle time."),
    page: Path | None = option(
        "FILE", "Write everything to this new HTML page, with a typical step to zoom into.", "-o", "--out"
    ),
    save: Path | None = option(
        "FILE", "Save the step without the profiler to this new .toml file for predict and whatif."
    ),
    speedscope: Path | None = option(
        "FILE", "Write the idle time by cause and function to this new file for speedscope.app, a flame graph."
    ),
    perfetto: Path | None = option(
        "FILE", "Write idle time by cause, streams and host code to this new file for ui.perfetto.dev, a timeline."
    ),
    why: bool = WHY,
    picture: Picture,
) -> int:
    """Say why the GPU waits in a profiler's trace, and what a CUDA graph would give.

    Reads traces of torch.profiler, Nsight Systems and JAX, and recordings of microbench watch.
    """
    from microbench.diagnosis import lanes, stacks
    from microbench.library.answers import diagnosed, files_of
    from microbench.model.step_file import typed_seconds, written
    from microbench.report.sheets import diagnosis as drawing
    from microbench.report.sheets import recorded_step
    from microbench.report.terminal import terminal

    limit = LIMIT.fullmatch(fail_on.strip()) if fail_on is not None else None
    if fail_on is not None and limit is None:
        raise UsageError(f"--fail-on {fail_on} is not understood", "give launch-bound>30% or idle>50%")
    from_s, to_s = (typed_seconds(*each) for each in (("--from", from_), ("--to", to)))
    for path, endings, written_as in ((page, PAGES, "the page as HTML"), (save, (".toml",), "the step as TOML")):
        if path is not None and path.suffix.lower() not in ("", *endings):
            named = plain(path.with_suffix(endings[0]).name, 60)
            raise UsageError(
                f"diagnose writes {written_as}, not as {plain(path.name, 60)}",
                f"name the file {named}{'; a browser prints it to PDF' if path.suffix.lower() == '.pdf' else ''}",
            )
    for path in (page, save, speedscope, perfetto):
        if path is not None:
            check_new(path, force=picture.force)
    files = files_of(traces)
    asked = (("--timeline", timeline), ("--save", save), ("--speedscope", speedscope), ("--perfetto", perfetto))
    if len(files) > 1 and (single := [name for name, given in asked if given]):
        raise UsageError(f"{single[0]} needs a single trace", f"give one of the {len(files)}")
    found = diagnosed(traces, run, step, from_s, to_s)
    several, costs = found.several, found.costs.words
    terminal.tell([f"left out: {error.cause}" for error in found.left_out], terminal.open_console(sys.stderr))
    if save is not None:
        if several[0].unwatched is None:
            raise UsageError(f"the step cannot be saved: {several[0].why_no_graph}", "leave out --save")
        write_new(save, written(several[0].unwatched).encode(), force=picture.force)
    for path, made_by in ((speedscope, stacks.speedscope), (perfetto, lanes.perfetto)):
        if path is not None:
            write_new(path, made_by(several[0]), force=picture.force)
    if page is not None:
        from microbench.report.page import diagnosis as pages

        write_new(page, pages.build(several, costs).encode(), force=picture.force)
    if json:
        print_json(drawing.answer(several[0]) if len(several) == 1 else list(map(drawing.answer, several)))
    elif timeline:
        tables = drawing.tables(several[0])[: None if everything else 1]
        draw(recorded_step.sheet(several[0], costs, tables), picture, brief=True, why=why)
    else:
        draw(found.screen(everything=everything), picture, why=why)
    if not json:
        made = [f"written: {plain(path)}" for path in (page, save, speedscope, perfetto) if path is not None]
        terminal.tell(made, terminal.open_console(sys.stderr))
    changed = limit is not None and any(_beyond(one, limit[1], float(limit[2]) / 100) for one in several)
    return ExitCode.CHANGED if changed else ExitCode.MEASURED


def _beyond(diagnosis: Diagnosis, what: str, most: float) -> bool:
    """Whether a share of the time lies above the limit. Unknown shares count as above it."""
    from microbench.diagnosis import words

    idle = diagnosis.idle
    if idle is None:
        return True
    return (words.launch_share(diagnosis) if what == "launch-bound" else idle.idle_s / idle.span_s) > most


COMMANDS = ((diagnose, "microbench diagnose trace.json.gz --step 1.93ms"),)

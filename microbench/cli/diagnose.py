"""The command diagnose. Heavy imports stay inside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from microbench.cli.options import ANSWER, COSTS, WHY, Picture
from microbench.cli.output import check_new, draw, print_bytes, print_json, tell, write_new
from microbench.core.errors import ExitCode, UsageError
from microbench.core.options import argument, flag, option
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.diagnosis.changed import Changed, Limit
    from microbench.diagnosis.diagnosis import Diagnosis

Form = Literal["screen", "json", "markdown", "openmetrics"]
PAGES = (".html", ".htm")
LIMIT = re.compile(r"(launch-bound|idle)\s*>\s*(\d+(?:\.\d+)?)\s*%")


def diagnose(
    *,
    traces: list[Path] = argument(
        "TRACE...", "A trace; BEFORE and AFTER, of which each may be counts; or one for each rank, or folders of them."
    ),
    step: str | None = option("TIME", "A step's time without a profiler, or what is one: train.py:step, annotation."),
    run: str | None = COSTS,
    fail_on: str | None = option(
        "LIMIT",
        "End with exit code 5 beyond this: launch-bound>30%, idle>50%, or counts of a step: 'launches>+0, waits>+0'.",
    ),
    counts: bool = flag("Show the counts of a step instead: launches, waits, copies; with --json for a baseline."),
    markdown: bool = flag("Print what changed from BEFORE to AFTER as Markdown for a pull request."),
    openmetrics: bool = flag("Print the counts of a step as OpenMetrics text."),
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

    Reads traces of torch.profiler, Nsight Systems and JAX, and recordings of microbench watch. Of two files that are
    no ranks of one job it says what changed in a step: what it submits, where, and its time.
    """
    from microbench.diagnosis import lanes, stacks
    from microbench.diagnosis.changed import are_two, compare, limits, side
    from microbench.library.answers import diagnosed, files_of, is_file_of_counts
    from microbench.model.step_file import typed_seconds, written
    from microbench.report.sheets import diagnosis as drawing
    from microbench.report.sheets import recorded_step

    limit = LIMIT.fullmatch(fail_on.strip()) if fail_on is not None else None
    of_counts = limits(fail_on) if fail_on is not None and limit is None else []
    from_s, to_s = (typed_seconds(*each) for each in (("--from", from_), ("--to", to)))
    _check_ending(page, PAGES, "the page as HTML")
    _check_ending(save, (".toml",), "the step as TOML")
    for path in (page, save, speedscope, perfetto):
        if path is not None:
            check_new(path, force=picture.force)
    if counts or markdown or openmetrics or of_counts or any(map(is_file_of_counts, traces)):
        if page or save or speedscope or perfetto or timeline or limit is not None:
            raise UsageError("counts are compared without pictures and shares of time", "leave the other options out")
        window = {"run": run, "step": step, "from_s": from_s, "to_s": to_s}
        form: Form = "markdown" if markdown else "openmetrics" if openmetrics else "json" if json else "screen"
        return _counts(traces, window, of_counts, form, picture)
    files = files_of(traces)
    asked = (("--timeline", timeline), ("--save", save), ("--speedscope", speedscope), ("--perfetto", perfetto))
    if len(files) > 1 and (single := [name for name, given in asked if given]):
        raise UsageError(f"{single[0]} needs a single trace", f"give one of the {len(files)}")
    found = diagnosed(traces, run, step, from_s, to_s)
    several, costs = found.several, found.costs.words
    if page is None and found.files == traces and are_two(several):
        sides = [side(path.name, one) for path, one in zip(traces, several, strict=True)]
        if limit is not None:
            raise UsageError(f"--fail-on {fail_on} is for one trace", "for BEFORE and AFTER give launches>+0")
        return _changed(compare(*sides), costs, of_counts, "json" if json else "screen", picture)
    tell([f"left out: {one.cause}" for one in found.left_out], error=True, whole=False)
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
        answers = found.answers()
        print_json(answers[0] if len(answers) == 1 else answers)
    elif timeline:
        tables = drawing.tables(several[0])[: None if everything else 1]
        draw(recorded_step.sheet(several[0], costs, tables), picture, brief=True, why=why)
    else:
        draw(found.screen(everything=everything), picture, why=why)
    if not json:
        made = [path for path in (page, save, speedscope, perfetto) if path is not None]
        tell([f"written: {plain(path)}" for path in made], error=True)
    changed = limit is not None and any(_beyond(one, limit[1], float(limit[2]) / 100) for one in several)
    return ExitCode.CHANGED if changed else ExitCode.MEASURED


def _check_ending(path: Path | None, endings: Sequence[str], written_as: str) -> None:
    """Raise UsageError for a file with another ending."""
    if path is not None and path.suffix.lower() not in ("", *endings):
        named = plain(path.with_suffix(endings[0]).name, 60)
        raise UsageError(
            f"diagnose writes {written_as}, not as {plain(path.name, 60)}",
            f"name the file {named}{'; a browser prints it to PDF' if path.suffix.lower() == '.pdf' else ''}",
        )


def _counts(traces: list[Path], options: dict[str, Any], of_counts: list[Limit], form: Form, picture: Picture) -> int:
    """Show the counts of one recording, or what changed between two."""
    from microbench.diagnosis.changed import compare
    from microbench.diagnosis.counts import written
    from microbench.library.answers import recorded_side
    from microbench.report.sheets import counts as drawing

    if len(traces) > 2 or any(path.is_dir() for path in traces):
        raise UsageError("counts are those of one file, or of BEFORE and AFTER", "give one or two files")
    sides = [recorded_side(path, **options) for path in traces]
    if len(sides) == 2:
        return _changed(compare(*sides), "", of_counts, form, picture)
    if form == "markdown":
        raise UsageError("--markdown says what changed", "give BEFORE and AFTER")
    if form == "json":
        print_bytes(written(sides[0].counts))
    elif form == "openmetrics":
        print_bytes(drawing.counts_openmetrics(sides[0]).encode())
    else:
        draw(drawing.counts_screen(sides[0]), picture)
    return _ended([one for one in of_counts if one.passed(None, sides[0].counts)])


def _changed(changed: Changed, costs: str, of_counts: list[Limit], form: Form, picture: Picture) -> int:
    """Show what changed, and end with the exit code of the limits."""
    from microbench.report.sheets import counts as drawing

    if form == "openmetrics":
        raise UsageError("--openmetrics is for one recording", "give one file")
    if form == "json":
        print_json(drawing.changed_answer(changed))
    elif form == "markdown":
        print_bytes(drawing.changed_markdown(changed).encode())
    else:
        draw(drawing.changed_screen(changed, costs), picture)
    if of_counts and changed.why_not:
        raise UsageError(f"--fail-on cannot be judged: {changed.why_not}", "record more steps, or annotate them")
    if changed.why_not:
        return ExitCode.UNREADABLE_RUN
    sides = changed.before.counts, changed.after.counts
    return _ended([one for one in of_counts if one.passed(*sides, changed.every, changed.some)])


def _ended(passed: list[Limit]) -> int:
    """Say which limits are passed; the exit code."""
    tell([f"failed: {one.text}" for one in passed], error=True)
    return ExitCode.CHANGED if passed else ExitCode.MEASURED


def _beyond(diagnosis: Diagnosis, what: str, most: float) -> bool:
    """Whether a share of the time lies above the limit. Unknown shares count as above it."""
    from microbench.diagnosis import words

    idle = diagnosis.idle
    if idle is None:
        return True
    return (words.launch_share(diagnosis) if what == "launch-bound" else idle.idle_s / idle.span_s) > most

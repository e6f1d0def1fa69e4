"""The command diagnose. Heavy imports stay inside it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from microbench.cli import options
from microbench.cli.output import check_new, draw, print_bytes, write_new
from microbench.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from microbench.diagnosis.diagnosis import Diagnosis

LIMIT = re.compile(r"(launch-bound|idle)\s*>\s*(\d+(?:\.\d+)?)\s*%")


def diagnose(
    traces: options.Traces,
    step: options.TrueStep = None,
    run: options.PredictedRun = None,
    fail_on: options.DiagnosisFailOn = None,
    json: options.DiagnosisJson = False,
    everything: options.DiagnosisAll = False,
    from_: options.DiagnosisFrom = None,
    to: options.DiagnosisTo = None,
    timeline: options.DiagnosisTimeline = False,
    page: options.DiagnosisPage = None,
    save: options.DiagnosisSave = None,
    why: options.Why = False,
    svg: options.Svg = None,
    force: options.Force = False,
) -> int:
    """Say why the GPU waits in a profiler's trace, and what a CUDA graph would give.

    Reads traces of torch.profiler, Nsight Systems and JAX, and recordings of microbench watch.
    """
    from microbench.library.answers import diagnosed, files_of
    from microbench.model.step_file import typed_seconds
    from microbench.report.sheets import diagnosis as drawing
    from microbench.report.sheets import recorded_step
    from microbench.report.terminal import terminal

    limit = _limit(fail_on) if fail_on is not None else None
    step_s, from_s, to_s = (typed_seconds(*each) for each in (("--step", step), ("--from", from_), ("--to", to)))
    for path in (page, save):
        if path is not None:
            check_new(path, force=force)
    files = files_of(traces)
    if len(files) > 1 and (timeline or save is not None):
        raise UsageError(
            f"{'--timeline' if timeline else '--save'} needs a single trace", f"give one of the {len(files)}"
        )
    found = diagnosed(traces, run, step_s, from_s, to_s)
    several, costs = found.several, found.costs.words
    terminal.tell([f"left out: {error.cause}" for error in found.left_out], terminal.open_console(sys.stderr))
    if save is not None:
        write_new(save, _saved(several[0]), force=force)
    if page is not None:
        write_new(page, _page(several, costs), force=force)
    if json:
        print_bytes(drawing.encoded(several))
    elif timeline:
        draw(recorded_step.sheet(several[0], costs, drawing.tables(several[0])), svg, force=force, brief=True, why=why)
    else:
        draw(found.screen(everything=everything), svg, force=force, why=why)
    changed = limit is not None and any(_beyond(one, *limit) for one in several)
    return ExitCode.CHANGED if changed else ExitCode.MEASURED


def _saved(diagnosis: Diagnosis) -> bytes:
    """The step of a trace as a workload file."""
    from microbench.model.step_file import written

    workload = diagnosis.unwatched
    if workload is None:
        raise UsageError(f"the step cannot be saved: {diagnosis.why_no_graph}", "leave out --save")
    return written(workload).encode()


def _page(several: list[Diagnosis], costs: str) -> bytes:
    """All diagnoses as one HTML page."""
    from microbench.report.page.diagnosis import build

    return build(several, costs).encode()


def _limit(text: str) -> tuple[str, float]:
    match = LIMIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--fail-on {text} is not understood", "give launch-bound>30% or idle>50%")
    return match[1], float(match[2]) / 100


def _beyond(diagnosis: Diagnosis, what: str, most: float) -> bool:
    """Whether a share of the time lies above the limit. Unknown shares count as above it."""
    from microbench.diagnosis import words

    idle = diagnosis.idle
    if idle is None:
        return True
    return (words.launch_share(diagnosis) if what == "launch-bound" else idle.idle_s / idle.span_s) > most


COMMANDS = ((diagnose, "microbench diagnose trace.json.gz --step 1.93ms"),)

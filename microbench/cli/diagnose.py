"""The command diagnose. Heavy imports stay inside it."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.cli import options
from microbench.cli.output import check_new, draw, print_bytes, write_new
from microbench.cli.runs import consistent, is_reference, last_with, load
from microbench.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from microbench.core.model import Run
    from microbench.diagnose.diagnosis import Diagnosis
    from microbench.predict.constants import Fit
    from microbench.report.document import Screen

# Files of a folder that may be traces.
ENDINGS = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".pb", ".pb.gz", ".rows")
LONGEST_TRACE_S = 86400.0
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
    from microbench.diagnose.diagnosis import diagnose as found_in
    from microbench.diagnose.window import between
    from microbench.report.sheets import diagnosis as drawing
    from microbench.report.sheets import recorded_step
    from microbench.report.terminal import terminal
    from microbench.traces.reading import read

    limit = _limit(fail_on) if fail_on is not None else None
    step_s, from_s, to_s = (typed_seconds(*each) for each in (("--step", step), ("--from", from_), ("--to", to)))
    for path in (page, save):
        if path is not None:
            check_new(path, force=force)
    files = _files(traces)
    if len(files) > 1 and (timeline or save is not None):
        raise UsageError(
            f"{'--timeline' if timeline else '--save'} needs a single trace", f"give one of the {len(files)}"
        )
    fit, gpu, costs = costs_of(run)
    several, used, refused = [], [], []
    for path in files:
        try:
            trace = read(path)
            part = trace if from_s is None and to_s is None else between(trace, from_s, to_s)
            several.append(found_in(part, fit, step_s, gpu))
            used.append(path)
        except UsageError as error:  # of the processes of a folder some may have used no GPU
            if path in traces:
                raise
            refused.append(error)
    if not several:
        raise refused[0]
    terminal.tell([f"left out: {error.cause}" for error in refused], terminal.open_console(sys.stderr))
    if save is not None:
        write_new(save, _saved(several[0]), force=force)
    if page is not None:
        write_new(page, _page(several, costs), force=force)
    if json:
        print_bytes(drawing.encoded(several))
    elif timeline:
        draw(recorded_step.sheet(several[0], costs, drawing.tables(several[0])), svg, force=force, brief=True, why=why)
    else:
        draw(screen_of(several, costs, used, everything=everything), svg, force=force, why=why)
    changed = limit is not None and any(_beyond(one, *limit) for one in several)
    return ExitCode.CHANGED if changed else ExitCode.MEASURED


def screen_of(several: list[Diagnosis], costs: str, files: list[Path], *, everything: bool = False) -> Screen:
    """One diagnosis on one screen, several beside each other."""
    from microbench.report.sheets import diagnosis as drawing

    if len(several) > 1:
        return drawing.ranks_screen(several, costs)
    return drawing.screen(several[0], costs, f"microbench diagnose {files[0]}", everything=everything)


def typed_seconds(option: str, text: str | None) -> float | None:
    """The time that an option was given, in s."""
    from microbench.core.units import typed_time
    from microbench.predict.step_file import typed

    return typed(partial(typed_time, longest_s=LONGEST_TRACE_S), text, option) if text is not None else None


def _saved(diagnosis: Diagnosis) -> bytes:
    """The step of a trace as a workload file."""
    from microbench.predict.step_file import written

    workload = diagnosis.unwatched
    if workload is None:
        raise UsageError(f"the step cannot be saved: {diagnosis.why_no_graph}", "leave out --save")
    return written(workload).encode()


def _page(several: list[Diagnosis], costs: str) -> bytes:
    """All diagnoses as one HTML page."""
    from microbench.report.page.diagnosis import build

    return build(several, costs).encode()


def _files(named: list[Path]) -> list[Path]:
    """The files that are named, and those of named folders that may be traces."""
    files: list[Path] = []
    for path in named:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(one for one in path.iterdir() if one.name.endswith(ENDINGS) and one.is_file())
        if not inside:
            raise UsageError(f"the folder {path} has no trace", f"traces end in {', '.join(ENDINGS)}")
        files += inside
    return files


def costs_of(name: str | None) -> tuple[Fit, str, str]:
    """The constants of the named run, or of the newest that has them, their GPU, and in words whose they are."""
    from microbench.predict.fit import fit_for, suits
    from microbench.predict.workload import Kernels, Wait, Workload

    usual = Workload((Kernels(10, (1e-6,)), Wait()))
    path, run = load(name) if name is not None else last_with(lambda one: suits(one, usual))
    with consistent(run):
        evidence, fit = fit_for(run, usual)
    return fit, evidence.gpu.name if evidence.gpu is not None else "", _whose(run, reference=is_reference(path))


def _whose(run: Run, *, reference: bool) -> str:
    simulated = "SIMULATED " if run.simulated else ""
    return f"{simulated}costs of {'the bundled reference' if reference else f'run {run.run_id}'}"


def _limit(text: str) -> tuple[str, float]:
    match = LIMIT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--fail-on {text} is not understood", "give launch-bound>30% or idle>50%")
    return match[1], float(match[2]) / 100


def _beyond(diagnosis: Diagnosis, what: str, most: float) -> bool:
    """Whether a share of the time lies above the limit. Unknown shares count as above it."""
    from microbench.diagnose import words

    idle = diagnosis.idle
    if idle is None:
        return True
    return (words.launch_share(diagnosis) if what == "launch-bound" else idle.idle_s / idle.span_s) > most


COMMANDS = ((diagnose, "microbench diagnose trace.json.gz --step 1.93ms"),)

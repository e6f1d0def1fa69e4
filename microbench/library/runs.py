"""Finds and loads runs by name, measures new ones, and makes the screen or a part of the report of a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.core.errors import RunUnreadableError, UsageError, nearest
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.analysis.evidence import Evidence
    from microbench.analysis.stats import Row
    from microbench.core.bench import Benchmark
    from microbench.core.model import Run
    from microbench.library.options import RunOptions
    from microbench.report.document import Report, Screen
    from microbench.session.messages import Listener
    from microbench.session.session import RunResult

# The bundled run of one GPU with every suite.
REFERENCE_RUN = "nvidia-h200"
NEWEST_SEARCHED = 20
LAST = "last"
# compare needs this many rounds of each run for a verdict.
ROUNDS_TO_COMPARE = 5
# The benchmarks of a user's own functions and kernels.
STEP, KERNEL = "own_step", "own_kernel"
# The benchmark that gives the ceilings of own kernels.
CEILINGS = "memory_stream"


def located(name: str | None) -> Path:
    """The file of the named run, or of the last one. Raises RunUnreadableError."""
    from microbench.archive import store

    path = store.find(name) if name not in (None, LAST) else store.last()
    if path is None:
        raise RunUnreadableError(
            "there is no run yet",
            f"measure one: microbench run; or see a bundled one: microbench show {REFERENCE_RUN}",
        )
    return store.newest(path)


def load(name: str | None) -> tuple[Path, Run]:
    """The named run, or the last one, with its file. Raises RunUnreadableError."""
    from microbench.archive import store

    path = located(name)
    return path, store.read(path)


def last_with(suits: Callable[[Run], bool], figures: Callable[[Run], int] | None = None) -> tuple[Path, Run]:
    """The newest run that ``suits``, else the bundled run with the most ``figures``, or REFERENCE_RUN."""
    from microbench.archive import store

    for path in store.listing()[:NEWEST_SEARCHED]:
        with suppress(RunUnreadableError):
            run = store.read(path)
            with consistent(run):
                if suits(run):
                    return path, run
    if figures is None:
        return load(REFERENCE_RUN)
    bundled = [(path, store.read(path)) for path in store.bundled().values()]
    return max(bundled, key=lambda pair: figures(pair[1]))


def is_reference(path: Path) -> bool:
    """True if that file is a bundled run."""
    from microbench.archive import store

    return path in store.bundled().values()


def grows(path: Path) -> bool:
    """True if sessions can be added to the run; bundled and compressed runs never grow."""
    from microbench.archive import store

    return not is_reference(path) and not store.is_packed(path)


def adding_to(name: str | None, path: Path, run: Run) -> tuple[str, ...]:
    """The options with which `microbench run` adds to the run called ``name``; none if it never grows."""
    if not grows(path):
        return ()
    return "--into", name or run.run_id, *(("--device", "fake") if run.simulated else ())


@contextmanager
def consistent(run: Run) -> Iterator[None]:
    """Raise RunUnreadableError if arithmetic fails on the samples of a run that could be read."""
    import msgspec

    try:
        yield
    except (ArithmeticError, ValueError, msgspec.DecodeError) as error:
        cause = f"run {run.run_id} contains impossible values: {error}"
        raise RunUnreadableError(cause, "measure again, or show another run") from None


def screen_of(run: Run, path: Path, name: str | None = None) -> Screen:
    """The answer of a run on one screen. Its commands call the run ``name``, by default its path; the last run needs
    no name."""
    from microbench.archive import store
    from microbench.report.sheets import view

    with consistent(run):
        called = name if name != LAST else ""
        if called is None:
            called = "" if path == store.last() else shlex.quote(str(path))
        return view.screen(
            run,
            name=called,
            reference=is_reference(path),
            unfinished=path.suffix == store.GROWING,
            ceilings=ceilings_of(run),
        )


def report_of(run: Run, path: Path | None = None, rows: Sequence[Row] | None = None) -> Report:
    """The report of a run. ``path`` tells whether it is bundled or unfinished; ``rows`` are the run's, if known."""
    from microbench.archive import store
    from microbench.report.sheets import view

    with consistent(run):
        return view.build(
            run,
            rows,
            reference=path is not None and is_reference(path),
            unfinished=path is not None and path.suffix == store.GROWING,
            ceilings=ceilings_of(run),
        )


def part_sheet(part: str, path: Path, run: Run) -> Report:
    """The report of one suite, one figure, or the tables of one benchmark. A suite wins over a figure of its name.

    Raises UsageError for an unknown part, RunUnreadableError if the run has no figures of it.
    """
    import msgspec

    from microbench.core.bench import SUITES, discover
    from microbench.report.figures.catalogue import KINDS

    if part in KINDS and part not in SUITES:
        from microbench.report.figures.figure import sheet

        with consistent(run):
            figure = sheet(part, run, reference=is_reference(path))
        if figure is None:
            raise absent(part, run)
        return figure
    whole = report_of(run, path)
    if part in SUITES:
        sections = [section for section in whole.sections if section.suite == part]
    else:
        if part not in discover() and run.benchmark(part) is None:
            near = nearest(part[:100], [*SUITES, *discover(), *KINDS])
            known = f"give a suite ({', '.join(SUITES)}), a benchmark, or {', '.join(KINDS)}"
            raise UsageError(f"there is no part {plain(part, 40)}", f"{near} else {known}" if near else known)
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


def absent(name: str, run: Run) -> RunUnreadableError:
    """The error for a run without rows for a figure. It names the figures that the run has."""
    from microbench.report.figures.catalogue import KINDS
    from microbench.report.figures.figure import available

    others = available(run)
    cause = f"run {plain(run.run_id, 60)} lacks the measurements of the figure {name}"
    cause += f"; it has {', '.join(others)}" if others else "; it has those of no figure"
    return RunUnreadableError(cause, f"microbench run {' '.join(KINDS[name].benchmarks)} measures them")


def measured(
    asked: RunOptions,
    listener: Listener,
    catalogue: Mapping[str, Benchmark] | None = None,
    silent_s: float | None = None,
) -> RunResult:
    """Measure as `microbench run` does, in worker processes, and save the run.

    ``catalogue`` replaces all benchmarks. A case that gives no sign of life for ``silent_s`` is ended.
    Raises UsageError for a wrong argument and what ``execute`` raises.
    """
    from microbench.archive import remarks
    from microbench.core.model import Settings
    from microbench.library.options import preset_of
    from microbench.session.process import Patience
    from microbench.session.request import RunRequest
    from microbench.session.session import Seams, execute

    label = remarks.checked(asked.label) if asked.label is not None else None
    preset = preset_of(asked.quick, asked.full)
    if asked.to_compare and asked.rounds != 1:
        raise UsageError("--to-compare and --rounds cannot be combined", "give one of them")
    axes = {axis: tuple(values) for axis, values in asked.axes.items()}
    rounds = ROUNDS_TO_COMPARE if asked.to_compare else asked.rounds
    settings = Settings(preset, tuple(asked.names), axes, asked.device, rounds, asked.time_limit_s)
    request = RunRequest(settings, asked.out, asked.into, asked.resume)
    if asked.resume is not None:
        from microbench.core.bench import Axis, discover

        own = {  # with the axes that the run recorded
            info.name: replace(
                discover()[info.name], axes={axis.name: Axis.same(axis.about, axis.values) for axis in info.axes}
            )
            for info in load(asked.resume)[1].benchmarks
            if info.name in (STEP, KERNEL)
        }
        catalogue = {**discover(), **own}
    result = execute(request, listener, Seams(patience=Patience.of(silent_s)), catalogue)
    if label is not None:
        remarks.change(result.path, label)
    return result


def ceilings_of(run: Run) -> Evidence | None:
    """The run that gives the ceilings of a user's kernels and functions: the newest one with the memory bandwidth of
    such a GPU, or a bundled one.

    None if the user gave no bytes and no operations, or if there is no such run.
    """
    given = any({"bytes", "flop"} & {*one.case.params} for one in run.outcomes if one.case.benchmark in (STEP, KERNEL))
    if not given or run.benchmark(CEILINGS) is not None or not run.sessions:
        return None
    from microbench.analysis.evidence import evidence_by_device

    names = {gpu.name for gpu in run.sessions[-1].gpus}

    def suits(other: Run) -> bool:
        return other.benchmark(CEILINGS) is not None and any(gpu.name in names for gpu in other.sessions[-1].gpus)

    found = last_with(suits)[1]
    return next(iter(evidence_by_device(found)), None) if suits(found) else None

"""Finds and loads the run for a command: the named one, the last one, or the newest that has the needed figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.cli.options import REFERENCE_RUN
from microbench.core.errors import RunUnreadableError

if TYPE_CHECKING:
    from microbench.analysis.stats import Row
    from microbench.core.model import Run
    from microbench.report.document import Report, Screen

NEWEST_SEARCHED = 20
LAST = "last"


def located(name: str | None) -> Path:
    """The file of the named run, or of the last one. Raises RunUnreadableError."""
    from microbench.runs import store

    path = store.find(name) if name not in (None, LAST) else store.last()
    if path is None:
        raise RunUnreadableError(
            "there is no run yet",
            f"measure one: microbench run; or see a bundled one: microbench show {REFERENCE_RUN}",
        )
    return store.newest(path)


def load(name: str | None) -> tuple[Path, Run]:
    """The named run, or the last one, with its file. Raises RunUnreadableError."""

    path = located(name)
    return path, read(path)


def read(path: Path) -> Run:
    """The run in that file, with today's titles of the layers if it recorded none. Raises RunUnreadableError."""
    import msgspec

    from microbench.analysis.graph_steps import LAYER_AXES, layer_titles
    from microbench.gpu.layers import base
    from microbench.runs import store

    run = store.read(path)
    if layer_titles(run):
        return run
    benchmarks = tuple(
        msgspec.structs.replace(
            info,
            axes=tuple(
                msgspec.structs.replace(axis, labels=base.layer_titles()) if axis.name in LAYER_AXES else axis
                for axis in info.axes
            ),
        )
        for info in run.benchmarks
    )
    return msgspec.structs.replace(run, benchmarks=benchmarks)


def last_with(suits: Callable[[Run], bool], figures: Callable[[Run], int] | None = None) -> tuple[Path, Run]:
    """The newest run that ``suits``, else the bundled run with the most ``figures``, or REFERENCE_RUN."""
    from microbench.runs import store

    for path in store.listing()[:NEWEST_SEARCHED]:
        with suppress(RunUnreadableError):
            run = read(path)
            with consistent(run):
                if suits(run):
                    return path, run
    if figures is None:
        return load(REFERENCE_RUN)
    bundled = [(path, read(path)) for path in store.bundled().values()]
    return max(bundled, key=lambda pair: figures(pair[1]))


def is_reference(path: Path) -> bool:
    """True if that file is a bundled run."""
    from microbench.runs import store

    return path in store.bundled().values()


def grows(path: Path) -> bool:
    """True if sessions can be added to the run; bundled and compressed runs never grow."""
    from microbench.runs import store

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
    """The answer of a run on one screen; ``name`` is what the user called it."""
    from microbench.report.sheets import screen
    from microbench.runs import store

    with consistent(run):
        called = name if name not in (None, LAST) else ""
        return screen.screen(
            run, name=called or "", reference=is_reference(path), unfinished=path.suffix == store.GROWING
        )


def report_of(run: Run, path: Path | None = None, rows: Sequence[Row] | None = None) -> Report:
    """The report of a run. ``path`` tells whether it is bundled or unfinished; ``rows`` are the run's, if known."""
    from microbench.report.sheets import view
    from microbench.runs import store

    with consistent(run):
        return view.build(
            run,
            rows,
            reference=path is not None and is_reference(path),
            unfinished=path is not None and path.suffix == store.GROWING,
        )

"""Which run a command means, and where what it has to say goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from microbench.cli.options import REFERENCE_RUN
from microbench.core.errors import ExitCode, MicrobenchError, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.analysis.stats import Row
    from microbench.core.model import Run
    from microbench.report.document import Report


NEWEST_LOOKED_AT = 20
MEASURE_AGAIN = "measure again, or show another run"


def located(name: str | None) -> Path:
    """The file of the run of that name, or of the last one."""
    from microbench.runs import store

    path = store.find(name) if name is not None else store.last()
    if path is None:
        raise RunUnreadableError(
            "there is no run yet", f"microbench run makes one; microbench show {REFERENCE_RUN} shows a recorded one"
        )
    return store.newest(path)


def load(name: str | None) -> tuple[Path, Run]:
    """The run of that name, or the last one."""
    from microbench.runs import store

    path = located(name)
    return path, store.read(path)


def last_with(suits: Callable[[Run], bool], figures: Callable[[Run], int] | None = None) -> tuple[Path, Run]:
    """The newest run that has what it takes, else a bundled one: that of most ``figures``, or the usual one."""
    from microbench.runs import store

    for path in store.listing()[:NEWEST_LOOKED_AT]:
        with suppress(RunUnreadableError):
            run = store.read(path)
            with consistent(run):
                if suits(run):
                    return path, run
    if figures is None:
        return load(REFERENCE_RUN)
    return max(((path, store.read(path)) for path in store.bundled().values()), key=lambda one: figures(one[1]))


def is_reference(path: Path) -> bool:
    """True if that file is one of the bundled runs."""
    from microbench.runs import store

    return path in store.bundled().values()


def grows(path: Path) -> bool:
    """Whether a run can be added to; bundled and compressed ones cannot."""
    from microbench.runs import store

    return not is_reference(path) and not store.is_packed(path)


def adding_to(name: str | None, path: Path, run: Run) -> tuple[str, ...]:
    """The options with which `microbench run` adds to that run, as the user called it; none where it never grows."""
    if not grows(path):
        return ()
    return "--into", name or run.run_id, *(("--device", "fake") if run.simulated else ())


@contextmanager
def consistent(run: Run) -> Iterator[None]:
    """A file can be read and yet hold samples that no arithmetic bears: say so."""
    import msgspec

    try:
        yield
    except (ArithmeticError, ValueError, msgspec.DecodeError) as error:
        raise RunUnreadableError(f"run {run.run_id} holds impossible figures: {error}", MEASURE_AGAIN) from None


def report_of(run: Run, path: Path | None = None, rows: Sequence[Row] | None = None) -> Report:
    """All that is to be said of a run; ``path`` tells whether it is a bundled one, and whether it was finished.
    ``rows`` are those of the run where the caller has them."""
    from microbench.report.sheets import view
    from microbench.runs import store

    with consistent(run):
        return view.build(
            run,
            rows,
            reference=path is not None and is_reference(path),
            unfinished=path is not None and path.suffix == store.GROWING,
        )


def report_at(path: Path) -> Report:
    """All that is to be said of the run in that file."""
    from microbench.runs import skim, store

    if skim.is_large(path) and (found := skim.skimmed(path)) is not None:
        return report_of(found.run, path, found.rows)
    return report_of(store.read(path), path)


def draw(report: Report, svg: Path | None = None, *, brief: bool = False, why: bool = False) -> None:
    """To the terminal, or into a new SVG file."""
    from microbench.report.terminal import terminal

    if svg is None:
        terminal.draw(report, terminal.open_console(), brief=brief, why=why)
    else:
        write_new(svg, terminal.svg(report, brief=brief, why=why).encode())


def print_bytes(data: bytes) -> None:
    """To standard output as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_new(path: Path, data: bytes) -> None:
    """Into a file that is not there yet. Raises ResultNotWrittenError where it is, or cannot be."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        raise ResultNotWrittenError(f"{path} cannot be written: {error.strerror}", "choose another place") from None


# How a command ends: an error in two lines and its exit code, whatever has become of the streams it writes to.


# What the parser raises for a wrong command line; Typer names only what it is derived from.
PARSER_ERROR: Any = typer.BadParameter.__base__


@contextmanager
def told() -> Iterator[None]:
    """Tell an error in two lines, an interruption in none, and raise typer.Exit with its exit code."""
    try:
        yield
        sys.stdout.flush()
    except MicrobenchError as error:
        raise _ended(error) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:  # whoever read this has enough
        _discard_output()
        raise typer.Exit(ExitCode.MEASURED) from None
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_output()
        lost = ResultNotWrittenError(
            f"standard output cannot be written: {error.strerror or error}",
            "send it elsewhere; a run that was saved can be shown again",
        )
        raise _ended(lost) from None


@contextmanager
def parsed() -> Iterator[None]:
    """Tell what the parser says of a wrong command line as every other error; its own form is four lines."""
    try:
        yield
    except PARSER_ERROR as error:
        context = error.ctx
        if context is not None and not context.args and not context.params and context.command.no_args_is_help:
            typer.echo(context.get_help())
            raise typer.Exit(ExitCode.USAGE) from None
        command = context.command_path if context is not None else "microbench"
        cause = " ".join(error.format_message().split()).rstrip(".")
        raise UsageError(plain(cause[:1].lower() + cause[1:]), f"`{command} --help` shows what there is") from None
    except typer.Abort:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def open_closed_streams() -> None:
    """A standard stream that the caller closed goes nowhere: else the next file opened gets its number and output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)


def _ended(error: MicrobenchError) -> typer.Exit:
    from microbench.report.terminal import terminal

    terminal.tell_error(error, terminal.open_console(sys.stderr))
    return typer.Exit(error.exit_code)


def _discard_output() -> None:
    """What Python would still flush as it ends goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

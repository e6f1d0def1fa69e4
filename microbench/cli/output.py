"""Writes the output of commands and ends them: an error is two lines and an exit code, even if a stream is closed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from microbench.core.errors import ExitCode, MicrobenchError, ResultNotWrittenError, UsageError
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.report.document import Report

# What the parser raises for a wrong command line; Typer exports only a class derived from it.
PARSER_ERROR: Any = typer.BadParameter.__base__


def draw(report: Report, svg: Path | None = None, *, brief: bool = False, why: bool = False) -> None:
    """Draw a report to the terminal, or into a new SVG file."""
    from microbench.report.terminal import terminal

    if svg is None:
        terminal.draw(report, terminal.open_console(), brief=brief, why=why)
    else:
        write_new(svg, terminal.svg(report, brief=brief, why=why).encode())


def print_bytes(data: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_new(path: Path, data: bytes) -> None:
    """Write a new file. Raises ResultNotWrittenError if it exists or cannot be written."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        raise ResultNotWrittenError(f"{path} cannot be written: {error.strerror}", "give another file name") from None


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a command function for Typer: errors are reported, and the number it returns is the exit code."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> None:
        with reported_errors():
            exit_code = function(*arguments, **options)
        if exit_code:
            raise typer.Exit(exit_code)

    return wrapped


@contextmanager
def reported_errors() -> Iterator[None]:
    """Report an error in two lines, an interruption in none, and raise typer.Exit with its exit code."""
    try:
        yield
        sys.stdout.flush()
    except MicrobenchError as error:
        raise _exit(error) from None
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:  # the reader, such as head, has stopped
        _discard_output()
        raise typer.Exit(ExitCode.MEASURED) from None
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_output()
        lost = ResultNotWrittenError(
            f"standard output cannot be written: {error.strerror or error}",
            "redirect it to another place; a saved run can be shown again",
        )
        raise _exit(lost) from None


@contextmanager
def parser_errors() -> Iterator[None]:
    """Turn the parser's errors into UsageError, which prints two lines like every other error."""
    try:
        yield
    except PARSER_ERROR as error:
        context = error.ctx
        if context is not None and not context.args and not context.params and context.command.no_args_is_help:
            typer.echo(context.get_help())
            raise typer.Exit(ExitCode.USAGE) from None
        name = context.command_path if context is not None else "microbench"
        cause = " ".join(error.format_message().split()).rstrip(".")
        raise UsageError(plain(cause[:1].lower() + cause[1:]), f"see `{name} --help`") from None
    except typer.Abort:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def open_closed_streams() -> None:
    """Reopen standard streams that the caller closed; otherwise the next opened file would receive their output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process lives)


def _exit(error: MicrobenchError) -> typer.Exit:
    from microbench.report.terminal import terminal

    terminal.tell_error(error, terminal.open_console(sys.stderr))
    return typer.Exit(error.exit_code)


def _discard_output() -> None:
    """Discard the output that Python would still flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""How a command ends: an error in two lines and its exit code, whatever has become of the streams it writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from microbench.errors import ExitCode, MicrobenchError, ResultNotWrittenError, UsageError
from microbench.text import plain

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
    from microbench.report import terminal

    terminal.tell_error(error, terminal.open_console(sys.stderr))
    return typer.Exit(error.exit_code)


def _discard_output() -> None:
    """What Python would still flush as it ends goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""How a command ends: an error in two lines and its exit code, whatever has become of the streams it writes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from microbench.errors import ExitCode, MicrobenchError, ResultNotWrittenError


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

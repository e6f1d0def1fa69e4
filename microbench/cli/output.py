"""Writes the output of commands and ends them: an error is two lines and an exit code, even if a stream is closed."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from microbench.cli.options import TERMINAL, Picture, signature_of
from microbench.core.errors import ExitCode, MicrobenchError, ResultNotWrittenError, UsageError
from microbench.core.units import plain

if TYPE_CHECKING:
    from microbench.report.document import Report, Screen, Table
    from microbench.report.terminal.progress import LiveProgress, PlainProgress

# What the parser raises for a wrong command line; Typer exports only a class derived from it.
PARSER_ERROR: Any = typer.BadParameter.__base__


def draw(
    shown: Report | Screen,
    picture: Picture = TERMINAL,
    *,
    brief: bool = False,
    why: bool = False,
    most_lines: int | None = None,
    whole: str = "",
) -> None:
    """Draw a report or a screen to the terminal, or as pictures into new SVG files: FILE, or FILE-1, FILE-2, …"""
    from microbench.report.terminal import terminal

    if (svg := picture.svg) is None:
        console = terminal.open_console()
        terminal.draw(shown, console, brief=brief, why=why, most_lines=most_lines, whole=whole)
        return
    pictures = terminal.pictures(shown, brief=brief, why=why)
    paths = [svg] if len(pictures) == 1 else [svg.with_stem(f"{svg.stem}-{n}") for n in range(1, len(pictures) + 1)]
    for path in paths:
        check_new(path, force=picture.force)
    for path, drawn in zip(paths, pictures, strict=True):
        write_new(path, drawn.encode(), force=picture.force)


def tell(lines: Sequence[str], *, error: bool = False, whole: bool = True) -> None:
    """Write lines to standard output or standard error; ``whole`` ones are not broken."""
    from microbench.report.terminal import terminal

    terminal.tell(lines, terminal.open_console(sys.stderr if error else None), whole=whole)


def tell_error(error: MicrobenchError) -> None:
    """Write the two lines of an error to standard error."""
    from microbench.report.terminal import terminal

    terminal.tell_error(error, terminal.open_console(sys.stderr))


def draw_tables(tables: Sequence[Table]) -> None:
    """Draw tables to the terminal."""
    from microbench.report.terminal import terminal

    terminal.draw_tables(tables, terminal.open_console())


@contextmanager
def paged(parts: Iterable[str]) -> Iterator[None]:
    """Show output through a pager if standard output is a terminal and a pager is installed. It begins with an index:
    the lines at which ``parts`` begin, by their titles."""
    pager = shutil.which("less")
    if pager is None or not sys.stdout.isatty():
        yield
        return
    from microbench.report.terminal import terminal

    width = terminal.open_console().width
    variables = {"COLUMNS": str(width), "FORCE_COLOR": "" if "NO_COLOR" in os.environ else "1"}
    before, drawn = dict(os.environ), io.StringIO()
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        with redirect_stdout(drawn):
            yield
    finally:
        for name in variables:
            os.environ.update({name: before[name]}) if name in before else os.environ.pop(name, None)
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in drawn.getvalue().splitlines()]
    places = {part: [at for at, line in enumerate(lines) if line.startswith(f"{part[: width - 5]} ")] for part in parts}
    known = [(part, at[0]) for part, at in places.items() if at]
    index = [f"{at + len(known) + 3:>6}g  {part}" for part, at in known]
    text = "\n".join(["Parts, with what to type to go there (q ends):", *index, "", drawn.getvalue()])
    subprocess.Popen([pager, "-RFX"], stdin=subprocess.PIPE, text=True).communicate(text)


def progress() -> LiveProgress | PlainProgress:
    """Shows the progress of a run: a live display on a terminal, plain lines elsewhere."""
    from microbench.core.bench import discover
    from microbench.report.terminal.progress import LiveProgress, PlainProgress
    from microbench.report.terminal.terminal import open_console

    console = open_console(sys.stderr)
    metrics = {name: benchmark.metrics for name, benchmark in discover().items()}
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveProgress(console, metrics) if live else PlainProgress(console, metrics)


def print_bytes(data: bytes) -> None:
    """Write bytes to standard output as they are; if its reader has stopped, they are discarded."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the exit code of the command still counts
        _discard_output()


def print_json(answer: object) -> None:
    """Write what a command answers as JSON to standard output."""
    import msgspec

    print_bytes(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")


def check_new(path: Path, *, force: bool = False) -> None:
    """Raise ResultNotWrittenError, before any work, if the file cannot be written, or exists without ``force``."""
    if path.exists() and not force:
        raise ResultNotWrittenError(f"{plain(path)} exists", "give another file name, or --force to overwrite it")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if path.is_dir() else "its folder cannot be written to"
        raise ResultNotWrittenError(f"{plain(path)} cannot be written: {reason}", "give another file name")


def write_new(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file whole or not at all. Raises ResultNotWrittenError."""
    from microbench.core import files

    check_new(path, force=force)
    try:
        os.close(files.replace(path, data, new=not force))
    except OSError as error:
        cause = f"{plain(path)} cannot be written: {error.strerror or error}"
        raise ResultNotWrittenError(cause, "give another file name") from None


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a command function for Typer: errors are reported, and the number it returns is the exit code."""
    signature, arguments = signature_of(function)

    def wrapped(**parsed: Any) -> None:
        with reported_errors():
            exit_code = function(**arguments(parsed))
        if exit_code:
            raise typer.Exit(exit_code)

    wrapped.__doc__, wrapped.__name__ = function.__doc__, function.__name__
    wrapped.__signature__, wrapped.__annotations__ = signature, {}  # type: ignore[attr-defined]
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


def _exit(error: MicrobenchError) -> typer.Exit:
    with suppress(OSError):  # the exit code remains
        tell_error(error)
    return typer.Exit(error.exit_code)


def _discard_output() -> None:
    """Discard the output that Python would still flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

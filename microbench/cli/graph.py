"""The command graph: makes a user's function a CUDA graph, proves that it computes the same, and hands it over."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microbench.cli.options import ANSWER
from microbench.cli.output import draw, print_json
from microbench.core.errors import ExitCode, UsageError
from microbench.core.options import argument, flag, option
from microbench.library.options import own_axes

if TYPE_CHECKING:
    from microbench.library.graphs import Made


def graph(
    what: str = argument("TARGET", "FILE.py::FUNCTION or MODULE:FUNCTION, from the current folder."),
    *,
    setup: str | None = option("TARGET", "A function that gets the axes it names and returns the arguments."),
    inputs: str | None = option("TARGET", "A function that returns several sets of arguments; default: drawn anew."),
    axes: Mapping[str, Sequence[Any]] | None = option(
        "NAME=VALUES", "Values of a parameter: batch=1,8,64. Repeatable; one may have several.", "--axis", read=own_axes
    ),
    compile: bool = flag("Time torch.compile too, which takes a minute or more."),
    out: Path | None = option("FOLDER", "Write the diff and the helper file to this new folder.", "-o", "--out"),
    apply: bool = flag("Change the file itself, which must be committed in git."),
    limit: str | None = option("TIME", "End it after this time: 5min; default: 10 minutes."),
    json: bool = ANSWER,
) -> int:
    """Make a CUDA graph of a PyTorch function, prove that it computes the same, and show the change.

    The function is called some hundred times. Each call that stops a capture is named, with its line and what to
    change. The graph is compared with the function: 200 calls from the same start, with inputs that differ, other work
    between the calls and values of the host changed. Then both are timed, and the change of the file is run and proved
    as well. If calls are in the way, graphs of what lies between them are tried. With several values of an axis, each
    gets its graph and its times. The exit code is 0 if a change is proved, else 1.
    """
    import msgspec

    from microbench.core.units import typed_time
    from microbench.library.graphs import LIMIT_S, make_graph, write_change
    from microbench.report.sheets import graph as drawing
    from microbench.report.terminal import terminal

    chosen = {name: str(values[0]) for name, values in (axes or {}).items()}
    several = [name for name, values in (axes or {}).items() if len(values) > 1]
    if len(several) > 1:
        raise UsageError(f"--axis {several[0]} and {several[1]} have several values", "give several to one of them")
    limit_s = typed_time(limit, 86400.0) if limit is not None else LIMIT_S
    error = terminal.open_console(sys.stderr)

    def progress(stage: str) -> None:
        terminal.tell((f"… {stage}",), error)

    made = make_graph(what, setup or "", inputs or "", chosen, compile, limit_s, progress)
    along = {f"{several[0]}={chosen[several[0]]}": made.report} if several else {}
    for value in (axes or {})[several[0]][1:] if several else ():
        progress(name := f"{several[0]}={value}")
        other = {**chosen, several[0]: str(value)}
        along[name] = make_graph(what, setup or "", inputs or "", other, False, limit_s, progress, False).report
    written = write_change(made, out, apply) if made.proved and made.change is not None and (out or apply) else []
    if json:
        answer = {**_answer(made), "written": [str(one) for one in written]}
        print_json(answer | ({"axis": msgspec.to_builtins(along)} if along else {}))
    else:
        draw(drawing.screen(made, along))
        console = terminal.open_console()
        ratio = (made.report if made.report.proved else made.again or made.report).ratio
        slower = ratio is not None and ratio[0] <= 1
        if made.proved and made.change is not None:
            if not written and not slower:
                terminal.tell(["", *made.change.diff.splitlines(), ""], console)
                terminal.tell(
                    [f"more: {_again(what, setup, inputs)} -o FOLDER writes both files, --apply changes yours"], console
                )
            for path in written:
                terminal.tell([f"written: {path}"], console)
    return ExitCode.MEASURED if made.proved else ExitCode.SOME_FAILED


def _again(what: str, setup: str | None, inputs: str | None) -> str:
    given = [*(["--setup", setup] if setup else []), *(["--inputs", inputs] if inputs else [])]
    return " ".join(["microbench graph", what, *given])


def _answer(made: Made) -> dict[str, object]:
    import msgspec

    report, change, again = made.report, made.change, made.again
    return {
        "function": made.what, "proved": made.proved, "report": msgspec.to_builtins(report),
        "diff": change.diff if change is not None else None,
        "changed_file": msgspec.to_builtins(again) if again is not None else None,
    }  # fmt: skip


COMMANDS = ((graph, "microbench graph train.py::step --setup train.py::setup"),)

"""The command measure: a user's own kernel or function, as a benchmark whose parameters name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from microbench.cli import options, share
from microbench.cli.output import draw, print_bytes, progress
from microbench.core.units import plain
from microbench.library.options import OwnOptions
from microbench.library.own import measured_own
from microbench.library.runs import screen_of

if TYPE_CHECKING:
    from microbench.core.model import Param, Run


def measure(what: options.OwnTarget, asked: OwnOptions, json: options.Json = False, why: options.Why = False) -> int:
    """Measure a kernel or function of your own: its time, its launches, what limits it, what a graph gives.

    A function is timed, captured into a CUDA graph and compared with its replays; if the capture fails, the line that
    stops it is named. A kernel of a .cu file is compiled, timed and compared with the measured ceilings of this GPU.
    """
    with progress() as listener:
        result = measured_own(what, asked, listener)
    if json:
        print_bytes(share.exported(result.run, options.Format.JSON))
        return result.exit_code
    draw(screen_of(result.run, result.path), why=why)
    _tell_failures(result.run, result.path)
    return result.exit_code


def _tell_failures(run: Run, path: Path) -> None:
    """Say which cases of the newest session have no figures, and where the run is kept."""
    from microbench.report.terminal import terminal

    session = len(run.sessions) - 1
    lines = [
        f"{each.status.replace('_', ' ')}: {_axes_words(each.case.params)}{plain(each.reason, 400)}"
        for each in run.outcomes
        if each.session == session and each.status != "ok"
    ]
    terminal.tell((*dict.fromkeys(lines), f"saved: {path}"), terminal.open_console())


def _axes_words(params: Mapping[str, Param]) -> str:
    from microbench.explain.own import OWN_PARAMETERS

    words = " ".join(f"{name}={value}" for name, value in params.items() if name not in OWN_PARAMETERS)
    return f"{plain(words, 80)}: " if words else ""


COMMANDS = ((measure, "microbench measure train.py::step --setup train.py::setup --axis batch=1,8,64"),)

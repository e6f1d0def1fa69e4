"""The commands that add to a run: what it lacks, or more rounds of the same cases, in fresh processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from microbench.compare import Change, Comparison
    from microbench.model import Run
    from microbench.stats import Row

MOST_NAMED = 4


class Side(NamedTuple):
    """What one run of a comparison is called on the command line; ``grows``: rounds can be added to its file."""

    name: str
    grows: bool = True


def measuring(benchmarks: Iterable[str], adding: Iterable[str]) -> str:
    """The command that measures these; ``adding`` are the options that make it add to a run, none for a new one."""
    return shlex.join(["microbench", "run", *benchmarks, *adding])


def more_rounds(comparison: Comparison, changes: Sequence[Change], base: Side, new: Side, rounds: int) -> list[str]:
    """What to run so that both sides of these changes have as many rounds, for each side that can be added to and lacks
    some: one command for all cases that were asked for in one way."""
    found = []
    for run, side, rows in (
        (comparison.base, base, [one.base for one in changes]),
        (comparison.new, new, [one.new for one in changes]),
    ):
        lacking = [row for row in rows if len(row.outcomes) < rounds]
        if side.grows:
            found += _commands(run, lacking, side.name, rounds)
    return found


def _commands(run: Run, rows: Iterable[Row], name: str, rounds: int) -> list[str]:
    sessions: dict[int, list[Row]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    return list(dict.fromkeys(_command(run, session, found, name, rounds) for session, found in sessions.items()))


def _command(run: Run, session: int, rows: Sequence[Row], name: str, rounds: int) -> str:
    settings = run.sessions[session].settings
    benchmarks = list(dict.fromkeys(row.benchmark for row in rows))
    chosen = benchmarks if len(benchmarks) <= MOST_NAMED else list(dict.fromkeys(row.suite for row in rows))
    words = ["microbench", "run", *chosen]
    if settings.preset in ("quick", "full"):
        words.append(f"--{settings.preset}")
    known = {axis.name for name in benchmarks if (info := run.benchmark(name)) for axis in info.axes}
    for axis, values in settings.overrides.items():
        if axis not in known:  # of another benchmark of that session: `run` refuses an axis that nothing has
            continue
        words += ["--set", f"{axis}={','.join(map(str, values))}"]
    if settings.device is not None:
        words += ["--device", settings.device]
    return shlex.join([*words, "--rounds", str(rounds), "--into", name])

"""The command compare: one run held against another. Heavy imports stay inside commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from microbench import options, options_compare
from microbench.cli_runs import consistent, draw, grows, load
from microbench.ending import told
from microbench.errors import ExitCode, UsageError
from microbench.options_compare import FailOn

if TYPE_CHECKING:
    from microbench.compare import Comparison, Verdict
    from microbench.explain.remeasuring import Side
    from microbench.model import Run


def compare(
    base: options_compare.Base,
    new: options_compare.New = None,
    fail_on: options_compare.Fail = None,
    everything: options_compare.All = False,
    svg: options.Svg = None,
) -> None:
    """Hold a run against another: what is slower, faster, the same, unclear, or cannot be compared."""
    with told():
        from microbench import compare as comparing
        from microbench.report import comparison as drawing

        before, after = load(base), load(new)
        if before[0].resolve() == after[0].resolve():
            raise UsageError("this is one and the same run", "name another one: `microbench history` lists them")
        with consistent(before[1]), consistent(after[1]):
            found = comparing.compare(before[1], after[1])
            sheet = drawing.sheet(found, _side(base, *before), _side(new, *after), everything=everything)
        draw(sheet, svg, brief=True)
        failed = fail_on is not None and _failed(found, fail_on)
    raise typer.Exit(ExitCode.CHANGED if failed else ExitCode.MEASURED)


def _side(name: str | None, path: Path, run: Run) -> Side:
    from microbench.explain.remeasuring import Side

    return Side(name or run.run_id, grows=grows(path))


def _failed(found: Comparison, fail_on: FailOn) -> bool:
    """Whether a script should stop. A figure that NEW could not measure any more is worse than a slower one; raises
    UsageError where nothing could be compared, which is no success either."""
    if found.lost and fail_on is not FailOn.FASTER:
        return True
    if not found.changes:
        raise UsageError("the two runs have no figure in common", "measure the same benchmarks in both")
    return bool(found.of(*_verdicts(fail_on)))


def _verdicts(fail_on: FailOn) -> tuple[Verdict, ...]:
    from microbench.compare import BETTER, COUNTED, WORSE

    chosen = {FailOn.SLOWER: WORSE, FailOn.FASTER: BETTER, FailOn.ANY: (*WORSE, *BETTER, *COUNTED)}
    return chosen[fail_on]


# In the order in which --help lists them, each with the example that its own help ends with.
COMMANDS = ((compare, "microbench compare nvidia-h200 --fail-on slower"),)

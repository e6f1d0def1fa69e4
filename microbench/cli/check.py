"""The command check: whether link, memory or compute of this GPU are healthy, also as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from microbench.cli import options
from microbench.cli.options import Checked
from microbench.cli.output import progress
from microbench.core.errors import ExitCode, RunUnreadableError
from microbench.library.runs import consistent, load

if TYPE_CHECKING:
    from microbench.analysis.evidence import Finding
    from microbench.core.model import Run


# The benchmarks that each verdict rests on.
NEEDED: dict[Checked, tuple[str, ...]] = {
    Checked.LINK: ("link_state", "link_copy", "link_bidirectional"),
    Checked.MEMORY: ("memory_stream", "memory_levels"),
    Checked.COMPUTE: ("gemm_throughput",),
}


def check(
    what: options.WhatToCheck,
    run: options.CheckedRun = None,
    device: options.Device = None,
) -> int:
    """Check whether the link, the memory or the compute is healthy.

    Measures what the verdict needs (seconds), or takes --run. The exit code is 0 if all is well, 1 if not, and 4 if
    there is no verdict.
    """
    from microbench.report.terminal import terminal

    recorded = load(run)[1] if run is not None else _measured(what, device)
    verdicts = _verdicts(what, recorded)
    if not verdicts:
        cause = f"there is no verdict on {what.value}: {_reason(recorded)}"
        raise RunUnreadableError(cause, f"microbench run {' '.join(NEEDED[what])} measures what it needs")
    terminal.draw_findings(verdicts, terminal.open_console(), mark="SIMULATED" if recorded.simulated else "")
    if any(verdict.severity in ("warning", "problem") for verdict in verdicts):
        return ExitCode.SOME_FAILED
    return ExitCode.MEASURED if all(verdict.severity == "good" for verdict in verdicts) else ExitCode.UNREADABLE_RUN


def _measured(what: Checked, device: str | None) -> Run:
    from microbench.session.request import RunRequest
    from microbench.session.session import execute

    with progress() as listener:
        return execute(RunRequest(select=NEEDED[what], preset="quick", device=device), listener).run


def _verdicts(what: Checked, run: Run) -> list[Finding]:
    """The verdict of each GPU of the run that has one."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.explain.rules import of_suite

    with consistent(run):
        findings = [each for group in evidence_by_device(run) for each in of_suite(group, what.value)]
    return [each for each in findings if each.rule == f"{what.value}.verdict"]


def _reason(run: Run) -> str:
    """Why nothing was measured: the reason of the first case that has one."""
    reasons = (outcome.reason for outcome in run.outcomes if outcome.status != "ok" and outcome.reason)
    return next(reasons, "the run lacks its figures")


COMMANDS = ((check, "microbench check link && echo the link is healthy"),)

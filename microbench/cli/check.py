"""The command check: whether link, memory or compute of this GPU are healthy, also as an exit code."""

from __future__ import annotations

from microbench.cli.options import Checked
from microbench.cli.output import progress
from microbench.core.errors import ExitCode, RunUnreadableError
from microbench.core.options import argument, option
from microbench.library.options import DEVICE
from microbench.library.runs import consistent, load

# The benchmarks that each verdict rests on.
NEEDED: dict[Checked, tuple[str, ...]] = {
    Checked.LINK: ("link_state", "link_copy", "link_bidirectional"),
    Checked.MEMORY: ("memory_stream", "memory_levels"),
    Checked.COMPUTE: ("gemm_throughput",),
}


def check(
    what: Checked = argument("{link|memory|compute}", "What to check."),
    run: str | None = option("RUN", "Judge this recorded run instead of measuring."),
    device: str | None = DEVICE,
) -> int:
    """Check whether the link, the memory or the compute is healthy.

    Measures what the verdict needs (seconds), or takes --run. The exit code is 0 if all is well, 1 if not, and 4 if
    there is no verdict.
    """
    from microbench.analysis.evidence import evidence_by_device
    from microbench.explain.rules import of_suite
    from microbench.report.terminal import terminal
    from microbench.session.request import RunRequest
    from microbench.session.session import execute

    if run is not None:
        recorded = load(run)[1]
    else:
        with progress() as listener:
            recorded = execute(RunRequest(select=NEEDED[what], preset="quick", device=device), listener).run
    with consistent(recorded):
        findings = [each for group in evidence_by_device(recorded) for each in of_suite(group, what.value)]
    verdicts = [each for each in findings if each.rule == f"{what.value}.verdict"]  # one for each GPU that has one
    if not verdicts:
        reasons = (outcome.reason for outcome in recorded.outcomes if outcome.status != "ok" and outcome.reason)
        cause = f"there is no verdict on {what.value}: {next(reasons, 'the run lacks its figures')}"
        raise RunUnreadableError(cause, f"microbench run {' '.join(NEEDED[what])} measures what it needs")
    terminal.draw_findings(verdicts, terminal.open_console(), mark="SIMULATED" if recorded.simulated else "")
    if any(verdict.severity in ("warning", "problem") for verdict in verdicts):
        return ExitCode.SOME_FAILED
    return ExitCode.MEASURED if all(verdict.severity == "good" for verdict in verdicts) else ExitCode.UNREADABLE_RUN


COMMANDS = ((check, "microbench check link && echo the link is healthy"),)

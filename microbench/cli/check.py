"""The command check: whether link, memory or compute of this GPU are healthy, also as an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from microbench.cli.options import ANSWER, Checked
from microbench.cli.output import print_json, progress
from microbench.core.errors import ExitCode, RunUnreadableError
from microbench.core.options import argument, option
from microbench.core.units import percent, round_percent
from microbench.library.options import DEVICE
from microbench.library.runs import consistent, load

if TYPE_CHECKING:
    from microbench.analysis.evidence import Finding
    from microbench.core.model import Run

# The benchmarks that each verdict rests on.
NEEDED: dict[Checked, tuple[str, ...]] = {
    "link": ("link_state", "link_copy", "link_bidirectional"),
    "memory": ("memory_stream", "memory_levels"),
    "compute": ("gemm_throughput",),
}
# A measurement that is not healthy, or below this many times the limit, is repeated until there are so many.
NEAR, MEASUREMENTS = 1.01, 3
UNHEALTHY = ("warning", "problem")
CODES = {"warning": ExitCode.SOME_FAILED, "problem": ExitCode.SOME_FAILED, "good": ExitCode.MEASURED}
# A verdict's name in JSON by the exit code that it alone would give.
NAMES = {ExitCode.MEASURED: "healthy", ExitCode.SOME_FAILED: "unhealthy", ExitCode.UNREADABLE_RUN: "none"}
BETWEEN = "between"


def check(
    what: Checked = argument("{link|memory|compute}", "What to check."),
    run: str | None = option("RUN", "Judge this recorded run instead of measuring."),
    device: str | None = DEVICE,
    json: bool = ANSWER,
) -> int:
    """Check whether the link, the memory or the compute is healthy.

    Measures what the verdict needs (seconds), or takes --run. What is not clearly healthy is measured three times. The
    exit code is 0 if all is well, 1 if something is unhealthy in every measurement, and 4 if there is no verdict, or if
    the measurements lie on both sides of the limit: 90 % of the link's ceiling, 88 % of the memory's (reads), 80 % of
    the tensor cores' at their clock.
    """
    from microbench.core.model import Settings
    from microbench.report.terminal import terminal
    from microbench.session.request import RunRequest
    from microbench.session.session import execute

    verdicts: dict[str | None, list[Finding]] = {}
    if run is not None:
        recorded = load(run)[1]
        _judge(what, recorded, verdicts)
    else:
        with progress() as listener:
            into = None
            for _ in range(MEASUREMENTS):
                settings = Settings("quick", NEEDED[what], device=device)
                result = execute(RunRequest(settings, into=into), listener)
                recorded, into = result.run, str(result.path)
                _judge(what, recorded, verdicts)
                clear = (
                    each.severity not in UNHEALTHY and not (each.reached and each.reached[0] < each.reached[1] * NEAR)
                    for (each, *_) in verdicts.values()
                )
                if all(clear) or result.exit_code == ExitCode.INTERRUPTED:
                    break
    if not verdicts:
        reasons = (outcome.reason for outcome in recorded.outcomes if outcome.status != "ok" and outcome.reason)
        cause = f"there is no verdict on {what}: {next(reasons, 'the run lacks its figures')}"
        raise RunUnreadableError(cause, f"microbench run {' '.join(NEEDED[what])} measures what it needs")
    agreed = {gpu: in_all(several) for gpu, several in verdicts.items()}
    codes = {gpu: CODES.get(verdict.severity, ExitCode.UNREADABLE_RUN) for gpu, verdict in agreed.items()}
    if json:
        found = {"check": what, "run": recorded.run_id, "simulated": recorded.simulated, "gpus": [
            {
                "device": gpu,
                "verdict": BETWEEN if verdict.rule.endswith(BETWEEN) else NAMES[codes[gpu]],
                "shares": [one.reached[0] for one in verdicts[gpu] if one.reached],
                "healthy_from": verdict.reached[1] if verdict.reached else None,
                **verdict.words,
            }
            for gpu, verdict in agreed.items()
        ]}  # fmt: skip
        print_json(found)
    else:
        terminal.draw_findings(agreed.values(), terminal.open_console(), mark="SIMULATED" if recorded.simulated else "")
    return next(
        code for code in (ExitCode.SOME_FAILED, ExitCode.UNREADABLE_RUN, ExitCode.MEASURED) if code in codes.values()
    )


def _judge(what: Checked, run: Run, verdicts: dict[str | None, list[Finding]]) -> None:
    """Add the verdict on the newest figures of each GPU that has one."""
    from microbench.analysis.evidence import evidence_by_device
    from microbench.explain.rules import of_suite

    with consistent(run):
        for group in evidence_by_device(run):
            for each in of_suite(group, what):
                if each.rule == f"{what}.verdict":
                    verdicts.setdefault(group.device, []).append(each)


def in_all(several: Sequence[Finding]) -> Finding:
    """The verdict of repeated measurements of a GPU: the best of them if all are unhealthy, the worst if none is.

    If only some are unhealthy, the verdict is that it lies between.
    """
    import msgspec

    def share(verdict: Finding) -> float:
        return verdict.reached[0] if verdict.reached else 0.0

    if len(several) == 1:
        return several[0]
    worst, *_, best = sorted(several, key=lambda one: (one.severity not in UNHEALTHY, share(one)))
    limit = worst.reached or best.reached
    shares = [percent(share(one)) for one in several if one.reached]
    told = f"{len(several)} measurements: {', '.join(shares)} of the ceiling." if shares else ""
    if best.severity in UNHEALTHY or worst.severity not in UNHEALTHY:
        chosen = best if best.severity in UNHEALTHY else worst
        return msgspec.structs.replace(chosen, text=f"{chosen.text} {told}".strip())
    slow = sum(one.severity in UNHEALTHY for one in several)
    healthy_from = f" Healthy begins at {round_percent(limit[1])}." if limit else ""
    return msgspec.structs.replace(
        worst,
        rule=f"{worst.suite}.{BETWEEN}",
        severity="advice",
        title=f"Between healthy and slow: {slow} of {len(several)} measurements of {worst.suite} below the limit",
        text=f"{told}{healthy_from} The slowest: {worst.title}.".strip(),
        advice="Other work on the machine can cause this. Repeat the check while it is idle.",
    )

"""What distorts a run: a finding for each fact of its environment that a reader should know before the numbers."""

from __future__ import annotations

import msgspec

from microbench.explain import environment_host, environment_process
from microbench.explain.environment_gpu import gpu_findings
from microbench.explain.finding import SEVERITIES, Finding
from microbench.model import Run, Session

# Facts that a rule would need and that some machines hide, with the words for them.
NEEDED_FACTS = (
    ("governor", "CPU governor"),
    ("c_state_deepest", "idle states"),
    ("clock_source", "clock source"),
    ("virtualization", "virtualisation"),
    ("tracer", "tracing"),
)
NEEDED_GPU_FIELDS = (
    ("other_processes", "other processes"),
    ("mig", "MIG mode"),
    ("ecc", "ECC"),
    ("persistence", "persistence mode"),
    ("confidential_computing", "confidential computing"),
)


def findings(run: Run) -> list[Finding]:
    """Everything that distorts a run, worst first. A finding that not all sessions share names its own.

    A pure function of the run: a fact that an old file does not have is unknown, never fine.
    """
    where: dict[Finding, list[int]] = {}
    for number, session in enumerate(run.sessions, start=1):
        for finding in session_findings(session):
            where.setdefault(finding, []).append(number)
    found = [_in_sessions(finding, numbers, len(run.sessions)) for finding, numbers in where.items()]
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def session_findings(session: Session) -> list[Finding]:
    """What distorts one session, in the order of the rules. Virtual clocks are not distorted by a real host."""
    if session.simulated:
        return [_simulated()]
    found = [finding for rule in environment_host.RULES for finding in rule(session)]
    found += [finding for rule in environment_process.RULES for finding in rule(session)]
    for gpu in session.gpus:
        for finding in gpu_findings(gpu, session):
            title = f"GPU {gpu.index}: {finding.title}" if len(session.gpus) > 1 else finding.title
            found.append(msgspec.structs.replace(finding, title=title))
    return found + _unseen(session)


def _simulated() -> Finding:
    return Finding(
        rule="environment.simulated",
        severity="problem",
        title="SIMULATED: no GPU was measured",
        text="Every figure comes from the simulated GPU's constants: they show what a report looks like, nothing else.",
        threshold="the session ran with --device fake",
        rests_on=("simulated",),
    )


def _unseen(session: Session) -> list[Finding]:
    """What could not be looked at, so that silence about it means nothing."""
    environment = session.environment
    hidden = [(name, words) for name, words in NEEDED_FACTS if environment.fact(name) is None]
    for gpu in session.gpus:
        hidden += [(f"gpu {name}", words) for name, words in NEEDED_GPU_FIELDS if getattr(gpu, name) is None]
    hidden = list(dict.fromkeys(hidden))
    if not hidden:
        return []
    reasons = {fact.name: fact.reason for fact in environment.facts if fact.value is None and fact.reason}
    listed = [f"{words} ({reasons[name]})" if name in reasons else words for name, words in hidden]
    return [
        Finding(
            rule="environment.unseen",
            severity="note",
            title=f"{len(hidden)} possible distortion{'s' if len(hidden) > 1 else ''} cannot be seen from here",
            text=f"Unknown: {', '.join(listed)}. That no finding names them clears nothing.",
            threshold="a fact that a rule needs is unknown",
            rests_on=tuple(name for name, _ in hidden),
        )
    ]


def _in_sessions(finding: Finding, numbers: list[int], total: int) -> Finding:
    if len(numbers) == total:
        return finding
    which = ", ".join(str(number) for number in numbers)
    sessions = "session" if len(numbers) == 1 else "sessions"
    return msgspec.structs.replace(finding, text=f"{finding.text} (In {sessions} {which} of {total}.)")

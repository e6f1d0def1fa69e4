"""What distorts a run: a finding for each fact of its environment that a reader should know before the numbers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from microbench.analysis.evidence import SEVERITIES, Finding, Severity
from microbench.core.model import Run, Session
from microbench.explain import environment_machine
from microbench.explain.environment_machine import gpu_findings

# What acts on the measuring process itself and distorts a run: variables, profilers, debuggers, MPS.


OFF = ("", "0", "none", "off")


class VariableEffect(NamedTuple):
    """What a variable does to a launch. ``when`` are the values that do it; None for any value but an unset one."""

    name: str
    severity: Severity
    effect: str
    when: tuple[str, ...] | None = None


# CUDA programming guide, "CUDA environment variables"; Numba reference, "Environment variables".
EFFECTS = (
    VariableEffect("CUDA_LAUNCH_BLOCKING", "problem", "each launch waits for its kernel to end", ("1",)),
    VariableEffect("NUMBA_ENABLE_CUDASIM", "problem", "Numba's kernels are simulated on the CPU", ("1",)),
    VariableEffect("NUMBA_DISABLE_JIT", "problem", "the measuring loops are interpreted, not compiled", ("1",)),
    VariableEffect("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "warning", "kernels run under the debugger's support", ("1",)),
    VariableEffect("CUDA_DEVICE_WAITS_ON_EXCEPTION", "warning", "kernels run under the debugger's support", ("1",)),
    VariableEffect("CUDA_FORCE_PTX_JIT", "warning", "machine code is ignored and PTX compiled at load", ("1",)),
    VariableEffect("CUDA_FORCE_JIT", "warning", "machine code is ignored and PTX compiled at load", ("1",)),
    VariableEffect("CUDA_DEVICE_MAX_CONNECTIONS", "warning", "streams share that many queues (8 by default)"),
    VariableEffect("CUDA_SCALE_LAUNCH_QUEUES", "warning", "launch queues are longer or shorter than this driver's own"),
    VariableEffect("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "warning", "under MPS only that share of the SMs is used"),
    VariableEffect("NVIDIA_TF32_OVERRIDE", "warning", "libraries are kept from using TF32", ("0",)),
    VariableEffect("CUDA_MODULE_LOADING", "note", "whole modules are loaded at once: slower cold starts", ("EAGER",)),
    VariableEffect("CUDA_CACHE_DISABLE", "note", "compiled PTX is not kept: slower cold starts", ("1",)),
    VariableEffect("NUMBA_CUDA_DEBUGINFO", "warning", "Numba's kernels carry debug code", ("1",)),
)


def variables(session: Session) -> list[Finding]:
    """One finding for each variable that was set to a value that changes launches."""
    found = []
    for effect in EFFECTS:
        value = session.environment.fact(effect.name)
        if isinstance(value, str) and value != "" and (effect.when is None or value.upper() in effect.when):
            found.append(_variable(effect, value))
    return found


def _variable(effect: VariableEffect, value: str) -> Finding:
    condition = "set" if effect.when is None else f"set to {' or '.join(effect.when)}"
    return Finding(
        rule=f"environment.{effect.name.lower()}",
        severity=effect.severity,
        title=f"{effect.name}={value} changes what is measured",
        text=f"With {effect.name}={value} {effect.effect}. Unset it and repeat, unless that is what you want to see.",
        threshold=f"{effect.name} is {condition}",
        rests_on=(effect.name,),
    )


def profiler(session: Session) -> list[Finding]:
    """A tool intercepts the calls that are timed."""
    tool = session.environment.fact("profiler")
    if tool in (None, *OFF):
        return []
    return [
        Finding(
            rule="environment.profiler",
            severity="problem",
            title=f"A profiler is attached: {tool}",
            text=(
                f"{tool} intercepts driver calls and may serialise kernels: every launch figure contains it. Measure "
                "without it; under it, look only at the timeline."
            ),
            threshold="a tool's variable is set, or its library is preloaded, injected or mapped",
            rests_on=("profiler",),
        )
    ]


def tracer(session: Session) -> list[Finding]:
    """A debugger or system-call tracer follows the process."""
    name = session.environment.fact("tracer")
    if name in (None, *OFF):
        return []
    return [
        Finding(
            rule="environment.tracer",
            severity="problem",
            title=f"The process is traced by {name}",
            text=f"{name} stops it at system calls or breakpoints, also inside what is timed. Measure without it.",
            threshold="the process has a ptrace tracer",
            rests_on=("tracer",),
        )
    ]


def mps(session: Session) -> list[Finding]:
    """Work goes through the MPS server and may share the GPU."""
    state = session.environment.fact("mps")
    if state in (None, *OFF):
        return []
    running = state == "running"
    return [
        Finding(
            rule="environment.mps",
            severity="warning" if running else "note",
            title="MPS is running" if running else "MPS may be running",
            text=(
                f"State: {state}. Under MPS contexts of several processes share the GPU's queues, and cold starts "
                "include the server. `echo quit | nvidia-cuda-mps-control` ends it."
            ),
            threshold="the daemon is among the processes, or its control pipe exists",
            rests_on=("mps",),
        )
    ]


RULES = (variables, profiler, tracer, mps)


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
    found = [finding for rule in environment_machine.RULES for finding in rule(session)]
    found += [finding for rule in RULES for finding in rule(session)]
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

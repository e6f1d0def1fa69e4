"""What acts on the measuring process itself and distorts a run: variables, profilers, debuggers, MPS."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.finding import Finding, Severity
from microbench.model import Session

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

"""Takes the recorder's own costs off a recorded step: what each recorded call, operator and Python function costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.diagnosis.recorded import STANDS_OUT, Recorded
from microbench.diagnosis.steps import Steps
from microbench.diagnosis.turns import LONGEST, in_pauses
from microbench.model.constants import Constant, Fit, around, stand_in
from microbench.model.model import call_name, copy_name
from microbench.model.workload import Copies, Kernels, Part, Workload
from microbench.traces.trace import SYNC_KINDS, Format, Pause, Trace

# What PyTorch's profiler adds to a call, an operator and a Python function, in s, where the run has not measured it:
# eleven programs on two H200 machines with busy hosts, each timed without a profiler and with each of its modes.
USUAL_S = {"call": 4.5e-6, "operator": 2.0e-6, "function": 0.4e-6}
# What our own recorder adds to a call of the same programs, where the run has not measured it.
OWN_S, OWN = 1.8e-6, "what two H200 machines with busy hosts showed stands for it"
USUAL = "the run has no usable figure of what recording takes, and eleven programs on two H200 machines stand for it"
ANOTHER = "this profiler costs what PyTorch's does"
# XLA notes ranges of its host code without the inputs and links of PyTorch's operators, which costs about as much as a
# Python function: short ranges of a JAX step follow one another within 0.1 us (JAX 0.11, an H200's host).
NOTED: Mapping[Format, Mapping[str, str]] = {"XLA profiler": {"operator": "function"}}
# How far these costs may be off, as a share of them: another host, another recorder.
UNCERTAIN = 0.5
ON_GPU = SYNC_KINDS.index("stream_wait_event")
# No more than this share of the host time can be the recorder's.
MOST = 0.8


# What CUPTI takes of a call in a pause, on the host of one H100 and on six of H200s, quiet and busy: 0.7 to 1.4 us in
# loops of additions of PyTorch, 1.0 to 1.9 in a decoder. A busy host showed 6 once.
CALLED_S = 1.3e-6
# Stretches of so many steps between two windows give one time of a step each.
STEPS_AT_ONCE = 5
FEWEST = 3  # times of a step in pauses
NEAREST, ENOUGH = 2, 8  # pauses that count in any case, and times of a step that make others needless
WORKS = 0.9  # a step in pauses takes at least this share of the GPU's work in a recorded one, or is wrong


class Known(NamedTuple):
    """The unprofiled time of a step, with its interval in s; ``measured`` between two windows, or given."""

    step_s: float
    low_s: float
    high_s: float
    measured: bool = False


class Unwatched(NamedTuple):
    """A step's workload without the recorder's costs, and those costs in s a step, with the least and the most."""

    workload: Workload
    cost_s: float
    low_s: float
    high_s: float


def recorder_costs(step: Recorded, fit: Fit, format: Format) -> dict[str, Constant]:
    """What the recorder of a trace of that format adds to each call, operator and Python function that the step has."""
    costs = {}
    for name, count in _counts(step).items():
        like = NOTED.get(format, {}).get(name, name)
        cost = fit.constants.get(f"watched.{like}") or around(USUAL_S[like], UNCERTAIN * USUAL_S[like], (), USUAL)
        if format == "microbench recording":
            cost = fit.constants.get("watched.own_call") or around(OWN_S, UNCERTAIN * OWN_S, (), OWN)
        elif format != "PyTorch profiler":
            cost = stand_in(cost, cost.assumed or ANOTHER, UNCERTAIN)
        if count:
            costs[name] = cost
    return costs


def between_windows(whole: Trace, window: Trace, steps: Steps, works_s: float, apart: bool = False) -> Known | None:
    """The time of a step in pauses of the recording, from the turns of the steps' own loop, else from the host's waits;
    None if there are too few, or if they are far below the GPU's work of a step, because the host ran ahead of it.

    In ``window`` the steps show how many waits and calls a step has; with ``apart`` it has others that stand out, which
    count in no pause either. Of many pauses the nearest count, because programs
    and hosts change with time.

    The interval holds nine stretches in ten. A recorder makes no step shorter, so within it the time is at most that of
    the recorded step. What CUPTI takes there of calls is taken off: at least half of what it took elsewhere, for the
    thread with most calls and as far as the GPU idles; at most one and a half of it for all threads, and MOST of the
    time in which the GPU idles.
    """
    begin_ns, end_ns = steps.begins_ns[0], steps.begins_ns[-1]

    def apart_ns(pause: Pause) -> int:
        return int(max(pause.begin_ns - end_ns, begin_ns - pause.end_ns))

    times_s, lasts_ns = np.empty(0), np.diff(steps.begins_ns)
    longest = STANDS_OUT if apart else LONGEST
    stalls = bool(lasts_ns.max() > longest * np.median(lasts_ns))
    for number, pause in enumerate(sorted(whole.pauses, key=apart_ns)):
        if number >= NEAREST and len(times_s) >= ENOUGH:
            break
        if steps.found == "loop":
            times_ns = in_pauses(whole, [pause], steps.name, steps.every, stalls, longest)
        else:
            times_ns = _between_waits(whole, [pause], window, steps)
        times_s = np.concatenate([times_s, *(one * 1e-9 for one in times_ns)])
    if len(times_s) < FEWEST:
        return None
    middle_s = float(times_s.mean())
    low_s, high_s = (float(end) for end in np.quantile(times_s, (0.05, 0.95)))
    low_s, high_s = min(low_s, middle_s), max(high_s, middle_s)
    if low_s <= steps.step_s < middle_s:
        middle_s = steps.step_s
    if middle_s <= 0 or middle_s < WORKS * works_s:
        return None
    idle_s = max(middle_s - works_s, 0.0)
    of_threads = np.bincount(window.calls["thread"][steps.calls[0] : steps.calls[-1]], minlength=1) / steps.count
    most_s = min((1 + UNCERTAIN) * CALLED_S * float(of_threads.sum()), MOST * idle_s)
    least_s = min((1 - UNCERTAIN) * CALLED_S * float(of_threads.max()) * idle_s / middle_s, most_s)
    low_s = max(low_s - most_s, min(low_s, works_s))
    return Known(middle_s - (least_s + most_s) / 2, low_s, high_s - least_s, measured=True)


def _between_waits(whole: Trace, pauses: list[Pause], window: Trace, steps: Steps) -> list[npt.NDArray[np.float64]]:
    """Times in ns of a step in pauses, each the mean of several steps."""
    begin_ns, end_ns = steps.begins_ns[0], steps.begins_ns[-1]
    ends_ns = window.syncs["end_ns"][window.syncs["kind"] != ON_GPU]
    waits = np.count_nonzero((ends_ns >= begin_ns) & (ends_ns < end_ns)) / steps.count
    others_ns, found = np.array(whole.other_waits_ns, np.int64), []
    for pause in pauses if waits else ():
        own_ns = others_ns[(others_ns > pause.begin_ns) & (others_ns < pause.end_ns)]
        at_once = math.ceil(waits * max(min(STEPS_AT_ONCE, int(len(own_ns) / waits) // (FEWEST + 1)), 1))
        found.append(np.diff(own_ns[::at_once]) * (waits / at_once))
    return found


def _counts(step: Recorded) -> dict[str, float]:
    return {"call": step.calls, "operator": step.operators, "function": step.functions}


def unwatched(step: Recorded, costs: Mapping[str, Constant]) -> Unwatched:
    """The unprofiled step: less host time for its launches, as long pauses, waits and copies.

    The interval takes all costs at their least or all at their most, because a host that makes one record expensive
    makes all expensive.
    """
    calls = (part for part in step.workload.parts if isinstance(part, Kernels | Copies))
    launching_s = sum(part.host_s or 0.0 for part in calls) / step.steps
    counts, most_s = _counts(step), MOST * launching_s
    cost_s, low_s, high_s = (
        min(sum(counts[name] * getattr(cost, end) for name, cost in costs.items()), most_s)
        for end in ("value", "low", "high")
    )
    share = 1 - cost_s / launching_s if launching_s > 0 else 1.0
    return Unwatched(scaled(step.workload, share), cost_s, low_s, high_s)


def scaled(workload: Workload, share: float) -> Workload:
    """The workload with this share of the host time for its launches and copies."""

    def changed(part: Part) -> Part:
        if isinstance(part, Kernels | Copies):
            return msgspec.structs.replace(part, host_s=(part.host_s or 0.0) * share)
        return part

    return msgspec.structs.replace(workload, parts=tuple(changed(part) for part in workload.parts))


def beyond_calls(workload: Workload, constants: Mapping[str, float]) -> Workload:
    """The workload with host times on top of the calls of launches and copies instead of including them.

    ``constants`` has these calls. Where one took less as recorded, those behind it have that much less.
    """
    owed_s, launch = 0.0, call_name(workload.layer, 0)  # which a step of copies alone does not need
    parts: list[Part] = []
    for part in workload.parts:
        if isinstance(part, Kernels | Copies):
            call_s = constants[launch if isinstance(part, Kernels) else copy_name(part)]
            left_s = (part.host_s or 0.0) - call_s - owed_s
            owed_s = max(-left_s, 0.0)
            part = msgspec.structs.replace(part, host_s=max(left_s, 0.0))
        parts.append(part)
    return msgspec.structs.replace(workload, parts=tuple(parts))

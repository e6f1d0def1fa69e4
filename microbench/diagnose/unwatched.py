"""Takes the recorder's own costs off a recorded step: what each recorded call, operator and Python function costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from microbench.diagnose.recorded import Recorded
from microbench.predict.model import call_name, copy_name
from microbench.predict.workload import Copies, Kernels, Part, Workload

# What PyTorch's profiler adds to a call, an operator and a Python function, in s: ten programs on an H200 with PyTorch
# 2.11 and a busy host, each timed without a profiler and with each of its modes.
CALL_S, OPERATOR_S, FUNCTION_S = 2.7e-6, 2.0e-6, 0.4e-6
# How far these costs may be off, as a share of them: another host, another recorder.
UNCERTAIN = 0.5
# No more than this share of the host time can be the recorder's.
MOST = 0.8


class Unwatched(NamedTuple):
    """A step's workload without the recorder's costs, and those costs in s a step, with the least and the most."""

    workload: Workload
    cost_s: float
    low_s: float
    high_s: float


def unwatched(step: Recorded) -> Unwatched:
    """The step as it runs when nobody records it: less host time for its launches, as long pauses, waits and copies."""
    launching_s = sum(part.host_s or 0.0 for part in step.workload.parts if isinstance(part, Kernels)) / step.steps
    cost_s = step.calls * CALL_S + step.operators * OPERATOR_S + step.functions * FUNCTION_S
    most_s = MOST * launching_s
    share = 1 - min(cost_s, most_s) / launching_s if launching_s > 0 else 1.0
    ends = (min(cost_s * (1 + sign * UNCERTAIN), most_s) for sign in (-1, 1))
    return Unwatched(scaled(step.workload, share), min(cost_s, most_s), *ends)


def scaled(workload: Workload, share: float) -> Workload:
    """The workload with this share of the host time for its launches."""

    def changed(part: Part) -> Part:
        if isinstance(part, Kernels):
            return msgspec.structs.replace(part, host_s=(part.host_s or 0.0) * share)
        return part

    return msgspec.structs.replace(workload, parts=tuple(changed(part) for part in workload.parts))


def beyond_calls(workload: Workload, constants: Mapping[str, float]) -> Workload:
    """The workload with host times on top of the calls of launches and copies instead of including them.

    ``constants`` has these calls. Where a recorded launch took less than its call, the launches behind it have that
    much less, and likewise for the call of a copy.
    """
    owed_s, call_s = 0.0, constants[call_name(workload.layer, 0)]
    parts: list[Part] = []
    for part in workload.parts:
        if isinstance(part, Kernels):
            left_s = (part.host_s or 0.0) - call_s - owed_s
            owed_s = max(-left_s, 0.0)
            part = msgspec.structs.replace(part, host_s=max(left_s, 0.0))
        elif isinstance(part, Copies):
            owed_s += constants[copy_name(part)] * part.count
        parts.append(part)
    return msgspec.structs.replace(workload, parts=tuple(parts))

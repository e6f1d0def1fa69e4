"""Gives each part of the idle time the functions in which the host was then, for a flame graph."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from microbench.diagnosis.diagnosis import Diagnosis, window_of
from microbench.diagnosis.host_time import Slices, without_number
from microbench.diagnosis.idle import CAUSES, gaps_of, place_name, stretches
from microbench.traces.trace import NONE, Trace

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


def idle_stacks(diagnosis: Diagnosis) -> Counter[tuple[str, ...]]:
    """The ns in which the GPU was idle, by the cause, the functions (the outermost first) and the CUDA call. They add
    up to the idle time."""
    found: Counter[tuple[str, ...]] = Counter()
    if diagnosis.idle is None:
        return found
    trace = diagnosis.trace
    for pieces in stretches(trace, gaps_of(trace.work, diagnosis.idle.device, *window_of(trace, diagnosis.steps))):
        inside = np.full(len(pieces.cause), NONE)
        if pieces.of is not None and pieces.slice is not None:
            inside = pieces.of.range[pieces.slice]
        lengths_ns = pieces.end_ns - pieces.begin_ns
        kinds, index = np.unique(
            np.stack([pieces.cause, pieces.call, pieces.name, inside], axis=1), axis=0, return_inverse=True
        )
        totals_ns = np.bincount(index.ravel(), weights=lengths_ns, minlength=len(kinds)).astype(np.int64).tolist()
        for (cause, call, name, within), ns in zip(kinds.tolist(), totals_ns, strict=True):
            if pieces.of is None:
                names = [place_name(trace, call, name)]
            else:
                names = [*_functions(trace, pieces.of, within), trace.names[call] if call != NONE else ""]
            found[(CAUSES[cause], *filter(None, names))] += ns
    return found


def _functions(trace: Trace, of: Slices, within: int) -> list[str]:
    """The names of a range and of those around it, the outermost first."""
    names = []
    while within != NONE:
        if of.names[within] != NONE:
            names.append(without_number(trace.names[of.names[within]]))
        within = int(of.around[within])
    return names[::-1]


def speedscope(diagnosis: Diagnosis) -> bytes:
    """The idle time as a profile of speedscope: a stack for each cause, functions and call, weighted in s."""
    stacks = idle_stacks(diagnosis)
    frames = {name: place for place, name in enumerate(dict.fromkeys(name for stack in stacks for name in stack))}
    seconds = [ns * 1e-9 for ns in stacks.values()]
    title = f"GPU idle, by cause: {diagnosis.trace.source}"
    profile = {
        "type": "sampled", "name": title, "unit": "seconds", "startValue": 0, "endValue": sum(seconds),
        "samples": [[frames[name] for name in stack] for stack in stacks], "weights": seconds,
    }  # fmt: skip
    shared = {"frames": [{"name": name} for name in frames]}
    whole = {"$schema": SPEEDSCOPE, "exporter": "microbench", "name": title, "shared": shared, "profiles": [profile]}
    return msgspec.json.encode(whole)

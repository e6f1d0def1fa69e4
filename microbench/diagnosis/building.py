"""Finds libraries that build kernels again and again, because the shapes of a program's data change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from microbench.analysis.evidence import Finding
from microbench.core.units import as_time, round_percent
from microbench.diagnosis.diagnosis import Diagnosis, each
from microbench.diagnosis.idle import CODE
from microbench.diagnosis.steps import FEWEST

SHORTEST_NS = 1_000_000  # of the host time before and in a call that loads what was built; to load alone is shorter
LEAST = 0.05  # of the time
ATTENTION = "cudnn_generated_fort_native_sdpa"  # kernels that cuDNN builds for each shape


def built_s(diagnosis: Diagnosis) -> tuple[float, int]:
    """The time in s that libraries take to build kernels in the steps, and in how many steps they do; 0 if in few."""
    trace, steps = diagnosis.trace, diagnosis.steps
    if steps is None or steps.count < FEWEST:
        return 0.0, 0
    calls = trace.calls
    loads = np.array([any(one in name for one in CODE) for name in (*trace.names, "")])[calls["name"]]
    order = np.lexsort((calls["begin_ns"], calls["thread"]))
    before_ns = np.zeros(len(calls), np.int64)
    own = np.diff(calls["thread"][order], prepend=-1) == 0
    ends_ns = np.append(0, calls["end_ns"][order][:-1])
    before_ns[order] = np.where(own, np.maximum(calls["begin_ns"][order] - ends_ns, 0), 0)
    takes_ns = (before_ns + calls["end_ns"] - calls["begin_ns"]) * loads
    takes_ns[takes_ns <= SHORTEST_NS] = 0
    goes_on = 4 * takes_ns[len(calls) // 2 :].sum() >= takes_ns.sum()
    step = np.searchsorted(steps.begins_ns, calls["begin_ns"], "right") - 1
    chosen = (takes_ns > 0) & (step >= 0) & (step < steps.count)
    count = len(np.unique(step[chosen]))
    return (float(takes_ns[chosen].sum()) * 1e-9, count) if goes_on and 2 * count >= steps.count else (0.0, 0)


def building(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Say that kernels are built in most steps, if that takes long."""
    takes_s, count = built_s(diagnosis)
    if diagnosis.idle is None or diagnosis.steps is None or takes_s <= LEAST * diagnosis.idle.span_s:
        return
    attends = any(ATTENTION in name for name in diagnosis.trace.names)
    yield Finding(
        rule="diagnose.building",
        severity="advice",
        title=f"Libraries build kernels in {count} of {diagnosis.steps.count} steps, mostly because shapes change: "
        f"{as_time(each(diagnosis, takes_s))} of each step",
        text="",
        threshold=f"calls that load code take more than {as_time(SHORTEST_NS * 1e-9)}, with the time before them, in "
        f"half of the steps, {round_percent(LEAST)} of the time, and not at the start alone",
        advice="Keep shapes the same: pad, or take a static cache"
        + "; or switch cuDNN's attention off: torch.backends.cuda.enable_cudnn_sdp(False)" * attends,
    )

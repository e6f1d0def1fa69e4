"""Measures in a trace how long work took to follow its call, the work before it, and how long a wait took to return."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from microbench.diagnosis.host_time import DOINGS, by_name, doing
from microbench.diagnosis.idle import LONGEST_GAP_NS, LONGEST_WAY_NS
from microbench.traces.trace import MEMORIES, NONE, WORK_KINDS, Trace

FEWEST = 8  # of a kind
QUEUED_NS = 1000  # work whose call returned so long before the work before it ended was in the queue by then

NsArray = npt.NDArray[np.int64]


def recorded_latencies(trace: Trace, device: int) -> Mapping[str, float]:
    """The constants of the model that the trace itself shows, in s, with the recorder's costs in them.

    ``way`` is from the return of a launch call to its kernel on a free GPU, ``gap_stream`` from the end of queued work
    to a kernel behind it in the same stream, ``gap_copy`` to a copy behind it, ``complete`` from the end of the last
    work to the return of a wait. Those that the trace shows only a few times are left out.
    """
    work = trace.work[(trace.work["device"] == device) & (trace.work["call"] != NONE)]
    work = work[np.argsort(work["call"], kind="stable")]
    ended_ns = _ends_before(work["stream"], work["end_ns"])
    returned_ns, begin_ns = trace.calls["end_ns"][work["call"]], work["begin_ns"]
    inside = MEMORIES.index("device")  # such a copy is a kernel to the model
    copies = (work["kind"] == WORK_KINDS.index("copy")) & ((work["source"] != inside) | (work["target"] != inside))
    queued = (ended_ns > returned_ns + QUEUED_NS) & (begin_ns >= ended_ns) & (begin_ns - ended_ns < LONGEST_GAP_NS)
    free = (ended_ns < trace.calls["begin_ns"][work["call"]]) & (begin_ns - returned_ns < LONGEST_WAY_NS)
    found = {
        "way": (begin_ns - returned_ns)[free & ~copies & (begin_ns > returned_ns)],
        "gap_stream": (begin_ns - ended_ns)[queued & ~copies],
        "gap_copy": (begin_ns - ended_ns)[queued & copies],
        "complete": _returns(trace, work["call"], work["end_ns"]),
    }
    # Gaps behind different kernels differ, and a step has them all: their mean counts.
    means = {
        name: float(np.mean(ns) if name.startswith("gap") else np.median(ns))
        for name, ns in found.items()
        if len(ns) >= FEWEST
    }
    return {name: ns * 1e-9 for name, ns in means.items()}


def _ends_before(streams: NsArray, ends_ns: NsArray) -> NsArray:
    """For each piece of work the end of the work before it in its stream; 0 for the first."""
    before = np.zeros(len(ends_ns), np.int64)
    order = np.argsort(streams, kind="stable")
    same = streams[order][1:] == streams[order][:-1]
    before[order[1:][same]] = ends_ns[order[:-1][same]]
    return before


def _returns(trace: Trace, calls: NsArray, ends_ns: NsArray) -> NsArray:
    """For each wait during which the last submitted work ended: the time from that end to its return, in ns."""
    waits = np.flatnonzero(by_name(trace, doing)[trace.calls["name"]] == DOINGS.index("wait"))
    last_ns = np.maximum.accumulate(np.append(0, ends_ns))[np.searchsorted(calls, waits)]
    begin_ns, end_ns = trace.calls["begin_ns"][waits], trace.calls["end_ns"][waits]
    seen = (last_ns > begin_ns) & (last_ns < end_ns) & (end_ns - last_ns < LONGEST_WAY_NS)
    result: NsArray = (end_ns - last_ns)[seen]
    return result

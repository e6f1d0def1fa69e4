"""Finds the waits of streams for events of other streams in a trace, and the work that these waits held back."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from microbench.traces.trace import NONE, SYNC_KINDS, Table, Trace

NEVER = np.iinfo(np.int64).min


def stream_waits(trace: Trace) -> Table:
    """The waits of streams for events of other streams, rows of SYNCS in the order of their calls.

    Waits whose call, stream or event the trace does not name are omitted. So are waits for an event that is recorded
    later, because the recorder has confused two uses of that event.
    """
    waits = trace.syncs[trace.syncs["kind"] == SYNC_KINDS.index("stream_wait_event")]
    known = (waits["stream"] != NONE) & (waits["on_stream"] != NONE) & (waits["on_call"] != NONE)
    known &= (waits["on_call"] < waits["call"]) & (waits["stream"] != waits["on_stream"])
    ordered: Table = np.sort(waits[known], order="call", kind="stable")
    return ordered


def held_by_events(trace: Trace, device: int) -> npt.NDArray[np.bool_]:
    """For each piece of work, whether an event of another stream held it back.

    That is so for work of the device behind a wait whose event happened after the stream's earlier work had ended.
    """
    work, waits = trace.work, stream_waits(trace)
    held = np.zeros(len(work), dtype=bool)
    if not len(waits):
        return held
    own = np.flatnonzero((work["device"] == device) & (work["call"] != NONE))
    # In the order of the calls: an event is recorded, a stream waits for one, work is submitted.
    call = np.concatenate([waits["on_call"], waits["call"], work["call"][own]])
    kind = np.repeat([0, 1, 2], [len(waits), len(waits), len(own)])
    stream = np.concatenate([waits["on_stream"], waits["stream"], work["stream"][own]])
    what = np.concatenate([waits["on_call"], waits["on_call"], own])  # an event is named by the call that records it
    order = np.lexsort((kind, call))
    ended_ns: dict[int, int] = {}  # when each stream's last work ended
    awaited_ns: dict[int, int] = {}  # the latest event that each stream has waited for since
    happened_ns: dict[int, int] = {}  # when each event happened
    for kind_, stream_, what_ in zip(kind[order].tolist(), stream[order].tolist(), what[order].tolist(), strict=True):
        before_ns = ended_ns.get(stream_, NEVER)
        if kind_ == 0:
            happened_ns[what_] = max(before_ns, awaited_ns.get(stream_, NEVER))
        elif kind_ == 1:
            awaited_ns[stream_] = max(awaited_ns.get(stream_, NEVER), happened_ns[what_])
        else:
            held[what_] = before_ns < awaited_ns.pop(stream_, NEVER) <= int(work["begin_ns"][what_])
            ended_ns[stream_] = max(before_ns, int(work["end_ns"][what_]))
    return held

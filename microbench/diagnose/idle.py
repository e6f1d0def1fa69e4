"""Splits the time in which no work runs on a GPU by its causes; the parts add up to the whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.diagnose.host_time import DOINGS, Doing, Slices, overlaps, slices
from microbench.traces.trace import NONE, Table, Trace, name_of

IntArray = npt.NDArray[np.int64]

Cause = Literal[
    "host between calls", "launch calls", "other calls", "waits", "copies", "allocation", "module load",
    "another stream", "way to the GPU", "device gaps", "profiler", "unknown",
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)
BY_DOING: Mapping[Doing, Cause] = {
    "between": "host between calls", "launch": "launch calls", "wait": "waits", "copy": "copies",
    "allocation": "allocation", "module": "module load", "other_call": "other calls", "profiler": "profiler",
}  # fmt: skip

NUMBERED = re.compile(r"[ #]*\d+$")  # the number of a step behind its name

# Longer than this, work that was submitted in time does not follow the work before it: something else held it back.
LONGEST_GAP_NS = 6000
# Longer than this after its call returned, the work of a GPU that was free was held back by something else.
LONGEST_WAY_NS = 20_000


class Where(NamedTuple):
    """A named part of the idle time: its cause, the range of host code or the CUDA call, and its seconds."""

    cause: Cause
    name: str
    seconds: float


class Idle(msgspec.Struct, frozen=True):
    """The time of a window of a trace in which a GPU ran nothing, by cause.

    ``span_s`` is the whole window and ``busy_s`` the time in which at least one kernel, copy or memset ran, both in s;
    ``causes`` add up to the rest. ``places`` are its named parts, the longest first. ``gaps`` is the number of idle
    intervals, and ``drained`` the seconds of those that began while the host waited for the GPU.
    """

    device: int
    span_s: float
    busy_s: float
    causes: Mapping[Cause, float]
    places: tuple[Where, ...]
    gaps: int
    drained_s: float

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran."""
        return self.span_s - self.busy_s


class Gaps(NamedTuple):
    """Idle intervals of a GPU, each with the place in the work table of the next work; NONE behind the last."""

    begin_ns: IntArray
    end_ns: IntArray
    work: IntArray


def busiest(trace: Trace) -> int:
    """The GPU with most work."""
    devices, counts = np.unique(trace.work["device"], return_counts=True)
    return int(devices[np.argmax(counts)]) if len(devices) else 0


def gaps_of(work: Table, device: int, begin_ns: int, end_ns: int) -> Gaps:
    """When nothing ran on that GPU between two times."""
    places = np.flatnonzero((work["device"] == device) & (work["end_ns"] > begin_ns) & (work["begin_ns"] < end_ns))
    begins = np.maximum(work["begin_ns"][places], begin_ns)
    ends = np.minimum(work["end_ns"][places], end_ns)
    until = np.maximum.accumulate(np.concatenate([[begin_ns], ends]))
    later = np.flatnonzero((work["device"] == device) & (work["begin_ns"] >= end_ns))[:1]
    begins, places = np.append(begins, end_ns), np.append(places, later if len(later) else NONE)
    idle = begins > until
    return Gaps(until[idle], begins[idle], places[idle])


class _Sums:
    """Idle ns by cause, and by cause and name."""

    def __init__(self) -> None:
        self.causes = dict.fromkeys(CAUSES, 0)
        self.named: dict[tuple[Cause, str], int] = {}

    def add(self, cause: Cause, ns: int, name: str = "") -> None:
        self.causes[cause] += ns
        if ns and name:
            self.named[cause, name] = self.named.get((cause, name), 0) + ns


def idle(trace: Trace, begin_ns: int, end_ns: int, device: int) -> Idle:
    """The causes of a GPU's idle time between two times."""
    gaps, sums, drained_ns = gaps_of(trace.work, device, begin_ns, end_ns), _Sums(), 0
    call = np.append(trace.work["call"], NONE)[gaps.work]
    sums.add("unknown", int((gaps.end_ns - gaps.begin_ns)[call == NONE].sum()), "work without a recorded call")
    threads = np.append(trace.calls["thread"], NONE)[call]
    for thread in np.unique(threads[call != NONE]).tolist():
        own = threads == thread
        begins, ends = gaps.begin_ns[own], gaps.end_ns[own]
        called, returned = trace.calls["begin_ns"][call[own]], trace.calls["end_ns"][call[own]]
        of = slices(trace, thread)
        _until_call(trace, of, begins, np.clip(returned, begins, ends), sums)
        _behind_call(trace, returned > begins, ends - np.clip(returned, begins, ends), sums)
        at = np.searchsorted(of.edges_ns, begins, side="right") - 1
        drained = (of.doing[at] == DOINGS.index("wait")) & (called > begins)
        drained_ns += int((ends - begins)[drained].sum())
    places = [Where(cause, name, ns * 1e-9) for (cause, name), ns in sums.named.items()]
    idle_ns = int((gaps.end_ns - gaps.begin_ns).sum())
    return Idle(
        device=device,
        span_s=(end_ns - begin_ns) * 1e-9,
        busy_s=(end_ns - begin_ns - idle_ns) * 1e-9,
        causes={cause: ns * 1e-9 for cause, ns in sums.causes.items()},
        places=tuple(sorted(places, key=lambda where: -where.seconds)),
        gaps=len(gaps.begin_ns),
        drained_s=drained_ns * 1e-9,
    )


def _until_call(trace: Trace, of: Slices, begins_ns: IntArray, ends_ns: IntArray, sums: _Sums) -> None:
    """What the host did from the begin of each gap until the call that ended it had returned."""
    parts = overlaps(of, begins_ns, ends_ns)
    call_names = np.append(trace.calls["name"], NONE)[of.call]
    rows = np.stack([of.doing, call_names, of.name], axis=1)[parts.slice]
    kinds, index = np.unique(rows, axis=0, return_inverse=True)
    totals = np.bincount(index.ravel(), weights=parts.ns, minlength=len(kinds)).astype(np.int64)
    for (kind, *names), ns in zip(kinds.tolist(), totals.tolist(), strict=True):
        words = " in ".join(NUMBERED.sub("", trace.names[name]) for name in names if name != NONE)
        sums.add(BY_DOING[DOINGS[kind]], ns, words)


def _behind_call(trace: Trace, on_the_way: npt.NDArray[np.bool_], left_ns: IntArray, sums: _Sums) -> None:
    """The rest of each gap, when the call had returned: the way to the GPU, a gap between queued work, or a stream that
    waits for another."""
    ways: tuple[tuple[npt.NDArray[np.bool_], Cause, int], ...] = (
        (on_the_way, "way to the GPU", LONGEST_WAY_NS),
        (~on_the_way, "device gaps", LONGEST_GAP_NS),
    )
    for chosen, cause, longest_ns in ways:
        short = chosen & (left_ns <= longest_ns)
        sums.add(cause, int(left_ns[short].sum()))
        held_back: Cause = "another stream" if _waits_for_events(trace) else "unknown"
        sums.add(held_back, int(left_ns[chosen & ~short].sum()), "work held back in its queue")


def _waits_for_events(trace: Trace) -> bool:
    """Whether a stream waits for another one anywhere in the trace."""
    return any("StreamWaitEvent" in name_of(trace, name) for name in np.unique(trace.calls["name"]))

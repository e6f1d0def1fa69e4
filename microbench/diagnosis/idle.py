"""Splits the time in which no work runs on a GPU by its causes; the parts add up to the whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.diagnosis.communication import Collective, collectives, kinds_of_work
from microbench.diagnosis.events import held_by_events
from microbench.diagnosis.host_time import (
    BETWEEN,
    DOINGS,
    MANAGED,
    ON_MANAGED,
    Doing,
    Slices,
    by_name,
    doing,
    overlaps,
    slices,
    without_number,
)  # fmt: skip
from microbench.diagnosis.owners import Owner, handed_on, own_line, owner_of
from microbench.diagnosis.steps import pause_time, runs_python
from microbench.traces.trace import NONE, WORK_KINDS, Table, Trace, migrates, name_of

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Cause = Literal[
    "Python and framework time between CUDA calls", "launch calls", "other calls", "waits", "copies", "allocation",
    "module load", "another stream's event", "another stream", "launch latency", "device gaps", "profiler", "unknown",
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)
BY_DOING: Mapping[Doing, Cause] = {
    "between": BETWEEN, "launch": "launch calls", "wait": "waits", "copy": "copies",
    "allocation": "allocation", "module": "module load", "other_call": "other calls", "profiler": "profiler",
}  # fmt: skip


# Idle time for these causes ends when the host submits sooner: the step is launch-bound if they are most of it.
SUBMISSION: tuple[Cause, ...] = (BETWEEN, "launch calls", "other calls", "launch latency", "module load")
# What that time is called in a program that shows no sign of Python.
OWN_TIME = "the program's own work between CUDA calls"


# Longer than this, work that was submitted in time does not follow the work before it: something else held it back.
LONGEST_GAP_NS = 6000
# If work waits in its queue for a larger share of the time, other programs probably use the GPU.
MOST_HELD = 0.3
LONGEST_IN_GRAPH_NS = 50_000  # in a replay, whose conditional nodes take up to 25 us each (XLA's loops on an H200)
# Longer than this after its call returned, the work of a GPU that was free was held back by something else.
LONGEST_WAY_NS = 20_000
# A call of these kinds takes longer than this only when it does something for the first time. The first launch of a
# kernel that takes so many times as long as launches do loads its code.
LONGEST_CALL_NS, LOADS = 500_000, 100
# A graph of many kernels takes long to launch each time.
# Work that begins at most so many times the shortest time behind its call was not queued before: the call came late. A
# launch takes no longer to arrive than this.
NEAR, USUAL_WAY_NS = 1.25, 8_000
FIRST_USE: tuple[Cause, ...] = ("allocation", "module load", "launch calls", "other calls")
# Operators that compute by cuBLAS or cuDNN. Before their first launch these libraries are loaded, and choose kernels.
BY_LIBRARY, LIBRARY_NS = re.compile(r"aten::\w*(?:conv|mm\b|matmul|linear|attention)"), 5_000_000
# Of more first uses, with so much work for each, most are in the first half, if they are the start.
FEW_LOADS, WORK_EACH = 3, 10


Stack = tuple[str, ...]


def said(trace: Trace, cause: str) -> str:
    """A cause in words, which name Python only where the program runs it."""
    return OWN_TIME if cause == BETWEEN and not runs_python(trace) else cause


class Where(NamedTuple):
    """A named part of the idle time: its cause, the range of host code or the CUDA call, and its seconds."""

    cause: Cause
    name: str
    seconds: float


class Idle(msgspec.Struct, frozen=True):
    """The time of a window of a trace in which a GPU ran nothing, by cause.

    ``span_s`` is the whole window and ``busy_s`` the time in which at least one kernel, copy or memset ran, both in s;
    ``copies_s`` is the part of it in which nothing but copies ran. ``causes`` add up to the rest. ``places`` are its
    named parts, the longest first. ``stacks_ns`` are all of it, in ns, by the cause, the ranges of host code (the
    outermost first) and the CUDA call. ``gaps`` is the number of idle intervals. ``communication_s`` is the part of
    ``busy_s`` in which the GPU exchanged data with others, or waited for them to do so, and ``exposed_s`` that of it in
    which it did nothing else; ``collectives`` are its kinds, the most exposed first. ``first_use_s`` is idle time in
    what happens once: long calls of the first half, launches that load code, and compilers. ``pauses_s`` is host time
    between calls in intervals that have more of it than pause_time(); ``paused_ns`` are the begins and ends of these
    intervals, those with most of it first. ``longest_s`` is the longest idle interval.
    ``waited_s`` is idle time until work was submitted behind a wait of the host, as long as that had waited for a busy
    GPU: without the wait it would have submitted sooner.
    """

    device: int
    span_s: float
    busy_s: float
    causes: Mapping[Cause, float]
    places: tuple[Where, ...]
    gaps: int
    copies_s: float = 0.0
    communication_s: float = 0.0
    exposed_s: float = 0.0
    collectives: tuple[Collective, ...] = ()
    first_use_s: float = 0.0
    pauses_s: float = 0.0
    paused_ns: tuple[tuple[int, int], ...] = ()
    longest_s: float = 0.0
    waited_s: float = 0.0
    stacks_ns: Mapping[Stack, int] = {}

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran."""
        return self.span_s - self.busy_s


class Gaps(NamedTuple):
    """Idle intervals of a GPU, each with the place in the work table of the next work; NONE behind the last."""

    device: int
    begin_ns: IntArray
    end_ns: IntArray
    work: IntArray


def busiest(trace: Trace) -> int:
    """The GPU that works longest, without communication, which waits for others."""
    devices, place = np.unique(trace.work["device"], return_inverse=True)
    if len(devices) < 2:
        return int(devices[0]) if len(devices) else 0
    own = ~np.array(["nccl" in name.lower() for name in (*trace.names, "")])[trace.work["name"]]
    return int(devices[np.argmax(np.bincount(place, (trace.work["end_ns"] - trace.work["begin_ns"]) * own))])


def gaps_of(work: Table, device: int, begin_ns: int, end_ns: int) -> Gaps:
    """When nothing ran on that GPU between two times."""
    places = np.flatnonzero((work["device"] == device) & (work["end_ns"] > begin_ns) & (work["begin_ns"] < end_ns))
    begins = np.maximum(work["begin_ns"][places], begin_ns)
    ends = np.minimum(work["end_ns"][places], end_ns)
    until = np.maximum.accumulate(np.concatenate([[begin_ns], ends]))
    later = np.flatnonzero((work["device"] == device) & (work["begin_ns"] >= end_ns))[:1]
    begins, places = np.append(begins, end_ns), np.append(places, later if len(later) else NONE)
    idle = begins > until
    return Gaps(device, until[idle], begins[idle], places[idle])


def _length(gaps: Gaps) -> int:
    """The sum of the gaps in ns."""
    return int((gaps.end_ns - gaps.begin_ns).sum())


class Stretches(NamedTuple):
    """Idle time in pieces of one cause each: begin and end in ns, and the place of the cause in CAUSES.

    ``call`` and ``name`` are the CUDA call and the range of host code, as places in Trace.names; NONE where there is
    none. Where ``name`` is HELD_BACK or UNCALLED, nothing of the host explains the piece. Else ``path`` are the ranges
    around the piece in the time ``of`` its thread.
    """

    begin_ns: IntArray
    end_ns: IntArray
    cause: IntArray
    call: IntArray
    name: IntArray
    path: IntArray
    of: Slices | None = None


# Functions that compile, whose callees are many.
COMPILING = re.compile(
    r"jax/_src/(compiler|interpreters/mlir)\.py|torch/_dynamo/convert_frame\.py|torch/_inductor/(compile_fx|async_compile)"
    r"\.py|triton/compiler/|numba/core/compiler|cupy/cuda/compiler\.py|nvrtc|\(dynamo_timed\)$",
    re.IGNORECASE,
)
CODE = ("ModuleLoad", "LibraryLoad", "cuLink")  # calls that take what a compiler has made
HELD_BACK, UNCALLED, TOUCHED, LOOPED = -2, -3, -4, -5
UNNAMED = {
    HELD_BACK: "work held back in its queue", UNCALLED: "work without a recorded call", TOUCHED: MANAGED,
    LOOPED: ON_MANAGED,
}  # fmt: skip
# A touch of the host waits no longer for its page to begin to move: the regression of 6143 such gaps on an A100 gives
# 62 us, and 8 ns for each number that the program then read. What is longer is the program's own work.
FAULT_NS = 100_000


def place_name(trace: Trace, call: int, name: int) -> str:
    """The words for a piece of idle time: "cudaLaunchKernel in aten::add"; "" if it has no name."""
    return UNNAMED.get(name) or " in ".join(without_number(trace.names[one]) for one in (call, name) if one != NONE)


def idle(trace: Trace, begin_ns: int, end_ns: int, device: int) -> Idle:
    """The causes of a GPU's idle time between two times."""
    gaps = gaps_of(trace.work, device, begin_ns, end_ns)
    causes, named, stacks = dict.fromkeys(CAUSES, 0), Counter[tuple[Cause, str]](), Counter[Stack]()
    begins_ns = trace.work["begin_ns"][trace.work["device"] == device]
    loads, graphs = _loads(trace), np.array(["GraphLaunch" in name for name in (*trace.names, "")])
    between_ns = np.zeros(len(gaps.begin_ns))
    loads_code = np.array([any(one in name for one in CODE) for name in (*trace.names, "")])
    by_library = np.array([bool(BY_LIBRARY.match(name)) for name in (*trace.names, "")])
    loads_ns, builds_ns = [np.empty((0, 2), np.int64)], [np.empty((0, 2), np.int64)]
    half_ns, first_use_ns, waited_ns = np.median(begins_ns) if len(begins_ns) else 0, 0, 0
    for pieces in stretches(trace, gaps):
        length_ns = pieces.end_ns - pieces.begin_ns
        first = np.isin(pieces.cause, [CAUSES.index(cause) for cause in FIRST_USE]) & (pieces.end_ns <= half_ns)
        first &= (length_ns > LONGEST_CALL_NS) & ~graphs[pieces.call]
        at = np.minimum(np.searchsorted(trace.calls["begin_ns"], pieces.end_ns), max(len(trace.calls) - 1, 0))
        compiles = np.zeros(len(at), bool)
        if len(trace.calls):
            compiles = loads_code[trace.calls["name"][at]] & (pieces.cause == CAUSES.index(BETWEEN))
            compiles &= length_ns > LONGEST_CALL_NS
        builds_ns.append(np.stack([pieces.end_ns, length_ns], axis=1)[compiles & ~first])
        loading = by_library[np.maximum(pieces.name, NONE)] & (pieces.cause == CAUSES.index(BETWEEN))
        loading &= (length_ns > LIBRARY_NS) & np.isin(pieces.end_ns, trace.calls["begin_ns"]) & ~first & ~compiles
        loads_ns.append(np.stack([pieces.end_ns, length_ns], axis=1)[loading])
        within = np.searchsorted(loads["begin_ns"], pieces.begin_ns, "right") - 1
        first |= (within >= 0) & (pieces.begin_ns < np.append(loads["end_ns"], 0)[within])
        first_use_ns += int(length_ns[first].sum())
        waited_ns += _waited_ns(pieces, gaps, begin_ns, end_ns)
        own = (pieces.cause == CAUSES.index(BETWEEN)) & ~np.isin(pieces.name, [TOUCHED, LOOPED])
        of_gap = np.searchsorted(gaps.begin_ns, pieces.begin_ns[own], "right") - 1
        between_ns += np.bincount(of_gap, length_ns[own], len(between_ns))
        kinds, index = np.unique(
            np.stack([pieces.cause, pieces.call, pieces.name, pieces.path], axis=1), axis=0, return_inverse=True
        )
        totals = np.bincount(index.ravel(), weights=length_ns, minlength=len(kinds))
        for (cause, call, name, path), ns in zip(kinds.tolist(), totals.astype(np.int64).tolist(), strict=True):
            if not ns:
                continue
            causes[CAUSES[cause]] += ns
            if words := place_name(trace, call, name):
                named[CAUSES[cause], words] += ns
            around = pieces.of.stacks[path] if pieces.of is not None else (words,)
            stacks[CAUSES[cause], *filter(None, (*around, name_of(trace, call)))] += ns
    for pieces_ns in (loads_ns, builds_ns):
        ends_ns, lasts_ns = np.concatenate(pieces_ns).T
        few = len(ends_ns) <= FEW_LOADS or len(ends_ns) * WORK_EACH > len(begins_ns)
        if few or lasts_ns[ends_ns > half_ns].sum() < lasts_ns.sum() / 4:  # else it comes again
            first_use_ns += int(lasts_ns.sum())
    compiling_ns = sum(ns for (cause, *names), ns in stacks.items() if any(map(COMPILING.search, names)))
    places = [Where(cause, name, ns * 1e-9) for (cause, name), ns in named.items()]
    idle_ns = _length(gaps)
    copies = trace.work["kind"] == WORK_KINDS.index("copy")
    exchanged, communication = kinds_of_work(trace)

    def without(work: BoolArray) -> Gaps:
        """When nothing but this work ran."""
        return gaps_of(trace.work[~work], device, begin_ns, end_ns)

    alone = without(communication != NONE)
    own, paused = trace.work["device"] == device, between_ns > pause_time(trace) * 1e9
    return Idle(
        device=device,
        span_s=(end_ns - begin_ns) * 1e-9,
        busy_s=(end_ns - begin_ns - idle_ns) * 1e-9,
        causes={cause: ns * 1e-9 for cause, ns in causes.items()},
        places=tuple(sorted(places, key=lambda where: -where.seconds)),
        stacks_ns=stacks,
        gaps=len(gaps.begin_ns),
        copies_s=(_length(without(copies)) - idle_ns) * 1e-9,
        first_use_s=(first_use_ns + compiling_ns) * 1e-9,
        pauses_s=float(between_ns[paused].sum()) * 1e-9,
        paused_ns=tuple(
            (int(gaps.begin_ns[at]), int(gaps.end_ns[at]))
            for at in np.argsort(gaps.begin_ns - gaps.end_ns, kind="stable")
            if paused[at]
        ),
        waited_s=waited_ns * 1e-9,
        longest_s=float((gaps.end_ns - gaps.begin_ns).max(initial=0)) * 1e-9,
        communication_s=(end_ns - begin_ns - _length(without(communication == NONE))) * 1e-9,
        exposed_s=(_length(alone) - idle_ns) * 1e-9,
        collectives=collectives(
            trace.work[own], exchanged, communication[own], (alone.begin_ns, alone.end_ns), (begin_ns, end_ns)
        ),
    )


def _waited_ns(pieces: Stretches, gaps: Gaps, begin_ns: int, end_ns: int) -> int:
    """How much sooner a thread would have submitted late work if it had not waited for a busy GPU before."""
    of = pieces.of
    if of is None:
        return 0
    parts = overlaps(of, gaps.begin_ns, gaps.end_ns)
    busy_ns = np.diff(np.clip(of.edges_ns, begin_ns, end_ns)) - np.bincount(parts.slice, parts.ns, len(of.doing))
    waits = np.flatnonzero(np.isin(of.doing, [DOINGS.index("wait"), DOINGS.index("copy")]))
    late = np.isin(pieces.cause, [CAUSES.index(cause) for cause in SUBMISSION])
    behind = np.searchsorted(of.edges_ns[waits + 1], pieces.begin_ns[late], "right")
    late_ns = np.bincount(behind, (pieces.end_ns - pieces.begin_ns)[late], len(waits) + 1)[1:]
    return int(np.minimum(late_ns, busy_ns[waits]).sum())


def _loads(trace: Trace) -> Table:
    """The launches that load code: each is the first of its kernel, and takes far longer than usual."""
    calls, work = trace.calls, trace.work[trace.work["call"] != NONE]
    launches = (by_name(trace, doing) == DOINGS.index("launch"))[calls["name"]]
    launches &= ~np.array(["Graph" in name for name in (*trace.names, "")])[calls["name"]]
    took_ns = calls["end_ns"] - calls["begin_ns"]
    longest_ns = max(LOADS * np.median(took_ns[launches]), LONGEST_CALL_NS) if launches.any() else 0
    by_call = work[np.argsort(work["call"], kind="stable")]
    first = np.isin(np.arange(len(calls)), by_call["call"][np.unique(by_call["name"], return_index=True)[1]])
    found: Table = calls[launches & first & (took_ns > longest_ns)]
    return found


def stretches(trace: Trace, gaps: Gaps) -> Iterator[Stretches]:
    """Split the gaps into pieces of one cause each.

    A gap before work without a call is unknown; one before a page of managed memory is the host's. Any other is what
    the submitting thread did until the call that ended the gap had returned, and the rest. Behind all work it is what
    the thread with the last of these calls did.
    """
    call = np.append(trace.work["call"], NONE)[gaps.work]
    submitted = trace.work["call"][trace.work["device"] == gaps.device]
    last = int(submitted.max(initial=NONE))
    behind = (gaps.work == NONE) & (last != NONE)
    call[behind] = last
    held = np.append(held_by_events(trace, gaps.device), False)[gaps.work]
    pages = np.append(migrates(trace), False)[gaps.work] & (len(trace.calls) > 0)
    without = (call == NONE) & ~pages
    yield _alike(gaps.begin_ns[without], gaps.end_ns[without], "unknown", UNCALLED)
    to_host = np.append(migrates(trace, "Memcpy DtoH"), False)[gaps.work]
    for touched in (True, False):
        chosen = pages & (to_host == touched)
        yield from _before_pages(trace, gaps.begin_ns[chosen], gaps.end_ns[chosen], touched=touched)
    threads, known = np.append(trace.calls["thread"], NONE)[call], dict[int, Slices]()
    same = np.append(np.diff(trace.work["call"], prepend=NONE) == 0, False)[gaps.work]  # the gap is within a replay
    longest_ns = np.where(same, LONGEST_IN_GRAPH_NS, LONGEST_GAP_NS)
    beyond: Cause = "another stream" if _waits_for_events(trace) and held_back(trace) <= MOST_HELD else "unknown"
    for thread in np.unique(threads[call != NONE]).tolist():
        own = threads == thread
        begins, ends = gaps.begin_ns[own], gaps.end_ns[own]
        returned = np.where(behind[own], ends, trace.calls["end_ns"][call[own]])
        until, way_ns = np.clip(returned, begins, ends), ends - returned
        yield _until_call(trace, handed_on(trace, thread, known), begins, until)
        shortest_ns = np.percentile(np.append(way_ns[way_ns > 0], LONGEST_WAY_NS), 1)
        on_the_way = (returned > begins) | (way_ns <= NEAR * shortest_ns) & (shortest_ns <= USUAL_WAY_NS)
        yield from _behind_call(on_the_way, held[own], until, ends, longest_ns[own], beyond)


def _alike(begins_ns: IntArray, ends_ns: IntArray, cause: Cause, name: int = NONE) -> Stretches:
    """Pieces of one cause and one name."""
    causes, none, names = (np.full(len(begins_ns), value) for value in (CAUSES.index(cause), NONE, name))
    return Stretches(begins_ns, ends_ns, causes, none, names, none)


def _until_call(trace: Trace, of: Slices, begins_ns: IntArray, ends_ns: IntArray) -> Stretches:
    """What the host did from the begin of each gap until the call that ended it had returned."""
    parts = overlaps(of, begins_ns, ends_ns)
    from_ns = np.maximum(begins_ns[parts.interval], of.edges_ns[parts.slice])
    causes = np.array([CAUSES.index(BY_DOING[one]) for one in DOINGS])[of.doing[parts.slice]]
    calls = np.append(trace.calls["name"], NONE)[of.call[parts.slice]].astype(np.int64)
    return Stretches(from_ns, from_ns + parts.ns, causes, calls, of.name[parts.slice], of.path[parts.slice], of)


def _before_pages(trace: Trace, begins_ns: IntArray, ends_ns: IntArray, *, touched: bool) -> Iterator[Stretches]:
    """What the thread with the last call did before the driver moved a page. It ``touched`` what came to the host."""
    last = np.maximum(np.searchsorted(trace.calls["begin_ns"], begins_ns, "right") - 1, 0)
    threads = trace.calls["thread"][last]
    for thread in np.unique(threads).tolist():
        of, own = slices(trace, thread), threads == thread
        pieces = _until_call(trace, of, begins_ns[own], ends_ns[own])
        nameless = np.array([not stack for stack in of.stacks])[pieces.path] & (pieces.cause == CAUSES.index(BETWEEN))
        touches = nameless & touched
        middle_ns = np.maximum(pieces.begin_ns[touches], pieces.end_ns[touches] - FAULT_NS)
        yield _alike(pieces.begin_ns[touches], middle_ns, BETWEEN, LOOPED)
        yield _alike(middle_ns, pieces.end_ns[touches], BETWEEN, TOUCHED)
        begins, ends, causes, calls, names, paths = (column[~touches] for column in pieces[:6])
        yield Stretches(begins, ends, causes, calls, names, paths, of)


def _behind_call(
    on_the_way: BoolArray, held: BoolArray, begins_ns: IntArray, ends_ns: IntArray, longest_ns: IntArray, beyond: Cause
) -> Iterator[Stretches]:
    """The rest of each gap, after the call returned: the launch latency, a device gap, or a wait for another stream.

    ``held`` marks work that an event held back. If this work was still on its way when the event happened, it counts as
    on its way. A device gap lasts at most ``longest_ns``; a longer one is ``beyond`` what the trace tells.
    """
    event = held & ~on_the_way
    yield _alike(begins_ns[event], ends_ns[event], "another stream's event")
    ways: tuple[tuple[BoolArray, Cause, int | IntArray], ...] = (
        (on_the_way, "launch latency", LONGEST_WAY_NS),
        (~on_the_way & ~event, "device gaps", longest_ns),
    )
    for chosen, cause, longest in ways:
        short = chosen & (ends_ns - begins_ns <= longest)
        long = chosen & ~short
        yield _alike(begins_ns[short], ends_ns[short], cause)
        yield _alike(begins_ns[long], ends_ns[long], beyond, HELD_BACK)


def held_back(trace: Trace) -> float:
    """The share of the time in which work had been submitted for a while, and the GPU did nothing for this program."""
    called = trace.work[trace.work["call"] != NONE]
    held_ns = whole_ns = 0
    for device in np.unique(called["device"]):
        work = called[called["device"] == device]
        work = work[np.argsort(work["begin_ns"], kind="stable")]
        before_ns = np.maximum.accumulate(work["end_ns"])[:-1]
        gaps_ns = work["begin_ns"][1:] - np.maximum(before_ns, trace.calls["end_ns"][work["call"][1:]])
        held_ns += int(gaps_ns[gaps_ns > LONGEST_WAY_NS].sum())
        whole_ns += int(work["end_ns"].max() - work["begin_ns"][0])
    return held_ns / max(whole_ns, 1)


def _waits_for_events(trace: Trace) -> bool:
    """Whether a stream waits for another one that has work, too, anywhere in the trace."""
    work = trace.work
    several = any(bool((work[field] != work[field][:1]).any()) for field in ("device", "stream"))
    return several and any("StreamWaitEvent" in name_of(trace, name) for name in np.unique(trace.calls["name"]))


def owners(of: Idle) -> list[Owner]:
    """The owners of the host time between CUDA calls in which the GPU idles, the largest first."""
    found: dict[str, Counter[str]] = {}
    for (cause, *names), ns in of.stacks_ns.items():
        if cause == BETWEEN:
            owner, most = owner_of(names)
            found.setdefault(owner, Counter())[own_line(owner, names) or most] += ns
    each = ((owner, parts.total(), *parts.most_common(1)[0]) for owner, parts in found.items())
    return sorted(
        (Owner(owner, ns * 1e-9, most, most_ns * 1e-9) for owner, ns, most, most_ns in each),
        key=lambda one: -one.seconds,
    )

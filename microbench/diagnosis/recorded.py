"""Turns the steps of a trace into a workload: launches with their own host times, copies, waits, pauses."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.ops import LOOP_LAYER
from microbench.diagnosis.events import stream_waits
from microbench.diagnosis.host_time import (
    DOINGS,
    Doing,
    Slices,
    by_name,
    called_from,
    doing,
    overlaps,
    slices,
    without_number,
)  # fmt: skip
from microbench.diagnosis.idle import LONGEST_WAY_NS
from microbench.diagnosis.kernel_names import family
from microbench.diagnosis.owners import NAMELESS, awaits, handed_on, owner_of
from microbench.diagnosis.steps import PAUSE_S, SHORT_PAUSE_S, Steps, Tokens, pause_time, to_host
from microbench.diagnosis.turns import loops_of
from microbench.model.workload import KERNEL_MEMSET, Copies, Event, HostWork, Kernels, Part, Wait, Workload
from microbench.traces.trace import MEMORIES, NONE, RANGE_KINDS, WORK_KINDS, RangeKind, Table, Trace, name_of

# With this many launches outstanding, a launch call may wait for room in the queue, so it counts with the median time.
MANY_OUTSTANDING = 500
# Steps whose calls are less alike than this, place by place, are represented by the ones nearest to the mean.
ALIKE = 0.99
USUAL = 0.9  # if so large a share of the steps is alike, these are the typical ones
NEAREST = 0.1  # the share of the steps of which the typical one is chosen, those of about the mean length
DEFAULT_STREAM = 7  # as CUPTI numbers it
KEPT_BYTES = 64 << 10  # CUDA's guide says that a pageable copy of up to so many bytes to the GPU returns at once
# If pauses shrink by so many seconds for each second that the rest of the step grows, they wait for something that
# comes at its own pace. The fewest steps that show this, and the most (the last ones of the trace) that are examined.
PACED, FEWEST_PACED, MOST_PACED = 0.5, 6, 500
# Half of it is enough if so many steps together vary at most twice as much as one: what is late once comes early then.
# Steps that know nothing of one another vary 2.8 times as much.
TOGETHER, BOUNDED = 8, 2.0
# A pause that is so many times the longest other time between two calls is the program's own. A shorter one may as well
# be the framework's, of which a graph has none: on a slow host its time between two launches may pass 1 ms.
STANDS_OUT = 2.0
# Kernels for which a framework may choose others while a stream captures.
ATTENTION = re.compile(r"flash|fmha|sdpa|attention|mem_eff", re.IGNORECASE)
# Copies of alike size, this many or more, may go as one; one is at most so many times as large as the one before it.
FEWEST_PIECES, ALIKE_SIZES = 16, 1.25
# Blockers end a graph: what a stream capture refuses, or what the host must see before it can go on.
BLOCKING: Mapping[Doing, str] = {"wait": "waits for the GPU", "allocation": "allocates", "module": "loads code"}


CUPY_REFUSES = "CuPy refuses cuBLAS (products, dot) while a stream captures"
COPY_IN = "waits for a copy to the GPU"
Where = Literal["within", "behind", "ahead"]
WHERES: tuple[Where, ...] = get_args(Where)
Brings = Literal["", "a value to the GPU", "a value to the host"]
VALUE_BYTES = 4096  # a copy of so few bytes to the host is a value that the host looks at

# Remedies that change parts of the step and submit it as before.
Change = Literal["waits", "pinned", "pauses", "allocation"]


class Blocker(msgspec.Struct, frozen=True):
    """A call inside the step that no graph can hold: why, its name, the host code around it, how often a step, and
    where: ahead of the step's kernels, behind them, or within. Then the line of a package that makes most such calls
    there, or "", and what most of its copies bring."""

    why: str
    call: str
    place: str
    count: float
    where: Where = "within"
    package: str = ""
    brings: Brings = ""


class SmallCopies(NamedTuple):
    """Copies of alike size from pinned memory to the GPU, one behind the other in a stream: their places in the
    workload, the mean bytes of one, and the rate of all in B/s from the begin of the first to the end of the last."""

    places: tuple[int, ...]
    piece_bytes: int
    rate: float


class Recorded(msgspec.Struct, frozen=True):
    """A step as it was recorded, with the recorder's costs in it.

    ``workload`` holds ``steps`` steps and has a part for each launch. The ``host_s`` of a part is the whole host
    time since the call before it. It includes the launch call, so a layer's call must not be added. ``calls``,
    ``operators`` and ``functions`` are how many records of each the recorder made in a step, ``work`` those of the
    GPU, ``kernels`` those of kernels among them. ``replays`` counts launches of graphs, ``launches`` those of
    kernels. ``threads`` is how many threads submit, ``shapes`` how many of the steps submit other work than those
    before them, so that each needs a graph, and ``refused`` what the library refuses to capture, or "".
    ``pauses_s`` is host time in a step that no graph removes; ``paced_s`` is the time from one step to the next
    where the pauses wait for something that comes at its own pace, like batches of a loader, None where they do
    not. ``changes`` has the replaced parts of each remedy by their places in the workload; None stands for a part
    that is removed. ``unsure`` is host work that may be shorter beside graphs: by its place the likely and the
    least time in s. ``turning_s`` is the program's own time in s from the wait that ends a step to the end of its
    turn of the loop, None where this is not known. ``replaceable``: PyTorch may submit other kernels than these
    while it captures. ``small_copies`` are those that take longest.
    """

    workload: Workload
    steps: int
    blockers: tuple[Blocker, ...]
    calls: float
    operators: float
    functions: float
    work: float
    kernels: float
    launches: float
    replays: float
    threads: int
    pauses_s: float
    shapes: int
    refused: str
    paced_s: float | None
    changes: Mapping[Change, Mapping[int, Part | None]]
    unsure: Mapping[int, tuple[float, float]]
    turning_s: float | None
    replaceable: bool
    owned: Mapping[str, Mapping[int, float]]
    every_ns: int
    small_copies: SmallCopies | None


class _Call(msgspec.Struct):
    """A call of the step: host time before it and inside it in s, and the work that it submitted.

    For a pageable copy that ``waits`` for all earlier work, the time inside begins when that work has ended. ``events``
    are those that it records, or waits for, with the streams' own numbers. ``owned`` is the time before by its owners.
    """

    name: str
    doing: Doing
    before_s: float
    own_s: float
    pause: bool
    waits: bool
    work: list[_Work]
    events: list[Event]
    owned: Mapping[str, float]


class _Work(msgspec.Struct, frozen=True):
    kind: str
    duration_s: float
    stream: int
    blocks: int
    bytes: int
    source: str
    target: str
    name: str
    begin_s: float  # since the begin of the step's first call


def recorded(trace: Trace, steps: Steps, layer: str, device: int) -> Recorded:
    """The typical step; the mean of ``steps.every`` steps where kinds of steps take turns."""
    calls, paced_s = _typical(trace, steps, device)
    step = _Parts(calls)
    for call in calls:
        step.add(call)
    step.end()
    begin, end = int(steps.calls[0]), int(steps.calls[-1])
    names = [name_of(trace, name) for name in trace.calls["name"][begin:end]]
    replays = sum("GraphLaunch" in name for name in names)
    two, streams, works = (
        _two_streams(trace, device),
        max(len(step.of), 1),
        [work for call in calls for work in call.work],
    )
    return Recorded(
        workload=Workload(tuple(step.parts), layer=layer, streams=streams, title=trace.source, second_stream=two),
        steps=steps.every,
        blockers=tuple(_blockers(trace, steps)),
        calls=(end - begin) / steps.count,
        operators=_ranges(trace, steps, "operator"),
        functions=_ranges(trace, steps, "python"),
        work=len(works) / steps.every,
        kernels=sum(work.kind == "kernel" for work in works) / steps.every,
        launches=(sum(doing(name) == "launch" for name in names) - replays) / steps.count,
        replays=replays / steps.count,
        threads=len(np.unique(trace.calls["thread"][begin:end])),
        pauses_s=step.pauses_s / steps.every,
        shapes=_shapes(trace, steps, device),
        refused=CUPY_REFUSES if _is_cupy(trace) and any(family(one.name).library == "cuBLAS" for one in works) else "",
        paced_s=paced_s,
        changes=step.changes,
        unsure=step.unsure,
        turning_s=_turning(trace, steps),
        owned=step.owned,
        every_ns=trace.samples.every_ns if trace.samples is not None else 0,
        replaceable=layer == "torch_eager" and any(one.kind == "memset" or ATTENTION.search(one.name) for one in works),
        small_copies=step.small_copies(),
    )


class _Parts:
    """The parts of a workload, made of the step's calls one after another, with ``changes``, ``unsure`` and ``owned``
    of Recorded.

    ``of`` has the workload's numbers of streams, empty for a single one.
    """

    def __init__(self, calls: Sequence[_Call]) -> None:
        numbers = dict.fromkeys(work.stream for call in calls for work in call.work)
        several = len(numbers) > 1
        if several:
            numbers |= dict.fromkeys(event.stream for call in calls for event in call.events)
        self.of: Mapping[int, int] = {stream: place for place, stream in enumerate(numbers)} if several else {}
        self.parts: list[Part] = []
        self.changes: dict[Change, dict[int, Part | None]] = {}
        self.unsure: dict[int, tuple[float, float]] = {}
        self.owned: dict[str, dict[int, float]] = {}
        self.pauses_s = 0.0
        self._runs: list[list[tuple[int, _Work]]] = []  # of copies that may go together, with their places
        self._host_s = 0.0  # since the last part
        self._owned: Counter[str] = Counter()  # of that
        self._ordinary_s = max((call.before_s for call in calls if not call.pause), default=0.0)

    def add(self, call: _Call) -> None:
        """The parts of the next call."""
        self._host_s += call.before_s
        self._owned.update(call.owned)
        if self.of:
            self.parts += [msgspec.structs.replace(event, stream=self.of[event.stream]) for event in call.events]
        if call.pause:
            self._pause(call.before_s)
        kernels = [work for work in call.work if work.kind != "copy" or work.source == work.target == "device"]
        if call.doing == "wait":
            self.end()
            self._wait("waits")
        elif _pageable(call.work):
            self.end()
            self._pageable(call)
        elif call.doing in BLOCKING:
            if call.doing == "allocation":
                self._changed("allocation", HostWork(self._host_s))
            self.parts.append(HostWork(self._taken() + call.own_s))
        elif kernels:
            for work in kernels:
                self.parts.append(_kernel(work, self.of, self._taken() + call.own_s if work is kernels[0] else 0.0))
        elif call.work:
            if len(call.work) == 1 and (call.work[0].source, call.work[0].target) == ("pinned", "device"):
                self._piece(call.work[0])
            self.parts.append(msgspec.structs.replace(_copy(call.work[0], self.of), host_s=self._taken() + call.own_s))
        else:
            self._host_s += call.own_s

    def _piece(self, copy: _Work) -> None:
        """The copy goes with those before it, if nothing but events that are recorded came between."""
        place, before = self._runs[-1][-1] if self._runs else (len(self.parts), copy)
        between = all(isinstance(part, Event) and not part.awaited for part in self.parts[place + 1 :])
        alike = before.stream == copy.stream and before.bytes / ALIKE_SIZES <= copy.bytes <= before.bytes * ALIKE_SIZES
        if not (self._runs and between and alike):
            self._runs.append([])
        self._runs[-1].append((len(self.parts), copy))

    def small_copies(self) -> SmallCopies | None:
        """The longest series of many copies in the step; None without one."""
        many = {run[-1][1].begin_s + run[-1][1].duration_s - run[0][1].begin_s: run for run in self._runs
                if len(run) >= FEWEST_PIECES}  # fmt: skip
        if (longest_s := max(many, default=0.0)) <= 0:
            return None
        run, all_bytes = many[longest_s], sum(copy.bytes for _, copy in many[longest_s])
        return SmallCopies(tuple(place for place, _ in run), round(all_bytes / len(run)), all_bytes / longest_s)

    def end(self) -> None:
        """The host's time since the last part, as a part of its own."""
        seconds = self._taken()
        if seconds > 0:
            self.parts.append(HostWork(seconds))

    def _taken(self) -> float:
        for owner, owned_s in self._owned.items():
            self.owned.setdefault(owner, {})[len(self.parts)] = owned_s
        self._owned.clear()
        seconds, self._host_s = self._host_s, 0.0
        return seconds

    def _changed(self, change: Change, part: Part | None) -> None:
        self.changes.setdefault(change, {})[len(self.parts)] = part

    def _wait(self, change: Change) -> None:
        self._changed(change, None)
        self.parts.append(Wait())

    def _pause(self, pause_s: float) -> None:
        self._changed("pauses", None)
        if pause_s < STANDS_OUT * self._ordinary_s:
            self.unsure[len(self.parts)] = (self._host_s - pause_s / 2, self._host_s - pause_s)
        self.pauses_s += pause_s
        self.end()

    def _pageable(self, call: _Call) -> None:
        """A pageable copy is the host's own work. Beside graphs it may take no longer than the GPU was at it."""
        copy = call.work[0]
        to_gpu = copy.target == "device"
        if call.waits:
            self._wait("pinned" if to_gpu else "waits")
        if to_gpu:
            self._changed("pinned", _copy(copy, self.of))
            least_s = min(copy.duration_s, call.own_s)
            self.unsure[len(self.parts)] = (least_s, least_s)
        self.parts.append(HostWork(call.own_s))


def _turning(trace: Trace, steps: Steps) -> float | None:
    """The program's own time from a step's last wait to the end of its turn of the loop: the median in s, or None."""
    turns = next((loop for loop in loops_of(trace) if steps.found == "loop" and loop.place == steps.name), None)
    if turns is None:
        return None
    last = np.searchsorted(trace.calls["begin_ns"], turns.ends_ns) - 1
    waits = by_name(trace, doing)[trace.calls["name"]] == DOINGS.index("wait")
    waits[_waiting_copies(trace)] = True
    behind_ns = (turns.ends_ns - trace.calls["end_ns"][last])[(last >= 0) & waits[last]]
    return float(np.median(behind_ns)) * 1e-9 if 2 * len(behind_ns) > len(last) else None


def _two_streams(trace: Trace, device: int) -> bool:
    """Whether the program as a graph has launched kernels into a second stream. The default stream cannot be captured,
    so a program that works in it needs another one."""
    kernels = (trace.work["device"] == device) & (trace.work["kind"] == WORK_KINDS.index("kernel"))
    streams = np.unique(trace.work["stream"][kernels])
    return len(streams) > 1 or DEFAULT_STREAM in streams


def _pageable(works: list[_Work]) -> bool:
    return any("pageable" in (work.source, work.target) for work in works)


def _waiting_copies(trace: Trace) -> npt.NDArray[np.int64]:
    """The calls of pageable copies that wait for earlier work. CUDA keeps a small one to the GPU and returns, and now
    and then a larger one, which then begins long after."""
    work = trace.work[is_pageable(trace.work) & (trace.work["call"] != NONE)]
    waits = (work["source"] == MEMORIES.index("device")) | (work["bytes"] > KEPT_BYTES)
    waits &= work["begin_ns"] - trace.calls["end_ns"][work["call"]] <= LONGEST_WAY_NS
    calls: npt.NDArray[np.int64] = np.unique(work["call"][waits])
    return calls


def _kernel(work: _Work, streams: Mapping[int, int], host_s: float) -> Kernels:
    return Kernels(
        1,
        (work.duration_s,),
        host_s=host_s,
        stream=streams.get(work.stream),
        blocks=work.blocks if work.blocks > 0 else None,
        memset=work.kind == "memset" and work.bytes < KERNEL_MEMSET,
    )


def _copy(work: _Work, streams: Mapping[int, int]) -> Copies:
    return Copies("h2d" if work.target == "device" else "d2h", max(work.bytes, 1), stream=streams.get(work.stream))


def _ranges(trace: Trace, steps: Steps, kind: RangeKind) -> float:
    """How many ranges of a kind begin in a step, outside of pauses."""
    calls = trace.calls[int(steps.calls[0]) : int(steps.calls[-1]) + 1]
    own = trace.ranges["begin_ns"][trace.ranges["kind"] == RANGE_KINDS.index(kind)]
    ended = np.maximum.accumulate(calls["end_ns"])[:-1]
    pausing = calls["begin_ns"][1:] - ended > PAUSE_S * 1e9
    inside = np.searchsorted(own, calls["begin_ns"][-1]) - np.searchsorted(own, calls["begin_ns"][0])
    paused = np.searchsorted(own, calls["begin_ns"][1:][pausing]) - np.searchsorted(own, ended[pausing])
    return float(inside - paused.sum()) / steps.count


def _typical(trace: Trace, steps: Steps, device: int) -> tuple[list[_Call], float | None]:
    """The calls of ``steps.every`` typical steps, and ``paced_s`` of Recorded. If nearly all steps are alike, they are
    the means over these; else the calls of the steps nearest to the mean in length and in the time of each owner."""
    begins = steps.calls[:: steps.every]
    lengths = np.diff(begins)
    table, work = trace.calls, trace.work
    threads = np.unique(table["thread"][begins[0] : begins[-1] + 1]).tolist()
    known: dict[int, Slices] = {}
    of = {thread: handed_on(trace, thread, known) for thread in threads}
    usual = lengths == np.bincount(lengths).argmax()
    likeness = steps.likeness if usual.all() else _alike(table, begins[:-1][usual], lengths[usual])
    if usual.mean() >= USUAL and likeness >= ALIKE:
        chosen, lengths = begins[:-1][usual], lengths[usual]
    else:
        nearest = _nearest(of, steps.begins_ns[:: steps.every])
        chosen, lengths = begins[nearest : nearest + 1], lengths[nearest : nearest + 1]
    ended = np.maximum.accumulate(np.concatenate([table["begin_ns"][:1], table["end_ns"]]))[:-1]
    before = np.maximum(table["begin_ns"] - ended, 0)
    own = np.maximum(table["end_ns"] - np.maximum(table["begin_ns"], ended), 0)
    kinds, submitted = by_name(trace, doing)[table["name"]], _submitted(trace, device)
    begun = np.searchsorted(np.sort(work["begin_ns"]), table["begin_ns"])
    outstanding = np.searchsorted(np.sort(work["call"]), np.arange(len(table))) - begun
    full = (outstanding > MANY_OUTSTANDING) & (kinds == DOINGS.index("launch"))
    if full.any() and not full.all():
        own[full] = np.minimum(own[full], np.median(own[kinds == DOINGS.index("launch")]))
    copying = _waiting_copies(trace)
    behind_ns = np.minimum(_earlier_ends(trace, device)[copying], table["end_ns"][copying])
    own[copying] = np.minimum(own[copying], table["end_ns"][copying] - behind_ns)
    rows = chosen[:, None] + np.arange(int(lengths[0]))[None, :]
    events = _events(trace, rows[-1])
    # The time before a step's first call is taken before the next step, so that the calls add up to the steps.
    behind = rows.copy()
    if steps.count > 1:
        behind[:, 0] += int(lengths[0])
        if len(rows) > 1 and not np.any(work["call"] >= behind[-1, 0]):  # the program ends behind its last step
            behind[-1, 0] = behind[-2, 0]
    else:
        before[rows[0, 0]] = max(int(table["begin_ns"][rows[0, 0]] - steps.begins_ns[0]), 0)
    before_s, own_s = before[behind].mean(axis=0) * 1e-9, own[rows].mean(axis=0) * 1e-9
    pausing_s = np.append(0, np.cumsum(np.where(before > PAUSE_S * 1e9, before, 0)))[begins + 1] * 1e-9
    owned = _owned(trace, of, behind, before)
    unknown = (NAMELESS, "code in ")  # an annotation may hold a wait
    working_s = sum(sum(one) for owner, one in owned.items() if not (owner.startswith(unknown) or awaits(owner)))
    works = computes(trace) or 2 * working_s > before_s[before_s > PAUSE_S].sum()  # so it does not wait for something
    paced_s = None if works else _paced(np.diff(pausing_s), np.diff(table["begin_ns"][begins]) * 1e-9)
    awaited_s = sum((owned_s for owner, owned_s in owned.items() if awaits(owner)), np.zeros(len(before_s)))
    profiler_s = _profiled_ns(trace, table["begin_ns"] - before, table["begin_ns"])[behind].mean(axis=0) * 1e-9
    if len(rows) == 1 and len(begins) > 2:
        every = _owned(trace, of, np.arange(begins[0] + 1, begins[-1] + 1)[None, :], before)
        owned = _as_in_all(owned, {owner: one.sum() / (len(begins) - 1) for owner, one in every.items()}, before_s)
    paused = (before_s - profiler_s > pause_time(trace)) | ((before_s > SHORT_PAUSE_S) & (awaited_s > before_s / 2))
    calls = []
    for place, column in enumerate(rows.T.tolist()):
        name = _most(trace.calls["name"][column].tolist(), trace)
        works = _mean_work(trace, [submitted.get(call, []) for call in column], table["begin_ns"][rows[:, 0]])
        times_s = float(before_s[place]), float(own_s[place])
        whose = {owner: float(owned_s[place]) for owner, owned_s in owned.items() if owned_s[place]}
        pause, at, waits = bool(paused[place]), events.get(place, []), 2 * np.isin(column, copying).sum() > len(column)
        calls.append(_Call(name, doing(name), *times_s, pause, bool(waits), works, at, whose))
    return calls, None if paced_s is None else paced_s / steps.every


def computes(trace: Trace) -> bool:
    """Whether the main thread of a program without Python mostly computes between its CUDA calls. In those it may spin,
    which does not count."""
    processor, calls = trace.processor if trace.samples is None else None, trace.calls
    if processor is None or not len(calls):
        return False
    span_ns = max(int(calls["end_ns"].max()) - int(calls["begin_ns"][0]), 1)
    share = min(float((calls["end_ns"] - calls["begin_ns"]).sum()) / span_ns, 1.0)
    return 2 * processor.ran_ns > processor.all_ns * (1 + share)


def _alike(calls: Table, begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> float:
    """How alike steps of one length are: the share of calls that have the name which is usual in their place."""
    names = calls["name"][begins[:, None] + np.arange(lengths[0])]
    return float(np.mean(names == np.median(names, axis=0).astype(names.dtype)))


def _profiled_ns(
    trace: Trace, begin_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """For how many ns between these times the profiler worked, as it says itself."""
    own = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("overhead")]
    if not len(own):
        return np.zeros(len(begin_ns))
    until_ns = np.maximum.accumulate(own["end_ns"])
    from_ns = np.minimum(np.maximum(own["begin_ns"], np.append(own["begin_ns"][:1], until_ns[:-1])), until_ns)
    edges_ns, lasts_ns = np.stack([from_ns, until_ns], axis=1).ravel(), np.cumsum(until_ns - from_ns)
    sums_ns = np.stack([np.append(0, lasts_ns[:-1]), lasts_ns], axis=1).ravel()
    found: npt.NDArray[np.float64] = np.interp(end_ns, edges_ns, sums_ns) - np.interp(begin_ns, edges_ns, sums_ns)
    return np.maximum(found, 0.0)


def _is_cupy(trace: Trace) -> bool:
    return "cupy" in trace.versions and "torch" not in trace.versions


def _shapes(trace: Trace, steps: Steps, device: int) -> int:
    """How many of ``steps.every`` steps in turn submit kernels of other names or grids."""
    work = trace.work[(trace.work["device"] == device) & (trace.work["kind"] == WORK_KINDS.index("kernel"))]
    calls, turn = work["call"], steps.calls[: steps.every + 1]
    ends = np.searchsorted(calls, turn) if np.all(np.diff(calls) >= 0) else None
    if ends is None or steps.every == 1:
        return steps.every
    of = np.stack([work[column].astype(np.int64) for column in ("name", "blocks", "threads")], axis=1)
    return len({of[begin:end].tobytes() for begin, end in itertools.pairwise(ends.tolist())})


def _nearest(of: Mapping[int, Slices], edges_ns: npt.NDArray[np.int64]) -> int:
    """The place of the typical steps between these edges: of those nearest to the mean in length the ones that are
    nearest to it in the host's time between calls, by owners and threads."""
    each_ns = np.diff(edges_ns)
    nearest = np.argsort(np.abs(each_ns - each_ns.mean()), kind="stable")[: max(round(NEAREST * len(each_ns)), 1)]
    apart_ns = np.zeros(len(each_ns))
    for slices_of in of.values():
        parts = overlaps(slices_of, edges_ns[:-1], edges_ns[1:])
        owners, numbers = _owners(slices_of, parts.slice)
        for number in range(len(owners)):
            own = numbers == number
            owned_ns = np.bincount(parts.interval[own], parts.ns[own], len(each_ns))
            apart_ns += np.abs(owned_ns - owned_ns.mean())
    return int(nearest[np.argmin(apart_ns[nearest])])


def _owners(of: Slices, places: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The owners of host code between calls, and for each of these slices the number of its owner, or NONE."""
    paths, place = np.unique(of.path[places], return_inverse=True)
    names = [owner_of(of.stacks[one])[0] for one in paths.tolist()]
    owners = list(dict.fromkeys(names))
    numbers = np.array([owners.index(name) for name in names], np.int64)[place.ravel()]
    return owners, np.where(of.doing[places] == DOINGS.index("between"), numbers, NONE)


def _owned(
    trace: Trace, of: Mapping[int, Slices], rows: npt.NDArray[np.int64], before: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.float64]]:
    """The owners of the ns ``before`` the calls in these places, a row a step: the mean in s for each column. Before a
    call that neither submits nor waits, what the thread does that submits next keeps the GPU idle."""
    calls, found = trace.calls[rows], dict[str, npt.NDArray[np.float64]]()
    submitting = np.unique(trace.work["call"][trace.work["call"] != NONE])
    next_ = submitting[np.minimum(np.searchsorted(submitting, rows), len(submitting) - 1)]
    other, submits = by_name(trace, doing)[calls["name"]] == DOINGS.index("other_call"), trace.calls["thread"][next_]
    threads = np.where(other & np.isin(submits, [*of]), submits, calls["thread"])
    for thread in np.unique(threads).tolist():
        here = threads == thread
        ends, columns = calls["begin_ns"][here], np.nonzero(here)[1]
        parts = overlaps(of[thread], ends - before[rows][here], ends)
        owners, numbers = _owners(of[thread], parts.slice)
        for number, owner in enumerate(owners):
            own = numbers == number
            ns = np.bincount(columns[parts.interval[own]], parts.ns[own], rows.shape[1])
            found[owner] = found.get(owner, 0.0) + ns * 1e-9 / len(rows)
    return found


def _as_in_all(
    owned: Mapping[str, npt.NDArray[np.float64]], wanted_s: Mapping[str, float], before_s: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """The owners of the time before each call of one step, with as much of it as they have in the mean of all steps:
    a step has few samples. What they lack in this step is taken from the time that has no owner."""
    found = {owner: one * min(wanted_s.get(owner, 0.0) / (one.sum() or 1.0), 1.0) for owner, one in owned.items()}
    left_s = np.maximum(before_s - sum(found.values()), 0.0)
    nothing = np.zeros(len(before_s))
    lack_s = {owner: max(mean_s - found.get(owner, nothing).sum(), 0.0) for owner, mean_s in wanted_s.items()}
    most_s = max(sum(lack_s.values()), float(left_s.sum())) or 1.0
    return {owner: found.get(owner, nothing) + left_s * lack / most_s for owner, lack in lack_s.items()}


def _paced(pauses_s: npt.NDArray[np.float64], period_s: npt.NDArray[np.float64]) -> float | None:
    """The median period of steps whose pauses are the shorter the longer the rest of the step is; None if they are not.

    The slope is the median of those between any two steps (Theil and Sen), which a few odd steps do not change. Steps
    that hardly pause, because what they wait for was ready, are left out.
    """
    several_s = np.convolve(period_s[-MOST_PACED:], np.ones(TOGETHER), "valid")
    clocked = len(several_s) >= 3 * TOGETHER and _spread(several_s) <= BOUNDED * _spread(period_s[-MOST_PACED:])
    waiting = pauses_s > PAUSE_S
    pauses_s, period_s = pauses_s[waiting][-MOST_PACED:], period_s[waiting][-MOST_PACED:]
    rest_s = period_s - pauses_s
    first, second = np.triu_indices(len(rest_s), 1)
    apart_s = rest_s[second] - rest_s[first]
    known = np.abs(apart_s) > 1e-9
    if len(rest_s) < FEWEST_PACED or 2 * np.count_nonzero(known) <= len(known):
        return None
    slopes = (pauses_s[second] - pauses_s[first])[known] / apart_s[known]
    return float(np.median(period_s)) if np.median(slopes) <= -PACED / (2 if clocked else 1) else None


def _spread(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def is_pageable(work: Table) -> npt.NDArray[np.bool_]:
    """Which copies are from or to pageable memory."""
    pageable = MEMORIES.index("pageable")
    result: npt.NDArray[np.bool_] = (work["source"] == pageable) | (work["target"] == pageable)
    return result


def _earlier_ends(trace: Trace, device: int) -> npt.NDArray[np.int64]:
    """For each call the latest end of the work that earlier calls submitted, in ns; 0 without any."""
    own = trace.work[(trace.work["device"] == device) & (trace.work["call"] != NONE)]
    ends = np.zeros(len(trace.calls) + 1, np.int64)
    np.maximum.at(ends, own["call"] + 1, own["end_ns"])
    return np.maximum.accumulate(ends)[:-1]


def _events(trace: Trace, row: npt.NDArray[np.int64]) -> dict[int, list[Event]]:
    """The events that the calls in these places record and wait for, by their place in ``row``.

    An event has the number of the place that records it. A wait for an event of the step before is one for the same
    event of this step: the last one by then, or the one before the last if this step has recorded it already.
    """
    events: dict[int, list[Event]] = {}
    names = trace.calls["name"]
    for wait in stream_waits(trace):
        place, number = int(wait["call"] - row[0]), int(wait["on_call"] - row[0])
        if 0 <= place < len(row):
            number += len(row) if (before := number < 0) else 0
            if number >= 0 and names[row[number]] == names[wait["on_call"]]:
                earlier = before and number < place
                events.setdefault(place, []).append(Event(number, int(wait["stream"]), awaited=True, earlier=earlier))
                record = Event(number, int(wait["on_stream"]))
                if record not in events.setdefault(number, []):
                    events[number].append(record)
    return events


def _most(names: list[int], trace: Trace) -> str:
    """The most frequent name."""
    return name_of(trace, names[0] if len(set(names)) == 1 else Counter(names).most_common(1)[0][0])


def _submitted(trace: Trace, device: int) -> dict[int, list[int]]:
    """The work of each call, as places in the work table."""
    result: dict[int, list[int]] = {}
    chosen = np.flatnonzero((trace.work["device"] == device) & (trace.work["call"] != NONE))
    for place, call in zip(chosen.tolist(), trace.work["call"][chosen].tolist(), strict=True):
        result.setdefault(call, []).append(place)
    return result


def _mean_work(trace: Trace, several: list[list[int]], begins_ns: npt.NDArray[np.int64]) -> list[_Work]:
    """The work of one call, each with its mean begin and duration over the steps in which the call had as much work;
    the steps begin at ``begins_ns``."""
    most = len(several[-1])
    if not most:
        return []
    alike = np.array([places for places in several if len(places) == most], dtype=np.int64)
    table, own = trace.work, [len(places) == most for places in several]
    begin_s = (table["begin_ns"][alike] - begins_ns[own, None]).mean(axis=0) * 1e-9
    durations_s = (table["end_ns"][alike] - table["begin_ns"][alike]).mean(axis=0) * 1e-9
    result = []
    for place in range(most):
        row = table[alike[-1, place]]
        result.append(
            _Work(
                WORK_KINDS[row["kind"]], float(durations_s[place]),
                int(row["stream"]), int(row["blocks"]), int(row["bytes"]), MEMORIES[row["source"]],
                MEMORIES[row["target"]], name_of(trace, row["name"]), float(begin_s[place]),
            )
        )  # fmt: skip
    return result


def _blockers(trace: Trace, steps: Steps) -> Iterator[Blocker]:
    """The calls that part a step into several graphs, the most frequent first."""
    begin, end = int(steps.calls[0]), int(steps.calls[-1])
    work = trace.work[trace.work["call"] != NONE]
    staged = set(work["call"][is_pageable(work)].tolist())
    to_gpu = (work["kind"] == WORK_KINDS.index("copy")) & (work["target"] == MEMORIES.index("device"))
    copies_in = set(work["call"][to_gpu & (work["source"] != MEMORIES.index("device"))].tolist())
    values: dict[int, Brings] = dict.fromkeys(work["call"][values_read(work)].tolist(), "a value to the host")
    little = set(work["call"][(work["bytes"] != NONE) & (work["bytes"] <= VALUE_BYTES)].tolist())
    values |= dict.fromkeys(copies_in & little, "a value to the GPU")
    launches = np.unique(work["call"][work["kind"] == WORK_KINDS.index("kernel")])
    kinds, last = by_name(trace, doing), dict[int, int]()
    found: dict[tuple[tuple[int, ...], str, str], Counter[tuple[bool, str, Where]]] = {}
    brought: dict[tuple[tuple[int, ...], str, str], Counter[Brings]] = {}
    asked, alike = called_from(trace), steps.likeness >= ALIKE
    packages, lines_of = called_from(trace, "package"), dict[tuple[str, str, str], Counter[str]]()
    beside = [] if alike else Tokens(trace).beside(np.arange(begin, end)).tolist()
    of = {
        thread: slices(trace, thread, functions=False)
        for thread in np.unique(trace.calls["thread"][begin:end]).tolist()
    }
    for call in range(begin, end):
        row = trace.calls[call]
        before, last[int(row["thread"])] = last.get(int(row["thread"]), NONE), call
        why = "copies pageable memory" if call in staged else BLOCKING.get(DOINGS[kinds[row["name"]]])
        if why == BLOCKING["wait"] and before in copies_in:
            why = None if before in staged else COPY_IN  # a pageable copy is named once
        if why is None:
            continue
        inside = of[int(row["thread"])]
        at_ns = row["begin_ns"] if trace.samples is None else (row["begin_ns"] + row["end_ns"]) // 2
        name = asked.get(call, int(inside.name[np.searchsorted(inside.edges_ns, at_ns, side="right") - 1]))
        # A range may end a little early, and samples name a short call by a line nearby. So what most steps say of the
        # same call counts for all of them, and first what calls said that were asked. If steps differ, calls are the
        # same whose neighbours are.
        step = int(np.searchsorted(steps.calls, call, side="right")) - 1
        same = (step % steps.every, call - int(steps.calls[step])) if alike else tuple(beside[call - begin])
        ahead, at, behind = np.searchsorted(launches, (steps.calls[step], call, steps.calls[step + 1])).tolist()
        where: Where = "ahead" if ahead == at else "behind" if at == behind else "within"
        places = found.setdefault((same, why, name_of(trace, row["name"])), Counter())
        places[call in asked, (place := without_number(name_of(trace, name))), where] += 1
        brought.setdefault((same, why, name_of(trace, row["name"])), Counter())[values.get(call, "")] += 1
        if call in packages:
            by = name_of(trace, packages[call])
            lines_of.setdefault((why, name_of(trace, row["name"]), place), Counter())[by] += 1
    whole, lies = Counter[tuple[str, str, str]](), dict[tuple[str, str, str], set[Where]]()
    bring: dict[tuple[str, str, str], Counter[Brings]] = {}
    for (same, why, call_name), places in found.items():
        _, place, where = max(places, key=lambda one: (one[0], one[1] != "", places[one]))
        whole[why, call_name, place] += places.total()
        bring.setdefault((why, call_name, place), Counter()).update(brought[same, why, call_name])
        lies.setdefault((why, call_name, place), set()).add(where)
    for one, count in whole.most_common():
        if count > 1 or steps.count == 1:  # a single call, like the wait at the end, is not part of a step
            where = next(where for where in WHERES if where in lies[one])
            line = next((name for name, _ in lines_of.get(one, Counter()).most_common(1)), "")
            yield Blocker(*one, count / steps.count, where, line, bring[one].most_common(1)[0][0])


def values_read(work: Table) -> npt.NDArray[np.bool_]:
    """Which pieces of work are small copies to the host, of a value that it reads."""
    found: npt.NDArray[np.bool_] = to_host(work) & (work["bytes"] != NONE) & (work["bytes"] <= VALUE_BYTES)
    return found


def layer_of(trace: Trace) -> str:
    """The layer whose costs stand for the program's: that of its framework, else compiled code."""
    by_format = {"PyTorch profiler": "torch_eager", "XLA profiler": "jax_jit"}.get(trace.format)
    layers = [layer for package, layer in (("torch", "torch_eager"), ("jax", "jax_jit")) if package in trace.versions]
    if len(layers) > 1:  # PyTorch launches by the runtime, JAX and Triton by the driver
        kernels = trace.work[(trace.work["kind"] == WORK_KINDS.index("kernel")) & (trace.work["call"] != NONE)]
        pairs, counts = np.unique(
            np.stack([trace.calls["name"][kernels["call"]], kernels["name"]]), axis=1, return_counts=True
        )
        by = Counter[str]()
        for call, kernel, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            own = trace.names[call].startswith("cuda") or name_of(trace, kernel).startswith("triton_")
            by["torch_eager" if own else "jax_jit"] += count
        layers.sort(key=lambda layer: -by[layer])
    return by_format or next(iter(layers), LOOP_LAYER)

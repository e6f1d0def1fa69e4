"""Tells the communication between GPUs from other work, and how much of it no other work hides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.diagnosis.host_time import slices
from microbench.traces.trace import NONE, WORK_KINDS, Table, Trace

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Kernels of NCCL and RCCL, NVSHMEM, DeepEP, MSCCL++, and the collectives of vLLM, TensorRT-LLM, FlashInfer, SGLang,
# Transformer Engine and PyTorch's symmetric memory.
COLLECTIVE = re.compile(
    r"nccl|rccl|msccl|nvshmem|deep_ep|dpsk::ep|pplx|userbuffers|cross_device_reduce|quick_?reduce|multimem|lamport"
    r"|(?<!warp)(?<!block)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
# Inductor names a kernel after the operators that it computes, which may read what a collective has written.
COMPUTES = re.compile(r"triton_(poi|red|per|tem|for|mm)_")
KINDS = re.compile(
    r"(?P<all_reduce>all_?reduce|cross_device_reduce|quick_?reduce)|(?P<all_gather>all_?gather)"
    r"|(?P<reduce_scatter>reduce_?scatter)|(?P<all_to_all>all_?to_?all|deep_ep|dpsk::ep)|(?P<send_and_receive>send_?recv)"
    r"|(?P<broadcast>broadcast)|(?P<reduce>reduce)",
    re.IGNORECASE,
)
OTHER_KIND = "communication"
# Ranges of host code that say nothing of who launches it.
PLUMBING = re.compile(
    r"c10d::|nccl:|record_param_comms|aten::|autograd::engine|ProfilerStep|Torch-Compiled|## Call|<|torch/|nn\.Module: "
)
# A collective that takes so many times what it needs waits: what it needs is the shortest of its size, or what slow
# Ethernet (1 Gbit/s) takes. Where sizes are unknown, it is the median of its name, from so many on; a smaller multiple
# is enough for one that takes longer than any GPU's memory needs over a fast link.
WAITS, WAITS_UNSIZED, FEWEST_ALIKE = 10, 100, 3
WAITS_LONG, LONG_NS = 20, 500_000_000
SLOWEST_START_NS, SLOWEST_NS_PER_BYTE = 100_000, 8


class Collective(NamedTuple):
    """One kind of communication: its pieces, their time together and that in which no other work ran, both in s.

    ``in_turn`` says that most of it runs in streams that also compute, so that other work waits for it. ``waits_s`` is
    how much longer than they need some pieces take, and ``longest_s`` of the worst one what it takes and what it needs.
    """

    name: str
    pieces: int
    seconds: float
    exposed_s: float
    in_turn: bool
    waits_s: float
    longest_s: tuple[float, float]


def kind_of(name: str) -> str:
    """What kind of communication a kernel of that name does: "all-reduce"; "" if it does none."""
    if COMPUTES.match(name) or not COLLECTIVE.search(name):
        return ""
    match = KINDS.search(name)
    word = (match.lastgroup or "") if match else ""
    return word.replace("_and_", " and ").replace("_", "-") or OTHER_KIND


def kinds_of_work(trace: Trace) -> tuple[tuple[str, ...], IntArray]:
    """The kinds of communication in a trace, and the place of each piece of work among them; NONE for other work.

    Copies count where they run in a stream whose kernels are mostly collectives. How long those take does not matter,
    as they may wait.
    """
    work, kernel = trace.work, WORK_KINDS.index("kernel")
    by_name = [kind_of(name) for name in trace.names]
    kinds = tuple(sorted({*by_name, OTHER_KIND} - {""}))
    places = np.array([kinds.index(kind) if kind else NONE for kind in (*by_name, "")])
    found = np.where(work["kind"] == kernel, places[work["name"]], NONE)
    if (found == NONE).all():
        return kinds, found
    _, stream = np.unique(np.stack([work["device"], work["stream"]], axis=1), axis=0, return_inverse=True)
    stream = stream.ravel()
    own = 2 * np.bincount(stream, weights=found != NONE) > np.bincount(stream, weights=work["kind"] == kernel)
    return kinds, np.where((work["kind"] != kernel) & own[stream], kinds.index(OTHER_KIND), found)


def launching(trace: Trace, kinds: Collection[str]) -> Counter[tuple[str, ...]]:
    """The ranges of host code around the calls that launch such communication, the outermost first, with the time of
    their work in ns."""
    names, kind = kinds_of_work(trace)
    own = np.isin(kind, [names.index(one) for one in kinds]) & (trace.work["call"] != NONE)
    work, found = trace.work[own], Counter[tuple[str, ...]]()
    calls = trace.calls[work["call"]]
    for thread in np.unique(calls["thread"]).tolist():
        of, here = slices(trace, thread), calls["thread"] == thread
        paths = of.path[np.searchsorted(of.edges_ns, calls["begin_ns"][here], "right") - 1].tolist()
        for path, ns in zip(paths, (work["end_ns"] - work["begin_ns"])[here].tolist(), strict=True):
            found[of.stacks[path]] += ns
    return found


class Exchanged(NamedTuple):
    """The kernels of a whole trace in the order in which they begin: Unix times in ns, and the kind of communication of
    each as a place in ``kinds``; NONE for other kernels."""

    kinds: tuple[str, ...]
    kind: IntArray
    begin_ns: IntArray
    end_ns: IntArray


def exchanged(trace: Trace, device: int) -> Exchanged | None:
    """The kernels of a GPU, if some of them communicate and it is known when they ran."""
    kinds, kind = kinds_of_work(trace)
    own = (trace.work["device"] == device) & (trace.work["kind"] == WORK_KINDS.index("kernel"))
    if trace.epoch_ns is None or not np.any(kind[own] != NONE):
        return None
    begin_ns, end_ns = (trace.work[end][own] + trace.epoch_ns for end in ("begin_ns", "end_ns"))
    return Exchanged(kinds, kind[own], begin_ns, end_ns)


def _needed_ns(work: Table, found: IntArray) -> IntArray:
    """How long each collective needs while it waits for no other rank; its own time if that is not far longer."""
    result: IntArray = work["end_ns"] - work["begin_ns"]
    theirs = np.flatnonzero((found != NONE) & (work["kind"] == WORK_KINDS.index("kernel")))
    own, took_ns = work[theirs], result[theirs]
    alike = np.stack([own[field].astype(np.int64) for field in ("name", "stream", "blocks", "bytes")], axis=1)
    _, group, counts = np.unique(alike, axis=0, return_inverse=True, return_counts=True)
    group, first = group.ravel(), np.cumsum(counts) - counts
    shortest_first = took_ns[np.lexsort((took_ns, group))]
    sized = own["bytes"] > 0
    slowest_ns = SLOWEST_START_NS + SLOWEST_NS_PER_BYTE * own["bytes"].astype(float)
    needed_ns = np.minimum(shortest_first[first][group], slowest_ns).astype(np.int64)
    needed_ns = np.where(sized, needed_ns, shortest_first[first + counts // 2][group])
    times = np.where(sized, WAITS, np.where(took_ns > LONG_NS, WAITS_LONG, WAITS_UNSIZED))
    waits = took_ns > times * needed_ns
    waits &= sized | (counts[group] >= FEWEST_ALIKE)
    result[theirs[waits]] = needed_ns[waits]
    return result


def collectives(
    work: Table, kinds: tuple[str, ...], found: IntArray, free_ns: tuple[IntArray, IntArray], ends_ns: tuple[int, int]
) -> tuple[Collective, ...]:
    """Each kind of communication between two times; ``free_ns`` are begins and ends of when no other work ran.

    Where several collectives run at once, each has the time.
    """
    begins, ends = free_ns
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def free_until(times_ns: IntArray) -> IntArray:
        place = np.searchsorted(begins, times_ns, side="right")
        last = np.append(begins, 0)[place - 1]
        length = np.append(ends - begins, 0)[place - 1]
        until: IntArray = before[np.maximum(place - 1, 0)] + np.minimum(times_ns - last, length)
        return np.where(place == 0, 0, until)

    kernels = work["kind"] == WORK_KINDS.index("kernel")
    streams, stream = np.unique(work["stream"], return_inverse=True)
    theirs, others = (np.bincount(stream, kernels & chosen) for chosen in (found != NONE, found == NONE))
    computing, needed_ns = streams[others >= np.maximum(theirs, 1)], _needed_ns(work, found)
    result = []
    for place, name in enumerate(kinds):
        which = np.flatnonzero((found == place) & (work["end_ns"] > ends_ns[0]) & (work["begin_ns"] < ends_ns[1]))
        if len(chosen := work[which]):
            begin, end = np.maximum(chosen["begin_ns"], ends_ns[0]), np.minimum(chosen["end_ns"], ends_ns[1])
            exposed_ns = int((free_until(end) - free_until(begin)).sum())
            length_ns = int((end - begin).sum())
            in_turn = 2 * int((end - begin)[np.isin(chosen["stream"], computing)].sum()) > length_ns
            waits_ns = chosen["end_ns"] - chosen["begin_ns"] - needed_ns[which]
            most, own_ns = int(np.argmax(waits_ns)), int(np.minimum(waits_ns, end - begin).sum())
            needs_s = float(needed_ns[which[most]]) * 1e-9
            longest_s = needs_s + float(waits_ns[most]) * 1e-9, needs_s
            seconds = (length_ns * 1e-9, exposed_ns * 1e-9)
            result.append(Collective(name, len(chosen), *seconds, in_turn, own_ns * 1e-9, longest_s))
    return tuple(sorted(result, key=lambda one: (-one.exposed_s, -one.seconds)))

"""Says what a thread of the host was doing at any time: a CUDA call, the profiler's work, or named code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from microbench.traces.trace import AUTOGRAD, NONE, RANGE_KINDS, Table, Trace

IntArray = npt.NDArray[np.int64]

Doing = Literal["between", "launch", "wait", "copy", "allocation", "module", "other_call", "profiler"]
DOINGS: tuple[Doing, ...] = get_args(Doing)

# The cause of idle time while no call is made, and two owners of it that no range names.
BETWEEN: Final = "Python and framework time between CUDA calls"
MANAGED, ON_MANAGED = "managed memory that the host touches", "the host's own work on managed memory"
OVERHEAD, DRIVER, FUNCTION, PYTHON = (RANGE_KINDS.index(kind) for kind in ("overhead", "driver", "function", "python"))
NUMBERED = re.compile(r"[ #]*\d+$")  # the number of a step behind its name
ADDRESS = re.compile(r"( object)? at 0x[0-9a-f]+")
LINE_OF_CODE = re.compile(r":\d+ \S+$")  # train.py:88 conv2
BACKWARD = "PyTorch's backward thread"
NEXT, RIGHT_BEHIND_NS = 10, 20_000  # calls among which the thread's next one is looked for; from one line's to the next
FIRST_NS, LAST_NS = -(1 << 62), 1 << 62  # before and after every trace

SUBMITTING = ("Launch", "Memset")
ALLOCATING = (
    "Malloc",
    "MemAlloc",
    "MemFree",
    "cudaFree",
    "HostAlloc",
    "HostRegister",
    "MemCreate",
    "MemMap",
    "MemRelease",
)
LOADING = ("ModuleLoad", "LibraryLoad", "ModuleUnload", "LibraryUnload", "ModuleGetFunction")


def without_number(name: str) -> str:
    """The name of a range without the number of its step or the address of an object; the function in the name of a
    line of code stays whole."""
    return name if LINE_OF_CODE.search(name) else NUMBERED.sub("", ADDRESS.sub("", name))


def doing(name: str) -> Doing:
    """What a CUDA call does, by its name."""
    if "Synchronize" in name:
        return "wait"
    if "Memcpy" in name or "Prefetch" in name:
        return "copy"
    if any(part in name for part in SUBMITTING) and "LaunchHostFunc" not in name:
        return "launch"
    if any(part in name for part in LOADING):
        return "module"
    if any(part in name for part in ALLOCATING):
        return "allocation"
    return "other_call"


def driven_by(name: str) -> Doing:
    """What CUDA does by itself within a call, by the recorder's name for it."""
    return "wait" if "Full" in name else "module"


def by_name(trace: Trace, told: Callable[[str], Doing]) -> npt.NDArray[np.int8]:
    """For each name of the trace a place in DOINGS; the last is for records without a name (NONE)."""
    return np.array([DOINGS.index(told(name)) for name in (*trace.names, "")], dtype=np.int8)


class Slices(NamedTuple):
    """A thread's time without holes or overlaps: slice i lasts from ``edges_ns[i]`` to ``edges_ns[i + 1]``.

    ``doing`` is a place in DOINGS. ``call`` is the CUDA call of the slice, or NONE; ``name`` the name of the innermost
    range of code that the slice lies in, or NONE. ``path`` is the place in ``stacks`` of the names of all ranges that
    it lies in, the outermost first and the same for all steps; the last one is that of time without a range.
    """

    edges_ns: IntArray
    doing: npt.NDArray[np.int8]
    call: IntArray
    name: IntArray
    path: IntArray
    stacks: tuple[tuple[str, ...], ...]


class Part(NamedTuple):
    """Parts of intervals: the place of the interval, the slice, and how many ns of the interval lie in the slice."""

    interval: IntArray
    slice: IntArray
    ns: IntArray


def called_from(trace: Trace, whose: Literal["name", "package"] = "name") -> dict[int, int]:
    """The calls whose line of Python is known, because the recorder asked: the place of the line's name by the call's.
    That is the program's own line, or that of the package called there: NONE where the program itself, PyTorch, JAX or
    Python's library makes the call.

    A wait right behind a copy has the copy's line: `.item()` and `.to(device)` make both calls.
    """
    begins_ns, stacks = trace.calls["begin_ns"], trace.stacks
    places = np.searchsorted(begins_ns, stacks["at_ns"])
    found = np.append(begins_ns, NONE)[places] == stacks["at_ns"]
    found &= np.append(trace.calls["thread"], NONE)[places] == stacks["thread"]
    asked = dict(zip(places[found].tolist(), stacks[whose][found].tolist(), strict=True))
    kinds, calls = by_name(trace, doing)[trace.calls["name"]], trace.calls
    for place, name in list(asked.items()):
        later = place + 1 + np.flatnonzero(calls["thread"][place + 1 : place + NEXT] == calls["thread"][place])
        for one in later[:1].tolist() if kinds[place] == DOINGS.index("copy") else ():
            if kinds[one] == DOINGS.index("wait") and calls["begin_ns"][one] - calls["end_ns"][place] < RIGHT_BEHIND_NS:
                asked.setdefault(one, name)
    return asked


def slices(trace: Trace, thread: int, *, functions: bool = True) -> Slices:
    """A thread's whole time. The profiler's own work counts before everything else, and a call before ranges. Without
    ``functions`` the names are those of the program's own lines alone where samples found them."""
    calls = np.flatnonzero(trace.calls["thread"] == thread)
    kinds, here = trace.ranges["kind"], trace.ranges["thread"] == thread
    exact = (kinds == PYTHON) & (trace.samples is not None)  # beside samples, whose ends are estimates
    code = trace.ranges[here & ~np.isin(kinds, (OVERHEAD, DRIVER, FUNCTION)) & ~exact]
    inner = trace.ranges[here & (kinds == FUNCTION) & functions]
    # PyTorch's profiler does not say of which thread CUDA's own work is: it is of the call that it lies in.
    own, ranges = trace.calls[calls], trace.ranges
    at = np.searchsorted(own["begin_ns"], ranges["begin_ns"], "right") - 1
    inside = (at >= 0) & (ranges["end_ns"] <= np.append(own["end_ns"], 0)[at])
    driver = ranges[(kinds == DRIVER) & (here | (inside & ~np.isin(ranges["thread"], trace.calls["thread"])))]
    overhead = ranges[kinds == OVERHEAD]
    driven = by_name(trace, driven_by)
    unnumbered = {
        name: without_number(trace.names[name])
        for name in np.unique(np.append(ranges["name"][here], driver["name"])).tolist()
        if name != NONE
    }

    def nothing(table: Table) -> IntArray:
        return np.full(len(table), NONE, dtype=np.int64)

    return _flat(
        [
            *(
                (one, np.full(len(one), DOINGS.index("between"), np.int8), nothing(one), one["name"].astype(np.int64))
                for one in (code, inner, trace.ranges[here & exact])
            ),
            (trace.calls[calls], by_name(trace, doing)[trace.calls["name"][calls]], calls, nothing(trace.calls[calls])),
            (driver, driven[driver["name"]], nothing(driver), driver["name"].astype(np.int64)),
            (overhead, np.full(len(overhead), DOINGS.index("profiler"), np.int8), nothing(overhead), nothing(overhead)),
        ],
        unnumbered,
        (BACKWARD,) if AUTOGRAD in trace.threads[thread].name else (),
    )


def _flat(
    layers: list[tuple[Table, npt.NDArray[np.int8], IntArray, IntArray]],
    words: Mapping[int, str],
    otherwise: tuple[str, ...],
) -> Slices:
    """One row of slices from nested intervals: later layers cover earlier ones, and in a layer the inner the outer.

    A layer has its intervals, what the host does in each, the call that each is and its name, or NONE, which ``words``
    spell. Time without a name has the stack ``otherwise``.
    """
    begin = np.concatenate([table["begin_ns"] for table, *_ in layers])
    end = np.concatenate([table["end_ns"] for table, *_ in layers])
    layer = np.concatenate([np.full(len(table), place) for place, (table, *_) in enumerate(layers)])
    what = np.concatenate([kinds for _, kinds, *_ in layers])
    call = np.concatenate([calls for *_, calls, _ in layers])
    name = np.concatenate([names for *_, names in layers])
    order = np.lexsort((layer, -end, begin))
    begins, ends, layers_of, names = begin.tolist(), end.tolist(), layer.tolist(), name.tolist()
    edges, of, path = [FIRST_NS], [NONE], [NONE] * len(begins)
    paths: dict[tuple[int, str], int] = {}
    around: list[int] = []  # the intervals around the present time, the innermost last

    def close(until_ns: int) -> None:
        """Ends the intervals that end by then."""
        while around and ends[around[-1]] <= until_ns:
            last = around.pop()
            while around and ends[around[-1]] <= ends[last]:
                around.pop()
            edges.append(ends[last])
            of.append(around[-1] if around else NONE)

    for place in order.tolist():
        close(begins[place])
        if ends[place] <= begins[place]:
            continue
        below = len(around)  # an interval that begins under a later layer counts when that has ended
        while below and layers_of[around[below - 1]] > layers_of[place]:
            below -= 1
        outer = next((path[one] for one in reversed(around[:below]) if ends[one] >= ends[place]), NONE)
        path[place] = outer
        if names[place] != NONE:
            path[place] = paths.setdefault((outer, words[names[place]]), len(paths))
        elif below:
            names[place] = names[around[below - 1]]
        if below == len(around):
            edges.append(begins[place])
            of.append(place)
        around.insert(below, place)
    close(LAST_NS)
    stacks: list[tuple[str, ...]] = []
    for outer, word in paths:
        stacks.append((*stacks[outer], word) if outer != NONE else (word,))
    owner = np.array(of, dtype=np.int64)  # NONE, the last, reads the row that is added behind the others

    def owned(values: IntArray, none: int) -> IntArray:
        return np.append(values, none)[owner]

    return Slices(
        edges_ns=np.append(np.array(edges, dtype=np.int64), LAST_NS),
        doing=owned(what, DOINGS.index("between")).astype(np.int8),
        call=owned(call, NONE),
        name=owned(np.array(names, dtype=np.int64), NONE),
        path=owned(np.array(path, dtype=np.int64), NONE),
        stacks=(*stacks, otherwise),
    )


def overlaps(of: Slices, begins_ns: IntArray, ends_ns: IntArray) -> Part:
    """How intervals (each with begin <= end) fall onto the slices of a thread."""
    first = np.searchsorted(of.edges_ns, begins_ns, side="right") - 1
    last = np.searchsorted(of.edges_ns, ends_ns, side="left")
    counts = np.where(ends_ns > begins_ns, np.maximum(last - first, 0), 0)
    interval = np.repeat(np.arange(len(begins_ns)), counts)
    place = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    ns = np.minimum(ends_ns[interval], of.edges_ns[place + 1]) - np.maximum(begins_ns[interval], of.edges_ns[place])
    return Part(interval, place, ns)

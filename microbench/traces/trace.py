"""Defines a recorded trace: what the GPU did, which calls submitted it, and what the host's code was doing meanwhile.

Each table is a numpy structured array, sorted by ``begin_ns``. Times are integers in ns on one clock, the one of
``Trace.epoch_ns``. Names are kept once, in ``Trace.names``; tables hold their index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.void]
Format = Literal["PyTorch profiler", "Nsight Systems", "XLA profiler", "microbench recording", "Chrome trace"]

WorkKind = Literal["kernel", "copy", "memset", "graph"]  # "graph": one row for a whole replay, without its kernels
WORK_KINDS: tuple[WorkKind, ...] = get_args(WorkKind)
Memory = Literal["unknown", "pageable", "pinned", "device", "managed"]
MEMORIES: tuple[Memory, ...] = get_args(Memory)
MEMORY_WORDS: Mapping[str, Memory] = {
    "pageable": "pageable", "pinned": "pinned", "device": "device", "array": "device", "device static": "device",
    "managed": "managed", "managed static": "managed",
}  # fmt: skip
# "overhead" is the profiler's own work; "driver" is CUDA's own within a call, which loads a module, compiles, or waits
# for room in its queue. "line" is the line of the program that samples found, and "function" the innermost function of
# a package within it; nobody recorded their begins and ends.
RangeKind = Literal["annotation", "operator", "python", "overhead", "driver", "line", "function"]
RANGE_KINDS: tuple[RangeKind, ...] = get_args(RangeKind)
SyncKind = Literal["event", "stream_wait_event", "stream", "context"]
SYNC_KINDS: tuple[SyncKind, ...] = get_args(SyncKind)

MIGRATION = "Unified memory: "  # how the name of the driver's own copy of managed memory begins
NONE = -1  # an index or a number that the trace does not have

# Work of a GPU. ``call`` is the place in CALLS of the call that submitted it (all nodes of a graph have the replay's).
# ``kind``, ``source`` and ``target`` (memories of a copy) are places in WORK_KINDS and MEMORIES. ``blocks`` is a
# kernel's grid, ``threads`` its block; copies and memsets have ``bytes``, and kernels of collectives
# what a rank gives or gets, where PyTorch says so. ``node`` is the number of a graph's node, NONE outside of them.
WORK = np.dtype(
    [
        ("begin_ns", "i8"), ("end_ns", "i8"), ("stream", "i8"), ("bytes", "i8"), ("blocks", "i8"), ("node", "i8"),
        ("call", "i4"), ("name", "i4"), ("threads", "i4"), ("device", "i2"), ("kind", "i1"), ("source", "i1"),
        ("target", "i1"),
    ]
)  # fmt: skip
# CUDA calls of the host, runtime and driver. ``thread`` is a place in Trace.threads.
CALLS = np.dtype([("begin_ns", "i8"), ("end_ns", "i8"), ("name", "i4"), ("thread", "i4")])
# What host code was doing: operators, Python functions, annotations (NVTX too), and the profiler's own overhead.
RANGES = np.dtype([("begin_ns", "i8"), ("end_ns", "i8"), ("name", "i4"), ("thread", "i4"), ("kind", "i1")])
# Ends of turns of Python loops: ``loop`` is a place in Trace.loops. The turns behind a ``last`` one are not noted.
TURNS = np.dtype([("at_ns", "i8"), ("loop", "i4"), ("thread", "i4"), ("last", "?")])
# Stacks of Python that call CUDA: the begin of the call, the line of the program's own code, and that of the package
# called there that calls CUDA, or NONE.
STACKS = np.dtype([("at_ns", "i8"), ("name", "i4"), ("package", "i4"), ("thread", "i4")])
# What a call waited for, where the recorder says so: ``stream`` (NONE: the host) waits for ``on_stream`` (NONE: all) up
# to the event that the call ``on_call`` recorded.
SYNCS = np.dtype(
    [
        ("begin_ns", "i8"), ("end_ns", "i8"), ("stream", "i8"), ("on_stream", "i8"), ("call", "i4"), ("on_call", "i4"),
        ("kind", "i1"),
    ]
)  # fmt: skip


class Processor(NamedTuple):
    """What the main thread had of the processors while it was sampled, in ns: all of the time, the part in which it
    ran, and that in which it could run and had to wait; and how many of the processors the process may use."""

    all_ns: int
    ran_ns: int
    ready_ns: int
    allowed: float
    cores: int


# What a thread without Python does is named by where the main thread is; PyTorch names its own thread.
MAIN_AT, BACKWARD_OF, AUTOGRAD = "main thread at ", "backward pass of ", "pt_autograd"


class Thread(NamedTuple):
    """A thread of the host: its process, its number there, and its name if it has one."""

    process: int
    number: int
    name: str = ""


class Samples(NamedTuple):
    """Samples of what host code was doing: how many, how many of them were taken too late, and the mean time in ns from
    one to the next of a thread. The ranges made of them begin and end up to so much too early or too late. ``at_ns``
    has by thread when they were taken, sorted; of equal ones in a row only the first and the last. ``beside`` are lines
    of the program in which threads that submit nothing worked: begin and end in ns, and name."""

    taken: int
    late: int
    every_ns: int
    at_ns: Mapping[int, npt.NDArray[np.int64]] = {}
    beside: tuple[tuple[int, int, int], ...] = ()


class Pause(NamedTuple):
    """A pause between two windows, in ns: it begins when records of kernels have ended. CUPTI still calls the recorder,
    which notes waits alone."""

    begin_ns: int
    end_ns: int


UNRECORDED = "no CUDA events were recorded"  # begins what a recorder says it lost, where that is all
PERHAPS = ", perhaps"  # ends what a recorder may have lost, where it gives no number
FAILED = " (error "  # follows the name of a launch that failed


class Loop(NamedTuple):
    """A loop of Python code: "train.py:88 main", whether it is the program's ``own`` code, and whether a module of
    PyTorch calls it, so that it is inside of a model."""

    place: str
    own: bool
    beneath: bool


class Trace(msgspec.Struct, frozen=True):
    """One file's recording, of one process or several.

    ``gpus`` are the names of the GPUs by their number, ``bus_ids`` their PCI addresses as sysfs spells them;
    ``versions`` what the recorder says of software. ``epoch_ns`` is the Unix time of time 0, None if unknown.
    ``resolution_ns`` is the step of the times. ``lost`` are records that the recorder says it lost, by kind; ``unread``
    those that this reader left out although they may matter. ``rank`` is the number of this process in a distributed
    program. A recording of ``windows`` (begin and end in ns) has only their records, and of the rest
    ``other_waits_ns``, the ends of the host's waits; without windows all of it was recorded. ``pauses`` are between
    them. ``turns`` of ``loops`` are of all time, ``samples`` are those that became ranges, and ``processor`` was
    measured with them. ``callers`` has for each line of the program's own code that a sample found the lines that
    called its function. ``stacks`` are of calls here and there, and exact.
    """

    source: str
    format: Format
    work: Table
    calls: Table
    ranges: Table
    syncs: Table
    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    gpus: Mapping[int, str] = {}
    bus_ids: Mapping[int, str] = {}
    versions: Mapping[str, str] = {}
    epoch_ns: int | None = None
    resolution_ns: int = 1
    lost: Mapping[str, int] = {}
    unread: Mapping[str, int] = {}
    rank: int | None = None
    windows: tuple[tuple[int, int], ...] = ()
    pauses: tuple[Pause, ...] = ()
    other_waits_ns: tuple[int, ...] = ()
    samples: Samples | None = None
    processor: Processor | None = None
    loops: tuple[Loop, ...] = ()
    callers: Mapping[str, frozenset[str]] = {}
    turns: Table = np.empty(0, TURNS)
    stacks: Table = np.empty(0, STACKS)


def memory_place(words: str) -> int:
    """The place in MEMORIES of a memory as recorders call it: "Device Static"."""
    return MEMORIES.index(MEMORY_WORDS.get(words.strip().lower().replace("_", " "), "unknown"))


def migrates(trace: Trace, way: str = "") -> npt.NDArray[np.bool_]:
    """Which work is the driver's own copying of managed memory.

    With the way "Memcpy" what the program prefetched is left out; with "Memcpy DtoH" only what went to the host is in.
    """
    named = np.array([name.startswith(MIGRATION + way) for name in (*trace.names, "")])
    found: npt.NDArray[np.bool_] = named[trace.work["name"]] & (trace.work["call"] == NONE)
    return found


def name_of(trace: Trace, name: int) -> str:
    """The name at a place in ``names``, "" for NONE."""
    return trace.names[name] if name != NONE else ""


def empty(dtype: np.dtype[np.void]) -> Table:
    """A table without rows."""
    return np.empty(0, dtype=dtype)

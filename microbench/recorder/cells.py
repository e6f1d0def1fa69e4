"""Defines a recording: a file of cells of 64 bytes, each a row (one record of CUPTI, or samples of Python) or a part of
a text.

recorder.c writes the cells of CUPTI, calls and facts, and this file those of Python.

The first cell is the header: MAGIC, VERSION and CELL_BYTES. A text says a fact about the recording ("pid=42"), or is
the name of a kernel or a line of Python, whose rows hold its key. A reader leaves out cells of a kind that it does not
know. Cells do not refer to their place in the file, so a file that was cut is
whole up to its last complete cell. All numbers are little-endian.
"""

from __future__ import annotations

import struct

MAGIC = b"microbench cells"
VERSION = 1
CELL_BYTES = 64
ENDING = ".rows"

# A row; times are in ns. ``kind`` is CUPTI's kind of record. ``place`` is the device of GPU work and the thread of a
# call. ``detail`` is a call's number (cbid), the kind of a copy, or the type of a wait. ``flags`` are the threads of a
# kernel's block, the memories of a copy (a byte each) or a memset, or the kind of the profiler's own work. ``size`` is
# the blocks of a kernel's grid, the bytes of a copy or memset, or the number of an event. ``name`` is a kernel's key;
# ``graph`` and ``node`` are the numbers of a graph and its node, 0 outside of graphs.
ROW = (
    ("kind", "<u2"), ("detail", "<u2"), ("flags", "<u4"), ("begin_ns", "<i8"), ("end_ns", "<i8"),
    ("correlation", "<u4"), ("place", "<u4"), ("stream", "<u4"), ("graph", "<u4"), ("size", "<u8"), ("name", "<u8"),
    ("node", "<u8"),
)  # fmt: skip
MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, OVERHEAD, PEER_MEMCPY, CUDA_EVENT, SYNC = 1, 2, 4, 5, 10, 17, 22, 36, 38

# A row of this kind represents consecutive samples that found a thread in one stack of Python. CUPTI does not make it.
# ``begin_ns`` and ``end_ns`` are the times of the first and the last of them, ``size`` is their number, ``flags`` how
# many of them were taken too late, ``graph`` how many found the main thread at work and not asleep, ``place`` the
# thread, and ``name`` the key of the innermost frame.
SAMPLES = 0xFF03
SAMPLE_NS = 2_000_000  # from one sample to the next in the mean, as intended
FOLLOWING_NS = 30_000_000  # samples further apart are not consecutive
SAMPLES_ROW = struct.Struct("<HHIqqIIIIQQQ")

# A row of this kind is a collection of Python's garbage; ``place`` is the thread, and ``size`` the generation.
COLLECTED = 0xFF08
# A row of this kind is a time in which the main thread could run and had no processor; ``place`` is 0. Linux says how
# long it was when it is over, so the row ends at about the right time.
ABSENT = 0xFF09
# A row of this kind is a time in which a thread waited for Python's lock; ``place`` is that thread, 0 for the main one,
# and ``name`` is the key of the frame in which another thread held it, 0 where that is not known.
LOCKED = 0xFF0A

# A row of this kind is a stack of Python that calls CUDA: ``begin_ns`` is the begin of the call, ``place`` its thread,
# and ``name`` the key of the innermost frame.
CALLED_FROM = 0xFF0B

# A row of this kind is the end of a turn of a loop of Python, at ``begin_ns``; ``place`` is the thread and ``name`` the
# key of the loop, whose text begins with OWN, BENEATH or neither. ``flags`` is 1 if the next turns are not noted.
TURN = 0xFF06
OWN, BENEATH = "own ", "beneath "  # code of the program outside of PyTorch's modules; anything inside of them

# A text: its kind, the number of this part, the bytes of the whole text, its key, and TEXT_BYTES of it.
TEXT = struct.Struct("<HHIQ48s")
TEXT_BYTES = 48
# The text of a frame has the key of the frame that called it, 0 without one, then OWN for code of the program, and its
# place. Before there were frames, a line was the innermost one of the program's own code.
FACT, NAME, LINE, LOOP, FRAME = 0xFF01, 0xFF02, 0xFF04, 0xFF05, 0xFF07
LONGEST_TEXT = 16384  # bytes; the rest is left out

HEADER = struct.Struct("<16sII40x")


def header() -> bytes:
    """The first cell of a file."""
    return HEADER.pack(MAGIC, VERSION, CELL_BYTES)


def text(kind: int, key: int, content: str) -> bytes:
    """The cells of a text."""
    whole = content.encode("utf-8", "replace")[:LONGEST_TEXT]
    starts = range(0, max(len(whole), 1), TEXT_BYTES)
    parts = (whole[start : start + TEXT_BYTES] for start in starts)
    return b"".join(TEXT.pack(kind, number, len(whole), key, part) for number, part in enumerate(parts))


def samples(thread: int, frame: int, begin_ns: int, end_ns: int, count: int, late: int, at_work: int = 0) -> bytes:
    """The row of samples that follow each other."""
    return SAMPLES_ROW.pack(SAMPLES, 0, late, begin_ns, end_ns, 0, thread, 0, at_work, count, frame, 0)


def collected(thread: int, begin_ns: int, end_ns: int, generation: int) -> bytes:
    """The row of a collection of garbage."""
    return SAMPLES_ROW.pack(COLLECTED, 0, 0, begin_ns, end_ns, 0, thread, 0, 0, generation, 0, 0)


def absent(begin_ns: int, end_ns: int) -> bytes:
    """The row of a time without a processor."""
    return SAMPLES_ROW.pack(ABSENT, 0, 0, begin_ns, end_ns, 0, 0, 0, 0, 0, 0, 0)


def locked(frame: int, begin_ns: int, end_ns: int, thread: int = 0) -> bytes:
    """The row of a time in which a thread waited for Python's lock."""
    return SAMPLES_ROW.pack(LOCKED, 0, 0, begin_ns, end_ns, 0, thread, 0, 0, 0, frame, 0)


def called_from(thread: int, frame: int, at_ns: int) -> bytes:
    """The row of a stack that calls CUDA."""
    return SAMPLES_ROW.pack(CALLED_FROM, 0, 0, at_ns, at_ns, 0, thread, 0, 0, 0, frame, 0)


def turn(thread: int, loop: int, at_ns: int, last: int) -> bytes:
    """The row of the end of a turn."""
    return SAMPLES_ROW.pack(TURN, 0, last, at_ns, at_ns, 0, thread, 0, 0, 0, loop, 0)


def fact(name: str, value: object) -> bytes:
    """The cells of a fact."""
    return text(FACT, 0, f"{name}={value}")

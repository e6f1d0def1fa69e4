"""What took the calling thread off its core: waits, preemptions, moves to other cores, and interrupts of the core."""

from __future__ import annotations

import ctypes
import resource
from functools import cache
from pathlib import Path
from typing import NamedTuple

from microbench.core.errors import Skip
from microbench.host.files import Machine

INTERRUPTS = "/proc/interrupts"


class ThreadState(NamedTuple):
    """The CPU that a thread runs on, and how often it has left a CPU so far: to wait, and because it was preempted.

    They are the voluntary and involuntary context switches of getrusage(2).
    """

    cpu: int
    waits: int
    preemptions: int


def thread_state() -> ThreadState:
    """The state of the calling thread. Takes a few microseconds."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return ThreadState(_c_library().sched_getcpu(), used.ru_nvcsw, used.ru_nivcsw)


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def core_interrupts(cpu: int, root: Path = Path("/")) -> int:
    """How many interrupts of any kind a CPU has served since the machine started.

    Reading them takes up to some milliseconds on large machines. Raises Skip, with the reason, if the kernel does not
    say.
    """
    reading = Machine(root).read(INTERRUPTS)
    header, *rows = (reading.text or "").splitlines() or [""]
    cpus = header.split()
    if f"CPU{cpu}" not in cpus:
        raise Skip(f"{INTERRUPTS}: {reading.reason or f'no column for CPU {cpu}'}")
    counts = [row.split()[1 : len(cpus) + 1] for row in rows]
    # Rows with one figure (ERR, MIS) count for all CPUs together.
    each = [row[cpus.index(f"CPU{cpu}")] for row in counts if len(row) == len(cpus) and all(map(str.isdigit, row))]
    return sum(map(int, each))

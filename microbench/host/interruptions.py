"""What took the calling thread off its core: waits and preemptions, and the interrupts of a core."""

import resource
from pathlib import Path
from typing import NamedTuple

from microbench.core.errors import Skip
from microbench.host.files import Machine

INTERRUPTS = "/proc/interrupts"


class ThreadState(NamedTuple):
    """How often a thread has left its CPU so far: to wait, and because it was preempted.

    They are the voluntary and involuntary context switches of getrusage(2).
    """

    waits: int
    preemptions: int


def thread_state() -> ThreadState:
    """The state of the calling thread. Takes a few microseconds."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return ThreadState(used.ru_nvcsw, used.ru_nivcsw)


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

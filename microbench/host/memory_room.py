"""How much host memory may be taken now without this process being killed for it, and by whose word."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np

from microbench.errors import Skip
from microbench.host.files import Machine, labelled
from microbench.host.memory import NO_LIMIT_BYTES, cgroup_folders, kibibytes
from microbench.host.virtualization import virtualization_facts
from microbench.units import about_size, size

MEMINFO = "/proc/meminfo"
# What is left to others and to the kernel: a share of the whole, and never less than this.
SPARED_SHARE = 16
SPARED_BYTES = 64 << 20
# memory.high does not kill, but a process above it is slowed until nothing it measures means anything.
LIMIT_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")
USE_FILES = ("memory.current", "memory.usage_in_bytes")
# Pages of files that nobody has asked for lately: given back before anything is killed. By cgroup version 1, which
# counts those of the folders below apart, then by version 2.
GIVEN_BACK = ("total_inactive_file", "inactive_file")
STEP_BYTES = 256 << 20
LONGEST_WAIT_S = 3.0
LONGEST_FILL_S = 15.0  # well under the time that a worker may be silent
LOOK_S = 0.05


class Room(NamedTuple):
    """Bytes that may be taken, and what sets that limit."""

    bytes: int
    source: str


def host_room(machine: Machine | None = None) -> Room:
    """The smaller of what the machine has available and what the cgroups leave, each less what is spared for others.

    RLIMIT_MEMLOCK is not among them: the driver pins pages without asking for it (os_lock_user_pages of NVIDIA's open
    kernel modules), so that a limit of a few MiB, which is common, would refuse what works. Where a driver does refuse,
    that is its own answer.
    """
    here = machine or Machine()
    return min(_available(here), _left_by_cgroups(here))


def require_room(size_bytes: int, what: str, machine: Machine | None = None) -> None:
    """Raise Skip where so much host memory may not be taken: the bytes asked, what may be taken, and who says so.

    Some virtual machines start small and get more as theirs fills. What MemAvailable does not cover is therefore tried
    there: taken step by step, as long as each step is there, and given back.
    """
    here = machine or Machine()
    room = host_room(here)
    if size_bytes <= room.bytes:
        return
    if size_bytes <= _left_by_cgroups(here).bytes and _is_virtual(here):
        fill(size_bytes, lambda: _available(here).bytes)
        room = host_room(here)
    if size_bytes > room.bytes:
        may = about_size(room.bytes) if room.bytes else "none"
        raise Skip(f"{size(size_bytes)} of {what} asked, {may} may be taken ({room.source})")


def fill(size_bytes: int, available: Callable[[], int], longest_wait_s: float = LONGEST_WAIT_S) -> int:
    """Take so much memory in steps, each once ``available()`` covers it, then let go of all: the bytes that were had.

    Stops at the first step that does not become available in ``longest_wait_s``, or that the kernel refuses, and after
    LONGEST_FILL_S in any case.
    """
    taken_bytes = 0
    began_s = time.monotonic()
    with ExitStack() as held, suppress(OSError):
        while taken_bytes < size_bytes and time.monotonic() - began_s < LONGEST_FILL_S:
            step_bytes = min(STEP_BYTES, size_bytes - taken_bytes)
            if not _comes(step_bytes, available, longest_wait_s):
                break
            pages = held.enter_context(mmap.mmap(-1, step_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            np.frombuffer(pages, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
            taken_bytes += step_bytes
    return taken_bytes


def _comes(size_bytes: int, available: Callable[[], int], longest_wait_s: float) -> bool:
    began_s = time.monotonic()
    while available() < size_bytes:
        if time.monotonic() - began_s >= longest_wait_s:
            return False
        time.sleep(LOOK_S)
    return True


def _spared(whole_bytes: int) -> int:
    return max(whole_bytes // SPARED_SHARE, SPARED_BYTES)


def _available(machine: Machine) -> Room:
    text = machine.read(MEMINFO).text
    total, available = (kibibytes(labelled(text, name)) for name in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return Room(NO_LIMIT_BYTES, f"no limit is known: {MEMINFO} does not say")
    spared = _spared(total)
    return Room(max(available - spared, 0), f"MemAvailable of {MEMINFO} less {about_size(spared)}")


def _left_by_cgroups(machine: Machine) -> Room:
    """The least that any cgroup of this process leaves; a limit counts for its folder and all below."""
    rooms = [Room(NO_LIMIT_BYTES, "no cgroup limit")]
    for folder in cgroup_folders(machine, "memory"):
        for file in LIMIT_FILES:
            limit = _number(machine, f"{folder}/{file}")
            if limit is None or limit >= NO_LIMIT_BYTES:
                continue
            spared = _spared(limit)
            left = limit - _used(machine, folder) - spared
            words = f"limit of {about_size(limit)} in {folder}/{file} less what is in use and {about_size(spared)}"
            rooms.append(Room(max(left, 0), words))
    return min(rooms)


def _used(machine: Machine, folder: str) -> int:
    """Bytes that a cgroup uses and would not give back first."""
    used = next(filter(None, (_number(machine, f"{folder}/{file}") for file in USE_FILES)), 0)
    statistics = machine.read(f"{folder}/memory.stat").text
    found = (labelled(statistics, name, " ") for name in GIVEN_BACK)
    return max(used - next((int(one) for one in found if one and one.isdigit()), 0), 0)


def _number(machine: Machine, path: str) -> int | None:
    text = machine.read(path).text or ""
    return int(text) if text.isdigit() else None


def _is_virtual(machine: Machine) -> bool:
    facts = {fact.name: fact.value for fact in virtualization_facts(machine)}
    return facts["virtualization"] not in (None, "none", "wsl")

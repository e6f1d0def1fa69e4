"""Who else works on a GPU, by NVML: the first thing to look for, as it makes every number wrong."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from microbench.gpu.nvml_query import Answer, Query
from microbench.host.files import Machine

# The link /proc/self/ns/pid in the first PID namespace (PROC_PID_INIT_INO in linux/proc_ns.h); a container has another.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
# What kind of work, and the functions that list it, newest first.
LISTS = (
    ("", ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")),
    ("MPS client, ", ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2")),
    ("graphics, ", ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2")),
)


class Holder(NamedTuple):
    """A process with work on a GPU: its name, its pid and kind in words, and the memory it holds if NVML tells."""

    name: str
    pid: str
    used_bytes: int | None


class Holders(NamedTuple):
    """Who holds memory of a GPU: this process, None where NVML does not list it by a pid known here, and all others."""

    own: Holder | None
    others: tuple[Holder, ...]


def other_processes(
    query: Query, own_pids: Collection[int] = (), context_open: bool = True, machine: Machine | None = None
) -> Answer:
    """Processes with work on this GPU other than this one and ``own_pids``: a tuple of "name (pid 123)".

    In a container with process ids of its own NVML still gives the host's. Which of those is ours cannot be told, so
    with ``context_open`` (this process has a context) one that nobody here has is taken for it.
    """
    tree = machine or Machine()
    answer = _listed(query)
    if answer.value is None:
        return answer
    ours = _ours(answer.value, {os.getpid(), *own_pids}, context_open, tree)
    others = (_holder(query, one, tree) for pid, one in sorted(answer.value.items()) if pid not in ours)
    return Answer(tuple(f"{one.name} ({one.pid})" for one in others))


def memory_holders(query: Query, machine: Machine | None = None) -> Answer:
    """The Holders of a GPU that this process has a context on.

    None where NVML lists nobody, this process being there for sure: then it does not show processes here at all.
    """
    tree = machine or Machine()
    answer = _listed(query)
    if answer.value is None:
        return answer
    if not answer.value:
        return Answer(None, "NVML lists no process here, not even this one")
    ours = _ours(answer.value, {os.getpid()}, True, tree)
    found = {pid: _holder(query, one, tree) for pid, one in sorted(answer.value.items())}
    # Of several that nobody here has one is this process, but which?
    sure = os.getpid() in ours or sum(not tree.exists(f"/proc/{pid}") for pid in found) == 1
    own = next((holder for pid, holder in found.items() if pid in ours), None) if sure else None
    return Answer(Holders(own, tuple(holder for pid, holder in found.items() if pid not in ours)))


class _Listed(NamedTuple):
    """One process as NVML lists it."""

    pid: int
    kind: str
    used_bytes: int | None


def _listed(query: Query) -> Answer:
    """Each process that NVML lists, by pid. A process may be listed for several kinds of work: the first counts."""
    found: dict[int, _Listed] = {}
    for kind, names in LISTS:
        answer = query.ask_first(names)
        if not kind and answer.value is None:
            return answer
        for process in answer.value or ():
            used_bytes = getattr(process, "usedGpuMemory", None)
            found.setdefault(int(process.pid), _Listed(int(process.pid), kind, used_bytes))
    return Answer(found)


def _ours(found: Collection[int], own_pids: Collection[int], context_open: bool, machine: Machine) -> set[int]:
    ours = set(found) & set(own_pids)
    if context_open and not ours and own_pid_namespace(machine):
        return set([pid for pid in sorted(found) if not machine.exists(f"/proc/{pid}")][:1])
    return ours


def _holder(query: Query, one: _Listed, machine: Machine) -> Holder:
    return Holder(_name(query, one.pid, machine), f"{one.kind}pid {one.pid}", one.used_bytes)


def own_pid_namespace(machine: Machine) -> bool:
    """True if process ids here are not the host's."""
    try:
        return os.readlink(machine.at("/proc/self/ns/pid")) != FIRST_PID_NAMESPACE
    except OSError:
        return False


def _name(query: Query, pid: int, machine: Machine) -> str:
    path = query.ask_system("nvmlSystemGetProcessName", pid).value
    return Path(path).name if path else machine.read(f"/proc/{pid}/comm").text or "a process not visible from here"

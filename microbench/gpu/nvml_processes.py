"""Who else works on a GPU, by NVML: the first thing to look for, as it makes every number wrong."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

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


def other_processes(
    query: Query, own_pids: Collection[int] = (), context_open: bool = True, machine: Machine | None = None
) -> Answer:
    """Processes with work on this GPU other than this one and ``own_pids``: a tuple of "name (pid 123)".

    In a container with process ids of its own NVML still gives the host's. Which of those is ours cannot be told, so
    with ``context_open`` (this process has a context) one that nobody here has is taken for it.
    """
    tree = machine or Machine()
    found: dict[int, str] = {}
    for kind, names in LISTS:
        answer = query.ask_first(names)
        if not kind and answer.value is None:
            return answer
        for process in answer.value or ():
            found.setdefault(int(process.pid), kind)
    ours = {os.getpid(), *own_pids}
    others = {pid: kind for pid, kind in found.items() if pid not in ours}
    if context_open and len(others) == len(found) and own_pid_namespace(tree):
        foreign = [pid for pid in sorted(others) if not tree.exists(f"/proc/{pid}")]
        for pid in foreign[:1]:
            del others[pid]
    return Answer(tuple(f"{_name(query, pid, tree)} ({kind}pid {pid})" for pid, kind in sorted(others.items())))


def own_pid_namespace(machine: Machine) -> bool:
    """True if process ids here are not the host's."""
    try:
        return os.readlink(machine.at("/proc/self/ns/pid")) != FIRST_PID_NAMESPACE
    except OSError:
        return False


def _name(query: Query, pid: int, machine: Machine) -> str:
    path = query.ask_system("nvmlSystemGetProcessName", pid).value
    return Path(path).name if path else machine.read(f"/proc/{pid}/comm").text or "a process not visible from here"

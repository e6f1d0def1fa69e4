"""Facts about memory and CPU time that this process may use: cgroup limits, locked memory, swap, huge pages."""

from __future__ import annotations

from microbench.host.files import Machine, Reading, bracketed, fact, known, labelled, stated, unknown
from microbench.model import Fact, Scalar

# cgroup v1 writes "no limit" as the largest multiple of a page in 63 bits.
NO_LIMIT_BYTES = 1 << 62
CGROUPS = "/sys/fs/cgroup"


def memory_facts(machine: Machine) -> tuple[Fact, ...]:
    """Limits on memory and CPU time, and what the kernel does with pages."""
    return (
        _memory_limit(machine),
        _cpu_quota(machine),
        _locked_memory(machine),
        *_swap(machine),
        fact("transparent_hugepage", machine.read("/sys/kernel/mm/transparent_hugepage/enabled"), bracketed),
    )


def kibibytes(text: str | None) -> int | None:
    """Bytes of a /proc/meminfo value such as ``24684096 kB`` (which means KiB); None when there is none."""
    number = (text or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdigit() else None


def cgroup_folders(machine: Machine, controller: str) -> tuple[str, ...]:
    """Folders of this process's cgroup for ``controller``, innermost first, up to the root of the hierarchy.

    Inside a container the path in /proc may name a folder that only the host sees: then the root is what applies.
    """
    for line in (machine.read("/proc/self/cgroup").text or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return _upwards(f"{CGROUPS}/{controller}", path)
        if number == "0" and machine.exists(f"{CGROUPS}/cgroup.controllers"):
            return _upwards(CGROUPS, path)
    return ()


def _upwards(base: str, path: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part]
    return tuple("/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1))


def _memory_limit(machine: Machine) -> Fact:
    """The smallest of the machine's memory and the limits of all cgroups that this process is in."""
    path = "/proc/meminfo"
    total = kibibytes(labelled(machine.read(path).text, "MemTotal"))
    limits = [(total, path)] if total is not None else []
    for folder in cgroup_folders(machine, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = machine.read(f"{folder}/{file}").text or ""
            if text.isdigit() and int(text) < NO_LIMIT_BYTES:
                limits.append((int(text), f"{folder}/{file}"))
    if not limits:
        return unknown("memory_limit_bytes", "neither MemTotal nor a cgroup limit", path)
    smallest, source = min(limits)
    return known("memory_limit_bytes", smallest, source)


def _cpu_quota(machine: Machine) -> Fact:
    """CPUs' worth of time per period that the cgroups allow; "unlimited" without a quota."""
    quotas = []
    for folder in cgroup_folders(machine, "cpu"):
        quota, _, period = (machine.read(f"{folder}/cpu.max").text or "").partition(" ")
        quota = quota or machine.read(f"{folder}/cpu.cfs_quota_us").text or ""
        period = period or machine.read(f"{folder}/cpu.cfs_period_us").text or ""
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append((int(quota) / int(period), folder))
    if quotas:
        smallest, source = min(quotas)
        return known("cpu_quota", smallest, source, "CPUs")
    readable = machine.exists("/proc/self/cgroup")
    return stated("cpu_quota", "unlimited" if readable else None, f"{CGROUPS} cpu.max", "no /proc/self/cgroup")


def _locked_memory(machine: Machine) -> Fact:
    """RLIMIT_MEMLOCK. cuMemHostAlloc is not held to it (the driver pins), but mlock and RDMA are."""
    path = "/proc/self/limits"
    reading = machine.read(path)
    for line in (reading.text or "").splitlines():
        if line.startswith("Max locked memory"):
            return fact("locked_memory_limit_bytes", Reading(line.split()[3], path), _limit)
    return unknown("locked_memory_limit_bytes", reading.reason or "no such line", path)


def _limit(text: str) -> Scalar:
    return text if text == "unlimited" else int(text)


def _swap(machine: Machine) -> tuple[Fact, ...]:
    path = "/proc/meminfo"
    text = machine.read(path).text
    total, free = kibibytes(labelled(text, "SwapTotal")), kibibytes(labelled(text, "SwapFree"))
    used = total - free if total is not None and free is not None else None
    silent = "the kernel does not say"
    return (stated("swap_total_bytes", total, path, silent), stated("swap_used_bytes", used, path, silent))

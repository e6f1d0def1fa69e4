"""Facts about memory and CPU time that this process may use: cgroup limits, locked memory, swap, huge pages."""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import Fact, Scalar
from microbench.core.units import about_size, size
from microbench.host.files import Machine, Reading, bracketed, fact, known, labelled, stated, unknown

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


# Facts about what lies between this system and the hardware: hypervisor, container, WSL.


DMI = "/sys/class/dmi/id"
# DMI vendor strings and what they mean, as in systemd-detect-virt's table (src/basic/virt.c). The first match counts;
# clouds come before the hypervisor that they run on.
DMI_VENDORS = (
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("QEMU", "qemu"),
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("VMware", "vmware"),
    ("VMW", "vmware"),
    ("innotek GmbH", "virtualbox"),
    ("VirtualBox", "virtualbox"),
    ("Xen", "xen"),
    ("Bochs", "bochs"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)
DMI_FILES = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
# Names in the cgroup path, the container's environment file and the mounts.
CONTAINER_MARKS = (
    (r"/(kubepods|kubelet)", "kubernetes"),
    (r"/docker[/-]|docker-[0-9a-f]{12}", "docker"),
    (r"libpod", "podman"),
    (r"/lxc[./]", "lxc"),
    (r"containerd", "containerd"),
)
# gVisor's kernel answers with one fixed build date, whatever the version.
GVISOR_MARK = "Sun Jan 10 15:06:54 PST 2016"


def virtualization_facts(machine: Machine) -> tuple[Fact, ...]:
    """``virtualization`` ("none" on bare metal), ``container`` and ``wsl``."""
    return (_virtualization(machine), _container(machine), _wsl(machine))


def is_wsl(machine: Machine) -> bool:
    """True under the Windows Subsystem for Linux, whose kernel carries Microsoft's name."""
    return "microsoft" in (machine.read("/proc/version").text or "").lower()


def container_name(machine: Machine) -> str | None:
    """The kind of container this process is in: "docker", "gvisor", …; None if there is no sign of one."""
    if GVISOR_MARK in (machine.read("/proc/version").text or ""):
        return "gvisor"
    if machine.exists("/run/.containerenv"):
        return "podman"
    paths = "\n".join(machine.read(path).text or "" for path in ("/proc/self/cgroup", "/proc/1/cgroup"))
    for pattern, name in CONTAINER_MARKS:
        if re.search(pattern, paths):
            return name
    if machine.exists("/.dockerenv"):
        return "docker"
    return "apptainer" if machine.exists("/.singularity.d") else None


def _virtualization(machine: Machine) -> Fact:
    if is_wsl(machine):
        return known("virtualization", "wsl", "/proc/version")
    flags = _cpu_flags(machine)
    if flags and "hypervisor" not in flags:
        # x86 only. Ahead of DMI, which says "Amazon EC2" on that cloud's bare-metal machines too.
        return known("virtualization", "none", "/proc/cpuinfo flags")
    for name, source in _hypervisor_names(machine):
        return known("virtualization", name, source)
    if flags:
        return known("virtualization", "a hypervisor of unknown kind", "/proc/cpuinfo flags")
    if machine.exists(f"{DMI}/sys_vendor"):
        return known("virtualization", "none", DMI)
    return unknown("virtualization", "neither processor flags nor DMI say", DMI)


def _hypervisor_names(machine: Machine) -> Iterator[tuple[str, str]]:
    """Names that firmware or kernel give the hypervisor, with where they stand."""
    xen = machine.read("/sys/hypervisor/type")
    if xen.text:
        yield xen.text, xen.source
    for file in DMI_FILES:
        reading = machine.read(f"{DMI}/{file}")
        for mark, name in DMI_VENDORS:
            if reading.text and reading.text.startswith(mark):
                yield name, reading.source


def _cpu_flags(machine: Machine) -> frozenset[str]:
    return frozenset((labelled(machine.read("/proc/cpuinfo").text, "flags") or "").split())


def _container(machine: Machine) -> Fact:
    source = "/proc/self/cgroup, /proc/1/cgroup, /.dockerenv, /run/.containerenv"
    if not machine.exists("/proc"):
        return unknown("container", "no /proc", source)
    return known("container", container_name(machine) or "none", source)


def _wsl(machine: Machine) -> Fact:
    if not machine.exists("/proc/version"):
        return unknown("wsl", "no such file", "/proc/version")
    return known("wsl", is_wsl(machine), "/proc/version")


# How much host memory may be taken now without this process being killed for it, and by whose word.


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

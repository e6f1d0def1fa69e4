"""Facts about the memory, CPU time and virtualisation of this process, and how much host memory it may take now."""

import mmap
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.core.units import about_size, size
from microbench.host.files import Machine, Reading, bracketed, fact, known, labelled, stated, unknown

# cgroup v1 writes "no limit" as the largest multiple of a page in 63 bits.
NO_LIMIT_BYTES = 1 << 62
CGROUPS = "/sys/fs/cgroup"
MEMINFO = "/proc/meminfo"


def memory_facts(machine: Machine) -> tuple[Fact, ...]:
    """Limits on memory and CPU time, swap, and huge pages."""
    total, free = _meminfo_bytes(machine, "SwapTotal"), _meminfo_bytes(machine, "SwapFree")
    used = total - free if total is not None and free is not None else None
    silent = "the kernel does not say"
    return (
        _memory_limit(machine),
        _cpu_quota(machine),
        _locked_memory(machine),
        stated("swap_total_bytes", total, MEMINFO, silent),
        stated("swap_used_bytes", used, MEMINFO, silent),
        fact("transparent_hugepage", machine.read("/sys/kernel/mm/transparent_hugepage/enabled"), bracketed),
    )


def _meminfo_bytes(machine: Machine, label: str) -> int | None:
    """Bytes of a /proc/meminfo line such as ``MemTotal: 24684096 kB`` (kB there means KiB); None if it is missing."""
    number = (labelled(machine.read(MEMINFO).text, label) or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdigit() else None


def _cgroup_folders(machine: Machine, controller: str) -> tuple[str, ...]:
    """Folders of this process's cgroup for ``controller``, innermost first, up to the root of the hierarchy.

    In a container the path in /proc may name a folder that only the host sees; then only the root can be read.
    """
    for line in (machine.read("/proc/self/cgroup").text or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            base = f"{CGROUPS}/{controller}"
        elif number == "0" and machine.exists(f"{CGROUPS}/cgroup.controllers"):
            base = CGROUPS
        else:
            continue
        parts = [part for part in path.split("/") if part]
        return tuple("/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1))
    return ()


def _memory_limit(machine: Machine) -> Fact:
    """The smallest of the machine's memory and the limits of all cgroups of this process."""
    total = _meminfo_bytes(machine, "MemTotal")
    limits = [(total, MEMINFO)] if total is not None else []
    for folder in _cgroup_folders(machine, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(machine, f"{folder}/{file}")
            if limit is not None and limit < NO_LIMIT_BYTES:
                limits.append((limit, f"{folder}/{file}"))
    if not limits:
        return unknown("memory_limit_bytes", "neither MemTotal nor a cgroup limit", MEMINFO)
    smallest, source = min(limits)
    return known("memory_limit_bytes", smallest, source)


def _cpu_quota(machine: Machine) -> Fact:
    """CPUs of time per period that the cgroups allow; "unlimited" without a quota."""
    quotas = []
    for folder in _cgroup_folders(machine, "cpu"):
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
    """RLIMIT_MEMLOCK. It does not limit cuMemHostAlloc (the driver pins), but it limits mlock and RDMA."""
    path = "/proc/self/limits"
    reading = machine.read(path)
    for line in (reading.text or "").splitlines():
        if line.startswith("Max locked memory"):
            limit = Reading(line.split()[3], path)
            return fact("locked_memory_limit_bytes", limit, lambda text: text if text == "unlimited" else int(text))
    return unknown("locked_memory_limit_bytes", reading.reason or "no such line", path)


DMI = "/sys/class/dmi/id"
# DMI vendor strings and their hypervisors, from systemd-detect-virt's table (src/basic/virt.c). The first match counts,
# so clouds come before the hypervisor that they run on.
DMI_VENDORS = {
    "Amazon EC2": "amazon", "Google Compute Engine": "google", "QEMU": "qemu", "KVM": "kvm", "OpenStack": "kvm",
    "VMware": "vmware", "VMW": "vmware", "innotek GmbH": "virtualbox", "VirtualBox": "virtualbox", "Xen": "xen",
    "Bochs": "bochs", "Parallels": "parallels", "BHYVE": "bhyve", "Hyper-V": "microsoft",
    "Virtual Machine": "microsoft", "Apple Virtualization": "apple",
}  # fmt: skip
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
    source = "/proc/self/cgroup, /proc/1/cgroup, /.dockerenv, /run/.containerenv"
    return (
        _virtualization(machine),
        stated(
            "container", (container_name(machine) or "none") if machine.exists("/proc") else None, source, "no /proc"
        ),
        stated("wsl", is_wsl(machine) if machine.exists("/proc/version") else None, "/proc/version", "no such file"),
    )


def is_wsl(machine: Machine) -> bool:
    """True under the Windows Subsystem for Linux, whose kernel version names Microsoft."""
    return "microsoft" in (machine.read("/proc/version").text or "").lower()


def container_name(machine: Machine) -> str | None:
    """The kind of container that this process is in: "docker", "gvisor", …; None if nothing indicates a container."""
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
    flags = (labelled(machine.read("/proc/cpuinfo").text, "flags") or "").split()
    if flags and "hypervisor" not in flags:
        # x86 only. Asked before DMI, which says "Amazon EC2" on that cloud's bare-metal machines too.
        return known("virtualization", "none", "/proc/cpuinfo flags")
    xen = machine.read("/sys/hypervisor/type")
    if xen.text:
        return known("virtualization", xen.text, xen.source)
    for file in ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version"):
        reading = machine.read(f"{DMI}/{file}")
        for mark, name in DMI_VENDORS.items():
            if reading.text and reading.text.startswith(mark):
                return known("virtualization", name, reading.source)
    if flags:
        return known("virtualization", "a hypervisor of unknown kind", "/proc/cpuinfo flags")
    if machine.exists(f"{DMI}/sys_vendor"):
        return known("virtualization", "none", DMI)
    return unknown("virtualization", "neither processor flags nor DMI say", DMI)


# How much host memory this process may take now without being killed for it, and what limits it.

# Left to other processes and the kernel: a share of the whole, and at least SPARED_BYTES.
SPARED_SHARE = 16
SPARED_BYTES = 64 << 20
# memory.high does not kill, but it slows a process above it so much that its measurements mean nothing.
LIMIT_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")
# Page cache that was not used lately is reclaimed before anything is killed. The first name is of cgroup version 1
# (which counts subfolders separately), the second of version 2.
GIVEN_BACK = ("total_inactive_file", "inactive_file")
STEP_BYTES = 256 << 20
LONGEST_WAIT_S = 3.0
LONGEST_FILL_S = 15.0  # far shorter than the time after which a silent worker is ended


class Room(NamedTuple):
    """Bytes that may be taken, and what sets that limit."""

    bytes: int
    source: str


def host_room(machine: Machine | None = None) -> Room:
    """The smaller of the machine's available memory and what the cgroups leave, each less a reserve for others.

    RLIMIT_MEMLOCK is ignored: the driver pins pages without it (os_lock_user_pages of NVIDIA's open kernel modules), so
    that its common limit of a few MiB would refuse what works. If a driver refuses, its own error is reported.
    """
    here = machine or Machine()
    return min(_available(here), _left_by_cgroups(here))


def require_room(size_bytes: int, what: str, machine: Machine | None = None) -> None:
    """Raise Skip if that much host memory may not be taken; the text says how much may be taken, and what limits it.

    Some virtual machines start small and get more memory as they fill it. There, memory beyond MemAvailable is tried:
    allocated step by step while each step becomes available, then released.
    """
    here = machine or Machine()
    room = host_room(here)
    if size_bytes <= room.bytes:
        return
    virtual = {fact.name: fact.value for fact in virtualization_facts(here)}["virtualization"]
    if size_bytes <= _left_by_cgroups(here).bytes and virtual not in (None, "none", "wsl"):
        fill(size_bytes, lambda: _available(here).bytes)
        room = host_room(here)
    if size_bytes > room.bytes:
        may = about_size(room.bytes) if room.bytes else "none"
        raise Skip(f"{size(size_bytes)} of {what} asked, {may} may be taken ({room.source})")


def fill(size_bytes: int, available: Callable[[], int], longest_wait_s: float = LONGEST_WAIT_S) -> int:
    """Allocate memory in steps, each once ``available()`` covers it, then release all; returns the bytes allocated.

    Stops at the first step that the kernel refuses or that is not available within ``longest_wait_s``, and after
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
        time.sleep(0.05)
    return True


def _available(machine: Machine) -> Room:
    total, available = _meminfo_bytes(machine, "MemTotal"), _meminfo_bytes(machine, "MemAvailable")
    if total is None or available is None:
        return Room(NO_LIMIT_BYTES, f"no limit is known: {MEMINFO} does not say")
    spared = max(total // SPARED_SHARE, SPARED_BYTES)
    return Room(max(available - spared, 0), f"MemAvailable of {MEMINFO} less {about_size(spared)}")


def _left_by_cgroups(machine: Machine) -> Room:
    """The least that any cgroup of this process leaves; a limit applies to its folder and all below."""
    rooms = [Room(NO_LIMIT_BYTES, "no cgroup limit")]
    for folder in _cgroup_folders(machine, "memory"):
        for file in LIMIT_FILES:
            limit = _number(machine, f"{folder}/{file}")
            if limit is None or limit >= NO_LIMIT_BYTES:
                continue
            spared = max(limit // SPARED_SHARE, SPARED_BYTES)
            left = limit - _used(machine, folder) - spared
            words = f"limit of {about_size(limit)} in {folder}/{file} less what is in use and {about_size(spared)}"
            rooms.append(Room(max(left, 0), words))
    return min(rooms)


def _used(machine: Machine, folder: str) -> int:
    """Bytes that a cgroup uses, without the page cache that it gives back first."""
    files = ("memory.current", "memory.usage_in_bytes")
    used = next(filter(None, (_number(machine, f"{folder}/{file}") for file in files)), 0)
    statistics = machine.read(f"{folder}/memory.stat").text
    cached = (labelled(statistics, name, " ") or "" for name in GIVEN_BACK)
    return max(used - next((int(text) for text in cached if text.isdigit()), 0), 0)


def _number(machine: Machine, path: str) -> int | None:
    text = machine.read(path).text or ""
    return int(text) if text.isdigit() else None

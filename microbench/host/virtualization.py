"""Facts about what lies between this system and the hardware: hypervisor, container, WSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from microbench.host.files import Machine, known, labelled, unknown
from microbench.model import Fact

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

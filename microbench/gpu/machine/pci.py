"""A GPU's place on the PCIe bus, from sysfs: its link, the bridges up to the root port, its NUMA node."""

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from microbench.core.model import Fact, LinkInfo, link_rate
from microbench.gpu.machine.query import Answer
from microbench.host.files import Machine, known, stated, unknown, why_unreadable

DEVICES = "/sys/bus/pci/devices"
BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
# PCI Express base specification: transfer rate in GT/s of each generation.
GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6, "128": 7}
NOT_SHOWN = "sysfs does not show this GPU"
# Red Hat and VMware, whose ports exist only in software.
EMULATED_VENDORS = ("0x1b36", "0x15ad")
# The first six lines of the file ``resource`` are the device's own address windows (base address registers).
OWN_WINDOWS = 6

# Offsets and bits of configuration space, from linux/pci_regs.h.
CAPABILITY_POINTER = 0x34
FIRST_CAPABILITY = 0x40
EXPRESS_CAPABILITY = 0x10
EXPRESS_FLAGS, EXPRESS_DEVICE_CONTROL, EXPRESS_LINK_CONTROL = 0x02, 0x08, 0x10
RELAXED_ORDERING, EXTENDED_TAGS, COMPLETION_BOUNDARY = 0x0010, 0x0100, 0x0008
EXTENDED_SPACE = 0x100
ACCESS_CONTROL_CAPABILITY, ACCESS_CONTROL = 0x000D, 0x06
# ACS request redirect and upstream forwarding: either sends a peer's packets up to the root port.
REDIRECTING = 0x0004 | 0x0010
# Without root the kernel shows only the first 64 bytes, 128 of a CardBus bridge.
SHOWN_TO_ALL_BYTES = 128
NEEDS_ROOT = "the kernel shows configuration space beyond byte 64 to root only"
NO_EXTENDED_SPACE = "only 256 bytes of configuration space are shown"
SILENT = "the device answers with ones only: powered down, or gone"

PortKind = Literal[
    "endpoint", "integrated endpoint", "root port", "switch upstream port", "switch downstream port", "bridge"
]
PORT_KINDS: dict[int, PortKind] = {
    0x0: "endpoint",
    0x1: "endpoint",
    0x4: "root port",
    0x5: "switch upstream port",
    0x6: "switch downstream port",
    0x9: "integrated endpoint",
}


class ExpressControl(NamedTuple):
    """A device's PCI Express capability; ``reason`` says why it could not be read.

    An integrated endpoint has no link and so no ``read_completion_boundary_bytes``.
    """

    kind: PortKind | None = None
    max_payload_bytes: int | None = None
    max_read_request_bytes: int | None = None
    read_completion_boundary_bytes: int | None = None
    relaxed_ordering: bool | None = None
    extended_tags: bool | None = None
    reason: str | None = None


def read_control(config: Path) -> ExpressControl:
    """Port kind, packet sizes and ordering from a device's configuration space (sysfs file ``config``)."""
    data, reason = _read(config)
    if reason is not None:
        return ExpressControl(reason=reason)
    offset = data[CAPABILITY_POINTER] & ~3
    for _ in range(48):  # no more fit; a damaged list may go round in a circle
        if offset < FIRST_CAPABILITY:
            return ExpressControl(reason="not a PCI Express device")
        if len(data) < offset + EXPRESS_LINK_CONTROL + 2:
            return ExpressControl(reason=NEEDS_ROOT)
        if data[offset] == EXPRESS_CAPABILITY:
            return _decoded(data, offset)
        offset = data[offset + 1] & ~3
    return ExpressControl(reason="the capability list has no end")


def read_redirection(config: Path) -> Answer:
    """Whether this port sends traffic between two devices below it up to the root; False if it has no access control
    services (ACS)."""
    data, reason = _read(config)
    if reason is not None:
        return Answer(None, reason)
    if len(data) < EXTENDED_SPACE + 8:
        return Answer(None, NEEDS_ROOT if len(data) <= SHOWN_TO_ALL_BYTES else NO_EXTENDED_SPACE)
    offset = EXTENDED_SPACE
    for _ in range((len(data) - EXTENDED_SPACE) // 8):  # no more fit; a damaged list may go round in a circle
        (header,) = struct.unpack_from("<I", data, offset)
        if header == 0xFFFF_FFFF:
            return Answer(None, SILENT)
        following = header >> 20 & ~3
        if header & 0xFFFF == ACCESS_CONTROL_CAPABILITY:
            (control,) = struct.unpack_from("<H", data, offset + ACCESS_CONTROL)
            return Answer(bool(control & REDIRECTING))
        if not EXTENDED_SPACE <= following <= len(data) - 8:
            return Answer(False)
        offset = following
    return Answer(None, "the list of extended capabilities has no end")


def _read(config: Path) -> tuple[bytes, str | None]:
    """The bytes shown, and the reason if they cannot be used."""
    try:
        data = config.read_bytes()
    except OSError as error:
        return b"", why_unreadable(error)
    if len(data) < FIRST_CAPABILITY:
        return data, "configuration space is not shown"
    return data, SILENT if data[:2] == b"\xff\xff" else None


def _decoded(data: bytes, offset: int) -> ExpressControl:
    """Port kind in bits 7:4 of the flags; payload in bits 7:5 and read request in 14:12 of device control, 128 << n."""
    (flags,) = struct.unpack_from("<H", data, offset + EXPRESS_FLAGS)
    (control,) = struct.unpack_from("<H", data, offset + EXPRESS_DEVICE_CONTROL)
    (link_control,) = struct.unpack_from("<H", data, offset + EXPRESS_LINK_CONTROL)
    kind = PORT_KINDS.get(flags >> 4 & 0xF, "bridge")
    boundary_bytes = 128 if link_control & COMPLETION_BOUNDARY else 64
    return ExpressControl(
        kind=kind,
        max_payload_bytes=128 << (control >> 5 & 7),
        max_read_request_bytes=128 << (control >> 12 & 7),
        read_completion_boundary_bytes=None if kind == "integrated endpoint" else boundary_bytes,
        relaxed_ordering=bool(control & RELAXED_ORDERING),
        extended_tags=bool(control & EXTENDED_TAGS),
    )


class Hop(NamedTuple):
    """One device on the way from the GPU to the root, with the link on its upstream side.

    The link of a root port or downstream port is the one to the device below. ``emulated`` ports belong to a virtual
    machine.
    """

    bus_id: str
    kind: PortKind
    link: LinkInfo
    control: ExpressControl = ExpressControl()
    emulated: bool = False


class Way(NamedTuple):
    """The devices from the GPU up to the root port, and the root's name such as "pci0000:3a".

    It is empty if sysfs does not show the GPU (a container, a vGPU, WSL).
    """

    hops: tuple[Hop, ...] = ()
    root: str | None = None

    @property
    def bridges(self) -> tuple[Hop, ...]:
        return self.hops[1:]

    def flattened(self, integrated: bool | None) -> bool | None:
        """Whether a virtual machine hides the real ports; None if unknown. ``integrated`` is CUDA's answer for the GPU.

        A GPU that is not part of its CPU has a port above it. If it is directly on the root bus, a hypervisor put it
        there; an emulated port hides the real ones. An integrated endpoint proves nothing, because QEMU makes every
        device that it puts there look like one.
        """
        if not self.hops:
            return None
        if self.bridges:
            return any(hop.emulated for hop in self.bridges)
        if integrated is not None:
            return not integrated
        return None if self.hops[0].control.kind in (None, "integrated endpoint") else True

    @property
    def switches(self) -> int | None:
        """The number of switches; None if a bridge of another kind is on the way.

        Reading the kinds of ports needs root. Without it the ports are counted: a switch has two on the way.
        """
        between = [hop.control.kind for hop in self.hops[1:-1]]
        if all(between):
            whole = all(str(kind).startswith("switch") for kind in between)
            return between.count("switch upstream port") if whole else None
        return len(between) // 2 if len(between) % 2 == 0 else None


def sysfs_bus_id(bus_id: str) -> str:
    """A bus id in the spelling of sysfs: ``00000000:3B:00.0`` (NVML) and ``3b:00.0`` become ``0000:3b:00.0``.

    Raises ValueError if it is not a bus id.
    """
    match = BUS_ID.fullmatch(bus_id.strip().lower())
    if match is None:
        raise ValueError(f"not a PCI bus id: {bus_id!r}")
    domain, rest = match.groups()
    return f"{int(domain or '0', 16):04x}:{rest}"


def same_device(first: str | None, second: str | None) -> bool:
    """Whether two bus ids in any spelling name one device; False if one is not a bus id."""
    try:
        return sysfs_bus_id(first or "") == sysfs_bus_id(second or "")
    except ValueError:
        return False


def folder_of(bus_id: str | None, root: Path = Path("/")) -> Path | None:
    """The device's real folder, whose path shows its place on the bus; None if sysfs does not show it."""
    try:
        return Machine(root).at(f"{DEVICES}/{sysfs_bus_id(bus_id or '')}").resolve(strict=True)
    except (OSError, ValueError):
        return None


def way_to_root(bus_id: str | None, root: Path = Path("/")) -> Way:
    """The way from a GPU to the root of its bus; empty if sysfs does not show it."""
    folder = folder_of(bus_id, root)
    if folder is None:
        return Way()
    hops: list[Hop] = []
    while is_bus_id(folder.name):
        control = read_control(folder / "config")
        above_is_root = not is_bus_id(folder.parent.name)
        kind = control.kind or ("endpoint" if not hops else "root port" if above_is_root else "bridge")
        emulated = Machine(folder).read("vendor").text in EMULATED_VENDORS
        hops.append(Hop(folder.name, kind, _link(folder, control), control, emulated))
        folder = folder.parent
    return Way(tuple(hops), folder.name)


def narrowest(bridges: Sequence[Hop]) -> Hop | None:
    """The port with the slowest link at full speed; None if no link is known."""
    return min((hop for hop in bridges if raw_rate(hop.link)), key=lambda hop: raw_rate(hop.link), default=None)


def raw_rate(link: LinkInfo) -> float:
    """Bytes a second and direction at the link's full speed, packet headers included; 0 if unknown."""
    return link_rate(link) or 0.0


def describe_link(bus_id: str, root: Path = Path("/")) -> LinkInfo:
    """The GPU's own link; every field is None if sysfs does not show the GPU. Never raises."""
    hops = way_to_root(bus_id, root).hops
    return hops[0].link if hops else LinkInfo()


def numa_node(bus_id: str | None, root: Path = Path("/")) -> int | None:
    """The device's NUMA node; None if the firmware does not say (sysfs shows -1)."""
    folder = folder_of(bus_id, root)
    text = Machine(folder).read("numa_node").text if folder else None
    return int(text) if text and text.isdigit() else None


def largest_window_bytes(bus_id: str | None, root: Path = Path("/")) -> int | None:
    """The largest window into the device's memory, which is BAR1 of an NVIDIA GPU; None if it is not shown.

    Each line of the file ``resource`` is first address, last address and flags in hexadecimal; zeros mean none.
    """
    folder = folder_of(bus_id, root)
    lines = (Machine(folder).read("resource").text or "").splitlines() if folder else []
    try:
        windows = [[int(word, 16) for word in line.split()[:2]] for line in lines[:OWN_WINDOWS]]
        return max((last - first + 1 for first, last in windows if last), default=None)
    except ValueError:
        return None


def link_facts(bus_id: str, root: Path = Path("/"), prefix: str = "") -> tuple[Fact, ...]:
    """The path, its switches, payload sizes and NUMA node, each with a reason if unknown.

    ``prefix`` distinguishes the GPUs of a machine ("gpu0_").
    """
    way = way_to_root(bus_id, root)
    source = f"{DEVICES}/{bus_id}"
    if not way.hops:
        return (unknown(f"{prefix}pcie_path", NOT_SHOWN, source),)
    link, reason = way.hops[0].link, way.hops[0].control.reason or "not set"
    return (
        known(f"{prefix}pcie_path", " - ".join(f"{hop.bus_id} {hop.kind}" for hop in way.hops), source),
        stated(f"{prefix}pcie_switches", way.switches, source, "a bridge of another kind is on the way"),
        stated(f"{prefix}pcie_max_payload_bytes", link.max_payload_bytes, f"{source}/config", reason),
        stated(f"{prefix}pcie_max_read_request_bytes", link.max_read_request_bytes, f"{source}/config", reason),
        stated(f"{prefix}numa_node", numa_node(bus_id, root), f"{source}/numa_node", "the firmware does not say"),
    )


def is_bus_id(name: str) -> bool:
    """True for ``0000:3b:00.0``; the folder above a root port is ``pci0000:3a``."""
    return BUS_ID.fullmatch(name) is not None


def _link(folder: Path, control: ExpressControl) -> LinkInfo:
    machine = Machine(folder)
    return LinkInfo(
        generation_now=_generation(machine.read("current_link_speed").text),
        generation_max=_generation(machine.read("max_link_speed").text),
        lanes_now=_lanes(machine.read("current_link_width").text),
        lanes_max=_lanes(machine.read("max_link_width").text),
        max_payload_bytes=control.max_payload_bytes,
        max_read_request_bytes=control.max_read_request_bytes,
    )


def _generation(text: str | None) -> int | None:
    """The generation of a speed such as ``32.0 GT/s PCIe`` or ``8 GT/s``; None for ``Unknown``."""
    return GENERATIONS.get((text or "").split(" ")[0].removesuffix(".0"))


def _lanes(text: str | None) -> int | None:
    """The lanes of a width. A hidden width reads 0 or 63, or 255 if only one byte of it is passed on."""
    lanes = int(text) if text and text.isdigit() else 0
    return lanes if 0 < lanes <= 32 else None

"""What sysfs says of a GPU's place on the PCIe bus: its link, the bridges up to the root port, its NUMA node."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Literal, NamedTuple

from microbench.host.files import Machine, known, stated, unknown, why_unreadable
from microbench.model import Fact, LinkInfo

DEVICES = "/sys/bus/pci/devices"
BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
# PCI Express base specification: transfer rate in GT/s of each generation.
GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6, "128": 7}
# Configuration space (offsets from linux/pci_regs.h). Without root the kernel shows the first 64 bytes only.
CAPABILITY_POINTER = 0x34
FIRST_CAPABILITY = 0x40
EXPRESS_CAPABILITY = 0x10
EXPRESS_FLAGS, EXPRESS_DEVICE_CONTROL = 2, 8
NEEDS_ROOT = "the kernel shows configuration space beyond byte 64 to root only"

HopKind = Literal["endpoint", "root port", "switch upstream port", "switch downstream port", "bridge"]
PORT_KINDS: dict[int, HopKind] = {
    0x0: "endpoint",
    0x1: "endpoint",
    0x4: "root port",
    0x5: "switch upstream port",
    0x6: "switch downstream port",
}


class Hop(NamedTuple):
    """One device on the way from the GPU to the root: the link is the one on its upstream side.

    A root port's and a downstream port's link is the one to the device below.
    """

    bus_id: str
    kind: HopKind
    link: LinkInfo


class ExpressControl(NamedTuple):
    """What the PCI Express capability in configuration space says; ``reason`` when it could not be read."""

    kind: HopKind | None = None
    max_payload_bytes: int | None = None
    max_read_request_bytes: int | None = None
    reason: str | None = None


def sysfs_bus_id(bus_id: str) -> str:
    """A bus id as sysfs spells it: ``00000000:3B:00.0`` (NVML) and ``3b:00.0`` are ``0000:3b:00.0``.

    Raises ValueError for what is no bus id.
    """
    match = BUS_ID.fullmatch(bus_id.strip().lower())
    if match is None:
        raise ValueError(f"not a PCI bus id: {bus_id!r}")
    domain, rest = match.groups()
    return f"{int(domain or '0', 16):04x}:{rest}"


def path_to_root(bus_id: str, root: Path = Path("/")) -> tuple[Hop, ...]:
    """The GPU first, the root port last; empty when sysfs does not show the GPU (a container, a vGPU, WSL)."""
    machine = Machine(root)
    try:
        folder = machine.at(f"{DEVICES}/{sysfs_bus_id(bus_id)}").resolve(strict=True)
    except (OSError, ValueError):
        return ()
    hops: list[Hop] = []
    while _is_bus_id(folder.name):
        control = read_control(folder / "config")
        above_is_root = not _is_bus_id(folder.parent.name)
        kind = control.kind or ("endpoint" if not hops else "root port" if above_is_root else "bridge")
        hops.append(Hop(folder.name, kind, _link(folder, control)))
        folder = folder.parent
    return tuple(hops)


def describe_link(bus_id: str, root: Path = Path("/")) -> LinkInfo:
    """The GPU's own link; every field None when sysfs does not show the GPU. Never raises."""
    hops = path_to_root(bus_id, root)
    return hops[0].link if hops else LinkInfo()


def numa_node(bus_id: str, root: Path = Path("/")) -> int | None:
    """The NUMA node the GPU hangs on; None when the firmware does not say (sysfs shows -1)."""
    try:
        text = Machine(root).read(f"{DEVICES}/{sysfs_bus_id(bus_id)}/numa_node").text or ""
    except ValueError:
        return None
    return int(text) if text.isdigit() else None


def link_facts(bus_id: str, root: Path = Path("/"), prefix: str = "") -> tuple[Fact, ...]:
    """What has no place in LinkInfo, or is unknown and why: the path, its switches, payload sizes, NUMA node.

    ``prefix`` tells the GPUs of one machine apart ("gpu0_").
    """
    hops = path_to_root(bus_id, root)
    source = f"{DEVICES}/{bus_id}"
    if not hops:
        return (unknown(f"{prefix}pcie_path", "sysfs does not show this GPU", source),)
    link = hops[0].link
    reason = read_control(Machine(root).at(f"{DEVICES}/{hops[0].bus_id}/config")).reason or "not set"
    return (
        known(f"{prefix}pcie_path", " - ".join(f"{hop.bus_id} {hop.kind}" for hop in hops), source),
        known(f"{prefix}pcie_switches", sum(hop.kind == "switch upstream port" for hop in hops), source)
        if all(hop.kind != "bridge" for hop in hops)
        else unknown(f"{prefix}pcie_switches", reason, source),
        stated(f"{prefix}pcie_max_payload_bytes", link.max_payload_bytes, f"{source}/config", reason),
        stated(f"{prefix}pcie_max_read_request_bytes", link.max_read_request_bytes, f"{source}/config", reason),
        stated(f"{prefix}numa_node", numa_node(bus_id, root), f"{source}/numa_node", "the firmware does not say"),
    )


def read_control(config: Path) -> ExpressControl:
    """The port's kind and packet sizes from a device's configuration space (sysfs file ``config``)."""
    try:
        data = config.read_bytes()
    except OSError as error:
        return ExpressControl(reason=why_unreadable(error))
    if len(data) < FIRST_CAPABILITY:
        return ExpressControl(reason="configuration space is not shown")
    offset = data[CAPABILITY_POINTER] & ~3
    for _ in range(48):  # no more fit; a damaged list may go round in a circle
        if offset < FIRST_CAPABILITY:
            return ExpressControl(reason="not a PCI Express device")
        if len(data) < offset + EXPRESS_DEVICE_CONTROL + 2:
            return ExpressControl(reason=NEEDS_ROOT)
        if data[offset] == EXPRESS_CAPABILITY:
            return _decoded(data, offset)
        offset = data[offset + 1] & ~3
    return ExpressControl(reason="the capability list has no end")


def _decoded(data: bytes, offset: int) -> ExpressControl:
    """Port kind in bits 7:4 of the flags; payload in bits 7:5 and read request in 14:12 of device control, 128 << n."""
    (flags,) = struct.unpack_from("<H", data, offset + EXPRESS_FLAGS)
    (control,) = struct.unpack_from("<H", data, offset + EXPRESS_DEVICE_CONTROL)
    kind = PORT_KINDS.get(flags >> 4 & 0xF, "bridge")
    return ExpressControl(kind, 128 << (control >> 5 & 7), 128 << (control >> 12 & 7))


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
    """Of a speed such as ``32.0 GT/s PCIe`` or ``8 GT/s``; None for ``Unknown``."""
    return GENERATIONS.get((text or "").split(" ")[0].removesuffix(".0"))


def _lanes(text: str | None) -> int | None:
    """Of a width; a hidden one reads 0 or 63, or 255 where only the byte is passed on."""
    lanes = int(text) if text and text.isdigit() else 0
    return lanes if 0 < lanes <= 32 else None


def _is_bus_id(name: str) -> bool:
    """True for ``0000:3b:00.0``; the folder above a root port is ``pci0000:3a``."""
    return BUS_ID.fullmatch(name) is not None

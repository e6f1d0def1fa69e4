"""PCI configuration space: what kind of port a device is, its packet sizes and ordering, whether it redirects peers.

Offsets and bits are those of linux/pci_regs.h.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal, NamedTuple

from microbench.host.files import why_unreadable

CAPABILITY_POINTER = 0x34
FIRST_CAPABILITY = 0x40
EXPRESS_CAPABILITY = 0x10
EXPRESS_FLAGS, EXPRESS_DEVICE_CONTROL, EXPRESS_LINK_CONTROL = 0x02, 0x08, 0x10
RELAXED_ORDERING, EXTENDED_TAGS, COMPLETION_BOUNDARY = 0x0010, 0x0100, 0x0008
EXTENDED_SPACE = 0x100
ACCESS_CONTROL_CAPABILITY, ACCESS_CONTROL = 0x000D, 0x06
# ACS request redirect and upstream forwarding: either sends a peer's packets up to the root port.
REDIRECTING = 0x0004 | 0x0010
# Without root the kernel shows the first 64 bytes only, of a CardBus bridge 128.
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
    """What the PCI Express capability says; ``reason`` when it could not be read.

    An integrated endpoint has no link, so no ``read_completion_boundary_bytes``.
    """

    kind: PortKind | None = None
    max_payload_bytes: int | None = None
    max_read_request_bytes: int | None = None
    read_completion_boundary_bytes: int | None = None
    relaxed_ordering: bool | None = None
    extended_tags: bool | None = None
    reason: str | None = None


class Redirection(NamedTuple):
    """Whether a port sends what one device below it writes to another up to the root (ACS); None and why."""

    value: bool | None
    reason: str | None = None


def read_control(config: Path) -> ExpressControl:
    """The port's kind, packet sizes and ordering from a device's configuration space (sysfs file ``config``)."""
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


def read_redirection(config: Path) -> Redirection:
    """Whether this port redirects peer traffic: False as well where it has no access control services."""
    data, reason = _read(config)
    if reason is not None:
        return Redirection(None, reason)
    if len(data) < EXTENDED_SPACE + 8:
        return Redirection(None, NEEDS_ROOT if len(data) <= SHOWN_TO_ALL_BYTES else NO_EXTENDED_SPACE)
    offset = EXTENDED_SPACE
    for _ in range((len(data) - EXTENDED_SPACE) // 8):  # no more fit; a damaged list may go round in a circle
        (header,) = struct.unpack_from("<I", data, offset)
        if header == 0xFFFF_FFFF:
            return Redirection(None, SILENT)
        following = header >> 20 & ~3
        if header & 0xFFFF == ACCESS_CONTROL_CAPABILITY:
            (control,) = struct.unpack_from("<H", data, offset + ACCESS_CONTROL)
            return Redirection(bool(control & REDIRECTING))
        if not EXTENDED_SPACE <= following <= len(data) - 8:
            return Redirection(False)
        offset = following
    return Redirection(None, "the list of extended capabilities has no end")


def _read(config: Path) -> tuple[bytes, str | None]:
    """The bytes shown, and why they are of no use."""
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

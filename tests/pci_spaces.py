"""Makes PCI configuration spaces and puts them into the recorded trees, whose text files cannot hold binary data."""

import struct
from collections.abc import Sequence
from pathlib import Path

ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, TO_PCI, INTEGRATED = 0, 4, 5, 6, 7, 9
REQUEST_REDIRECT, COMPLETION_REDIRECT, UPSTREAM_FORWARDING = 0x04, 0x08, 0x10
ERROR_REPORTING, ACCESS_CONTROL = 0x0001, 0x000D


def configuration_space(
    port: int,
    payload_code: int = 1,
    read_request_code: int = 5,
    *,
    relaxed: bool = True,
    tags: bool = True,
    wide_boundary: bool = False,
    access_control: int | None = None,
    visible: int = 4096,
) -> bytes:
    """A type 0 header, power management at 0x60, PCI Express at 0x78, error reporting at 0x100, ACS at 0x148.

    ``access_control`` is the ACS control register, None for a port without. ``visible`` bytes are shown.
    """
    space = bytearray(4096)
    space[0:2] = b"\xde\x10"
    space[0x34] = 0x60
    space[0x60:0x62] = b"\x01\x78"
    space[0x78:0x7A] = b"\x10\x00"
    struct.pack_into("<H", space, 0x7A, 0x0002 | port << 4)
    device_control = 0x080F | relaxed << 4 | payload_code << 5 | tags << 8 | read_request_code << 12
    struct.pack_into("<H", space, 0x80, device_control)
    struct.pack_into("<H", space, 0x88, 0x0040 | wide_boundary << 3)
    struct.pack_into("<I", space, 0x100, ERROR_REPORTING | 2 << 16 | (0x148 << 20 if access_control is not None else 0))
    if access_control is not None:
        struct.pack_into("<I", space, 0x148, ACCESS_CONTROL | 1 << 16)
        struct.pack_into("<HH", space, 0x14C, 0x005F, access_control)
    return bytes(space[:visible])


def put_spaces(gpu_folder: Path, spaces: Sequence[bytes]) -> None:
    """Configuration spaces of a GPU and of what lies above it, the GPU's first."""
    folder = gpu_folder
    for space in spaces:
        (folder / "config").write_bytes(space)
        folder = folder.parent

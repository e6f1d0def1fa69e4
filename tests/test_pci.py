"""The PCIe path, link and packet sizes from recorded sysfs trees and from configuration spaces made here."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from recorded_trees import unpack

from microbench.gpu.pci import (
    NEEDS_ROOT,
    describe_link,
    link_facts,
    numa_node,
    path_to_root,
    read_control,
    sysfs_bus_id,
)
from microbench.model import LinkInfo

GPU = "0000:43:00.0"
PATH = "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0"
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM = 0, 4, 5, 6


def configuration_space(port: int, payload_code: int, read_request_code: int, visible: int = 256) -> bytes:
    """A type 0 header, a power-management capability at 0x60 and the PCI Express capability at 0x78."""
    space = bytearray(256)
    space[0x34] = 0x60
    space[0x60:0x62] = b"\x01\x78"
    space[0x78:0x7A] = b"\x10\x00"
    struct.pack_into("<H", space, 0x7A, 0x0002 | port << 4)
    struct.pack_into("<H", space, 0x80, 0x091F & ~0x70E0 | payload_code << 5 | read_request_code << 12)
    return bytes(space[:visible])


@pytest.fixture
def server(tmp_path: Path) -> Path:
    root = unpack("server", tmp_path)
    folder = root / PATH
    for port, payload in ((ENDPOINT, 1), (DOWNSTREAM, 1), (UPSTREAM, 1), (ROOT_PORT, 2)):
        (folder / "config").write_bytes(configuration_space(port, payload, 5))
        folder = folder.parent
    return root


@pytest.mark.parametrize(
    ("written", "sysfs"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("10000:E1:00.0", "10000:e1:00.0"),
    ],
)
def test_bus_ids(written: str, sysfs: str) -> None:
    assert sysfs_bus_id(written) == sysfs


@pytest.mark.parametrize("text", ["", "GPU-1234", "../../etc", "0000:3b:00", "zz:00.0"])
def test_what_is_no_bus_id(text: str, server: Path) -> None:
    with pytest.raises(ValueError, match="not a PCI bus id"):
        sysfs_bus_id(text)
    assert describe_link(text, server) == LinkInfo()
    assert numa_node(text, server) is None
    assert link_facts(text, server)[0].reason == "sysfs does not show this GPU"


def test_link_of_the_gpu(server: Path) -> None:
    assert describe_link("00000000:43:00.0", server) == LinkInfo(
        generation_now=1,
        generation_max=5,
        lanes_now=8,
        lanes_max=16,
        max_payload_bytes=256,
        max_read_request_bytes=4096,
    )
    assert numa_node(GPU, server) == 1


def test_path_to_the_root_port(server: Path) -> None:
    hops = path_to_root(GPU, server)
    assert [(hop.bus_id, hop.kind) for hop in hops] == [
        ("0000:43:00.0", "endpoint"),
        ("0000:42:00.0", "switch downstream port"),
        ("0000:41:00.0", "switch upstream port"),
        ("0000:40:01.1", "root port"),
    ]
    assert hops[-1].link.max_payload_bytes == 512
    assert hops[-1].link.generation_now == 5


def test_facts_of_the_link(server: Path) -> None:
    found = {fact.name: fact for fact in link_facts(GPU, server, prefix="gpu0_")}
    assert found["gpu0_pcie_switches"].value == 1
    assert found["gpu0_numa_node"].value == 1
    assert found["gpu0_pcie_max_payload_bytes"].value == 256
    assert str(found["gpu0_pcie_path"].value).endswith("0000:40:01.1 root port")


def test_without_root_the_packet_sizes_are_unknown_and_say_why(server: Path) -> None:
    folder = server / PATH
    while folder.name.count(":") == 2:
        (folder / "config").write_bytes(configuration_space(ENDPOINT, 1, 5, visible=64))
        folder = folder.parent
    link = describe_link(GPU, server)
    assert (link.max_payload_bytes, link.max_read_request_bytes) == (None, None)
    assert link.generation_max == 5
    assert [hop.kind for hop in path_to_root(GPU, server)] == ["endpoint", "bridge", "bridge", "root port"]
    found = {fact.name: fact for fact in link_facts(GPU, server)}
    assert found["pcie_max_payload_bytes"].reason == NEEDS_ROOT
    assert found["pcie_switches"].reason == NEEDS_ROOT


def test_a_virtual_machine_hides_the_link(tmp_path: Path) -> None:
    root = unpack("virtual_machine", tmp_path)
    link = describe_link("0000:00:04.0", root)
    assert link == LinkInfo(generation_max=4)
    assert numa_node("0000:00:04.0", root) is None
    assert [hop.kind for hop in path_to_root("0000:00:04.0", root)] == ["endpoint"]


def test_a_gpu_that_sysfs_does_not_show(server: Path) -> None:
    assert path_to_root("0000:99:00.0", server) == ()
    assert describe_link("0000:99:00.0", server) == LinkInfo()


@pytest.mark.parametrize(("code", "size"), [(0, 128), (1, 256), (2, 512), (5, 4096)])
def test_packet_size_codes(tmp_path: Path, code: int, size: int) -> None:
    config = tmp_path / "config"
    config.write_bytes(configuration_space(ENDPOINT, code, code))
    assert read_control(config)[1:3] == (size, size)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (b"", "configuration space is not shown"),
        (bytes(256), "not a PCI Express device"),
        (bytes([*bytes(0x34), 0x40, *bytes(11), 0x05, 0x40, *bytes(190)]), "the capability list has no end"),
        (configuration_space(ENDPOINT, 1, 1, visible=0x7C), NEEDS_ROOT),
    ],
)
def test_damaged_configuration_spaces(tmp_path: Path, space: bytes, reason: str) -> None:
    config = tmp_path / "config"
    config.write_bytes(space)
    assert read_control(config).reason == reason


def test_no_configuration_space(tmp_path: Path) -> None:
    assert read_control(tmp_path / "config").reason == "no such file"

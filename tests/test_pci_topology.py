"""How far devices are apart on a recorded bus, and which network devices there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_trees import unpack, write

from microbench.gpu.machine.topology import distance, network_devices

GPU = "0000:1a:00.0"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("0000:1b:00.0", "PIX"),
        ("0000:1c:00.0", "PXB"),
        ("0000:1d:00.0", "PHB"),
        ("0000:27:00.0", "NODE"),
        ("0000:98:00.0", "SYS"),
    ],
)
def test_distances(tmp_path: Path, other: str, words: str) -> None:
    root = unpack("two_switches", tmp_path)
    assert distance(GPU, other, root).value == words
    assert distance(other, GPU, root).value == words


def test_functions_of_one_device_share_its_port(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    assert distance("0000:27:00.0", "0000:27:00.1", root).value == "PIX"


def test_without_nodes_two_roots_are_apart_by_what_nobody_says(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    found = distance(GPU, "0000:a1:00.0", root)
    assert (found.value, found.reason) == (None, "the firmware does not say on which NUMA nodes they are")
    (root / "sys/devices/system/node/node1/cpulist").unlink()
    assert distance(GPU, "0000:a1:00.0", root).value == "NODE"


def test_a_device_that_is_not_shown(tmp_path: Path) -> None:
    found = distance(GPU, "0000:99:00.0", unpack("two_switches", tmp_path))
    assert (found.value, found.reason) == (None, "sysfs does not show both devices")
    assert distance(None, GPU, tmp_path).value is None


def test_network_devices_by_name_without_virtual_functions(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    write(root, "sys/devices/pci0000:97/0000:97:01.0/class", "0x028000")
    assert [(one.name, one.bus_id, one.reason) for one in network_devices(root)] == [
        ("mlx5_0", "0000:1c:00.0", None),
        ("eno1", "0000:1d:00.0", None),
        ("mlx5_1", "0000:27:00.0", None),
        ("0000:97:01.0", "0000:97:01.0", None),
    ]


def test_a_virtio_device_has_a_name_and_no_place(tmp_path: Path) -> None:
    (found,) = network_devices(unpack("flat_machine", tmp_path))
    assert found.name == "eth0"
    assert "virtio" in str(found.reason)

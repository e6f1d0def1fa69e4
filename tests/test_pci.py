"""The PCIe path, link, packet sizes and distances from recorded sysfs trees and configuration spaces made here."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pci_spaces as spaces
import pytest
import snapshots
from recorded_trees import unpack, write

from microbench.core.model import LinkInfo
from microbench.gpu.machine import pci
from microbench.gpu.machine.query import Answer
from microbench.gpu.machine.topology import distance, network_devices

GPU = "0000:43:00.0"
CIRCLE = b"\x01\x00\x02\x10"  # an extended capability that names the first one as the next
PATH = "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    root = unpack("server", tmp_path)
    ports = ((spaces.ENDPOINT, 1), (spaces.DOWNSTREAM, 1), (spaces.UPSTREAM, 1), (spaces.ROOT_PORT, 2))
    spaces.put_spaces(root / PATH, [spaces.configuration_space(port, payload) for port, payload in ports])
    return root


def test_bus_ids() -> None:
    assert {pci.sysfs_bus_id(text) for text in ("00000000:3B:00.0", "0000:3b:00.0", "3b:00.0")} == {"0000:3b:00.0"}
    assert pci.sysfs_bus_id("10000:E1:00.0") == "10000:e1:00.0"


@pytest.mark.parametrize("text", ["", "GPU-1234", "../../etc", "0000:3b:00", "zz:00.0"])
def test_what_is_no_bus_id(text: str, server: Path) -> None:
    with pytest.raises(ValueError, match="not a PCI bus id"):
        pci.sysfs_bus_id(text)
    assert pci.describe_link(text, server) == LinkInfo()
    assert pci.numa_node(text, server) is None
    assert pci.link_facts(text, server)[0].reason == "sysfs does not show this GPU"
    assert pci.way_to_root("0000:99:00.0", server) == pci.Way()


def test_the_way_from_a_gpu_to_the_root_port(server: Path) -> None:
    snapshots.same_facts("link-server", pci.link_facts(GPU, server, prefix="gpu0_"))
    hops = pci.way_to_root("00000000:43:00.0", server).hops
    assert pci.describe_link(GPU, server) == hops[0].link == LinkInfo(1, 5, 8, 16, 256, 4096)
    assert (hops[-1].link.max_payload_bytes, hops[-1].link.generation_now) == (512, 5)


def test_without_root_the_packet_sizes_are_unknown_and_say_why(server: Path) -> None:
    spaces.put_spaces(server / PATH, [spaces.configuration_space(spaces.ENDPOINT, visible=64)] * 4)
    link = pci.describe_link(GPU, server)
    assert (link.max_payload_bytes, link.max_read_request_bytes) == (None, None)
    assert link.generation_max == 5
    assert [hop.kind for hop in pci.way_to_root(GPU, server).hops] == ["endpoint", "bridge", "bridge", "root port"]
    found = {fact.name: fact for fact in pci.link_facts(GPU, server)}
    assert found["pcie_max_payload_bytes"].reason == pci.NEEDS_ROOT
    assert found["pcie_switches"].value == 1


def test_a_virtual_machine_hides_the_link(tmp_path: Path) -> None:
    root = unpack("virtual_machine", tmp_path)
    link = pci.describe_link("0000:00:04.0", root)
    assert link == LinkInfo(generation_max=4)
    assert pci.numa_node("0000:00:04.0", root) is None
    assert [hop.kind for hop in pci.way_to_root("0000:00:04.0", root).hops] == ["endpoint"]


def config(folder: Path, space: bytes) -> Path:
    (folder / "config").write_bytes(space)
    return folder / "config"


@pytest.mark.parametrize(("code", "size"), [(0, 128), (1, 256), (2, 512), (5, 4096)])
def test_packet_size_codes(tmp_path: Path, code: int, size: int) -> None:
    assert pci.read_control(config(tmp_path, spaces.configuration_space(spaces.ENDPOINT, code, code)))[1:3] == (
        size,
        size,
    )


@pytest.mark.parametrize(("space", "expected"), [
    (spaces.configuration_space(spaces.ENDPOINT, wide_boundary=True), (True, True, 128)),
    (spaces.configuration_space(spaces.ENDPOINT, relaxed=False, tags=False), (False, False, 64)),
    (spaces.configuration_space(spaces.INTEGRATED), (True, True, None)),
])  # fmt: skip
def test_ordering_and_boundary(tmp_path: Path, space: bytes, expected: tuple[bool, bool, int | None]) -> None:
    control = pci.read_control(config(tmp_path, space))
    assert (control.relaxed_ordering, control.extended_tags, control.read_completion_boundary_bytes) == expected


BRIDGE = spaces.configuration_space(spaces.DOWNSTREAM)
REDIRECTING = partial(spaces.configuration_space, spaces.DOWNSTREAM, access_control=0x1D)


@pytest.mark.parametrize(("read", "space", "reason"), [
    (pci.read_control, b"", "configuration space is not shown"),
    (pci.read_control, bytes(256), "not a PCI Express device"),
    (pci.read_control, bytes([*bytes(0x34), 0x40, *bytes(11), 0x05, 0x40, *bytes(190)]), "list has no end"),
    (pci.read_control, spaces.configuration_space(spaces.ENDPOINT, visible=0x7C), pci.NEEDS_ROOT),
    (pci.read_control, b"\xff" * 4096, pci.SILENT),
    (pci.read_redirection, REDIRECTING(visible=64), pci.NEEDS_ROOT),
    (pci.read_redirection, REDIRECTING(visible=256), pci.NO_EXTENDED_SPACE),
    (pci.read_redirection, BRIDGE[:256] + b"\xff" * 3840, pci.SILENT),
    (pci.read_redirection, b"\xff" * 4096, pci.SILENT),
    (pci.read_redirection, BRIDGE[:256] + CIRCLE * 960, "the list of extended capabilities has no end"),
])  # fmt: skip
def test_damaged_configuration_spaces(
    tmp_path: Path, read: Callable[[Path], pci.ExpressControl | Answer], space: bytes, reason: str
) -> None:
    assert reason in str(read(config(tmp_path, space)).reason)
    assert read(tmp_path / "none").reason == "no such file"


def test_redirection(tmp_path: Path) -> None:
    redirecting = (spaces.REQUEST_REDIRECT, spaces.UPSTREAM_FORWARDING, 0x1D)
    for control in (None, 0, spaces.COMPLETION_REDIRECT, *redirecting):
        space = spaces.configuration_space(spaces.DOWNSTREAM, access_control=control)
        assert pci.read_redirection(config(tmp_path, space)) == Answer(control in redirecting), control


def test_two_levels_of_switches(tmp_path: Path) -> None:
    way = pci.way_to_root("0000:1A:00.0", unpack("two_switches", tmp_path))
    assert [hop.bus_id[5:] for hop in way.hops] == ["1a:00.0", "19:02.0", "18:00.0", "17:00.0", "16:00.0", "15:01.0"]
    assert (way.root, way.switches, way.flattened(False)) == ("pci0000:15", 2, False)


@pytest.mark.parametrize("vendor", ["0x1b36", "0x15ad"])
def test_what_flattens_a_bus(tmp_path: Path, vendor: str) -> None:
    root = unpack("desktop", tmp_path)
    assert pci.way_to_root("01:00.0", root).flattened(None) is False
    write(root, "sys/devices/pci0000:00/0000:00:01.0/vendor", vendor)
    assert pci.way_to_root("01:00.0", root).flattened(False) is True
    assert pci.Way().flattened(False) is None


def test_an_endpoint_on_the_root_bus_is_flattened_unless_integrated(tmp_path: Path) -> None:
    root = unpack("flat_machine", tmp_path)
    folder = root / "sys/devices/pci0000:00/0000:00:06.0"
    assert pci.way_to_root("0000:00:06.0", root).flattened(True) is False
    assert pci.way_to_root("0000:00:06.0", root).flattened(False) is True
    assert pci.way_to_root("0000:00:06.0", root).flattened(None) is None
    spaces.put_spaces(folder, [spaces.configuration_space(spaces.ENDPOINT)])
    assert pci.way_to_root("0000:00:06.0", root).flattened(None) is True
    spaces.put_spaces(folder, [spaces.configuration_space(spaces.INTEGRATED)])
    assert pci.way_to_root("0000:00:06.0", root).flattened(None) is None


def test_a_bridge_that_is_no_switch_leaves_their_number_unknown(server: Path) -> None:
    (server / PATH).parent.joinpath("config").write_bytes(spaces.configuration_space(spaces.TO_PCI))
    assert pci.way_to_root(GPU, server).switches is None


def test_the_narrowest_bridge(server: Path) -> None:
    bridges = pci.way_to_root(GPU, server).bridges
    write(server, PATH.rsplit("/", 2)[0] + "/max_link_width", "8")
    write(server, PATH.rsplit("/", 1)[0] + "/max_link_speed", "16.0 GT/s PCIe")
    write(server, PATH.rsplit("/", 1)[0] + "/max_link_width", "4")
    found = pci.narrowest(pci.way_to_root(GPU, server).bridges)
    assert found.bus_id == "0000:42:00.0"
    assert pci.narrowest(bridges) == bridges[0]
    assert pci.narrowest(()) is None


def test_the_largest_window(tmp_path: Path) -> None:
    assert pci.largest_window_bytes("1a:00.0", unpack("two_switches", tmp_path)) == 256 << 30
    assert pci.largest_window_bytes("99:00.0", tmp_path) is None
    write(tmp_path, "sys/devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0/resource", "nonsense")
    assert pci.largest_window_bytes("a1:00.0", tmp_path) is None


def test_one_device_in_two_spellings() -> None:
    assert pci.same_device("00000000:1A:00.0", "0000:1a:00.0")
    assert not pci.same_device("0000:1a:00.0", "0000:1b:00.0")
    assert not pci.same_device(None, None)


DEEP = "0000:1a:00.0"


def test_distances(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    for place, words in {"1b": "PIX", "1c": "PXB", "1d": "PHB", "27": "NODE", "98": "SYS"}.items():
        assert distance(DEEP, f"0000:{place}:00.0", root).value == words
        assert distance(f"0000:{place}:00.0", DEEP, root).value == words
    assert distance("0000:27:00.0", "0000:27:00.1", root).value == "PIX", "functions of one device share its port"


def test_without_numa_nodes_the_distance_of_two_roots_is_unknown(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    found = distance(DEEP, "0000:a1:00.0", root)
    assert (found.value, found.reason) == (None, "the firmware does not say on which NUMA nodes they are")
    (root / "sys/devices/system/node/node1/cpulist").unlink()
    assert distance(DEEP, "0000:a1:00.0", root).value == "NODE"


def test_a_device_that_is_not_shown(tmp_path: Path) -> None:
    found = distance(DEEP, "0000:99:00.0", unpack("two_switches", tmp_path))
    assert (found.value, found.reason) == (None, "sysfs does not show both devices")
    assert distance(None, DEEP, tmp_path).value is None


def test_network_devices_by_name_without_virtual_functions(tmp_path: Path) -> None:
    root = unpack("two_switches", tmp_path)
    write(root, "sys/devices/pci0000:97/0000:97:01.0/class", "0x028000")
    assert [(one.name, one.bus_id, one.reason) for one in network_devices(root)] == [
        ("mlx5_0", "0000:1c:00.0", None), ("eno1", "0000:1d:00.0", None), ("mlx5_1", "0000:27:00.0", None),
        ("0000:97:01.0", "0000:97:01.0", None),
    ]  # fmt: skip


def test_a_virtio_device_has_a_name_and_no_place(tmp_path: Path) -> None:
    (found,) = network_devices(unpack("flat_machine", tmp_path))
    assert found.name == "eth0"
    assert "virtio" in str(found.reason)

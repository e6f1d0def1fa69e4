"""The facts of link_state on recorded buses and a stand-in for NVML: right, or unknown and why; never an exception."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import snapshots
from nvml_stand_in import FIELDS, NO_PERMISSION, NOT_SUPPORTED, USUAL, UUID, field_values, library, nvlink_state, refuse
from pci_spaces import DOWNSTREAM, ENDPOINT, INTEGRATED, ROOT_PORT, UPSTREAM, configuration_space, put_spaces
from recorded_trees import unpack, write

from microbench.analysis.limits import PCIE_BOUNDS, ceiling
from microbench.core.model import Fact, GpuInfo
from microbench.gpu.machine.nvml import NvmlGpu, counters_risen, link_counters
from microbench.gpu.machine.pci import NEEDS_ROOT, ExpressControl, describe_link
from microbench.gpu.machine.query import Query
from microbench.gpu.machine.topology import link_facts_now

DEEP = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/0000:19:02.0/0000:1a:00.0"
SLOT = "sys/devices/pci0000:00/0000:00:01.0"
CARD = f"{SLOT}/0000:01:00.0"
OTHERS = ((1, "0000:1b:00.0"), (2, "0000:98:00.0"))
NO_NVLINK = {"nvmlDeviceGetNvLinkState": refuse(NOT_SUPPORTED)}


def gpu(bus_id: str | None, **fields: Any) -> GpuInfo:
    return msgspec.structs.replace(GpuInfo("GPU", UUID, pci_bus_id=bus_id, integrated=False), **fields)


DEEP_GPU = gpu("0000:1A:00.0")
CARD_GPU = gpu("0000:01:00.0")


def nvml(**functions: Any) -> Query:
    return Query(library(**functions), UUID)


def absent() -> Query:
    return nvml(nvmlInit=refuse(9))


def by_name(facts: Iterable[Fact]) -> dict[str, Fact]:
    found = {fact.name: fact for fact in facts}
    for fact in found.values():
        assert (fact.value is None) == (fact.reason is not None), fact
        assert fact.source, fact
    return found


def values(facts: Iterable[Fact]) -> dict[str, Any]:
    return {name: fact.value for name, fact in by_name(facts).items()}


@pytest.fixture
def two_switches(tmp_path: Path) -> Path:
    root = unpack("two_switches", tmp_path)
    ports = (DOWNSTREAM, UPSTREAM, DOWNSTREAM, UPSTREAM, ROOT_PORT)
    spaces = [configuration_space(port, 2, access_control=0) for port in ports]
    put_spaces(root / DEEP, [configuration_space(ENDPOINT, 1, 5, wide_boundary=True), *spaces])
    return root


def test_bare_metal_behind_two_switches(two_switches: Path) -> None:
    snapshots.same_facts("link-two-switches", link_facts_now(DEEP_GPU, nvml(**NO_NVLINK), OTHERS, two_switches))


def test_without_nvml_the_bus_says_who_is_near(two_switches: Path) -> None:
    found = values(link_facts_now(DEEP_GPU, absent(), OTHERS, two_switches))
    assert (found["topology_gpu1"], found["topology_gpu2"]) == ("PIX", "SYS")
    assert (found["generation_gpu_max"], found["nvlinks"], found["c2c"]) == (5, None, None)


@pytest.mark.parametrize("port", range(1, 6))
def test_any_bridge_that_redirects_counts(two_switches: Path, port: int) -> None:
    folder = (two_switches / DEEP).parents[port - 1]
    (folder / "config").write_bytes(configuration_space(DOWNSTREAM, access_control=0x1D))
    (two_switches / DEEP).parents[port % 5].joinpath("config").unlink()
    assert values(link_facts_now(DEEP_GPU, absent(), (), two_switches))["acs"] is True


def test_a_bridge_that_cannot_be_read_leaves_redirection_open(two_switches: Path) -> None:
    (two_switches / DEEP).parent.joinpath("config").write_bytes(configuration_space(DOWNSTREAM, visible=64))
    assert by_name(link_facts_now(DEEP_GPU, absent(), (), two_switches))["acs"].reason == NEEDS_ROOT


def test_a_flat_bus_hides_the_way_and_its_places_say_nothing(tmp_path: Path) -> None:
    root = unpack("flat_machine", tmp_path)
    put_spaces(root / "sys/devices/pci0000:00/0000:00:06.0", [configuration_space(ENDPOINT, visible=256)])
    found = link_facts_now(gpu("00000000:00:06.0"), nvml(), ((1, "00000000:00:07.0"),), root)
    snapshots.same_facts("link-flat-machine", found)
    write(root, "sys/devices/pci0000:00/0000:00:02.0/vendor", "0x15b3")
    found = by_name(link_facts_now(gpu("0000:00:06.0"), nvml(**NO_NVLINK), ((1, "0000:00:07.0"),), root))
    reasons = {found[name].reason for name in ("topology_gpu1", "topology_eth0", "switches", "acs")}
    assert reasons == {"a virtual machine hides the real ports above the GPU"}


FAST, SLOW, TRAINED_DOWN = "32.0 GT/s PCIe", "16.0 GT/s PCIe", "2.5 GT/s PCIe"
KIND = "sys/kernel/iommu_groups/12/type"


def link(folder: str, speed: str, width: str) -> dict[str, str]:
    return {f"{folder}/max_link_speed": speed, f"{folder}/max_link_width": width}


@pytest.mark.parametrize(("files", "expected"), [
    ({}, {"iommu": "off", "resizable_bar": False, "bar1_bytes": 256 << 20}),
    ({f"{SLOT}/vendor": "0x1b36"}, {"virtual_bus": True, "switches": None, "generation_slot_max": None, "hops": 2}),
    ({f"{folder}/current_link_speed": TRAINED_DOWN for folder in (CARD, SLOT)},
     {"generation_now": 1, "lanes_now": 16, "generation_gpu_max": 5, "hop1_generation_now": 1}),
    (link(CARD, SLOW, "8") | link(SLOT, SLOW, "16"),
     {"lanes_gpu_max": 8, "lanes_slot_max": 16, "slot_limit_bus_id": "none"}),
    (link(CARD, SLOW, "16") | link(SLOT, SLOW, "8"),
     {"lanes_gpu_max": 16, "lanes_slot_max": 8, "slot_limit_bus_id": "0000:00:01.0"}),
    (link(CARD, FAST, "16") | link(SLOT, "8.0 GT/s PCIe", "16"), {"slot_limit_bus_id": "0000:00:01.0"}),
])  # fmt: skip
def test_facts_of_a_card_in_a_desktop(tmp_path: Path, files: dict[str, str], expected: dict[str, Any]) -> None:
    root = unpack("desktop", tmp_path)
    for path, text in files.items():
        write(root, path, text)
    # NVML knows what the GPU could do; without it the files decide.
    found = values(link_facts_now(CARD_GPU, absent() if "lanes_gpu_max" in expected else nvml(), (), root))
    assert {name: found[name] for name in expected} == expected


def test_kinds_of_iommu_group(two_switches: Path) -> None:
    for kind, word in (("identity", "passthrough"), ("DMA", "translated"), ("DMA-FQ", "translated"), ("odd", "odd")):
        write(two_switches, KIND, kind)
        assert values(link_facts_now(DEEP_GPU, absent(), (), two_switches))["iommu"] == word
    (two_switches / KIND).unlink()  # an old kernel's
    assert by_name(link_facts_now(DEEP_GPU, absent(), (), two_switches))["iommu"].reason == "no such file"


def test_without_root_what_needs_it_says_so(two_switches: Path) -> None:
    put_spaces(two_switches / DEEP, [configuration_space(ENDPOINT, visible=64)] * 6)
    found = by_name(link_facts_now(DEEP_GPU, nvml(), (), two_switches))
    unknown = {name for name, fact in found.items() if fact.value is None}
    payloads = {f"hop{number}_max_payload_bytes" for number in range(6)}
    assert unknown == payloads | {"acs", *ExpressControl._fields} - {"kind", "reason"}
    assert {found[name].reason for name in unknown} == {NEEDS_ROOT}
    assert found["switches"].value == 2


@pytest.mark.parametrize("bus_id", [None, "0000:99:00.0", "no bus id"])
def test_a_gpu_that_nothing_shows(tmp_path: Path, bus_id: str | None) -> None:
    found = by_name(link_facts_now(gpu(bus_id), absent(), OTHERS, unpack("container", tmp_path)))
    assert {name for name, fact in found.items() if fact.value is not None} == set()
    reason = "sysfs does not show this GPU; NVML does not start: NVML error 9"
    assert found["generation_now"].reason == reason


def everything(reader: Query, root: Path) -> dict[str, Fact]:
    return by_name((*link_facts_now(DEEP_GPU, reader, OTHERS, root), *link_counters("0000:1a:00.0", reader, root)))


def asked(root: Path) -> set[str]:
    called: set[str] = set()

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            called.add(name)
            return function(*arguments)

        return noted

    stand_in = vars(library())
    everything(nvml(**{name: noting(name, stand_in[name]) for name in USUAL}), root)
    return called - {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByUUID"}


@pytest.mark.parametrize("tree", ["container", "two_switches"])
def test_a_refused_call_leaves_all_else_known(tmp_path: Path, tree: str) -> None:
    """NVML refuses one call after the other; sysfs shows some of what it then does not tell."""
    root, lines = unpack(tree, tmp_path), []
    before = everything(nvml(), root)
    for name in sorted(asked(root)):
        after = everything(nvml(**{name: refuse(NO_PERMISSION)}), root)
        assert set(before) == set(after)
        lost = [fact for fact in before if before[fact].value is not None and after[fact].value is None]
        assert all(f"NVML error {NO_PERMISSION}" in str(after[fact].reason) for fact in lost)
        lines.append(f"{name}: {', '.join(lost) or 'nothing'}")
    snapshots.same(f"facts/refused-{tree}", "\n".join(lines))


def test_nvlink_that_cannot_be_asked_for_is_not_taken_for_none(two_switches: Path) -> None:
    for reader in (nvml(nvmlDeviceGetNvLinkState=refuse(NO_PERMISSION)), absent()):
        found = by_name(link_facts_now(DEEP_GPU, reader, OTHERS, two_switches))
        assert "whether NVLink" in found["topology_gpu1"].source
    some_down = nvml(nvmlDeviceGetNvLinkState=lambda handle, link: 0 if link < 2 else nvlink_state(handle, link))
    assert values(link_facts_now(DEEP_GPU, some_down, (), two_switches))["nvlinks"] == 16
    without = by_name(link_facts_now(DEEP_GPU, nvml(**NO_NVLINK), OTHERS, two_switches))
    assert without["topology_gpu1"].source == "NVML"


def test_a_board_cut_into_instances(two_switches: Path) -> None:
    def board_only(name: str) -> Callable[..., Any]:
        function = vars(library())[name]

        def answer(handle: Any, *arguments: Any) -> Any:
            return function(handle, *arguments) if handle == "board" else refuse(NOT_SUPPORTED)()

        return answer

    instance = "MIG-" + UUID.removeprefix("GPU-")
    stand_in = library(
        nvmlDeviceGetHandleByUUID=lambda uuid: "instance" if uuid == instance else refuse(6)(),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda handle: "board",
        **{name: board_only(name) for name in asked(two_switches)
           if name.startswith("nvmlDeviceGet") and "HandleFrom" not in name and "ByPci" not in name},
    )  # fmt: skip
    reader = Query(stand_in, instance)
    others = ((1, "00000000:1A:00.0"), (2, "0000:1b:00.0"))
    found = values((*link_facts_now(DEEP_GPU, reader, others, two_switches), *link_counters(None, reader)))
    assert (found["nvlinks"], found["generation_gpu_max"], found["pcie_replays"]) == (18, 5, 3)
    assert (found["topology_gpu1"], found["topology_gpu2"]) == ("same board", "NV18")


def test_an_integrated_gpu_has_no_verdict_whatever_its_link_claims(tmp_path: Path) -> None:
    root = unpack("flat_machine", tmp_path)
    folder = "sys/devices/pci0000:00/0000:00:06.0"
    for side in ("current", "max"):
        write(root, f"{folder}/{side}_link_speed", "2.5 GT/s PCIe")
        write(root, f"{folder}/{side}_link_width", "1")
    put_spaces(root / folder, [configuration_space(INTEGRATED)])
    board = gpu("0000:00:06.0", integrated=True, link=describe_link("0000:00:06.0", root))
    found = values(link_facts_now(board, nvml(**NO_NVLINK), (), root))
    assert (found["virtual_bus"], found["hop0_kind"]) == (False, "integrated endpoint")
    assert (board.link.generation_max, board.link.lanes_max) == (1, 1)
    assert [ceiling(bound, board) for bound in PCIE_BOUNDS] == [None] * len(PCIE_BOUNDS)


def test_a_coherent_link_leaves_pcie_without_a_verdict(two_switches: Path) -> None:
    reader = nvml(nvmlDeviceGetC2cModeInfoV=SimpleNamespace(isC2cEnabled=1))
    board = NvmlGpu(UUID, library(nvmlDeviceGetC2cModeInfoV=SimpleNamespace(isC2cEnabled=1))).describe(
        msgspec.structs.replace(DEEP_GPU, link=describe_link("0000:1a:00.0", two_switches))
    )
    assert values(link_facts_now(board, reader, (), two_switches))["c2c"] is True
    assert board.link.coherent is True
    assert [ceiling(bound, board) for bound in PCIE_BOUNDS] == [None] * len(PCIE_BOUNDS)
    assert ceiling("nvlink", board) is not None


def test_counters_of_gpu_and_bridges_are_added_up(two_switches: Path) -> None:
    snapshots.same_facts("link-counters", link_counters("0000:1a:00.0", nvml(), two_switches))


def test_counters_of_nvml_where_no_device_reports(tmp_path: Path) -> None:
    root = unpack("flat_machine", tmp_path)
    found = by_name(link_counters("0000:00:06.0", nvml(nvmlDeviceGetPcieReplayCounter=refuse(NOT_SUPPORTED)), root))
    assert (found["pcie_correctable_errors"].value, found["pcie_correctable_errors"].source) == (4, "NVML")
    assert found["pcie_replays"].value == 3


def test_what_rose_between_two_readings(two_switches: Path) -> None:
    before = link_counters("0000:1a:00.0", nvml(), two_switches)
    write(two_switches, f"{DEEP}/aer_dev_correctable", "RxErr 9\nTOTAL_ERR_COR 9")
    fields = field_values({**FIELDS, 95: 2, 161: 0})
    after = link_counters("0000:1a:00.0", nvml(nvmlDeviceGetFieldValues=fields), two_switches)
    snapshots.same_facts("link-counters-risen", counters_risen(before, after))


def test_a_counter_that_is_not_read_twice_in_the_same_place_has_not_risen(two_switches: Path, tmp_path: Path) -> None:
    before = link_counters("0000:1a:00.0", nvml(), two_switches)
    elsewhere = link_counters("0000:99:00.0", nvml(), two_switches)
    found = by_name(counters_risen(before, elsewhere))
    assert found["pcie_correctable_errors_risen"].reason is not None
    assert found["pcie_replays_risen"].value == 0
    unread = link_counters(None, absent(), tmp_path)
    found = by_name(counters_risen(unread, unread))
    assert all(fact.value is None for fact in found.values())
    assert "sysfs does not show this GPU" in str(found["pcie_fatal_errors_risen"].reason)

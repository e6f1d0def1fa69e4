"""PCIe paths to network devices and GPUs without NVLink: facts of recorded buses, the model of rates, and its words."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from link_evidence import SEVERAL, WHOLE, evidence, findings, with_facts, with_gpu
from make_link_run import two_switches
from msgspec.structs import replace
from nvml_stand_in import NOT_SUPPORTED, UUID, library, refuse
from pci_spaces import DOWNSTREAM, ENDPOINT, REQUEST_REDIRECT, UPSTREAM, configuration_space, put_spaces
from read_findings import check
from recorded_trees import unpack, write
from sections import cells, section, some

from microbench.analysis.limits import pcie_rate
from microbench.archive import schema
from microbench.archive.export import to_json
from microbench.core.model import Fact, GpuInfo, Run, Scalar
from microbench.explain import link_facts as links
from microbench.explain.link_paths import across_processors, device_paths, modelled
from microbench.gpu.machine.paths import path_facts
from microbench.gpu.machine.pci import NEEDS_ROOT
from microbench.gpu.machine.query import Query
from microbench.gpu.machine.topology import link_facts_now
from microbench.report.document import Table
from microbench.report.suites import link

GPU = "0000:1a:00.0"
TOP = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
DEEP = f"{TOP}/0000:17:00.0/0000:18:00.0/0000:19:02.0/0000:1a:00.0"
NIC = f"{TOP}/0000:17:01.0/0000:1c:00.0"
OTHERS = ((1, "0000:1b:00.0"), (2, "0000:98:00.0"))
NEAR = {"gpu1": "PIX", "gpu2": "SYS", "mlx5_0": "PXB", "eno1": "PHB", "mlx5_1": "NODE"}
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return unpack("two_switches", tmp_path)


def by_name(root: Path, near: dict[str, Scalar] | None = None) -> dict[str, Fact]:
    classes = [Fact(f"topology_{name}", value) for name, value in (near or NEAR).items()]
    found = {fact.name: fact for fact in path_facts(GPU, classes, OTHERS, root)}
    for fact in found.values():
        assert (fact.value is None) == (fact.reason is not None), fact
        assert fact.source, fact
    return found


def values(root: Path, name: str, near: dict[str, Scalar] | None = None) -> dict[str, Any]:
    """The facts of one path without their prefix."""
    found = by_name(root, near)
    prefix = next(key.removesuffix("device") for key, fact in found.items() if fact.value == name)
    return {key.removeprefix(prefix): fact.value for key, fact in found.items() if key.startswith(prefix)}


@pytest.mark.parametrize(("name", "switches", "generation", "lanes", "narrowest"), [
    ("gpu1", 1, 5, 16, GPU),
    ("mlx5_0", 2, 5, 16, GPU),
    ("eno1", 2, 4, 8, "0000:15:05.0"),
    ("mlx5_1", 2, 5, 16, GPU),
    # The far GPU's own link has trained down to generation 1, as an idle GPU's does.
    ("gpu2", 2, 5, 16, GPU),
])  # fmt: skip
def test_switches_and_the_narrowest_link(
    machine: Path, name: str, switches: int, generation: int, lanes: int, narrowest: str
) -> None:
    found = values(machine, name)
    assert (found["switches"], found["generation"], found["lanes"]) == (switches, generation, lanes)
    assert found["narrowest_bus_id"] == narrowest


def test_a_network_device_counts_with_the_speed_that_its_link_runs_at(machine: Path) -> None:
    for name, speed, width in (("current", "16.0 GT/s PCIe", "8"), ("max", "32.0 GT/s PCIe", "16")):
        write(machine, f"{NIC}/{name}_link_speed", speed)
        write(machine, f"{NIC}/{name}_link_width", width)
    found = values(machine, "mlx5_0")
    assert (found["generation"], found["lanes"], found["narrowest_bus_id"]) == (4, 8, "0000:1c:00.0")


def test_packets_tags_and_requests_of_the_configuration_spaces(machine: Path) -> None:
    ports = [configuration_space(kind, 2, access_control=0) for kind in (DOWNSTREAM, UPSTREAM, DOWNSTREAM)]
    put_spaces(machine / DEEP, [configuration_space(ENDPOINT, 2), *ports])
    put_spaces(machine / NIC, [configuration_space(ENDPOINT, 1, 2, tags=False), ports[0]])
    found = values(machine, "mlx5_0")
    assert (found["max_payload_bytes"], found["max_read_request_bytes"], found["extended_tags"]) == (256, 512, False)
    assert found["acs"] is False


def test_the_network_devices_own_port_can_redirect(machine: Path) -> None:
    calm, redirecting = (configuration_space(DOWNSTREAM, access_control=control) for control in (0, REQUEST_REDIRECT))
    put_spaces(machine / DEEP, [configuration_space(ENDPOINT), calm, calm, calm])
    put_spaces(machine / NIC, [configuration_space(ENDPOINT), redirecting])
    assert values(machine, "mlx5_0")["acs"] is True
    assert values(machine, "gpu1")["acs"] is None  # the other GPU's port is not shown
    put_spaces(machine / NIC, [configuration_space(ENDPOINT), configuration_space(DOWNSTREAM, visible=64)])
    fact = by_name(machine, {"mlx5_0": "PXB"})["path0_acs"]
    assert (fact.value, fact.reason) == (None, NEEDS_ROOT)


def test_a_bridge_of_another_kind_leaves_the_switches_open(machine: Path) -> None:
    write(machine, f"{TOP}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0/class", "0x020000")
    write(machine, f"{TOP}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0/net/odd0/mtu", "1500")
    link = machine / "sys/bus/pci/devices/0000:1f:00.0"
    link.symlink_to(f"../../../devices/{TOP.removeprefix('sys/devices/')}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0")
    assert values(machine, "odd0", {"odd0": "PXB"})["switches"] is None


def test_ports_say_whether_they_are_active_and_how_fast(machine: Path) -> None:
    assert values(machine, "mlx5_0")["rdma"] is None  # the recorded tree shows no port
    assert values(machine, "eno1")["rdma"] == "no"
    port = f"{NIC}/infiniband/mlx5_0/ports/1"
    write(machine, f"{port}/state", "1: DOWN")
    write(machine, f"{port}/rate", "10 Gb/sec (4X SDR)")
    found = values(machine, "mlx5_0")
    assert (found["rdma"], found["port"], found["port_bytes_per_s"]) == ("down", None, None)
    write(machine, f"{port}/state", "4: ACTIVE")
    write(machine, f"{port}/rate", "400 Gb/sec (4X NDR)")
    found = values(machine, "mlx5_0")
    assert (found["rdma"], found["port_bytes_per_s"]) == ("active", 50e9)
    assert found["port"] == "mlx5_0:1"
    write(machine, f"{port}/rate", "fast")
    found = values(machine, "mlx5_0")
    assert (found["port"], found["port_bytes_per_s"]) == ("mlx5_0:1", None)


def test_the_fastest_active_port_is_named(machine: Path) -> None:
    for number, (state, rate) in enumerate((("4: ACTIVE", 100), ("4: ACTIVE", 200), ("1: DOWN", 400)), start=1):
        port = f"{NIC}/infiniband/mlx5_0/ports/{number}"
        write(machine, f"{port}/state", state)
        write(machine, f"{port}/rate", f"{rate} Gb/sec (4X)")
    found = values(machine, "mlx5_0")
    assert (found["rdma"], found["port"], found["port_bytes_per_s"]) == ("active", "mlx5_0:2", 25e9)


def test_only_paths_of_pcie_whose_place_is_known(machine: Path) -> None:
    found = by_name(machine, {"gpu1": "NV18", "gpu2": None, "mlx5_0": "PXB"})
    assert {name.split("_")[0] for name in found} == {"path0", "processor"}
    assert found["path0_device"].value == "mlx5_0"
    assert by_name(machine, {"gpu1": "NV18"}) == {}
    assert path_facts(GPU, [Fact("topology_mlx5_0", "PXB")], (), machine / "empty") == ()


@pytest.mark.parametrize(("text", "vendor", "family", "model"), [
    (INTEL, "GenuineIntel", 6, 143),
    ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f", "ARM", None, None),
    ("processor\t: 0\ncpu\t\t: POWER9, altivec supported", "POWER", None, None),
    ("nonsense", None, None, None),
])  # fmt: skip
def test_the_processor(machine: Path, text: str, vendor: str | None, family: int | None, model: int | None) -> None:
    write(machine, "proc/cpuinfo", text)
    found = by_name(machine)
    assert [found[f"processor_{name}"].value for name in ("vendor", "family", "model")] == [vendor, family, model]


def test_a_report_reads_what_the_bus_gives(machine: Path) -> None:
    info = GpuInfo("GPU", UUID, pci_bus_id=GPU, integrated=False)
    query = Query(library(nvmlDeviceGetNvLinkState=refuse(NOT_SUPPORTED), nvmlInit=refuse(9)), UUID)
    facts = link_facts_now(info, query, OTHERS, machine)
    found = {fact.name: fact.value for fact in (*facts, *path_facts(GPU, facts, OTHERS, machine))}
    paths = device_paths(evidence(with_facts(found, SEVERAL)))
    assert [(f"{one.name} ({one.near})", one.switches) for one in paths] == [
        ("gpu1 (PIX)", 1), ("mlx5_0 (PXB)", 2), ("eno1 (PHB)", 2), ("mlx5_1 (NODE)", 2), ("gpu2 (SYS)", 2),
    ]  # fmt: skip
    assert [one.narrowest.words for one in paths] == ["5.0 x16", "5.0 x16", "4.0 x8", "5.0 x16", "5.0 x16"]


# The model. Every path below is made up; the figures are those of the named sources.


def path(name: str, near: str, **other: Scalar) -> dict[str, Scalar]:
    usual = {
        "switches": 1, "generation": 5, "lanes": 16, "narrowest_bus_id": "0000:3e:00.0", "max_payload_bytes": 256,
        "acs": False, "max_read_request_bytes": 512, "extended_tags": True, "rdma": "active", "port": f"{name}:1",
        "port_bytes_per_s": 50e9,
    }  # fmt: skip
    return {"device": name, "near": near} | usual | other


def fast(name: str, near: str, **other: Scalar) -> dict[str, Scalar]:
    """A path whose port limits nothing."""
    return path(name, near, port_bytes_per_s=100e9, **other)


def processor(vendor: str | None, model: int | None = 143) -> dict[str, Scalar]:
    return {"processor_vendor": vendor, "processor_family": 6, "processor_model": model}


SPR, EPYC = processor("GenuineIntel"), processor("AuthenticAMD")
GIGABIT = 1e9 / 8


def run_with(*parts: dict[str, Scalar], run: Run = SEVERAL) -> Run:
    facts = {name: value for name, value in two_switches().items() if not name.startswith("topology_")}
    paths = [part for part in parts if "near" in part]
    for number, one in enumerate(paths):
        facts |= {f"path{number}_{key}": value for key, value in one.items() if key != "near"}
        facts[f"topology_{one['device']}"] = one["near"]
    for part in parts:
        facts |= part if part not in paths else {}
    return with_facts(facts, run)


def model(*parts: dict[str, Scalar]) -> Any:
    found = evidence(run_with(*parts))
    (only,) = device_paths(found)
    return modelled(only, links.link_facts(found))


WRITES, READS = pcie_rate(5, 16, "d2h", 256), pcie_rate(5, 16, "h2d", 256)


def test_below_switches_the_narrowest_link_alone_decides() -> None:
    found = model(fast("mlx5_0", "PIX"))
    assert (found.write, found.read, found.reductions) == (WRITES, READS, ())
    raw = links.Speed(5, 16).raw_rate
    assert found.read / raw == pytest.approx(0.9275, abs=1e-4)  # two completions of 256 bytes with 20 of headers each
    small = model(fast("mlx5_0", "PXB", generation=4, lanes=8, max_payload_bytes=128))
    assert small.write == pcie_rate(4, 8, "d2h", 128)


def test_a_device_without_extended_tags_waits_for_its_reads_the_longer_the_more_switches() -> None:
    one, three = (model(fast("mlx5_0", "PXB", switches=n, extended_tags=False)) for n in (1, 3))
    assert (one.read, one.reductions) == (32 * 512 / 0.3e-6, ("32 reads at once",))
    assert three.read == pytest.approx(one.read / 3)
    assert (one.write, three.write) == (WRITES, WRITES)


@pytest.mark.parametrize("near", ["PHB", "NODE"])
def test_an_intel_root_complex_takes_a_sixth_and_others_have_no_figure(near: str) -> None:
    found = model(fast("mlx5_0", near), processor("GenuineIntel"))
    assert found.read == pytest.approx(READS / 1.2)
    assert found.reductions == ("root complex",)
    for vendor in ("AuthenticAMD", None):
        found = model(fast("mlx5_0", near), processor(vendor))
        assert (found.write, found.read, found.write_limit, found.read_limit) == (None, None, WRITES, READS)


def test_redirected_packets_pass_the_root_complex_too() -> None:
    found = model(fast("mlx5_0", "PIX", acs=True), processor("GenuineIntel"))
    assert found.write == pytest.approx(WRITES / 1.2)
    assert found.reductions == ("root complex (ACS)",)
    assert device_paths(evidence(run_with(path("mlx5_0", "PIX", acs=True))))[0].added_s is None


def test_between_processors_the_link_between_them_counts() -> None:
    found = model(fast("mlx5_0", "SYS"), processor("GenuineIntel"))
    assert (found.write, found.read, found.reductions) == (22e9, 22e9, ("between processors",))
    slow = model(fast("mlx5_0", "SYS", generation=3, lanes=8), processor("GenuineIntel"))
    assert (slow.write, slow.reductions) == (pcie_rate(3, 8, "d2h", 256), ())
    assert model(fast("mlx5_0", "SYS"), processor("Shanghai")).write is None


def test_a_port_limits_the_model_and_what_it_hides_is_not_named() -> None:
    found = model(path("mlx5_0", "PHB", port_bytes_per_s=25e9), SPR)
    assert (found.write, found.read, found.reductions) == (25e9, 25e9, ("port",))
    assert (found.write_limit, found.read_limit) == (WRITES, READS)
    waits = model(path("mlx5_0", "PXB", switches=4, extended_tags=False), SPR)
    assert (waits.write, waits.read) == (50e9, 32 * 512 / 1.2e-6)
    assert waits.reductions == ("32 reads at once", "port")
    unrated = model(path("mlx5_0", "PHB", port_bytes_per_s=25e9), EPYC)
    assert (unrated.write, unrated.read) == (None, None)


@pytest.mark.parametrize(("vendor", "family", "number", "rate"), [
    ("GenuineIntel", 6, 0x4F, 6e9), ("GenuineIntel", 6, 0x55, 10e9), ("GenuineIntel", 6, 0x8F, 22e9),
    ("GenuineIntel", 6, 0xCF, 40e9), ("GenuineIntel", 19, 1, None), ("GenuineIntel", 6, None, None),
    ("AuthenticAMD", 23, 49, 16e9), ("AuthenticAMD", 25, 17, 24e9), ("AuthenticAMD", 26, 2, 32e9),
    ("AuthenticAMD", None, None, None), ("ARM", None, None, 6e9), ("POWER", None, None, 32e9), (None, None, None, None),
])  # fmt: skip
def test_figures_between_processors(
    vendor: str | None, family: int | None, number: int | None, rate: float | None
) -> None:
    assert across_processors(vendor, family, number) == rate


# Finding and table.


def test_the_nearest_devices_are_named() -> None:
    run = run_with(path("mlx5_0", "PIX"), path("mlx5_1", "PIX"), path("mlx5_8", "SYS", switches=2), SPR)
    words = ("mlx5_0 and mlx5_1 (PIX)", "50.0 GB/s by a model", "Nothing here was measured", "!mlx5_8")
    check(findings(run)["link.network"], "note", *words, "UCX_NET_DEVICES=mlx5_0:1")


@pytest.mark.parametrize(("parts", "words"), [
    # NCCL uses GPUDirect below switches, so a slow port there comes before a fast one elsewhere.
    ((path("mlx5_0", "PIX", port_bytes_per_s=200 * GIGABIT), path("mlx5_1", "PHB"), SPR),
     ("rank: mlx5_0 (PIX), 25.0 GB/s",)),
    ((path("mlx5_0", "PIX", acs=True), path("mlx5_1", "PXB", port_bytes_per_s=200 * GIGABIT), SPR),
     ("rank: mlx5_1 (PXB), 25.0 GB/s",)),
    ((path("mlx5_0", "PIX", acs=True, port_bytes_per_s=200 * GIGABIT), path("mlx5_1", "PHB"), SPR),
     ("rank: mlx5_0 (PIX), 25.0 GB/s",)),
    ((path("mlx5_0", "PHB"), SPR), ("NCCL copies through host memory on such a path", "!looks for it")),
    ((path("mlx5_0", "PIX", port_bytes_per_s=100 * GIGABIT), path("mlx5_1", "SYS"), SPR),
     ("rank: mlx5_0 (PIX), 12.5 GB/s",)),
    ((path("mlx5_0", "PIX"), path("mlx5_1", "PXB"), SPR), ("rank: mlx5_0 (PIX), 50.0 GB/s", "!mlx5_1")),
    ((path("mlx5_0", "PIX", port_bytes_per_s=25e9), path("mlx5_1", "SYS"), path("mlx5_2", "PHB"), SPR),
     ("rank: mlx5_0 (PIX), 25.0 GB/s",)),
    # Without a published figure for this processor only the ceiling is known, yet it is nearer.
    ((path("mlx5_0", "PHB"), path("mlx5_1", "SYS"), EPYC),
     ("mlx5_0 (PHB)", "no figure", "!ceiling")),
    ((path("mlx5_0", "PIX", rdma="down"), path("mlx5_1", "PXB")), ("mlx5_1 (PXB)", "!mlx5_0")),
    ((path("eno1", "PIX", rdma="no"), path("mlx5_1", "PXB")), ("mlx5_1 (PXB)", "!eno1")),
    # What is not known stands behind, and the title says so.
    ((path("mlx5_0", "PIX", port_bytes_per_s=None),), ("57.6 GB/s", "; the port's rate is not known")),
    ((path("mlx5_0", "PIX", port_bytes_per_s=None), path("mlx5_1", "PXB", port_bytes_per_s=25e9)),
     ("rank: mlx5_1 (PXB), 25.0 GB/s",)),
    ((path("mlx5_0", "PIX", rdma=None), path("mlx5_1", "SYS"), SPR),
     ("rank: mlx5_1 (SYS), 22.0 GB/s",)),
    # Only an active port is offered to UCX, and it is not always the first.
    ((path("0000:3e:00.0", "PIX", rdma=None, port=None, port_bytes_per_s=None),),
     ("; it is not known whether RDMA works", "`ibv_devinfo`", "!UCX_NET_DEVICES", "!NCCL")),
    ((path("mlx5_0", "PIX", port="mlx5_0:2"),), ("`UCX_NET_DEVICES=mlx5_0:2`", "NCCL looks for it by itself")),
    ((path("mlx5_0", "PIX", port=None),), ("!UCX_NET_DEVICES",)),  # a run recorded before ports were
])  # fmt: skip
def test_which_device_a_rank_should_use(parts: tuple[dict[str, Scalar], ...], words: tuple[str, ...]) -> None:
    check(findings(run_with(*parts))["link.network"], "note", *words)


@pytest.mark.parametrize("run", [
    WHOLE,
    SEVERAL,  # the class is known, the links are not
    run_with(path("eno1", "PIX", rdma="no")),
    run_with(path("gpu1", "PHB", rdma=None), SPR),
    run_with(path("mlx5_0", "PIX", generation=None)),
    with_gpu(lambda gpu: replace(gpu, integrated=True), run_with(path("mlx5_0", "PIX"))),
])  # fmt: skip
def test_no_finding_without_a_network_device_that_can_be_judged(run: Run) -> None:
    assert "link.network" not in findings(run)


def link_table(run: Run) -> Table:
    return some(link.devices(evidence(run)))


def test_the_table_marks_the_model_and_sets_measured_peers_beside_it() -> None:
    run = run_with(
        path("gpu1", "PHB", rdma=None, port_bytes_per_s=None), path("mlx5_0", "PXB", switches=2),
        path("eno1", "SYS", rdma="no", port_bytes_per_s=None), SPR,
    )  # fmt: skip
    table = link_table(run)
    assert "MODEL" in table.question
    assert "not measured" in table.question
    found = [cells(table, number) for number in range(len(table.rows))]
    assert [row[0] for row in found] == ["mlx5_0", "GPU 1", "eno1, no RDMA"]
    columns = {column.title: at for at, column in enumerate(table.columns)}
    by_row = {row[0]: {title: row[at] for title, at in columns.items()} for row in found}
    assert (by_row["mlx5_0"]["writes, model"], by_row["mlx5_0"]["port"]) == ("50.0", "50.0")
    assert (by_row["mlx5_0"]["ceiling"], by_row["mlx5_0"]["lowered by"]) == ("57.6", "port")
    assert by_row["mlx5_0"]["a read takes"] == "+600 ns"
    assert by_row["GPU 1"]["measured"] == "393"  # what link_peer measured in this made run
    assert by_row["GPU 1"]["lowered by"] == "root complex"
    assert (by_row["eno1, no RDMA"]["ceiling"], by_row["eno1, no RDMA"]["writes, model"]) == ("57.6", "22.0")
    unknown = link_table(run_with(path("mlx5_0", "PHB"), EPYC))
    assert "?" in cells(unknown)
    assert link.devices(evidence(SEVERAL)) is None


def test_the_table_gives_the_rate_that_the_finding_names() -> None:
    run = run_with(path("mlx5_0", "PIX", port_bytes_per_s=100 * GIGABIT), SPR)
    table = link_table(run)
    row = dict(zip((column.title for column in table.columns), cells(table), strict=True))
    assert (row["writes, model"], row["reads, model"]) == ("12.5", "12.5")
    check(findings(run)["link.network"], "note", "12.5 GB/s by a model of the path")


def test_no_note_explains_a_column_that_a_narrow_page_drops() -> None:
    table = link_table(run_with(path("mlx5_0", "PXB"), SPR))
    droppable = [column.title for column in table.columns if column.drop]
    assert {"ceiling", "lowered by"} <= set(droppable)
    assert [(title, note) for title in droppable for note in table.notes if title in note] == []


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_shows_in_the_page_of_its_suite_and_all_shows_every_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("several.json")
    devices = [path(f"mlx5_{number}", "PXB" if number < 2 else "SYS") for number in range(8)]
    file.write_bytes(schema.encode(run_with(*devices, SPR)))
    page, whole = (call("show", str(file), "link", *more, COLUMNS=width).stdout for more in ((), ("--all",)))
    assert len(page.splitlines()) <= 120
    assert "PCIe paths to network devices and GPUs (model)" in page
    command = next(line for line in page.splitlines() if "more picture" in line).partition(": microbench ")[2]
    assert call(*command.split(), COLUMNS=width).stdout == whole
    for title in ("PCIe paths to network devices and GPUs (model)", "GPU to GPU, one dependent read", "link_copy: "):
        assert title in whole
    assert "more picture" not in whole


def test_json_holds_every_path_of_the_model_and_shows_as_a_run() -> None:
    run = run_with(fast("mlx5_0", "PIX"), path("mlx5_8", "SYS", switches=2), path("mlx5_9", "PHB"), processor(None))
    document = json.loads(to_json(run))
    first, second, third = document["modelled_paths"]
    assert (first["device"], first["near"], first["model"]) == ("mlx5_0", "PIX", True)
    assert (first["write_bytes_per_s"], first["read_bytes_per_s"]) == (WRITES, READS)
    assert (second["device"], second["write_bytes_per_s"], second["write_ceiling_bytes_per_s"]) == (
        "mlx5_9", None, WRITES,
    )  # fmt: skip
    assert third["narrowest"] == "5.0 x16"
    assert schema.decode(to_json(run)).run_id == run.run_id
    assert "modelled_paths" not in json.loads(to_json(WHOLE))


def test_the_facts_of_the_paths_are_a_table_of_their_own() -> None:
    tables = section(run_with(path("mlx5_0", "PIX"), SPR), "link").studies[0].tables
    assert [table.columns[0].title for table in tables] == ["fact", "hop", "path"]
    assert cells(tables[2])[:3] == ["0", "mlx5_0", "1"]

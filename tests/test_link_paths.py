"""PCIe paths to network devices and GPUs without NVLink: facts of recorded buses, the model of rates, and its words."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import snapshots
from changed_run import with_gpu
from command_line import call
from link_evidence import SEVERAL, WHOLE, findings, with_facts
from make_link_run import two_switches
from msgspec.structs import replace
from nvml_stand_in import NOT_SUPPORTED, UUID, library, refuse
from pci_spaces import DOWNSTREAM, ENDPOINT, REQUEST_REDIRECT, UPSTREAM, configuration_space, put_spaces
from read_findings import check_shape, drawn, evidence
from recorded_trees import unpack, write
from sections import cells, section, some

from microbench.analysis.limits import pcie_rate
from microbench.archive import schema
from microbench.archive.export import to_json
from microbench.core.model import Fact, GpuInfo, Run, Scalar
from microbench.explain.link_paths import across_processors, device_paths
from microbench.gpu.machine.query import Query
from microbench.gpu.machine.topology import link_facts_now, path_facts
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


def put_port(root: Path, state: str, rate: str, number: int = 1) -> None:
    for name, text in (("state", state), ("rate", rate)):
        write(root, f"{NIC}/infiniband/mlx5_0/ports/{number}/{name}", text)


def slower_nic(root: Path) -> None:
    for name, speed, width in (("current", "16.0 GT/s PCIe", "8"), ("max", "32.0 GT/s PCIe", "16")):
        write(root, f"{NIC}/{name}_link_speed", speed)
        write(root, f"{NIC}/{name}_link_width", width)


def small_packets(root: Path) -> None:
    ports = [configuration_space(kind, 2, access_control=0) for kind in (DOWNSTREAM, UPSTREAM, DOWNSTREAM)]
    put_spaces(root / DEEP, [configuration_space(ENDPOINT, 2), *ports])
    put_spaces(root / NIC, [configuration_space(ENDPOINT, 1, 2, tags=False), ports[0]])


def redirecting(root: Path) -> None:
    calm, redirects = (configuration_space(DOWNSTREAM, access_control=control) for control in (0, REQUEST_REDIRECT))
    put_spaces(root / DEEP, [configuration_space(ENDPOINT), calm, calm, calm])
    put_spaces(root / NIC, [configuration_space(ENDPOINT), redirects])


def hidden_port(root: Path) -> None:
    redirecting(root)
    put_spaces(root / NIC, [configuration_space(ENDPOINT), configuration_space(DOWNSTREAM, visible=64)])


def odd_bridge(root: Path) -> None:
    write(root, f"{TOP}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0/class", "0x020000")
    write(root, f"{TOP}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0/net/odd0/mtu", "1500")
    link = root / "sys/bus/pci/devices/0000:1f:00.0"
    link.symlink_to(f"../../../devices/{TOP.removeprefix('sys/devices/')}/0000:17:01.0/0000:1e:00.0/0000:1f:00.0")


def three_ports(root: Path) -> None:
    for number, (state, rate) in enumerate((("4: ACTIVE", 100), ("4: ACTIVE", 200), ("1: DOWN", 400)), start=1):
        put_port(root, state, f"{rate} Gb/sec (4X)", number)


NIC_ALONE: dict[str, Scalar] = {"mlx5_0": "PXB"}
# What is changed of the recorded tree, and which paths are looked at.
MACHINES: dict[str, tuple[Callable[[Path], object], dict[str, Scalar]]] = {
    # The far GPU's own link has trained down to generation 1, as an idle GPU's does.
    "as recorded": (lambda root: None, NEAR), "the speed that the device's link runs at": (slower_nic, NIC_ALONE),
    "packets, tags and requests": (small_packets, NIC_ALONE),
    "the device's own port redirects, another GPU's is not shown": (redirecting, NIC_ALONE | {"gpu1": "PIX"}),
    "a port that only root sees": (hidden_port, NIC_ALONE),
    "a bridge of another kind leaves the switches open": (odd_bridge, {"odd0": "PXB"}),
    "a port that is down": (lambda root: put_port(root, "1: DOWN", "10 Gb/sec (4X SDR)"), NIC_ALONE),
    "an active port": (lambda root: put_port(root, "4: ACTIVE", "400 Gb/sec (4X NDR)"), NIC_ALONE),
    "an unknown rate": (lambda root: put_port(root, "4: ACTIVE", "fast"), NIC_ALONE),
    "the fastest active port": (three_ports, NIC_ALONE),
    "only paths of PCIe whose place is known": (lambda root: None, {"gpu1": "NV18", "gpu2": None, "mlx5_0": "PXB"}),
    "no path": (lambda root: None, {"gpu1": "NV18"}),
    **{f"the processor: {text.split()[-1]}": (lambda root, text=text: write(root, "proc/cpuinfo", text), NIC_ALONE)
       for text in (
        INTEL, "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f",
        "processor\t: 0\ncpu\t\t: POWER9, altivec supported", "nonsense",
    )},
}  # fmt: skip


def test_facts_of_paths(tmp_path: Path) -> None:
    every = {}
    for number, (name, (change, near)) in enumerate(MACHINES.items()):
        root = unpack("two_switches", tmp_path / str(number))
        change(root)
        every[name] = [
            f"{fact.name} = {fact.value}" + (f": {fact.reason}" if fact.value is None else "")
            for fact in by_name(root, near).values()
        ]
    snapshots.same("facts/paths", snapshots.in_turn(every))
    assert path_facts(GPU, [Fact("topology_mlx5_0", "PXB")], (), tmp_path / "empty") == ()


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


SLOW, MISSING = {"port_bytes_per_s": 25e9}, {"port_bytes_per_s": None}
NO_TAGS = {"extended_tags": False}
PATHS: dict[str, tuple[dict[str, Scalar], ...]] = {
    "below switches the narrowest link alone decides": (fast("mlx5_0", "PIX"),),
    "a smaller link": (fast("mlx5_0", "PXB", generation=4, lanes=8, max_payload_bytes=128),),
    "reads wait without extended tags": (fast("mlx5_0", "PXB", **NO_TAGS),),
    "the longer the more switches": (fast("mlx5_0", "PXB", switches=3, **NO_TAGS),),
    **{f"an Intel root complex takes a sixth: {near}": (fast("mlx5_0", near), SPR) for near in ("PHB", "NODE")},
    "others have no figure": (fast("mlx5_0", "PHB"), EPYC), "nor has an unknown one": (
        fast("mlx5_0", "NODE"), processor(None),
    ),
    "redirected packets pass it too": (fast("mlx5_0", "PIX", acs=True), SPR),
    "between processors": (fast("mlx5_0", "SYS"), SPR),
    "a slow link between processors": (fast("mlx5_0", "SYS", generation=3, lanes=8), SPR),
    "between processors of no known figure": (fast("mlx5_0", "SYS"), processor("Shanghai")),
    "a port limits the model, and what it hides is not named": (path("mlx5_0", "PHB", **SLOW), SPR),
    "reads that wait longer than the port": (path("mlx5_0", "PXB", switches=4, **NO_TAGS), SPR),
    "a port behind no figure": (path("mlx5_0", "PHB", **SLOW), EPYC),
    "the nearest are named": (
        path("mlx5_0", "PIX"), path("mlx5_1", "PIX"), path("mlx5_8", "SYS", switches=2), SPR,
    ),
    # NCCL uses GPUDirect below switches, so a slow port there comes before a fast one elsewhere.
    "a slow port below switches": (path("mlx5_0", "PIX", **SLOW), path("mlx5_1", "PHB"), SPR),
    "or where packets are redirected": (path("mlx5_0", "PIX", acs=True), path("mlx5_1", "PXB", **SLOW), SPR),
    "redirected and slow": (path("mlx5_0", "PIX", acs=True, **SLOW), path("mlx5_1", "PHB"), SPR),
    "through host memory": (path("mlx5_0", "PHB"), SPR),
    "a quarter of the port": (path("mlx5_0", "PIX", port_bytes_per_s=12.5e9), path("mlx5_1", "SYS"), SPR),
    "one switch before two": (path("mlx5_0", "PIX"), path("mlx5_1", "PXB"), SPR),
    "one of three": (path("mlx5_0", "PIX", **SLOW), path("mlx5_1", "SYS"), path("mlx5_2", "PHB"), SPR),
    # Without a published figure for this processor only the ceiling is known, yet it is nearer.
    "no figure, yet nearer": (path("mlx5_0", "PHB"), path("mlx5_1", "SYS"), EPYC),
    "a port that is down": (path("mlx5_0", "PIX", rdma="down"), path("mlx5_1", "PXB")),
    "no RDMA": (path("eno1", "PIX", rdma="no"), path("mlx5_1", "PXB")),
    # What is not known stands behind, and the title says so.
    "an unknown port": (path("mlx5_0", "PIX", **MISSING),),
    "behind a known one": (path("mlx5_0", "PIX", **MISSING), path("mlx5_1", "PXB", **SLOW)),
    "unknown RDMA": (path("mlx5_0", "PIX", rdma=None), path("mlx5_1", "SYS"), SPR),
    # Only an active port is offered to UCX, and it is not always the first.
    "no port at all": (path("0000:3e:00.0", "PIX", rdma=None, port=None, **MISSING),),
    "the second port": (path("mlx5_0", "PIX", port="mlx5_0:2"),), "a run before ports": (
        path("mlx5_0", "PIX", port=None),
    ),
    "no device can be judged": (path("eno1", "PIX", rdma="no"),),
    "only a GPU": (path("gpu1", "PHB", rdma=None), SPR), "no speed": (path("mlx5_0", "PIX", generation=None),),
    "what link_peer measured stands beside the model": (
        path("gpu1", "PHB", rdma=None, **MISSING), path("mlx5_0", "PXB", switches=2),
        path("eno1", "SYS", rdma="no", **MISSING), SPR,
    ),
}  # fmt: skip


def told(run: Run) -> Iterator[str]:
    if (found := findings(run).get("link.network")) is not None:
        assert found.severity == "note"
        check_shape(found)
        yield drawn(found)
    if (table := link.devices(evidence(run))) is not None:
        yield "\n".join((f"{table.title}: {table.question}", *(f"    {note}" for note in table.notes)))
        yield " | ".join(column.title for column in table.columns)
        yield from (" | ".join(cells(table, number)) for number in range(len(table.rows)))


def test_what_is_said_of_paths() -> None:
    every = {name: told(run_with(*parts)) for name, parts in PATHS.items()}
    integrated = with_gpu(run_with(path("mlx5_0", "PIX")), lambda gpu: replace(gpu, integrated=True))
    every |= {"integrated": told(integrated), "no path": told(WHOLE), "the class alone is known": told(SEVERAL)}
    snapshots.same("paths", snapshots.in_turn(every))


def link_table(run: Run) -> Table:
    return some(link.devices(evidence(run)))


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
    writes, reads = (pcie_rate(5, 16, direction, 256) for direction in ("d2h", "h2d"))
    assert (first["device"], first["near"], first["model"]) == ("mlx5_0", "PIX", True)
    assert (first["write_bytes_per_s"], first["read_bytes_per_s"]) == (writes, reads)
    assert (second["device"], second["write_bytes_per_s"], second["write_ceiling_bytes_per_s"]) == (
        "mlx5_9", None, writes,
    )  # fmt: skip
    assert third["narrowest"] == "5.0 x16"
    assert schema.decode(to_json(run)).run_id == run.run_id
    assert "modelled_paths" not in json.loads(to_json(WHOLE))


def test_the_facts_of_the_paths_are_a_table_of_their_own() -> None:
    tables = section(run_with(path("mlx5_0", "PIX"), SPR), "link").studies[0].tables
    assert [table.columns[0].title for table in tables] == ["fact", "hop", "path"]
    assert cells(tables[2])[:3] == ["0", "mlx5_0", "1"]

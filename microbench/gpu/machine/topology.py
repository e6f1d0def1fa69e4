"""Error counters of a GPU's links, read before and after a load: what rose meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from microbench.core.model import Fact, GpuInfo, LinkInfo
from microbench.gpu.machine.counters import (
    NvLinks,
    coherent,
    nvlink_bytes_per_s,
    nvlink_errors,
    nvlink_peers,
    nvlink_version,
    nvlinks,
    topology,
)
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.pci import (
    DEVICES,
    NOT_SHOWN,
    ExpressControl,
    Hop,
    Way,
    folder_of,
    is_bus_id,
    largest_window_bytes,
    narrowest,
    numa_node,
    raw_rate,
    read_redirection,
    same_device,
    way_to_root,
)
from microbench.gpu.machine.query import (
    FIELD_PCIE_CORRECTABLE,
    FIELD_PCIE_FATAL,
    FIELD_PCIE_NONFATAL,
    FIELD_PCIE_REPLAY_ROLLOVERS,
    FIELD_PCIE_REPLAYS,
    Answer,
    Query,
)
from microbench.host.affinity import nodes
from microbench.host.files import Machine, known, labelled, stated, unknown

RISEN = "_risen"
# Advanced error reporting in sysfs (kernel: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats): the file, the
# line with its total, and NVML's field where no device of the way has the file.
REPORTED_ERRORS = (
    ("pcie_correctable_errors", "aer_dev_correctable", "TOTAL_ERR_COR", FIELD_PCIE_CORRECTABLE),
    ("pcie_nonfatal_errors", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", FIELD_PCIE_NONFATAL),
    ("pcie_fatal_errors", "aer_dev_fatal", "TOTAL_ERR_FATAL", FIELD_PCIE_FATAL),
)


def link_counters(bus_id: str | None, nvml: NvmlGpu, root: Path = Path("/")) -> tuple[Fact, ...]:
    """Errors since boot or since the driver was loaded; each unknown with its reason. Never raises.

    Replays, replays given up for a new training of the link, errors that the devices on the way reported (the GPU's
    and every bridge's, together), and errors of all NVLinks.
    """
    query = nvml.query
    replays = query.ask_board("nvmlDeviceGetPcieReplayCounter")
    replays = replays if replays.value is not None else query.board_field(FIELD_PCIE_REPLAYS)
    way = [hop.bus_id for hop in way_to_root(bus_id, root).hops]
    return (
        replays.fact("pcie_replays"),
        query.board_field(FIELD_PCIE_REPLAY_ROLLOVERS).fact("pcie_replay_rollovers"),
        *(
            _reported(name, file, line, way, query.board_field(field), root)
            for name, file, line, field in REPORTED_ERRORS
        ),
        nvlink_errors(query, nvlinks(query)).fact("nvlink_errors"),
    )


def counters_risen(before: Iterable[Fact], after: Iterable[Fact]) -> tuple[Fact, ...]:
    """For each counter how far it rose between two readings, as ``<name>_risen``; unknown where either reading is."""
    earlier = {fact.name: fact for fact in before}
    return tuple(_risen(earlier[fact.name], fact) for fact in after if fact.name in earlier)


def _risen(before: Fact, after: Fact) -> Fact:
    name, first, last = after.name + RISEN, before.value, after.value
    if not isinstance(first, int) or not isinstance(last, int):
        return unknown(name, before.reason or after.reason or "no number", after.source)
    if last < first:
        return unknown(name, "the counter was set back meanwhile", after.source)
    if before.source != after.source:
        return unknown(name, f"not the same counters: {before.source}, then {after.source}", after.source)
    return known(name, last - first, after.source)


def _reported(name: str, file: str, line: str, way: list[str], answer: Answer, root: Path) -> Fact:
    """The total over the devices on the way that have the counter; NVML's word on the GPU's own where none has."""
    machine = Machine(root)
    totals = {hop: labelled(machine.read(f"{DEVICES}/{hop}/{file}").text, line, " ") for hop in way}
    counted = {hop: int(total) for hop, total in totals.items() if total and total.isdigit()}
    if counted:
        return known(name, sum(counted.values()), f"{file} of {', '.join(counted)}")
    if answer.value is not None:
        return known(name, answer.value, "NVML")
    hidden = "no device on the way reports errors in sysfs" if way else NOT_SHOWN
    return unknown(name, f"{hidden}; {answer.why_none}", file)


# How far two PCI devices are apart, in the words of ``nvidia-smi topo -m``, and which network devices there are.


# At most one switch; several switches; the host bridge (a processor's root complex); two of them on one NUMA node; the
# link between NUMA nodes.
Nearness = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
NETWORK_CLASS = "0x02"
VIRTIO_VENDOR = "0x1af4"
# A device below a switch has the switch's downstream port above it.
BELOW_ONE_SWITCH = 2


class NetworkDevice(NamedTuple):
    """A network or InfiniBand controller by its name ("mlx5_0", "eth0"); its bus id where it has none.

    ``reason`` says why it has no place worth naming.
    """

    name: str
    bus_id: str
    reason: str | None = None


class Distance(NamedTuple):
    """How far two devices are apart; None and why."""

    value: Nearness | None
    reason: str | None = None


def distance(first: str | None, second: str | None, root: Path = Path("/")) -> Distance:
    """From the places of two devices (bus ids) on the bus, and their NUMA nodes where they share no root."""
    folders = folder_of(first, root), folder_of(second, root)
    if folders[0] is None or folders[1] is None:
        return Distance(None, "sysfs does not show both devices")
    (one_root, one), (other_root, other) = _place(folders[0]), _place(folders[1])
    if one_root != other_root:
        return _between_roots(first, second, root)
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if shared == 0:
        return Distance("PHB")
    return Distance("PIX" if max(len(one), len(other)) - shared <= BELOW_ONE_SWITCH else "PXB")


def network_devices(root: Path = Path("/")) -> tuple[NetworkDevice, ...]:
    """All network controllers, in the order of their bus ids; virtual functions of another one are left out."""
    machine = Machine(root)
    found = []
    for bus_id in machine.names(DEVICES):
        folder = f"{DEVICES}/{bus_id}"
        kind = machine.read(f"{folder}/class").text or ""
        if kind.startswith(NETWORK_CLASS) and not machine.exists(f"{folder}/physfn"):
            virtio = machine.read(f"{folder}/vendor").text == VIRTIO_VENDOR
            reason = "a virtio device: its hypervisor's software, no place on the bus" if virtio else None
            found.append(NetworkDevice(_network_name(machine, folder) or bus_id, bus_id, reason))
    return tuple(found)


def _place(folder: Path) -> tuple[Path, list[str]]:
    """The root that a device hangs on, and the bus ids from there down to the device."""
    ids: list[str] = []
    while is_bus_id(folder.name):
        ids.insert(0, folder.name)
        folder = folder.parent
    return folder, ids


def _between_roots(first: str | None, second: str | None, root: Path) -> Distance:
    one, other = numa_node(first, root), numa_node(second, root)
    if one is not None and other is not None:
        return Distance("NODE" if one == other else "SYS")
    if len(nodes(Machine(root))) == 1:
        return Distance("NODE")
    return Distance(None, "the firmware does not say on which NUMA nodes they are")


def _network_name(machine: Machine, folder: str) -> str | None:
    """InfiniBand's name first, as nvidia-smi does; a virtio controller's interface is its child's."""
    inside = [folder, *(f"{folder}/{name}" for name in machine.names(folder) if name.startswith("virtio"))]
    places = [f"{folder}/infiniband", *(f"{place}/net" for place in inside)]
    return next((name for place in places for name in machine.names(place)), None)


# How far the other GPUs and the network devices are from a GPU: NVLink where there is one, else by the PCIe bus.


NO_NVLINK = "none"


def topology_facts(
    gpu: GpuInfo,
    query: Query,
    links: NvLinks,
    others: Sequence[tuple[int, str]],
    hidden: str | None,
    root: Path = Path("/"),
) -> Iterator[Fact]:
    """``topology_gpu1`` and ``topology_<name>``: PIX, PXB, PHB, NODE, SYS or NV#, as ``nvidia-smi topo -m`` has them.

    ``others`` are CUDA index and PCI bus id of the other GPUs. ``hidden`` says why the bus is no real one: places on it
    mean nothing then.
    """
    for index, bus_id in others:
        yield _to_gpu(f"topology_gpu{index}", gpu, query, links, bus_id, hidden, root)
    for device in network_devices(root):
        yield _to_network(gpu, device, hidden, root)


def _to_gpu(name: str, gpu: GpuInfo, query: Query, links: NvLinks, bus_id: str, hidden: str | None, root: Path) -> Fact:
    if same_device(gpu.pci_bus_id, bus_id):
        return known(name, "same board", "PCI bus id")
    by_nvlink, by_pcie = topology(query, links, bus_id)
    if by_nvlink.value not in (None, NO_NVLINK):
        return known(name, by_nvlink.value, "NVML")
    if links.active and by_nvlink.value is None:
        return unknown(name, f"whether NVLink joins them is not known: {by_nvlink.reason}", "NVML")
    if hidden:
        return unknown(name, hidden, DEVICES)
    beside = "" if by_nvlink.value == NO_NVLINK else "; NVML does not say whether NVLink joins them"
    if by_pcie.value is not None:
        return known(name, by_pcie.value, f"NVML{beside}")
    found = distance(gpu.pci_bus_id, bus_id, root)
    return stated(name, found.value, f"{DEVICES}{beside}", f"{found.reason}; {by_pcie.why_none}")


def _to_network(gpu: GpuInfo, device: NetworkDevice, hidden: str | None, root: Path) -> Fact:
    name, source = f"topology_{device.name}", f"{DEVICES}/{device.bus_id}"
    if device.reason or hidden:
        return unknown(name, device.reason or hidden or "", source)
    found = distance(gpu.pci_bus_id, device.bus_id, root)
    return stated(name, found.value, source, found.reason or "not found")


# The facts of link_state: what a GPU's links are at this moment and what lies on the way, each known or why not.


FLATTENED = "a virtual machine hides the real ports above the GPU"
GROUPS = "/sys/kernel/iommu_groups"
# What the kernel calls the kinds of an IOMMU group (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
IOMMU_KINDS = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}


def link_facts_now(
    gpu: GpuInfo, nvml: NvmlGpu, others: Sequence[tuple[int, str]] = (), root: Path = Path("/")
) -> tuple[Fact, ...]:
    """Every fact of a GPU's links but its error counters. Never raises.

    To be called while the link is busy: an idle one trains down to save power. ``others`` are CUDA index and PCI bus id
    of the other GPUs here; of ``gpu`` the bus id counts, and whether CUDA calls it integrated.
    """
    way = way_to_root(gpu.pci_bus_id, root)
    hidden = way.flattened(gpu.integrated)
    links = nvlinks(nvml.query)
    return (
        *_trained(way, nvml),
        *_slot(way, hidden),
        *_control(way),
        _redirected(way, hidden, root),
        _iommu(way, hidden, root),
        *_window(gpu.pci_bus_id, nvml, root),
        _node(gpu.pci_bus_id, way, root),
        *_path(way, hidden),
        Answer(links.up, links.reason).fact("nvlinks"),
        nvlink_version(nvml.query, links).fact("nvlink_version"),
        nvlink_bytes_per_s(nvml.query, links).fact("nvlink_bytes_per_s"),
        nvlink_peers(nvml.query, links).fact("nvlink_peers"),
        coherent(nvml.query).fact("c2c"),
        *topology_facts(gpu, nvml.query, links, others, FLATTENED if hidden else None, root),
    )


def _trained(way: Way, nvml: NvmlGpu) -> tuple[Fact, ...]:
    """As the link runs now, and what the GPU itself could do."""
    ask = nvml.query.ask_board
    link, source = (way.hops[0].link, f"{DEVICES}/{way.hops[0].bus_id}") if way.hops else (LinkInfo(), DEVICES)

    def fact(name: str, shown: int | None, function: str, *, nvml_first: bool = False) -> Fact:
        answer = ask(function)
        found = [(shown, source), (answer.value, "NVML")]
        for value, where in reversed(found) if nvml_first else found:
            if value:
                return known(name, value, where)
        silent = "sysfs does not say" if way.hops else NOT_SHOWN
        return unknown(name, f"{silent}; {answer.why_none}", source)

    return (
        fact("generation_now", link.generation_now, "nvmlDeviceGetCurrPcieLinkGeneration"),
        fact("lanes_now", link.lanes_now, "nvmlDeviceGetCurrPcieLinkWidth"),
        fact("generation_gpu_max", link.generation_max, "nvmlDeviceGetGpuMaxPcieLinkGeneration", nvml_first=True),
        fact("lanes_gpu_max", link.lanes_max, "nvmlDeviceGetMaxPcieLinkWidth"),
    )


def _slot(way: Way, hidden: bool | None) -> tuple[Fact, ...]:
    """The narrowest bridge on the way, and which one it is where the GPU could do more."""
    names = ("generation_slot_max", "lanes_slot_max", "slot_limit_bus_id")
    port = narrowest(way.bridges) if not hidden else None
    if port is None:
        reason = (
            FLATTENED if hidden else "sysfs does not say what the bridges can do" if way.bridges else _why_none(way)
        )
        return tuple(unknown(name, reason, DEVICES) for name in names)
    source = f"{DEVICES}/{port.bus_id}"
    own = raw_rate(way.hops[0].link)
    limits = port.bus_id if raw_rate(port.link) < own else "none"
    return (
        known(names[0], port.link.generation_max, source),
        known(names[1], port.link.lanes_max, source),
        stated(names[2], limits if own else None, source, "what the GPU itself can do is not known"),
    )


def _control(way: Way) -> tuple[Fact, ...]:
    """Packet sizes and ordering from the GPU's configuration space."""
    names = [name for name in ExpressControl._fields if name not in ("kind", "reason")]
    if not way.hops:
        return tuple(unknown(name, NOT_SHOWN, DEVICES) for name in names)
    control, source = way.hops[0].control, f"{DEVICES}/{way.hops[0].bus_id}/config"
    reason = control.reason or "an integrated endpoint has no link"
    return tuple(stated(name, getattr(control, name), source, reason) for name in names)


def _redirected(way: Way, hidden: bool | None, root: Path) -> Fact:
    """Whether any bridge on the way redirects what one device sends another (ACS)."""
    if hidden or not way.bridges:
        return unknown("acs", FLATTENED if hidden else _why_none(way), DEVICES)
    machine = Machine(root)
    found = {hop.bus_id: read_redirection(machine.at(f"{DEVICES}/{hop.bus_id}/config")) for hop in way.bridges}
    redirecting = [bus_id for bus_id, one in found.items() if one.value]
    if redirecting:
        return known("acs", True, f"{DEVICES}/{redirecting[0]}/config")
    unread = next(((bus_id, one.reason) for bus_id, one in found.items() if one.value is None), None)
    if unread is not None:
        return unknown("acs", unread[1] or "not read", f"{DEVICES}/{unread[0]}/config")
    return known("acs", False, f"{DEVICES}/*/config of {len(found)} bridges")


def _iommu(way: Way, hidden: bool | None, root: Path) -> Fact:
    """Whether addresses of this device are translated on their way to memory."""
    machine = Machine(root)
    if not way.hops:
        return unknown("iommu", NOT_SHOWN, DEVICES)
    group = f"{DEVICES}/{way.hops[0].bus_id}/iommu_group"
    if machine.exists(group):
        kind = machine.read(f"{group}/type")
        word = IOMMU_KINDS.get(kind.text, kind.text) if kind.text else None
        return stated("iommu", word, kind.source, kind.reason or "the kernel does not say")
    if not machine.exists("/sys/kernel"):
        return unknown("iommu", "no such file", GROUPS)
    beyond = "; that of the host of this virtual machine cannot be seen" if hidden else ""
    return known("iommu", "off", f"{GROUPS}: the GPU is in none{beyond}")


def _window(bus_id: str | None, nvml: NvmlGpu, root: Path) -> tuple[Fact, ...]:
    """Whether the host can address all of the GPU's memory at once."""
    window, source = largest_window_bytes(bus_id, root), f"{DEVICES}/{bus_id}/resource"
    answer = nvml.query.ask_board("nvmlDeviceGetBAR1MemoryInfo").member("bar1Total")
    if window is None:
        window, source = answer.value, "NVML"
    memory = nvml.query.ask_board("nvmlDeviceGetMemoryInfo").member("total")
    if not window:
        reason = f"sysfs shows no window; {answer.why_none}"
        return unknown("resizable_bar", reason, source), unknown("bar1_bytes", reason, source)
    covers = window >= memory.value if memory.value is not None else None
    return (
        stated("resizable_bar", covers, source, f"size of the memory unknown: {memory.reason}"),
        known("bar1_bytes", window, source),
    )


def _node(bus_id: str | None, way: Way, root: Path) -> Fact:
    reason = "the firmware does not say" if way.hops else NOT_SHOWN
    return stated("numa_node", numa_node(bus_id, root), f"{DEVICES}/{bus_id}/numa_node", reason)


def _path(way: Way, hidden: bool | None) -> tuple[Fact, ...]:
    """Every device from the GPU up to the root, as far as it is no fiction of a virtual machine."""
    if not way.hops:
        return tuple(unknown(name, NOT_SHOWN, DEVICES) for name in ("hops", "switches", "root", "virtual_bus"))
    source = f"{DEVICES}/{way.hops[0].bus_id}"
    flat = f"{source}: a hypervisor put the GPU there; slot, bridges, their errors and who shares them are hidden"
    either = "an integrated GPU, or one put there by a hypervisor"
    no_count = FLATTENED if hidden else "a bridge of another kind is on the way"
    return (
        known("hops", len(way.hops), source),
        stated("switches", None if hidden else way.switches, source, no_count),
        *(fact for number, hop in enumerate(way.hops) for fact in _hop(f"hop{number}_", hop)),
        known("root", way.root, source),
        stated("virtual_bus", hidden, flat if hidden else source, either),
    )


def _hop(prefix: str, hop: Hop) -> tuple[Fact, ...]:
    source, silent = f"{DEVICES}/{hop.bus_id}", "sysfs does not say"
    link = hop.link
    return (
        known(f"{prefix}bus_id", hop.bus_id, source),
        known(f"{prefix}kind", hop.kind, source),
        stated(f"{prefix}generation_now", link.generation_now, f"{source}/current_link_speed", silent),
        stated(f"{prefix}lanes_now", link.lanes_now, f"{source}/current_link_width", silent),
        stated(f"{prefix}generation_max", link.generation_max, f"{source}/max_link_speed", silent),
        stated(f"{prefix}lanes_max", link.lanes_max, f"{source}/max_link_width", silent),
        stated(f"{prefix}max_payload_bytes", link.max_payload_bytes, f"{source}/config", hop.control.reason or silent),
    )


def _why_none(way: Way) -> str:
    return "there is no port above the GPU" if way.hops else NOT_SHOWN

"""Facts about a GPU's links: PCIe as trained and as the slot allows, NVLinks, and the paths to other devices.

All links belong to the board, so a MIG instance gets its board's answers.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from microbench.core.model import Fact, GpuInfo, LinkInfo, pcie_raw_rate
from microbench.gpu.machine import pci
from microbench.gpu.machine import query as nvml
from microbench.host.affinity import nodes
from microbench.host.files import Machine, known, labelled, stated, unknown

FLATTENED = "a virtual machine hides the real ports above the GPU"
GROUPS = "/sys/kernel/iommu_groups"
# The kernel's names for the kinds of an IOMMU group (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
IOMMU_KINDS = {"identity": "passthrough", "DMA": "translated", "DMA-FQ": "translated"}
NO_NVLINK = "none"


def link_facts_now(
    gpu: GpuInfo, query: nvml.Query, others: Sequence[tuple[int, str]] = (), root: Path = Path("/")
) -> tuple[Fact, ...]:
    """Every fact about a GPU's links except the error counters, each with a value or a reason. Never raises.

    Call it while the link is busy, because an idle link trains down to save power. ``others`` are CUDA index and PCI
    bus id of the other GPUs. Of ``gpu`` only the bus id and ``integrated`` (CUDA's answer) are used.
    """
    way = pci.way_to_root(gpu.pci_bus_id, root)
    hidden = way.flattened(gpu.integrated)
    links = nvlinks(query)
    folder, node_silent = f"{pci.DEVICES}/{gpu.pci_bus_id}", "the firmware does not say" if way.hops else pci.NOT_SHOWN
    return (
        *_trained(way, query),
        *_slot(way, hidden),
        *_control(way),
        unknown("acs", FLATTENED if hidden else _why_none(way), pci.DEVICES)
        if hidden or not way.bridges
        else redirection("acs", way.bridges, root),
        _iommu(way, hidden, root),
        *_window(gpu.pci_bus_id, query, root),
        stated("numa_node", pci.numa_node(gpu.pci_bus_id, root), f"{folder}/numa_node", node_silent),
        *_path(way, hidden),
        nvml.Answer(links.up, links.reason).fact("nvlinks"),
        nvlink_version(query, links).fact("nvlink_version"),
        nvlink_bytes_per_s(query, links).fact("nvlink_bytes_per_s"),
        nvlink_peers(query, links).fact("nvlink_peers"),
        coherent(query).fact("c2c"),
        *_neighbours(gpu, query, links, others, FLATTENED if hidden else None, root),
    )


def _trained(way: pci.Way, query: nvml.Query) -> tuple[Fact, ...]:
    """How the link runs now, and what the GPU itself could do."""
    link, source = (way.hops[0].link, f"{pci.DEVICES}/{way.hops[0].bus_id}") if way.hops else (LinkInfo(), pci.DEVICES)

    def fact(name: str, shown: int | None, function: str, *, nvml_first: bool = False) -> Fact:
        answer = query.ask_board(function)
        values = [(shown, source), (answer.value, "NVML")]
        for value, where in reversed(values) if nvml_first else values:
            if value:
                return known(name, value, where)
        silent = "sysfs does not say" if way.hops else pci.NOT_SHOWN
        return unknown(name, f"{silent}; {answer.why_none}", source)

    return (
        fact("generation_now", link.generation_now, "nvmlDeviceGetCurrPcieLinkGeneration"),
        fact("lanes_now", link.lanes_now, "nvmlDeviceGetCurrPcieLinkWidth"),
        fact("generation_gpu_max", link.generation_max, "nvmlDeviceGetGpuMaxPcieLinkGeneration", nvml_first=True),
        fact("lanes_gpu_max", link.lanes_max, "nvmlDeviceGetMaxPcieLinkWidth"),
    )


def _slot(way: pci.Way, hidden: bool | None) -> tuple[Fact, ...]:
    """The narrowest bridge on the way, and its bus id if the GPU could do more."""
    names = ("generation_slot_max", "lanes_slot_max", "slot_limit_bus_id")
    port = pci.narrowest(way.bridges) if not hidden else None
    if port is None:
        reason = "sysfs does not say what the bridges can do" if way.bridges else _why_none(way)
        return tuple(unknown(name, FLATTENED if hidden else reason, pci.DEVICES) for name in names)
    source = f"{pci.DEVICES}/{port.bus_id}"
    own = pci.raw_rate(way.hops[0].link)
    limits = port.bus_id if pci.raw_rate(port.link) < own else "none"
    return (
        known(names[0], port.link.generation_max, source),
        known(names[1], port.link.lanes_max, source),
        stated(names[2], limits if own else None, source, "what the GPU itself can do is not known"),
    )


def _control(way: pci.Way) -> tuple[Fact, ...]:
    names = [name for name in pci.ExpressControl._fields if name not in ("kind", "reason")]
    if not way.hops:
        return tuple(unknown(name, pci.NOT_SHOWN, pci.DEVICES) for name in names)
    control, source = way.hops[0].control, f"{pci.DEVICES}/{way.hops[0].bus_id}/config"
    reason = control.reason or "an integrated endpoint has no link"
    return tuple(stated(name, getattr(control, name), source, reason) for name in names)


def redirection(name: str, bridges: Sequence[pci.Hop], root: Path) -> Fact:
    """Whether any of these bridges redirects peer traffic. Unknown if one cannot be read and no other redirects."""
    paths = [f"{pci.DEVICES}/{hop.bus_id}/config" for hop in bridges]
    answers = [(path, pci.read_redirection(Machine(root).at(path))) for path in paths]
    for path, answer in answers:
        if answer.value:
            return known(name, True, path)
    for path, answer in answers:
        if answer.value is None:
            return unknown(name, answer.reason or "not read", path)
    return known(name, False, f"{pci.DEVICES}/*/config of {len(answers)} bridges")


def _iommu(way: pci.Way, hidden: bool | None, root: Path) -> Fact:
    """Whether the device's addresses are translated on their way to memory."""
    machine = Machine(root)
    if not way.hops:
        return unknown("iommu", pci.NOT_SHOWN, pci.DEVICES)
    group = f"{pci.DEVICES}/{way.hops[0].bus_id}/iommu_group"
    if machine.exists(group):
        kind = machine.read(f"{group}/type")
        word = IOMMU_KINDS.get(kind.text, kind.text) if kind.text else None
        return stated("iommu", word, kind.source, kind.reason or "the kernel does not say")
    if not machine.exists("/sys/kernel"):
        return unknown("iommu", "no such file", GROUPS)
    beyond = "; that of the host of this virtual machine cannot be seen" if hidden else ""
    return known("iommu", "off", f"{GROUPS}: the GPU is in none{beyond}")


def _window(bus_id: str | None, query: nvml.Query, root: Path) -> tuple[Fact, ...]:
    """Whether the host can address all of the GPU's memory at once, and how much it can."""
    window, source = pci.largest_window_bytes(bus_id, root), f"{pci.DEVICES}/{bus_id}/resource"
    answer = query.ask_board("nvmlDeviceGetBAR1MemoryInfo").member("bar1Total")
    if window is None:
        window, source = answer.value, "NVML"
    memory = query.ask_board("nvmlDeviceGetMemoryInfo").member("total")
    if not window:
        reason = f"sysfs shows no window; {answer.why_none}"
        return unknown("resizable_bar", reason, source), unknown("bar1_bytes", reason, source)
    covers = window >= memory.value if memory.value is not None else None
    return (
        stated("resizable_bar", covers, source, f"size of the memory unknown: {memory.reason}"),
        known("bar1_bytes", window, source),
    )


def _path(way: pci.Way, hidden: bool | None) -> tuple[Fact, ...]:
    """Every device from the GPU up to the root, and whether a virtual machine made this bus."""
    if not way.hops:
        return tuple(unknown(name, pci.NOT_SHOWN, pci.DEVICES) for name in ("hops", "switches", "root", "virtual_bus"))
    source = f"{pci.DEVICES}/{way.hops[0].bus_id}"
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


def _hop(prefix: str, hop: pci.Hop) -> tuple[Fact, ...]:
    source, silent = f"{pci.DEVICES}/{hop.bus_id}", "sysfs does not say"
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


def _why_none(way: pci.Way) -> str:
    return "there is no port above the GPU" if way.hops else pci.NOT_SHOWN


MEGABYTE = 1e6


class NvLinks(NamedTuple):
    """The numbers of the NVLinks that are up (none on a GPU without NVLink); ``reason`` if that is unknown."""

    active: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def up(self) -> int | None:
        return len(self.active) if self.reason is None else None

    @property
    def none_up(self) -> nvml.Answer:
        """The answer about the links if none is up."""
        return nvml.Answer(None, self.reason or "no NVLink is up")


def nvlinks(query: nvml.Query) -> NvLinks:
    """Which NVLinks are up; none if GPU or driver have no NVLink."""
    states = [query.ask_board("nvmlDeviceGetNvLinkState", link) for link in range(nvml.NVLINK_MOST_LINKS)]
    answered = any(state.value is not None for state in states)
    if not answered and not states[0].unsupported:
        return NvLinks(reason=states[0].reason)
    return NvLinks(tuple(link for link, state in enumerate(states) if state.flag()))


def nvlink_bytes_per_s(query: nvml.Query, links: NvLinks) -> nvml.Answer:
    """The line rate of one NVLink in one direction, in bytes a second."""
    if not links.active:
        return links.none_up
    common = query.board_field(nvml.Field.NVLINK_SPEED_MBPS_COMMON)
    own = common if common.value else query.board_field(nvml.Field.NVLINK_GET_SPEED, links.active[0])
    return nvml.Answer(own.value * MEGABYTE) if own.value else nvml.Answer(None, common.reason or "NVML says 0")


def nvlink_version(query: nvml.Query, links: NvLinks) -> nvml.Answer:
    """The version of the links, such as "4.0"."""
    if not links.active:
        return links.none_up
    answer = query.ask_board("nvmlDeviceGetNvLinkVersion", links.active[0])
    return answer._replace(value=nvml.NVLINK_VERSIONS.get(answer.value), reason=answer.reason or "not known here")


def nvlink_peers(query: nvml.Query, links: NvLinks) -> nvml.Answer:
    """The devices at the other ends: "switch", "gpu", "processor", or several of them."""
    if not links.active:
        return links.none_up
    answers = [query.ask_board("nvmlDeviceGetNvLinkRemoteDeviceType", link) for link in links.active]
    words = {nvml.NVLINK_PEERS[answer.value] for answer in answers if answer.value in nvml.NVLINK_PEERS}
    return nvml.Answer(", ".join(sorted(words)) or None, answers[0].reason or "NVML does not know")


def coherent(query: nvml.Query) -> nvml.Answer:
    """Whether a coherent chip-to-chip link (NVLink-C2C) joins GPU and CPU; False if the GPU cannot have one."""
    mode = query.ask_board("nvmlDeviceGetC2cModeInfoV").member("isC2cEnabled")
    links = query.board_field(nvml.Field.C2C_LINK_COUNT)
    if mode.value is None and links.value is None:
        return nvml.Answer(False) if mode.unsupported else mode
    return nvml.Answer(bool(mode.value) or bool(links.value))


def topology(query: nvml.Query, links: NvLinks, bus_id: str) -> tuple[nvml.Answer, nvml.Answer]:
    """How this GPU reaches the GPU with a PCI bus id: by NVLink ("NV18", "none"), and by PCIe ("PIX" to "SYS")."""
    other = query.ask_system("nvmlDeviceGetHandleByPciBusId", bus_id)
    if other.value is None:
        return other, other
    level = query.ask_board("nvmlDeviceGetTopologyCommonAncestor", other.value)
    by_pcie = level._replace(value=nvml.TOPOLOGY_LEVELS.get(level.value), reason=level.reason or "NVML does not know")
    if links.reason is not None:
        return nvml.Answer(None, links.reason), by_pcie
    # The NVLinks that lead to it, directly or through a switch; none if NVML knows of none.
    ends = [query.ask_board("nvmlDeviceGetNvLinkRemotePciInfo", link).member("busId").value for link in links.active]
    joined = sum(pci.same_device(end, bus_id) for end in ends)
    if not joined:
        kinds = [query.ask_board("nvmlDeviceGetNvLinkRemoteDeviceType", link).value for link in links.active]
        switched = sum(nvml.NVLINK_PEERS.get(kind) == "switch" for kind in kinds)
        if switched:
            status = query.ask_board("nvmlDeviceGetP2PStatus", other.value, nvml.PEERS_BY_NVLINK).value
            joined = switched if status == nvml.PEERS_OK else 0
    return nvml.Answer(f"NV{joined}" if joined else "none"), by_pcie


# In the words of ``nvidia-smi topo -m``: at most one switch between them; several switches; the host bridge (a CPU's
# root complex); two host bridges on one NUMA node; the link between NUMA nodes.
Nearness = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
TOPOLOGY = "topology_"  # the facts that name the class of a device
NETWORK_CLASS = "0x02"
VIRTIO_VENDOR = "0x1af4"
# A device below a switch has the switch's downstream port above it.
BELOW_ONE_SWITCH = 2


class NetworkDevice(NamedTuple):
    """A network or InfiniBand controller by its name ("mlx5_0", "eth0"), or by its bus id if it has no name.

    ``reason`` says why its place on the bus is not a real one.
    """

    name: str
    bus_id: str
    reason: str | None = None


def distance(first: str | None, second: str | None, root: Path = Path("/")) -> nvml.Answer:
    """The Nearness of two devices (bus ids), by their places on the bus; if they share no root, by their NUMA nodes."""
    ways = pci.way_to_root(first, root), pci.way_to_root(second, root)
    if not all(way.hops for way in ways):
        return nvml.Answer(None, "sysfs does not show both devices")
    if ways[0].root != ways[1].root:
        numbers = pci.numa_node(first, root), pci.numa_node(second, root)
        if None not in numbers:
            return nvml.Answer("NODE" if numbers[0] == numbers[1] else "SYS")
        silent = "the firmware does not say on which NUMA nodes they are"
        return nvml.Answer("NODE") if len(nodes(Machine(root))) == 1 else nvml.Answer(None, silent)
    down = [[hop.bus_id for hop in reversed(way.hops)] for way in ways]
    shared = sum(1 for _ in takewhile(lambda ids: ids[0] == ids[1], zip(*down, strict=False)))
    if shared == 0:
        return nvml.Answer("PHB")
    return nvml.Answer("PIX" if max(map(len, down)) - shared <= BELOW_ONE_SWITCH else "PXB")


def network_devices(root: Path = Path("/")) -> tuple[NetworkDevice, ...]:
    """All network controllers in the order of their bus ids, without virtual functions."""
    machine = Machine(root)
    devices = []
    for bus_id in machine.names(pci.DEVICES):
        folder = f"{pci.DEVICES}/{bus_id}"
        kind = machine.read(f"{folder}/class").text or ""
        if kind.startswith(NETWORK_CLASS) and not machine.exists(f"{folder}/physfn"):
            virtio = machine.read(f"{folder}/vendor").text == VIRTIO_VENDOR
            reason = "a virtio device exists only in its hypervisor's software, not on the bus" if virtio else None
            # InfiniBand's name comes first, as in nvidia-smi; a virtio controller's interface belongs to its child.
            inside = [folder, *(f"{folder}/{name}" for name in machine.names(folder) if name.startswith("virtio"))]
            places = [f"{folder}/infiniband", *(f"{place}/net" for place in inside)]
            found = next((name for place in places for name in machine.names(place)), bus_id)
            devices.append(NetworkDevice(found, bus_id, reason))
    return tuple(devices)


def _neighbours(
    gpu: GpuInfo, query: nvml.Query, links: NvLinks, others: Sequence[tuple[int, str]], hidden: str | None, root: Path
) -> Iterator[Fact]:
    """``topology_gpu1`` and ``topology_<name>``: NV#, else PIX, PXB, PHB, NODE or SYS, as in ``nvidia-smi topo -m``.

    ``hidden`` says why the bus is not the real one; places on it are then ignored.
    """
    for index, bus_id in others:
        yield _to_gpu(f"{TOPOLOGY}gpu{index}", gpu, query, links, bus_id, hidden, root)
    for device in network_devices(root):
        name, source = f"{TOPOLOGY}{device.name}", f"{pci.DEVICES}/{device.bus_id}"
        silent = device.reason or hidden
        if silent:
            yield unknown(name, silent, source)
        else:
            near = distance(gpu.pci_bus_id, device.bus_id, root)
            yield stated(name, near.value, source, near.reason or "not found")


def _to_gpu(
    name: str, gpu: GpuInfo, query: nvml.Query, links: NvLinks, bus_id: str, hidden: str | None, root: Path
) -> Fact:
    if pci.same_device(gpu.pci_bus_id, bus_id):
        return known(name, "same board", "PCI bus id")
    by_nvlink, by_pcie = topology(query, links, bus_id)
    if by_nvlink.value not in (None, NO_NVLINK):
        return known(name, by_nvlink.value, "NVML")
    if links.active and by_nvlink.value is None:
        return unknown(name, f"whether NVLink joins them is not known: {by_nvlink.reason}", "NVML")
    if hidden:
        return unknown(name, hidden, pci.DEVICES)
    note = "" if by_nvlink.value == NO_NVLINK else "; NVML does not say whether NVLink joins them"
    if by_pcie.value is not None:
        return known(name, by_pcie.value, f"NVML{note}")
    near = distance(gpu.pci_bus_id, bus_id, root)
    return stated(name, near.value, f"{pci.DEVICES}{note}", f"{near.reason}; {by_pcie.why_none}")


CPU_INFO = "/proc/cpuinfo"
PORT_RATE = re.compile(r"([\d.]+) Gb/sec")
ACTIVE = "4:"  # the kernel's number of the state ACTIVE of an InfiniBand or RoCE port
GIGABIT_BYTES = 1e9 / 8


def path_facts(
    bus_id: str | None, topology: Iterable[Fact], others: Sequence[tuple[int, str]] = (), root: Path = Path("/")
) -> tuple[Fact, ...]:
    """``path0_device``, ``path0_switches`` and so on for every device whose class in ``topology`` is a PCIe class.

    ``topology`` are the facts of topology.py. Devices joined by NVLink, and devices whose place on the bus is hidden,
    have no path. ``others`` are CUDA index and bus id of the other GPUs. Further facts identify the processor, because
    a path may lead through it.
    """
    classes = {fact.name: fact.value for fact in topology if fact.name.startswith(TOPOLOGY)}
    near = {name.removeprefix(TOPOLOGY): value for name, value in classes.items() if value in get_args(Nearness)}
    own = pci.way_to_root(bus_id, root)
    facts: list[Fact] = []
    gpus = [NetworkDevice(f"gpu{index}", other) for index, other in others]
    devices = [device for device in (*gpus, *network_devices(root)) if device.name in near]
    for number, device in enumerate(devices):
        prefix, network = f"path{number}_", device not in gpus
        facts.append(known(f"{prefix}device", device.name, f"{pci.DEVICES}/{device.bus_id}"))
        facts += _between(prefix, own, pci.way_to_root(device.bus_id, root), root, network=network)
        if network:
            facts += _port(prefix, device, Machine(root))
    if devices:
        facts += _processor(Machine(root))
    return tuple(facts)


def _between(prefix: str, own: pci.Way, other: pci.Way, root: Path, *, network: bool) -> Iterator[Fact]:
    """Facts of both ways below the lowest device that they share, or of the whole ways if they share none."""
    shared = {hop.bus_id for hop in own.hops} & {hop.bus_id for hop in other.hops}
    sides = [tuple(takewhile(lambda hop: hop.bus_id not in shared, way.hops)) for way in (own, other)]
    source = f"{pci.DEVICES}/{other.hops[0].bus_id}" if other.hops else pci.DEVICES
    # On each side there are the endpoint, the port above it, and two more ports for each further switch.
    between = [len(side) - 2 for side in sides]
    whole = all(count >= 0 and count % 2 == 0 for count in between)
    switches = sum(between) // 2 + bool(shared) if whole else None
    yield stated(f"{prefix}switches", switches, source, "a bridge of another kind is on the way")
    hops = [hop for side in sides for hop in side]
    # A GPU's link counts with its highest speed, because an idle GPU trains it down; the link of a network device
    # counts with its current speed.
    trained = {hop.bus_id for hop in sides[1]} if network else set()
    rated = []
    for hop in hops:
        generation, lanes = hop.link.generation_max, hop.link.lanes_max
        if hop.bus_id in trained and hop.link.generation_now and hop.link.lanes_now:
            generation, lanes = hop.link.generation_now, hop.link.lanes_now
        if rate := pcie_raw_rate(generation or 0, lanes or 0):
            rated.append((rate, generation, lanes, hop.bus_id))
    _, generation, lanes, narrowest = min(rated, key=lambda one: one[0], default=(None, None, None, None))
    for name, value in (("generation", generation), ("lanes", lanes), ("narrowest_bus_id", narrowest)):
        yield stated(f"{prefix}{name}", value, source, "sysfs gives no speed of any link on the way")
    payloads = [hop.control.max_payload_bytes for hop in hops]
    sizes = [size for size in payloads if size is not None]
    why = next((hop.control.reason for hop in hops if hop.control.reason), pci.NOT_SHOWN)
    yield stated(f"{prefix}max_payload_bytes", min(sizes, default=None), f"{source}/config", why)
    bridges = [hop for side in sides for hop in side[1:]]
    yield redirection(f"{prefix}acs", bridges, root) if bridges else known(f"{prefix}acs", False, source)
    if network and other.hops:
        control = other.hops[0].control
        for name in ("max_read_request_bytes", "extended_tags"):
            yield stated(f"{prefix}{name}", getattr(control, name), f"{source}/config", control.reason or why)


def _port(prefix: str, device: NetworkDevice, machine: Machine) -> Iterator[Fact]:
    """The device's RDMA state ("active", "down", "no"), its fastest active port ("mlx5_0:1") and that port's rate."""
    folder = f"{pci.DEVICES}/{device.bus_id}/infiniband"
    names = machine.names(folder)
    ports = [(name, port) for name in names for port in machine.names(f"{folder}/{name}/ports")]
    active = {}
    for name, port in ports:
        files = f"{folder}/{name}/ports/{port}"
        if (machine.read(f"{files}/state").text or "").startswith(ACTIVE):
            match = PORT_RATE.match(machine.read(f"{files}/rate").text or "")
            active[f"{name}:{port}"] = float(match[1]) * GIGABIT_BYTES if match else None
    state = "no" if not names else None if not ports else "active" if active else "down"
    yield stated(f"{prefix}rdma", state, folder, "sysfs shows no port of the device")
    fastest = max(active, key=lambda port: active[port] or 0.0, default=None)
    yield stated(f"{prefix}port", fastest, folder, "no active port")
    rate = active[fastest] if fastest else None
    yield stated(f"{prefix}port_bytes_per_s", rate, folder, "no active port with a rate")


def _processor(machine: Machine) -> Iterator[Fact]:
    """Vendor, family and model number of the processor: a path through it depends on them."""
    reading = machine.read(CPU_INFO)
    arm = "ARM" if labelled(reading.text, "CPU implementer") else None
    power = "POWER" if (labelled(reading.text, "cpu") or "").startswith("POWER") else None
    vendor = labelled(reading.text, "vendor_id") or arm or power
    yield stated("processor_vendor", vendor, CPU_INFO, reading.reason or "the kernel names no vendor")
    for name, label in (("processor_family", "cpu family"), ("processor_model", "model")):
        text = labelled(reading.text, label) or ""
        number = int(text) if text.isdecimal() else None
        yield stated(name, number, CPU_INFO, reading.reason or "the kernel gives no such number")

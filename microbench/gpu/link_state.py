"""The facts of link_state: what a GPU's links are at this moment and what lies on the way, each known or why not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from microbench.gpu.link_topology import topology_facts
from microbench.gpu.nvml import NvmlGpu
from microbench.gpu.nvml_link import (
    coherent,
    nvlink_bytes_per_s,
    nvlink_peers,
    nvlink_version,
    nvlinks,
)
from microbench.gpu.nvml_query import Answer
from microbench.gpu.pci import (
    DEVICES,
    NOT_SHOWN,
    Hop,
    Way,
    largest_window_bytes,
    narrowest,
    numa_node,
    raw_rate,
    way_to_root,
)
from microbench.gpu.pci_config import ExpressControl, read_redirection
from microbench.host.files import Machine, known, stated, unknown
from microbench.model import Fact, GpuInfo, LinkInfo

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

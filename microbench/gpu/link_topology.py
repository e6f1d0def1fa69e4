"""How far the other GPUs and the network devices are from a GPU: NVLink where there is one, else by the PCIe bus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from microbench.gpu.nvml_link import NvLinks, topology
from microbench.gpu.nvml_query import Query
from microbench.gpu.pci import DEVICES, same_device
from microbench.gpu.pci_topology import NetworkDevice, distance, network_devices
from microbench.host.files import known, stated, unknown
from microbench.model import Fact, GpuInfo

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

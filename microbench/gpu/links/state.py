"""The link as it is while it works: copies run both ways, and meanwhile sysfs and NVML are asked."""

from __future__ import annotations

from cuda.bindings import driver

from microbench.gpu.context import check, device_uuid
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_counters import counters_risen, link_counters
from microbench.gpu.link_state import link_facts_now
from microbench.gpu.links.copies import Ends, copy_submit
from microbench.gpu.links.memory import HostBuffer
from microbench.gpu.nvml import NvmlGpu
from microbench.model import Fact, GpuInfo

LOAD_BYTES = 64 << 20
# Some 0.5 s each way on a PCIe 5.0 x16 link, longer on any other, and more than the facts take to read.
COPIES = 400
NOT_READY = int(driver.CUresult.CUDA_ERROR_NOT_READY)


def state(case: Case, info: GpuInfo, nvml: NvmlGpu) -> tuple[Fact, ...]:
    """See Links.state."""
    before = link_counters(info.pci_bus_id, nvml)
    streams = (case.stream(0), case.stream(1))
    for stream, to_device in zip(streams, (True, False), strict=True):
        ends = Ends(case, HostBuffer(case.context, "pinned", LOAD_BYTES), LOAD_BYTES, to_device=to_device)
        copy_submit(ends, "h2d" if to_device else "d2h", stream)(COPIES)
    facts = link_facts_now(info, nvml, _others(info))
    busy = all(int(driver.cuStreamQuery(stream)[0]) == NOT_READY for stream in streams)
    case.context.synchronize()
    risen = counters_risen(before, link_counters(info.pci_bus_id, nvml))
    loaded = Fact("read_under_load", busy, "copies both ways were still running when all was read")
    return (*facts, loaded, *before, *risen)


def _others(info: GpuInfo) -> list[tuple[int, str]]:
    """CUDA index and PCI bus id of every other GPU that this process sees."""
    found = []
    for index in range(int(check(driver.cuDeviceGetCount()))):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device) != info.uuid:
            found.append((index, check(driver.cuDeviceGetPCIBusId(32, device)).split(b"\0")[0].decode()))
    return found

"""The link as it is while it works: copies run both ways, and meanwhile sysfs and NVML are asked."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver

from microbench.core.model import Fact, GpuInfo
from microbench.core.ops import IntArray
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check, device_uuid
from microbench.gpu.cuda.links.buffers import HostBuffer
from microbench.gpu.cuda.links.copies import Ends, copy_submit
from microbench.gpu.cuda.submit import DriverSubmit
from microbench.gpu.machine.counters import counters_risen, link_counters
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.topology import link_facts_now
from microbench.gpu.protocol.links import Direction

NANOSECOND_S = 1e-9
LOAD_BYTES = 64 << 20
# The facts take some 20 ms to read, the first time longer; a link that has come up slow must not take minutes.
LOAD_S = 0.3
MOST_COPIES = 400
DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")
NOT_READY = int(driver.CUresult.CUDA_ERROR_NOT_READY)


def state(case: Case, info: GpuInfo, nvml: NvmlGpu) -> tuple[Fact, ...]:
    before = link_counters(info.pci_bus_id, nvml.query)
    others = _others(info)
    streams = (case.stream(0), case.stream(1))
    # Both before the first copy: taking memory waits until the GPU is idle.
    to_device, to_host = (_load(case, direction, stream) for direction, stream in zip(DIRECTIONS, streams, strict=True))
    one_ns: IntArray = np.zeros(2, dtype=np.int64)
    to_device.round_trips(one_ns)
    copies = min(max(round(LOAD_S / (int(one_ns[-1]) * NANOSECOND_S)), 2), MOST_COPIES)
    to_device(copies)
    to_host(copies)
    facts = link_facts_now(info, nvml.query, others)
    busy = all(int(driver.cuStreamQuery(stream)[0]) == NOT_READY for stream in streams)
    case.context.synchronize()
    risen = counters_risen(before, link_counters(info.pci_bus_id, nvml.query))
    loaded = Fact("read_under_load", busy, "copies both ways were still running when all was read")
    return (*facts, loaded, *before, *risen)


def _load(case: Case, direction: Direction, stream: int) -> DriverSubmit:
    """Copies that keep one direction busy. What they move does not matter."""
    host = HostBuffer(case.context, "pinned", LOAD_BYTES)
    return copy_submit(Ends(case, host, LOAD_BYTES, to_device=direction == "h2d"), direction, stream)


def _others(info: GpuInfo) -> list[tuple[int, str]]:
    """CUDA index and PCI bus id of every other GPU that this process sees."""
    found = []
    for index in range(int(check(driver.cuDeviceGetCount()))):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device) != info.uuid:
            found.append((index, check(driver.cuDeviceGetPCIBusId(32, device)).split(b"\0")[0].decode()))
    return found

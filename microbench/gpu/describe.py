"""A GPU as CUDA, NVML and sysfs describe it together."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from microbench.gpu.context import check, device_uuid
from microbench.gpu.nvml import NvmlGpu
from microbench.gpu.pci import describe_link, numa_node
from microbench.model import GpuInfo

KILOHERTZ = 1e3


def describe(device: Any, nvml: NvmlGpu | None = None, *, context_open: bool = True) -> GpuInfo:
    """What is known of a CUdevice: CUDA's attributes first, then what NVML and sysfs add."""

    def attribute(name: str) -> int:
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(which, device)))

    bus_id = f"{attribute('PCI_DOMAIN_ID'):08x}:{attribute('PCI_BUS_ID'):02x}:{attribute('PCI_DEVICE_ID'):02x}.0"
    info = GpuInfo(
        name=check(driver.cuDeviceGetName(256, device)).split(b"\0")[0].decode(errors="replace"),
        uuid=device_uuid(device),
        index=int(device),
        pci_bus_id=bus_id,
        compute_capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(check(driver.cuDeviceTotalMem(device))),
        sm_clock_max_hz=attribute("CLOCK_RATE") * KILOHERTZ or None,
        memory_clock_max_hz=attribute("MEMORY_CLOCK_RATE") * KILOHERTZ or None,
        memory_bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH") or None,
        integrated=bool(attribute("INTEGRATED")),
        numa_node=numa_node(bus_id),
        link=describe_link(bus_id),
    )
    return nvml.describe(info, context_open=context_open) if nvml else info

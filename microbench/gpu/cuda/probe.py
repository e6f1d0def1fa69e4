"""The GPUs of this machine as CUDA and NVML describe them, and the Environment with those that a run may use."""

from typing import Any

from microbench.core.model import Environment, Fact, GpuInfo
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.context import check, device_uuid, find_device
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.pci import describe_link, link_facts, numa_node
from microbench.gpu.probe import facts_near, is_uuid, ordinals, packages

KILOHERTZ = 1e3


def environment_of(device: str | None) -> Environment:
    """The Environment with the GPUs that ``device`` selects. Raises DeviceAbsentError and MeasurementError."""
    check(driver.cuInit(0))
    count = int(check(driver.cuDeviceGetCount()))
    if device and is_uuid(device):
        chosen = [find_device(device)]
    else:
        chosen = [check(driver.cuDeviceGet(index)) for index in ordinals(device, count)]
    gpus: list[GpuInfo] = []
    facts: list[Fact] = []
    versions: list[str | None] = []
    for handle in chosen:
        by_cuda = describe(handle)
        nvml = NvmlGpu(by_cuda.uuid)
        gpus.append(nvml.describe(by_cuda, context_open=False))
        prefix = f"gpu{by_cuda.index}_"
        facts.extend((*nvml.facts(prefix), *link_facts(by_cuda.pci_bus_id or "", prefix=prefix)))
        versions.append(nvml.driver_version().value)
        nvml.close()
    cuda_driver = int(check(driver.cuDriverGetVersion()))  # 1000 x major + 10 x minor
    _, major, minor = driver.nvrtcVersion()
    return Environment(
        gpus=tuple(gpus),
        driver_version=versions[0],
        cuda_driver_version=f"{cuda_driver // 1000}.{cuda_driver % 1000 // 10}",
        cuda_toolkit_version=f"{major}.{minor}",
        packages=packages(),
        facts=(*facts_near(gpus[0]), *facts),
    )


def describe(device: Any, nvml: NvmlGpu | None = None) -> GpuInfo:
    """A CUdevice by CUDA's attributes and sysfs; with ``nvml`` also by NVML, if this process has a context on it."""

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
    return nvml.describe(info, context_open=True) if nvml else info

"""Names of devices, and the GPUs of this machine as CUDA and NVML describe them, with the host's facts near them."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from microbench.core.errors import DeviceAbsentError, UsageError
from microbench.core.model import Environment, Fact, GpuInfo
from microbench.gpu.cuda import context, driver
from microbench.gpu.cuda.context import check, device_uuid, find_device
from microbench.gpu.machine.diagnosis import package_version
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.pci import describe_link, link_facts, numa_node
from microbench.host.affinity import find_cores
from microbench.host.facts import host_facts

ORDINAL = re.compile(r"cuda:(\d+)")
PACKAGES = (
    "cuda-microbench", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-python", "cuda-bindings", "cuda-core",
    "cuda-pathfinder", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvmath-python", "torch", "triton", "jax", "jaxlib", "warp-lang", "nvidia-cutlass-dsl", "tilelang",
)  # fmt: skip


def check_name(device: str | None) -> None:
    """Raises UsageError unless ``device`` is None, "all", "cuda:N" or a UUID."""
    if device not in (None, "all") and not ORDINAL.fullmatch(device or "") and not is_uuid(device or ""):
        raise UsageError(f"{device!r} is not a device", "use cuda:N, a UUID as nvidia-smi -L prints it, all, or fake")


def is_uuid(device: str) -> bool:
    """True for a UUID as nvidia-smi -L prints it."""
    return device.startswith(("GPU-", "MIG-"))


def ordinals(device: str | None, count: int) -> Sequence[int]:
    """CUDA indices of the GPUs that ``device`` selects of ``count``. Raises DeviceAbsentError for an index too high."""
    named = ORDINAL.fullmatch(device or "")
    if named is None:
        return range(count)
    if int(named[1]) >= count:
        raise DeviceAbsentError(f"{device} is not here: CUDA shows {count} GPU(s)", "see `nvidia-smi -L`")
    return (int(named[1]),)


def packages() -> dict[str, str]:
    """Versions of the installed packages that matter to a launch."""
    return {name: version for name in PACKAGES if (version := package_version(name)) is not None}


def facts_near(gpu: GpuInfo | None) -> tuple[Fact, ...]:
    """The host's facts for a run near that GPU."""
    return host_facts(cores=find_cores(gpu.numa_node if gpu else None))


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
        versions.append(nvml.query.ask_system("nvmlSystemGetDriverVersion").value)
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
    attribute = partial(context.attribute, device)
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

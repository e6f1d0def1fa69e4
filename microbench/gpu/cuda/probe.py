"""The probe: what this machine is and which GPUs a run may use, answered before anything is planned."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver, nvrtc

from microbench.core.errors import DeviceAbsentError, MeasurementError, UsageError
from microbench.core.model import Environment, Fact, GpuInfo
from microbench.gpu.cuda.context import check, device_uuid, find_device
from microbench.gpu.machine.diagnosis import why_no_gpu
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.pci import describe_link, link_facts, numa_node
from microbench.host.affinity import find_cores
from microbench.host.facts import host_facts

KILOHERTZ = 1e3
ORDINAL = re.compile(r"cuda:(\d+)")
PACKAGES = (
    "cuda-microbench", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-python", "cuda-bindings", "cuda-core",
    "cuda-pathfinder", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvmath-python", "torch", "triton", "jax", "jaxlib", "warp-lang",
)  # fmt: skip


def probe(device: str | None) -> Environment:
    """The Environment with the GPUs that ``device`` selects: None or "all" for every GPU, "cuda:N", or a UUID.

    With None only the first is measured; the others may be the far ends of its links. Raises DeviceAbsentError if a
    named GPU is absent, UsageError if ``device`` is not a device name.
    """
    if device not in (None, "all") and not ORDINAL.fullmatch(device or "") and not _is_uuid(device or ""):
        raise UsageError(f"{device!r} is no device", "use cuda:N, a UUID as nvidia-smi -L prints it, all, or fake")
    absent = why_no_gpu()
    if absent is None:
        try:
            return _with_gpus(device)
        except MeasurementError as error:
            reason, next_step = str(error), "see `microbench doctor`"
    else:
        reason, next_step = absent.reason, absent.next_step
    if device not in (None, "all"):
        raise DeviceAbsentError(f"{device} is not here: {reason}", next_step)
    return Environment(packages=packages(), facts=facts_near(None), no_gpu_reason=reason, no_gpu_next_step=next_step)


def _is_uuid(device: str) -> bool:
    return device.startswith(("GPU-", "MIG-"))


def _with_gpus(device: str | None) -> Environment:
    check(driver.cuInit(0))
    count = int(check(driver.cuDeviceGetCount()))
    if device and _is_uuid(device):
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
    _, major, minor = nvrtc.nvrtcVersion()
    return Environment(
        gpus=tuple(gpus),
        driver_version=versions[0],
        cuda_driver_version=f"{cuda_driver // 1000}.{cuda_driver % 1000 // 10}",
        cuda_toolkit_version=f"{major}.{minor}",
        packages=packages(),
        facts=(*facts_near(gpus[0]), *facts),
    )


def ordinals(device: str | None, count: int) -> Sequence[int]:
    """CUDA indices of the GPUs that ``device`` selects of ``count``. Raises DeviceAbsentError for an index too high."""
    named = ORDINAL.fullmatch(device or "")
    if named is None:
        return range(count)
    if int(named[1]) >= count:
        raise DeviceAbsentError(f"{device} is not here: CUDA shows {count} GPU(s)", "see `nvidia-smi -L`")
    return (int(named[1]),)


def describe(device: Any, nvml: NvmlGpu | None = None) -> GpuInfo:
    """A CUdevice by CUDA's attributes and sysfs; with ``nvml`` also by NVML, when this process has a context on it."""

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


def packages() -> dict[str, str]:
    """Versions of the installed packages that matter to a launch."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def facts_near(gpu: GpuInfo | None) -> tuple[Fact, ...]:
    """The host's facts for a run near that GPU."""
    cores = find_cores(gpu.numa_node if gpu else None)
    return host_facts(allowed=cores.allowed, plan=cores.plan)

"""The probe: what this machine is and which GPUs a run may use, answered before anything is planned."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from microbench.core.errors import DeviceAbsentError, MeasurementError, UsageError
from microbench.core.model import Environment, Fact, GpuInfo
from microbench.gpu.cuda.context import check, device_uuid
from microbench.gpu.machine.diagnosis import why_no_gpu
from microbench.gpu.machine.nvml import NvmlGpu
from microbench.gpu.machine.pci import describe_link, link_facts, numa_node
from microbench.host.affinity import find_cores
from microbench.host.facts import host_facts

# A GPU as CUDA, NVML and sysfs describe it together.


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


PACKAGES = (
    "cuda-microbench", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-python", "cuda-bindings", "cuda-core",
    "cuda-pathfinder", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvmath-python", "torch", "triton", "jax", "jaxlib", "warp-lang",
)  # fmt: skip
ORDINAL = re.compile(r"cuda:(\d+)")


def probe(device: str | None) -> Environment:
    """The Environment with the GPUs that ``device`` selects: None and "all" every one, "cuda:N", or a UUID.

    The first alone is measured with None; the others may be the far ends of its links.

    Raises DeviceAbsentError when a named one is not here, UsageError when it is no name of a device.
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


def ordinals(device: str | None, count: int) -> Sequence[int]:
    """CUDA indices of the GPUs that ``device`` selects of ``count``. Raises DeviceAbsentError for one too high."""
    named = ORDINAL.fullmatch(device or "")
    if named is None:
        return range(count)
    if int(named[1]) >= count:
        raise DeviceAbsentError(f"{device} is not here: CUDA shows {count} GPU(s)", "see `nvidia-smi -L`")
    return (int(named[1]),)


def _with_gpus(device: str | None) -> Environment:
    from cuda.bindings import driver

    from microbench.gpu.cuda.context import check, find_device

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
        bare = describe(handle)
        nvml = NvmlGpu(bare.uuid)
        gpus.append(nvml.describe(bare, context_open=False))
        prefix = f"gpu{bare.index}_"
        facts.extend((*nvml.facts(prefix), *link_facts(bare.pci_bus_id or "", prefix=prefix)))
        versions.append(nvml.driver_version().value)
        nvml.close()
    return Environment(
        gpus=tuple(gpus),
        driver_version=versions[0],
        cuda_driver_version=_version(int(check(driver.cuDriverGetVersion()))),
        cuda_toolkit_version=_toolkit(),
        packages=packages(),
        facts=(*facts_near(gpus[0]), *facts),
    )


def _version(number: int) -> str:
    """1000 x major + 10 x minor, as CUDA gives it."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _toolkit() -> str:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def packages() -> dict[str, str]:
    """Versions of the packages that matter to a launch, of those installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def facts_near(gpu: GpuInfo | None) -> tuple[Fact, ...]:
    """The host's facts as they are for a run near that GPU."""
    cores = find_cores(gpu.numa_node if gpu else None)
    return host_facts(allowed=cores.allowed, plan=cores.plan)

"""The probe: what this machine is and which GPUs a run may use, answered before anything is planned.

It needs no GPU package: without one it says why there is no GPU.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

from microbench.core.errors import DeviceAbsentError, MeasurementError, UsageError
from microbench.core.model import Environment, Fact, GpuInfo
from microbench.gpu.machine.diagnosis import why_no_gpu
from microbench.host.affinity import find_cores
from microbench.host.facts import host_facts

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
    if device not in (None, "all") and not ORDINAL.fullmatch(device or "") and not is_uuid(device or ""):
        raise UsageError(f"{device!r} is not a device", "use cuda:N, a UUID as nvidia-smi -L prints it, all, or fake")
    absent = why_no_gpu()
    if absent is None:
        try:
            from microbench.gpu.cuda.probe import environment_of

            return environment_of(device)
        except MeasurementError as error:
            reason, next_step = str(error), "see `microbench doctor`"
    else:
        reason, next_step = absent.reason, absent.next_step
    if device not in (None, "all"):
        raise DeviceAbsentError(f"{device} is not here: {reason}", next_step)
    return Environment(packages=packages(), facts=facts_near(None), no_gpu_reason=reason, no_gpu_next_step=next_step)


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

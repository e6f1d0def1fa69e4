"""The parts of a probe that need no GPU package: names of devices, package versions, facts of the host."""

import importlib.metadata
import re
from collections.abc import Sequence

from microbench.core.errors import DeviceAbsentError, UsageError
from microbench.core.model import Fact, GpuInfo
from microbench.host.affinity import find_cores
from microbench.host.facts import host_facts

ORDINAL = re.compile(r"cuda:(\d+)")
PACKAGES = (
    "cuda-microbench", "numpy", "numba", "numba-cuda", "llvmlite", "cuda-python", "cuda-bindings", "cuda-core",
    "cuda-pathfinder", "cupy-cuda12x", "cupy-cuda13x", "nvidia-ml-py", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
    "nvmath-python", "torch", "triton", "jax", "jaxlib", "warp-lang",
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
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def facts_near(gpu: GpuInfo | None) -> tuple[Fact, ...]:
    """The host's facts for a run near that GPU."""
    return host_facts(cores=find_cores(gpu.numa_node if gpu else None))

"""What parts of CUDA Graphs need of GPU and driver: the words of a skip."""

from __future__ import annotations

from microbench.errors import Skip
from microbench.gpu.fake.costs import FakeCosts

CONDITIONAL = 12040
EDGE_DATA = 12030
DEVICE_LAUNCH = 12000


def require_driver(costs: FakeCosts, version: int, what: str) -> None:
    """Raise Skip for a driver older than ``version`` (as cuDriverGetVersion counts: 12040 is CUDA 12.4)."""
    here = costs.cuda_driver_version
    if here < version:
        raise Skip(f"{what} need a driver of CUDA {_words(version)}; this one has {_words(here)}")


def require_capability(costs: FakeCosts, major: int, minor: int, what: str) -> None:
    """Raise Skip for a GPU of a lower compute capability."""
    here = costs.compute_capability
    if here < (major, minor):
        raise Skip(f"{what} needs compute capability {major}.{minor}; this GPU has {here[0]}.{here[1]}")


def _words(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"

"""What doctor looks at beyond the environment of a run: disk, caches, installed layers, PCIe counters."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

import microbench
from microbench.errors import Skip
from microbench.gpu.layers.base import find_layer, layer_names
from microbench.gpu.nvml import NvmlGpu
from microbench.model import Environment, GpuInfo
from microbench.store import data_folder


class Surroundings(msgspec.Struct, frozen=True):
    """What doctor looks at beyond the Environment.

    ``counters`` says for each GPU's UUID whether its PCIe bytes are counted: "exact", "coarse", or why not.
    ``missing_layers`` maps each layer that is not installed to its install line. ``data_free_bytes`` is None, with the
    reason, when the folder of the runs cannot be written; ``loop_cache`` is None when compiled loops cannot be kept.
    """

    data_folder: str
    data_free_bytes: int | None
    data_reason: str | None
    loop_cache: str | None
    layers: tuple[str, ...] = ()
    missing_layers: Mapping[str, str] = {}
    counters: Mapping[str, str] = {}


def look_around(environment: Environment) -> Surroundings:
    """Look at disks, caches, installed layers and PCIe counters. Opens NVML, but no CUDA context."""
    folder = data_folder()
    free, reason = free_bytes(folder)
    absent = {name: find_layer(name).INSTALL for name in layer_names() if not importable(find_layer(name).PACKAGE)}
    return Surroundings(
        data_folder=str(folder),
        data_free_bytes=free,
        data_reason=reason,
        loop_cache=loop_cache_folder(),
        layers=tuple(name for name in layer_names() if name not in absent),
        missing_layers=absent,
        counters={gpu.uuid: counting(gpu) for gpu in environment.gpus if not gpu.simulated},
    )


def free_bytes(folder: Path) -> tuple[int | None, str | None]:
    """Free bytes where ``folder`` is or would be made; None and the reason when nothing can be written there."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing):
            return shutil.disk_usage(existing).free, None
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def loop_cache_folder() -> str | None:
    """Where numba keeps compiled loops, in its own order: NUMBA_CACHE_DIR, beside the file, the user's cache folder."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    beside = Path(microbench.__file__).parent / "host"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    return next((str(path) for path in ((Path(chosen),) if chosen else (beside, user)) if free_bytes(path)[0]), None)


def importable(package: str) -> bool:
    """True if an import of the package would find it; it is not imported, but the packages that hold it are."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def counting(gpu: GpuInfo, make: Callable[[str], NvmlGpu] = NvmlGpu) -> str:
    """How the GPU's PCIe bytes are counted: "exact", "coarse", or why not."""
    nvml = make(gpu.uuid)
    try:
        return "coarse" if nvml.pcie_bytes().coarse else "exact"
    except Skip as skip:
        return str(skip)
    finally:
        nvml.close()

"""Looks why there is no GPU to measure. Standard library only: it works where no GPU package is installed."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from microbench.gpu.diagnosis import NoGpu, Observed, diagnose
from microbench.gpu.nvml import boards_in_mig_mode
from microbench.host.files import Machine
from microbench.host.virtualization import container_name, is_wsl

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
# Without these nothing is measured; cuda-core, CuPy and the rest are layers, skipped when missing.
NEEDED_PACKAGES = ("cuda-bindings",)
NVRTC_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
PCI_DEVICES = "/sys/bus/pci/devices"


class DriverAnswer(NamedTuple):
    """What libcuda said: why it does not load, or what cuInit, cuDeviceGetCount and cuDriverGetVersion gave."""

    library_error: str | None = None
    init_code: int | None = None
    device_count: int | None = None
    cuda_version: int | None = None


def why_no_gpu(root: str | Path = "/", environment: Mapping[str, str] | None = None) -> NoGpu | None:
    """Why no GPU can be measured, or None if one can. Never raises.

    Calls cuInit in this process, which then has the driver loaded for good: meant for the probe worker and doctor.
    """
    return diagnose(observe(Path(root), os.environ if environment is None else environment))


def observe(
    root: Path,
    environment: Mapping[str, str],
    ask: Callable[[], DriverAnswer] | None = None,
    version_of: Callable[[str], str | None] | None = None,
) -> Observed:
    """Look at PCI bus, driver, device files and packages. ``ask`` and ``version_of`` stand in for libcuda and pip."""
    machine = Machine(root)
    version = version_of or package_version
    answer = (ask or ask_driver)()
    gpus = _gpus(machine)
    nodes = [*NODES, *(f"/dev/{name}" for name in machine.names("/dev") if _is_gpu_node(name))]
    present = [node for node in nodes if machine.exists(node)]
    denied = [node for node in present if not os.access(machine.at(node), os.R_OK | os.W_OK)]
    shows_none = answer.init_code is not None and not answer.device_count
    missing = [name for name in NEEDED_PACKAGES if version(name) is None]
    return Observed(
        gpus=gpus,
        bound_to=tuple(filter(None, (_bound_to(machine, gpu) for gpu in gpus or ()))),
        module_version=machine.read("/sys/module/nvidia/version").text,
        wsl=is_wsl(machine),
        container=container_name(machine),
        missing_nodes=tuple(node for node in NODES if node not in present),
        denied_nodes=tuple(denied),
        denied_group=_group(machine.at(denied[0])) if denied else None,
        library_error=answer.library_error,
        init_code=answer.init_code,
        device_count=answer.device_count,
        cuda_version=answer.cuda_version,
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        boards_in_mig_mode=boards_in_mig_mode() if shows_none else None,
        bindings_version=version("cuda-bindings"),
        missing_packages=(*missing, *([] if any(map(version, NVRTC_PACKAGES)) else NVRTC_PACKAGES[:1])),
    )


def ask_driver(load: Callable[[str], Any] = ctypes.CDLL) -> DriverAnswer:
    """Load libcuda.so.1 and start it. No context is made."""
    try:
        library = load("libcuda.so.1")
    except OSError as error:
        return DriverAnswer(library_error=str(error))
    number = ctypes.c_int(0)
    known = library.cuDriverGetVersion(ctypes.byref(number)) == 0
    version = number.value if known and number.value else None
    code = int(library.cuInit(0))
    if code != 0:
        return DriverAnswer(None, code, None, version)
    count = ctypes.c_int(0)
    counted = library.cuDeviceGetCount(ctypes.byref(count)) == 0
    return DriverAnswer(None, code, count.value if counted else None, version)


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(machine: Machine) -> tuple[str, ...] | None:
    """NVIDIA's display controllers on the PCI bus (its NVSwitches and sound functions are of other classes)."""
    if not machine.exists(PCI_DEVICES):
        return None
    return tuple(
        name
        for name in machine.names(PCI_DEVICES)
        if machine.read(f"{PCI_DEVICES}/{name}/vendor").text == NVIDIA_VENDOR
        and (machine.read(f"{PCI_DEVICES}/{name}/class").text or "").startswith(DISPLAY_CLASS)
    )


def _bound_to(machine: Machine, gpu: str) -> str | None:
    try:
        return machine.at(f"{PCI_DEVICES}/{gpu}/driver").readlink().name
    except OSError:
        return None


def _is_gpu_node(name: str) -> bool:
    return name.removeprefix("nvidia").isdigit() and name.startswith("nvidia")


def _group(path: Path) -> str | None:
    """The group whose members may use a device file; None when it gives them nothing, or has no name."""
    try:
        return path.group() if path.stat().st_mode & 0o060 == 0o060 else None
    except (OSError, KeyError):
        return None

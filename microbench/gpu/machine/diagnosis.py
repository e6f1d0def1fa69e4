"""``why_no_gpu`` finds out why no GPU can be measured, and what to do about it.

``observe`` looks at the PCI bus, driver, device files and packages; ``diagnose`` applies rules to what it saw. Only the
standard library is used, so it works where no GPU package is installed.
"""

import ctypes
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from microbench.gpu.machine.nvml import boards_in_mig_mode
from microbench.host.files import Machine
from microbench.host.memory import container_name, is_wsl

NO_DEVICE = 100
STUB_LIBRARY = 34
HIDE_ALL = ("", "-1", "none", "void", "NoDevFiles")
OLDEST_CUDA = 12
# Codes that cuInit may return if device files are missing or forbidden. Other codes have other causes.
NODE_CODES = frozenset({0, 3, NO_DEVICE, 101, 304, 999})
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
# Nothing can be measured without these; cuda-core, CuPy and the rest are layers, which are skipped if missing.
NEEDED_PACKAGES = ("cuda-bindings", "numba")
NVRTC_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
PCI_DEVICES = "/sys/bus/pci/devices"


class NoGpu(msgspec.Struct, frozen=True):
    """Why no GPU can be measured here and what to do, one line each."""

    reason: str
    next_step: str


class DriverAnswer(msgspec.Struct, frozen=True):
    """Why libcuda.so.1 does not load, or the results of cuInit, cuDeviceGetCount and cuDriverGetVersion (1000 x major +
    10 x minor)."""

    library_error: str | None = None
    init_code: int | None = None
    device_count: int | None = None
    cuda_version: int | None = None


class Observed(DriverAnswer, frozen=True):
    """What ``observe`` saw; None means that it could not look.

    ``gpus`` are NVIDIA GPUs on the PCI bus, ``bound_to`` the kernel drivers that hold them.
    """

    gpus: tuple[str, ...] | None = None
    bound_to: tuple[str, ...] = ()
    module_version: str | None = None
    wsl: bool = False
    container: str | None = None
    missing_nodes: tuple[str, ...] = ()
    denied_nodes: tuple[str, ...] = ()
    denied_group: str | None = None
    visible_devices: str | None = None
    boards_in_mig_mode: int | None = None
    bindings_version: str | None = None
    missing_packages: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        return self.init_code == 0 and bool(self.device_count)

    @property
    def shows_none(self) -> bool:
        """True if the driver runs but CUDA shows no GPU."""
        return self.init_code == NO_DEVICE or (self.init_code == 0 and self.device_count == 0)

    @property
    def cuda_major(self) -> int | None:
        return None if self.cuda_version is None else self.cuda_version // 1000


def why_no_gpu(root: str | Path = "/") -> NoGpu | None:
    """Why no GPU can be measured, or None if one can. Never raises.

    It calls cuInit in this process, which then keeps the driver loaded, so it is meant for the probe worker and doctor.
    """
    return diagnose(observe(Path(root), os.environ))


# The meaning of each code of enum cudaError_enum (cuda.h) that cuInit may return.
INIT_CODES: dict[int, NoGpu] = {
    1: NoGpu("cuInit was given an invalid value (1)", "reinstall the driver: libcuda.so.1 is not the one it came with"),
    2: NoGpu("cuInit ran out of memory (2)", "free host memory, or raise the container's memory limit"),
    3: NoGpu("cuInit says that the driver is not initialised (3)", "run `nvidia-smi`; if it fails too, reboot"),
    STUB_LIBRARY: NoGpu(
        "libcuda.so.1 is the toolkit's stub, which only serves for linking (34)",
        "take .../lib64/stubs out of LD_LIBRARY_PATH",
    ),
    46: NoGpu("the GPU is busy or in exclusive mode (46)", "end the process that holds it, or `sudo nvidia-smi -c 0`"),
    NO_DEVICE: NoGpu("the driver finds no CUDA GPU (100)", "run `nvidia-smi -L`; in a container pass --gpus all"),
    101: NoGpu("the driver finds no valid GPU (101)", "check CUDA_VISIBLE_DEVICES against `nvidia-smi -L`"),
    304: NoGpu(
        "the operating system refused the driver's call (304)",
        "run `nvidia-modprobe -u -c 0`; in a container pass /dev/nvidia-uvm on",
    ),
    802: NoGpu(
        "the system is not ready (802): NVSwitch machines need their fabric manager",
        "`sudo systemctl start nvidia-fabricmanager`, of the driver's own version",
    ),
    803: NoGpu(
        "kernel driver and libcuda are of different versions (803)",
        "reboot after the driver update, or install the container image's libcuda from the host's driver",
    ),
    804: NoGpu(
        "this GPU does not support the forward-compatibility package that was loaded (804)",
        "remove cuda-compat from LD_LIBRARY_PATH, or update the driver",
    ),
    805: NoGpu("the MPS server cannot be reached (805)", "start it, or unset CUDA_MPS_PIPE_DIRECTORY"),
    806: NoGpu("the MPS server does not answer (806)", "restart it: `echo quit | nvidia-cuda-mps-control`"),
    807: NoGpu("the MPS server is not ready (807)", "wait, or restart it: `echo quit | nvidia-cuda-mps-control`"),
    808: NoGpu("the MPS server has no client left to give (808)", "end other clients of the MPS server"),
    999: NoGpu(
        "the driver failed for an unknown reason (999)",
        "reload nvidia_uvm (`sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm`), or reboot; `dmesg` may say more",
    ),
}


def install_line(cuda_major: int | None) -> str:
    """How to install the GPU packages for this driver."""
    extra = "cu12" if cuda_major == OLDEST_CUDA else "cu13"
    return f"pip install '.[{extra}]' in a checkout, or `./scripts/microbench run`"


def diagnose(observed: Observed) -> NoGpu | None:
    """The first cause that applies; None if a GPU can be measured."""
    return next(_unfit(observed) if observed.works else _causes(observed), None)


def _unfit(seen: Observed) -> Iterator[NoGpu]:
    """Why a GPU that works cannot be measured: the driver is too old, or packages are missing."""
    needed = (seen.bindings_version or "").split(".")[0]
    if seen.cuda_major is not None and seen.cuda_major < OLDEST_CUDA:
        yield NoGpu(
            f"the driver supports CUDA {seen.cuda_major} only; microbench needs {OLDEST_CUDA}",
            "update the NVIDIA driver to 525 or newer",
        )
    elif seen.cuda_major is not None and needed.isdigit() and int(needed) > seen.cuda_major:
        yield NoGpu(
            f"the driver supports CUDA {seen.cuda_major}, the installed packages are of CUDA {needed}",
            f"update the NVIDIA driver, or {install_line(seen.cuda_major)}",
        )
    if seen.missing_packages:
        missing = ", ".join(seen.missing_packages)
        yield NoGpu(f"a GPU is here, but these packages are not: {missing}", install_line(seen.cuda_major))


def _causes(seen: Observed) -> Iterator[NoGpu]:
    """Why no GPU works, the surest cause first."""
    in_mig_mode = seen.shows_none and bool(seen.boards_in_mig_mode)
    if seen.shows_none and seen.visible_devices is not None and (not in_mig_mode or seen.visible_devices in HIDE_ALL):
        yield NoGpu(
            f"CUDA_VISIBLE_DEVICES={seen.visible_devices!r} hides every GPU",
            "unset CUDA_VISIBLE_DEVICES, or name a GPU of `nvidia-smi -L`",
        )
    if in_mig_mode:
        yield NoGpu(
            "MIG mode is on, but CUDA shows no instance",
            "make one with `sudo nvidia-smi mig -cgi 0 -C`, or name one of `nvidia-smi -L` in CUDA_VISIBLE_DEVICES",
        )
    if "nvidia" not in seen.bound_to and "nouveau" in seen.bound_to:
        yield NoGpu("the GPU is held by nouveau, which has no CUDA", "install NVIDIA's driver and reboot")
    elif "nvidia" not in seen.bound_to and "vfio-pci" in seen.bound_to:
        yield NoGpu("the GPU is set aside for a virtual machine (vfio-pci)", "run microbench in that machine")
    if seen.library_error is not None:
        yield _no_library(seen)
    if seen.init_code in NODE_CODES and (seen.gpus != () or seen.module_version is not None):
        yield from _nodes(seen)
    if seen.init_code in (0, NO_DEVICE) and seen.gpus == () and not seen.wsl:
        yield NoGpu("libcuda.so.1 is here, but no NVIDIA GPU is on the PCI bus", "look for one with `lspci -d 10de:`")
    code = NO_DEVICE if seen.init_code in (0, None) else seen.init_code
    yield INIT_CODES.get(code) or NoGpu(f"cuInit failed with CUDA error {code}", "run `nvidia-smi`, and see `dmesg`")


def _no_library(seen: Observed) -> NoGpu:
    if seen.wsl:
        return NoGpu(
            "libcuda.so.1 does not load under WSL",
            "install the driver on Windows and put /usr/lib/wsl/lib into LD_LIBRARY_PATH",
        )
    if seen.container and (seen.gpus or seen.module_version):
        return NoGpu(
            f"this container ({seen.container}) was not given the GPU: libcuda.so.1 is missing",
            "start it with --gpus all (NVIDIA Container Toolkit)",
        )
    if seen.module_version:
        return NoGpu(
            f"the kernel driver {seen.module_version} runs, but libcuda.so.1 does not load: {seen.library_error}",
            "install the driver's libraries of that version, or add their folder to LD_LIBRARY_PATH",
        )
    if seen.gpus:
        return NoGpu(f"NVIDIA GPU {seen.gpus[0]} has no driver", "install NVIDIA's driver, then run `nvidia-smi`")
    where = f"this container ({seen.container})" if seen.container else "this machine"
    return NoGpu(f"{where} shows no NVIDIA GPU and no driver", "try `--device fake` (simulated), or another machine")


def _nodes(seen: Observed) -> Iterator[NoGpu]:
    if seen.denied_nodes:
        join = f": `sudo usermod -aG {seen.denied_group} $USER`, then log in again" if seen.denied_group else ""
        yield NoGpu(f"no permission for {', '.join(seen.denied_nodes)}", f"ask for access to these files{join}")
    missing = "" if seen.wsl else ", ".join(seen.missing_nodes)
    if missing and seen.container:
        yield NoGpu(f"this container ({seen.container}) lacks {missing}", "start it with --gpus all")
    elif missing:
        yield NoGpu(f"the device files {missing} are missing", "make them with `sudo nvidia-modprobe -u -c 0`")


def observe(
    root: Path,
    environment: Mapping[str, str],
    ask: Callable[[], DriverAnswer] | None = None,
    version_of: Callable[[str], str | None] | None = None,
) -> Observed:
    """Look at PCI bus, driver, device files and packages. Tests replace ``ask`` (libcuda) and ``version_of`` (pip)."""
    machine = Machine(root)
    version = version_of or package_version
    answer = (ask or ask_driver)()
    gpus = _gpus(machine)
    nodes = [*NODES, *(f"/dev/{name}" for name in machine.names("/dev") if re.fullmatch(r"nvidia\d+", name))]
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
        **msgspec.structs.asdict(answer),
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
    """The NVIDIA GPUs on the PCI bus. Other NVIDIA devices, such as NVSwitches, are not counted."""
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


def _group(path: Path) -> str | None:
    """The group whose members may use a device file; None if they may not, or if the group has no name."""
    try:
        return path.group() if path.stat().st_mode & 0o060 == 0o060 else None
    except (OSError, KeyError):
        return None

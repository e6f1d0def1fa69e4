"""Why there is no GPU: each rule by its observations, and the observations by trees and a stand-in libcuda."""

import ctypes
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import snapshots
from recorded_trees import unpack, write

from microbench.gpu.machine import diagnosis
from microbench.gpu.machine import diagnosis as machine

NO_LIBRARY = "libcuda.so.1: cannot open shared object file"
WORKS = machine.Observed(
    gpus=("0000:43:00.0",), bound_to=("nvidia",), module_version="580.95.05", init_code=0, device_count=1,
    cuda_version=13000, bindings_version="13.0.3",
)  # fmt: skip
FAILS = msgspec.structs.replace(WORKS, init_code=machine.NO_DEVICE, device_count=None)
ABSENT = machine.Observed(gpus=(), library_error=NO_LIBRARY)


def changed(base: machine.Observed, **fields: Any) -> machine.Observed:
    return msgspec.structs.replace(base, **fields)


def test_a_gpu_that_works_needs_no_explanation() -> None:
    assert machine.diagnose(WORKS) is None
    assert machine.diagnose(changed(WORKS, bindings_version="12.9.4")) is None  # older packages run on a newer driver
    assert (
        machine.diagnose(changed(WORKS, gpus=None, missing_nodes=("/dev/nvidiactl",))) is None
    )  # hidden, yet it works


SEEN: dict[str, machine.Observed] = {
    "an old driver": changed(WORKS, cuda_version=12040), "an ancient driver": changed(WORKS, cuda_version=11080),
    "a missing package": changed(WORKS, missing_packages=("cuda-bindings",)),
    "a missing package of CUDA 12": changed(
        WORKS, cuda_version=12080, bindings_version=None, missing_packages=("cuda-bindings",)
    ),
    "hidden": changed(FAILS, visible_devices=""),
    "hidden, none counted": changed(WORKS, device_count=0, visible_devices="7"),
    "MIG": changed(FAILS, boards_in_mig_mode=1),
    "MIG, a board named": changed(FAILS, boards_in_mig_mode=1, visible_devices="0"),
    "MIG, all hidden": changed(FAILS, boards_in_mig_mode=1, visible_devices="-1"),
    "nouveau": changed(ABSENT, gpus=("g",), bound_to=("nouveau",)),
    "vfio": changed(ABSENT, gpus=("g",), bound_to=("vfio-pci",)), "WSL": changed(ABSENT, wsl=True),
    "a container": changed(ABSENT, gpus=("g",), container="docker"),
    "the library lost": changed(ABSENT, module_version="580.95.05"),
    "no driver": changed(ABSENT, gpus=("0000:01:00.0",)), "nothing": ABSENT,
    "nothing in a container": changed(ABSENT, container="podman"),
    "forbidden": changed(FAILS, denied_nodes=("/dev/nvidiactl",), denied_group="video"),
    "nodes missing": changed(FAILS, missing_nodes=("/dev/nvidia-uvm",)),
    "nodes missing in a container": changed(FAILS, missing_nodes=("/dev/nvidiactl",), container="docker"),
    "a mismatch is not blamed on files": changed(FAILS, init_code=803, missing_nodes=("/dev/nvidia-uvm",)),
    "a library without GPU": changed(
        FAILS, gpus=(), bound_to=(), module_version=None, missing_nodes=("/dev/nvidiactl",)
    ),
    "an unknown code": changed(FAILS, init_code=777), "no count": changed(WORKS, device_count=None),
    **{f"code {code}": changed(FAILS, init_code=code) for code in machine.INIT_CODES},
}  # fmt: skip


def test_why_there_is_no_gpu_and_what_to_do() -> None:
    """Two lines each; what cuInit says is named by its number."""
    found = {name: machine.diagnose(seen) for name, seen in SEEN.items()}
    snapshots.same("no-gpu", snapshots.in_turn({name: (one.reason, one.next_step) for name, one in found.items()}))
    assert not any("\n" in one.reason + one.next_step for one in found.values())
    assert all(f"({code})" in found[f"code {code}"].reason for code in machine.INIT_CODES)


class StandInCuda:
    def __init__(self, init: int, count: int, version: int) -> None:
        self.init, self.count, self.version = init, count, version

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.init

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.count
        return 0


def test_asking_libcuda() -> None:
    assert machine.ask_driver(lambda name: StandInCuda(0, 2, 13000)) == machine.DriverAnswer(None, 0, 2, 13000)
    assert machine.ask_driver(lambda name: StandInCuda(803, 0, 12080)) == machine.DriverAnswer(None, 803, None, 12080)
    answer = machine.ask_driver(lambda name: ctypes.CDLL("libcuda-of-nobody.so.99"))
    assert "libcuda-of-nobody.so.99" in str(answer.library_error)
    assert answer.init_code is None


PACKAGES = {"cuda_bindings": "13.0.3", "numba": "0.61", "nvidia_cuda_nvrtc": "13.0.88"}


def look(
    root: Path, answer: machine.DriverAnswer, environment: dict[str, str] | None = None, **versions: str
) -> machine.Observed:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return machine.observe(root, environment or {}, ask=lambda: answer, version_of=named.get)


def test_observing_a_server(tmp_path: Path) -> None:
    root = unpack("server", tmp_path)
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        write(root, f"dev/{name}", "")
    versions = {"cuda_bindings": "13.0.3", "nvidia_cuda_nvrtc": "13.0.88", "numba": "0.62.0"}
    seen = look(root, machine.DriverAnswer(None, 0, 1, 13000), **versions)
    assert seen == WORKS  # the NVSwitch bridge at 0000:40:05.0 is no GPU


def test_observing_missing_things(tmp_path: Path) -> None:
    root = unpack("virtual_machine", tmp_path)
    seen = look(root, machine.DriverAnswer(NO_LIBRARY), {"CUDA_VISIBLE_DEVICES": "0"})
    assert seen.bound_to == ("nouveau",)
    assert seen.missing_nodes == ("/dev/nvidiactl", "/dev/nvidia-uvm")
    assert seen.missing_packages == ("cuda-bindings", "numba", "nvidia-cuda-nvrtc")
    assert seen.visible_devices == "0"
    assert look(tmp_path / "empty", machine.DriverAnswer(NO_LIBRARY)).gpus is None
    # CUDA 12 has an NVRTC of its own.
    versions = {"cuda_bindings": "12.9.4", "nvidia_cuda_nvrtc_cu12": "12.9.86", "numba": "0.62.0"}
    assert look(tmp_path, machine.DriverAnswer(None, 0, 1, 12080), **versions).missing_packages == ()
    assert isinstance(machine.why_no_gpu(tmp_path), machine.NoGpu | None)


def test_forbidden_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = unpack("server", tmp_path)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        write(root, f"dev/{name}", "")
        (root / f"dev/{name}").chmod(0o660)
    allowed = os.access
    monkeypatch.setattr(diagnosis.os, "access", lambda path, mode: allowed(path, mode) and Path(path).name != "nvidia0")
    seen = look(root, machine.DriverAnswer(None, 999, None, 13000), **PACKAGES)
    assert seen.denied_nodes == ("/dev/nvidia0",)
    assert seen.denied_group == (root / "dev/nvidia0").group()
    found = machine.diagnose(seen)
    assert "/dev/nvidia0" in found.reason

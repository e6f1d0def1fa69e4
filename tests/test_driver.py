"""Why there is no GPU: each rule by its observations, and the observations by trees and a stand-in libcuda."""

import ctypes
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
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


CASES: list[tuple[str, machine.Observed, str, str]] = [
    ("old driver", changed(WORKS, cuda_version=12040), "packages are of CUDA 13", "'.[cu12]'"),
    ("ancient driver", changed(WORKS, cuda_version=11080), "CUDA 11 only", "525"),
    ("packages", changed(WORKS, missing_packages=("cuda-bindings",)), "cuda-bindings", "'.[cu13]'"),
    ("packages for 12", changed(WORKS, cuda_version=12080, bindings_version=None, missing_packages=("cuda-bindings",)),
     "cuda-bindings", "'.[cu12]'"),
    ("hidden", changed(FAILS, visible_devices=""), "CUDA_VISIBLE_DEVICES=''", "unset"),
    ("hidden, none counted", changed(WORKS, device_count=0, visible_devices="7"), "CUDA_VISIBLE_DEVICES='7'", "unset"),
    ("MIG", changed(FAILS, boards_in_mig_mode=1), "MIG mode is on", "nvidia-smi mig -cgi"),
    ("MIG, a board named", changed(FAILS, boards_in_mig_mode=1, visible_devices="0"), "MIG mode is on", "mig -cgi"),
    ("MIG, all hidden", changed(FAILS, boards_in_mig_mode=1, visible_devices="-1"), "CUDA_VISIBLE_DEVICES", "unset"),
    ("nouveau", changed(ABSENT, gpus=("g",), bound_to=("nouveau",)), "nouveau", "NVIDIA's driver"),
    ("vfio", changed(ABSENT, gpus=("g",), bound_to=("vfio-pci",)), "virtual machine", "that machine"),
    ("WSL", changed(ABSENT, wsl=True), "WSL", "/usr/lib/wsl/lib"),
    ("container", changed(ABSENT, gpus=("g",), container="docker"), "not given the GPU", "--gpus all"),
    ("library lost", changed(ABSENT, module_version="580.95.05"), "kernel driver 580.95.05 runs", "libraries"),
    ("no driver", changed(ABSENT, gpus=("0000:01:00.0",)), "0000:01:00.0 has no driver", "install NVIDIA's driver"),
    ("nothing", ABSENT, "this machine shows no NVIDIA GPU", "--device fake"),
    ("nothing in a container", changed(ABSENT, container="podman"), "this container (podman)", "--device fake"),
    ("forbidden", changed(FAILS, denied_nodes=("/dev/nvidiactl",), denied_group="video"),
     "no permission for /dev/nvidiactl", "usermod -aG video"),
    ("nodes missing", changed(FAILS, missing_nodes=("/dev/nvidia-uvm",)), "/dev/nvidia-uvm", "nvidia-modprobe"),
    ("nodes missing in a container", changed(FAILS, missing_nodes=("/dev/nvidiactl",), container="docker"),
     "lacks /dev/nvidiactl", "--gpus all"),
    ("a mismatch is not blamed on files", changed(FAILS, init_code=803, missing_nodes=("/dev/nvidia-uvm",)),
     "different versions", "reboot"),
    ("library without GPU",
     changed(FAILS, gpus=(), bound_to=(), module_version=None, missing_nodes=("/dev/nvidiactl",)),
     "no NVIDIA GPU is on the PCI bus", "lspci"),
    ("unknown code", changed(FAILS, init_code=777), "777", "nvidia-smi"),
    ("no count", changed(WORKS, device_count=None), "(100)", "nvidia-smi -L"),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "reason", "step"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rules(seen: machine.Observed, reason: str, step: str) -> None:
    found = machine.diagnose(seen)
    assert reason in found.reason
    assert step in found.next_step
    assert "\n" not in found.reason + found.next_step


def test_every_code_of_the_table_is_reached_names_itself_and_is_two_lines() -> None:
    for code, expected in machine.INIT_CODES.items():
        assert machine.diagnose(changed(FAILS, init_code=code)) == expected
        assert f"({code})" in expected.reason
        assert expected.next_step
        assert "\n" not in expected.reason + expected.next_step


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
    seen = look(root, machine.DriverAnswer(None, 999, None, 13000), cuda_bindings="13.0.3", nvidia_cuda_nvrtc="13.0.88")
    assert seen.denied_nodes == ("/dev/nvidia0",)
    assert seen.denied_group == (root / "dev/nvidia0").group()
    found = machine.diagnose(seen)
    assert "/dev/nvidia0" in found.reason

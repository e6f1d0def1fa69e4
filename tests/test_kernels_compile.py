"""Device code without a GPU: NVRTC compiles each kernel file for its architectures, Numba simulates its kernels."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import nvrtc
from host_case import passes_on_numbas_simulator

import microbench
from microbench.gpu.cuda.context import kernel_source

KERNELS = Path(microbench.__file__).parent / "_kernels"
COMMON = "common.cu"  # prepended to each of the others
SOURCES = sorted(path.name for path in KERNELS.glob("*.cu") if path.name != COMMON)
OLDEST = 75
ARCHITECTURES = re.compile(r"// arch: (?:(?P<oldest>\d+)\+|(?P<listed>\d+[af]?(?:, \d+[af]?)*))")


def supported() -> list[int]:
    code, found = nvrtc.nvrtcGetSupportedArchs()
    assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS
    return [architecture for architecture in found if architecture >= OLDEST]


def wanted(name: str) -> list[str]:
    """The architectures that line 1 of a kernel file asks for, of those that the compiler knows.

    ``// arch: 75+`` is each from 7.5 on; ``// arch: 80, 90a`` is these two, 90a with the features that only 9.0 has.
    """
    match = ARCHITECTURES.fullmatch((KERNELS / name).read_text(encoding="utf-8").splitlines()[0])
    if match is None:
        return []
    if match["oldest"]:
        return [str(architecture) for architecture in supported() if architecture >= int(match["oldest"])]
    return [name for name in match["listed"].split(", ") if int(name.rstrip("af")) in supported()]


def compiled(source: str, name: str, architecture: str) -> tuple[bytes | None, str]:
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    # NVRTC writes into the bytes object. It must not be b" " itself, which the whole process shares.
    log = b" " * (nvrtc.nvrtcGetProgramLogSize(program)[1] + 1)
    nvrtc.nvrtcGetProgramLog(program, log)
    cubin = None
    if code == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        cubin = b" " * (nvrtc.nvrtcGetCUBINSize(program)[1] + 1)
        nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin, log.decode().strip("\0 \n")


def test_there_are_kernels_and_current_architectures() -> None:
    assert "launch.cu" in SOURCES
    assert {80, 90, 100} <= set(supported())


@pytest.mark.parametrize("name", SOURCES)
def test_kernel_file_names_architectures_and_includes_nothing(name: str) -> None:
    assert wanted(name), f"{name}: name its architectures in line 1: // arch: 75+"
    included = re.search(r"^\s*#\s*include", (KERNELS / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert not included, f"{name}: put shared code in {COMMON}; NVRTC has no include path"


def each_compilation() -> Iterator[Any]:
    """Every kernel file with each of its architectures; all but one (that of an H200 if it is among them) are slow."""
    for name in SOURCES:
        first = next(iter({"90", "90a"}.intersection(wanted(name))), next(iter(wanted(name)), None))
        for architecture in wanted(name):
            yield pytest.param(name, architecture, marks=() if architecture == first else pytest.mark.slow)


@pytest.mark.parametrize(("name", "architecture"), list(each_compilation()))
def test_kernel_compiles_without_warnings(name: str, architecture: str) -> None:
    cubin, log = compiled(kernel_source(name.removesuffix(".cu")), name, architecture)
    assert log == "", f"{name}: mend what the compiler says for sm_{architecture}"
    assert cubin.startswith(b"\x7fELF")


def test_warnings_and_errors_are_reported() -> None:
    cubin, log = compiled('extern "C" __global__ void kernel() { int unused; }', "planted.cu", "90")
    assert cubin is not None
    assert "never referenced" in log
    cubin, log = compiled('extern "C" __global__ void kernel() { missing(); }', "planted.cu", "90")
    assert cubin is None
    assert "missing" in log


SIMULATED = """
import numpy as np
from microbench._kernels import numba_kernels

a, b, c = np.arange(64.0), np.full(64, 2.0), np.zeros(64)
numba_kernels.empty[2, 32]()
numba_kernels.touch[2, 32](a, b, c, 0)
assert not c.any()
numba_kernels.touch[2, 32](a, b, c, 48)
assert np.array_equal(c, np.where(a < 48, a + b, 0))
"""


def test_numba_kernels_run_on_its_simulator() -> None:
    passes_on_numbas_simulator(SIMULATED)

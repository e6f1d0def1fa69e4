"""Device code: kernels/*.cu compiled by NVRTC to a cubin for this exact GPU, loaded once a process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda.bindings import driver, nvrtc

from microbench.errors import MeasurementError, Skip
from microbench.gpu.context import Context, check

KERNEL_FOLDER = Path(__file__).parent.parent / "_kernels"
COMMON = "common"


def kernel_source(name: str) -> str:
    """The text of kernels/NAME.cu, with what all kernels share before it; the compiler names lines of the file."""
    common, own = ((KERNEL_FOLDER / f"{one}.cu").read_text(encoding="utf-8") for one in (COMMON, name))
    return f'{common}#line 1 "{name}.cu"\n{own}'


def target(name: str, architecture: str) -> str:
    """What to compile kernels/NAME.cu for on a GPU of that architecture: ``90a`` where line 1 of the file lists that,
    whose code only a 9.0 runs; otherwise the architecture itself."""
    with (KERNEL_FOLDER / f"{name}.cu").open(encoding="utf-8") as file:
        listed = file.readline().removeprefix("// arch:").split(",")
    own = f"{architecture}a"
    return own if own in (one.strip() for one in listed) else architecture


def _nvrtc(result: Any) -> Any:
    code, *values = result
    if int(code) != 0:
        raise MeasurementError(f"NVRTC: {nvrtc.nvrtcGetErrorString(code)[1].decode()}")
    return values[0] if values else None


def compile_cubin(name: str, architecture: str, defines: Mapping[str, int] | None = None) -> bytes:
    """Compile kernels/NAME.cu to a cubin for an architecture such as ``90`` or ``90a``.

    Always machine code, never PTX: the packages' compiler may be newer than the driver, which then refuses its PTX.
    Raises MeasurementError with the compiler's log, Skip when this NVRTC does not know the architecture.
    """
    options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
    options += [f"-D{define}={value}".encode() for define, value in (defines or {}).items()]
    program = _nvrtc(nvrtc.nvrtcCreateProgram(kernel_source(name).encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if code == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise Skip(f"the installed NVRTC does not compile for sm_{architecture}")
        if int(code) != 0:
            log = b" " * _nvrtc(nvrtc.nvrtcGetProgramLogSize(program))
            _nvrtc(nvrtc.nvrtcGetProgramLog(program, log))
            raise MeasurementError(f"kernels/{name}.cu does not compile for sm_{architecture}: {log.decode().strip()}")
        cubin: bytes = b" " * _nvrtc(nvrtc.nvrtcGetCUBINSize(program))
        _nvrtc(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class Modules:
    """The kernels of one context, each file compiled and loaded when first asked for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        major = context.attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = context.attribute("COMPUTE_CAPABILITY_MINOR")
        self.architecture = f"{major}{minor}"
        self._cubins: dict[tuple[str, tuple[tuple[str, int], ...]], bytes] = {}
        self._functions: dict[tuple[str, str, tuple[tuple[str, int], ...]], int] = {}
        self._libraries: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}

    def cubin(self, name: str, **defines: int) -> bytes:
        """The cubin of kernels/NAME.cu for this GPU."""
        key = (name, tuple(sorted(defines.items())))
        if key not in self._cubins:
            self._cubins[key] = compile_cubin(name, target(name, self.architecture), defines)
        return self._cubins[key]

    def function(self, name: str, kernel: str, **defines: int) -> int:
        """CUfunction of an extern "C" kernel of kernels/NAME.cu.

        Loaded by cuLibraryLoadData: cuModuleLoadData would wait for every gate that is shut.
        """
        defined = tuple(sorted(defines.items()))
        if (name, kernel, defined) not in self._functions:
            if (name, defined) not in self._libraries:
                cubin = self.cubin(name, **defines)
                self._libraries[name, defined] = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
            found = check(driver.cuLibraryGetKernel(self._libraries[name, defined], kernel.encode()))
            self._functions[name, kernel, defined] = int(check(driver.cuKernelGetFunction(found)))
        return self._functions[name, kernel, defined]

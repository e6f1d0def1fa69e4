"""The driver: checked calls, entry-point addresses, the primary context, pinned and device memory of one case."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver, nvrtc

from microbench.core.errors import DeviceAbsentError, MeasurementError, Skip
from microbench.core.units import about_size, size
from microbench.gpu.protocol.gpu import WaitMode

# Entry points are asked for at the version of CUDA 12.0, the oldest this package supports.
ENTRY_POINT_VERSION = 12000
WAIT_FLAGS: dict[WaitMode, int] = {"auto": 0, "spin": 1, "yield": 2, "blocking": 4}
HOST_PORTABLE_MAPPED = 3
STREAM_NON_BLOCKING = 1
OUT_OF_MEMORY = int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)


def error_name(code: int) -> str:
    """The driver's name and words for an error code."""
    try:
        result = driver.CUresult(code)
    except ValueError:
        return f"CUDA error code {code}"
    words = driver.cuGetErrorString(result)[1]
    return f"{result.name}: {words.decode() if words else 'unknown'}"


def check(result: Any) -> Any:
    """The value of a cuda.bindings call, without its leading code. Raises MeasurementError when that is an error."""
    code, *values = result
    if int(code) != 0:
        raise MeasurementError(error_name(int(code)))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def check_code(code: int, what: str) -> None:
    """Raise MeasurementError for the code of a compiled loop that is not 0; -1 is a thread that did not answer."""
    if code == -1:
        raise MeasurementError(f"{what}: another thread did not answer")
    if code != 0:
        raise MeasurementError(f"{what}: {error_name(code)}")


def entry_point(name: str) -> int:
    """Address of a driver function. Raises MeasurementError where this driver does not have it."""
    code, address, *_ = driver.cuGetProcAddress(name.encode(), ENTRY_POINT_VERSION, 0)
    if int(code) != 0 or not address:
        raise MeasurementError(f"this driver has no {name}")
    return int(address)


def device_uuid(device: Any) -> str:
    """The UUID as nvidia-smi prints it: GPU-8-4-4-4-12 hexadecimal digits; a MIG instance's says GPU- here as well."""
    digits = bytes(check(driver.cuDeviceGetUuid(device)).bytes).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def find_device(uuid: str) -> Any:
    """The CUdevice of that UUID. Raises DeviceAbsentError when CUDA does not show it."""
    check(driver.cuInit(0))
    for index in range(check(driver.cuDeviceGetCount())):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device).partition("-")[2] == uuid.partition("-")[2]:
            return device
    raise DeviceAbsentError(f"GPU {uuid} is not visible to CUDA", "see `microbench doctor` and CUDA_VISIBLE_DEVICES")


def unknown_holders() -> str:
    """What can be said of other processes without NVML."""
    return "others not known"


class Context:
    """The primary context of one GPU, current in this thread; shared with CuPy, Numba and PyTorch.

    The wait mode is a property of the context and must be set before it exists: one process, one mode.
    """

    def __init__(self, uuid: str, wait: WaitMode = "auto") -> None:
        self.device = find_device(uuid)
        if wait != "auto":
            check(driver.cuDevicePrimaryCtxSetFlags(self.device, WAIT_FLAGS[wait]))
        self.handle = check(driver.cuDevicePrimaryCtxRetain(self.device))
        self.wait = wait
        self.make_current()
        # Who else holds memory of this GPU, in words; whoever can ask NVML sets it.
        self.holders: Callable[[], str] = unknown_holders
        self._case = ExitStack()
        self._taken_bytes = 0

    def make_current(self) -> None:
        """Make the context current in the calling thread."""
        check(driver.cuCtxSetCurrent(self.handle))

    def attribute(self, name: str) -> int:
        """A device attribute by the name it has after CU_DEVICE_ATTRIBUTE_."""
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(driver.cuDeviceGetAttribute(which, self.device)))

    def synchronize(self) -> None:
        """Wait until the GPU is idle. Raises MeasurementError for an error of earlier work."""
        check(driver.cuCtxSynchronize())

    # -- what a case owns --------------------------------------------------------------------------------------

    def end_case(self) -> None:
        """Release everything that the case took, in reverse order; the GPU is idle first, so nothing is in use."""
        try:
            self.synchronize()
        finally:
            self._case.close()
            self._case = ExitStack()
            self._taken_bytes = 0

    def own(self, release: Callable[[], object]) -> None:
        """Call ``release`` at the end of the case."""
        self._case.callback(release)

    def pinned(self, count: int, dtype: Any = np.uint32) -> npt.NDArray[Any]:
        """Zeroed pinned host memory, mapped into the GPU's address space at the same address."""
        size_bytes = count * np.dtype(dtype).itemsize
        pointer = int(check(driver.cuMemHostAlloc(size_bytes, HOST_PORTABLE_MAPPED)))
        self.own(lambda: driver.cuMemFreeHost(pointer))
        array: npt.NDArray[Any] = np.frombuffer((ctypes.c_char * size_bytes).from_address(pointer), dtype=dtype)
        array[:] = 0
        return array

    def device_memory(self, size_bytes: int) -> int:
        """Address of zeroed device memory. Raises Skip where so much is not free."""
        code, address = driver.cuMemAlloc(size_bytes)
        self.require_room(int(code), size_bytes)
        pointer = int(check((code, address)))
        self.own(lambda: driver.cuMemFree(pointer))
        self._taken_bytes += size_bytes
        self.clear(pointer, size_bytes)  # on the legacy stream, which nothing else here waits for
        return pointer

    def require_room(self, code: int, size_bytes: int) -> None:
        """Raise Skip for the code of a call that found too little device memory: asked, free, and who holds the rest.

        "This case" holds what ``device_memory`` gave it; the context's own memory is not counted.
        """
        if code == OUT_OF_MEMORY:
            free_bytes, total_bytes = (int(count) for count in check(driver.cuMemGetInfo()))
            raise Skip(
                f"{size(size_bytes)} of device memory asked, {about_size(free_bytes)} are free on the GPU of "
                f"{about_size(total_bytes)}; held by: this case {about_size(self._taken_bytes)}, {self.holders()}"
            )

    def read(self, pointer: int, count: int, dtype: Any) -> npt.NDArray[Any]:
        """Copy device memory to the host and wait for it."""
        array = np.empty(count, dtype=dtype)
        check(driver.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
        return array

    def clear(self, pointer: int, size_bytes: int) -> None:
        """Zero device memory and wait for it."""
        check(driver.cuMemsetD8(pointer, 0, size_bytes))
        self.synchronize()

    def stream(self) -> int:
        """A new non-blocking stream."""
        stream = check(driver.cuStreamCreate(STREAM_NON_BLOCKING))
        self.own(lambda: driver.cuStreamDestroy(stream))
        return int(stream)

    def event(self, *, timed: bool, blocking: bool = False) -> int:
        """A new event."""
        flags = (0 if timed else 2) | (1 if blocking else 0)
        event = check(driver.cuEventCreate(flags))
        self.own(lambda: driver.cuEventDestroy(event))
        return int(event)

    def close(self) -> None:
        """End the case and give the context back."""
        self.end_case()
        driver.cuDevicePrimaryCtxRelease(self.device)


# Device code: kernels/*.cu compiled by NVRTC to a cubin for this exact GPU, loaded once a process.


KERNEL_FOLDER = Path(__file__).parents[2] / "_kernels"
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

"""Access to the driver: checked calls, entry points, the primary context of one GPU and its kernels."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from microbench.core.errors import DeviceAbsentError, MeasurementError, Skip
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.profiler import KernelRecords
from microbench.gpu.protocol.gpu import WaitMode

# Entry points are requested at the version of CUDA 12.0, the oldest that this package supports.
ENTRY_POINT_VERSION = 12000
STREAM_NON_BLOCKING = 1
WAIT_FLAGS: dict[WaitMode, int] = {"auto": 0, "spin": 1, "yield": 2, "blocking": 4}


def error_name(code: int) -> str:
    """The driver's name and description of an error code."""
    try:
        result = driver.CUresult(code)
    except ValueError:
        return f"CUDA error code {code}"
    words = driver.cuGetErrorString(result)[1]
    return f"{result.name}: {words.decode() if words else 'unknown'}"


def check(result: Any) -> Any:
    """The value of a cuda.bindings call without its error code. Raises MeasurementError for an error."""
    code, *values = result
    if int(code) != 0:
        raise MeasurementError(error_name(int(code)))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def check_code(code: int, what: str) -> None:
    """Raise MeasurementError unless the code of a compiled loop is 0; -1 means that a thread did not respond."""
    if code == -1:
        raise MeasurementError(f"{what}: another thread did not respond")
    if code != 0:
        raise MeasurementError(f"{what}: {error_name(code)}")


def entry_point(name: str) -> int:
    """Address of a driver function. Raises MeasurementError if this driver does not have it."""
    code, address, *_ = driver.cuGetProcAddress(name.encode(), ENTRY_POINT_VERSION, 0)
    if int(code) != 0 or not address:
        raise MeasurementError(f"this driver has no {name}")
    return int(address)


def device_uuid(device: Any) -> str:
    """The UUID as nvidia-smi prints it: GPU-8-4-4-4-12 hexadecimal digits; a MIG instance has GPU- here as well."""
    digits = bytes(check(driver.cuDeviceGetUuid(device)).bytes).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def attribute(device: Any, name: str) -> int:
    """A device attribute by its name after CU_DEVICE_ATTRIBUTE_."""
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver.cuDeviceGetAttribute(which, device)))


def find_device(uuid: str) -> Any:
    """The CUdevice with that UUID. Raises DeviceAbsentError if CUDA does not see it."""
    check(driver.cuInit(0))
    for index in range(check(driver.cuDeviceGetCount())):
        device = check(driver.cuDeviceGet(index))
        if device_uuid(device).partition("-")[2] == uuid.partition("-")[2]:
            return device
    raise DeviceAbsentError(f"GPU {uuid} is not visible to CUDA", "see `microbench doctor` and CUDA_VISIBLE_DEVICES")


class Context:
    """The primary context of one GPU, current in this thread; CuPy, Numba and PyTorch share it.

    The wait mode must be set before the context is created, so a process has one wait mode.
    """

    def __init__(self, uuid: str, wait: WaitMode = "auto") -> None:
        self.device = find_device(uuid)
        if wait != "auto":
            check(driver.cuDevicePrimaryCtxSetFlags(self.device, WAIT_FLAGS[wait]))
        self.handle = check(driver.cuDevicePrimaryCtxRetain(self.device))
        self.wait = wait
        self.make_current()
        self.capability = (self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR"))
        self.kernels = Kernels(self.architecture)

    @property
    def architecture(self) -> str:
        """The GPU's compute capability as NVRTC writes it, such as ``90``."""
        return f"{self.capability[0]}{self.capability[1]}"

    def make_current(self) -> None:
        check(driver.cuCtxSetCurrent(self.handle))

    @cached_property
    def main_stream(self) -> int:
        """The CUstream that is stream 0 of every case. All cases share it, because launches into a second stream change
        the gaps between kernels for the rest of the process."""
        return int(check(driver.cuStreamCreate(STREAM_NON_BLOCKING)))

    @cached_property
    def kernel_records(self) -> KernelRecords:
        """CUPTI's kernel records of this process. Raises Skip without CUPTI."""
        return KernelRecords()

    def attribute(self, name: str) -> int:
        return attribute(self.device, name)

    def synchronize(self) -> None:
        """Wait until the GPU is idle. Raises MeasurementError for an error of earlier work."""
        check(driver.cuCtxSynchronize())

    def close(self) -> None:
        driver.cuDevicePrimaryCtxRelease(self.device)


# Device code: kernels/*.cu, compiled by NVRTC to a cubin for this GPU and loaded once a process.

KERNEL_FOLDER = Path(__file__).parents[2] / "_kernels"
COMMON = "common"


def kernel_source(name: str) -> str:
    """The text of kernels/common.cu and kernels/NAME.cu; the compiler counts the lines of the latter."""
    common, own = ((KERNEL_FOLDER / f"{file}.cu").read_text(encoding="utf-8") for file in (COMMON, name))
    return f'{common}#line 1 "{name}.cu"\n{own}'


def target(name: str, architecture: str) -> str:
    """The architecture to compile kernels/NAME.cu for: ``90a`` instead of ``90`` if line 1 of the file lists it."""
    with (KERNEL_FOLDER / f"{name}.cu").open(encoding="utf-8") as file:
        listed = file.readline().removeprefix("// arch:").split(",")
    specific = f"{architecture}a"
    return specific if specific in (entry.strip() for entry in listed) else architecture


def compiled(source: bytes, file: str, options: Sequence[str], kernel: str = "") -> tuple[Any, str, bytes, bytes]:
    """NVRTC's code and log, and if the code is 0 the machine code and the symbol of ``kernel`` in it.

    It is machine code, not PTX, because a driver older than the compiler refuses its PTX.
    """

    def ask(result: Any) -> Any:
        code, *values = result
        if int(code) != 0:
            raise MeasurementError(f"NVRTC: {driver.nvrtcGetErrorString(code)[1].decode()}")
        return values[0] if values else None

    program = ask(driver.nvrtcCreateProgram(source, file.encode(), 0, [], []))
    try:
        if kernel:
            ask(driver.nvrtcAddNameExpression(program, kernel.encode()))
        (code,) = driver.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = b" " * (ask(driver.nvrtcGetProgramLogSize(program)) + 1)  # b" " itself is shared, and NVRTC writes
        ask(driver.nvrtcGetProgramLog(program, log))
        if int(code) != 0:
            return code, log.decode(errors="replace"), b"", b""
        symbol: bytes = ask(driver.nvrtcGetLoweredName(program, kernel.encode())) if kernel else b""
        cubin: bytes = b" " * ask(driver.nvrtcGetCUBINSize(program))
        ask(driver.nvrtcGetCUBIN(program, cubin))
        return code, log.decode(errors="replace"), cubin, symbol
    finally:
        driver.nvrtcDestroyProgram(program)


def compile_cubin(name: str, architecture: str, defines: Mapping[str, int] | None = None) -> bytes:
    """Compile kernels/NAME.cu to a cubin for an architecture such as ``90`` or ``90a``.

    Raises MeasurementError with the compiler's log, Skip if this NVRTC does not know the architecture.
    """
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17"]
    options += [f"-D{define}={value}" for define, value in (defines or {}).items()]
    code, log, cubin, _ = compiled(kernel_source(name).encode(), f"{name}.cu", options)
    if code == driver.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
        raise Skip(f"the installed NVRTC does not compile for sm_{architecture}")
    if int(code) != 0:
        raise MeasurementError(f"kernels/{name}.cu does not compile for sm_{architecture}: {log.strip()}")
    return cubin


class Kernels:
    """The kernels of one context. Each file is compiled and loaded when one of its kernels is first needed."""

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture
        self._cubins: dict[tuple[Any, ...], bytes] = {}
        self._libraries: dict[tuple[Any, ...], Any] = {}
        self._functions: dict[tuple[Any, ...], int] = {}

    def cubin(self, name: str, **defines: int) -> bytes:
        key = (name, *sorted(defines.items()))
        if key not in self._cubins:
            self._cubins[key] = compile_cubin(name, target(name, self._architecture), defines)
        return self._cubins[key]

    def function(self, name: str, kernel: str, **defines: int) -> int:
        """CUfunction of an extern "C" kernel of kernels/NAME.cu.

        cuLibraryLoadData loads it, because cuModuleLoadData would wait for every shut gate.
        """
        file = (name, *sorted(defines.items()))
        if (kernel, file) not in self._functions:
            if file not in self._libraries:
                cubin = self.cubin(name, **defines)
                self._libraries[file] = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
            handle = check(driver.cuLibraryGetKernel(self._libraries[file], kernel.encode()))
            self._functions[kernel, file] = int(check(driver.cuKernelGetFunction(handle)))
        return self._functions[kernel, file]

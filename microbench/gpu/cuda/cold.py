"""Cold starts of a process that has not used the GPU: context, compilation, module load, first launch, JIT."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import plain
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.context import Context, check, compile_cubin, find_device, kernel_source
from microbench.gpu.layers.base import BLOCK_THREADS
from microbench.gpu.layers.cupy import INSTALL as CUPY_INSTALL
from microbench.gpu.layers.cupy import load_cupy
from microbench.gpu.layers.numba import INSTALL as NUMBA_INSTALL
from microbench.gpu.layers.numba import few_blocks, load_numba_cuda

NANOSECOND_S = 1e-9
IMPORT_TIMEOUT_S = 120.0
LOADING_MODES = {
    "lazy": driver.CUmoduleLoadingMode.CU_MODULE_LAZY_LOADING,
    "eager": driver.CUmoduleLoadingMode.CU_MODULE_EAGER_LOADING,
}

# Runs in a new interpreter, because this process has already imported NumPy.
TIMED_IMPORT = """
import importlib, sys, time
begin_ns = time.monotonic_ns()
importlib.import_module(sys.argv[1])
print("import_ns", time.monotonic_ns() - begin_ns)
"""


def timed_s(act: Callable[[], object]) -> float:
    """Seconds that one call takes, by CLOCK_MONOTONIC."""
    begin_ns = time.monotonic_ns()
    act()
    return (time.monotonic_ns() - begin_ns) * NANOSECOND_S


def seconds(uuid: str, what: str) -> float:
    """Time of one cold start of the GPU with that UUID, a key of COLD_STARTS. There is one figure per process, because
    each cold start warms the next ones. Raises Skip for any other text, and if a package is missing.

    The process is started with empty compilation caches (CUDA_CACHE_DISABLE, CUPY_CACHE_DIR, NUMBA_CACHE_DIR) and, for
    some cold starts, with CUDA_MODULE_LOADING. Prerequisites are prepared before the clock is read.
    """
    if what not in COLD_STARTS:
        raise Skip(f"there is no cold start {plain(what)!r}; there are {', '.join(COLD_STARTS)}")
    return COLD_STARTS[what](uuid)


def context(uuid: str) -> float:
    """cuInit, cuDevicePrimaryCtxRetain and cuCtxSetCurrent.

    Two things are not timed: loading libcuda, which Python's binding does late and a C program at its start, and
    finding the GPU among others.
    """
    check(driver.cuDriverGetVersion())  # loads the library; initialises nothing
    init_s = timed_s(lambda: check(driver.cuInit(0)))
    device = find_device(uuid)
    return init_s + timed_s(lambda: check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device)))))


def nvrtc(uuid: str) -> float:
    """The first compilation of kernels/launch.cu to a cubin, including loading NVRTC."""
    architecture = Context(uuid).architecture
    return timed_s(lambda: compile_cubin("launch", architecture))


def module_load(mode: str, uuid: str) -> float:
    """cuLibraryLoadData of the cubin and cuLibraryGetKernel."""
    cubin = _launch_cubin(uuid, mode)
    return timed_s(lambda: _load(cubin))


def first_launch(mode: str, uuid: str) -> float:
    """The first launch of a loaded kernel and the wait for it; with lazy loading the launch transfers the code."""
    return timed_s(_launch_and_wait(uuid, mode))


def second_launch(uuid: str) -> float:
    """The second launch of the kernel and the wait for it."""
    launch = _launch_and_wait(uuid)
    launch()
    return timed_s(launch)


def _launch_cubin(uuid: str, mode: str | None = None) -> bytes:
    """The cubin, in a process with a context. Raises MeasurementError if the process loads modules in another mode."""
    gpu = Context(uuid)
    if mode is not None and check(driver.cuModuleGetLoadingMode()) != LOADING_MODES[mode]:
        raise MeasurementError(f"this process does not load modules in {mode} mode: CUDA_MODULE_LOADING differs")
    return compile_cubin("launch", gpu.architecture)


def _load(cubin: bytes) -> Any:
    """The empty kernel of a cubin; cuLaunchKernel takes a CUkernel in place of a CUfunction."""
    library = check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0))
    return driver.CUfunction(int(check(driver.cuLibraryGetKernel(library, b"empty"))))


def _launch_and_wait(uuid: str, mode: str | None = None) -> Callable[[], object]:
    kernel = _load(_launch_cubin(uuid, mode))
    stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def launch() -> None:
        check(driver.cuLaunchKernel(kernel, 1, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, 0, 0))
        check(driver.cuStreamSynchronize(stream))

    return launch


def import_s(package: str, install: str) -> float:
    """The import of a package and its dependencies, NumPy included, in a new interpreter.

    Raises Skip, with the pip line or the import's error, if the import fails.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", TIMED_IMPORT, package],
        capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False,
    )  # fmt: skip
    words = done.stdout.rsplit("import_ns ", 1)
    if done.returncode == 0 and len(words) == 2:
        return int(words[1]) * NANOSECOND_S
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if reason.startswith("ModuleNotFoundError"):
        raise Skip(f"needs {package}: {install}")
    raise Skip(f"{package} does not import here: {plain(reason)}")


def numba_jit(uuid: str) -> float:
    """The first call of a one-line Numba kernel on three arrays: compilation, load, launch and the wait for it.

    Raises MeasurementError if the kernel's sum is wrong.
    """
    gpu = Context(uuid)
    cuda = load_numba_cuda()
    from microbench._kernels import numba_kernels

    cuda.current_context()
    a = cuda.to_device(np.ones(BLOCK_THREADS, np.float32))
    total = cuda.to_device(np.zeros(BLOCK_THREADS, np.float32))
    gpu.synchronize()

    def first_call() -> None:
        numba_kernels.touch[1, BLOCK_THREADS](a, a, total, np.int32(BLOCK_THREADS))
        gpu.synchronize()

    with few_blocks():
        taken_s = timed_s(first_call)
    if not np.array_equal(total.copy_to_host(), np.full(BLOCK_THREADS, 2, np.float32)):
        raise MeasurementError("the Numba kernel's sum of 1 + 1 is not 2")
    return taken_s


def cupy_rawkernel(uuid: str) -> float:
    """The first call of a RawKernel: compilation of kernels/launch.cu through CuPy, load, launch and the wait."""
    gpu, cupy = _cupy(uuid)
    kernel = cupy.RawKernel(kernel_source("launch"), "empty")

    def first_call() -> None:
        kernel((1,), (BLOCK_THREADS,), ())
        gpu.synchronize()

    return timed_s(first_call)


def cupy_ufunc(uuid: str) -> float:
    """The first x + 1 of a CuPy array: generation and compilation of its kernel, load, launch and the wait for it.

    Raises MeasurementError if 1 + 1 is not 2.
    """
    gpu, cupy = _cupy(uuid)
    x = cupy.asarray(np.ones(1, np.float32))
    gpu.synchronize()
    results = []

    def first_call() -> None:
        results.append(x + 1)
        gpu.synchronize()

    taken_s = timed_s(first_call)
    if float(results[0][0]) != 2.0:
        raise MeasurementError("CuPy's 1 + 1 is not 2")
    return taken_s


def _cupy(uuid: str) -> tuple[Context, Any]:
    gpu = Context(uuid)
    cupy = load_cupy()
    cupy.cuda.Device(int(gpu.device)).use()
    return gpu, cupy


COLD_STARTS: Mapping[str, Callable[[str], float]] = {
    "context": context,
    "nvrtc": nvrtc,
    **{f"module_load_{mode}": partial(module_load, mode) for mode in ("lazy", "eager")},
    **{f"first_launch_{mode}": partial(first_launch, mode) for mode in ("lazy", "eager")},
    "second_launch": second_launch,
    "numba_import": lambda uuid: import_s("numba.cuda", NUMBA_INSTALL),
    "numba_jit": numba_jit,
    "cupy_import": lambda uuid: import_s("cupy", CUPY_INSTALL),
    "cupy_rawkernel": cupy_rawkernel,
    "cupy_ufunc": cupy_ufunc,
}

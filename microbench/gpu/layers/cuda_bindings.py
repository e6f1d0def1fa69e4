"""cuda.bindings: the driver's own functions called from Python, one to one."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from typing import Any

from microbench.core.errors import MeasurementError
from microbench.gpu.layers.base import BLOCK_THREADS, KERNELS, Family, LayerContext, LayerHandle, load

NAME = "cuda_bindings"
FAMILY: Family = "same_kernel"
PACKAGE = "cuda.bindings"
INSTALL = "pip install cuda-bindings"
ABOUT = "driver.cuLaunchKernel; arguments as a tuple of values and one of types, packed by the binding at each call"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """The kernel of kernels/launch.cu itself. Of the calls' return codes only the first is looked at."""
    driver = load(f"{PACKAGE}.driver", INSTALL)
    code, library = driver.cuLibraryLoadData(context.cubin, None, None, 0, None, None, 0)
    _check(code)
    code, kernel = driver.cuLibraryGetKernel(library, KERNELS[arguments].encode())
    _check(code)
    code, function = driver.cuKernelGetFunction(kernel)
    _check(code)
    stream = driver.CUstream(context.stream_handle)
    a, b, c = context.pointers
    n = 0

    def without() -> Any:
        return driver.cuLaunchKernel(function, 1, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, 0, 0)

    def packed() -> Any:
        parameters = ((a, b, c, n), (c_void_p, c_void_p, c_void_p, c_int))
        return driver.cuLaunchKernel(function, 1, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, 0)

    call = packed if arguments else without
    _check(*call())
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=lambda: driver.cuLibraryUnload(library))


def _check(code: Any) -> None:
    if int(code) != 0:
        raise MeasurementError(f"cuda.bindings: {code.name}")

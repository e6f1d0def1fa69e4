"""The CUDA runtime API, which C++ programs use to launch kernels: cudaLaunchKernel of libcudart, in a compiled loop."""

import ctypes
from ctypes import byref, c_size_t, c_uint, c_void_p
from typing import Any

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import plain
from microbench.gpu.layers import base

PACKAGE, INSTALL = "cuda.pathfinder", "pip install cuda-pathfinder 'nvidia-cuda-runtime>=13'"
# The first version that can launch kernels of a library loaded at run time (cudaLibraryGetKernel).
NEEDED = "cudaLibraryGetKernel"


class Dim3(ctypes.Structure):
    """The runtime's dim3, which is passed by value."""

    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


def open_runtime(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """The kernel of kernels/launch.cu, loaded by the runtime. <<<>>> in C++ becomes the same call.

    Raises Skip if there is no libcudart of CUDA 12.8 or later.
    """
    library = _library()
    module, kernel, name = c_void_p(), c_void_p(), base.KERNELS[arguments].encode()
    _check(library, library.cudaLibraryLoadData(byref(module), context.cubin, None, None, 0, None, None, 0))
    _check(library, library.cudaLibraryGetKernel(byref(kernel), module, name))
    values = (ctypes.c_uint64 * 4)(*context.pointers, 0)
    parameters = (c_void_p * 4)(*(ctypes.addressof(values) + 8 * place for place in range(4)))
    one, block, stream = Dim3(1, 1, 1), Dim3(base.BLOCK_THREADS, 1, 1), c_void_p(context.stream_handle)
    launch = library.cudaLaunchKernel
    launch.argtypes = (c_void_p, Dim3, Dim3, c_void_p, c_size_t, c_void_p)

    def call() -> None:
        _check(library, launch(kernel, one, block, parameters, 0, stream))

    call()
    address = ctypes.cast(launch, c_void_p).value or 0
    return base.LayerHandle(
        call=call,
        stream_handle=context.stream_handle,
        close=lambda: library.cudaLibraryUnload(module),
        compiled=base.CompiledCall(
            "cudaLaunchKernel",
            address,
            # A dim3 by value is passed in two registers: x with y, and z.
            (kernel.value or 0, 1 | 1 << 32, 1, base.BLOCK_THREADS | 1 << 32, 1, ctypes.addressof(parameters), 0,
             context.stream_handle),
            keep=(values, parameters),
        ),
    )  # fmt: skip


def _library() -> Any:
    """libcudart, as a Python package or the CUDA toolkit has it. Raises Skip."""
    pathfinder = base.load(PACKAGE, INSTALL)
    try:
        found = pathfinder.load_nvidia_dynamic_lib("cudart")
    except (pathfinder.DynamicLibNotFoundError, OSError) as error:
        raise Skip(f"needs libcudart: {INSTALL} ({plain(str(error).partition(chr(10))[0])})") from None
    library = ctypes.CDLL(found.abs_path)
    if not hasattr(library, NEEDED):
        raise Skip(f"this libcudart is older than CUDA 12.8: {INSTALL}")
    library.cudaGetErrorName.restype = ctypes.c_char_p
    return library


def _check(library: Any, code: int) -> None:
    """Raise MeasurementError for an error of the runtime."""
    if code != 0:
        raise MeasurementError(f"the CUDA runtime: {plain(library.cudaGetErrorName(code).decode())}")


LAYERS = (
    base.Layer(
        name="cuda_runtime",
        title="CUDA runtime",
        family="same_kernel",
        aliases=("runtime", "cudart", "<<<>>>"),
        package=PACKAGE,
        install=INSTALL,
        about="cudaLaunchKernel in a compiled loop, as a program in C++ has it; arguments packed once",
        process="cuda_runtime",
        simulated=base.LayerCosts(3300, 10, replay_ns=0),
        open=open_runtime,
        order=-1,
    ),
)

"""CuPy: a RawKernel, a ufunc whose result comes from CuPy's memory pool, and cupy.matmul."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.errors import Skip
from microbench.gpu.layers import base
from microbench.gpu.protocol.matrices import GemmType, Matrices, matrix_bytes

PACKAGE = "cupy"
INSTALL = "pip install cupy-cuda13x (CUDA 12: cupy-cuda12x)"


class ForeignStream:
    """A CUstream in the CUDA stream protocol, from which CuPy 14 takes a stream."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def load_cupy() -> Any:
    """CuPy. Raises Skip if it is missing or sees no GPU."""
    cupy = base.load(PACKAGE, INSTALL)
    if not cupy.is_available():
        raise Skip(f"CuPy {cupy.__version__} sees no GPU that it can use; is it built for a newer CUDA? {INSTALL}")
    return cupy


def use_stream(cupy: Any, stream_handle: int, device_index: int) -> Callable[[], object]:
    """Make a CUstream CuPy's current stream. Entering it at each call would be timed with the call.

    Returns what restores the previous stream.
    """
    cupy.cuda.Device(device_index).use()
    previous = cupy.cuda.get_current_stream()
    if hasattr(cupy.cuda.Stream, "from_external"):
        stream = cupy.cuda.Stream.from_external(ForeignStream(stream_handle))
    else:  # CuPy 13; deprecated in 14
        stream = cupy.cuda.ExternalStream(stream_handle, device_index)
    stream.use()
    restore: Callable[[], object] = previous.use
    return restore


def open_raw(context: base.LayerContext, arguments: int = 0, cycles: int = 0) -> base.LayerHandle:
    """A kernel of kernels/launch.cu, from the same cubin as the compiled loop's; with ``cycles`` the spin kernel."""
    cupy = load_cupy()
    restore = use_stream(cupy, context.stream_handle, context.device_index)
    kernel = _raw_kernel(cupy, context.cubin, base.SPIN_KERNEL if cycles else base.KERNELS[arguments])
    a, b, c = (None if cycles else cupy.zeros(base.ARRAY_ELEMENTS, cupy.float32) for _ in range(3))
    n, length = cupy.int32(0), cupy.uint64(cycles)

    def without() -> None:
        kernel((1,), (base.BLOCK_THREADS,), ())

    def with_four() -> None:
        kernel((1,), (base.BLOCK_THREADS,), (a, b, c, n))

    def spin() -> None:
        kernel((1,), (base.BLOCK_THREADS,), (length,))

    call = spin if cycles else with_four if arguments else without
    call()
    graph = partial(_graph, cupy.cuda.get_current_stream(), call)
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, close=restore, graph=graph)


def open_ufunc(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Raises MeasurementError if 1 + 1 is not 2."""
    cupy = load_cupy()
    restore = use_stream(cupy, context.stream_handle, context.device_index)
    x = cupy.ones(1, cupy.float32)

    def call() -> Any:
        return x + 1

    base.check_sum("cupy_ufunc", float(call()[0]))
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)


def _raw_kernel(cupy: Any, cubin: bytes, name: str) -> Any:
    """A RawKernel of a cubin, which CuPy accepts only as a path; ``get_function`` loads it before it returns."""
    with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
        path = Path(folder) / "launch.cubin"
        path.write_bytes(cubin)
        return cupy.RawModule(path=str(path)).get_function(name)


def _graph(stream: Any, call: Any, count: int) -> base.LayerGraph:
    """A graph of ``count`` calls, captured in CuPy's default mode, which forbids no calls.

    Ending the capture instantiates the graph. CuPy cannot count nodes. It destroys a graph with the last reference.
    """
    with base.capturing("CuPy", (RuntimeError,), stream.end_capture):
        stream.begin_capture()
        for _ in range(count):
            call()
        graph = stream.end_capture()
    instantiated_ns = time.monotonic_ns()
    graph.upload(stream)

    def nodes() -> int:
        driver = base.load_driver()
        return base.node_count(driver, driver.CUgraph(graph.graph))

    return base.LayerGraph(partial(graph.launch, stream), nodes, close=lambda: None, instantiated_ns=instantiated_ns)


LAYERS = (
    base.Layer(
        name="cupy_raw",
        title="CuPy RawKernel",
        family="same_kernel",
        aliases=("cupy",),
        package=PACKAGE,
        install=INSTALL,
        about="RawKernel called with grid, block and a tuple of three CuPy arrays and an int32, on the current stream",
        simulated=base.LayerCosts(5500, 650, replay_ns=1500, make_ns=15_000, one_call=True),
        open=open_raw,
        open_spin=lambda context, cycles: open_raw(context, cycles=cycles),
    ),
    base.Layer(
        name="cupy_ufunc",
        title="CuPy ufunc",
        family="one_op",
        package=PACKAGE,
        install=INSTALL,
        about="x + 1 on a CuPy array of one float32; the result's memory comes from CuPy's pool",
        simulated=base.LayerCosts(10000),
        open=open_ufunc,
    ),
)


# Matrix products. CuPy has cuBLAS accumulate fp16 in fp32.
NUMPY_TYPES: dict[GemmType, npt.DTypeLike] = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
TF32_VARIABLE = "CUPY_TF32"
REFUSED: dict[GemmType, str] = {
    "tf32": "CuPy multiplies in tf32 only where the environment variable CUPY_TF32 is set, and then always",
    "fp16_acc16": "cupy.matmul of fp16 accumulates in fp32",
    "int8": "cupy.matmul of 8-bit integers gives 8-bit integers, which wrap around",
}


def cupy_calls(
    stream_handle: int, device_index: int, matrices: Matrices, own: Callable[[Callable[[], object]], None]
) -> tuple[Callable[[], object], ...]:
    """``cupy.matmul(A, B.T, out=D)`` for each copy of B on that stream; ``own`` receives a function that restores CuPy.

    Raises Skip if CuPy is missing or does not multiply the type.
    """
    if matrices.dtype not in NUMPY_TYPES:
        raise Skip(REFUSED.get(matrices.dtype, f"CuPy has no {matrices.dtype}"))
    if matrices.dtype == "fp32" and os.environ.get(TF32_VARIABLE) == "1":
        raise Skip(f"{TF32_VARIABLE} is set: CuPy then multiplies fp32 in tf32")
    cupy = load_cupy()
    own(cupy.get_default_memory_pool().free_all_blocks)
    own(use_stream(cupy, stream_handle, device_index))

    def viewed(address: int, rows: int, columns: int) -> Any:
        size_bytes = matrix_bytes(matrices.elements.d, rows, columns)
        memory = cupy.cuda.UnownedMemory(address, size_bytes, matrices, device_index)
        pointer = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray((rows, columns), NUMPY_TYPES[matrices.dtype], pointer)

    a = viewed(matrices.a, matrices.rows, matrices.depth)
    d = viewed(matrices.d, matrices.rows, matrices.columns)
    return tuple(
        partial(cupy.matmul, a, viewed(copy, matrices.columns, matrices.depth).T, out=d) for copy in matrices.b
    )

"""CuPy RawKernel: a kernel of one's own, launched by calling it."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from microbench.gpu.layers import cupy_shared
from microbench.gpu.layers.base import (
    ARRAY_ELEMENTS,
    BLOCK_THREADS,
    KERNELS,
    SPIN_KERNEL,
    Family,
    LayerContext,
    LayerGraph,
    LayerHandle,
    capturing,
    load_driver,
    node_count,
)

NAME = "cupy_raw"
FAMILY: Family = "same_kernel"
PACKAGE = cupy_shared.PACKAGE
INSTALL = cupy_shared.INSTALL
ABOUT = "RawKernel called with grid, block and a tuple of three CuPy arrays and a numpy.int32, on the current stream"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """The kernel of kernels/launch.cu itself, from the same cubin."""
    cupy = cupy_shared.load_cupy()
    restore = cupy_shared.use_stream(cupy, context.stream_handle, context.device_index)
    kernel = _raw_kernel(cupy, context.cubin, KERNELS[arguments])
    a, b, c = (cupy.zeros(ARRAY_ELEMENTS, cupy.float32) for _ in range(3))
    n = cupy.int32(0)

    def without() -> None:
        kernel((1,), (BLOCK_THREADS,), ())

    def with_four() -> None:
        kernel((1,), (BLOCK_THREADS,), (a, b, c, n))

    call = with_four if arguments else without
    call()
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)


def open_spin(context: LayerContext, cycles: int) -> LayerHandle:
    """The spin kernel of kernels/launch.cu itself, or its empty one; graphs are captured by CuPy's stream."""
    cupy = cupy_shared.load_cupy()
    restore = cupy_shared.use_stream(cupy, context.stream_handle, context.device_index)
    kernel = _raw_kernel(cupy, context.cubin, SPIN_KERNEL if cycles else KERNELS[0])
    length = cupy.uint64(cycles)

    def empty() -> None:
        kernel((1,), (BLOCK_THREADS,), ())

    def spin() -> None:
        kernel((1,), (BLOCK_THREADS,), (length,))

    call = spin if cycles else empty
    call()
    graph = partial(_graph, cupy.cuda.get_current_stream(), call)
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=restore, graph=graph)


def _graph(stream: Any, call: Any, count: int) -> LayerGraph:
    """``count`` calls, captured in CuPy's default mode, which forbids nothing.

    CuPy has no call that counts nodes, and none that destroys a graph: it does so with the last reference to it.
    """
    with capturing("CuPy", (RuntimeError,), stream.end_capture):
        stream.begin_capture()
        for _ in range(count):
            call()
        graph = stream.end_capture()
    driver = load_driver()
    nodes = node_count(driver, driver.CUgraph(graph.graph))
    graph.upload(stream)
    return LayerGraph(launch=partial(graph.launch, stream), nodes=nodes, close=lambda: None)


def _raw_kernel(cupy: Any, cubin: bytes, name: str) -> Any:
    """A RawKernel of a cubin, which CuPy takes by path only; ``get_function`` has loaded it when it returns."""
    with tempfile.TemporaryDirectory(prefix="microbench-") as folder:
        path = Path(folder) / "launch.cubin"
        path.write_bytes(cubin)
        return cupy.RawModule(path=str(path)).get_function(name)

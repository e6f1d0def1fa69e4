"""Numba: kernel[grid, block, stream](...), configured once before the calls or anew at each call."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base

PACKAGE = "numba.cuda"
INSTALL = "pip install 'numba-cuda[cu13]' (CUDA 12: 'numba-cuda[cu12]')"


def load_numba_cuda() -> Any:
    """numba.cuda. Raises Skip if it is missing, sees no GPU, or is the simulator."""
    cuda = base.load(PACKAGE, INSTALL)
    if base.load("numba", INSTALL).config.ENABLE_CUDASIM:
        raise Skip("NUMBA_ENABLE_CUDASIM makes Numba simulate the GPU: unset it")
    if not cuda.is_available():
        reason = cuda.cuda_error() or "it finds no NVVM or CUDA runtime"
        raise Skip(f"Numba sees no GPU that it can use: {plain(reason.strip())}")
    return cuda


@contextmanager
def few_blocks() -> Iterator[None]:
    """Suppress Numba's warning that a grid of one block is small."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Grid size")
        yield


def open_configured(context: base.LayerContext, arguments: int = 0, cycles: int = 0) -> base.LayerHandle:
    """Compiles a kernel, with ``cycles`` the spin kernel. Each call launches the configured kernel."""
    kernel, stream, values = _prepare(context, arguments, cycles)
    a, b, c, n = values or (None,) * 4
    length = np.uint64(cycles)
    with few_blocks():
        launch = kernel[1, base.BLOCK_THREADS, stream]

    def without() -> None:
        launch()

    def with_four() -> None:
        launch(a, b, c, n)

    def spin() -> None:
        launch(length)

    call = spin if cycles else with_four if arguments else without
    call()
    graph = partial(_graph, context.stream_handle, call)
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, graph=graph)


def open_each_call(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Compiles the kernel. Numba caches configurations, so each call only looks its configuration up."""
    kernel, stream, values = _prepare(context, arguments)
    a, b, c, n = values or (None,) * 4

    def without() -> None:
        kernel[1, base.BLOCK_THREADS, stream]()

    def with_four() -> None:
        kernel[1, base.BLOCK_THREADS, stream](a, b, c, n)

    call = with_four if arguments else without
    with few_blocks():
        call()
    return base.LayerHandle(call=call, stream_handle=context.stream_handle)


def _prepare(context: base.LayerContext, arguments: int, cycles: int = 0) -> tuple[Any, Any, tuple[Any, ...]]:
    """A dispatcher, Numba's view of the worker's stream, and the arguments; nothing is compiled yet.

    Numba takes the current context, which is the worker's. The arrays belong to no stream: Numba may wait for an
    array's stream when it is passed to a kernel on another.
    """
    cuda = load_numba_cuda()
    kernels = base.load("microbench._kernels.numba_kernels", INSTALL)
    stream = cuda.external_stream(context.stream_handle)
    if not arguments:
        return (kernels.spin if cycles else kernels.empty), stream, ()
    arrays = tuple(cuda.device_array(base.ARRAY_ELEMENTS, np.float32) for _ in range(3))
    return kernels.touch, stream, (*arrays, np.int32(0))


def _graph(stream_handle: int, call: Callable[[], object], count: int) -> base.LayerGraph:
    """Numba has no graphs: cuda.bindings captures and replays them."""
    errors = (RuntimeError, base.load("numba.cuda.cudadrv.error", INSTALL).CudaDriverError)
    return base.driver_graph("Numba", errors, stream_handle, call, count)


LAYERS = (
    base.Layer(
        name="numba_configured",
        title="Numba (configured before)",
        family="same_kernel",
        aliases=("numba",),
        package=PACKAGE,
        install=INSTALL,
        about="an empty kernel of Numba's own, configured once; three arguments are device arrays of seven words each",
        simulated=base.LayerCosts(11500, 4000),
        open=open_configured,
        open_spin=lambda context, cycles: open_configured(context, cycles=cycles),
    ),
    base.Layer(
        name="numba_each_call",
        title="Numba (configured each call)",
        family="same_kernel",
        package=PACKAGE,
        install=INSTALL,
        about="the same kernel, configured at each call, as most programs write it",
        simulated=base.LayerCosts(12500, 4000),
        open=open_each_call,
    ),
)

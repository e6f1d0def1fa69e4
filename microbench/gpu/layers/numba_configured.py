"""Numba, configured before: kernel[grid, block, stream] is made once and then called."""

from __future__ import annotations

from functools import partial

from microbench.gpu.layers import numba_shared
from microbench.gpu.layers.base import BLOCK_THREADS, Family, LayerContext, LayerHandle, driver_graph

NAME = "numba_configured"
FAMILY: Family = "same_kernel"
PACKAGE = numba_shared.PACKAGE
INSTALL = numba_shared.INSTALL
ABOUT = "an empty kernel of Numba's own, configured once; of the arguments three are device arrays of seven words each"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Compiles the kernel."""
    kernel, stream, values = numba_shared.prepare(context, arguments)
    a, b, c, n = values or (None,) * 4
    with numba_shared.few_blocks():
        launch = kernel[1, BLOCK_THREADS, stream]

    def without() -> None:
        launch()

    def with_four() -> None:
        launch(a, b, c, n)

    call = with_four if arguments else without
    call()
    return LayerHandle(call=call, stream_handle=context.stream_handle)


def open_spin(context: LayerContext, cycles: int) -> LayerHandle:
    """Compiles a spin kernel of Numba's own. Numba has no graphs: they are captured and replayed by cuda.bindings."""
    kernel, stream, values = numba_shared.prepare_spin(context, cycles)
    (length,) = values or (None,)
    with numba_shared.few_blocks():
        launch = kernel[1, BLOCK_THREADS, stream]

    def empty() -> None:
        launch()

    def spin() -> None:
        launch(length)

    call = spin if cycles else empty
    call()
    graph = partial(driver_graph, "Numba", numba_shared.driver_errors(), context.stream_handle, call)
    return LayerHandle(call=call, stream_handle=context.stream_handle, graph=graph)

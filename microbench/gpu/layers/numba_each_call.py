"""Numba, configured at each call: kernel[grid, block, stream](…), as most programs write it."""

from __future__ import annotations

from microbench.gpu.layers import numba_shared
from microbench.gpu.layers.base import BLOCK_THREADS, Family, LayerContext, LayerHandle

NAME = "numba_each_call"
FAMILY: Family = "same_kernel"
PACKAGE = numba_shared.PACKAGE
INSTALL = numba_shared.INSTALL
ABOUT = "an empty kernel of Numba's own, configured at each call; three of the arguments are arrays of seven words each"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Compiles the kernel. Numba remembers a configuration, so a call finds it rather than makes it."""
    kernel, stream, values = numba_shared.prepare(context, arguments)
    a, b, c, n = values or (None,) * 4

    def without() -> None:
        kernel[1, BLOCK_THREADS, stream]()

    def with_four() -> None:
        kernel[1, BLOCK_THREADS, stream](a, b, c, n)

    call = with_four if arguments else without
    with numba_shared.few_blocks():
        call()
    return LayerHandle(call=call, stream_handle=context.stream_handle)

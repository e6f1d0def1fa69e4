"""CuPy ufunc: x + 1, with its result allocated from CuPy's memory pool."""

from __future__ import annotations

from typing import Any

from microbench.gpu.layers import cupy_shared
from microbench.gpu.layers.base import Family, LayerContext, LayerHandle, check_sum

NAME = "cupy_ufunc"
FAMILY: Family = "one_op"
PACKAGE = cupy_shared.PACKAGE
INSTALL = cupy_shared.INSTALL
ABOUT = "x + 1 on a CuPy array of one float32; the result's memory comes from CuPy's pool"
ARGUMENTS = (1,)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """Raises MeasurementError when 1 + 1 is not 2."""
    cupy = cupy_shared.load_cupy()
    restore = cupy_shared.use_stream(cupy, context.stream_handle, context.device_index)
    x = cupy.ones(1, cupy.float32)

    def call() -> Any:
        return x + 1

    check_sum(NAME, float(call()[0]))
    return LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)

"""cuda.core: NVIDIA's Pythonic launch with a LaunchConfig made once."""

from __future__ import annotations

import numpy as np

from microbench.errors import Skip
from microbench.gpu.layers.base import BLOCK_THREADS, KERNELS, Family, LayerContext, LayerHandle, load

NAME = "cuda_core"
FAMILY: Family = "same_kernel"
PACKAGE = "cuda.core"
INSTALL = "pip install 'cuda-core>=1.0'"
ABOUT = "launch(stream, config, kernel, …), the LaunchConfig made once; pointers as int, the integer as numpy.int32"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """The kernel of kernels/launch.cu itself. Raises Skip for a cuda.core of before 1.0, which had another home."""
    core = load(PACKAGE, INSTALL)
    if not hasattr(core, "launch"):
        raise Skip(f"this cuda.core is older than 1.0: {INSTALL}")
    core.Device(context.device_index).set_current()
    kernel = core.ObjectCode.from_cubin(context.cubin).get_kernel(KERNELS[arguments])
    stream = core.Stream.from_handle(context.stream_handle)
    config = core.LaunchConfig(grid=1, block=BLOCK_THREADS)
    launch = core.launch
    a, b, c = context.pointers
    n = np.int32(0)

    def without() -> None:
        launch(stream, config, kernel)

    def with_four() -> None:
        launch(stream, config, kernel, a, b, c, n)

    call = with_four if arguments else without
    call()
    return LayerHandle(call=call, stream_handle=context.stream_handle)

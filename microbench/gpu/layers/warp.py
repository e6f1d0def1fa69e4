"""Warp: wp.launch of a kernel, on a stream that each call names."""

from typing import Any

from microbench.core.errors import Skip
from microbench.gpu.layers import base

# No postponed annotations here: Warp reads the types of a kernel's parameters from the annotations themselves.

PACKAGE = "warp"
INSTALL = "pip install warp-lang"


def _kernel(warp: Any, arguments: int) -> Any:
    array = warp.array(dtype=warp.float32)

    @warp.kernel
    def empty() -> None:
        pass

    @warp.kernel
    def four_arguments(a: array, b: array, c: array, n: warp.int32) -> None:  # type: ignore[valid-type]
        pass

    return four_arguments if arguments else empty


def open_warp(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Compiles the kernel. Warp's own context on a GPU is the primary context, which is the worker's."""
    warp = base.load(PACKAGE, INSTALL)
    warp.init()
    if not warp.is_cuda_available():
        raise Skip("Warp sees no GPU that it can use; is its CUDA newer than the driver's?")
    device = warp.get_device(f"cuda:{context.device_index}")
    stream = warp.Stream(device, cuda_stream=context.stream_handle)
    kernel = _kernel(warp, arguments)
    a, b, c = (warp.zeros(base.ARRAY_ELEMENTS, dtype=warp.float32, device=device) for _ in range(3))
    n = 0

    def without() -> None:
        warp.launch(kernel, dim=base.BLOCK_THREADS, inputs=[], stream=stream, block_dim=base.BLOCK_THREADS)

    def with_four() -> None:
        warp.launch(kernel, dim=base.BLOCK_THREADS, inputs=[a, b, c, n], stream=stream, block_dim=base.BLOCK_THREADS)

    call = with_four if arguments else without
    call()
    return base.LayerHandle(call=call, stream_handle=context.stream_handle)


LAYERS = (
    base.Layer(
        name="warp",
        title="Warp",
        family="same_kernel",
        package=PACKAGE,
        install=INSTALL,
        about="wp.launch of an empty kernel of Warp's own; arguments as Warp arrays; Warp adds its launch bounds",
        open=open_warp,
    ),
)

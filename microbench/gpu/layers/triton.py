"""Triton: kernel[grid](...) on PyTorch tensors, on PyTorch's current stream."""

from subprocess import CalledProcessError

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.layers.torch import INSTALL, load_torch, use_stream

PACKAGE = "triton"


# No annotations: Triton compiles the source text of a function and would look up parameter types as Triton values.
def empty() -> None:
    """Does nothing."""


def four_arguments(a, b, c, n) -> None:  # type: ignore[no-untyped-def]
    """Does nothing."""


def open_triton(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Compiles the kernel. Raises Skip if Triton finds no C compiler; older versions build their launcher with it."""
    torch = load_torch()
    triton = base.load(PACKAGE, INSTALL)
    restore = use_stream(torch, context.stream_handle, context.device_index)
    kernel = triton.jit(four_arguments if arguments else empty)
    a, b, c = (torch.zeros(base.ARRAY_ELEMENTS, dtype=torch.float32, device="cuda") for _ in range(3))
    n = 0

    def without() -> None:
        kernel[(1,)](num_warps=1)

    def with_four() -> None:
        kernel[(1,)](a, b, c, n, num_warps=1)

    call = with_four if arguments else without
    try:
        call()
    except CalledProcessError as error:
        raise Skip(f"Triton could not build its launcher with the C compiler and Python.h: {plain(error)}") from error
    except RuntimeError as error:
        if "C compiler" not in str(error):
            raise
        raise Skip(f"Triton needs a C compiler: {plain(error)}") from error
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, close=restore)


LAYERS = (
    base.Layer(
        name="triton",
        title="Triton",
        family="same_kernel",
        package=PACKAGE,
        install=INSTALL,  # brings Triton; without PyTorch, Triton knows the default stream only
        about="an empty kernel of Triton's own, one warp; pointers as PyTorch tensors; Triton adds scratch pointers",
        process="torch",  # its tensors are PyTorch's
        simulated=base.LayerCosts(16000, 500),
        open=open_triton,
    ),
)

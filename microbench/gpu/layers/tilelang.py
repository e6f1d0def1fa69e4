"""TileLang: a compiled kernel called with PyTorch tensors, on PyTorch's current stream."""

from contextlib import ExitStack
from typing import Any

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base
from microbench.gpu.layers.torch import load_torch, use_stream

# No postponed annotations here: TileLang reads the types of parameters from the annotations themselves.

PACKAGE = "tilelang"
INSTALL = "pip install tilelang"
# What its errors say without nvcc, with an nvcc or C++ compiler that fails, and of kernels that the driver refuses.
REFUSED = "Compilation error:"
UNFIT = (
    "target detector", "CUDA installation", "No such file", REFUSED, "compilation timed out", "NO_BINARY_FOR_GPU",
    "UNSUPPORTED_PTX_VERSION", "driver version is insufficient",
)  # fmt: skip


def _function(language: Any, arguments: int) -> Any:
    """TileLang drops what a kernel does not use: threads are kept by a barrier, arguments by what n = 0 forbids.

    Parameters of one annotation object would be one parameter.
    """
    shape, kind = (base.ARRAY_ELEMENTS,), language.float32
    x, y, z = (language.Tensor(shape, kind) for _ in range(3))

    @language.prim_func
    def empty() -> None:
        with language.Kernel(1, threads=base.BLOCK_THREADS):
            language.sync_threads()

    @language.prim_func
    def four_arguments(a: x, b: y, c: z, n: language.int32) -> None:  # type: ignore[valid-type]
        with language.Kernel(1, threads=base.BLOCK_THREADS):
            if n > 0:
                a[0] = b[0] + c[0]  # type: ignore[index]

    return four_arguments if arguments else empty


def open_tilelang(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Compiles the kernel. Raises Skip if TileLang finds no compiler, or neither it nor the driver takes the kernel."""
    torch = load_torch()
    tilelang = base.load(PACKAGE, INSTALL)
    function = _function(base.load(f"{PACKAGE}.language", INSTALL), arguments)
    tilelang.set_log_level("ERROR")  # it tells of each compilation on stdout
    tilelang.disable_cache()  # a kernel from its cache on disk is called in another way
    with ExitStack() as opened:
        opened.callback(use_stream(torch, context.stream_handle, context.device_index))
        if not arguments:  # PyTorch's current stream comes with the tensors; a kernel without takes TVM's
            opened.enter_context(base.load("tvm_ffi", INSTALL).use_torch_stream())
        a, b, c = (torch.zeros(base.ARRAY_ELEMENTS, dtype=torch.float32, device="cuda") for _ in range(3))
        n = 0

        def without() -> None:
            kernel()

        def with_four() -> None:
            kernel(a, b, c, n)

        call = with_four if arguments else without
        try:
            kernel = tilelang.compile(function)
            call()
        except (RuntimeError, ValueError) as error:
            if not any(words in str(error) for words in UNFIT):
                raise
            why = plain(str(error).rpartition(REFUSED)[2].strip().partition("\n")[0])
            needs = "nvcc (pip install 'tilelang[nvcc]') and a C++ compiler"
            raise Skip(f"TileLang cannot make a kernel here, with {needs}: {why}") from error
        close = opened.pop_all().close
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, close=close)


LAYERS = (
    base.Layer(
        name="tilelang",
        title="TileLang",
        family="same_kernel",
        package=PACKAGE,
        install=INSTALL,
        about="a kernel of TileLang's own, compiled once, one warp that does nothing; pointers as PyTorch tensors",
        open=open_tilelang,
    ),
)

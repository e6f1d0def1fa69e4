"""NVIDIA's CuTe DSL: a function compiled by cute.compile, called with pointers, an integer and a stream."""

from typing import Any

from microbench.core.errors import Skip
from microbench.core.units import plain
from microbench.gpu.layers import base

# No postponed annotations here: CuTe DSL reads the types of parameters from the annotations themselves.

PACKAGE = "cutlass"
INSTALL = "pip install 'nvidia-cutlass-dsl[cu13]' (for CUDA 12 without [cu13])"
# cudaError_t: the driver is too old, there is no GPU, or the kernel's image, PTX or source is none for this GPU.
UNFIT = (35, 100, 200, 209, 218, 222, 300)


def _launcher(cutlass: Any, cute: Any, stream_type: Any, arguments: int) -> Any:
    grid, block = (1, 1, 1), (base.BLOCK_THREADS, 1, 1)

    @cute.kernel
    def empty() -> None:
        pass

    @cute.jit
    def launch_empty(stream: stream_type) -> None:
        empty().launch(grid=grid, block=block, stream=stream)

    @cute.kernel
    def four_arguments(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, n: cutlass.Int32) -> None:
        pass

    @cute.jit
    def launch_four(a: cute.Pointer, b: cute.Pointer, c: cute.Pointer, n: cutlass.Int32, stream: stream_type) -> None:
        four_arguments(a, b, c, n).launch(grid=grid, block=block, stream=stream)

    return launch_four if arguments else launch_empty


def open_cute_dsl(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """Compiles the kernel. Raises Skip if CuTe DSL does not know this GPU, or the driver does not load the kernel."""
    cutlass = base.load(PACKAGE, INSTALL)
    cute = base.load(f"{PACKAGE}.cute", INSTALL)  # an older package of the same name has none
    make_ptr = base.load(f"{PACKAGE}.cute.runtime", INSTALL).make_ptr
    errors = base.load(f"{PACKAGE}.base_dsl.common", INSTALL)
    driver = base.load_driver()
    stream = driver.CUstream(context.stream_handle)
    a, b, c = (make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem) for address in context.pointers)
    n = 0
    values = (a, b, c, cutlass.Int32(n), stream) if arguments else (stream,)

    def without() -> None:
        compiled(stream)

    def with_four() -> None:
        compiled(a, b, c, n, stream)

    call = with_four if arguments else without
    try:
        compiled = cute.compile(_launcher(cutlass, cute, driver.CUstream, arguments), *values)
        call()
    except KeyError as error:
        if "sm_" not in str(error):
            raise
        raise Skip(f"CuTe DSL does not compile for this GPU: {plain(error)}") from error
    except errors.DSLBaseError as error:
        if error.error_code not in UNFIT:
            raise
        raise Skip(f"CuTe DSL's kernel does not load here: {plain(error.message.splitlines()[0].strip())}") from error
    return base.LayerHandle(call=call, stream_handle=context.stream_handle)


LAYERS = (
    base.Layer(
        name="cute_dsl",
        title="CuTe DSL",
        family="same_kernel",
        aliases=("cutlass",),
        package=PACKAGE,
        install=INSTALL,
        about="an empty kernel of CuTe DSL's own, compiled once; pointers by make_ptr, the integer as int, a CUstream",
        open=open_cute_dsl,
    ),
)

"""NVIDIA's cuda-python: cuda.bindings calls the driver's own functions, cuda.core is its Pythonic launch."""

import time
from ctypes import c_int, c_void_p
from functools import partial
from typing import Any

import numpy as np

from microbench.core.errors import Skip
from microbench.gpu.layers import base

BINDINGS, BINDINGS_INSTALL = "cuda.bindings", "pip install cuda-bindings"
CORE, CORE_INSTALL = "cuda.core", "pip install 'cuda-core>=1.0'"


def open_bindings(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """The kernel of kernels/launch.cu. Only the first call's return code is checked."""
    driver = base.load(f"{BINDINGS}.driver", BINDINGS_INSTALL)
    library = base.check(driver.cuLibraryLoadData(context.cubin, None, None, 0, None, None, 0))
    kernel = base.check(driver.cuLibraryGetKernel(library, base.KERNELS[arguments].encode()))
    function = base.check(driver.cuKernelGetFunction(kernel))
    stream = driver.CUstream(context.stream_handle)
    a, b, c = context.pointers
    n = 0

    def without() -> Any:
        return driver.cuLaunchKernel(function, 1, 1, 1, base.BLOCK_THREADS, 1, 1, 0, stream, 0, 0)

    def packed() -> Any:
        parameters = ((a, b, c, n), (c_void_p, c_void_p, c_void_p, c_int))
        return driver.cuLaunchKernel(function, 1, 1, 1, base.BLOCK_THREADS, 1, 1, 0, stream, parameters, 0)

    call = packed if arguments else without
    base.check(call())
    return base.LayerHandle(
        call=call, stream_handle=context.stream_handle, close=lambda: driver.cuLibraryUnload(library)
    )


def open_core(context: base.LayerContext, arguments: int) -> base.LayerHandle:
    """The kernel of kernels/launch.cu, with a LaunchConfig that is made once."""
    core = _load_core(context)
    kernel = core.ObjectCode.from_cubin(context.cubin).get_kernel(base.KERNELS[arguments])
    stream = core.Stream.from_handle(context.stream_handle)
    config = core.LaunchConfig(grid=1, block=base.BLOCK_THREADS)
    launch = core.launch
    a, b, c = context.pointers
    n = np.int32(0)

    def without() -> None:
        launch(stream, config, kernel)

    def with_four() -> None:
        launch(stream, config, kernel, a, b, c, n)

    call = with_four if arguments else without
    call()
    return base.LayerHandle(call=call, stream_handle=context.stream_handle)


def open_core_spin(context: base.LayerContext, cycles: int) -> base.LayerHandle:
    """The spin kernel of kernels/launch.cu, or its empty kernel. A GraphBuilder makes the graphs."""
    core = _load_core(context)
    kernel = core.ObjectCode.from_cubin(context.cubin).get_kernel(base.SPIN_KERNEL if cycles else base.KERNELS[0])
    stream = core.Stream.from_handle(context.stream_handle)
    config = core.LaunchConfig(grid=1, block=base.BLOCK_THREADS)
    launch, length = core.launch, np.uint64(cycles)

    def empty(where: Any = stream) -> None:
        launch(where, config, kernel)

    def spin(where: Any = stream) -> None:
        launch(where, config, kernel, length)

    call = spin if cycles else empty
    call()
    # cuda.core raises the driver's errors as a class that has no public name.
    errors = (RuntimeError, base.load(f"{CORE}._utils.cuda_utils", CORE_INSTALL).CUDAError)
    graph = partial(_core_graph, stream, call, errors)
    return base.LayerHandle(call=call, stream_handle=context.stream_handle, graph=graph)


def _load_core(context: base.LayerContext) -> Any:
    """cuda.core on the worker's GPU. Raises Skip for versions before 1.0, which had another home."""
    core = base.load(CORE, CORE_INSTALL)
    if not hasattr(core, "launch"):
        raise Skip(f"this cuda.core is older than 1.0: {CORE_INSTALL}")
    core.Device(context.device_index).set_current()
    return core


def _core_graph(stream: Any, call: Any, errors: base.Errors, count: int) -> base.LayerGraph:
    """A graph of ``count`` calls that go to a builder instead of the stream. Closing a builder ends its capture."""
    builder = stream.create_graph_builder()
    with base.capturing(CORE, errors, builder.close):
        builder.begin_building()
        for _ in range(count):
            call(builder)
        builder.end_building()
        captured_ns = time.monotonic_ns()
        graph = builder.complete()
        instantiated_ns = time.monotonic_ns()
    graph.upload(stream)

    def nodes() -> int:
        definition = getattr(builder, "graph_definition", None)
        if definition is None:
            raise Skip("cuda.core shows a graph's nodes since 1.1: pip install 'cuda-core>=1.1'")
        return len(definition.nodes())

    def close() -> None:
        graph.close()
        builder.close()

    return base.LayerGraph(partial(graph.launch, stream), nodes, close, instantiated_ns, captured_ns)


LAYERS = (
    base.Layer(
        name="cuda_bindings",
        title="cuda.bindings",
        family="same_kernel",
        aliases=("cuda.bindings",),
        package=BINDINGS,
        process="cuda-python",
        install=BINDINGS_INSTALL,
        about="driver.cuLaunchKernel; arguments as a tuple of values and a tuple of types, packed at each call",
        simulated=base.LayerCosts(4000, 600, replay_ns=700),
        open=open_bindings,
    ),
    base.Layer(
        name="cuda_core",
        title="cuda.core",
        family="same_kernel",
        aliases=("cuda.core",),
        package=CORE,
        process="cuda-python",
        install=CORE_INSTALL,
        about="launch(stream, config, kernel, ...), the LaunchConfig made once; pointers as int, the integer as int32",
        simulated=base.LayerCosts(3800, 150, replay_ns=600),
        open=open_core,
        open_spin=open_core_spin,
    ),
)

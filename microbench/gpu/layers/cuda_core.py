"""cuda.core: NVIDIA's Pythonic launch with a LaunchConfig made once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from microbench.core.errors import Skip
from microbench.gpu.layers.base import (
    BLOCK_THREADS,
    KERNELS,
    SPIN_KERNEL,
    Errors,
    Family,
    LayerContext,
    LayerGraph,
    LayerHandle,
    capturing,
    load,
)

NAME = "cuda_core"
FAMILY: Family = "same_kernel"
PACKAGE = "cuda.core"
INSTALL = "pip install 'cuda-core>=1.0'"
ABOUT = "launch(stream, config, kernel, …), the LaunchConfig made once; pointers as int, the integer as numpy.int32"
ARGUMENTS = (0, 4)


def open_layer(context: LayerContext, arguments: int) -> LayerHandle:
    """The kernel of kernels/launch.cu itself. Raises Skip for a cuda.core of before 1.0, which had another home."""
    core = _load_core(context)
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


def open_spin(context: LayerContext, cycles: int) -> LayerHandle:
    """The spin kernel of kernels/launch.cu itself, or its empty one; graphs are built by a GraphBuilder."""
    core = _load_core(context)
    kernel = core.ObjectCode.from_cubin(context.cubin).get_kernel(SPIN_KERNEL if cycles else KERNELS[0])
    stream = core.Stream.from_handle(context.stream_handle)
    config = core.LaunchConfig(grid=1, block=BLOCK_THREADS)
    launch, length = core.launch, np.uint64(cycles)

    def empty(where: Any = stream) -> None:
        launch(where, config, kernel)

    def spin(where: Any = stream) -> None:
        launch(where, config, kernel, length)

    call = spin if cycles else empty
    call()
    return LayerHandle(call=call, stream_handle=context.stream_handle, graph=partial(_graph, stream, call))


def _load_core(context: LayerContext) -> Any:
    core = load(PACKAGE, INSTALL)
    if not hasattr(core, "launch"):
        raise Skip(f"this cuda.core is older than 1.0: {INSTALL}")
    core.Device(context.device_index).set_current()
    return core


def _graph(stream: Any, call: Any, count: int) -> LayerGraph:
    """``count`` calls on a builder in place of the stream; closing a builder ends its capture."""
    builder = stream.create_graph_builder()
    with capturing(PACKAGE, _errors(), builder.close):
        builder.begin_building()
        for _ in range(count):
            call(builder)
        builder.end_building()
        graph = builder.complete()
    definition = getattr(builder, "graph_definition", None)
    if definition is None:
        builder.close()
        raise Skip("cuda.core shows a graph's nodes since 1.1: pip install 'cuda-core>=1.1'")
    nodes = len(definition.nodes())
    builder.close()
    graph.upload(stream)
    return LayerGraph(launch=partial(graph.launch, stream), nodes=nodes, close=graph.close)


def _errors() -> Errors:
    """What cuda.core raises: the driver's errors come as a class of its own, which has no public name."""
    return RuntimeError, load(f"{PACKAGE}._utils.cuda_utils", INSTALL).CUDAError

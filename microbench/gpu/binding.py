"""How each op becomes a Submit on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from cuda.bindings import driver

from microbench.errors import MeasurementError, Skip
from microbench.gpu.api import SAFE_QUEUE_SLOTS, Submit
from microbench.gpu.context import Context, check, entry_point
from microbench.gpu.layers.base import (
    LayerContext,
    LayerHandle,
    LayerSubmit,
    kernels_of_one_call,
    open_named,
    open_spinning,
    replays,
)
from microbench.gpu.modules import Modules
from microbench.gpu.submit import DriverSubmit, Parameters, copy, launch, launch_extended
from microbench.model import Fact
from microbench.ops import LOOP_LAYER, Copy, Launch, LayerCall, Memset, Query, Record, SynchronizeIdle, Wait

LAYER_ARGUMENTS = (0, 4)


def bind_launch(
    context: Context, modules: Modules, op: Launch, stream: int, cycles: Callable[[int], int]
) -> DriverSubmit:
    """A kernel launch: empty, spinning, or with a parameter block. Raises MeasurementError for the last two at once."""
    parameters, keep = None, np.zeros(max(op.argument_bytes, 8), dtype=np.uint8)
    if op.duration_ns and op.argument_bytes:
        raise MeasurementError("a spin kernel has no parameter block to size")
    if op.duration_ns:
        function = modules.function("launch", "spin")
        parameters = Parameters([(cycles(op.duration_ns),)])
    elif op.argument_bytes:
        function = modules.function("arguments", "arguments", ARGUMENT_BYTES=op.argument_bytes)
        block = np.array([keep.ctypes.data], dtype=np.uint64)
        submit = launch(function, op, stream, None, keep=(keep, block))
        submit.arguments[9] = block.ctypes.data
        return submit
    else:
        function = modules.function("launch", "empty")
    if op.kind == "launch":
        return launch(function, op, stream, parameters)
    return launch_extended(context, function, op, stream, parameters)


def bind_copy(context: Context, op: Copy, stream: int) -> DriverSubmit:
    """A copy between a pinned and a device buffer of its own."""
    host = context.pinned(op.size_bytes, np.uint8)
    device = context.device_memory(op.size_bytes)
    return copy(op.direction, device, int(host.ctypes.data), op.size_bytes, stream)


def bind_memset(context: Context, op: Memset, stream: int) -> DriverSubmit:
    """A memset of a device buffer of its own."""
    device = context.device_memory(op.size_bytes)
    address = entry_point("cuMemsetD8Async")
    return DriverSubmit("cuMemsetD8Async", address, [device, 1, op.size_bytes, stream], stream=stream)


def bind_event(context: Context, op: Record | Wait | Query | SynchronizeIdle, stream: int, other: int) -> DriverSubmit:
    """Event calls and waits on something that has happened. An untimed record or a query takes no queue slot."""
    event = context.event(timed=isinstance(op, Record) and op.timed, blocking=context.wait == "blocking")
    check(driver.cuEventRecord(event, other))
    context.synchronize()
    slots: int | None = SAFE_QUEUE_SLOTS
    if isinstance(op, Record):
        name, arguments, slots = "cuEventRecord", [event, stream], SAFE_QUEUE_SLOTS // 2 if op.timed else None
    elif isinstance(op, Wait):
        name, arguments = "cuStreamWaitEvent", [stream, event, 0]
    elif isinstance(op, Query):
        name, arguments, slots = "cuEventQuery", [event], None
    elif op.what == "stream":
        name, arguments, slots = "cuStreamSynchronize", [stream], None
    else:
        name, arguments, slots = "cuEventSynchronize", [event], None
    return DriverSubmit(name, entry_point(name), arguments, stream=stream, queue_slots=slots)


def bind_graph(executable: int, stream: int, queue_slots: int = SAFE_QUEUE_SLOTS) -> DriverSubmit:
    """A replay. One of a chain of kernels takes one slot of the launch queue; of other nodes, each may take one."""
    name = "cuGraphLaunch"
    return DriverSubmit(name, entry_point(name), [executable, stream], stream=stream, queue_slots=queue_slots)


class BoundLayer(NamedTuple):
    """A Python layer's call, how many kernels it makes, and its handle (None: the compiled loop)."""

    submit: Submit
    kernels: Fact
    handle: LayerHandle | None


def bind_layer(
    context: Context, modules: Modules, op: LayerCall, stream: int, ordinal: int, cycles: Callable[[int], int]
) -> BoundLayer:
    """A Python layer's call. The compiled loop is the layer ``loop``.

    Raises Skip when the layer's package is missing, or takes no such number of arguments or kernels of a given length.
    """
    pointers = tuple(context.device_memory(4096) for _ in range(3))
    if op.layer == LOOP_LAYER:
        one = Fact("kernels_per_call", 1, source="cuLaunchKernel makes one")
        if op.duration_ns is not None:
            return BoundLayer(bind_launch(context, modules, Launch(op.duration_ns), stream, cycles), one, None)
        kernel = modules.function("launch", "four_arguments" if op.arguments else "empty")
        rows = Parameters([(*pointers, 0)]) if op.arguments else None
        return BoundLayer(launch(kernel, Launch(), stream, rows), one, None)
    layer_context = LayerContext(
        cubin=modules.cubin("launch"),
        stream_handle=stream,
        device_index=ordinal,
        pointers=(pointers[0], pointers[1], pointers[2]),
    )
    if op.duration_ns is None:
        handle = open_named(op.layer, layer_context, op.arguments)
    else:
        handle = open_spinning(op.layer, layer_context, cycles(op.duration_ns))
    context.own(handle.close)
    context.synchronize()
    return BoundLayer(LayerSubmit(handle, driver), kernels_of_one_call(handle, driver), handle)


def bind_layer_graph(context: Context, handle: LayerHandle, count: int) -> tuple[Submit, int]:
    """``count`` calls of a layer captured by its own means: their replay by those means, and the graph's nodes.

    Raises Skip for a layer that cannot.
    """
    if handle.graph is None:
        raise Skip("this layer captures no graphs")
    graph = handle.graph(count)
    context.own(graph.close)
    context.synchronize()
    return LayerSubmit(replays(handle, graph), driver), graph.nodes

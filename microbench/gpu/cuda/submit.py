"""Ops bound to driver entry points: each becomes an address and its integer arguments for the compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.ops import (
    LOOP_LAYER,
    Copy,
    IntArray,
    Launch,
    LayerCall,
    Memset,
    Query,
    Record,
    SynchronizeIdle,
    Wait,
)
from microbench.gpu.cuda.context import Context, Modules, check, check_code, entry_point
from microbench.gpu.layers.base import (
    LayerContext,
    LayerHandle,
    LayerSubmit,
    kernels_of_one_call,
    open_named,
    open_spinning,
    replays,
)
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.gpu.protocol.submit import Submit
from microbench.host import loops
from microbench.host.native import c_address

# Large parameter blocks share a buffer of about 4.0e6 bytes; a launch takes its arguments and 1574 bytes of it
# (found on data-centre drivers of the 580 series by launch_queue), of which half is used.
ARGUMENT_BUFFER_BYTES = 4.0e6
LAUNCH_RECORD_BYTES = 1574


def safe_slots(argument_bytes: int) -> int:
    """How many launches may stand behind a gate: half of what the driver was found to take."""
    return min(SAFE_QUEUE_SLOTS, int(ARGUMENT_BUFFER_BYTES / (argument_bytes + LAUNCH_RECORD_BYTES) / 2))


class Parameters:
    """kernelParams of many launches: row i holds pointers to its own copy of 64-bit arguments.

    ``address`` is that of row 0, ``stride`` the bytes to the next, 0 for a row that serves every launch.
    A kernel reads as many low bytes of each argument as its type has (the host is little-endian).
    """

    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self._values = np.array(rows, dtype=np.uint64).reshape(len(rows), -1)
        slots = self._values.ctypes.data + 8 * np.arange(self._values.size, dtype=np.uint64)
        self._pointers: npt.NDArray[np.uint64] = slots.astype(np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self.stride = 8 * self._values.shape[1] if len(rows) > 1 else 0

    def point(self, argument: int, address: int) -> None:
        """Have an argument of row 0 read from somewhere else when the kernel is launched."""
        self._pointers[argument] = address


class DriverSubmit:
    """A Submit whose calls are made by compiled loops: its figures are those of a C program.

    ``keep`` are objects whose memory the arguments point to.
    """

    def __init__(
        self,
        what: str,
        address: int,
        arguments: list[int],
        *,
        stream: int,
        queue_slots: int | None = SAFE_QUEUE_SLOTS,
        stride: int = 0,
        keep: tuple[Any, ...] = (),
    ) -> None:
        size = loops.NARROW_ARGUMENTS if len(arguments) <= loops.NARROW_ARGUMENTS else loops.WIDE_ARGUMENTS
        self.what = what
        self.address = address
        self.arguments: IntArray = np.zeros(size, dtype=np.int64)
        self.arguments[: len(arguments)] = np.array(arguments, dtype=np.uint64).astype(np.int64)
        self.queue_slots = queue_slots
        self.stride = stride
        self.stream = stream
        self._keep = keep
        self._clock = c_address("clock_gettime")
        self._synchronize = entry_point("cuStreamSynchronize")

    def __call__(self, count: int) -> None:
        check_code(loops.submit(self.address, self.arguments, self.stride, count), self.what)

    def burst_ns(self, count: int) -> int:
        code, elapsed_ns = loops.submit_timed(self.address, self.arguments, self.stride, count, self._clock)
        check_code(code, self.what)
        return int(elapsed_ns)

    def stamps(self, out_ns: IntArray) -> None:
        code = loops.submit_stamped(self.address, self.arguments, self.stride, self._clock, out_ns)
        check_code(code, self.what)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        code = loops.round_trips(
            self.address, self.arguments, calls, self._synchronize, self.stream, self._clock, out_ns
        )
        check_code(code, self.what)


def launch(
    function: int,
    op: Launch,
    stream: int,
    parameters: Parameters | None,
    keep: tuple[Any, ...] = (),
    shared_bytes: int = 0,
) -> DriverSubmit:
    """A plain launch by cuLaunchKernel; ``shared_bytes`` of dynamic shared memory a block, which the kernel allows."""
    address = parameters.address if parameters else 0
    arguments = [function, op.grid_blocks, 1, 1, op.block_threads, 1, 1, shared_bytes, stream, address, 0]
    return DriverSubmit(
        "cuLaunchKernel",
        entry_point("cuLaunchKernel"),
        arguments,
        stream=stream,
        queue_slots=safe_slots(op.argument_bytes),
        stride=parameters.stride if parameters else 0,
        keep=(parameters, *keep),
    )


def copy(direction: Literal["h2d", "d2h"], device: int, host: int, size_bytes: int, stream: int) -> DriverSubmit:
    """An asynchronous copy by a copy engine, between device memory and host memory of any kind."""
    to_device = direction == "h2d"
    name = "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync"
    ends = [device, host] if to_device else [host, device]
    return DriverSubmit(name, entry_point(name), [*ends, size_bytes, stream], stream=stream)


def launch_extended(
    context: Context, function: int, op: Launch, stream: int, parameters: Parameters | None
) -> DriverSubmit:
    """A launch by cuLaunchKernelEx with the attribute that the op's kind names.

    Raises Skip where the GPU has no such launch.
    """
    attributes = _attributes(context, op)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = op.grid_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = op.block_threads, 1, 1
    config.hStream = driver.CUstream(stream)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    address = parameters.address if parameters else 0
    return DriverSubmit(
        f"cuLaunchKernelEx ({op.kind})",
        entry_point("cuLaunchKernelEx"),
        [int(config.getPtr()), function, address, 0],
        stream=stream,
        queue_slots=safe_slots(op.argument_bytes),
        stride=parameters.stride if parameters else 0,
        keep=(config, attributes, parameters),
    )


def _attributes(context: Context, op: Launch) -> list[Any]:
    attribute = driver.CUlaunchAttribute()
    ids = driver.CUlaunchAttributeID
    hopper = context.attribute("COMPUTE_CAPABILITY_MAJOR") >= 9
    if op.kind == "launch_ex":
        return []
    if op.kind == "cooperative":
        if not context.attribute("COOPERATIVE_LAUNCH"):
            raise Skip("this GPU or driver has no cooperative launch")
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        return [attribute]
    if not hopper:
        raise Skip(f"a {op.kind} launch needs compute capability 9.0")
    if op.kind == "cluster":
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = op.grid_blocks
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    else:
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
    return [attribute]


# How each op becomes a Submit on a real GPU.


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

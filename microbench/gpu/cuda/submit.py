"""Turns operations into driver calls: an address and integer arguments, which compiled loops call and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core import ops
from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import BoundLayer, Case
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.layers import base
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Direction, Submit
from microbench.host.native import c_address

# All queued launches share a buffer of about 4.0e6 bytes for their arguments; a launch takes its arguments and 1574
# bytes more (launch_queue found both on data-centre drivers of the 580 series). Half of the buffer is used.
ARGUMENT_BUFFER_BYTES = 4.0e6
LAUNCH_RECORD_BYTES = 1574


def safe_slots(argument_bytes: int) -> int:
    """How many launches may be queued behind a gate: half of the measured capacity of the launch queue."""
    return min(SAFE_QUEUE_SLOTS, int(ARGUMENT_BUFFER_BYTES / (argument_bytes + LAUNCH_RECORD_BYTES) / 2))


class DriverSubmit:
    """A Submit of one driver call from compiled loops: its times are those of a C program.

    ``function`` is the name of the driver function, or of another C function at ``address``. ``stride`` is added to
    kernelParams after each call, in bytes. ``keep`` holds the objects that the arguments point to.
    """

    def __init__(
        self,
        function: str,
        arguments: Sequence[int],
        *,
        stream: int,
        queue_slots: int | None = SAFE_QUEUE_SLOTS,
        stride: int = 0,
        keep: tuple[Any, ...] = (),
        address: int | None = None,
    ) -> None:
        size = loops.NARROW_ARGUMENTS if len(arguments) <= loops.NARROW_ARGUMENTS else loops.WIDE_ARGUMENTS
        self.what = function
        self.address = entry_point(function) if address is None else address
        self.arguments: ops.IntArray = np.zeros(size, dtype=np.int64)
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

    def stamps(self, out_ns: ops.IntArray) -> None:
        code = loops.submit_stamped(self.address, self.arguments, self.stride, self._clock, out_ns)
        check_code(code, self.what)

    def round_trips(self, out_ns: ops.IntArray, calls: int = 1) -> None:
        code = loops.round_trips(
            self.address, self.arguments, calls, self._synchronize, self.stream, self._clock, out_ns
        )
        check_code(code, self.what)


class Parameters:
    """kernelParams of many launches: row i holds pointers to its own copy of 64-bit arguments.

    ``address`` is that of row 0, ``stride`` the bytes to the next row; 0 for a single row, which serves every launch. A
    kernel reads the low bytes of each argument, as many as its type has (the host is little-endian).
    """

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self._values = np.array(rows, dtype=np.uint64).reshape(len(rows), -1)
        slots = self._values.ctypes.data + 8 * np.arange(self._values.size, dtype=np.uint64)
        self._pointers: npt.NDArray[np.uint64] = slots.astype(np.uint64)
        self.address = int(self._pointers.ctypes.data)
        self.stride = 8 * self._values.shape[1] if len(rows) > 1 else 0

    def __setitem__(self, argument: int, value: int) -> None:
        """Give an argument of row 0 another value, which later launches take."""
        self._values[0, argument] = value

    def point(self, argument: int, address: int) -> None:
        """Make the launch read an argument of row 0 from this address instead."""
        self._pointers[argument] = address


def launch(
    case: Case,
    function: int,
    op: ops.Launch,
    parameters: Parameters | None = None,
    *,
    shared_bytes: int = 0,
    keep: tuple[Any, ...] = (),
    cluster_blocks: int | None = None,
) -> DriverSubmit:
    """A launch of a CUfunction into the op's stream, with ``shared_bytes`` of dynamic shared memory a block.

    A plain launch uses cuLaunchKernel, other kinds cuLaunchKernelEx with the kind's attribute. A cluster is the whole
    grid, or ``cluster_blocks`` of it. Raises Skip if the GPU has no such launch.
    """
    stream, address = case.stream(op.stream), parameters.address if parameters else 0
    stride = parameters.stride if parameters else 0
    name, keep = "cuLaunchKernel", (parameters, *keep)
    arguments = [function, op.grid_blocks, 1, 1, op.block_threads, 1, 1, shared_bytes, stream, address, 0]
    if op.kind != "launch":
        attributes = _attributes(case, op, cluster_blocks)
        config = _config(case, op, shared_bytes, attributes)
        name, keep = "cuLaunchKernelEx", (config, attributes, *keep)
        arguments = [int(config.getPtr()), function, address, 0]
    slots = safe_slots(op.argument_bytes)
    return DriverSubmit(name, arguments, stream=stream, queue_slots=slots, stride=stride, keep=keep)


def _config(case: Case, op: ops.Launch, shared_bytes: int, attributes: list[Any]) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = op.grid_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = op.block_threads, 1, 1
    config.sharedMemBytes = shared_bytes
    config.hStream = driver.CUstream(case.stream(op.stream))
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def clusters_at_once(case: Case, function: int, op: ops.Launch, shared_bytes: int, cluster_blocks: int) -> int:
    """How many clusters of ``cluster_blocks`` blocks the GPU runs at the same time."""
    config = _config(case, op, shared_bytes, _attributes(case, op, cluster_blocks))
    return int(check(driver.cuOccupancyMaxActiveClusters(function, config)))


def _attributes(case: Case, op: ops.Launch, cluster_blocks: int | None = None) -> list[Any]:
    attribute, ids = driver.CUlaunchAttribute(), driver.CUlaunchAttributeID
    if op.kind == "launch_ex":
        return []
    if op.kind == "cooperative":
        if not case.context.attribute("COOPERATIVE_LAUNCH"):
            raise Skip("this GPU or driver has no cooperative launch")
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        return [attribute]
    case.require_capability(9, 0, f"a {op.kind} launch")
    if op.kind == "cluster":
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = cluster_blocks or op.grid_blocks
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
    else:
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
    return [attribute]


def allow_shared_memory(function: int, shared_bytes: int, carve_out: int | None = None) -> None:
    """Let a kernel have this much dynamic shared memory, if any.

    ``carve_out`` is the share of the SM's memory, in %, that is preferred as shared memory; the rest is its cache.
    """
    attributes = driver.CUfunction_attribute
    if carve_out is not None:
        preferred = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        check(driver.cuFuncSetAttribute(function, preferred, carve_out))
    if shared_bytes:
        most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function, most, shared_bytes))


def run(case: Case, function: int, blocks: int, threads: int, arguments: tuple[int, ...]) -> None:
    """Launch a CUfunction once in the legacy default stream and wait for it. Not for timed work."""
    op = ops.Launch(grid_blocks=blocks, block_threads=threads, stream=ops.LEGACY_STREAM)
    launch(case, function, op, Parameters([arguments]))(1)
    case.synchronize()


def bind_launch(case: Case, op: ops.Launch) -> DriverSubmit:
    """A kernel launch: an empty kernel, a spin kernel, or one with a parameter block.

    Raises MeasurementError for a spin kernel with a parameter block.
    """
    if op.duration_ns and op.argument_bytes:
        raise MeasurementError("a spin kernel has no parameter block to size")
    if op.duration_ns:
        function = case.function("launch", "spin")
        return launch(case, function, op, Parameters([(case.cycles(op.duration_ns),)]))
    if op.argument_bytes:
        function = case.function("arguments", "arguments", ARGUMENT_BYTES=op.argument_bytes)
        block, parameters = np.zeros(max(op.argument_bytes, 8), dtype=np.uint8), Parameters([(0,)])
        parameters.point(0, block.ctypes.data)
        return launch(case, function, op, parameters, keep=(block,))
    return launch(case, case.function("launch", "empty"), op)


def copy(direction: Direction, device: int, host: int, size_bytes: int, stream: int) -> DriverSubmit:
    """An asynchronous copy by a copy engine, between device memory and host memory of any kind."""
    to_device = direction == "h2d"
    name = "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync"
    ends = [device, host] if to_device else [host, device]
    return DriverSubmit(name, [*ends, size_bytes, stream], stream=stream)


def bind_event(case: Case, op: ops.Record | ops.Wait | ops.Query | ops.SynchronizeIdle) -> DriverSubmit:
    """Event calls and waits for something that has happened. An untimed record or a query takes no queue slot."""
    stream = case.stream(0 if isinstance(op, ops.Query | ops.SynchronizeIdle) else op.stream)
    other = case.stream(op.other) if isinstance(op, ops.Wait) else stream
    event = case.event(timed=isinstance(op, ops.Record) and op.timed, blocking=case.context.wait == "blocking")
    check(driver.cuEventRecord(event, other))
    case.synchronize()
    slots: int | None = None
    match op:
        case ops.Record():
            name, arguments, slots = "cuEventRecord", [event, stream], SAFE_QUEUE_SLOTS // 2 if op.timed else None
        case ops.Wait():
            name, arguments, slots = "cuStreamWaitEvent", [stream, event, 0], SAFE_QUEUE_SLOTS
        case ops.Query():
            name, arguments = "cuEventQuery", [event]
        case ops.SynchronizeIdle(what="stream"):
            name, arguments = "cuStreamSynchronize", [stream]
        case ops.SynchronizeIdle():
            name, arguments = "cuEventSynchronize", [event]
    return DriverSubmit(name, arguments, stream=stream, queue_slots=slots)


def bind_layer(case: Case, op: ops.LayerCall) -> BoundLayer:
    """A call through a Python layer, or from the compiled loop, which is the layer ``loop``.

    Raises Skip if the layer's package is missing, or if it is not measured with this number of arguments or with
    kernels of a given length.
    """
    a, b, c = (case.device_memory(4096) for _ in range(3))
    if op.layer == ops.LOOP_LAYER:
        kernels = Fact("kernels_per_call", 1, source="cuLaunchKernel makes one")
        if op.duration_ns is not None:
            return BoundLayer(bind_launch(case, ops.Launch(op.duration_ns)), kernels, None)
        function = case.function("launch", "four_arguments" if op.arguments else "empty")
        parameters = Parameters([(a, b, c, 0)]) if op.arguments else None
        return BoundLayer(launch(case, function, ops.Launch(), parameters), kernels, None)
    context = base.LayerContext(
        cubin=case.context.kernels.cubin("launch"),
        stream_handle=case.stream(0),
        device_index=int(case.context.device),
        pointers=(a, b, c),
    )
    if op.duration_ns is None:
        handle = base.open_layer(op.layer, context, op.arguments)
    else:
        handle = base.open_spinning(op.layer, context, case.cycles(op.duration_ns))
    case.own(handle.close)
    case.synchronize()
    submit: Submit = base.LayerSubmit(handle, driver)
    if (call := handle.compiled) is not None:
        submit = DriverSubmit(call.name, call.arguments, stream=case.stream(0), keep=call.keep, address=call.address)
    return BoundLayer(submit, base.kernels_of_one_call(handle, driver), handle)


def bind_layer_graph(case: Case, handle: base.LayerHandle, count: int) -> tuple[Submit, int]:
    """A graph of ``count`` calls, made with the layer's own API: its replay by that API, its number of nodes.

    Raises Skip for a layer that makes no graphs.
    """
    if handle.graph is None:
        raise Skip("this layer captures no graphs")
    graph = handle.graph(count)
    case.own(graph.close)
    case.synchronize()
    return base.LayerSubmit(base.replays(handle, graph), driver), graph.nodes()


def capture(stream: int, submit: Callable[[], object]) -> Any:
    """The graph of what ``submit`` submits to a CUstream; the caller destroys it.

    Raises MeasurementError, with the driver's reason, if a call cannot be captured; the capture is ended then.
    """
    thread_local = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCapture(stream, thread_local))
    whole = False
    try:
        submit()
        whole = True
    finally:
        code, graph = driver.cuStreamEndCapture(stream)
        if not whole and int(code) == 0:
            driver.cuGraphDestroy(graph)
    return check((code, graph))


def executable(case: Case, graph: Any, stream: int, flags: int = 0) -> int:
    """A CUgraphExec of a graph, uploaded in a CUstream. The case destroys it; the caller destroys the graph."""
    handle = check(driver.cuGraphInstantiate(graph, flags))
    case.own(lambda: driver.cuGraphExecDestroy(handle))
    check(driver.cuGraphUpload(handle, stream))
    case.synchronize()
    return int(handle)


def captured(case: Case, stream: int, submit: Callable[[], object]) -> tuple[int, int]:
    """What ``submit`` submits to a CUstream, as a graph: its CUgraphExec and its number of nodes."""
    graph = capture(stream, submit)
    nodes = int(check(driver.cuGraphGetNodes(graph))[1])
    handle = executable(case, graph, stream)
    check(driver.cuGraphDestroy(graph))
    return handle, nodes


def replay(graph: int, stream: int, queue_slots: int = SAFE_QUEUE_SLOTS) -> DriverSubmit:
    """A replay of a CUgraphExec. A chain of kernels takes one slot of the launch queue, other nodes may take more."""
    return DriverSubmit("cuGraphLaunch", [graph, stream], stream=stream, queue_slots=queue_slots)


# Several different calls in a fixed order as one Submit: work on several streams, chains of mixed nodes.

NOTHING_TAKEN = -1


class CallRow(NamedTuple):
    """One driver call of a Program: its name (for errors), address and arguments.

    ``takes`` is the place of an argument that is read from the program's scratch word at the time of the call. ``keep``
    holds what the arguments point to.
    """

    what: str
    address: int
    arguments: Sequence[int]
    takes: int = NOTHING_TAKEN
    keep: tuple[Any, ...] = ()

    @classmethod
    def named(cls, name: str, arguments: Sequence[int], takes: int = NOTHING_TAKEN) -> CallRow:
        return cls(name, entry_point(name), arguments, takes)

    @classmethod
    def of(cls, submit: DriverSubmit) -> CallRow:
        return cls(submit.what, submit.address, [int(value) for value in submit.arguments], keep=(submit,))


class Program:
    """A Submit of ``calls`` in their order. One submission makes all calls, or only the next one if ``single``.

    Round trips wait for ``waits_for``, the CUstream that ends last, or for the whole context if it is None.
    ``queue_slots`` is how many submissions may be outstanding; by default each call takes a slot.
    """

    def __init__(
        self,
        calls: Sequence[CallRow],
        *,
        single: bool = False,
        scratch: ops.IntArray | None = None,
        waits_for: int | None = None,
        queue_slots: int | None = None,
    ) -> None:
        self._what = ", ".join(dict.fromkeys(call.what for call in calls))
        self._keep = [call.keep for call in calls]
        rows: ops.IntArray = np.zeros((len(calls), loops.WIDE_ARGUMENTS), dtype=np.int64)
        for row, call in zip(rows, calls, strict=True):
            row[: len(call.arguments)] = [as_int64(value) for value in call.arguments]
        self._calls = (
            np.array([call.address for call in calls], dtype=np.uint64).astype(np.int64),
            rows,
            np.array([call.takes for call in calls], dtype=np.int64),
            scratch if scratch is not None else np.zeros(1, dtype=np.int64),
        )
        self._each = 1 if single else len(calls)
        self._clock = c_address("clock_gettime")
        self._synchronize = entry_point("cuCtxSynchronize" if waits_for is None else "cuStreamSynchronize")
        self._waits_for = as_int64(waits_for or 0)
        self.queue_slots: int | None = queue_slots or max(SAFE_QUEUE_SLOTS // self._each, 1)

    def __call__(self, count: int) -> None:
        check_code(loops.submit_rows(*self._calls, count * self._each), self._what)

    def burst_ns(self, count: int) -> int:
        stamps: ops.IntArray = np.zeros(2, dtype=np.int64)
        self._stamped(count * self._each, stamps)
        return int(stamps[1] - stamps[0])

    def stamps(self, out_ns: ops.IntArray) -> None:
        self._stamped(self._each, out_ns)

    def _stamped(self, each: int, out_ns: ops.IntArray) -> None:
        check_code(loops.submit_rows_stamped(*self._calls, each, self._clock, out_ns), self._what)

    def round_trips(self, out_ns: ops.IntArray, calls: int = 1) -> None:
        code = loops.rows_round_trips(
            *self._calls, calls * self._each, self._synchronize, self._waits_for, self._clock, out_ns
        )
        check_code(code, self._what)


def loaded(case: Case, calls: Sequence[CallRow]) -> Program:
    """A Program of these calls that has run once, which loads the code: a capture would not."""
    program = Program(calls)
    program(1)
    case.synchronize()
    return program


def as_int64(value: int) -> int:
    """An address as the signed integer that the compiled loops take; a signed integer stays as it is."""
    return value if value < 1 << 63 else value - (1 << 64)

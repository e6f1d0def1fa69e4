"""Chains of nodes of one kind: captured where a stream has such a call, else built node by node."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda.case import (
    KERNEL_NODE,
    Case,
    Words,
    as_int64,
    expect_words,
    nodes_of,
    programmatic_edges,
    wrong,
)
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.graphs.changes import RESULT_WORDS, UPDATE_FAILURE, refusal
from microbench.gpu.cuda.graphs.effects import (
    Appends,
    CallRow,
    DependentAppends,
    Effects,
    Framed,
    HostAppends,
    Program,
    Records,
    Sets,
    Waits,
)
from microbench.gpu.cuda.submit import DriverSubmit, Parameters, bind_graph, launch
from microbench.gpu.cuda.timing import capture
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.gpu.protocol.graphs import AllocationWay, Decider, NodeKind, Shape
from microbench.gpu.protocol.submit import Submit
from microbench.host import graph_loops
from microbench.host.native import c_address

# Steps that allocate, use and free device memory: by nodes of a graph, in a stream, or not at all.


KEEP_ALL = (1 << 64) - 1
VALUE_CHECK = "a fresh value went through the first and last word of each block"


class CudaStep:
    """See Step of graph_api.py."""

    def __init__(self, case: Case, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        self._outside = way.endswith("_outside")
        if not self._outside and not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
            raise Skip("this GPU or driver has no memory pools")
        self._case = case
        self._way = way
        self._size_bytes = size_bytes
        self._stream = case.stream(0)
        self._pointer: IntArray = np.zeros(1, dtype=np.int64)
        self._source: Words = case.words(1)
        self._out: Words = case.words(pairs)
        self._random = np.random.default_rng()
        self._pool = None if self._outside or way == "graph_nodes" else self._own_pool(keeps=way == "stream_kept")
        if self._outside:
            self._pointer[0] = case.context.device_memory(size_bytes)
        rows = [row for pair in range(pairs) for row in self._pair(pair)]
        # stream_released: each step behind a synchronise, which has given the pages back.
        slots = 1 if way == "stream_released" else None
        self._program = program = Program(rows, scratch=self._pointer, waits_for=self._stream, queue_slots=slots)
        if way == "graph_nodes":
            self._load()
        else:
            program(1)
            case.context.synchronize()
        self.submit: Submit = self._as_graph() if way.startswith("graph") else program

    def _own_pool(self, *, keeps: bool) -> driver.CUmemoryPool:
        props = driver.CUmemPoolProps()
        props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = int(self._case.context.device)
        pool = check(driver.cuMemPoolCreate(props))
        self._case.context.own(lambda: driver.cuMemPoolDestroy(pool))
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP_ALL if keeps else 0)))
        return pool

    def _use(self, pair: int) -> CallRow:
        """The kernel takes the block's address from where the allocation has put it."""
        function = self._case.modules.function("graph", "pass_through")
        parameters = Parameters([(0, self._source.address, self._out.at(pair), self._size_bytes // 4 - 1)])
        parameters.point(0, int(self._pointer.ctypes.data))
        return CallRow.of(launch(function, Launch(block_threads=1), self._stream, parameters))

    def _pair(self, pair: int) -> list[CallRow]:
        use = self._use(pair)
        if self._outside:
            return [use]
        place = int(self._pointer.ctypes.data)
        if self._pool is None:
            allocate = CallRow.named("cuMemAllocAsync", [place, self._size_bytes, self._stream])
        else:
            allocate = CallRow.named(
                "cuMemAllocFromPoolAsync", [place, self._size_bytes, int(self._pool), self._stream]
            )
        return [allocate, use, CallRow.named("cuMemFreeAsync", [0, self._stream], takes=0)]

    def _load(self) -> None:
        """Load the kernel, which a capture would not: once on a block of its own."""
        self._pointer[0] = self._case.context.device_memory(self._size_bytes)
        Program([self._use(0)])(1)
        self._case.context.synchronize()

    def _as_graph(self) -> Submit:
        graph = capture(self._stream, lambda: self._program(1))
        self._case.context.own(lambda: driver.cuDeviceGraphMemTrim(self._case.context.device))
        executable = self._case.executable(graph)
        check(driver.cuGraphDestroy(graph))
        nodes = len(self._program)
        return bind_graph(executable, self._stream, max(SAFE_QUEUE_SLOTS // nodes, 1))

    def held_bytes(self) -> int:
        self.submit(1)
        self._case.context.synchronize()
        if self._outside:
            return self._size_bytes
        if self._pool is not None:
            held = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
            return int(check(driver.cuMemPoolGetAttribute(self._pool, held)))
        reserved = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
        return int(check(driver.cuDeviceGetGraphMemAttribute(self._case.context.device, reserved)))

    def check(self) -> str:
        value = int(self._random.integers(1, 1 << 30))
        self._source.write([value])
        self._out.write([])
        self.submit(1)
        self._case.context.synchronize()
        expect_words(self._out, [value + 1] * self._out.count)
        return VALUE_CHECK


BUILT = ("child", "empty", "if_taken", "if_skipped")
ONCE = ("if_taken", "if_skipped")
PROGRAMMATIC = ("pdl", "pdl_trigger", "pdl_prologue", "pdl_trigger_prologue")
PROLOGUE_NS = 1000
# Whose replay takes one slot of the launch queue, however many nodes it has; of other kinds each node may take one.
ONE_SLOT = ("kernel_empty", "kernel", "kernel_prologue", *PROGRAMMATIC, "empty")
_TYPES = driver.CUgraphNodeType
NODE_TYPES: dict[str, driver.CUgraphNodeType] = {
    "memset": _TYPES.CU_GRAPH_NODE_TYPE_MEMSET,
    "copy_h2d": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "copy_d2h": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "copy_d2d": _TYPES.CU_GRAPH_NODE_TYPE_MEMCPY,
    "host": _TYPES.CU_GRAPH_NODE_TYPE_HOST,
    "event_record": _TYPES.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
    "event_wait": _TYPES.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    "child": _TYPES.CU_GRAPH_NODE_TYPE_GRAPH,
    "empty": _TYPES.CU_GRAPH_NODE_TYPE_EMPTY,
    "if_taken": _TYPES.CU_GRAPH_NODE_TYPE_CONDITIONAL,
    "if_skipped": _TYPES.CU_GRAPH_NODE_TYPE_CONDITIONAL,
}
# Kinds whose calls leave nothing behind in a stream.
WITHOUT_EFFECT = ("kernel_empty", "event_wait")
CONDITIONAL_VERSION = 12040
PROGRAMMATIC_VERSION = 12030


def effects_of(case: Case, kind: NodeKind, count: int) -> Effects:
    """What shows the effect of that kind. Raises Skip where driver or GPU have no such node."""
    if kind in PROGRAMMATIC:
        case.require_capability(9, 0, "programmatic dependent launch")
        case.require_driver(PROGRAMMATIC_VERSION, "programmatic edges of graphs")
    if kind in PROGRAMMATIC or kind == "kernel_prologue":
        prologue_ns = PROLOGUE_NS if kind.endswith("prologue") else 0
        trigger = kind.startswith("pdl_trigger")
        return DependentAppends(case, count, pdl=kind in PROGRAMMATIC, trigger=trigger, prologue_ns=prologue_ns)
    if kind in ("if_taken", "if_skipped"):
        case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        return Appends(case, count, skipped=kind == "if_skipped")
    if kind in ("memset", "copy_h2d", "copy_d2h", "copy_d2d"):
        return Sets(case, count, kind)
    others: dict[str, Callable[[Case, int], Effects]] = {
        "host": HostAppends,
        "event_record": Records,
        "event_wait": Waits,
        "kernel_empty": Framed,
        "empty": Framed,
    }
    return others.get(kind, Appends)(case, count)


class CudaChain:
    """Two graphs, each aimed at a target of its own; updates go from one to the other."""

    def __init__(self, case: Case, kind: NodeKind, count: int) -> None:
        self._case = case
        self._kind: NodeKind = kind
        self._count = count
        self._effects = effects_of(case, kind, count)
        self._stream_handle = case.stream(0)
        program = None
        if kind not in BUILT:
            calls = self._effects.rows(0, captured=False)
            self._whole = program = Program(calls)
            self._checks_stream = kind not in WITHOUT_EFFECT
            program(1)  # loads the code, which capture would not
            case.context.synchronize()
        self.stream: Submit | None = Program(calls, single=True) if program else None
        self._kept: list[Any] = []
        self._graphs = [self._graph(kind, count, target) for target in range(2)]
        self._check_nodes()
        for graph in self._graphs:
            case.context.own(partial(driver.cuGraphDestroy, graph))
        self._target = 0
        self._executable = case.executable(self._graphs[0])
        slots = SAFE_QUEUE_SLOTS if kind in ONE_SLOT else max(SAFE_QUEUE_SLOTS // count, 1)
        self.graph: Submit = bind_graph(self._executable, self._stream_handle, slots)
        self._scratch: IntArray = np.zeros(RESULT_WORDS, dtype=np.int64)
        self._clock = c_address("clock_gettime")

    def _check_nodes(self) -> None:
        """The graph has as many nodes of the kind as it should, linked as they should be."""
        kind_type = NODE_TYPES.get(self._kind, KERNEL_NODE)
        frames = 2 if self._kind == "kernel_empty" else 0  # kernels as well, and counted with them
        found = sum(one == kind_type for one in nodes_of(self._graphs[0]))
        if found != self._count + frames:
            raise wrong(f"a chain of {self._kind}", f"{found} such nodes", self._count + frames)
        edges = programmatic_edges(self._graphs[0]) if self._kind in PROGRAMMATIC else self._count - 1
        if edges != self._count - 1:
            raise wrong(f"a chain of {self._kind}", f"{edges} programmatic edges", self._count - 1)

    def _graph(self, kind: NodeKind, count: int, target: int) -> driver.CUgraph:
        if kind not in BUILT:
            program = Program(self._effects.rows(target, captured=True))
            self._kept.append(program)
            if isinstance(self._effects, Framed | Waits):
                Program([self._effects.frame.row(target, 0)])(1)  # loads the code, which capture would not
                self._case.context.synchronize()
            return capture(self._stream_handle, lambda: program(1))
        graph = check(driver.cuGraphCreate(0))
        add = {"child": self._add_child, "empty": self._add_empty}.get(kind, self._add_conditional)
        before: list[Any] = []
        if kind == "empty":
            before = [self._add_kernel(graph, before, self._framed().frame.row(target, 0))]
        for index in range(count):
            before = [add(graph, before, kind, target, index)]
        if kind == "empty":
            self._add_kernel(graph, before, self._framed().frame.row(target, 1))
        return graph

    def _framed(self) -> Framed:
        assert isinstance(self._effects, Framed)
        return self._effects

    def _add_kernel(self, graph: driver.CUgraph, before: list[Any], row: CallRow) -> Any:
        """A kernel node of a launch's arguments."""
        function, gx, gy, gz, bx, by, bz, shared, _, parameters, _ = row.arguments
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = driver.CUfunction(function)
        params.gridDimX, params.gridDimY, params.gridDimZ = gx, gy, gz
        params.blockDimX, params.blockDimY, params.blockDimZ = bx, by, bz
        params.sharedMemBytes, params.kernelParams = shared, parameters
        return check(driver.cuGraphAddKernelNode(graph, before or None, len(before), params))

    def _append(self, target: int, index: int) -> CallRow:
        assert isinstance(self._effects, Appends)
        return self._effects.row(target, index)

    def _add_child(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        child = check(driver.cuGraphCreate(0))
        self._add_kernel(child, [], self._append(target, index))
        node = check(driver.cuGraphAddChildGraphNode(graph, before or None, len(before), child))  # a copy of it
        check(driver.cuGraphDestroy(child))
        return node

    def _add_empty(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        return check(driver.cuGraphAddEmptyNode(graph, before or None, len(before)))

    def _add_conditional(self, graph: driver.CUgraph, before: list[Any], kind: str, target: int, index: int) -> Any:
        types = driver.CUgraphConditionalNodeType
        node, body, _ = conditional(self._case, graph, before, types.CU_GRAPH_COND_TYPE_IF, int(kind == "if_taken"))
        self._add_kernel(body, [], self._append(target, index))
        return node

    def instantiate_ns(self) -> int:
        """A graph with conditional nodes can be instantiated once: of these each time another one."""
        again = self._kind in ONCE
        graph = self._graph(self._kind, self._count, self._target) if again else self._graphs[self._target]
        address, handle = int(self._scratch.ctypes.data), as_int64(int(graph))
        instantiate = entry_point("cuGraphInstantiateWithFlags")
        code, took_ns = graph_loops.timed_call(instantiate, address, handle, 0, self._clock)
        check_code(code, "instantiating a graph once more")
        check(driver.cuGraphExecDestroy(int(self._scratch[0])))
        if again:
            check(driver.cuGraphDestroy(graph))
        return int(took_ns)

    def update_ns(self) -> int:
        """Each is followed by a replay, so that an update finds no other one still to be carried out."""
        other = 1 - self._target
        graph, executable = as_int64(int(self._graphs[other])), as_int64(self._executable)
        self._scratch[:] = 0
        code, took_ns = graph_loops.timed_call(
            entry_point("cuGraphExecUpdate"), executable, graph, int(self._scratch.ctypes.data), self._clock
        )
        if code == UPDATE_FAILURE:
            raise Skip(refusal(self._scratch))
        check_code(code, f"an update of a chain of {self._kind}")
        self._target = other
        self.graph(1)
        self._case.context.synchronize()
        return int(took_ns)

    def check(self) -> str:
        """See Chain; the stream's calls are checked as well."""
        self._effects.observe(self._target, lambda: self.graph(1))
        if self.stream is not None and self._checks_stream:
            self._effects.observe(0, lambda: self._whole(1))
        return self._effects.how


def conditional(
    case: Case, graph: driver.CUgraph, before: list[Any], type_: Any, default: int
) -> tuple[Any, driver.CUgraph, int]:
    """A conditional node whose condition is ``default`` at each launch: the node, its body's graph, the handle."""
    handle = check(
        driver.cuGraphConditionalHandleCreate(graph, case.context.handle, default, driver.CU_GRAPH_COND_ASSIGN_DEFAULT)
    )
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = type_
    params.conditional.size = 1
    params.conditional.ctx = case.context.handle
    node = add_node(graph, before, params)
    return node, params.conditional.phGraph_out[0], int(handle)


def add_node(graph: driver.CUgraph, before: list[Any], params: Any) -> Any:
    """cuGraphAddNode: with edge data since CUDA 13, and by another name before."""
    add = getattr(driver, "cuGraphAddNode_v2", driver.cuGraphAddNode)
    return check(add(graph, before or None, None, len(before), params))


# Iterations until a counter is full: decided by the host, by a WHILE node, by a graph that launches itself again.


DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


class HostDecides:
    """Launch, wait (or watch the flag in mapped memory), look, and launch again."""

    def __init__(self, case: Case, *, polls: bool) -> None:
        self._case = case
        self._stream = case.stream(0)
        self._counter = case.context.device_memory(4)
        self._flag = case.context.pinned(1)
        row = (self._counter, int(self._flag.ctypes.data))
        self._submit = launch(
            case.modules.function("graph", "count_up"), Launch(block_threads=1), self._stream, Parameters([row])
        )
        self._synchronize = 0 if polls else entry_point("cuStreamSynchronize")
        self._clock = c_address("clock_gettime")

    def run_ns(self, iterations: int) -> int:
        self._case.context.clear(self._counter, 4)
        self._flag[0] = 0
        code, took_ns = graph_loops.iterate(
            self._submit.address, self._submit.arguments, self._synchronize, self._stream, int(self._flag.ctypes.data),
            iterations, self._clock,
        )  # fmt: skip
        self._case.context.synchronize()  # an error of the GPU says more than a flag that never came
        check_code(code, "an iteration decided on the host")
        counted = int(self._case.context.read(self._counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)


class DeviceDecides:
    """One launch of a graph; the kernel in it decides whether there is another iteration."""

    def __init__(self, case: Case, decider: Decider) -> None:
        self._case = case
        self._stream = case.stream(0)
        self._counter = case.context.device_memory(COUNTER_WORDS * 4)
        self._made = self._while_graph() if decider == "while" else self._tail_graph()
        self._out: IntArray = np.zeros(1, dtype=np.int64)

    def _submit(self, graph: driver.CUgraph, flags: int = 0) -> DriverSubmit:
        executable = self._case.executable(graph, flags)
        check(driver.cuGraphDestroy(graph))
        return bind_graph(executable, self._stream)

    def _while_graph(self) -> DriverSubmit:
        self._case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = self._case.modules.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(self._case, graph, [], kind, 1)
        parameters = Parameters([(handle, self._counter)])
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = driver.CUfunction(function)
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.kernelParams = parameters.address
        check(driver.cuGraphAddKernelNode(body, None, 0, params))
        return self._submit(graph)

    def _tail_graph(self) -> DriverSubmit:
        self._case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = self._case.modules.function("graph_tail", "count_tail")
        one = launch(function, Launch(block_threads=1), self._stream, Parameters([(self._counter,)]))
        graph = capture(self._stream, lambda: one(1))  # such a kernel cannot be launched but in a graph
        flag = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
        return self._submit(graph, int(flag))

    def run_ns(self, iterations: int) -> int:
        start = np.array([0, iterations, 0], dtype=np.uint32)
        check(driver.cuMemcpyHtoD(self._counter, start.ctypes.data, start.nbytes))
        self._case.context.synchronize()
        self._made.round_trips(self._out)
        counted, _, error = (int(word) for word in self._case.context.read(self._counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(self._out[0])


# Kernels side by side: one graph built from nodes and edges, and the same work on streams that part and meet.


ORDER_CHECK = "every kernel recorded its begin and end; none began before those it depends on had ended"


class CudaShaped:
    """Kernel 0 parts and kernel 1 joins where the shape is joined; then the branches."""

    def __init__(self, case: Case, shape: Shape) -> None:
        self._case = case
        self._shape = shape
        self._out = case.context.device_memory(shape.kernels * 16)
        self._function = case.modules.function("launch", "record")
        cycles = case.cycles(shape.duration_ns)
        self._parameters = [Parameters([(self._out, index, cycles)]) for index in range(shape.kernels)]
        self._edges = edges(shape)
        graph = self._graph_submit()
        last = case.stream(0) if self._ends_in_one_stream else None
        self.streams: Submit = Program(self._stream_calls(), waits_for=last)
        # Both sides wait in the same way: for the whole context where the streams do.
        self.graph: Submit = graph if last is not None else Program([CallRow.of(graph)], queue_slots=graph.queue_slots)

    def _graph_submit(self) -> DriverSubmit:
        graph = check(driver.cuGraphCreate(0))
        nodes: dict[int, Any] = {}
        for kernel in self._order():
            before = [nodes[one] for one, other in self._edges if other == kernel]
            params = driver.CUDA_KERNEL_NODE_PARAMS()
            params.func = driver.CUfunction(self._function)
            params.gridDimX = params.gridDimY = params.gridDimZ = 1
            params.blockDimX, params.blockDimY, params.blockDimZ = 32, 1, 1
            params.kernelParams = self._parameters[kernel].address
            nodes[kernel] = check(driver.cuGraphAddKernelNode(graph, before or None, len(before), params))
        executable = self._case.executable(graph)
        check(driver.cuGraphDestroy(graph))
        slots = SAFE_QUEUE_SLOTS if self._ends_in_one_stream else max(SAFE_QUEUE_SLOTS // self._shape.kernels, 1)
        return bind_graph(executable, self._case.stream(0), slots)

    @property
    def _ends_in_one_stream(self) -> bool:
        return self._shape.joined or self._shape.branches == 1

    def _order(self) -> list[int]:
        """Kernels in an order in which each comes behind those it depends on: the one that joins last."""
        return [*(kernel for kernel in range(self._shape.kernels) if not self._joins(kernel)), *self._joining()]

    def _joins(self, kernel: int) -> bool:
        return kernel in self._joining()

    def _joining(self) -> list[int]:
        return [1] if self._shape.joined else []

    def _launch(self, kernel: int, stream: int) -> CallRow:
        return CallRow.of(launch(self._function, Launch(), self._case.stream(stream), self._parameters[kernel]))

    def _event_call(self, name: str, stream: int, event: int) -> CallRow:
        record = name == "cuEventRecord"
        handle = self._case.stream(stream)
        return CallRow(name, entry_point(name), [event, handle] if record else [handle, event, 0])

    def _stream_calls(self) -> list[CallRow]:
        """What a program with streams and events does: branch b in stream b, parted and joined by stream 0.

        The branches are submitted in turn, a kernel of each at a time: none waits until another is submitted whole.
        """
        shape, calls = self._shape, []
        others = range(1, shape.branches)
        if shape.joined:
            events = [self._case.context.event(timed=False) for _ in range(shape.branches)]
            calls += [self._launch(0, 0), self._event_call("cuEventRecord", 0, events[0])]
            calls += [self._event_call("cuStreamWaitEvent", branch, events[0]) for branch in others]
        for place in range(shape.length):
            calls += [self._launch(branch_kernel(shape, branch, place), branch) for branch in range(shape.branches)]
        if shape.joined:
            calls += [self._event_call("cuEventRecord", branch, events[branch]) for branch in others]
            calls += [self._event_call("cuStreamWaitEvent", 0, events[branch]) for branch in others]
            calls.append(self._launch(1, 0))
        return calls

    def check(self) -> str:
        for what, submit in (("the graph", self.graph), ("the streams", self.streams)):
            self._case.context.clear(self._out, self._shape.kernels * 16)
            submit(1)
            self._case.context.synchronize()
            words = self._case.context.read(self._out, self._shape.kernels * 2, np.int64)
            stamps = words.reshape(self._shape.kernels, 2)
            if not stamps.all():
                raise wrong(what, f"only {int(stamps.all(axis=1).sum())} kernels ran", self._shape.kernels)
            for before, after in self._edges:
                if stamps[after, 0] < stamps[before, 1]:
                    raise wrong(what, f"kernel {after} began before kernel {before} had ended", "its edge kept")
        return ORDER_CHECK


def branch_kernel(shape: Shape, branch: int, place: int) -> int:
    """Number of the kernel at a place of a branch."""
    return (2 if shape.joined else 0) + branch * shape.length + place


def edges(shape: Shape) -> list[tuple[int, int]]:
    """(before, after) for each dependency."""
    found: list[tuple[int, int]] = []
    for branch in range(shape.branches):
        line = [branch_kernel(shape, branch, place) for place in range(shape.length)]
        if shape.joined:
            line = [0, *line, 1]
        found += itertools.pairwise(line)
    return found

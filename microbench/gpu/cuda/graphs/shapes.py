"""Whole pieces of work in a graph: branches side by side, iterations with a condition, steps that allocate memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.gpu.cuda import driver, loops
from microbench.gpu.cuda.case import Case, memory_pool
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.cuda.graphs.chains import CONDITIONAL_VERSION, add_kernel, conditional
from microbench.gpu.cuda.graphs.effects import Words, wrong
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Parameters, Program, capture, executable, launch, replay
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.gpu.protocol.graphs import AllocationWay, Decider, Loop, Shape
from microbench.gpu.protocol.submit import Submit
from microbench.host.native import c_address

# Kernels side by side: a graph built from nodes and edges, and the same work on streams that fork and join.

ORDER_CHECK = "every kernel recorded its begin and end; none began before those it depends on had ended"


class CudaShaped:
    """A Shaped. In a joined shape kernel 0 comes before all branches and kernel 1 after them."""

    def __init__(self, case: Case, shape: Shape) -> None:
        self._case = case
        self._shape = shape
        self._out = case.device_memory(shape.kernels * 16)
        self._function = case.function("launch", "record")
        cycles = case.cycles(shape.duration_ns)
        self._parameters = [Parameters([(self._out, index, cycles)]) for index in range(shape.kernels)]
        self._edges = edges(shape)
        one_end = shape.joined or shape.branches == 1
        graph = self._graph(SAFE_QUEUE_SLOTS if one_end else max(SAFE_QUEUE_SLOTS // shape.kernels, 1))
        self.streams: Submit = Program(self._stream_calls(), waits_for=case.stream(0) if one_end else None)
        # The graph waits as the streams do: for the whole context if they do.
        self.graph: Submit = graph if one_end else Program([CallRow.of(graph)], queue_slots=graph.queue_slots)

    def _graph(self, queue_slots: int) -> DriverSubmit:
        graph, stream = check(driver.cuGraphCreate(0)), self._case.stream(0)
        nodes: dict[int, Any] = {}
        joining = 1 if self._shape.joined else None
        # In the order of dependencies: the joining kernel comes last.
        for kernel in sorted(range(self._shape.kernels), key=lambda number: number == joining):
            before = [nodes[source] for source, target in self._edges if target == kernel]
            nodes[kernel] = add_kernel(graph, before, self._launch(kernel, 0))
        handle = executable(self._case, graph, stream)
        check(driver.cuGraphDestroy(graph))
        return replay(handle, stream, queue_slots)

    def _launch(self, kernel: int, stream: int) -> CallRow:
        return CallRow.of(launch(self._case, self._function, Launch(stream=stream), self._parameters[kernel]))

    def _stream_calls(self) -> list[CallRow]:
        """The calls of a program with streams and events: branch b in stream b, forked from stream 0 and joined by it.

        The branches are submitted in turn, one kernel of each at a time, so that none waits for the whole of another.
        """
        case, shape, calls = self._case, self._shape, []
        others = range(1, shape.branches)
        events = [case.event(timed=False) for _ in range(shape.branches)] if shape.joined else []

        def record(branch: int) -> CallRow:
            return CallRow.named("cuEventRecord", [events[branch], case.stream(branch)])

        def wait(stream: int, branch: int) -> CallRow:
            return CallRow.named("cuStreamWaitEvent", [case.stream(stream), events[branch], 0])

        if shape.joined:
            calls += [self._launch(0, 0), record(0), *(wait(branch, 0) for branch in others)]
        for place in range(shape.length):
            calls += [self._launch(branch_kernel(shape, branch, place), branch) for branch in range(shape.branches)]
        if shape.joined:
            calls += [*map(record, others), *(wait(0, branch) for branch in others), self._launch(1, 0)]
        return calls

    def check(self) -> str:
        for what, submit in (("the graph", self.graph), ("the streams", self.streams)):
            self._case.clear(self._out, self._shape.kernels * 16)
            submit(1)
            self._case.synchronize()
            words = self._case.read(self._out, self._shape.kernels * 2, np.int64)
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
    pairs: list[tuple[int, int]] = []
    for branch in range(shape.branches):
        line = [branch_kernel(shape, branch, place) for place in range(shape.length)]
        pairs += itertools.pairwise([0, *line, 1] if shape.joined else line)
    return pairs


# Iterations until a counter is full, decided by the host, by a WHILE node, or by a graph that launches itself again.

DEVICE_LAUNCH_VERSION = 12000
COUNTER_WORDS = 3


def loop(case: Case, decider: Decider) -> Loop:
    if decider in ("host_sync", "host_poll"):
        return HostDecides(case, polls=decider == "host_poll")
    return DeviceDecides(case, decider)


class HostDecides:
    """Launch, wait (or watch a flag in mapped memory), look at the flag, and launch again."""

    def __init__(self, case: Case, *, polls: bool) -> None:
        self._case = case
        self._counter = case.device_memory(4)
        self._flag = case.pinned(1)
        row = (self._counter, int(self._flag.ctypes.data))
        self._submit = launch(case, case.function("graph", "count_up"), Launch(block_threads=1), Parameters([row]))
        self._synchronize = 0 if polls else entry_point("cuStreamSynchronize")
        self._clock = c_address("clock_gettime")

    def run_ns(self, iterations: int) -> int:
        self._case.clear(self._counter, 4)
        self._flag[0] = 0
        code, took_ns = loops.iterate(
            self._submit.address, self._submit.arguments, self._synchronize, self._submit.stream,
            int(self._flag.ctypes.data), iterations, self._clock,
        )  # fmt: skip
        self._case.synchronize()  # raises the GPU's error, which says more than a missing flag
        check_code(code, "an iteration decided on the host")
        counted = int(self._case.read(self._counter, 1, np.uint32)[0])
        if counted != iterations:
            raise wrong("iterations decided on the host", counted, iterations)
        return int(took_ns)


class DeviceDecides:
    """One launch of a graph whose kernel decides whether there is another iteration."""

    def __init__(self, case: Case, decider: Decider) -> None:
        self._case = case
        self._counter = case.device_memory(COUNTER_WORDS * 4)
        graph, flags = self._while_graph() if decider == "while" else self._tail_graph()
        self._replay = replay(executable(case, graph, case.stream(0), flags), case.stream(0))
        check(driver.cuGraphDestroy(graph))
        self._out: IntArray = np.zeros(1, dtype=np.int64)

    def _while_graph(self) -> tuple[Any, int]:
        self._case.require_driver(CONDITIONAL_VERSION, "conditional nodes")
        function = self._case.function("graph_while", "count_while")
        graph = check(driver.cuGraphCreate(0))
        kind = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        _, body, handle = conditional(self._case, graph, [], kind, 1)
        row = launch(self._case, function, Launch(block_threads=1), Parameters([(handle, self._counter)]))
        add_kernel(body, [], CallRow.of(row))
        return graph, 0

    def _tail_graph(self) -> tuple[Any, int]:
        self._case.require_driver(DEVICE_LAUNCH_VERSION, "graphs launched from the device")
        function = self._case.function("graph_tail", "count_tail")
        submit = launch(self._case, function, Launch(block_threads=1), Parameters([(self._counter,)]))
        graph = capture(submit.stream, lambda: submit(1))  # such a kernel can be launched in a graph only
        return graph, int(driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)

    def run_ns(self, iterations: int) -> int:
        self._case.upload(self._counter, np.array([0, iterations, 0], dtype=np.uint32))
        self._case.synchronize()
        self._replay.round_trips(self._out)
        counted, _, error = (int(word) for word in self._case.read(self._counter, COUNTER_WORDS, np.uint32))
        if error:
            raise MeasurementError(f"the device refused to launch the graph: error {error}")
        if counted != iterations:
            raise wrong("iterations decided on the device", counted, iterations)
        return int(self._out[0])


VALUE_CHECK = "a fresh value went through the first and last word of each block"


class CudaStep:
    """A Step."""

    def __init__(self, case: Case, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        self._outside = way.endswith("_outside")
        if not self._outside and not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
            raise Skip("this GPU or driver has no memory pools")
        self._case = case
        self._size_bytes = size_bytes
        self._stream = case.stream(0)
        self._pointer: IntArray = np.zeros(1, dtype=np.int64)
        self._source = Words(case, 1)
        self._out = Words(case, pairs)
        self._random = np.random.default_rng()
        self._pool = None
        if not self._outside and way != "graph_nodes":
            self._pool = pool = memory_pool(case.context, keeps_all=way == "stream_kept")
            case.own(lambda: driver.cuMemPoolDestroy(pool))
        if self._outside:
            self._pointer[0] = case.device_memory(size_bytes)
        rows = [row for pair in range(pairs) for row in self._pair(pair)]
        # stream_released: a synchronise, which gives the pages back, must come before each step.
        slots = 1 if way == "stream_released" else None
        self._program = program = Program(rows, scratch=self._pointer, waits_for=self._stream, queue_slots=slots)
        if way == "graph_nodes":  # load the kernel, which capture would not, on a block of its own
            self._pointer[0] = case.device_memory(size_bytes)
            Program([self._use(0)])(1)
        else:
            program(1)
        case.synchronize()
        self.submit: Submit = program
        if way.startswith("graph"):
            graph = capture(self._stream, lambda: program(1))
            case.own(lambda: driver.cuDeviceGraphMemTrim(case.context.device))
            handle = executable(case, graph, self._stream)
            check(driver.cuGraphDestroy(graph))
            self.submit = replay(handle, self._stream, max(SAFE_QUEUE_SLOTS // len(rows), 1))

    def _use(self, pair: int) -> CallRow:
        """The kernel reads the block's address from where the allocation has written it."""
        function = self._case.function("graph", "pass_through")
        parameters = Parameters([(0, self._source.address, self._out.at(pair), self._size_bytes // 4 - 1)])
        parameters.point(0, int(self._pointer.ctypes.data))
        return CallRow.of(launch(self._case, function, Launch(block_threads=1), parameters))

    def _pair(self, pair: int) -> list[CallRow]:
        use = self._use(pair)
        if self._outside:
            return [use]
        place = int(self._pointer.ctypes.data)
        if self._pool is None:
            allocate = CallRow.named("cuMemAllocAsync", [place, self._size_bytes, self._stream])
        else:
            arguments = [place, self._size_bytes, int(self._pool), self._stream]
            allocate = CallRow.named("cuMemAllocFromPoolAsync", arguments)
        return [allocate, use, CallRow.named("cuMemFreeAsync", [0, self._stream], takes=0)]

    def held_bytes(self) -> int:
        self.submit(1)
        self._case.synchronize()
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
        self._case.synchronize()
        self._out.expect([value + 1] * self._out.count)
        return VALUE_CHECK

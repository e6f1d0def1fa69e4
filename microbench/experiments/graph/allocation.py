"""Steps that allocate, use and free device memory several times: in a stream, as nodes of a graph, or outside."""

import math
from typing import Literal

import numpy as np

from microbench.experiments.graph.effects import CHECKED, Words
from microbench.gpu.cuda.case import Case, memory_pool
from microbench.gpu.cuda.submit import CallRow, Parameters, Program, capture, executable, launch, replay
from microbench.gpu.experiment import IntArray, Item, Launch, Skip, Submit, check, driver, experiment
from microbench.gpu.fake import machine as fake
from microbench.gpu.fake.costs import PAGE_BYTES
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS

AllocationWay = Literal["graph_nodes", "graph_outside", "stream_kept", "stream_released", "stream_outside"]
CALLS_OF_A_PAIR = 3
VALUE_CHECK = "a fresh value went through the first and last word of each block"


class AllocatingStep:
    """A step with ``pairs`` allocations of ``size_bytes``, one after the other, each used and freed; or one that uses
    memory that is already allocated."""

    submit: Submit

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
        self.submit = program
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
        """Device memory that stays reserved from one step to the next, in bytes."""
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
        """Run a step with a fresh value. Returns how it was verified; raises MeasurementError if the value is lost."""
        value = int(self._random.integers(1, 1 << 30))
        self._source.write([value])
        self._out.write([])
        self.submit(1)
        self._case.synchronize()
        self._out.expect([value + 1] * self._out.count)
        return VALUE_CHECK


class SimulatedAllocatingStep(AllocatingStep):
    """A step that allocates from a pool. The pool maps pages on demand, and keeps or releases them at a synchronise.

    A block freed in a stream serves the next allocation there, so a step needs the pages of one block.
    """

    def __init__(self, machine: fake.Machine, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        costs, graphs = machine.costs, machine.costs.graphs
        self._machine = machine
        self._way = way
        self._size_bytes = size_bytes
        self._pairs = pairs
        self._pages = 0
        use = Launch(duration_ns=graphs.dependent_kernel_ns)
        self._use_call = fake.call_of(use, costs)
        if way.startswith("graph"):
            pair = fake.chain_of([use], costs)
            if way == "graph_nodes":
                machine.clock.pass_ns(self._map_ns())
                allocate = fake.Node(costs.gap_graph_ns, graphs.allocate_node_ns)
                pair = [allocate, *pair, fake.Node(costs.gap_graph_ns, graphs.free_node_ns)]
            graph = fake.graph_of(pair * pairs)
            machine.clock.pass_ns(graphs.instantiate.at(graph.nodes))
            self.submit = fake.FakeSubmit(machine, fake.replay_of(graph, costs))
        else:
            slots = max(costs.queue_slots // 2 // (pairs * CALLS_OF_A_PAIR), 1)
            if way == "stream_released":
                machine.at_synchronize.append(self._release)
                slots = 1  # only the first step after a synchronise maps the pages again
            self.submit = fake.FakeProgram(machine, self._in_stream, slots)

    def _in_stream(self) -> None:
        machine, costs = self._machine, self._machine.costs.graphs
        outside = self._way == "stream_outside"
        for _ in range(self._pairs):
            if not outside:
                allocate_ns = costs.allocate.submit_ns + self._map_ns()
                machine.make(fake.Call(allocate_ns, Item(duration_ns=costs.allocate.duration_ns, queued=False)), 1)
            machine.make(self._use_call, 1)
            if not outside:
                machine.make(fake.Call(costs.free.submit_ns, Item(duration_ns=costs.free.duration_ns, queued=False)), 1)

    def _map_ns(self) -> float:
        """Map the pages that an allocation lacks. Returns the host time for that."""
        missing = math.ceil(self._size_bytes / PAGE_BYTES) - self._pages
        self._pages += missing
        return missing * self._machine.costs.graphs.map_page_ns

    def _release(self) -> None:
        self._machine.clock.pass_ns(self._pages * self._machine.costs.graphs.release_page_ns)
        self._pages = 0

    def held_bytes(self) -> int:
        return self._size_bytes if self._way.endswith("outside") else self._pages * PAGE_BYTES

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.submit)


allocating_step = experiment(AllocatingStep, SimulatedAllocatingStep)

"""Kernels in a chain, and side by side: as a graph, and the same work on streams."""

import itertools
import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch, Record, Wait
from microbench.experiments.graph.effects import CHECKED, wrong
from microbench.experiments.graph.nodes import add_kernel
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Program, captured, executable, loaded, replay
from microbench.gpu.experiment import Case, Machine, Parameters, Scoped, Submit, check, driver, experiment, launch
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Graph, Node, bound, call_of, graph_of, replay_of
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, FloatArray

ORDER_CHECK = "every kernel recorded its begin and end; none began before those it depends on had ended"


class Shape(NamedTuple):
    """Kernels of one duration in ``branches`` chains of ``length`` kernels each.

    A ``joined`` shape has one more kernel before all branches and one after them.
    """

    branches: int
    length: int
    joined: bool
    duration_ns: int

    @property
    def kernels(self) -> int:
        """Number of kernels in total."""
        return self.branches * self.length + (2 if self.joined else 0)


class Shaped:
    """One Shape as a graph, and on as many streams as it has branches, with events where they fork and join.

    In a joined shape the first kernel comes before all branches and the last one after them.
    """

    graph: Submit
    streams: Submit

    def __init__(self, case: Case, shape: Shape) -> None:
        self._case = case
        self._shape = shape
        self._out = case.device_memory(shape.kernels * 16)
        self._function = case.function("launch", "record")
        cycles = case.cycles(shape.duration_ns)
        self._parameters = [Parameters([(self._out, index, cycles)]) for index in range(shape.kernels)]
        one_end = shape.joined or shape.branches == 1
        graph = self._graph(SAFE_QUEUE_SLOTS if one_end else max(SAFE_QUEUE_SLOTS // shape.kernels, 1))
        self.streams = Program(self._stream_calls(), waits_for=case.stream(0) if one_end else None)
        # The graph waits as the streams do: for the whole context if they do.
        self.graph = graph if one_end else Program([CallRow.of(graph)], queue_slots=graph.queue_slots)

    def _graph(self, queue_slots: int) -> DriverSubmit:
        graph, stream = check(driver.cuGraphCreate(0)), self._case.stream(0)
        nodes: dict[int, Any] = {}
        for kernel, before in enumerate(dependencies(self._shape)):
            nodes[kernel] = add_kernel(graph, [nodes[other] for other in before], self._launch(kernel, 0))
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
            calls += [*map(record, others), *(wait(0, branch) for branch in others), self._launch(shape.kernels - 1, 0)]
        return calls

    def check(self) -> str:
        """Run both once. Returns how the order was verified. Raises MeasurementError for a missing or early kernel."""
        for what, submit in (("the graph", self.graph), ("the streams", self.streams)):
            self._case.clear(self._out, self._shape.kernels * 16)
            submit(1)
            self._case.synchronize()
            words = self._case.read(self._out, self._shape.kernels * 2, np.int64)
            stamps = words.reshape(self._shape.kernels, 2)
            if not stamps.all():
                raise wrong(what, f"only {int(stamps.all(axis=1).sum())} kernels ran", self._shape.kernels)
            for after, others in enumerate(dependencies(self._shape)):
                for before in others:
                    if stamps[after, 0] < stamps[before, 1]:
                        raise wrong(what, f"kernel {after} began before kernel {before} had ended", "its edge kept")
        return ORDER_CHECK


def branch_kernel(shape: Shape, branch: int, place: int) -> int:
    """Number of the kernel at a place of a branch."""
    return (1 if shape.joined else 0) + branch * shape.length + place


def dependencies(shape: Shape) -> list[tuple[int, ...]]:
    """Each kernel's direct predecessors."""
    before: list[tuple[int, ...]] = [() for _ in range(shape.kernels)]
    for branch in range(shape.branches):
        line = [branch_kernel(shape, branch, place) for place in range(shape.length)]
        for first, then in itertools.pairwise([0, *line, shape.kernels - 1] if shape.joined else line):
            before[then] += (first,)
    return before


def schedule(before: Sequence[tuple[int, ...]], duration_ns: float, costs: FakeCosts) -> FloatArray:
    """When each kernel of a graph starts, the first at 0.

    A kernel is ready one gap after its last predecessor has ended. The front end starts kernels in the order in which
    they become ready, ``front_end_ns`` apart. While the GPU holds as many kernels as it can, the front end waits for
    one to end.
    """
    behind: list[list[int]] = [[] for _ in before]
    for node, those in enumerate(before):
        for other in those:
            behind[other].append(node)
    missing = [len(those) for those in before]
    starts_ns = np.zeros(len(before))
    ready = [(0.0, node) for node, those in enumerate(before) if not those]
    running: list[float] = []
    front_end_ns = -math.inf
    while ready:
        start_ns, node = heappop(ready)
        start_ns = max(start_ns, front_end_ns)
        while running and (running[0] <= start_ns or len(running) == costs.resident_kernels):
            start_ns = max(start_ns, heappop(running))
        heappush(running, start_ns + duration_ns)
        starts_ns[node], front_end_ns = start_ns, start_ns + costs.front_end_ns
        for follower in behind[node]:
            missing[follower] -= 1
            if not missing[follower]:  # starts are given in order of time, so this end is the last
                heappush(ready, (start_ns + duration_ns + costs.gap_graph_ns, follower))
    return starts_ns


class SimulatedShaped(Shaped):
    """Each branch has a stream. The host submits the first kernel of every branch, then the second of every branch."""

    def __init__(self, machine: Machine, shape: Shape) -> None:
        costs = machine.costs
        runs_ns = costs.kernel_ns(shape.duration_ns)
        starts_ns = schedule(dependencies(shape), runs_ns, costs)
        graph = Graph(shape.kernels, float(starts_ns.max()) + runs_ns)
        machine.clock.pass_ns(costs.graphs.build.at(shape.kernels))
        machine.clock.pass_ns(costs.graphs.instantiate.at(shape.kernels))
        self._machine = machine
        self.graph = FakeSubmit(machine, replay_of(graph, costs))
        branches = range(shape.branches)
        others = branches[1:] if shape.joined else ()
        launches = [bound(machine, Launch(shape.duration_ns, stream=branch)) for branch in branches]
        records = [bound(machine, Record(timed=False, stream=branch)) for branch in branches]
        submits = launches * shape.length
        if shape.joined:
            fork = [bound(machine, Wait(stream=branch, other=0)) for branch in others]
            join = [bound(machine, Wait(stream=0, other=branch)) for branch in others]
            submits = [launches[0], records[0], *fork, *submits, *records[1:], *join, launches[0]]
        slots = costs.queue_slots // 2 // (shape.length + 2)  # of stream 0, the fullest

        def on_streams() -> None:
            for submit in submits:
                submit(1)

        self.streams = FakeProgram(machine, on_streams, max(slots, 1))

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.graph, self.streams)


shaped_work = experiment(Shaped, SimulatedShaped)


KernelWork = Literal["empty", "spin", "add"]
SPIN_NS = 2000  # how long a kernel spins
# A block adds to a line of the L2 in 0.75 to 0.87 us, depending on how far the line lies from its SM (H200). Kernels of
# one block therefore add at this many places in turn.
PLACES, PLACE_BYTES = 64, 65 << 10


class KernelChain:
    """``count`` kernels one after another that do nothing, spin for SPIN_NS, or add to a word of each thread.

    ``graph`` replays all of them by one call, ``stream`` launches all of them. Kernels that add share one array;
    ``alternating`` ones are of two functions in turn.
    """

    graph: Submit
    stream: Submit

    def __init__(
        self, case: Case, work: KernelWork, count: int, *, blocks: int, block_threads: int, alternating: bool
    ) -> None:
        self._case, self._count = case, count
        self._words, self._places = blocks * block_threads, PLACES if blocks == 1 else 1
        self._bytes = 4 * self._words + PLACE_BYTES * (self._places - 1)
        self._array = case.once(Case.device_memory, self._bytes) if work == "add" else 0
        rows: dict[KernelWork, list[tuple[int, ...]]] = {
            "empty": [()],
            "spin": [(case.cycles(SPIN_NS),)],
            "add": [(self._array + place * PLACE_BYTES,) for place in range(self._places)],
        }
        names = {"empty": ["empty"], "spin": ["spin"], "add": ["add_1", "add_2"][: 1 + alternating]}[work]
        grid = Launch(grid_blocks=blocks, block_threads=block_threads)
        calls = [
            CallRow.of(launch(case, case.function("launch", name), grid, Parameters([row]) if row else None))
            for row in rows[work]
            for name in names
        ]
        self._sums = np.zeros(self._places, dtype=np.uint32)
        np.add.at(self._sums, np.arange(count) // len(names) % self._places, 1 + np.arange(count) % len(names))
        self.stream = program = loaded(case, [calls[index % len(calls)] for index in range(count)])
        executable, nodes = captured(case, case.stream(0), lambda: program(1))
        if nodes != count:
            raise MeasurementError(f"{count} launches became a graph of {nodes} nodes")
        self.graph = replay(executable, case.stream(0))
        self.graph(1)  # several graphs uploaded and not launched lengthen later gaps, as a second stream does
        case.synchronize()

    def profiled_ns(self) -> IntArray:
        """Duration of each kernel of one pass through the stream as profilers report it (CUPTI's kernel record), in ns.

        Raises Skip without CUPTI, and MeasurementError unless each kernel left one record.
        """
        durations_ns = self._case.context.kernel_records.durations_ns(self._once)
        if len(durations_ns) != self._count:
            raise MeasurementError(f"CUPTI recorded {len(durations_ns)} of {self._count} kernels")
        return durations_ns

    def _once(self) -> None:
        self.stream(1)
        self._case.synchronize()

    def check(self) -> str:
        """Run the graph and the stream once. Returns how that was verified. Raises MeasurementError for a wrong sum."""
        if not self._array:
            return "the graph has a node for each launch"
        self._case.clear(self._array, self._bytes)
        self.graph(1)
        self._once()
        words = self._case.read(self._array, self._bytes // 4, np.uint32)
        for place, added in enumerate(self._sums):
            sums = words[place * PLACE_BYTES // 4 :][: self._words]
            wrong = np.flatnonzero(sums != 2 * added)
            if wrong.size:
                raise MeasurementError(
                    f"word {wrong[0]} of place {place} is {sums[wrong[0]]} where {2 * added} should be"
                )
        return "each thread's word is the sum of what the kernels added"


class SimulatedKernelChain(Scoped, KernelChain):
    """Equal kernels, as a graph and in a stream. Profilers report durations that are longer by a constant."""

    def __init__(
        self,
        machine: Machine,
        work: KernelWork,
        count: int,
        *,
        blocks: int,
        block_threads: int,
        alternating: bool,
    ) -> None:
        super().__init__(machine)
        costs = machine.costs
        nominal_ns = {"empty": 0.0, "spin": float(SPIN_NS), "add": costs.empty_kernel_ns + costs.add_ns}[work]
        self._count, self._kernel_ns = count, costs.kernel_ns(nominal_ns, blocks, block_threads)
        nodes = [Node(costs.gap_graph_ns, self._kernel_ns)] * count
        self.graph = FakeSubmit(machine, replay_of(graph_of(nodes), costs))
        call = call_of(Launch(), costs).with_item(duration_ns=self._kernel_ns)
        self.stream = FakeProgram(
            machine, lambda: machine.make(call, count), max(costs.queue_slots // 2 // count, 1), stream=0
        )

    def profiled_ns(self) -> IntArray:
        machine = self._open()
        machine.ran(CHECKED, self.stream)
        return machine.profiled_ns(self._kernel_ns, self._count)

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.graph, self.stream)


kernel_chain = experiment(KernelChain, SimulatedKernelChain)

"""Kernels side by side: a graph built from nodes and edges, and the same work on streams that fork and join."""

import itertools
import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from microbench.core.ops import Launch, Record, Wait
from microbench.experiments.graph.effects import CHECKED, wrong
from microbench.experiments.graph.nodes import add_kernel
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Parameters, Program, executable, launch, replay
from microbench.gpu.experiment import Case, Submit, check, driver, experiment
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import FloatArray
from microbench.gpu.fake.machine import FakeProgram, FakeSubmit, Graph, Machine, bound, replay_of
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS

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
        self.graph(1)
        self.streams(1)
        self._machine.synchronize()
        return CHECKED


shaped_work = experiment(Shaped, SimulatedShaped)

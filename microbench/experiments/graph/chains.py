"""Kernels in a chain, side by side, and with a memset or copy between: as a graph, and the same work on streams."""

import itertools
import math
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

import numpy as np

from microbench.core.errors import MeasurementError
from microbench.core.ops import IntArray, Launch, Record, Wait
from microbench.experiments.graph.effects import CHECKED, wrong
from microbench.experiments.graph.nodes import add_kernel
from microbench.gpu.cuda.submit import CallRow, DriverSubmit, Program, captured, executable, loaded, replay
from microbench.gpu.cuda.timing import SpinGate
from microbench.gpu.experiment import Case, Machine, Parameters, Scoped, Submit, check, driver, experiment, launch
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import FakeCosts
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
    """The number of a kernel in its graph: the one at ``place`` in ``branch``."""
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
        graph = sim.Graph(shape.kernels, float(starts_ns.max()) + runs_ns)
        machine.clock.pass_ns(costs.graphs.build.at(shape.kernels))
        machine.clock.pass_ns(costs.graphs.instantiate.at(shape.kernels))
        self._machine = machine
        self.graph = sim.FakeSubmit(machine, sim.replay_of(graph, costs))
        branches = range(shape.branches)
        others = branches[1:] if shape.joined else ()
        launches = [sim.bound(machine, Launch(shape.duration_ns, stream=branch)) for branch in branches]
        records = [sim.bound(machine, Record(timed=False, stream=branch)) for branch in branches]
        submits = launches * shape.length
        if shape.joined:
            fork = [sim.bound(machine, Wait(stream=branch, other=0)) for branch in others]
            join = [sim.bound(machine, Wait(stream=0, other=branch)) for branch in others]
            submits = [launches[0], records[0], *fork, *submits, *records[1:], *join, launches[0]]
        slots = costs.queue_slots // 2 // (shape.length + 2)  # of stream 0, the fullest

        def on_streams() -> None:
            for submit in submits:
                submit(1)

        self.streams = sim.FakeProgram(machine, on_streams, max(slots, 1))

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.graph, self.streams)


shaped_work = experiment(Shaped, SimulatedShaped)


KernelWork = Literal["empty", "spin", "add"]
SPIN_NS = 2000  # how long a kernel spins
# A block adds to a line of the L2 in 0.75 to 0.87 us, depending on how far the line lies from its SM (H200). Kernels of
# one block therefore add at this many places in turn.
PLACES, PLACE_BYTES = 64, 65 << 10


class KernelChain:
    """A chain of ``count`` kernels: they do nothing, spin for SPIN_NS, or add to a word of each thread.

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
        self, machine: Machine, work: KernelWork, count: int, *, blocks: int, block_threads: int, alternating: bool
    ) -> None:
        super().__init__(machine)
        costs = machine.costs
        nominal_ns = {"empty": 0.0, "spin": float(SPIN_NS), "add": costs.empty_kernel_ns + costs.add_ns}[work]
        self._count, self._kernel_ns = count, costs.kernel_ns(nominal_ns, blocks, block_threads)
        nodes = [sim.Node(costs.gap_graph_ns, self._kernel_ns)] * count
        self.graph = sim.FakeSubmit(machine, sim.replay_of(sim.graph_of(nodes), costs))
        call = sim.call_of(Launch(), costs).with_item(duration_ns=self._kernel_ns)
        self.stream = sim.FakeProgram(
            machine, lambda: machine.make(call, count), max(costs.queue_slots // 2 // count, 1), stream=0
        )

    def profiled_ns(self) -> IntArray:
        machine = self._open()
        machine.ran(CHECKED, self.stream)
        return machine.profiled_ns(self._kernel_ns, self._count)

    def check(self) -> str:
        return self._machine.ran(CHECKED, self.graph, self.stream)


kernel_chain = experiment(KernelChain, SimulatedKernelChain)


Transition = Literal["kernel", "memset", "copy_h2d", "copy_d2d", "fork", "join"]
IN_MEMORY: tuple[Transition, ...] = ("memset", "copy_h2d", "copy_d2d")  # another kernel sees their word arrive
# The kernel that watches gives up after as long as a gate, and starts within 0.1 ms.
VALUE, TRIES, STARTED_S = 0x5EED, 1 << 22, 1e-4
FIRST, SECOND, BRANCH, LAST = range(4)  # places of the kernels that record their begin and end
# The kernel whose end comes first, and the one whose begin comes next.
ENDS: dict[Transition, tuple[int, int]] = {"fork": (FIRST, BRANCH), "join": (BRANCH, LAST)}


class Transitions:
    """Two kernels with a Transition between them, into streams or as a graph, behind a gate."""

    def __init__(self, case: Case, kind: Transition, graph: bool) -> None:
        self._case, self._kind, self._source = case, kind, case.pinned(1, np.uint64)
        self._source[0] = VALUE
        self._out = case.device_memory(96)  # begin and end of four kernels; when a word was seen, written; two words
        self._seen, self._word = self._out + 64, self._out + 80
        program = loaded(case, self._calls())
        self._submit: Submit = program
        if graph:
            self._submit = replay(captured(case, case.stream(0), lambda: program(1))[0], case.stream(0))
        write = Program([self._kernel("write_word", self._word, VALUE, self._seen + 8)])
        runs = [self._run(write) for _ in range(20)] if kind in IN_MEMORY else []
        self._seen_after_ns = int(np.median([run[8] - run[9] for run in runs if run.size] or [0]))

    def _kernel(self, name: str, *row: int, stream: int = 0) -> CallRow:
        function = self._case.function("launch" if name == "record" else "graph_transitions", name)
        return CallRow.of(launch(self._case, function, Launch(block_threads=1, stream=stream), Parameters([row])))

    def _calls(self) -> list[CallRow]:
        main, other, cycles = self._case.stream(0), self._case.stream(1), self._case.cycles(5000)
        first, second, branch, last = (
            self._kernel("record", self._out, place, cycles, stream=int(place == BRANCH)) for place in range(4)
        )
        if self._kind in ENDS:
            wait, (forked, joined) = "cuStreamWaitEvent", (self._case.event(timed=False) for _ in range(2))
            fork = CallRow.named("cuEventRecord", [forked, main]), CallRow.named(wait, [other, forked, 0])
            join = CallRow.named("cuEventRecord", [joined, other]), CallRow.named(wait, [main, joined, 0])
            return [first, *fork, second, branch, *join, last]
        name, source = {
            "memset": ("cuMemsetD32Async", [VALUE, 1]),
            "copy_h2d": ("cuMemcpyHtoDAsync", [int(self._source.ctypes.data), 4]),
            "copy_d2d": ("cuMemcpyDtoDAsync", [self._word + 8, 4]),
        }.get(self._kind, ("", []))
        between = [CallRow.named(name, [self._word, *source, main])] if name else []
        return [first, *between, second]

    def _run(self, submit: Submit) -> IntArray:
        """The stamps and words after one run, shape (12,); empty if the gate was late."""
        case, gate = self._case, self._case.once(SpinGate)
        case.upload(self._out, np.array([0] * 11 + [VALUE], dtype=np.int64))
        case.synchronize()
        if self._kind in IN_MEMORY:
            Program([self._kernel("see_word", self._word, VALUE, self._seen, TRIES, stream=2)])(1)
        gate.shut((0,))
        submit(1)
        time.sleep(STARTED_S)
        gate.open()
        case.synchronize()
        stamps = case.read(self._out, 0 if gate.was_late() else 12, np.int64)
        if stamps.size and self._kind in IN_MEMORY and (stamps[10] != VALUE or not stamps[8]):
            raise MeasurementError(f"the word between two kernels is {stamps[10]:#x}, seen at {stamps[8]}")
        return stamps

    def stamps(self, count: int) -> IntArray:
        """``count`` runs: when what comes first had ended, when the word was there, and when the next kernel began.

        ns of %globaltimer, shape (runs, 3); the word's column is 0 for kernels and branches. Runs whose gate was late
        are left out. Raises MeasurementError if a kernel did not run or began early, or the word did not arrive.
        """
        found = np.array([run for run in (self._run(self._submit) for _ in range(count)) if run.size]).reshape(-1, 12)
        first, following = ENDS.get(self._kind, (FIRST, SECOND))
        ended, begun, seen = found[:, 2 * first + 1], found[:, 2 * following], found[:, 8] - self._seen_after_ns
        if self._kind == "join":
            ended = np.maximum(ended, found[:, 2 * SECOND + 1])
        if not ((ended > 0) & (begun >= ended)).all():
            raise MeasurementError("a kernel did not run, or began before what comes first had ended")
        return np.stack([ended, seen * (self._kind in IN_MEMORY), begun], axis=1)


class SimulatedTransitions(Transitions):
    """Each side is a gap of the stream or the graph; work in memory runs between the two."""

    def __init__(self, machine: Machine, kind: Transition, graph: bool) -> None:
        self._machine, self._kind, costs = machine, kind, machine.costs
        call = sim.call_of_kind(kind, costs) if kind in IN_MEMORY else None
        gap_ns = costs.gap_graph_ns if graph else costs.gap_stream_ns
        to_ns = gap_ns + costs.graphs.node(kind).gap_ns * graph + call.item.duration_ns if call else 0.0
        self._sides_ns = np.array([to_ns, gap_ns])

    def stamps(self, count: int) -> IntArray:
        each_ns = self._sides_ns * self._machine.noise.device(1.0, 2 * count).reshape(count, 2)
        to_ns, from_ns = self._machine.spent(each_ns).T
        return np.stack([0 * to_ns, to_ns, to_ns + from_ns], axis=1)


transitions = experiment(Transitions, SimulatedTransitions)

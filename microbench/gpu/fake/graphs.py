"""Chains of one kind of node on the simulated GPU, as a graph and as the same calls into a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch, Record, Wait
from microbench.gpu.fake.costs import PAGE_BYTES, FakeCosts
from microbench.gpu.fake.device import Batch, FloatArray, Item
from microbench.gpu.fake.environment import CONDITIONAL, DEVICE_LAUNCH, EDGE_DATA, require_capability, require_driver
from microbench.gpu.fake.machine import (
    Call,
    FakeSubmit,
    Graph,
    Machine,
    Node,
    bound,
    call_of,
    call_of_kind,
    chain_of,
    empty_chain,
    graph_of,
    node_of,
    replay_of,
)
from microbench.gpu.protocol.graphs import AllocationWay, Change, ChangeWay, Decider, Life, Made, NodeKind, Shape
from microbench.gpu.protocol.submit import Submit

# An executable graph of the simulated GPU: made, uploaded, changed, launched and destroyed on the host's clock.


class Executable:
    """One instantiated graph in stream 0. Each method takes the host as long as the call that it stands for.

    What the next launch has to do first is remembered: an upload, or what changed since the last launch.
    """

    def __init__(self, machine: Machine, graph: Graph, *, uploaded: bool = False) -> None:
        self._machine = machine
        self._costs = machine.costs.graphs
        self._graph = graph
        self._uploaded = uploaded
        self._changed = 0

    @property
    def nodes(self) -> int:
        """Nodes of the graph."""
        return self._graph.nodes

    def instantiate(self) -> None:
        """Make it executable, anew if it was so before."""
        self._pass_ns(self._costs.instantiate.at(self.nodes))
        self._uploaded, self._changed = False, 0

    def upload(self) -> None:
        """The call returns before the GPU is ready."""
        on_gpu = Item(duration_ns=self._costs.upload_on_gpu.at(self.nodes))
        self._machine.make(Call(self._costs.upload.at(self.nodes), on_gpu), 1)
        self._uploaded = True

    def change(self, nodes: int, cost_ns: float) -> None:
        """A call, or calls, that change so many nodes."""
        self._pass_ns(cost_ns)
        self._changed += nodes

    def launch(self) -> None:
        """A launch call, with what it has to do first."""
        call = replay_of(self._graph, self._machine.costs)
        host_ns = call.host_ns + self._changed * self._costs.changed_launch_ns
        assert call.item is not None, "a graph runs in a stream"
        runs_ns = call.item.duration_ns
        if not self._uploaded:
            host_ns += self._costs.upload.at(self.nodes)
            runs_ns += self._costs.upload_on_gpu.at(self.nodes)
        self._uploaded, self._changed = True, 0
        self._machine.make(Call(host_ns, msgspec.structs.replace(call.item, duration_ns=runs_ns)), 1)

    def destroy(self) -> None:
        """Of the executable graph, and of the graph that it came from."""
        self._pass_ns(self._costs.destroy.at(self.nodes))

    def destroy_captured(self) -> None:
        """Of the graph that it came from, or was updated to."""
        self._pass_ns(self._costs.destroy_captured.at(self.nodes))

    def _pass_ns(self, cost_ns: float) -> None:
        self._machine.clock.pass_ns(self._machine.noise.one(cost_ns))


# Iterations on the simulated GPU until somebody decides that they are over: the host, or the GPU itself.


class FakeLoop:
    """Raises Skip where the driver has no such way of deciding."""

    def __init__(self, machine: Machine, decider: Decider) -> None:
        if decider == "while":
            require_driver(machine.costs, CONDITIONAL, "conditional nodes")
        if decider == "tail_launch":
            require_driver(machine.costs, DEVICE_LAUNCH, "graph launches from the device")
        self._machine = machine
        self._scope = machine.scope
        self._decider = decider
        self._launch = call_of(Launch(duration_ns=machine.costs.graphs.dependent_kernel_ns), machine.costs, {})

    def run_ns(self, iterations: int) -> int:
        machine = self._machine
        machine.check(self._scope)
        began_ns = machine.clock.now_ns()
        if self._decider in ("host_sync", "host_poll"):
            for _ in range(iterations):
                self._decide_on_host()
        else:
            self._decide_on_gpu(iterations)
        return machine.clock.now_ns() - began_ns

    def _decide_on_host(self) -> None:
        machine = self._machine
        ends_ns = machine.make(self._launch, 1).batches[-1].ends_ns
        if self._decider == "host_sync":
            machine.synchronize(0)
        else:
            assert ends_ns is not None, "nothing may hold the stream here"
            machine.clock.wait_until(float(ends_ns[-1]) + machine.costs.flag_to_host_ns)
        machine.clock.pass_ns(machine.costs.graphs.look_ns)

    def _decide_on_gpu(self, iterations: int) -> None:
        costs = self._machine.costs.graphs
        each_ns = costs.while_iteration_ns if self._decider == "while" else costs.tail_iteration_ns
        self._machine.make(replay_of(Graph(1, iterations * each_ns), self._machine.costs), 1)
        self._machine.synchronize(0)


# Lives and changes of chains on the simulated GPU, each act stamped on the virtual clock.


RECORDED: tuple[ChangeWay, ...] = ("exec_update", "rebuild")  # ways that need a new capture
REFUSED = "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"


def lives(machine: Machine, nodes: int, count: int, made: Made) -> IntArray:
    out_ns: IntArray = np.zeros((count, len(Life)), dtype=np.int64)
    executable = Executable(machine, empty_chain(nodes, machine.costs))
    for row in out_ns:
        _live(machine, executable, made, row)
    return out_ns


def _live(machine: Machine, executable: Executable, made: Made, row: IntArray) -> None:
    clock, costs = machine.clock, machine.costs.graphs
    row[Life.BEGIN] = clock.now_ns()
    clock.pass_ns(machine.noise.one((costs.capture if made == "capture" else costs.build).at(executable.nodes)))
    row[Life.MADE] = clock.now_ns()
    executable.instantiate()
    row[Life.INSTANTIATED : Life.CALLED] = clock.now_ns()
    if made == "capture":
        executable.upload()
        row[Life.UPLOADED] = clock.now_ns()
        machine.synchronize(0)
        row[Life.READY] = clock.now_ns()
    executable.launch()
    row[Life.CALLED] = clock.now_ns()
    machine.synchronize(0)
    row[Life.DONE] = clock.now_ns()
    executable.destroy()
    row[Life.DESTROYED] = clock.now_ns()


def changes(machine: Machine, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    if not 1 <= changed <= nodes:
        raise MeasurementError(f"{changed} of {nodes} nodes cannot be changed")
    out_ns: IntArray = np.zeros((count, len(Change)), dtype=np.int64)
    executable = Executable(machine, empty_chain(nodes, machine.costs), uploaded=True)
    for row in out_ns:
        _change(machine, executable, way, changed, row)
    return out_ns


def _change(machine: Machine, executable: Executable, way: ChangeWay, changed: int, row: IntArray) -> None:
    clock, costs = machine.clock, machine.costs.graphs
    row[Change.BEGIN] = row[Change.RECORDED] = clock.now_ns()
    if way in RECORDED:
        clock.pass_ns(machine.noise.one(costs.capture.at(executable.nodes)))
        row[Change.RECORDED] = clock.now_ns()
    if way == "rebuild":
        executable.instantiate()
    elif way == "exec_update":
        refused = refusal(machine.costs)
        if refused:
            raise MeasurementError(refused)
        executable.change(executable.nodes, costs.exec_update.at(executable.nodes))
    else:
        executable.change(changed, (costs.set_params if way == "set_params" else costs.set_grid).at(changed))
    row[Change.CHANGED] = clock.now_ns()
    _replay(machine, executable, row[Change.CALLED : Change.AGAIN])
    row[Change.AGAIN] = clock.now_ns()
    _replay(machine, executable, row[Change.AGAIN_CALLED : Change.DISPOSED])
    row[Change.DISPOSED] = row[Change.AGAIN_DONE]
    if way in RECORDED:
        if way == "rebuild":
            executable.destroy()  # the old one, which is like the new one
        else:
            executable.destroy_captured()
        row[Change.DISPOSED] = clock.now_ns()


def _replay(machine: Machine, executable: Executable, row: IntArray) -> None:
    executable.launch()
    row[0] = machine.clock.now_ns()
    machine.synchronize(0)
    row[1] = machine.clock.now_ns()


def refusal(costs: FakeCosts, update_ns: float | None = 0.0) -> str | None:
    """Why the driver refuses to update a graph, of nodes whose update costs that much more than a kernel's."""
    if update_ns is None:
        return f"{REFUSED} (ERROR_NOT_SUPPORTED)"
    return f"{REFUSED} (ERROR_TOPOLOGY_CHANGED)" if costs.refuses_updates else None


CHAIN_CHECKED = "SIMULATED: a replay that has no memory to be wrong"


class FakeChain:
    """``count`` nodes of a kind. Raises Skip where the simulated GPU or its driver has no such nodes."""

    def __init__(self, machine: Machine, kind: NodeKind, count: int) -> None:
        costs = machine.costs
        if kind.startswith("pdl"):
            require_capability(costs, 9, 0, "programmatic dependent launch")
            require_driver(costs, EDGE_DATA, "programmatic edges")
        if kind in ("if_taken", "if_skipped"):
            require_driver(costs, CONDITIONAL, "conditional nodes")
        self._machine = machine
        self._scope = machine.scope
        self._node = costs.graphs.node(kind)
        self._count = count
        graph = graph_of([node_of(kind, costs)] * count)
        self._executable = Executable(machine, graph)
        machine.clock.pass_ns(costs.graphs.build.at(count))
        self.instantiate_ns()
        self._executable.launch()
        machine.synchronize()
        self.graph: Submit = FakeSubmit(machine, replay_of(graph, costs))
        call = call_of_kind(kind, costs)
        self.stream: Submit | None = FakeSubmit(machine, call, records=kind == "event_record") if call else None

    def instantiate_ns(self) -> int:
        machine = self._machine
        machine.check(self._scope)
        cost_ns = machine.costs.graphs.instantiate.at(self._count) + self._count * self._node.instantiate_ns
        began_ns = machine.clock.now_ns()
        machine.clock.pass_ns(machine.noise.one(cost_ns))
        return machine.clock.now_ns() - began_ns

    def update_ns(self) -> int:
        machine, own_ns = self._machine, self._node.update_ns
        machine.check(self._scope)
        refused = refusal(machine.costs, own_ns)
        if refused or own_ns is None:
            raise Skip(refused)
        began_ns = machine.clock.now_ns()
        self._executable.change(self._count, machine.costs.graphs.exec_update.at(self._count) + self._count * own_ns)
        return machine.clock.now_ns() - began_ns

    def check(self) -> str:
        """What cannot run cannot go wrong either: the replay is only timed."""
        self._machine.check(self._scope)
        self._executable.launch()
        self._machine.synchronize()
        return CHAIN_CHECKED


# A Submit of the simulated GPU that makes several different calls, into one stream or several.


class FakeProgram:
    """``act`` makes all calls of one submission. Round trips wait for every stream."""

    def __init__(self, machine: Machine, act: Callable[[], object], queue_slots: int | None) -> None:
        self.queue_slots = queue_slots
        self._machine = machine
        self._scope = machine.scope
        self._act = act

    def __call__(self, count: int) -> None:
        self._machine.check(self._scope)
        for _ in range(count):
            self._act()

    def burst_ns(self, count: int) -> int:
        clock = self._machine.clock
        began_ns = clock.now_ns()
        self(count)
        return clock.now_ns() - began_ns

    def stamps(self, out_ns: IntArray) -> None:
        clock = self._machine.clock
        out_ns[0] = clock.now_ns()
        for index in range(1, len(out_ns)):
            self(1)
            out_ns[index] = clock.now_ns()

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        clock = self._machine.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            self(calls)
            self._machine.synchronize()
            out_ns[index] = clock.now_ns() - began_ns


# Branches of kernels on the simulated GPU: in a graph, started by the front end, and on streams with events.


SHAPE_CHECKED = "SIMULATED: every kernel began behind those it depends on, in the graph and on the streams"


def dependencies(shape: Shape) -> list[tuple[int, ...]]:
    """For each kernel the numbers of those right before it: the first, then branch after branch, then the last."""
    begin = 1 if shape.joined else 0
    before: list[tuple[int, ...]] = [()] * begin
    for branch in range(shape.branches):
        head = begin + branch * shape.length
        before.append((0,) if shape.joined else ())
        before.extend((node,) for node in range(head, head + shape.length - 1))
    if shape.joined:
        before.append(tuple(begin + (branch + 1) * shape.length - 1 for branch in range(shape.branches)))
    return before


def schedule(before: Sequence[tuple[int, ...]], duration_ns: float, costs: FakeCosts) -> FloatArray:
    """When each kernel of a graph starts, the first at 0.

    A kernel is ready a gap after the last of those before it has ended. The front end starts ready kernels in that
    order, ``front_end_ns`` apart, and waits for an end while as many are resident as may be.
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


class Part(NamedTuple):
    """A call of the work on streams, and the number of the kernel that it launches, None for an event's call."""

    submit: FakeSubmit
    kernel: int | None


class FakeShaped:
    """A kernel of a branch goes to that branch's stream, each branch's next one before any after next."""

    def __init__(self, machine: Machine, shape: Shape) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._shape = shape
        self._before = dependencies(shape)
        self._runs_ns = machine.costs.kernel_ns(shape.duration_ns)
        self._starts_ns = schedule(self._before, self._runs_ns, machine.costs)
        graph = Graph(shape.kernels, float(self._starts_ns.max()) + self._runs_ns)
        machine.clock.pass_ns(machine.costs.graphs.build.at(shape.kernels))
        machine.clock.pass_ns(machine.costs.graphs.instantiate.at(shape.kernels))
        self.graph: Submit = FakeSubmit(machine, replay_of(graph, machine.costs))
        self._parts = self._calls()
        slots = machine.costs.queue_slots // 2 // (shape.length + 2)  # of stream 0, the fullest
        self.streams: Submit = FakeProgram(machine, self._submit, max(slots, 1))

    def _calls(self) -> list[Part]:
        shape, parts = self._shape, []
        others = range(1, shape.branches) if shape.joined else range(0)
        launches = [bound(self._machine, Launch(shape.duration_ns, stream=one), {}) for one in range(shape.branches)]
        records = [bound(self._machine, Record(timed=False, stream=one), {}) for one in range(shape.branches)]
        if shape.joined:
            parts += [Part(launches[0], 0), Part(records[0], None)]
            parts += [Part(bound(self._machine, Wait(stream=one, other=0), {}), None) for one in others]
        first = 1 if shape.joined else 0
        for step in range(shape.length):
            parts += [Part(launches[one], first + one * shape.length + step) for one in range(shape.branches)]
        parts += [Part(records[one], None) for one in others]
        parts += [Part(bound(self._machine, Wait(stream=0, other=one), {}), None) for one in others]
        if shape.joined:
            parts.append(Part(launches[0], shape.kernels - 1))
        return parts

    def _submit(self) -> None:
        for part in self._parts:
            part.submit(1)

    def check(self) -> str:
        """See Shaped: what is looked at is the simulation's own record of begins and ends."""
        self._machine.check(self._scope)
        self.graph(1)
        self._ordered(self._starts_ns, "graph")
        made = [(part.kernel, part.submit.make(1).batches[-1]) for part in self._parts]
        self._machine.synchronize()
        kernels = {kernel: batch for kernel, batch in made if kernel is not None}
        self._ordered(np.array([_start_ns(kernels[node]) for node in range(self._shape.kernels)]), "streams")
        return SHAPE_CHECKED

    def _ordered(self, starts_ns: FloatArray, what: str) -> None:
        for node, those in enumerate(self._before):
            if any(starts_ns[node] < starts_ns[other] + self._runs_ns for other in those):
                raise MeasurementError(f"{what}: kernel {node} came before one that it depends on")


def _start_ns(batch: Batch) -> float:
    assert batch.starts_ns is not None, "a synchronised stream has nothing to come"
    return float(batch.starts_ns[0])


# Steps that allocate, use and free device memory on the simulated GPU, in a graph and in stream order.


STEP_CHECKED = "SIMULATED: a step that has no memory to be wrong"
CALLS_OF_A_PAIR = 3


class Pool:
    """A memory pool: pages are mapped when an allocation needs them, and kept, or given back at each synchronise.

    A block freed in a stream serves the next allocation in it, so that a step needs one block's pages.
    """

    def __init__(self, machine: Machine, *, releases: bool) -> None:
        self._machine = machine
        self._pages = 0
        if releases:
            machine.at_synchronize.append(self._release)

    @property
    def held_bytes(self) -> int:
        """What the pool holds now."""
        return self._pages * PAGE_BYTES

    def map_ns(self, size_bytes: int) -> float:
        """What an allocation has to do for its pages."""
        missing = max(math.ceil(size_bytes / PAGE_BYTES) - self._pages, 0)
        self._pages += missing
        return missing * self._machine.costs.graphs.map_page_ns

    def _release(self) -> None:
        self._machine.clock.pass_ns(self._pages * self._machine.costs.graphs.release_page_ns)
        self._pages = 0


class FakeStep:
    """See Step."""

    submit: Submit

    def __init__(self, machine: Machine, way: AllocationWay, size_bytes: int, pairs: int) -> None:
        self._machine = machine
        self._way = way
        self._size_bytes = size_bytes
        self._pairs = pairs
        self._pool = Pool(machine, releases=way == "stream_released")
        self._use = Launch(duration_ns=machine.costs.graphs.dependent_kernel_ns)
        self._used = bound(machine, self._use, {})
        if way in ("graph_nodes", "graph_outside"):
            self.submit = self._graph()
        else:
            # What a synchronise gives back is missing in the next step only, so that a burst is of one step there.
            slots = 1 if way == "stream_released" else machine.costs.queue_slots // 2 // (pairs * CALLS_OF_A_PAIR)
            self.submit = FakeProgram(machine, self._stream, max(slots, 1))

    def _graph(self) -> FakeSubmit:
        costs, pair = self._machine.costs, chain_of([self._use], self._machine.costs)
        if self._way == "graph_nodes":
            self._machine.clock.pass_ns(self._pool.map_ns(self._size_bytes))
            allocate = Node(costs.gap_graph_ns, costs.graphs.allocate_node_ns)
            pair = [allocate, *pair, Node(costs.gap_graph_ns, costs.graphs.free_node_ns)]
        graph = graph_of(pair * self._pairs)
        self._machine.clock.pass_ns(costs.graphs.instantiate.at(graph.nodes))
        return FakeSubmit(self._machine, replay_of(graph, costs))

    def _stream(self) -> None:
        costs = self._machine.costs.graphs
        for _ in range(self._pairs):
            if self._way != "stream_outside":
                allocate_ns = costs.allocate_ns + self._pool.map_ns(self._size_bytes)
                self._machine.make(Call(allocate_ns, Item(duration_ns=costs.allocate_on_gpu_ns, queued=False)), 1)
            self._used(1)
            if self._way != "stream_outside":
                self._machine.make(Call(costs.free_ns, Item(duration_ns=costs.free_on_gpu_ns, queued=False)), 1)

    def held_bytes(self) -> int:
        return self._size_bytes if self._way in ("graph_outside", "stream_outside") else self._pool.held_bytes

    def check(self) -> str:
        self.submit(1)
        self._machine.synchronize()
        return STEP_CHECKED

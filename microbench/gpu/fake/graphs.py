"""Simulates CUDA Graphs: how they are made and changed, kinds of nodes, branches, loops, and steps that allocate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch, LayerCall, Record, Wait
from microbench.gpu.fake import machine as sim
from microbench.gpu.fake.costs import PAGE_BYTES, FakeCosts
from microbench.gpu.fake.device import FloatArray, Item
from microbench.gpu.fake.environment import CONDITIONAL, DEVICE_LAUNCH, EDGE_DATA, require_capability, require_driver
from microbench.gpu.protocol import graphs as protocol
from microbench.gpu.protocol.submit import Submit

RECORDED: tuple[protocol.ChangeWay, ...] = ("exec_update", "rebuild")  # ways that need a new capture
REFUSED = "the driver refused the update: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"
CHECKED = "SIMULATED: a replay that has no memory to be wrong"
CALLS_OF_A_PAIR = 3


def lives(machine: sim.Machine, nodes: int, count: int, made: protocol.Made) -> IntArray:
    clock, costs, graph = machine.clock, machine.costs.graphs, sim.empty_chain(nodes, machine.costs)
    out_ns: IntArray = np.zeros((count, len(protocol.Life)), dtype=np.int64)
    for row in out_ns:
        row[protocol.Life.BEGIN] = clock.now_ns()
        row[protocol.Life.MADE] = machine.stamped((costs.capture if made == "capture" else costs.build).at(nodes))
        row[protocol.Life.INSTANTIATED : protocol.Life.CALLED] = machine.stamped(costs.instantiate.at(nodes))
        if made == "capture":
            _upload(machine, nodes)
            row[protocol.Life.UPLOADED] = clock.now_ns()
            machine.synchronize(0)
            row[protocol.Life.READY] = clock.now_ns()
        _replay(machine, graph, row[protocol.Life.CALLED : protocol.Life.DESTROYED], uploads=made == "build")
        row[protocol.Life.DESTROYED] = machine.stamped(costs.destroy.at(nodes))
    return out_ns


def layer_lives(machine: sim.Machine, op: LayerCall, nodes: int, count: int) -> IntArray:
    """A captured call costs the library's usual time and the driver's time of a capture."""
    clock, all_costs = machine.clock, machine.costs
    layer, costs = sim.layer_costs(op.layer, all_costs), all_costs.graphs
    graph = sim.graph_of(sim.chain_of([op] * nodes, all_costs))
    library_ns = sim.call_of(op, all_costs, {}).host_ns - all_costs.submit_ns
    out_ns: IntArray = np.zeros((count, protocol.Life.DESTROYED), dtype=np.int64)
    for row in out_ns:
        row[protocol.Life.BEGIN] = clock.now_ns()
        captured_ns = machine.stamped(layer.make_ns + costs.capture.at(nodes) + nodes * library_ns)
        row[protocol.Life.MADE] = 0 if layer.one_call else captured_ns
        row[protocol.Life.INSTANTIATED] = machine.stamped(costs.instantiate.at(nodes))
        if layer.uploads:
            _upload(machine, nodes)
        row[protocol.Life.UPLOADED] = clock.now_ns()
        machine.synchronize(0)
        row[protocol.Life.READY] = clock.now_ns()
        _replay(machine, graph, row[protocol.Life.CALLED :], layer.replay_ns, uploads=not layer.uploads)
        machine.spend(costs.destroy.at(nodes))
    return out_ns


def _upload(machine: sim.Machine, nodes: int) -> None:
    """The call returns before the GPU is ready."""
    costs = machine.costs.graphs
    machine.make(sim.Call(costs.upload.at(nodes), Item(duration_ns=costs.upload_on_gpu.at(nodes))), 1)


def changes(machine: sim.Machine, way: protocol.ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
    if not 1 <= changed <= nodes:
        raise MeasurementError(f"{changed} of {nodes} nodes cannot be changed")
    refused = refusal(machine.costs)
    if way == "exec_update" and refused:
        raise MeasurementError(refused)
    clock, costs, graph = machine.clock, machine.costs.graphs, sim.empty_chain(nodes, machine.costs)
    calls = {"set_params": costs.set_params, "set_grid": costs.set_grid, "exec_update": costs.exec_update}
    if way == "exec_update":
        changed = nodes
    out_ns: IntArray = np.zeros((count, len(protocol.Change)), dtype=np.int64)
    for row in out_ns:
        row[protocol.Change.BEGIN] = row[protocol.Change.RECORDED] = clock.now_ns()
        if way in RECORDED:
            row[protocol.Change.RECORDED] = machine.stamped(costs.capture.at(nodes))
        call_ns = costs.instantiate.at(nodes) if way == "rebuild" else calls[way].at(changed)
        row[protocol.Change.CHANGED] = machine.stamped(call_ns)
        later_ns = 0.0 if way == "rebuild" else changed * costs.changed_launch_ns
        _replay(machine, graph, row[protocol.Change.CALLED : protocol.Change.AGAIN], later_ns, uploads=way == "rebuild")
        row[protocol.Change.AGAIN] = clock.now_ns()
        _replay(machine, graph, row[protocol.Change.AGAIN_CALLED : protocol.Change.DISPOSED])
        row[protocol.Change.DISPOSED] = row[protocol.Change.AGAIN_DONE]
        if way in RECORDED:
            disposed = costs.destroy if way == "rebuild" else costs.destroy_captured
            row[protocol.Change.DISPOSED] = machine.stamped(disposed.at(nodes))
    return out_ns


def footprint(machine: sim.Machine, nodes: int, copies: int) -> protocol.Footprint:
    costs = machine.costs.graphs
    machine.clock.pass_ns(copies * sum(act.at(nodes) for act in (costs.instantiate, costs.upload, costs.destroy)))
    return protocol.Footprint(costs.device_memory.at(nodes), costs.host_memory.at(nodes))


def _replay(
    machine: sim.Machine, graph: sim.Graph, row: IntArray, extra_ns: float = 0.0, *, uploads: bool = False
) -> None:
    """Launch and wait. Writes when the call and when the wait returned into ``row`` of shape (2,)."""
    call, costs = sim.replay_of(graph, machine.costs), machine.costs.graphs
    if uploads:
        extra_ns += costs.upload.at(graph.nodes)
        call = call.with_item(duration_ns=call.item.duration_ns + costs.upload_on_gpu.at(graph.nodes))
    machine.make(sim.Call(call.host_ns + extra_ns, call.item), 1)
    row[0] = machine.clock.now_ns()
    machine.synchronize(0)
    row[1] = machine.clock.now_ns()


def refusal(costs: FakeCosts, update_ns: float | None = 0.0) -> str | None:
    """Why the driver refuses to update a graph of such nodes, or None. ``update_ns`` is their NodeCosts.update_ns."""
    if update_ns is None:
        return f"{REFUSED} (ERROR_NOT_SUPPORTED)"
    return f"{REFUSED} (ERROR_TOPOLOGY_CHANGED)" if costs.refuses_updates else None


class FakeChain(sim.Scoped):
    """``count`` nodes of a kind. Raises Skip where the simulated GPU or its driver has no such nodes."""

    def __init__(self, machine: sim.Machine, kind: protocol.NodeKind, count: int) -> None:
        costs = machine.costs
        if kind.startswith("pdl"):
            require_capability(costs, 9, 0, "programmatic dependent launch")
            require_driver(costs, EDGE_DATA, "programmatic edges")
        if kind in ("if_taken", "if_skipped"):
            require_driver(costs, CONDITIONAL, "conditional nodes")
        super().__init__(machine)
        self._node = costs.graphs.node(kind)
        self._count = count
        machine.clock.pass_ns(costs.graphs.build.at(count))
        self.instantiate_ns()
        self.graph: Submit = sim.FakeSubmit(
            machine, sim.replay_of(sim.graph_of([sim.node_of(kind, costs)] * count), costs)
        )
        call = sim.call_of_kind(kind, costs)
        self.stream: Submit | None = sim.FakeSubmit(machine, call, records=kind == "event_record") if call else None

    def instantiate_ns(self) -> int:
        graphs = self._machine.costs.graphs
        return self._call_ns(graphs.instantiate.at(self._count) + self._count * self._node.instantiate_ns)

    def update_ns(self) -> int:
        costs, own_ns = self._machine.costs, self._node.update_ns
        refused = refusal(costs, own_ns)
        if refused or own_ns is None:
            raise Skip(refused)
        return self._call_ns(costs.graphs.exec_update.at(self._count) + self._count * own_ns)

    def _call_ns(self, cost_ns: float) -> int:
        began_ns = self._open().clock.now_ns()
        return self._machine.stamped(cost_ns) - began_ns

    def check(self) -> str:
        self.graph(1)
        self._machine.synchronize()
        return CHECKED


class FakeLoop(sim.Scoped):
    """A Loop. Raises Skip if the driver does not support the decider."""

    def __init__(self, machine: sim.Machine, decider: protocol.Decider) -> None:
        if decider == "while":
            require_driver(machine.costs, CONDITIONAL, "conditional nodes")
        if decider == "tail_launch":
            require_driver(machine.costs, DEVICE_LAUNCH, "graph launches from the device")
        super().__init__(machine)
        self._decider = decider

    def run_ns(self, iterations: int) -> int:
        machine, costs, graphs = self._open(), self._machine.costs, self._machine.costs.graphs
        began_ns = machine.clock.now_ns()
        if self._decider in ("while", "tail_launch"):
            each_ns = graphs.while_iteration_ns if self._decider == "while" else graphs.tail_iteration_ns
            machine.make(sim.replay_of(sim.Graph(1, iterations * each_ns), costs), 1)
            machine.synchronize(0)
            return machine.clock.now_ns() - began_ns
        launch = sim.call_of(Launch(duration_ns=graphs.dependent_kernel_ns), costs, {})
        for _ in range(iterations):
            ends_ns = machine.make(launch, 1).batches[-1].ends_ns
            if self._decider == "host_sync":
                machine.synchronize(0)
            else:
                assert ends_ns is not None, "nothing may hold the stream here"
                machine.clock.wait_until(float(ends_ns[-1]) + costs.flag_to_host_ns)
            machine.clock.pass_ns(graphs.look_ns)
        return machine.clock.now_ns() - began_ns


def dependencies(shape: protocol.Shape) -> list[tuple[int, ...]]:
    """Each kernel's direct predecessors. The order of kernels is: the first, then branch after branch, then the
    last."""
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


class FakeShaped:
    """Each branch has a stream. The host submits the first kernel of every branch, then the second of every branch."""

    def __init__(self, machine: sim.Machine, shape: protocol.Shape) -> None:
        costs = machine.costs
        runs_ns = costs.kernel_ns(shape.duration_ns)
        starts_ns = schedule(dependencies(shape), runs_ns, costs)
        graph = sim.Graph(shape.kernels, float(starts_ns.max()) + runs_ns)
        machine.clock.pass_ns(costs.graphs.build.at(shape.kernels))
        machine.clock.pass_ns(costs.graphs.instantiate.at(shape.kernels))
        self._machine = machine
        self.graph: Submit = sim.FakeSubmit(machine, sim.replay_of(graph, costs))
        self._submits = self._on_streams(shape)
        slots = costs.queue_slots // 2 // (shape.length + 2)  # of stream 0, the fullest
        self.streams: Submit = sim.FakeProgram(machine, self._submit, max(slots, 1))

    def _on_streams(self, shape: protocol.Shape) -> list[sim.FakeSubmit]:
        machine, branches = self._machine, range(shape.branches)
        others = branches[1:] if shape.joined else ()
        launches = [sim.bound(machine, Launch(shape.duration_ns, stream=branch), {}) for branch in branches]
        records = [sim.bound(machine, Record(timed=False, stream=branch), {}) for branch in branches]
        submits = launches * shape.length
        if shape.joined:
            fork = [sim.bound(machine, Wait(stream=branch, other=0), {}) for branch in others]
            join = [sim.bound(machine, Wait(stream=0, other=branch), {}) for branch in others]
            submits = [launches[0], records[0], *fork, *submits, *records[1:], *join, launches[0]]
        return submits

    def _submit(self) -> None:
        for submit in self._submits:
            submit(1)

    def check(self) -> str:
        self.graph(1)
        self.streams(1)
        self._machine.synchronize()
        return CHECKED


class FakeKernelChain(sim.Scoped):
    """Equal kernels, as a graph and in a stream. Profilers report durations that are longer by a constant."""

    def __init__(
        self,
        machine: sim.Machine,
        work: protocol.KernelWork,
        count: int,
        *,
        blocks: int,
        block_threads: int,
        alternating: bool,
    ) -> None:
        super().__init__(machine)
        costs = machine.costs
        nominal_ns = {"empty": 0.0, "spin": float(protocol.SPIN_NS), "add": costs.empty_kernel_ns + costs.add_ns}[work]
        self._count, self._kernel_ns = count, costs.kernel_ns(nominal_ns, blocks, block_threads)
        nodes = [sim.Node(costs.gap_graph_ns, self._kernel_ns)] * count
        self.graph: Submit = sim.FakeSubmit(machine, sim.replay_of(sim.graph_of(nodes), costs))
        call = sim.call_of(Launch(), costs, {}).with_item(duration_ns=self._kernel_ns)
        self.stream: Submit = sim.FakeProgram(
            machine, lambda: machine.make(call, count), max(costs.queue_slots // 2 // count, 1), stream=0
        )

    def profiled_ns(self) -> IntArray:
        machine = self._open()
        self.stream(1)
        machine.synchronize()
        durations_ns = machine.noise.device(self._kernel_ns + machine.costs.profiler_ns, self._count)
        return machine.globaltimer_ns(durations_ns)

    def check(self) -> str:
        self.graph(1)
        self.stream(1)
        self._machine.synchronize()
        return CHECKED


class FakeStep:
    """A step that allocates from a pool. The pool maps pages on demand, and keeps or releases them at a synchronise.

    A block freed in a stream serves the next allocation there, so a step needs the pages of one block.
    """

    submit: Submit

    def __init__(self, machine: sim.Machine, way: protocol.AllocationWay, size_bytes: int, pairs: int) -> None:
        costs, graphs = machine.costs, machine.costs.graphs
        self._machine = machine
        self._way = way
        self._size_bytes = size_bytes
        self._pairs = pairs
        self._pages = 0
        use = Launch(duration_ns=graphs.dependent_kernel_ns)
        self._use = sim.call_of(use, costs, {})
        if way.startswith("graph"):
            pair = sim.chain_of([use], costs)
            if way == "graph_nodes":
                machine.clock.pass_ns(self._map_ns())
                allocate = sim.Node(costs.gap_graph_ns, graphs.allocate_node_ns)
                pair = [allocate, *pair, sim.Node(costs.gap_graph_ns, graphs.free_node_ns)]
            graph = sim.graph_of(pair * pairs)
            machine.clock.pass_ns(graphs.instantiate.at(graph.nodes))
            self.submit = sim.FakeSubmit(machine, sim.replay_of(graph, costs))
        else:
            slots = max(costs.queue_slots // 2 // (pairs * CALLS_OF_A_PAIR), 1)
            if way == "stream_released":
                machine.at_synchronize.append(self._release)
                slots = 1  # only the first step after a synchronise maps the pages again
            self.submit = sim.FakeProgram(machine, self._stream, slots)

    def _stream(self) -> None:
        machine, costs = self._machine, self._machine.costs.graphs
        outside = self._way == "stream_outside"
        for _ in range(self._pairs):
            if not outside:
                allocate_ns = costs.allocate.submit_ns + self._map_ns()
                machine.make(sim.Call(allocate_ns, Item(duration_ns=costs.allocate.duration_ns, queued=False)), 1)
            machine.make(self._use, 1)
            if not outside:
                machine.make(sim.Call(costs.free.submit_ns, Item(duration_ns=costs.free.duration_ns, queued=False)), 1)

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
        self.submit(1)
        self._machine.synchronize()
        return CHECKED

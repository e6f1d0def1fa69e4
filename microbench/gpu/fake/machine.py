"""What the parts of one simulated machine share: its costs, host clock, noise, device and wait mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import (
    LEGACY_STREAM,
    Copy,
    GraphLaunch,
    IntArray,
    Launch,
    LayerCall,
    Memset,
    Op,
    Query,
    Record,
    SynchronizeIdle,
    Wait,
)
from microbench.gpu.fake.costs import PROLOGUE, FakeCosts, Traffic
from microbench.gpu.fake.device import Batch, Device, FloatArray, Hold, Item, Noise, VirtualClock
from microbench.gpu.layers.base import LayerCosts
from microbench.gpu.protocol.gpu import GpuRecording, WaitMode
from microbench.gpu.protocol.graphs import NodeKind

# What each op costs the simulated host and GPU: an op becomes a Call, a call's host time and its item in a stream.


class Call(msgspec.Struct, frozen=True):
    """One call: the host time it takes, and what it puts into which stream (None: nothing)."""

    host_ns: float
    item: Item | None
    stream: int = 0

    def queue_slots(self, costs: FakeCosts) -> int | None:
        """Half of how many may be outstanding; None when it takes no slot."""
        if self.item is None or not self.item.queued:
            return None
        if not self.item.buffer_bytes:
            return costs.queue_slots // 2
        return min(costs.queue_slots, int(costs.queue_buffer_bytes // self.item.buffer_bytes)) // 2


class Graph(msgspec.Struct, frozen=True):
    """An instantiated graph: its nodes, and GPU time from the first one's start to the last one's end.

    ``launch_ns`` is what its nodes add to the launch call beyond what kernels do.
    """

    nodes: int
    total_ns: float
    launch_ns: float = 0.0


def call_of(op: Op, costs: FakeCosts, graphs: Mapping[int, Graph]) -> Call:
    """The call for an op.

    Raises Skip for a layer the simulation does not have, MeasurementError for a graph that does not exist (any more).
    """
    match op:
        case Launch():
            return _launch(op, costs)
        case Copy():
            return _copy(op, costs)
        case Memset():
            return _memset(op, costs)
        case Record(timed=True):
            item = Item(gap_ns=costs.gap_event_ns, traffic=costs.traffic["timed_event"])
            return Call(costs.timed_record_ns, item, op.stream)
        case Record():
            return Call(costs.untimed_record_ns, Item(queued=False), op.stream)
        case Wait():
            return Call(costs.wait_event_ns, Item(gap_ns=costs.gap_wait_ns, queued=False), op.stream)
        case Query():
            return Call(costs.query_ns, None)
        case SynchronizeIdle(what="stream"):
            return Call(costs.idle_stream_ns, None)
        case SynchronizeIdle():
            return Call(costs.idle_event_ns, None)
        case GraphLaunch():
            return _graph_launch(op, costs, graphs)
        case LayerCall():
            return _layer_call(op, costs)


def replay_of(graph: Graph, costs: FakeCosts, stream: int = 0) -> Call:
    """The launch call of a graph from the compiled loop."""
    whole, node = costs.traffic["graph"], costs.traffic["graph_node"]
    traffic = Traffic(whole.received + graph.nodes * node.received, whole.sent + graph.nodes * node.sent)
    item = Item(gap_ns=costs.gap_stream_ns, duration_ns=graph.total_ns, traffic=traffic)
    return Call(costs.graph_submit_ns + graph.nodes * costs.graph_node_submit_ns + graph.launch_ns, item, stream)


def _launch(op: Launch, costs: FakeCosts) -> Call:
    host_ns = costs.submit_ns + costs.kind_submit_ns[op.kind] + costs.submit_argument_ns * op.argument_bytes
    if op.stream == LEGACY_STREAM:
        host_ns += costs.legacy_stream_submit_ns
    launch = costs.traffic["launch"]
    return Call(
        host_ns,
        Item(
            gap_ns=costs.gap_stream_ns + costs.kind_gap_ns[op.kind],
            duration_ns=costs.kernel_ns(op.duration_ns, op.grid_blocks, op.block_threads),
            buffer_bytes=op.argument_bytes + costs.launch_record_bytes,
            traffic=Traffic(launch.received + costs.argument_byte_traffic * op.argument_bytes, launch.sent),
        ),
        op.stream,
    )


def _copy(op: Copy, costs: FakeCosts) -> Call:
    packets_bytes = costs.on_the_link_bytes(op.direction, op.size_bytes)
    command = costs.traffic[f"copy_{op.direction}"]
    if op.direction == "h2d":
        host_ns = costs.copy_h2d_submit_ns
        requests_bytes = costs.read_requests_bytes(op.size_bytes)
        traffic = Traffic(command.received + packets_bytes, command.sent + requests_bytes)
    else:
        host_ns = costs.copy_d2h_submit_ns
        traffic = Traffic(command.received, command.sent + packets_bytes)
    duration_ns = costs.copy_fixed_ns + packets_bytes / costs.link_bytes_per_s * 1e9
    item = Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, engine=op.direction, traffic=traffic)
    return Call(host_ns, item, op.stream)


def _memset(op: Memset, costs: FakeCosts) -> Call:
    duration_ns = costs.empty_kernel_ns + op.size_bytes / costs.memset_bytes_per_s * 1e9
    item = Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, traffic=costs.traffic["memset"])
    return Call(costs.memset_submit_ns, item, op.stream)


def _graph_launch(op: GraphLaunch, costs: FakeCosts, graphs: Mapping[int, Graph]) -> Call:
    graph = graphs.get(op.graph)
    if graph is None:
        raise MeasurementError(f"graph {op.graph} does not exist: its case has ended")
    call = replay_of(graph, costs, op.stream)
    return msgspec.structs.replace(call, host_ns=call.host_ns + _layer(op.layer, costs).replay_ns)


def _layer_call(op: LayerCall, costs: FakeCosts) -> Call:
    layer, item = _layer(op.layer, costs), _launch(kernel_of(op), costs).item
    arguments = 1 if op.duration_ns else op.arguments  # a spin kernel is told its length
    return Call(layer.call_ns + arguments * layer.argument_ns, item)


def kernel_of(op: LayerCall) -> Launch:
    """The kernel that a layer's call ends in, as a launch."""
    return Launch(duration_ns=op.duration_ns or 0)


def _layer(name: str, costs: FakeCosts) -> LayerCosts:
    if name not in costs.layers:
        raise Skip(f"the simulated GPU has no layer {name}")
    return costs.layers[name]


class Made(NamedTuple):
    """When each of some calls returned, and the batches that they put into a stream (none by a host call)."""

    returned_ns: FloatArray
    batches: list[Batch]


class Machine:
    """One simulated host thread with its GPU.

    ``scope`` numbers the case that is open, 0 outside of all: what was made in a case is of no use after it.
    ``at_synchronize`` is what the driver does before a synchronise returns.
    """

    def __init__(self, costs: FakeCosts, seed: int, spread: float, wait: WaitMode) -> None:
        self.costs = costs
        self.wait: WaitMode = wait
        self.clock = VirtualClock(costs.timer_call_ns, costs.timer_step_ns)
        self.noise = Noise(seed, spread)
        self.device = Device(costs, self.noise)
        self.scope = 0
        self.at_synchronize: list[Callable[[], None]] = []

    def check(self, scope: int) -> None:
        """Raise MeasurementError for something made in a case that has ended."""
        if scope not in (0, self.scope):
            raise MeasurementError("this belongs to a case that has ended: it was released")

    def make(self, call: Call, count: int, extra_ns: float = 0.0, after: Batch | None = None) -> Made:
        """Make ``count`` calls from now on, each with ``extra_ns`` of other work behind it."""
        costs_ns = self.noise.host(call.host_ns, count) + extra_ns
        if call.item is None:
            made = Made(self.clock.time_ns + np.cumsum(costs_ns), [])
        else:
            made = Made(*self.device.submit(call.stream, call.item, self.clock.time_ns, costs_ns, after))
        self.clock.wait_until(float(made.returned_ns[-1]))
        return made

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for one stream, or for all, in the machine's wait mode."""
        ended_ns = self.device.all_idle_ns() if stream is None else self.device.idle_ns(stream)
        noticed_ns = ended_ns + self.noise.one(self.costs.completion_ns[self.wait])
        self.clock.pass_ns(self.noise.one(self.costs.idle_stream_ns))
        self.clock.wait_until(noticed_ns)
        for act in self.at_synchronize:
            act()

    def end_case(self) -> None:
        """Wait for all streams and drop what the case made."""
        self.synchronize()
        self.device.forget_streams()
        self.at_synchronize.clear()
        self.scope = 0

    def globaltimer_ns(self, times_ns: FloatArray) -> IntArray:
        """What %globaltimer shows at those times: whole steps."""
        step_ns = self.costs.globaltimer_step_ns
        return np.floor(times_ns / step_ns).astype(np.int64) * step_ns


# What becomes a graph on the simulated GPU: captured ops and nodes of each kind, as a chain of gaps and durations.


ONE_WORD_BYTES = 4


class Node(NamedTuple):
    """A node in a chain, in ns: the gap to the end of the one before it, how long it runs, and what it adds to the
    launch call beyond what a kernel does."""

    gap_ns: float
    duration_ns: float
    launch_ns: float = 0.0


def chain_of(ops: Sequence[Op], costs: FakeCosts) -> list[Node]:
    """The chain that a capture of these ops makes.

    Raises MeasurementError for none, for calls of several layers, and with the driver's reason for an op that cannot be
    captured; Skip for a layer that is not simulated.
    """
    if not ops:
        raise MeasurementError("a graph needs at least one node")
    if len({op.layer if isinstance(op, LayerCall) else None for op in ops}) > 1:
        raise MeasurementError("one graph is captured by one layer's means")
    nodes = {op: _captured(op, costs) for op in dict.fromkeys(ops)}
    return [nodes[op] for op in ops]


def graph_of(chain: Sequence[Node]) -> Graph:
    """A chain instantiated: nothing is before its first node, so that one has no gap."""
    total_ns = sum(node.gap_ns + node.duration_ns for node in chain) - chain[0].gap_ns
    return Graph(len(chain), total_ns, sum(node.launch_ns for node in chain))


def empty_chain(nodes: int, costs: FakeCosts) -> Graph:
    """A line of empty kernels."""
    return graph_of([_captured(Launch(), costs)] * nodes)


def node_of(kind: NodeKind, costs: FakeCosts) -> Node:
    """A node of that kind behind another one."""
    op = op_of(kind, costs)
    if isinstance(op, Launch | Copy | Memset):
        return _node(kind, _item(op, costs).duration_ns, costs)
    return _node(kind, costs.graphs.node(kind).duration_ns, costs)


def call_of_kind(kind: NodeKind, costs: FakeCosts) -> Call | None:
    """The call into stream 0 that does what a node of that kind does; None for what only a graph can hold."""
    op, own = op_of(kind, costs), costs.graphs.calls.get(kind)
    if op is None:
        return Call(own.submit_ns, Item(gap_ns=costs.gap_stream_ns, duration_ns=own.duration_ns)) if own else None
    call = call_of(op, costs, {})
    if not kind.startswith("pdl_trigger") or call.item is None:
        return call
    replace = msgspec.structs.replace
    return replace(call, item=replace(call.item, gap_ns=call.item.gap_ns + costs.graphs.trigger_gap_ns))


def op_of(kind: NodeKind, costs: FakeCosts) -> Op | None:
    """The op that a node of that kind does, where there is one."""
    if kind == "kernel" or kind.endswith(PROLOGUE) or kind.startswith("pdl"):
        return _dependent(kind, costs)
    forms: dict[NodeKind, Op] = {
        "kernel_empty": Launch(),
        "memset": Memset(ONE_WORD_BYTES),
        "copy_h2d": Copy("h2d", ONE_WORD_BYTES),
        "copy_d2h": Copy("d2h", ONE_WORD_BYTES),
        "event_record": Record(),
        "event_wait": Wait(other=0),
    }
    return forms.get(kind)


def _dependent(kind: NodeKind, costs: FakeCosts) -> Launch:
    """A kernel that needs what the one before it wrote. Its prologue takes time of its own unless an early trigger let
    it begin with the kernel in front: then it hides under that one's."""
    duration_ns = costs.graphs.dependent_kernel_ns
    if kind.endswith(PROLOGUE) and not kind.startswith("pdl_trigger"):
        duration_ns += costs.graphs.prologue_ns
    return Launch(duration_ns=duration_ns, kind="pdl" if kind.startswith("pdl") else "launch")


def _captured(op: Op, costs: FakeCosts) -> Node:
    match op:
        case Launch():
            return _node("pdl" if op.kind == "pdl" else "kernel", _item(op, costs).duration_ns, costs)
        case Copy():
            return _node("copy_h2d" if op.direction == "h2d" else "copy_d2h", _item(op, costs).duration_ns, costs)
        case Memset():
            return _node("memset", _item(op, costs).duration_ns, costs)
        case LayerCall():
            call_of(op, costs, {})
            return _captured(kernel_of(op), costs)
        case SynchronizeIdle() | Query():
            called = "cuEventQuery" if isinstance(op, Query) else f"cu{op.what.capitalize()}Synchronize"
            raise MeasurementError(
                f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called} was called while the stream captures"
            )
        case _:
            raise MeasurementError(f"the simulated GPU captures kernels, copies and memsets, not {type(op).__name__}")


def _node(kind: NodeKind, duration_ns: float, costs: FakeCosts) -> Node:
    own = costs.graphs.node(kind)
    return Node(costs.gap_graph_ns + own.gap_ns, duration_ns, own.launch_ns)


def _item(op: Op, costs: FakeCosts) -> Item:
    item = call_of(op, costs, {}).item
    assert item is not None, "launches, copies and memsets go into a stream"
    return item


# Submit, Gate and EventPair of the simulated GPU.


def bound(machine: Machine, op: Op, graphs: Mapping[int, Graph]) -> FakeSubmit:
    """An op made ready. Raises what ``call_of`` does."""
    other = op.other if isinstance(op, Wait) else None
    return FakeSubmit(machine, call_of(op, machine.costs, graphs), records=isinstance(op, Record), other=other)


class FakeSubmit:
    """A bound op of the simulated GPU. ``records`` makes its last call the stream's event record; ``other`` is the
    stream whose last event record a wait waits for."""

    def __init__(self, machine: Machine, call: Call, *, records: bool = False, other: int | None = None) -> None:
        self.queue_slots = call.queue_slots(machine.costs)
        self._machine = machine
        self._scope = machine.scope
        self._call = call
        self._records = records
        self._other = other

    def make(self, count: int, extra_ns: float = 0.0) -> Made:
        self._machine.check(self._scope)
        device = self._machine.device
        after = None if self._other is None else device.stream(self._other).recorded
        made = self._machine.make(self._call, count, extra_ns, after)
        if self._records:
            device.stream(self._call.stream).recorded = made.batches[-1]
        return made

    def __call__(self, count: int) -> None:
        if count > 0:
            self.make(count)

    def burst_ns(self, count: int) -> int:
        clock = self._machine.clock
        began_ns = clock.now_ns()
        self(count)
        return clock.now_ns() - began_ns

    def stamps(self, out_ns: IntArray) -> None:
        clock = self._machine.clock
        out_ns[0] = clock.now_ns()
        if len(out_ns) > 1:
            out_ns[1:] = clock.all_shown(self.make(len(out_ns) - 1, self._machine.costs.timer_call_ns).returned_ns)

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        clock = self._machine.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            self.make(calls)
            self._machine.synchronize(self._call.stream)
            out_ns[index] = clock.now_ns() - began_ns


class FakeGate:
    """A kernel that holds simulated streams until ``open``, or until its time-out."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._hold: Hold | None = None

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        machine = self._machine
        machine.check(self._scope)
        if not streams:
            raise MeasurementError("a gate needs a stream to hold")
        call_ns = machine.noise.one(machine.costs.submit_ns)
        now_ns, self._hold = machine.device.shut(tuple(streams), machine.clock.time_ns, call_ns, timeout_s * 1e9)
        machine.clock.wait_until(now_ns)

    def open(self) -> None:
        if self._hold is None:
            raise MeasurementError("the gate was never shut")
        now_ns = self._machine.clock.pass_ns(self._machine.costs.gate_open_ns)
        self._machine.device.open(self._hold, now_ns + self._machine.costs.host_read_ns)

    def was_late(self) -> bool:
        return self._hold is not None and self._hold.late


class FakeEventPair:
    """Two timing events in a simulated stream."""

    def __init__(self, machine: Machine, record: Call) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._record = record
        self._first: Batch | None = None
        self._last: Batch | None = None

    def start(self) -> None:
        self._first = self._put()

    def stop(self) -> None:
        self._last = self._put()

    def elapsed_s(self) -> float:
        if self._first is None or self._last is None:
            raise MeasurementError("both events must be recorded before their difference is asked for")
        self._machine.synchronize(self._record.stream)
        return (self._stamp_ns(self._last) - self._stamp_ns(self._first)) * 1e-9

    def _put(self) -> Batch:
        self._machine.check(self._scope)
        return self._machine.make(self._record, 1).batches[0]

    def _stamp_ns(self, batch: Batch) -> int:
        assert batch.ends_ns is not None, "a synchronised stream has no event to come"
        return int(self._machine.globaltimer_ns(batch.ends_ns)[0])


# Kernels of the simulated GPU that record their own begin and end, in a stream or in a graph.


def record(machine: Machine, launch: Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
    """Raises MeasurementError for more than may stand behind a gate."""
    costs = machine.costs
    if not graph:
        starts_ns = _starts_ns(machine, call_of(launch, costs, {}), count, gated=gated)
        duration_ns = costs.kernel_ns(launch.duration_ns, launch.grid_blocks, launch.block_threads)
        return _recorded(machine, starts_ns, starts_ns + duration_ns)
    chain = chain_of([launch] * count, costs)
    call = replay_of(graph_of(chain), costs, launch.stream)
    machine.clock.pass_ns(costs.graphs.capture.at(count) + costs.graphs.instantiate.at(count))
    gaps_ns, durations_ns, _ = np.array(chain).T
    gaps_ns[0] = 0.0
    ends_ns = _starts_ns(machine, call, 1, gated=gated)[0] + np.cumsum(gaps_ns + durations_ns)
    return _recorded(machine, ends_ns - durations_ns, ends_ns)


def _starts_ns(machine: Machine, call: Call, count: int, *, gated: bool) -> FloatArray:
    """When each of ``count`` calls' items started, all submitted at once."""
    slots = call.queue_slots(machine.costs) or count
    if gated and count > slots:
        raise MeasurementError(f"{count} kernels do not fit behind a gate ({slots} may)")
    gate = FakeGate(machine)
    if gated:
        gate.shut((call.stream,))
    batches = machine.make(call, count).batches
    if gated:
        gate.open()
    machine.synchronize(call.stream)
    if gate.was_late():
        raise MeasurementError("the gate timed out")
    return np.concatenate([batch.starts_ns for batch in batches if batch.starts_ns is not None])


def _recorded(machine: Machine, starts_ns: FloatArray, ends_ns: FloatArray) -> GpuRecording:
    stamps = machine.globaltimer_ns
    return GpuRecording(stamps(starts_ns), stamps(ends_ns), machine.costs.globaltimer_step_ns)

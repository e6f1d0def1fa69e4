"""One simulated machine, what each op costs on it, and what submits to it: Submit, Gate, EventPair, captured graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from microbench.core import ops
from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import size
from microbench.gpu.fake.costs import PROLOGUE, FakeCosts, MemoryCosts, Traffic
from microbench.gpu.fake.device import Batch, Device, Hold, Item, Noise, VirtualClock
from microbench.gpu.layers.base import LayerCosts
from microbench.gpu.protocol.gpu import FloatArray, GpuRecording, Submit, WaitMode

OTHERS = "somebody (pid 4242)"
NOBODY = "nobody else"


class Call(msgspec.Struct, frozen=True):
    """One call: the host time it takes, and what it puts into which stream (None: nothing), a graph of ``nodes``."""

    host_ns: float
    item: Item = Item(queued=False)
    stream: int | None = 0
    nodes: int = 0

    def queue_slots(self, costs: FakeCosts) -> int | None:
        """Half of the calls that may be outstanding; None if a call takes no slot."""
        return costs.queue_depth(self.item.buffer_bytes) // 2 if self.item.queued else None

    def with_item(self, **changes: Any) -> Call:
        """The same call with an item that differs in these fields."""
        return msgspec.structs.replace(self, item=msgspec.structs.replace(self.item, **changes))


class Made(NamedTuple):
    """When each call returned, and the batches that the calls put into a stream (none for calls of the host alone)."""

    returned_ns: FloatArray
    batches: list[Batch]


class Room:
    """Device memory of one case: blocks that it holds, each under a name, until the case ends."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._costs = costs
        self._blocks: dict[Hashable, int] = {}

    @property
    def free_bytes(self) -> int:
        costs = self._costs
        return costs.total_bytes - costs.context_bytes - costs.held_by_others_bytes - sum(self._blocks.values())

    def hold(self, name: Hashable, size_bytes: int) -> None:
        """Take a block for the rest of the case, if it is not held already. Raises Skip if it does not fit."""
        if name not in self._blocks:
            self._blocks[name] = self.require(size_bytes)

    def whole(self, size_bytes: int) -> int:
        step_bytes = self._costs.block_step_bytes
        return -(-size_bytes // step_bytes) * step_bytes

    def require(self, size_bytes: int) -> int:
        """The size of a block for ``size_bytes``, in whole steps. Raises Skip if it does not fit."""
        block_bytes = self.whole(size_bytes)
        if block_bytes > self.free_bytes:
            raise Skip(
                f"{size(size_bytes)} of device memory asked, {size(self.free_bytes)} free; {self.holders()} (SIMULATED)"
            )
        return block_bytes

    def holders(self) -> str:
        held_bytes = self._costs.held_by_others_bytes
        return f"{OTHERS} {size(held_bytes)}" if held_bytes else NOBODY


class Watch:
    """The profiler of a simulated process: what it now adds to each kind of record, in ns, and the number of
    records."""

    def __init__(self) -> None:
        self.call_ns = self.operator_ns = self.function_ns = self.node_ns = 0.0
        self.kernels = self.calls = self.operators = self.functions = 0


class Captured:
    """A capture: the calls that are captured instead of being run, how often each was made, and what broke the capture.

    A ``lenient`` capture accepts waits, as a profiler does, and keeps the names of their calls.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self.calls: list[tuple[Call, int]] = []
        self.waits: list[str] = []
        self.broken = ""
        self._lenient = lenient

    def wait(self, called: str) -> None:
        """Break the capture with the driver's error for a call that cannot be captured."""
        self.waits.append(called)
        if not self._lenient:
            error = f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called} was called while the stream captures"
            self.broken = self.broken or error
            raise MeasurementError(error)


class Machine:
    """One simulated host thread with its GPU.

    ``scope`` is the number of the open case, 0 outside of all cases: what was made in a case is invalid after it.
    ``room`` is the case's device memory. ``at_synchronize`` is what the driver does before a synchronise returns. While
    ``capturing`` is set, calls are captured instead of being run. ``beside_ns`` is what a second process adds to each
    launch call of this case, ``release_ns`` what freeing its operands and libraries takes at its end.
    """

    def __init__(self, costs: FakeCosts, seed: int, spread: float, wait: WaitMode) -> None:
        self.costs = costs
        self.wait: WaitMode = wait
        self.clock = VirtualClock(costs.timer_call_ns, costs.timer_step_ns)
        self.noise = Noise(seed, spread)
        self.device = Device(costs, self.noise)
        self.watch = Watch()
        self.beside_ns = self.release_ns = 0.0
        self.scope = 0
        self.room = Room(costs.memory)
        self.at_synchronize: list[Callable[[], None]] = []
        self.capturing: Captured | None = None

    def check(self, scope: int) -> None:
        """Raise MeasurementError if ``scope`` is that of a case that has ended."""
        if scope not in (0, self.scope):
            raise MeasurementError("this belongs to a case that has ended: it was released")

    def spend(self, cost_ns: float) -> None:
        """Make a call that keeps the host busy for ``cost_ns``, with noise."""
        self.clock.pass_ns(self.noise.one(cost_ns))

    def spent(self, times_ns: FloatArray) -> ops.IntArray:
        """Let these times pass, one after the other; returns them in whole ns."""
        self.clock.pass_ns(float(times_ns.sum()))
        return times_ns.round().astype(np.int64)

    def stamped(self, cost_ns: float) -> int:
        """Make such a call, and return the clock's reading after it."""
        self.spend(cost_ns)
        return self.clock.now_ns()

    def take_and_release(self, costs_ns: Sequence[tuple[float, float]]) -> ops.IntArray:
        """Take and release something, once for each pair of costs; clock readings around each act, shape (n, 4)."""
        now_ns = self.clock.now_ns
        return np.array([[now_ns(), self.stamped(take), now_ns(), self.stamped(release)] for take, release in costs_ns])

    def make(self, call: Call, count: int, extra_ns: float = 0.0, after: Batch | None = None) -> Made:
        """Make ``count`` calls, each followed by ``extra_ns`` of other host work."""
        if self.capturing is not None:
            if call.stream is None:
                self.capturing.wait("a query or synchronise")
            if call.item.queued:
                self.capturing.calls.append((call, count))
            return Made(self.clock.time_ns + np.cumsum(self.noise.host(call.host_ns, count)), [])
        if call.item.queued:
            self.watch.calls += count
            self.watch.kernels += count * max(call.nodes, 1)
            extra_ns += self.watch.call_ns + self.beside_ns
            if call.nodes and self.watch.node_ns:
                call = call.with_item(duration_ns=call.item.duration_ns + call.nodes * self.watch.node_ns)
        costs_ns = self.noise.host(call.host_ns, count) + extra_ns
        if call.stream is None:
            made = Made(self.clock.time_ns + np.cumsum(costs_ns), [])
        else:
            made = Made(*self.device.submit(call.stream, call.item, self.clock.time_ns, costs_ns, after))
        self.clock.wait_until(float(made.returned_ns[-1]))
        return made

    def run(self, item: Item) -> tuple[float, float]:
        """Launch a kernel into stream 0 and wait for it: when it started and ended, in ns."""
        batch = self.make(Call(self.costs.submit_ns, item), 1).batches[0]
        self.synchronize(0)
        assert batch.starts_ns is not None, "all work of a synchronised stream has ended"
        assert batch.ends_ns is not None
        return float(batch.starts_ns[0]), float(batch.ends_ns[0])

    def walk(self, duration_ns: float, line: int) -> float:
        """Let dependent reads take ``duration_ns``. Returns %globaltimer's seconds; raises if no data arrived."""
        began_ns, ended_ns = self.run(Item(duration_ns=duration_ns))
        self.require_arrival(f"the walk ended at no line where line {line} should be")
        return self.globaltimer_s(began_ns, ended_ns)

    def ran(self, how: str, *submits: Submit) -> str:
        """Run each of these once. Returns ``how`` the results were checked, which do not exist here."""
        for submit in submits:
            submit(1)
        self.synchronize()
        return how

    def profiled_ns(self, duration_ns: float, count: int) -> ops.IntArray:
        """Durations of ``count`` equal kernels as a profiler reports them."""
        return self.globaltimer_ns(self.noise.device(duration_ns + self.costs.profiler_ns, count))

    def require_arrival(self, otherwise: str) -> None:
        """Raise MeasurementError, saying what the check found, where the costs let no data arrive as they should."""
        if self.costs.links.arrives != "right":
            raise MeasurementError(f"SIMULATED: {otherwise}")

    def synchronize(self, stream: int | None = None, wait: WaitMode | None = None) -> None:
        """Wait for one stream, or for all, in the machine's wait mode or in that of an event."""
        if self.capturing is not None:
            self.capturing.wait("cuCtxSynchronize" if stream is None else "cuStreamSynchronize")
            return
        ended_ns = self.device.all_idle_ns() if stream is None else self.device.idle_ns(stream)
        mode, slept_ns = wait or self.wait, max(ended_ns - self.clock.time_ns, 0.0)
        wake_ns = self.costs.wake_growth * math.sqrt(slept_ns) if mode == "blocking" else 0.0
        noticed_ns = ended_ns + self.noise.one(self.costs.completion_ns[mode] + wake_ns)
        self.spend(self.costs.idle_stream_ns)
        self.clock.wait_until(noticed_ns)
        for act in self.at_synchronize:
            act()

    def end_case(self) -> None:
        self.synchronize()
        self.device.forget_streams()
        self.at_synchronize.clear()
        self.beside_ns = 0.0
        self.clock.pass_ns(self.release_ns)
        self.release_ns = 0.0
        self.room = Room(self.costs.memory)
        self.scope = 0

    def globaltimer_ns(self, times_ns: FloatArray) -> ops.IntArray:
        """The readings of %globaltimer at those times, in whole steps."""
        step_ns = self.costs.globaltimer_step_ns
        return np.floor(times_ns / step_ns).astype(np.int64) * step_ns

    def globaltimer_s(self, begin_ns: float, end_ns: float) -> float:
        begin, end = self.globaltimer_ns(np.array([begin_ns, end_ns]))
        return float(end - begin) * 1e-9


class Scoped:
    """Something made in a case: using it after that case raises MeasurementError."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope

    def _open(self) -> Machine:
        self._machine.check(self._scope)
        return self._machine


class Graph(msgspec.Struct, frozen=True):
    """An instantiated graph: its nodes, its GPU time from first start to last end, and what its nodes add to the launch
    call on top of kernels."""

    nodes: int
    total_ns: float
    launch_ns: float = 0.0


def call_of(op: ops.Op, costs: FakeCosts, graphs: Mapping[int, Graph] | None = None) -> Call:
    """The call for an op; ``graphs`` are those that exist, by their handles.

    Raises Skip for a layer the simulation does not have, MeasurementError for a graph that does not exist (any more).
    """
    match op:
        case ops.Launch():
            return _launch(op, costs)
        case ops.Copy():
            host_ns = costs.copy_h2d_submit_ns if op.direction == "h2d" else costs.copy_d2h_submit_ns
            on_the_link_ns = costs.on_the_link_bytes(op.direction, op.size_bytes) / costs.link_bytes_per_s * 1e9
            item = Item(
                gap_ns=costs.gap_stream_ns,
                duration_ns=costs.copy_fixed_ns + on_the_link_ns,
                engine=op.direction,
                traffic=costs.traffic[f"copy_{op.direction}"] + costs.copy_traffic(op.direction, op.size_bytes),
            )
            return Call(host_ns, item, op.stream)
        case ops.Memset():
            duration_ns = costs.empty_kernel_ns + op.size_bytes / costs.memset_bytes_per_s * 1e9
            item = Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, traffic=costs.traffic["memset"])
            return Call(costs.memset_submit_ns, item, op.stream)
        case ops.Record(timed=True):
            item = Item(gap_ns=costs.gap_event_ns, traffic=costs.traffic["timed_event"])
            return Call(costs.timed_record_ns, item, op.stream)
        case ops.Record():
            return Call(costs.untimed_record_ns, Item(queued=False), op.stream)
        case ops.Wait():
            return Call(costs.wait_event_ns, Item(gap_ns=costs.gap_wait_ns, queued=False), op.stream)
        case ops.Query():
            return Call(costs.query_ns, stream=None)
        case ops.SynchronizeIdle():
            return Call(costs.idle_stream_ns if op.what == "stream" else costs.idle_event_ns, stream=None)
        case ops.GraphLaunch():
            if not graphs or op.graph not in graphs:
                raise MeasurementError(f"graph {op.graph} does not exist: its case has ended")
            call = replay_of(graphs[op.graph], costs, op.stream)
            return msgspec.structs.replace(call, host_ns=call.host_ns + layer_costs(op.layer, costs).replay_ns)
        case ops.LayerCall():
            layer = layer_costs(op.layer, costs)
            arguments = 1 if op.duration_ns else op.arguments  # a spin kernel's only argument is its length
            return Call(
                layer.call_ns + arguments * layer.argument_ns, _launch(ops.Launch(op.duration_ns or 0), costs).item
            )


def replay_of(graph: Graph, costs: FakeCosts, stream: int = 0) -> Call:
    """The launch call of a graph from the compiled loop."""
    node = costs.traffic["graph_node"]
    traffic = costs.traffic["graph"] + Traffic(graph.nodes * node.received, graph.nodes * node.sent)
    item = Item(gap_ns=costs.gap_stream_ns, duration_ns=graph.total_ns, traffic=traffic)
    host_ns = costs.graph_submit_ns + graph.nodes * costs.graph_node_submit_ns + graph.launch_ns
    return Call(host_ns, item, stream, graph.nodes)


def _launch(op: ops.Launch, costs: FakeCosts) -> Call:
    host_ns = costs.submit_ns + costs.kind_submit_ns[op.kind] + costs.submit_argument_ns * op.argument_bytes
    if op.stream == ops.LEGACY_STREAM:
        host_ns += costs.legacy_stream_submit_ns
    item = Item(
        gap_ns=costs.gap_stream_ns + costs.kind_gap_ns[op.kind],
        duration_ns=costs.kernel_ns(op.duration_ns, op.grid_blocks, op.block_threads),
        buffer_bytes=op.argument_bytes + costs.launch_record_bytes,
        traffic=costs.traffic["launch"] + Traffic(costs.argument_byte_traffic * op.argument_bytes),
    )
    return Call(host_ns, item, op.stream)


def layer_costs(name: str, costs: FakeCosts) -> LayerCosts:
    """Raises Skip for a layer that the simulation does not have."""
    if name not in costs.layers:
        raise Skip(f"the simulated GPU has no layer {name}")
    return costs.layers[name]


class FakeProgram(Scoped):
    """A Submit whose calls each run ``act``, which makes several calls into one or more streams.

    Round trips wait for ``stream``, None for all.
    """

    def __init__(
        self, machine: Machine, act: Callable[[], object], queue_slots: int | None, stream: int | None = None
    ) -> None:
        super().__init__(machine)
        self.queue_slots = queue_slots
        self._act = act
        self._stream = stream

    def __call__(self, count: int) -> None:
        self._open()
        for _ in range(count):
            self._act()

    def burst_ns(self, count: int) -> int:
        clock = self._machine.clock
        began_ns = clock.now_ns()
        self(count)
        return clock.now_ns() - began_ns

    def stamps(self, out_ns: ops.IntArray) -> None:
        out_ns[0] = self._machine.clock.now_ns()
        for index in range(1, len(out_ns)):
            self(1)
            out_ns[index] = self._machine.clock.now_ns()

    def round_trips(self, out_ns: ops.IntArray, calls: int = 1) -> None:
        clock = self._machine.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            self(calls)
            self._machine.synchronize(self._stream)
            out_ns[index] = clock.now_ns() - began_ns


class FakeSubmit(FakeProgram):
    """A Submit of one call. ``act`` is the effect of the calls on the data.

    With ``records`` its last call is the stream's event record; ``other`` is the stream for whose last event record a
    wait waits.
    """

    def __init__(
        self,
        machine: Machine,
        call: Call,
        act: Callable[[], object] = lambda: None,
        *,
        records: bool = False,
        other: int | None = None,
    ) -> None:
        super().__init__(machine, act, call.queue_slots(machine.costs), call.stream)
        self._call = call
        self._records = records
        self._other = other

    def __call__(self, count: int) -> None:
        if count > 0:
            self._make(count)

    def stamps(self, out_ns: ops.IntArray) -> None:
        clock = self._machine.clock
        out_ns[0] = clock.now_ns()
        if len(out_ns) > 1:
            out_ns[1:] = clock.all_shown(self._make(len(out_ns) - 1, self._machine.costs.timer_call_ns).returned_ns)

    def _make(self, count: int, extra_ns: float = 0.0) -> Made:
        device = self._open().device
        after = None if self._other is None else device.stream(self._other).recorded
        made = self._machine.make(self._call, count, extra_ns, after)
        if self._records:
            made.batches[-1].stream.recorded = made.batches[-1]
        self._act()
        return made


def bound(machine: Machine, op: ops.Op, graphs: Mapping[int, Graph] | None = None) -> FakeSubmit:
    """An op, bound. Raises the same errors as ``call_of``."""
    other = op.other if isinstance(op, ops.Wait) else None
    return FakeSubmit(machine, call_of(op, machine.costs, graphs), records=isinstance(op, ops.Record), other=other)


class FakeGate(Scoped):
    """A kernel that holds simulated streams until ``open``, or until its time-out."""

    _hold: Hold | None = None

    def shut(self, streams: Sequence[int] = (0,), timeout_s: float = 0.5) -> None:
        machine = self._open()
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


class FakeEventPair(Scoped):
    """Two events in a simulated stream."""

    def __init__(self, machine: Machine, call: Call) -> None:
        super().__init__(machine)
        self._call = call
        self._first: Batch | None = None
        self._last: Batch | None = None

    def start(self) -> None:
        self._first = self._open().make(self._call, 1).batches[0]

    def stop(self) -> None:
        self._last = self._open().make(self._call, 1).batches[0]

    def elapsed_s(self) -> float:
        self._machine.synchronize(self._call.stream)
        return self._machine.globaltimer_s(*self._ends_ns())

    def _ends_ns(self) -> tuple[float, float]:
        first, last = self._first, self._last
        if first is None or last is None or first.ends_ns is None or last.ends_ns is None:
            raise MeasurementError("both markers must be recorded and reached before their difference is read")
        return float(first.ends_ns[0]), float(last.ends_ns[0])


ONE_WORD_BYTES = 4


class Node(NamedTuple):
    """A node in a chain, in ns: its gap behind the previous node, its duration, and what it adds to the launch call on
    top of a kernel."""

    gap_ns: float
    duration_ns: float
    launch_ns: float = 0.0


def chain_of(captured: Sequence[ops.Op], costs: FakeCosts) -> list[Node]:
    """The chain that a capture of these ops makes.

    Raises MeasurementError for no ops, for calls of several layers, and with the driver's reason for an op that cannot
    be captured; Skip for a layer that is not simulated.
    """
    if not captured:
        raise MeasurementError("a graph needs at least one node")
    if len({op.layer if isinstance(op, ops.LayerCall) else None for op in captured}) > 1:
        raise MeasurementError("one graph is captured by one layer's means")
    nodes = {op: _captured(op, costs) for op in dict.fromkeys(captured)}
    return [nodes[op] for op in captured]


def graph_of(chain: Sequence[Node]) -> Graph:
    """A chain instantiated. Its first node has no gap, because nothing precedes it."""
    total_ns = sum(node.gap_ns + node.duration_ns for node in chain) - chain[0].gap_ns
    return Graph(len(chain), total_ns, sum(node.launch_ns for node in chain))


def empty_chain(nodes: int, costs: FakeCosts) -> Graph:
    return graph_of([node_of("kernel_empty", costs)] * nodes)


def node_of(kind: str, costs: FakeCosts, op: ops.Op | None = None) -> Node:
    """A node of that kind after another one; ``op`` is what it does if the kind does not say so."""
    own, op = costs.graphs.node(kind), op or _op_of(kind, costs)
    runs_ns = own.duration_ns
    if isinstance(op, ops.Launch | ops.Copy | ops.Memset):
        runs_ns = call_of(op, costs).item.duration_ns
    return Node(costs.gap_graph_ns + own.gap_ns, runs_ns, own.launch_ns)


def call_of_kind(kind: str, costs: FakeCosts) -> Call | None:
    """The call into stream 0 that does what a node of that kind does; None for what only a graph can hold."""
    op, own = _op_of(kind, costs), costs.graphs.calls.get(kind)
    if op is None:
        return Call(own.submit_ns, Item(gap_ns=costs.gap_stream_ns, duration_ns=own.duration_ns)) if own else None
    call = call_of(op, costs)
    if not kind.startswith("pdl_trigger"):
        return call
    return call.with_item(gap_ns=call.item.gap_ns + costs.graphs.trigger_gap_ns)


def _op_of(kind: str, costs: FakeCosts) -> ops.Op | None:
    if kind == "kernel" or kind.endswith(PROLOGUE) or kind.startswith("pdl"):
        # A kernel that needs what its predecessor wrote. With an early trigger its prologue overlaps the predecessor.
        duration_ns = costs.graphs.dependent_kernel_ns
        if kind.endswith(PROLOGUE) and not kind.startswith("pdl_trigger"):
            duration_ns += costs.graphs.prologue_ns
        return ops.Launch(duration_ns=duration_ns, kind="pdl" if kind.startswith("pdl") else "launch")
    forms: dict[str, ops.Op] = {
        "kernel_empty": ops.Launch(),
        "memset": ops.Memset(ONE_WORD_BYTES),
        "copy_h2d": ops.Copy("h2d", ONE_WORD_BYTES),
        "copy_d2h": ops.Copy("d2h", ONE_WORD_BYTES),
        "event_record": ops.Record(),
        "event_wait": ops.Wait(other=0),
    }
    return forms.get(kind)


def _captured(op: ops.Op, costs: FakeCosts) -> Node:
    match op:
        case ops.Launch():
            return node_of("pdl" if op.kind == "pdl" else "kernel", costs, op)
        case ops.Copy():
            return node_of("copy_h2d" if op.direction == "h2d" else "copy_d2h", costs, op)
        case ops.Memset():
            return node_of("memset", costs, op)
        case ops.LayerCall():
            layer_costs(op.layer, costs)
            return _captured(ops.Launch(op.duration_ns or 0), costs)
        case ops.SynchronizeIdle() | ops.Query():
            called = "cuEventQuery" if isinstance(op, ops.Query) else f"cu{op.what.capitalize()}Synchronize"
            raise MeasurementError(
                f"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: {called} was called while the stream captures"
            )
        case _:
            raise MeasurementError(f"the simulated GPU captures kernels, copies and memsets, not {type(op).__name__}")


def record(machine: Machine, launch: ops.Launch, count: int, *, graph: bool, gated: bool) -> GpuRecording:
    """Raises MeasurementError for more kernels than fit behind a gate."""
    costs = machine.costs
    if graph:
        chain = chain_of([launch] * count, costs)
        call, calls = replay_of(graph_of(chain), costs, launch.stream), 1
        machine.clock.pass_ns(costs.graphs.capture.at(count) + costs.graphs.instantiate.at(count))
    else:
        call, calls = call_of(launch, costs), count
    slots = call.queue_slots(costs) or calls
    if gated and calls > slots:
        raise MeasurementError(f"{calls} kernels do not fit behind a gate ({slots} may)")
    gate = FakeGate(machine)
    if gated:
        gate.shut((launch.stream,))
    batches = machine.make(call, calls).batches
    if gated:
        gate.open()
    machine.synchronize(call.stream)
    if gate.was_late():
        raise MeasurementError("the gate timed out")
    starts_ns = np.concatenate([batch.starts_ns for batch in batches if batch.starts_ns is not None])
    durations_ns = np.full(count, costs.kernel_ns(launch.duration_ns, launch.grid_blocks, launch.block_threads))
    if graph:
        gaps_ns = np.array([0.0, *(node.gap_ns for node in chain[1:])])
        starts_ns = starts_ns[0] + np.cumsum(gaps_ns + durations_ns) - durations_ns
    stamps = machine.globaltimer_ns
    return GpuRecording(stamps(starts_ns), stamps(starts_ns + durations_ns), costs.globaltimer_step_ns)

"""What each op costs the simulated host and GPU: an op becomes a Call, a call's host time and its item in a stream."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from microbench.errors import MeasurementError, Skip
from microbench.gpu.fake.costs import FakeCosts, LayerCosts, Traffic
from microbench.gpu.fake.stream import Item
from microbench.ops import (
    LEGACY_STREAM,
    Copy,
    GraphLaunch,
    Launch,
    LayerCall,
    Memset,
    Op,
    Query,
    Record,
    SynchronizeIdle,
    Wait,
)


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

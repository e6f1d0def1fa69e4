"""What becomes a graph on the simulated GPU: captured ops and nodes of each kind, as a chain of gaps and durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from microbench.errors import MeasurementError
from microbench.gpu.fake.calls import Call, Graph, call_of, kernel_of
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.graph_costs import PROLOGUE
from microbench.gpu.fake.stream import Item
from microbench.gpu.graph_api import NodeKind
from microbench.ops import Copy, Launch, LayerCall, Memset, Op, Query, Record, SynchronizeIdle, Wait

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

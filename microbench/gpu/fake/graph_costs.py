"""Costs of graphs on the simulated machine: made up, round numbers of the order of a data-centre GPU."""

from __future__ import annotations

from typing import cast

import msgspec

from microbench.gpu.graph_api import NodeKind

PAGE_BYTES = 2 << 20
PROLOGUE = "_prologue"  # how kinds of kernels end that have work to do before they need the kernel in front


class Line(msgspec.Struct, frozen=True):
    """A cost with a constant and a slope: that much for each node."""

    constant: float
    node: float

    def at(self, nodes: int) -> float:
        """The cost for that many nodes."""
        return self.constant + nodes * self.node


class NodeCosts(msgspec.Struct, frozen=True):
    """What a node of one kind takes more than an empty kernel does, in ns.

    ``gap_ns`` is on top of the gap before a kernel node, ``launch_ns``, ``instantiate_ns`` and ``update_ns`` on top of
    what each kernel node adds to those calls (``launch_ns`` is large where the host submits the node itself at each
    replay); ``update_ns`` is None where the driver refuses. ``duration_ns`` is how long a node runs that is no launch,
    copy or memset: those run as long as in a stream.
    """

    gap_ns: float = 0.0
    duration_ns: float = 0.0
    launch_ns: float = 0.0
    instantiate_ns: float = 0.0
    update_ns: float | None = 0.0


class CallCosts(msgspec.Struct, frozen=True):
    """A call into a stream that ops.py has no op for, in ns: host time, and time on the GPU behind the usual gap."""

    submit_ns: float
    duration_ns: float


def _nodes() -> dict[NodeKind, NodeCosts]:
    return {
        "pdl": NodeCosts(gap_ns=-40, instantiate_ns=100),
        "pdl_trigger": NodeCosts(gap_ns=-250, instantiate_ns=100),
        "memset": NodeCosts(gap_ns=200, launch_ns=400, instantiate_ns=-300, update_ns=50),
        "copy_h2d": NodeCosts(gap_ns=400, launch_ns=500, instantiate_ns=500, update_ns=100),
        "copy_d2h": NodeCosts(gap_ns=350, launch_ns=500, instantiate_ns=500, update_ns=100),
        "copy_d2d": NodeCosts(gap_ns=100, duration_ns=900, launch_ns=500, instantiate_ns=400, update_ns=100),
        "host": NodeCosts(gap_ns=2000, duration_ns=6000, launch_ns=600, instantiate_ns=300, update_ns=30),
        "event_record": NodeCosts(gap_ns=100, duration_ns=300, launch_ns=350, instantiate_ns=-600, update_ns=20),
        "event_wait": NodeCosts(gap_ns=50, duration_ns=200, launch_ns=300, instantiate_ns=-600, update_ns=20),
        "child": NodeCosts(gap_ns=20, duration_ns=100, instantiate_ns=700, update_ns=300),
        "empty": NodeCosts(gap_ns=-300, instantiate_ns=-800, update_ns=-90),
        "if_taken": NodeCosts(gap_ns=1500, duration_ns=2500, instantiate_ns=4000, update_ns=None),
        "if_skipped": NodeCosts(gap_ns=1500, duration_ns=1000, instantiate_ns=4000, update_ns=None),
    }


def _calls() -> dict[NodeKind, CallCosts]:
    return {"copy_d2d": CallCosts(1500, 1100), "host": CallCosts(1900, 9000)}


class GraphCosts(msgspec.Struct, frozen=True):
    """One cost for each thing that can be done with a graph; times are ns. The launch call's are in FakeCosts."""

    # A life: what each call keeps the host, and what the GPU does meanwhile.
    capture: Line = Line(3000, 400)
    build: Line = Line(2000, 450)
    instantiate: Line = Line(5000, 1300)
    upload: Line = Line(3000, 750)  # a call of its own, or part of the first launch
    upload_on_gpu: Line = Line(1500, 120)  # before the graph may start
    destroy: Line = Line(3500, 450)  # the executable graph, and the graph that it came from
    destroy_captured: Line = Line(1200, 150)  # that graph alone
    device_memory: Line = Line(65536, 120)  # bytes
    host_memory: Line = Line(9000, 2500)  # bytes
    # Changes: slopes are those of a changed node, for the update of all nodes.
    set_params: Line = Line(3000, 200)
    set_grid: Line = Line(3200, 240)
    exec_update: Line = Line(2500, 190)
    changed_launch_ns: float = 40.0  # the next launch call, for each changed node
    # Kinds of nodes but kernels, and calls that only this suite makes into a stream.
    nodes: dict[NodeKind, NodeCosts] = msgspec.field(default_factory=_nodes)
    calls: dict[NodeKind, CallCosts] = msgspec.field(default_factory=_calls)
    dependent_kernel_ns: int = 400  # a kernel that adds 1 to what the one before it wrote
    prologue_ns: int = 1000  # what such a kernel may do before it needs the one before it
    trigger_gap_ns: float = -250.0  # what an early trigger adds to the gap of a pdl launch in a stream
    # Iterations.
    look_ns: float = 40.0  # the host looks at mapped memory
    while_iteration_ns: float = 4500.0
    tail_iteration_ns: float = 4800.0
    # Allocation: calls and their GPU time in a stream, nodes, and the pages behind a block of memory.
    allocate_ns: float = 700.0
    free_ns: float = 500.0
    allocate_on_gpu_ns: float = 150.0
    free_on_gpu_ns: float = 100.0
    allocate_node_ns: float = 800.0
    free_node_ns: float = 600.0
    map_page_ns: float = 6000.0  # the host maps a page of PAGE_BYTES into a pool
    release_page_ns: float = 3000.0  # and gives it back

    def node(self, kind: NodeKind) -> NodeCosts:
        """What nodes of that kind take more than kernels do; kernels take no more, and a prologue changes only how
        long a node runs."""
        return self.nodes.get(cast(NodeKind, kind.removesuffix(PROLOGUE)), NodeCosts())

"""What do graph nodes of each kind cost, and loops that the GPU controls itself?

Question
    How much GPU time does a node of each kind take in a graph, and the same call in a stream? What does programmatic
    dependent launch save? What does an iteration cost if the device decides whether to go on, and if the host does?
Method
    Each graph is a chain of nodes of one kind. node: replays of a long and of a short chain behind a gate, between
    events; the difference excludes the launch itself. stream: the same calls behind a gate. Copies and memsets have 4
    bytes. Each kernel adds 1 to what its predecessor wrote, so the last value shows that each waited for its
    predecessor. The effects of other kinds are checked word by word; a separate chain with snapshots between the nodes
    checks their order. pdl: programmatic dependent launch; pdl_trigger: with a trigger at the start of the preceding
    kernel; _prologue: with 1 us of work before the wait for that kernel. host: from one host function to the next, in
    one thread of the driver. Event waits wait for a completed event. if_taken and if_skipped are IF nodes around one
    kernel. iteration: a kernel is repeated until its counter is full. host_sync launches, synchronises and reads the
    counter; host_poll polls the counter in mapped memory; while is a WHILE node; tail_launch is a graph that launches
    itself from the device. At the end every graph is updated to other values and checked again.
Reading
    A graph saves the difference between stream and node. A loop that the device controls pays off if its iteration is
    shorter than the host's round trip.
"""

from typing import cast, get_args

import msgspec

from microbench.experiments.graph.nodes import Decider, NodeChain, NodeKind, decided_loop, node_chain
from microbench.meter.alternating import device_difference
from microbench.meter.benchmark import Axis, Benchmark, Fact, Gpu, Meter, Metric, Results, Skip

LONG, SHORT = 220, 20
STREAM_CALLS = 200
MANY, FEW = 550, 50
DECIDERS: tuple[str, ...] = get_args(Decider)
KINDS: tuple[str, ...] = (*get_args(NodeKind), *DECIDERS)
QUICK = ("kernel_empty", "kernel", "pdl_trigger", "memset", "copy_h2d", "host_sync", "while")


def iterations(gpu: Gpu, meter: Meter, decider: Decider) -> Results:
    """The time of many iterations less that of a few, which excludes the begin and end of the loop."""
    loop = decided_loop(gpu, decider)
    loop(FEW)
    checked = "the counter ended as full as it should"
    yield meter.host_ns("iteration", lambda: loop(MANY) - loop(FEW), calls=MANY - FEW, verified=checked)


def updates(meter: Meter, chain: NodeChain) -> Results:
    """Times the update of the whole graph and checks the new values; a Fact says why the driver refuses it."""
    try:
        chain.update_ns()
        chain.check()
    except Skip as refused:
        yield Fact("update", None, source="cuGraphExecUpdate", reason=str(refused))
        return
    yield meter.host_ns("update", chain.update_ns, calls=LONG, verified=chain.check())


def measure(gpu: Gpu, meter: Meter, kind: str) -> Results:
    if kind in DECIDERS:
        yield from iterations(gpu, meter, cast(Decider, kind))
        return
    long, short = (node_chain(gpu, cast(NodeKind, kind), count) for count in (LONG, SHORT))
    for chain in (long, short):
        chain.check()
    node = device_difference(meter, "node", long.graph, short.graph, parts=LONG - SHORT)
    yield msgspec.structs.replace(node, verified=long.check())
    if long.stream is not None:
        yield meter.device_time("stream", long.stream, STREAM_CALLS)
    yield meter.submit_time("launch", long.graph, per_call=False)
    yield meter.host_ns("instantiate", long.instantiate_ns, calls=LONG)
    yield from updates(meter, long)


BENCHMARK = Benchmark(
    title="What each kind of node costs",
    metrics=(
        Metric("node", "time", "s/launch", "GPU time of one node after another of its kind"),
        Metric("stream", "time", "s/launch", "GPU time of the same call in a stream, queued behind a gate"),
        Metric("iteration", "time", "s", "one iteration, including the decision whether it was the last"),
        Metric("launch", "time", "s", f"launch call of a graph of {LONG} such nodes"),
        Metric("instantiate", "time", "s/launch", f"instantiate, for each of {LONG} nodes"),
        Metric("update", "time", "s/launch", f"update of the whole executable graph, for each of {LONG} nodes"),
    ),
    axes={"kind": Axis("kind of node, or what decides on an iteration", QUICK, KINDS, KINDS)},
)

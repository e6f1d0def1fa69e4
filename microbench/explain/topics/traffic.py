"""Topic traffic: the bytes that launches move over the link, and why they cost latency instead of bandwidth."""

from operator import mul, truediv

import numpy as np

from microbench.analysis.evidence import Evidence, rests_on
from microbench.core.model import link_rate
from microbench.core.units import percent, rate_of
from microbench.explain.launch_rules import BANDWIDTH_SHARE, PLAUSIBLE_WIRE_BYTES
from microbench.explain.topics.topic import Topic, TopicFigures, count, in_unit

TRAFFIC, COST = "launch_traffic", "launch_cost"
# The kernels of the graph in the text, the preferred number first.
GRAPHS = (100, 1000, 10, 1)


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """Bytes a launch, a byte of arguments and a replay; what that is of the link."""
    for slot, metric, way in (("received", "received", "to the GPU"), ("sent", "sent", "back")):
        what = f"a launch moves {way}"
        known.measured(slot, what, TRAFFIC, metric, work="launch", duration_ns=0, argument_bytes=0)
    sizes = evidence.curve(TRAFFIC, "received", "argument_bytes", work="launch", duration_ns=0)
    xs, ys = [size_bytes for size_bytes, _ in sizes], [row.value for _, row in sizes]
    slope = float(np.polyfit(xs, ys, 1)[0]) if len(sizes) > 1 else None
    known.fitted(
        "per_byte", "a byte of arguments adds", "slope over argument_bytes", in_unit("B/launch"),
        slope, rests_on(*(row for _, row in sizes)), TRAFFIC,
    )  # fmt: skip
    known.measured("throughput", "time per launch of many", COST, "throughput")
    known.computed(
        "pace", "the most that this host launches", "1 / throughput", _pace, lambda time: 1 / time, "throughput"
    )
    known.computed(
        "rate", "bytes they move to the GPU", "received / throughput", in_unit("B/s"), truediv, "received", "throughput"
    )
    gpu = evidence.gpu
    link = link_rate(gpu.link) if gpu is not None and not (gpu.integrated or gpu.link.coherent) else None
    known.reported("link", "the link, headers included", link, in_unit("B/s"), "GPU link")
    known.computed("share", "that as a share of the link", "rate / link", percent, truediv, "rate", "link")
    measured = ((nodes, evidence.row(TRAFFIC, "received", work=f"graph_{nodes}")) for nodes in GRAPHS)
    nodes, row = next(((nodes, row) for nodes, row in measured if row is not None), (None, None))
    known.row("replay", f"a replay of {nodes} kernels", row, TRAFFIC)
    known.parameter("nodes", "kernels of the graph", nodes, count, TRAFFIC, "work")
    known.computed("one_by_one", "launched one by one", "received × kernels", in_unit("B"), mul, "received", "nodes")
    known.measured("checked", "counted for each byte of a copy", TRAFFIC, "received_per_byte", work="pinned_h2d")


def _pace(launches_per_s: float) -> str:
    return rate_of(launches_per_s, "launches")


TOPIC = Topic(
    name="traffic",
    title="What launches move over the link",
    about="the bytes a launch moves over the link: latency, or bandwidth?",
    suites=("launch",),
    collect=figures,
    needs=("received",),
    related=("launch", "topology", "pinned"),
    text="""
    [latency] A launch moves {received} to the GPU: latency, not bandwidth
    A launch moves {received} to the GPU and {sent} back
    The GPU itself fetches each launch over the link

    A launch call stores into host memory; the GPU itself fetches commands and arguments over the link.
    Each launch moves {received} to the GPU and {sent} back, packet headers included.
    [arguments_add] Every byte of arguments adds {per_byte}.

    At {pace}, the most that this host makes, that is {rate}: {share} of the link's {link}.
    [latency] So a launch pays for the latency of these exchanges and not for their bytes: a wider link does not make
      launches faster.
    [bandwidth] So launches and copies compete for the link, and smaller arguments pay.

    A graph is in the GPU's memory once it has been uploaded.
    [graph_moves_less] A replay of {nodes} kernels moves {replay}; launched one by one they move {one_by_one}.

    Pass large data that seldom changes by pointer, and join tiny copies. Where launches are slow, look at the call, not
      at the link.
    [trusted] The counters can be trusted: they show {checked} bytes for each byte of a copy, and headers explain the
      rest.
    """,
    when={
        "latency": lambda value: value("share") <= BANDWIDTH_SHARE,
        "arguments_add": lambda value: value("per_byte") > 0,
        "bandwidth": lambda value: value("share") > BANDWIDTH_SHARE,
        "graph_moves_less": lambda value: value("one_by_one") > value("replay"),
        "trusted": lambda value: PLAUSIBLE_WIRE_BYTES[0] < value("checked") <= PLAUSIBLE_WIRE_BYTES[1],
    },
)

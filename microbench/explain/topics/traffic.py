"""Topic traffic: the bytes that launches move over the link, and why they cost latency and not bandwidth."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence
from microbench.core.model import link_rate
from microbench.core.units import percent, rate_of
from microbench.explain.launch_facts import BANDWIDTH_SHARE, PLAUSIBLE_WIRE_BYTES, slope
from microbench.explain.topics.topic import Gathering, Passage, Topic, both, count, in_unit, over, product, ratio, up_to

TRAFFIC, COST = "launch_traffic", "launch_cost"
# The graph that stands for a step; where it was not measured, another one.
GRAPHS = (100, 1000, 10, 1)


def figures(evidence: Evidence) -> Gathering:
    """Bytes a launch, a byte of arguments and a replay; what that is of the link."""
    found = Gathering(evidence)
    for slot, metric, way in (("received", "received", "to the GPU"), ("sent", "sent", "back")):
        what = f"a launch moves {way}"
        found.measured(slot, what, TRAFFIC, metric, work="launch", duration_ns=0, argument_bytes=0)
    sizes = evidence.curve(TRAFFIC, "received", "argument_bytes", work="launch", duration_ns=0)
    found.fitted(
        "per_byte", "a byte of arguments adds", "slope over argument_bytes", in_unit("B/launch"),
        slope([(size_bytes, row.value) for size_bytes, row in sizes]), [row for _, row in sizes], TRAFFIC,
    )  # fmt: skip
    found.measured("throughput", "time per launch of many", COST, "throughput")
    found.computed("pace", "the most that this host launches", "1 / throughput", _pace, _inverse, "throughput")
    found.computed(
        "rate", "these move to the GPU", "received / throughput", in_unit("B/s"), ratio, "received", "throughput"
    )
    gpu = evidence.gpu
    link = link_rate(gpu.link) if gpu is not None and not (gpu.integrated or gpu.link.coherent) else None
    found.reported("link", "the link, headers included", link, in_unit("B/s"), "GPU link")
    found.computed("share", "that as a share of the link", "rate / link", percent, ratio, "rate", "link")
    _graph(found)
    found.measured("checked", "counted for each byte of a copy", TRAFFIC, "received_per_byte", work="pinned_h2d")
    return found


def _graph(found: Gathering) -> None:
    """A replay against the same kernels launched one by one."""
    measured = ((nodes, found.evidence.row(TRAFFIC, "received", work=f"graph_{nodes}")) for nodes in GRAPHS)
    nodes, row = next(((nodes, row) for nodes, row in measured if row is not None), (None, None))
    found.row("replay", f"a replay of {nodes} kernels", row, TRAFFIC)
    found.parameter("nodes", "kernels of the graph", nodes, count, TRAFFIC, "work")
    found.computed("one_by_one", "as many launches", "received × kernels", in_unit("B"), product, "received", "nodes")


def _inverse(seconds: float) -> float | None:
    return 1 / seconds if seconds else None


def _pace(launches_per_s: float) -> str:
    return rate_of(launches_per_s, "launches")


TOPIC = Topic(
    name="traffic",
    title="What launches move over the link",
    about="the bytes a launch moves over the link: latency, or bandwidth?",
    suites=("launch",),
    figures=figures,
    needs=("received",),
    headline=(
        Passage("A launch moves {received} to the GPU: latency, not bandwidth", when=up_to("share", BANDWIDTH_SHARE)),
        Passage("A launch moves {received} to the GPU and {sent} back"),
        Passage("A launch is fetched over the link by the GPU itself"),
    ),
    paragraphs=(
        (
            Passage(
                "A launch call stores into host memory; the GPU fetches commands and arguments across the link itself."
            ),
            Passage("Each launch moves {received} to the GPU and {sent} back, packet headers included."),
            Passage("Every byte of arguments adds {per_byte}.", when=over("per_byte", 0.0)),
        ),
        (
            Passage("At {pace}, the most that this host makes, that is {rate}: {share} of the link's {link}."),
            Passage(
                "So a launch pays for exchanges across the link and not for their bytes: a wider link does not make "
                "launches faster.",
                when=up_to("share", BANDWIDTH_SHARE),
            ),
            Passage(
                "That is no trifle: launches and copies share the link, and arguments are worth making smaller.",
                when=over("share", BANDWIDTH_SHARE),
            ),
        ),
        (
            Passage("A graph lies in the GPU's memory once it has been uploaded."),
            Passage(
                "A replay of {nodes} kernels moves {replay}, launched one by one they move {one_by_one}.",
                when=over("one_by_one", "replay"),
            ),
        ),
        (
            Passage(
                "Pass pointers to what is large and seldom changes, and join tiny copies. Where launches are slow look "
                "at the call, not at the link."
            ),
            Passage(
                "The counters can be trusted: a copy shows {checked} bytes for each of its own, and headers explain "
                "the rest.",
                when=both(over("checked", PLAUSIBLE_WIRE_BYTES[0]), up_to("checked", PLAUSIBLE_WIRE_BYTES[1])),
            ),
        ),
    ),
    related=("launch", "topology", "pinned"),
)

"""Topic topology: what lies between processor and GPU, what that link carries, and who else is on it."""

from __future__ import annotations

from microbench.analysis.evidence import Evidence
from microbench.core.units import percent, times
from microbench.explain.link_facts import DEVICE, LinkFacts, copies, gpu_speed, link_facts, shares_memory
from microbench.explain.link_gpus import EVERYBODY, KEEPS, WAYS, beside, own_node, pairs
from microbench.explain.link_memory import host_reads
from microbench.explain.topics.topic import (
    Gathering,
    Passage,
    Topic,
    both,
    count,
    counted,
    in_unit,
    over,
    ratio,
    up_to,
    without,
    word,
)

STATE, COPY, LATENCY, TOGETHER, PEER = "link_state", "link_copy", "link_latency", "link_concurrent", "link_peer"
NOW, MOST = ("generation_now", "lanes_now"), ("generation_gpu_max", "lanes_gpu_max")


def figures(evidence: Evidence) -> Gathering:
    """The link as it runs and as it could, copies against its ceiling, a read across it, and the other GPUs."""
    found = Gathering(evidence)
    facts = link_facts(evidence)
    if shares_memory(evidence, facts) is None:
        _link(found, facts)
    switches = counted("switch", "switches")
    found.reported("switches", "switches on the way", facts.number("switches"), switches, "switches")
    found.reported("node", "the GPU's NUMA node", own_node(evidence), count, "numa_node")
    hidden = 1.0 if facts.flag("virtual_bus") else None
    found.reported("hidden", "a virtual machine hides the way", hidden, word("hidden"), "virtual_bus")
    reads = host_reads(evidence)
    found.row("read", "the GPU reads a word of the host's", reads[0][1] if reads else None, LATENCY)
    _crowd(found)
    _peers(found, facts)
    return found


def _link(found: Gathering, facts: LinkFacts) -> None:
    """What the link runs at, and what copies reach of its ceiling."""
    evidence = found.evidence
    now, most = facts.now if not facts.idle else None, gpu_speed(evidence, facts)
    for slot, what, speed, names in (
        ("now", "the link under load", now, NOW),
        ("most", "the GPU could do", most, MOST),
    ):
        words = word(f"PCIe {speed.words}") if speed is not None else word("")
        found.reported(slot, what, speed.raw_rate if speed else None, words, *names, benchmark=STATE)
    points = copies(evidence, DEVICE, "h2d", "pinned")
    row = points[-1][1] if points else None
    limit = evidence.ceiling(row) if row is not None else None
    found.row("rate", "pinned copies to the GPU", row, COPY)
    ceiling = limit.value if limit is not None else None
    found.reported("ceiling", "the link carries of payload", ceiling, in_unit("B/s"), "GPU link", benchmark=COPY)
    found.computed("share", "copies reach of that", "bandwidth / ceiling", percent, ratio, "rate", "ceiling")


def _crowd(found: Gathering) -> None:
    """What copies keep while other GPUs copy as well; nothing to run with one GPU."""
    gpu = found.evidence.gpu
    wanted = (gpu.index if gpu is not None else 0, EVERYBODY, "h2d")
    one = next((one for one in beside(found.evidence) if (one.gpu_index, one.beside, one.direction) == wanted), None)
    if one is not None or len(found.evidence.environment.gpus) > 1:
        found.row("alone", "copies to the GPU, alone", one.alone if one is not None else None, TOGETHER)
        found.row("together", "while all others copy", one.together if one is not None else None, TOGETHER)
    found.computed("kept", "kept beside other GPUs", "together / alone", percent, ratio, "together", "alone")


def _peers(found: Gathering, facts: LinkFacts) -> None:
    """What two GPUs give each other, with peer access and without."""
    evidence = found.evidence
    way = next((one for one in WAYS if pairs(evidence, one)), "")
    on, off = pairs(evidence, way), pairs(evidence, way, "off")
    pair = next(iter(on), None)
    if pair is not None or len(evidence.environment.gpus) > 1:
        found.row("peer", "GPU to GPU, one direction", on[pair] if pair is not None else None, PEER)
        found.row("staged", "without peer access", off.get(pair) if pair is not None else None, PEER)
    found.computed("gain", "peer access brings", "on / off", times, ratio, "peer", "staged")
    links = facts.number("nvlinks") or None
    found.reported("nvlinks", "NVLinks of the GPU", links, counted("NVLink", "NVLinks"), "nvlinks")


TOPIC = Topic(
    name="topology",
    title="The way to the GPU",
    about="what lies between processor and GPU, and who else is on it",
    suites=("link",),
    figures=figures,
    needs=("now",),
    headline=(
        Passage("The link runs at {now}: copies reach {share} of its ceiling"),
        Passage("The link runs at {now}; beside other GPUs copies keep {kept}"),
        Passage("The link runs at {now}"),
        Passage("The slowest stretch of the way sets the rate"),
    ),
    paragraphs=(
        (
            Passage(
                "Between processor and GPU lie a root port, perhaps switches, and links: the slowest stretch sets the "
                "rate, every station adds to the latency."
            ),
            Passage("Under load this GPU's link runs at {now}, all that the GPU can do.", when=up_to("most", "now")),
            Passage(
                "Under load this GPU's link runs at {now} where the GPU could do {most}: look for a narrower slot, a "
                "riser, or a link that trained down.",
                when=over("most", "now"),
            ),
            Passage("Pinned copies reach {rate}, {share} of the {ceiling} that it carries besides packet headers."),
        ),
        (
            Passage("A thread of the GPU waits {read} for a word of host memory: that is the way there and back."),
            Passage("A virtual machine hides what lies above the GPU.", when=over("hidden", 0.0)),
            Passage("On the way up lie {switches}.", when=both(without("hidden"), over("switches", 1.0))),
            Passage(
                "On the way up lies {switches}.",
                when=both(without("hidden"), over("switches", 0.0), up_to("switches", 1.0)),
            ),
            Passage("The GPU is attached to NUMA node {node}.", when=over("node", -1.0)),
        ),
        (
            Passage(
                "While the other GPUs copy as well, copies keep {together} of {alone}: no uplink is shared.",
                when=over("kept", KEEPS),
            ),
            Passage(
                "While the other GPUs copy as well, copies keep {together} of {alone}: an uplink is shared, so large "
                "copies should take turns.",
                when=up_to("kept", KEEPS),
            ),
            Passage(
                "One GPU copies {peer} to another over {nvlinks}, in one direction: {gain} what it does by way of host "
                "memory, without peer access ({staged}).",
                when=over("gain", 1.0),
            ),
            Passage(
                "One GPU copies {peer} to another, in one direction: {gain} what it does by way of host memory, "
                "without peer access ({staged}).",
                when=both(without("nvlinks"), over("gain", 1.0)),
            ),
        ),
        (
            Passage(
                "Keep the submitting thread and its buffers on the GPU's own NUMA node, let GPUs send to each other "
                "directly, and judge a link under load only: an idle one slows down to save power."
            ),
        ),
    ),
    related=("pinned", "traffic"),
)

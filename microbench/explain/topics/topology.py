"""Topic topology: what is between processor and GPU, what that link carries, and who else uses it."""

from operator import truediv

from microbench.analysis.evidence import Evidence
from microbench.core.units import percent, times
from microbench.explain import link_facts as links
from microbench.explain.topics.topic import Topic, TopicFigures, count, counted, in_unit, word

STATE, COPY, LATENCY, TOGETHER, PEER = "link_state", "link_copy", "link_latency", "link_concurrent", "link_peer"
NOW, MOST = ("generation_now", "lanes_now"), ("generation_gpu_max", "lanes_gpu_max")


def figures(known: TopicFigures, evidence: Evidence) -> None:
    """The speed of the link and its most, copies against its ceiling, a read across it, and the other GPUs."""
    facts = links.link_facts(evidence)
    if links.shares_memory(evidence, facts) is None:
        now, most = facts.now if not facts.idle else None, links.gpu_speed(evidence, facts)
        for slot, what, speed, names in (
            ("now", "the link under load", now, NOW),
            ("most", "the GPU supports", most, MOST),
        ):
            words = word(f"PCIe {speed.words}") if speed is not None else word("")
            known.reported(slot, what, speed.raw_rate if speed else None, words, *names, benchmark=STATE)
        points = links.copies(evidence, links.DEVICE, "h2d", "pinned")
        row = points[-1][1] if points else None
        limit = evidence.ceiling(row) if row is not None else None
        known.row("rate", "pinned copies to the GPU", row, COPY)
        ceiling = limit.value if limit is not None else None
        known.reported("ceiling", "the link carries of payload", ceiling, in_unit("B/s"), "GPU link", benchmark=COPY)
        known.computed("share", "copies reach of that", "bandwidth / ceiling", percent, truediv, "rate", "ceiling")
    switches = counted("switch", "switches")
    known.reported("switches", "switches on the path", facts.number("switches"), switches, "switches")
    known.reported("node", "the GPU's NUMA node", links.own_node(evidence), count, "numa_node")
    hidden = 1.0 if facts.flag("virtual_bus") else None
    known.reported("hidden", "a virtual machine hides the path", hidden, word("hidden"), "virtual_bus")
    reads = links.host_reads(evidence)
    known.row("read", "the GPU reads a word of host memory", reads[0][1] if reads else None, LATENCY)
    gpu_index, several = evidence.gpu.index if evidence.gpu is not None else 0, len(evidence.environment.gpus) > 1
    chosen: dict[str, int | str] = {"gpu_index": gpu_index, "beside": links.EVERYBODY, "direction": "h2d"}
    alone, together = (evidence.row(TOGETHER, metric, **chosen) for metric in ("alone", "together"))
    if several or (alone is not None and together is not None):
        known.row("alone", "copies to the GPU, alone", alone if together is not None else None, TOGETHER)
        known.row("together", "while all others copy", together if alone is not None else None, TOGETHER)
    known.computed("left", "left while others copy", "together / alone", percent, truediv, "together", "alone")
    way = links.usual_way(evidence) or ""
    on, off = links.pairs(evidence, way), links.pairs(evidence, way, "off")
    pair = next(iter(on), None)
    if pair is not None or several:
        known.row("peer", "GPU to GPU, one direction", on[pair] if pair is not None else None, PEER)
        known.row("staged", "without peer access", off.get(pair) if pair is not None else None, PEER)
    known.computed("gain", "peer access brings", "on / off", times, truediv, "peer", "staged")
    nvlinks = facts.number("nvlinks") or None
    known.reported("nvlinks", "NVLinks of the GPU", nvlinks, counted("NVLink", "NVLinks"), "nvlinks")


TOPIC = Topic(
    name="topology",
    title="The path to the GPU",
    about="what lies between processor and GPU, and who else is on it",
    suites=("link",),
    collect=figures,
    needs=("now",),
    related=("pinned", "traffic"),
    text="""
    The link runs at {now}: copies reach {share} of its ceiling
    The link runs at {now}; copies keep {left} under contention
    The link runs at {now}
    The slowest link on the path limits the rate

    Between processor and GPU are a root port, perhaps switches, and links: the slowest link limits the rate, and every
      station adds latency.
    [full_speed] Under load this GPU's link runs at {now}, the most that the GPU supports.
    [slowed] Under load this GPU's link runs at {now}, but the GPU supports {most}: look for a narrower slot, a riser,
      or a link that trained down.
    Pinned copies reach {rate}, {share} of the {ceiling} that it carries besides packet headers.

    A thread of the GPU waits {read} for a word of host memory: that is one round trip.
    [hidden] A virtual machine hides what is above the GPU.
    [switched] The path has {switches}.
    [near_a_node] The GPU is attached to NUMA node {node}.

    [alone] While the other GPUs copy as well, copies reach {together} of {alone}: no uplink is shared.
    [shared] While the other GPUs copy as well, copies reach {together} of {alone}: an uplink is shared, so large copies
      should take turns.
    [direct] One GPU copies {peer} to another over {nvlinks}, in one direction: {gain} the rate through host memory,
      without peer access ({staged}).
    [direct_by_pcie] One GPU copies {peer} to another, in one direction: {gain} the rate through host memory, without
      peer access ({staged}).

    Keep the submitting thread and its buffers on the GPU's own NUMA node, let GPUs send to each other directly, and
      judge a link only under load: an idle link slows down to save power.
    """,
    when={
        "full_speed": lambda value: value("most") <= value("now"),
        "slowed": lambda value: value("most") > value("now"),
        "hidden": lambda value: value("hidden") > 0,
        "switched": lambda value: value("switches") > 0 and not value("hidden") > 0,
        "near_a_node": lambda value: value("node") >= 0,
        "alone": lambda value: value("left") >= links.SHARED_BELOW,
        "shared": lambda value: value("left") < links.SHARED_BELOW,
        "direct": lambda value: value("gain") > 1,
        "direct_by_pcie": lambda value: value("gain") > 1 and not value("nvlinks") > 0,
    },
)

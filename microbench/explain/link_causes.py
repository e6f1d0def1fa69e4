"""What a run saw that may slow copies down: the causes that the verdict on a GPU's link names."""

from collections.abc import Iterator

from microbench.analysis.evidence import Evidence, rests_on
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, pcie_rate
from microbench.core.units import about_size, percent, quantity, size
from microbench.explain import link_facts as links
from microbench.explain.verdicts import Cause

# Where sizes are too few for a fit: 5 us of fixed cost take a tenth of such a copy at 93 GB/s, less on a slower link.
FILLING_BYTES = 4 << 20
FASTER_NODE = 1.05
SMALL = "small copies"
READ_IDLE = "The link was read after copies had ended, so it may only have been saving power."


def causes(evidence: Evidence) -> list[Cause]:
    """Everything in this run that may slow copies down."""
    return [cause for cause in _seen(evidence, links.link_facts(evidence)) if cause is not None]


def _seen(evidence: Evidence, facts: links.LinkFacts) -> Iterator[Cause | None]:
    yield _slow_link(evidence, facts)
    yield _slow_upstream(evidence, facts)
    slot, gpu, bus_id = facts.slot, links.gpu_speed(evidence, facts), facts.text("slot_limit_bus_id")
    if slot is not None and gpu is not None and slot.raw_rate < gpu.raw_rate and not _disproved(evidence, slot):
        short = f"{f'bridge {bus_id}' if bus_id else 'a bridge on the path'} is narrower, PCIe {slot.words}"
        text = f"The GPU supports PCIe {gpu.words}{_used(evidence, slot)}."
        advice = "Try another slot of this machine: it may be wider."
        yield Cause(short, text, advice, ("generation_slot_max", "lanes_slot_max"), "narrow slot", True)
    if names := tuple(f"{name}{links.RISEN}" for name in facts.damaging() if name.startswith("pcie_")):
        text, advice = "Damaged packets are sent again.", "Check riser, cable and seat of the board."
        yield Cause("its error counters rise", text, advice, names, "errors", True)
    for direction, way in links.DIRECTIONS.items():  # buffers on another NUMA node than the copies used are faster
        peak, rates = links.fastest(evidence, direction), links.nodes(evidence, direction)
        node, row = max(rates.items(), key=lambda item: item[1].value, default=(0, None))
        if peak is not None and row is not None and len(rates) > 1 and row.value >= FASTER_NODE * peak[1].value:
            text = f"From NUMA node {node} copies {way} reach {quantity(row.value, 'B/s')}."
            advice, names = f"Run with `numactl --cpunodebind={node} --membind={node}`.", rests_on(peak[1], row)
            yield Cause("the buffers lie on a far NUMA node", text, advice, names, "far node")
            break
    for direction in links.DIRECTIONS:
        peak, fit = links.fastest(evidence, direction), links.copy_fit(evidence, links.DEVICE, direction, "pinned")
        needed_bytes = fit.size_for(links.MOST) if fit is not None else FILLING_BYTES
        if peak is not None and peak[0] < needed_bytes:
            text = f"The largest copy was {size(peak[0])}."
            advice = f"Measure copies from {about_size(needed_bytes)} on as well."
            yield Cause("the copies are small", text, advice, rests_on(peak[1]), SMALL)
            break
    if evidence.gpu is not None and evidence.gpu.other_processes:
        text, advice, names = "They may copy as well.", "End them and measure again.", ("gpu other_processes",)
        yield Cause("other processes use this GPU", text, advice, names, "other processes")
    own = evidence.gpu.index if evidence.gpu is not None else 0
    mine = [contention for contention in links.shared_uplinks(evidence) if contention.gpu_index == own]
    if (worst := min(mine, key=lambda contention: contention.share, default=None)) is not None:
        text = f"This GPU keeps {percent(worst.share)} of its rate with {worst.others_words} copying."
        advice, names = "Measure again while no other GPU copies.", rests_on(worst.alone, worst.together)
        yield Cause("the uplink is shared", text, advice, names, "shared uplink")
    if facts.text("iommu") == "translated":
        text = "Misses in its caches slow large or scattered buffers."
        advice = "Boot with `iommu=pt` where no virtual machine needs the IOMMU, or use huge pages."
        yield Cause("the IOMMU translates addresses", text, advice, ("iommu",), "translated")
    if facts.flag("virtual_bus"):
        text = "Slots, bridges and other users of the uplink are visible only on its host."
        short, advice = "a virtual machine hides the path", "Look for the cause on the host."
        yield Cause(short, text, advice, ("virtual_bus",), "hidden")


def _slow_link(evidence: Evidence, facts: links.LinkFacts) -> Cause | None:
    """The GPU's link runs below what GPU and slot support."""
    now, gpu, slot = facts.now, links.gpu_speed(evidence, facts), facts.slot
    if now is None or gpu is None or _disproved(evidence, now):
        return None
    possible = links.Speed(min(gpu.generation, slot.generation), min(gpu.lanes, slot.lanes)) if slot else gpu
    if now.generation >= possible.generation and now.lanes >= possible.lanes:
        return None
    short = f"the link runs at PCIe {now.words} of {possible.words}"
    advice = "Check riser and cable, and the link speed setting of the firmware."
    if now.lanes < possible.lanes:
        short = f"{now.lanes} of {possible.lanes} lanes in use"
        advice = "Reseat the board, check riser and cable, and look at bifurcation in the firmware."
    able = "GPU and slot support" if slot is not None else "The slot's limit is hidden, but the GPU supports"
    text = READ_IDLE if facts.idle else f"{able} PCIe {possible.words}{_used(evidence, now)}."
    return Cause(short, text, advice, ("generation_now", "lanes_now"), "slow link", not facts.idle)


def _disproved(evidence: Evidence, speed: links.Speed) -> bool:
    """Whether copies were faster than a link of this speed allows: then its speed was misread."""
    peaks = (links.fastest(evidence, direction) for direction in links.DIRECTIONS)
    return any(peak is not None and peak[1].interval.low > speed.raw_rate for peak in peaks)


def _used(evidence: Evidence, speed: links.Speed) -> str:
    """The share of this speed's payload rate that the slower direction reaches; "" where unknown or above 1."""
    link = evidence.gpu.link if evidence.gpu is not None else None
    payload_bytes = (link.max_payload_bytes if link is not None else None) or ASSUMED_PAYLOAD_BYTES
    shares = [
        peak[1].value / rate
        for direction in links.DIRECTIONS
        if (peak := links.fastest(evidence, direction)) is not None
        and (rate := pcie_rate(speed.generation, speed.lanes, direction, payload_bytes))
    ]
    return f"; copies fill {percent(min(shares))} of the link as it runs" if shares and max(shares) <= 1 else ""


def _slow_upstream(evidence: Evidence, facts: links.LinkFacts) -> Cause | None:
    """A link between bridges runs below what both ends support, and below what the GPU could use."""
    gpu = links.gpu_speed(evidence, facts)
    if gpu is None or facts.flag("virtual_bus"):
        return None
    for index, joint in enumerate(links.joints(facts, links.bridges(facts))[:-1]):
        now, most = joint.now, joint.most
        if now is None or most is None or not joint.slowed or now.raw_rate >= gpu.raw_rate or _disproved(evidence, now):
            continue
        hop = facts.hops().index(joint.below)
        place = f"above bridge {joint.below.bus_id}" if index else f"below root port {joint.above.bus_id}"
        short = f"the link {place} runs at PCIe {now.words} of {most.words}"
        text = READ_IDLE if facts.idle else "Both ends of that link support more."
        advice = "Check riser, cable and backplane, and the link speed setting of the firmware."
        names = (f"hop{hop}_generation_now", f"hop{hop}_lanes_now")
        return Cause(short, text, advice, names, "slow upstream", not facts.idle)
    return None

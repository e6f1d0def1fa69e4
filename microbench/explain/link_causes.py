"""Why a link may be slower than it should be: each cause looked for in facts and rows, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.link_copies import DIRECTIONS, copy_fit, fastest
from microbench.explain.link_facts import LinkFacts, Speed, gpu_speed, link_facts
from microbench.explain.link_hops import bridges, joints
from microbench.explain.link_places import nodes, sharing
from microbench.units import about_size, percent, quantity, round_percent, size

NEAR_ENOUGH = 0.9
# Where sizes are too few for a fit: 5 us of fixed cost take a tenth of such a copy at 93 GB/s, less on a slower link.
FILLING_BYTES = 4 << 20
SMALL = "the copies are small"
FASTER_NODE = 1.05


class Cause(NamedTuple):
    """What may hold a link back: for the title, and in a sentence or two with what to do.

    ``certain`` is what facts say without any measurement: the link is less than it could be.
    """

    short: str
    words: str
    certain: bool = False
    rests_on: tuple[str, ...] = ()


def causes(evidence: Evidence) -> list[Cause]:
    """Everything that this run saw and that slows copies down."""
    facts = link_facts(evidence)
    found = (look(evidence, facts) for look in LOOKED_FOR)
    return [cause for cause in found if cause is not None]


def _disproved(evidence: Evidence, speed: Speed) -> bool:
    """Whether copies were faster than that link could carry: then it was misread."""
    peaks = (fastest(evidence, direction) for direction in DIRECTIONS)
    return any(peak is not None and peak[1].interval.low > speed.raw_rate for peak in peaks)


def _trained_down(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Under load the link runs at less than GPU and slot can do."""
    now, gpu = facts.now, gpu_speed(evidence, facts)
    if now is None or gpu is None or _disproved(evidence, now):
        return None
    slot = facts.slot
    could = Speed(min(gpu.generation, slot.generation), min(gpu.lanes, slot.lanes)) if slot else gpu
    slower, narrower = now.generation < could.generation, now.lanes < could.lanes
    if not slower and not narrower:
        return None
    short = f"{now.lanes} of {could.lanes} lanes in use" if narrower else f"runs at PCIe {now.words} of {could.words}"
    known = "" if slot else " (what the slot can do is hidden)"
    advice = "Errors on a riser or cable make a link fall back, or firmware limits it: look at its link speed setting."
    if narrower:
        advice = (
            "Seat, riser or cable lose lanes, or the firmware shares them out: reseat the board, look at bifurcation."
        )
    words = f"{_when(facts)} the link runs at PCIe {now.words}; GPU and slot could do {could.words}{known}. {advice}"
    return Cause(short, words, not facts.idle, ("generation_now", "lanes_now"))


def _when(facts: LinkFacts) -> str:
    """Whether a speed says anything: an idle link trains down to save power."""
    return "Read after copies had ended, which may be why," if facts.idle else "While busy"


def _trained_down_above(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """A link between bridges runs at less than both ends can do, and at less than the GPU could use."""
    gpu = gpu_speed(evidence, facts)
    if gpu is None or facts.flag("virtual_bus"):
        return None
    for index, one in enumerate(joints(facts, bridges(facts))[:-1]):
        now, most = one.now, one.most
        if now is None or most is None or not one.slowed or now.raw_rate >= gpu.raw_rate or _disproved(evidence, now):
            continue
        where = f"below root port {one.above.bus_id}" if index == 0 else f"above bridge {one.below.bus_id}"
        words = (
            f"{_when(facts)} the link {where} runs at PCIe {now.words}; both its ends could do {most.words}. Riser, "
            "cable or backplane make a link fall back, or firmware limits it."
        )
        hop = facts.hops().index(one.below)
        rests = (f"hop{hop}_generation_now", f"hop{hop}_lanes_now")
        return Cause(f"the link {where} runs at PCIe {now.words} of {most.words}", words, not facts.idle, rests)
    return None


def _narrow_slot(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """A bridge on the way carries less than the GPU could."""
    slot, gpu = facts.slot, gpu_speed(evidence, facts)
    if slot is None or gpu is None or slot.raw_rate >= gpu.raw_rate or _disproved(evidence, slot):
        return None
    who = facts.text("slot_limit_bus_id")
    where = f"bridge {who}" if who else "a bridge on the way"
    words = (
        f"The {where.removeprefix('a ')} carries PCIe {slot.words}, the GPU could do {gpu.words}: "
        f"{quantity(slot.raw_rate, 'B/s')} against {quantity(gpu.raw_rate, 'B/s')} before packet headers. "
        "Another slot of this machine may be wider."
    )
    return Cause(f"{where} is narrower, PCIe {slot.words}", words, True, ("generation_slot_max", "lanes_slot_max"))


def _errors(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Packets on the way from and to the host were damaged and sent again."""
    risen = [name for name in facts.damaging() if name.startswith("pcie_")]
    if not risen:
        return None
    words = "Its error counters rose while copies ran: damaged packets are sent again."
    return Cause("its error counters rise", words, True, tuple(f"{name}_risen" for name in risen))


def _far_node(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Buffers on another NUMA node than the copies used are faster."""
    for direction, words in DIRECTIONS.items():
        peak, found = fastest(evidence, direction), nodes(evidence, direction)
        if peak is None or len(found) < 2:
            continue
        node, row = max(found.items(), key=lambda one: one[1].value)
        if row.value < FASTER_NODE * peak[1].value:
            continue
        text = (
            f"From buffers on NUMA node {node} copies {words} reach {quantity(row.value, 'B/s')}: these lay on a far "
            f"node. Run with `numactl --cpunodebind={node} --membind={node}`."
        )
        return Cause("the buffers lie on a far NUMA node", text, False, rests_on(peak[1], row))
    return None


def _small(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """The largest copy is too small to fill the link."""
    for direction in DIRECTIONS:
        peak, fit = fastest(evidence, direction), copy_fit(evidence, "bandwidth", direction, "pinned")
        if peak is not None and fit is None and peak[0] < FILLING_BYTES:
            words = f"The largest copy was {size(peak[0])}: measure some from {size(FILLING_BYTES)} on as well."
            return Cause(SMALL, words, False, rests_on(peak[1]))
        if peak is not None and fit is not None and peak[0] < fit.size_for(NEAR_ENOUGH):
            words = (
                f"The largest copy was {size(peak[0])}; from {about_size(fit.size_for(NEAR_ENOUGH))} on a copy should "
                f"reach {round_percent(NEAR_ENOUGH)} of {quantity(fit.bandwidth, 'B/s')}: measure larger ones."
            )
            return Cause(SMALL, words, False, rests_on(peak[1]))
    return None


def _busy(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Somebody else uses the GPU's link."""
    others = evidence.gpu.other_processes if evidence.gpu is not None else None
    if not others:
        return None
    words = "Other processes use this GPU and may copy as well: end them and repeat."
    return Cause("other processes use this GPU", words, False, ("gpu other_processes",))


def _shared(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Other GPUs take from the same uplink when they copy."""
    found = sharing(evidence)
    own = evidence.gpu.index if evidence.gpu is not None else 0
    mine = [one for one in found if one.gpu_index == own]
    if not mine:
        return None
    worst = min(mine, key=lambda one: one.kept)
    words = (
        f"Its uplink is shared: beside {worst.beside_words} it keeps {percent(worst.kept)}. Whatever copies there "
        "takes from this figure."
    )
    return Cause("the uplink is shared", words, False, rests_on(worst.alone, worst.together))


def _translated(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """Each address is translated on its way."""
    if facts.text("iommu") != "translated":
        return None
    words = (
        "The IOMMU translates every address: misses in its caches slow large or scattered buffers. `iommu=pt` on the "
        "kernel's command line lets devices of the host pass, huge pages need fewer entries."
    )
    return Cause("the IOMMU translates", words, False, ("iommu",))


def _hidden(evidence: Evidence, facts: LinkFacts) -> Cause | None:
    """The way cannot be seen from here."""
    if not facts.flag("virtual_bus"):
        return None
    words = (
        "A virtual machine hides the way to this GPU: slots and bridges, and who shares them, show on its host only."
    )
    return Cause("the virtual machine hides why", words, False, ("virtual_bus",))


LOOKED_FOR: tuple[Callable[[Evidence, LinkFacts], Cause | None], ...] = (
    _trained_down,
    _trained_down_above,
    _narrow_slot,
    _errors,
    _far_node,
    _small,
    _busy,
    _shared,
    _translated,
    _hidden,
)

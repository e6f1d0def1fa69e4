"""THE VERDICT on the link: its ceiling, what copies reach of it, and the likeliest cause where that is too little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Severity, listed, rests_on
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, Ceiling, ceiling, pcie_rate
from microbench.analysis.stats import Row
from microbench.core.units import about_size, percent, quantity, round_percent, size
from microbench.explain.link_facts import (
    DIRECTIONS,
    HOST,
    TOLERATED_ERRORS,
    LinkFacts,
    Speed,
    bridges,
    copy_fit,
    fastest,
    gpu_speed,
    joints,
    link_facts,
    shares_memory,
)
from microbench.explain.link_gpus import nodes, sharing

# Why a link may be slower than it should be: each cause looked for in facts and rows, the likeliest first.


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


HEALTHY = 0.9
BROKEN = 0.6
THRESHOLD = (
    f"pinned copies of the best size by the copy engine, at least {round_percent(HEALTHY)} of the ceiling both ways; "
    f"under {round_percent(BROKEN)} a problem"
)


class Reached(NamedTuple):
    """What copies in one direction reach of what the link allows."""

    direction: str
    size_bytes: int
    row: Row
    limit: Ceiling

    @property
    def share(self) -> float:
        """1 is the ceiling."""
        return self.row.value / self.limit.value


def verdict(evidence: Evidence) -> list[Finding]:
    """Whether the link is as fast as it should be, and if not, why."""
    facts = link_facts(evidence)
    why_none = shares_memory(evidence, facts)
    if why_none is not None:
        return [_no_verdict(evidence, why_none)] if evidence.suite("link") or facts else []
    found = causes(evidence)
    reached = [one for direction in DIRECTIONS if (one := _reached(evidence, direction)) is not None]
    if reached:
        return [_judged(evidence, reached, found)]
    certain = [cause for cause in found if cause.certain]
    return _unmeasured(evidence, certain) or _unlimited(evidence) or _sound(evidence, facts)


def _reached(evidence: Evidence, direction: str) -> Reached | None:
    peak = fastest(evidence, direction)
    limit = evidence.ceiling(peak[1]) if peak is not None else None
    return Reached(direction, *peak, limit) if peak is not None and limit is not None else None


def _judged(evidence: Evidence, reached: Sequence[Reached], found: Sequence[Cause]) -> Finding:
    worst = min(reached, key=lambda one: one.share)
    over = [one for one in reached if one.row.interval.low > one.limit.value]
    certain = [cause for cause in found if cause.certain]
    severity: Severity = "good"
    if worst.share < HEALTHY or over or certain:
        severity = "problem" if worst.share < BROKEN else "warning"
        if not over and not certain and any(cause.short == SMALL for cause in found):
            severity = "note"
    shown = over[0] if over else worst
    ending = "healthy"
    if over:
        ending = "more than this ceiling allows"
    elif severity != "good":
        ending = next((cause.short for cause in [*certain, *found]), "no cause seen")
    told = found if worst.share < HEALTHY else certain
    words = [f"Pinned copies: {', '.join(_words(one) for one in reached)}.", _as_trained(evidence, worst)]
    words += [cause.words for cause in told] or [_nothing_found(evidence, severity)]
    return Finding(
        rule="link.verdict",
        severity=severity,
        title=(
            f"{_link(evidence)}: ceiling {quantity(shown.limit.value, 'B/s')} {DIRECTIONS[shown.direction]}, measured "
            f"{quantity(shown.row.value, 'B/s')} ({percent(shown.share)}): {ending}"
        ),
        text=" ".join(word for word in (*words, _assumed(reached)) if word),
        threshold=THRESHOLD,
        rests_on=(*rests_on(*(one.row for one in reached)), *(name for cause in told for name in cause.rests_on)),
        suite="link",
    )


def _words(one: Reached) -> str:
    return (
        f"{DIRECTIONS[one.direction]} {quantity(one.row.value, 'B/s')} of {quantity(one.limit.value, 'B/s')} "
        f"({percent(one.share)}) at {size(one.size_bytes)}"
    )


def _link(evidence: Evidence) -> str:
    """The link as its ceiling takes it: "PCIe 5.0 x16, payload 256 B"."""
    link = evidence.gpu.link if evidence.gpu is not None else None
    if link is None or not link.generation_max or not link.lanes_max:
        return "PCIe"
    hidden = "" if link.max_payload_bytes else " assumed"
    payload_bytes = link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    return f"PCIe {Speed(link.generation_max, link.lanes_max).words}, payload {payload_bytes} B{hidden}"


def _as_trained(evidence: Evidence, worst: Reached) -> str:
    """What the link carries as it is trained, where that is less than its ceiling."""
    now, gpu = link_facts(evidence).now, evidence.gpu
    if now is None or gpu is None or now == Speed(gpu.link.generation_max or 0, gpu.link.lanes_max or 0):
        return ""
    payload_bytes = gpu.link.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
    rate = pcie_rate(*now, worst.direction, payload_bytes)
    if not rate or rate >= worst.limit.value or worst.row.interval.low > rate:  # more than that: it was misread
        return ""
    share = percent(worst.row.value / rate)
    return f"Of what PCIe {now.words} carries, {quantity(rate, 'B/s')}, that is {share}."


def _nothing_found(evidence: Evidence, severity: Severity) -> str:
    if severity == "good":
        return "Copying alone, nothing holds it back." if sharing(evidence) else "Nothing holds it back."
    looked = "" if link_facts(evidence) else " `microbench run link_state --into RUN` looks at the way to the GPU."
    return f"Nothing that this run looked at explains it.{looked}"


def _assumed(reached: Sequence[Reached]) -> str:
    assumptions = dict.fromkeys(words for one in reached for words in one.limit.assumptions)
    return f"The ceiling assumes: {'; '.join(assumptions)}." if assumptions else ""


def _no_verdict(evidence: Evidence, why: str) -> Finding:
    return Finding(
        rule="link.verdict",
        severity="note",
        title="No PCIe verdict for this GPU",
        text=f"There is nothing to hold copies against: {why}. What PCIe reports of it says nothing about bandwidth.",
        threshold="an integrated GPU or a coherent chip-to-chip link",
        rests_on=("c2c", "gpu integrated"),
        suite="link",
    )


def _unmeasured(evidence: Evidence, certain: Sequence[Cause]) -> list[Finding]:
    """What facts alone say against the link."""
    if not certain:
        return []
    return [
        Finding(
            rule="link.verdict",
            severity="warning",
            title=f"The link is less than it could be: {certain[0].short}",
            text=" ".join(cause.words for cause in certain),
            threshold=(
                "under load generation and width below what GPU or slot can do, or errors; no pinned copies in this run"
            ),
            rests_on=tuple(name for cause in certain for name in cause.rests_on),
            suite="link",
        )
    ]


def _unlimited(evidence: Evidence) -> list[Finding]:
    """Copies that cannot be judged: only pageable ones, or nothing known of the link."""
    pinned = [peak for direction in DIRECTIONS if (peak := fastest(evidence, direction)) is not None]
    pageable = [
        peak for direction in DIRECTIONS if (peak := fastest(evidence, direction, "pageable", HOST)) is not None
    ]
    if not pinned and not pageable:
        return []
    peak = max(pinned or pageable, key=lambda one: one[1].value)
    why = "generation and width of the link are not known"
    advice = "The facts of `microbench run link_state` say what hides them."
    if not pinned:
        why, advice = "only pageable copies were measured", "They are staged by the host: measure memory=pinned."
    return [
        Finding(
            rule="link.verdict",
            severity="note",
            title=f"No verdict: {why}",
            text=f"The fastest copies reach {quantity(peak[1].value, 'B/s')} at {size(peak[0])}. {advice}",
            threshold="a verdict needs pinned copies and a known link",
            rests_on=rests_on(peak[1]),
            suite="link",
        )
    ]


def _sound(evidence: Evidence, facts: LinkFacts) -> list[Finding]:
    """The way was looked at and nothing is wrong with it, but link_copy, which says what it carries, was not run."""
    if not facts:
        return []
    limits = {way: ceiling(f"pcie_{direction}", evidence.gpu) for direction, way in DIRECTIONS.items()}
    carried = [f"{quantity(limit.value, 'B/s')} {way}" for way, limit in limits.items() if limit is not None]
    slowed = facts.idle and facts.now != gpu_speed(evidence, facts)
    words = [
        "An idle link slows down to save power: under load it may be faster." if slowed else "",
        "" if facts.damaging() else "link_state saw no fault of the link.",
        f"It could carry {listed(carried)}." if carried else "",
        "`microbench run link_copy --into RUN` measures what it does carry.",
    ]
    return [
        Finding(
            rule="link.verdict",
            severity="note",
            title=f"{_as_read(evidence, facts)}; link_copy not measured",
            text=" ".join(word for word in words if word),
            threshold="facts of link_state without link_copy, none of them against the link",
            rests_on=("generation_now", "lanes_now", "read_under_load"),
            suite="link",
        )
    ]


def _as_read(evidence: Evidence, facts: LinkFacts) -> str:
    """What the link runs at, as far as that is known."""
    now = facts.now
    if now is None:
        return "Generation and width of the link are not known"
    if facts.idle:
        return f"PCIe {now.words}, read when copies had ended"
    return f"PCIe {now.words} while busy" + (", all that the GPU can do" if now == gpu_speed(evidence, facts) else "")


# Explains the rest of link_state: errors that rose, and settings on the way to the GPU that cost something.


USUAL_PAYLOAD_BYTES = 256


def errors(evidence: Evidence) -> list[Finding]:
    """Counters of damaged packets that rose while the link was busy."""
    facts = link_facts(evidence)
    risen = facts.risen()
    if not risen:
        return []
    counted = listed([f"{name.replace('_', ' ')} rose by {count}" for name, count in risen.items()])
    title = "The link's error counters rise under load"
    meaning = (
        "Damaged packets are sent again, which costs bandwidth and latency, and a link that goes on like this falls "
        "back to a lower speed: check riser, cable and seat."
    )
    if not facts.damaging():
        title = "Few errors on the link, as many as a sound one may have"
        meaning = "Damaged packets are sent again. Measure link_state again: only a count that keeps rising means more."
    return [
        Finding(
            rule="link.errors",
            severity="problem" if facts.damaging() else "note",
            title=title,
            text=f"While copies ran, {counted}. {meaning}",
            threshold=(
                f"a problem over {TOLERATED_ERRORS} (one bit in 10^12 may be wrong); rollovers, nonfatal and fatal "
                "errors at once"
            ),
            rests_on=tuple(f"{name}_risen" for name in risen),
            suite="link",
        )
    ]


def settings(evidence: Evidence) -> list[Finding]:
    """What the way to the GPU is set to, where it costs something."""
    facts = link_facts(evidence)
    if shares_memory(evidence, facts) is not None:
        return []
    several = len(evidence.environment.gpus) > 1
    found = [one for one in (_payload(facts), _ordering(facts), _bar(facts), _acs(facts, several)) if one is not None]
    if not found:
        return []
    return [
        Finding(
            rule="link.settings",
            severity="advice" if any(advice for _, _, advice in found) else "note",
            title=f"On the way to the GPU: {listed([short for short, _, _ in found])}",
            text=" ".join(words for _, words, _ in found),
            threshold="payload under 256 B, no relaxed ordering, no resizable BAR, ACS redirecting with several GPUs",
            rests_on=("max_payload_bytes", "relaxed_ordering", "resizable_bar", "acs"),
            suite="link",
        )
    ]


# What is set, what that means, whether something should be done.
Setting = tuple[str, str, bool]


def _payload(facts: LinkFacts) -> Setting | None:
    payload_bytes = facts.number("max_payload_bytes")
    if payload_bytes is None or payload_bytes >= USUAL_PAYLOAD_BYTES:
        return None
    words = (
        f"Packets carry {payload_bytes} bytes at most, so headers take more of the link: the firmware may allow 256."
    )
    return f"a payload of {payload_bytes} B", words, True


def _ordering(facts: LinkFacts) -> Setting | None:
    if facts.flag("relaxed_ordering") is not False:
        return None
    return "relaxed ordering off", "Without relaxed ordering a packet may have to wait for the one before it.", True


def _bar(facts: LinkFacts) -> Setting | None:
    if facts.flag("resizable_bar") is not False:
        return None
    words = "The host reaches only a part of the GPU's memory directly (BAR1); copies do not need it."
    return "no resizable BAR", words, False


def _acs(facts: LinkFacts, several: bool) -> Setting | None:
    if facts.flag("acs") is not True or not several:
        return None
    words = (
        "ACS sends traffic between GPUs up to the root port and back, past the switch that could join them: turn it "
        "off where no virtual machine needs it."
    )
    return "ACS redirects peers", words, True

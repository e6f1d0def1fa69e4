"""Findings on the link itself: the verdict with its likeliest cause, rising errors, and settings on the path."""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, listed, rests_on, rule, said
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, ceiling, pcie_rate
from microbench.core.units import about_size, percent, quantity, round_percent, size
from microbench.explain import link_facts as links
from microbench.explain.verdicts import Cause, Reached, beyond_ceiling

HEALTHY, BROKEN = 0.9, 0.6
USUAL_PAYLOAD_BYTES = 256


def link_verdict(evidence: Evidence) -> Finding | None:
    """Whether the link is as fast as it should be, and if not, why."""
    facts = links.link_facts(evidence)
    if (shared := links.shares_memory(evidence, facts)) is not None:
        why = "this GPU is integrated" if shared == "integrated" else "a coherent chip-to-chip link joins them"
        title, text = "No PCIe verdict: GPU and host share memory", f"PCIe is not what carries copies: {why}."
        names = ("c2c", "gpu integrated")
        measured = facts or evidence.suite("link")
        return _finding("note", title, text, "", "an integrated or coherent GPU", names) if measured else None
    peaks = {way: peak[1] for way in links.DIRECTIONS if (peak := links.fastest(evidence, way)) is not None}
    limits = ((way, row, evidence.ceiling(row)) for way, row in peaks.items())
    if every := [Reached(way, row, limit) for way, row, limit in limits if limit is not None]:
        return _judged(evidence, every)
    if certain := [cause for cause in causes(evidence) if cause.certain]:
        first, rule = certain[0], "facts show a slow link or errors; the run has no pinned copies"
        text = f"{first.text}{_others(certain[1:])}"
        behind = [name for cause in certain for name in cause.rests_on]
        return _finding("warning", f"Link problem: {first.short}", text, first.advice, rule, behind)
    return _without_ceiling(evidence) or _without_copies(evidence, facts)


def _finding(severity: Severity, title: str, text: str, advice: str, rule: str, names: Sequence[str]) -> Finding:
    return Finding("link.verdict", severity, title, text, rule, tuple(dict.fromkeys(names)), advice=advice)


def _judged(evidence: Evidence, every: Sequence[Reached]) -> Finding:
    """Copies against their ceiling in one or both directions, and what may slow them down."""
    slowest, seen = min(every, key=lambda reached: reached.share), causes(evidence)
    over = next((reached for reached in every if reached.over), None)  # its ceiling is wrong
    slow, blamed = slowest.share < HEALTHY, [cause for cause in seen if cause.certain]
    # Copies are too small to judge the link by, where nothing is certainly wrong.
    small = next((cause for cause in seen if cause.name == SMALL), None) if slow else None
    small = None if over or blamed else small
    blamed += [cause for cause in seen if not cause.certain] if slow else []
    severity: Severity = "problem" if slowest.share < BROKEN else "warning"
    if small or not (slow or over or blamed):
        severity = "note" if small else "good"
    speed = links.gpu_speed(evidence, links.link_facts(evidence))
    name = f"PCIe {speed.words}" if speed is not None else "PCIe"
    worst = over or slowest
    way, share = links.DIRECTIONS[worst.what], percent(worst.share)
    reach = f"copies {way} reach {quantity(worst.row.value, 'B/s')}, {share} of the ceiling"
    advice = ""
    if over:
        title = f"Copies {way} reach {share} of the {name} ceiling, so the ceiling is wrong"
        text = f"The ceiling rests on: {', '.join((worst.limit.source, *worst.limit.assumptions))}."
        advice = "Do not rely on percentages of it."
    elif small:
        title = f"{name} is not fully tested: {reach}"
        text, advice = small.text, small.advice
    elif blamed:
        cause, advice = blamed[0], blamed[0].advice
        title = f"{name} is slow: copies {way} reach {share} of the ceiling; {cause.short}"
        if not slow:
            title = f"{name} has a problem: {cause.short}"
        text = f"{cause.text}{_others(blamed[1:])}"
    elif slow:
        title, text = f"{name} is slow: {reach}", "Nothing that this run looked at explains it."
        if not links.link_facts(evidence):
            into = evidence.run.run_id
            advice = f"Run `microbench run link_state --into {into}` to look at the path to the GPU."
    else:
        others = (one for one in every if one is not slowest)
        words = [f"Copies {links.DIRECTIONS[one.what]} reach {quantity(one.row.value, 'B/s')}." for one in others]
        assumptions = dict.fromkeys(words for reached in every for words in reached.limit.assumptions)
        words += [f"The ceiling assumes {'; '.join(assumptions)}."] if assumptions else []
        title, text = f"{name} is healthy: {reach}", " ".join(words) or "Nothing slows them down."
    rule = (
        f"the fastest pinned copies reach at least {round_percent(HEALTHY)} of the ceiling both ways; under "
        f"{round_percent(BROKEN)} is a problem"
    )
    names = (*rests_on(*(reached.row for reached in every)), *(name for cause in blamed for name in cause.rests_on))
    found = _finding(severity, title, text, advice, rule, names)
    return msgspec.structs.replace(found, reached=(slowest.share, HEALTHY))


def _without_ceiling(evidence: Evidence) -> Finding | None:
    """Copies that cannot be judged: only pageable ones, or an unknown link."""
    pinned, pageable = (
        [point for way in links.DIRECTIONS for point in links.copies(evidence, metric, way, memory)]
        for memory, metric in (("pinned", links.DEVICE), ("pageable", links.HOST))
    )
    if not pinned and not pageable:
        return None
    size_bytes, row = max(pinned or pageable, key=lambda point: point[1].value)
    why, advice = "the link's generation and width are unknown", "The facts of link_state say what hides them."
    if not pinned:
        why, advice = "only pageable copies were measured", "Measure memory=pinned: the host stages pageable copies."
    text = f"The fastest copies reach {quantity(row.value, 'B/s')} at {size(size_bytes)}."
    rule = "a verdict needs pinned copies and a known link"
    return _finding("note", f"No verdict: {why}", text, advice, rule, rests_on(row))


def _without_copies(evidence: Evidence, facts: links.LinkFacts) -> Finding | None:
    """link_state saw nothing wrong, but link_copy did not run."""
    if not facts:
        return None
    now, gpu = facts.now, links.gpu_speed(evidence, facts)
    read = "PCIe speed unknown"
    if now is not None:
        at_most = ", the most that the GPU supports" if now == gpu else ""
        read = f"PCIe {now.words}, read idle" if facts.idle else f"PCIe {now.words} while busy{at_most}"
    words = "" if facts.damaging() else "link_state found no fault."
    if facts.idle and now != gpu:
        words = "An idle link slows down to save power, so it may be faster under load."
    limits = {way: ceiling(f"pcie_{direction}", evidence.gpu) for direction, way in links.DIRECTIONS.items()}
    carried = [f"{quantity(limit.value, 'B/s')} {way}" for way, limit in limits.items() if limit is not None]
    words += f" The link could carry {listed(carried)}." if carried else ""
    title, rule = f"{read}; copies were not measured", "link_state without link_copy, and nothing wrong with the link"
    advice = f"Run `microbench run link_copy --into {evidence.run.run_id}` to measure them."
    return _finding("note", title, words.strip(), advice, rule, ("generation_now", "lanes_now", "read_under_load"))


def _others(others: Sequence[Cause]) -> str:
    return f" Also seen: {listed([cause.short for cause in others])}." if others else ""


@rule(
    "link.errors",
    f"a problem over {links.TOLERATED_ERRORS} (one bit in 10^12 may be wrong); rollovers, nonfatal and fatal "
    "errors from the first on",
)
def errors(evidence: Evidence) -> Finding | None:
    """Error counters that rose while the link was busy."""
    facts = links.link_facts(evidence)
    risen, damaging = facts.risen(), facts.damaging()
    if not risen:
        return None
    counts = sorted((damaging or risen).items(), key=lambda item: -item[1])
    spelled = ((name.replace("_", " ").replace("pcie", "PCIe").replace("nvlink", "NVLink"), n) for name, n in counts)
    first, *more = [f"{name} rose by {count}" for name, count in spelled]
    text = f"Damaged packets are sent again{', which costs bandwidth and latency' if damaging else ''}."
    title = f"{first} under load{'' if damaging else ', as on a healthy link'}"
    text = f"{text} {f'Also, {listed(more[:2])}.' if more else ''}".strip()
    advice = "Run link_state again: only a count that keeps rising points to a fault."
    if damaging:
        advice = "Check riser, cable and seat of the board before the link falls back to a lower speed."
    names = tuple(f"{name}{links.RISEN}" for name in risen)
    return said(title, text, advice, names=names, severity="problem" if damaging else "note")


@rule("link.settings", "payload under 256 B, no relaxed ordering, no resizable BAR, ACS redirecting with several GPUs")
def settings(evidence: Evidence) -> Finding | None:
    """Settings on the path to the GPU that cost something."""
    facts = links.link_facts(evidence)
    if links.shares_memory(evidence, facts) is not None:
        return None
    payload_bytes = facts.number("max_payload_bytes")
    seen: list[tuple[str, str, str]] = []  # what is set, what that means, and what to do about it ("" for nothing)
    if payload_bytes is not None and payload_bytes < USUAL_PAYLOAD_BYTES:
        advice = f"Allow {USUAL_PAYLOAD_BYTES} B in the firmware."
        short, text = f"a payload of {payload_bytes} B", "Headers take more of the link with small packets."
        seen.append((short, text, advice))
    if facts.flag("relaxed_ordering") is False:
        text = "Without relaxed ordering a packet may have to wait for the one before it."
        seen.append(("relaxed ordering off", text, "Turn relaxed ordering on."))
    if facts.flag("acs") is True and len(evidence.environment.gpus) > 1:
        text = "ACS sends traffic between GPUs through the root port, past the switch that could join them."
        seen.append(("ACS redirects peers", text, "Turn ACS off where no virtual machine needs it."))
    if facts.flag("resizable_bar") is False:
        text = "The host reaches only a part of the GPU's memory directly (BAR1); copies do not need it."
        seen.append(("no resizable BAR", text, ""))
    if not seen:
        return None
    names, texts, (advice, *_) = zip(*seen, strict=True)
    title = f"On the path to the GPU: {listed(names)}"
    text = " ".join(texts[:2])
    return said(title, text, advice, names=("max_payload_bytes", "relaxed_ordering", "resizable_bar", "acs"))


OVER_LIMIT = partial(beyond_ceiling, suite="link", perhaps="a larger payload, a faster link than reported")
# Too few sizes for a fit: then copies of this size count. Of one at 93 GB/s, 5 us of fixed cost are a tenth.
FILLING_BYTES = 4 << 20
FASTER_NODE = 1.05
SMALL = "small copies"
READ_IDLE = "The link was read after copies had ended, so it may only have been saving power."


def causes(evidence: Evidence) -> list[Cause]:
    """Everything in this run that may slow copies down."""
    facts = links.link_facts(evidence)
    return [*_slow_link(evidence, facts), *_slow_upstream(evidence, facts), *_seen(evidence, facts)]


def _seen(evidence: Evidence, facts: links.LinkFacts) -> Iterator[Cause]:
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


def _slow_link(evidence: Evidence, facts: links.LinkFacts) -> Iterator[Cause]:
    """The GPU's link runs below what GPU and slot support."""
    now, gpu, slot = facts.now, links.gpu_speed(evidence, facts), facts.slot
    if now is None or gpu is None or _disproved(evidence, now):
        return
    possible = links.Speed(min(gpu.generation, slot.generation), min(gpu.lanes, slot.lanes)) if slot else gpu
    if now.generation >= possible.generation and now.lanes >= possible.lanes:
        return
    short = f"the link runs at PCIe {now.words} of {possible.words}"
    advice = "Check riser and cable, and the link speed setting of the firmware."
    if now.lanes < possible.lanes:
        short = f"{now.lanes} of {possible.lanes} lanes in use"
        advice = "Reseat the board, check riser and cable, and look at bifurcation in the firmware."
    able = "GPU and slot support" if slot is not None else "The slot's limit is hidden, but the GPU supports"
    text = READ_IDLE if facts.idle else f"{able} PCIe {possible.words}{_used(evidence, now)}."
    yield Cause(short, text, advice, ("generation_now", "lanes_now"), "slow link", not facts.idle)


def _disproved(evidence: Evidence, speed: links.Speed) -> bool:
    """Whether copies were faster than a link of this speed allows: then its speed was misread."""
    peaks = (links.fastest(evidence, direction) for direction in links.DIRECTIONS)
    return any(peak is not None and peak[1].interval.low > speed.raw_rate for peak in peaks)


def _used(evidence: Evidence, speed: links.Speed) -> str:
    """How much of the payload rate at this speed the slower direction reaches; "" if unknown or more than all."""
    link = evidence.gpu.link if evidence.gpu is not None else None
    payload_bytes = (link.max_payload_bytes if link is not None else None) or ASSUMED_PAYLOAD_BYTES
    shares = [
        peak[1].value / rate
        for direction in links.DIRECTIONS
        if (peak := links.fastest(evidence, direction)) is not None
        and (rate := pcie_rate(speed.generation, speed.lanes, direction, payload_bytes))
    ]
    return f"; copies fill {percent(min(shares))} of the link as it runs" if shares and max(shares) <= 1 else ""


def _slow_upstream(evidence: Evidence, facts: links.LinkFacts) -> Iterator[Cause]:
    """A link between bridges runs below what both ends support, and below what the GPU could use: the first of them."""
    gpu = links.gpu_speed(evidence, facts)
    if gpu is None or facts.flag("virtual_bus"):
        return
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
        yield Cause(short, text, advice, names, "slow upstream", not facts.idle)
        return


RULES: tuple[Rule, ...] = (link_verdict, OVER_LIMIT, errors, settings)

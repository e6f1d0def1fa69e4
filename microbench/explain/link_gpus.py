"""Findings on places: NUMA nodes, GPUs that share an uplink, and pairs of GPUs that exchange data."""

from collections.abc import Iterable, Sequence

from microbench.analysis.evidence import Evidence, Finding, Rule, Severity, listed, rests_on, rule, said
from microbench.core.units import percent, quantity, round_percent, times
from microbench.explain import link_facts as links

SLOW = 0.9
NAMED = 4


@rule("link.numa", f"advice where a far node loses over {round_percent(links.FAR_LOSS)}")
def numa(evidence: Evidence) -> Finding | None:
    """What copies lose with memory of a far node."""
    losses, rows = [], []
    for direction in links.DIRECTIONS:
        rates = links.nodes(evidence, direction)
        near = links.near_node(evidence, rates)
        if len(rates) > 1 and near is not None:
            losses.append((max(1 - row.value / rates[near].value for row in rates.values()), near))
            rows += list(rates.values())
    if not losses:
        return None
    (loss, near), own = max(losses), links.own_node(evidence)
    far = loss > links.FAR_LOSS
    text = f"Node {near} is near."
    if not far:
        text = "It does not matter on which node a buffer lies." if own is None else f"The GPU is on node {own}."
    elif own not in (None, near):
        text = f"Node {near} is the fastest, though the GPU reports node {own}."
    title = (
        f"Memory of a far NUMA node costs copies {percent(loss)}"
        if far
        else "Copies are as fast with memory of every NUMA node"
    )
    advice = f"Keep buffers near: `numactl --cpunodebind={near} --membind={near}`." if far else ""
    return said(title, text, advice, rows=rows, severity="advice" if far else "good")


@rule("link.concurrent", f"a GPU that keeps under {round_percent(links.SHARED_BELOW)} of its rate shares an uplink")
def concurrent(evidence: Evidence) -> Finding | None:
    """Which GPUs slow each other down."""
    cases = links.contentions(evidence)
    if not cases:
        return None
    lost = links.shared_uplinks(evidence)
    ended = [contention for contention in cases if links.others_ended_first(contention.together)]
    least = min(cases, key=lambda contention: contention.share)
    text = (
        f"The lowest is GPU {least.gpu_index}: with {least.others_words} copying, its copies "
        f"{links.DIRECTIONS.get(least.direction, least.direction)} reach {quantity(least.together.value, 'B/s')} of "
        f"{quantity(least.alone.value, 'B/s')}."
    )
    if ended:
        text += f" In {len(ended)} of {len(cases)} cases the others ended first, so the share may look too good."
    advice = "Spread large copies over time, or place jobs on GPUs with separate uplinks." if lost else ""
    title = _sharing(lost) if lost else f"Every GPU keeps {percent(least.share)} of its rate while others copy"
    names = (
        *rests_on(*(row for contention in cases for row in (contention.alone, contention.together))),
        *([links.OTHERS_BUSY] if ended else []),
    )
    return said(title, text, advice, names=names, severity="warning" if lost else "note" if ended else "good")


def _sharing(lost: Sequence[links.Contention]) -> str:
    """Which GPUs share uplinks: pairs where they were measured in pairs."""
    couples = sorted({tuple(sorted((one.gpu_index, int(one.others)))) for one in lost if one.others.isdecimal()})
    names = [f"{first}–{second}" for first, second in couples[:NAMED]]
    names = names or [str(index) for index in sorted({contention.gpu_index for contention in lost})]
    share = min(contention.share for contention in lost)
    return f"Uplinks are shared (GPU {listed(names)}): a copy keeps {percent(share)} of its rate"


@rule("link.peers", f"a pair under {round_percent(SLOW)} of the fastest is slow; one that fails is a problem")
def peers(evidence: Evidence) -> Finding | None:
    """How fast pairs of GPUs exchange data, which are slow, skipped or failed, and what peer access brings."""
    way = links.usual_way(evidence)
    refused, failed = links.refusals(evidence), links.failures(evidence)
    if way is None and not refused and not failed:
        return None
    rates = links.pairs(evidence, way) if way is not None else {}
    best, worst = (choose(rates, key=lambda pair: rates[pair].value, default=None) for choose in (max, min))
    slow = [pair for pair, row in rates.items() if best is not None and row.value < SLOW * rates[best].value]
    title, advice = "No rate between GPUs was measured", ""
    words = [
        f"{verb}: {reasons_named(why)[0]}." for verb, why in (("Failed", failed), ("Not measured", refused)) if why
    ]
    if best is not None and worst is not None:
        title, limit = f"GPU to GPU: {quantity(rates[best].value, 'B/s')}", evidence.ceiling(rates[best])
        if slow:
            title += f" at best, {quantity(rates[worst].value, 'B/s')} from {worst.words}"
            advice = f"Keep traffic off {named(slow)}: other pairs are faster."
        elif limit is not None:
            words.append(f"That is {percent(rates[best].value / limit.value)} of the ceiling.")
        words += _without(evidence)
    if failed:
        advice = "Do not use peer access between pairs that failed."
    for why, verb in ((refused, "not measured"), (failed, "failed")):
        lost = {pair for members in why.values() for pair in members} - (rates.keys() if why is refused else set())
        title += f"; {len(lost)} pair{'s' * (len(lost) != 1)} {verb}" if lost else ""
    text = " ".join(words[:2])
    rows = (*rates.values(), *links.pairs(evidence, links.LATENCY).values())
    severity: Severity = "problem" if failed else "advice" if slow else "note" if refused else "good"
    return said(title, text, advice, rows=rows, severity=severity)


def _without(evidence: Evidence) -> list[str]:
    for way in links.PEER_WAYS:
        on, off = links.pairs(evidence, way), links.pairs(evidence, way, "off")
        if ratios := [on[pair].value / row.value for pair, row in off.items() if pair in on]:
            return [f"Without peer access copies go through host memory, up to {times(max(ratios))} slower."]
    return []


def named(members: Iterable[links.Pair]) -> str:
    """Pairs by name, the first few of many."""
    words = [pair.words for pair in members]
    more = [f"{len(words) - NAMED} more"] if len(words) > NAMED else []
    return listed([*words[:NAMED], *more])


def reasons_named(reasons: links.Reasons) -> list[str]:
    """Each reason behind the pairs that it holds for."""
    return [f"{named(members)}: {reason}" for reason, members in reasons.items()]


RULES: tuple[Rule, ...] = (numa, concurrent, peers)

"""Explains link_peer: each pair of GPUs, which are slower than others, and which gave nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on, whole
from microbench.analysis.stats import Row
from microbench.core.model import Outcome
from microbench.core.units import as_time, percent, quantity, round_percent, times
from microbench.explain.link_facts import DIRECTIONS, OTHERS_BUSY, link_facts, partly_alone

SLOW = 0.9
LATENCY = "latency"
WAYS = {
    "engine_write": "copy-engine writes",
    "engine_read": "copy-engine reads",
    "sm_write": "SM writes",
    "sm_read": "SM reads",
    "engine_both_write": "copy-engine writes with both ways busy",
    "engine_both_read": "copy-engine reads with both ways busy",
}
NAMED = 4


class Pair(NamedTuple):
    """Two GPUs by their CUDA indices: the one that moves the data, the one whose memory it is."""

    first: int
    second: int

    @property
    def words(self) -> str:
        """Both with an arrow between."""
        return f"{self.first} → {self.second}"


# Why something is not there, with the pairs it holds for.
Reasons = dict[str, list[Pair]]


def pair_of(params: dict[str, int | str]) -> Pair | None:
    """The pair of a case."""
    first, second = params.get("first"), params.get("second")
    return Pair(first, second) if isinstance(first, int) and isinstance(second, int) else None


def pairs(evidence: Evidence, way: str, access: str = "on") -> dict[Pair, Row]:
    """Rate (or latency) of each pair that way, at the largest size."""
    metric = LATENCY if way == LATENCY else "bandwidth"
    found: dict[Pair, Row] = {}
    for row in evidence.rows("link_peer", metric, way=way, access=access):
        pair = pair_of(row.params)
        if pair is None or row.value <= 0:
            continue
        other = found.get(pair)
        if other is None or whole(row, "size_bytes") >= whole(other, "size_bytes"):
            found[pair] = row
    return found


def usual_way(evidence: Evidence) -> str | None:
    """The way by which pairs are compared: the first of WAYS that was measured."""
    return next((way for way in WAYS if pairs(evidence, way)), None)


def refusals(evidence: Evidence) -> Reasons:
    """Why pairs were not tried with peer access, and which they are."""
    outcomes = evidence.outcomes("link_peer")
    return _by_reason(one for one in outcomes if one.status == "skipped" and one.case.params.get("access") == "on")


def failures(evidence: Evidence) -> Reasons:
    """What went wrong between pairs that were tried, wrong data above all, and which they are."""
    return _by_reason(one for one in evidence.outcomes("link_peer") if one.status not in ("ok", "skipped"))


def _by_reason(outcomes: Iterable[Outcome]) -> Reasons:
    found: dict[str, dict[Pair, None]] = {}
    for outcome in outcomes:
        if (pair := pair_of(outcome.case.params)) is not None:
            found.setdefault(outcome.reason or "no reason given", {})[pair] = None
    return {reason: list(members) for reason, members in found.items()}


def named(members: Iterable[Pair]) -> str:
    """Pairs by name, the first few of many."""
    words = [pair.words for pair in members]
    more = [f"{len(words) - NAMED} more"] if len(words) > NAMED else []
    return listed([*words[:NAMED], *more])


def peers(evidence: Evidence) -> list[Finding]:
    """How fast pairs exchange data, which of them are slower, which gave none, and what peer access brings."""
    way = usual_way(evidence)
    refused, failed = refusals(evidence), failures(evidence)
    if way is None:
        return [_none(refused, failed)] if refused or failed else []
    found = pairs(evidence, way)
    best, worst = (pick(found, key=lambda pair: found[pair].value) for pick in (max, min))
    slow = [pair for pair, row in found.items() if row.value < SLOW * found[best].value]
    words = [f"By {WAYS[way]}, {_span(found, best, worst)}.", _limit(evidence, found[best])]
    words += [_ways(evidence, best, way), _latency(evidence), _without(evidence, found)]
    if slow:
        words.append(f"Keep what talks much off {named(slow)}: other pairs are faster.")
    title = f"GPU to GPU: {quantity(found[best].value, 'B/s')}"
    if slow:
        title += f" at best, {quantity(found[worst].value, 'B/s')} from {worst.words}"
    lost = (*_counted(_members(refused) - set(found), "not measured"), *_counted(_members(failed), "failed"))
    return [
        Finding(
            rule="link.peers",
            severity="problem" if failed else "advice" if slow or refused else "good",
            title="; ".join((title, *lost)),
            text=" ".join(word for word in (*words, *_reasons(refused, failed)) if word),
            threshold=f"a pair under {round_percent(SLOW)} of the fastest is slow; one that fails is a problem",
            rests_on=rests_on(*found.values(), *pairs(evidence, LATENCY).values()),
            suite="link",
        )
    ]


def _none(refused: Reasons, failed: Reasons) -> Finding:
    """No pair gave a rate."""
    return Finding(
        rule="link.peers",
        severity="problem" if failed else "advice",
        title="; ".join(("No rate between GPUs was measured", *_counted(_members(failed), "failed"))),
        text=" ".join(_reasons(refused, failed)),
        threshold="every pair skipped or failed",
        suite="link",
    )


def _members(reasons: Reasons) -> set[Pair]:
    return {pair for members in reasons.values() for pair in members}


def _counted(members: set[Pair], verb: str) -> list[str]:
    """How many pairs that is true of; nothing for none."""
    return [f"{len(members)} pair{'s' * (len(members) != 1)} {verb}"] if members else []


def _reasons(refused: Reasons, failed: Reasons) -> list[str]:
    """Which pairs failed or were not tried, and why."""
    told = (("Failed", failed), ("Not measured", refused))
    return [f"{word}: {'; '.join(reasons_named(reasons))}." for word, reasons in told if reasons]


def reasons_named(reasons: Reasons) -> list[str]:
    """Each reason behind the pairs that it holds for."""
    return [f"{named(members)}: {reason}" for reason, members in reasons.items()]


def _span(found: dict[Pair, Row], best: Pair, worst: Pair) -> str:
    low, high = quantity(found[worst].value, "B/s"), quantity(found[best].value, "B/s")
    if len(found) == 1:
        return f"{best.words} {high}"
    if low == high:
        return f"all {len(found)} pairs {high}"
    return f"{len(found)} pairs from {low} ({worst.words}) to {high} ({best.words})"


def _limit(evidence: Evidence, row: Row) -> str:
    limit = evidence.ceiling(row)
    if limit is None:
        return ""
    return f"That is {percent(row.value / limit.value)} of {quantity(limit.value, 'B/s')} ({limit.source})."


def _ways(evidence: Evidence, pair: Pair, usual: str) -> str:
    """The other ways of the fastest pair."""
    rows = {way: pairs(evidence, way).get(pair) for way in WAYS if way != usual}
    words = [f"{WAYS[way]} {quantity(row.value, 'B/s')}" for way, row in rows.items() if row is not None]
    return f"{pair.words} by {listed(words)}." if words else ""


def _latency(evidence: Evidence) -> str:
    found = pairs(evidence, LATENCY)
    if not found:
        return ""
    low, high = (as_time(pick(row.value for row in found.values())) for pick in (min, max))
    span = low if low == high else f"{low} to {high}"
    return f"A read of another's memory takes {span}."


def _without(evidence: Evidence, found: dict[Pair, Row]) -> str:
    """What is left where peer access is off."""
    for way in WAYS:
        on, off = pairs(evidence, way), pairs(evidence, way, "off")
        ratios = {pair: on[pair].value / row.value for pair, row in off.items() if pair in on}
        if ratios:
            pair = max(ratios, key=lambda one: ratios[one])
            return (
                f"Without peer access {pair.words} keeps {quantity(off[pair].value, 'B/s')}, through host memory: with "
                f"it (cuCtxEnablePeerAccess) {times(ratios[pair])} that."
            )
    return ""


# Explains link_numa and link_concurrent: whose memory is near, and which GPUs share an uplink.


FAR_LOSS = 0.05
KEEPS = 0.9
EVERYBODY = "all"


class Beside(NamedTuple):
    """One GPU's copies alone and while others copy as well."""

    gpu_index: int
    beside: str
    direction: str
    alone: Row
    together: Row

    @property
    def kept(self) -> float:
        """The share of its rate that it keeps."""
        return self.together.value / self.alone.value

    @property
    def beside_words(self) -> str:
        """Who copies as well."""
        return "all others" if self.beside == EVERYBODY else f"GPU {self.beside}"


def nodes(evidence: Evidence, direction: str) -> dict[int, Row]:
    """The rate from or to each NUMA node's memory, at the largest size."""
    found: dict[int, Row] = {}
    sizes: dict[int, int] = {}
    for row in evidence.rows("link_numa", "bandwidth", direction=direction):
        node, size = row.params.get("node"), row.params.get("size_bytes", 0)
        if isinstance(node, int) and isinstance(size, int) and row.value > 0 and size >= sizes.get(node, 0):
            found[node], sizes[node] = row, size
    return found


def own_node(evidence: Evidence) -> int | None:
    """The node that the GPU says it hangs on."""
    own = link_facts(evidence).number("numa_node")
    return evidence.gpu.numa_node if own is None and evidence.gpu is not None else own


def near_node(evidence: Evidence, found: dict[int, Row]) -> int | None:
    """The GPU's own node, unless another is clearly faster; the fastest where its own is not known or not measured."""
    own, best = own_node(evidence), max(found, key=lambda node: found[node].value, default=None)
    if own is None or best is None or own not in found:
        return best
    return best if 1 - found[own].value / found[best].value > FAR_LOSS else own


def numa(evidence: Evidence) -> list[Finding]:
    """What copies lose with memory of a far node."""
    words, losses, rows = [], [], []
    for direction, way in DIRECTIONS.items():
        found = nodes(evidence, direction)
        best = near_node(evidence, found)
        if len(found) < 2 or best is None:
            continue
        losses.append((max(1 - row.value / found[best].value for row in found.values()), best))
        places = [f"{quantity(row.value, 'B/s')} on node {node}" for node, row in found.items()]
        words.append(f"{way} {listed(places)}")
        rows += list(found.values())
    if not words:
        return []
    loss, near = max(losses)
    title = "Copies are as fast with memory of every NUMA node"
    if loss > FAR_LOSS:
        title = f"Memory of a far NUMA node costs copies {percent(loss)}"
    advice = f" Keep buffers near: `numactl --cpunodebind={near} --membind={near}`." if loss > FAR_LOSS else ""
    return [
        Finding(
            rule="link.numa",
            severity="advice" if loss > FAR_LOSS else "good",
            title=title,
            text=f"{_near_words(own_node(evidence), near, loss)}Copies {'; '.join(words)}.{advice}",
            threshold=f"advice where a far node loses over {round_percent(FAR_LOSS)}",
            rests_on=rests_on(*rows),
            suite="link",
        )
    ]


def _near_words(own: int | None, near: int, loss: float) -> str:
    """Which node is near: by what the GPU says or, where copies differ, by them."""
    if own == near or (own is None and loss > FAR_LOSS):
        return f"Node {near} is near. "
    if loss > FAR_LOSS:
        return f"Node {near} is the fastest, though the GPU is said to be on node {own}. "
    return "" if own is None else f"The GPU is on node {own}. "


def beside(evidence: Evidence) -> list[Beside]:
    """Every GPU measured alone and together."""
    together = {row.case_id: row for row in evidence.rows("link_concurrent", "together") if row.value > 0}
    return [
        Beside(index, str(row.params.get("beside")), str(row.params.get("direction")), row, together[row.case_id])
        for row in evidence.rows("link_concurrent", "alone")
        if row.value > 0 and row.case_id in together and isinstance(index := row.params.get("gpu_index"), int)
    ]


def sharing(evidence: Evidence) -> list[Beside]:
    """Those that lose by others, pairs before the whole."""
    lost = [one for one in beside(evidence) if one.kept < KEEPS]
    return sorted(lost, key=lambda one: one.beside == EVERYBODY)


def concurrent(evidence: Evidence) -> list[Finding]:
    """Which GPUs slow each other down."""
    found = beside(evidence)
    if not found:
        return []
    lost = sharing(evidence)
    ended = [one for one in found if partly_alone(one.together)]
    rests = rests_on(*(row for one in found for row in (one.alone, one.together))) + ((OTHERS_BUSY,) if ended else ())
    threshold = f"a GPU that keeps under {round_percent(KEEPS)} of its rate beside others shares an uplink"
    if not lost:
        title = "Every GPU keeps its rate while the others copy"
        text = f"{_least_words(found)}{_ended_first(ended, len(found))}"
        return [Finding("link.concurrent", "note" if ended else "good", title, text, threshold, rests, "link")]
    words = [_lost_words(direction, lost) for direction in DIRECTIONS]
    text = (
        f"{' '.join(word for word in words if word)}{_ended_first(ended, len(found))} Share out large copies over "
        "time, or place jobs so that they do not meet on one uplink."
    )
    return [Finding("link.concurrent", "warning", _shared_title(lost), text, threshold, rests, "link")]


def _least_words(found: Sequence[Beside]) -> str:
    """Who keeps least, and whether all others keep more than that."""
    least, *others = sorted(found, key=lambda one: one.kept)
    more = "every other case keeps more" if others and others[0].kept > least.kept else "no other case keeps less"
    return f"Beside {least.beside_words}, {_words(least)}{f'; {more}' if others else ''}."


def _ended_first(ended: Sequence[Beside], cases: int) -> str:
    """In how many cases the others were done too early, so that the shares kept look better than they are."""
    if not ended:
        return ""
    which = "In this case" if cases == 1 else f"In {len(ended)} of {cases} cases"
    return f" {which} the others ended first, so what is kept there is partly the rate of one GPU alone."


def _words(one: Beside) -> str:
    return (
        f"GPU {one.gpu_index} keeps {quantity(one.together.value, 'B/s')} of {quantity(one.alone.value, 'B/s')} "
        f"{DIRECTIONS.get(one.direction, one.direction)} ({percent(one.kept)})"
    )


def _lost_words(direction: str, lost: Sequence[Beside]) -> str:
    """Who loses most in one direction, and how many others lose as well."""
    own = sorted((one for one in lost if one.direction == direction), key=lambda one: one.kept)
    if not own:
        return ""
    others = len(own) - 1
    more = f"; {others} other case{'s' * (others > 1)} keep{'s' * (others == 1)} under {round_percent(KEEPS)}"
    return f"Beside {own[0].beside_words} {_words(own[0])}{more if others else ''}."


def _shared_title(lost: Sequence[Beside]) -> str:
    kept = percent(min(one.kept for one in lost))
    pairs = {tuple(sorted((one.gpu_index, int(one.beside)))) for one in lost if one.beside.isdecimal()}
    if pairs:
        named = listed([f"GPUs {first} and {second}" for first, second in sorted(pairs)])
        return f"Uplinks are shared by {named}: {kept} of a rate is kept"
    members = listed([str(index) for index in sorted({one.gpu_index for one in lost})])
    return f"An uplink is shared: {kept} of a rate is kept while all copy (GPU {members})"

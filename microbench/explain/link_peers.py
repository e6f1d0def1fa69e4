"""Explains link_peer: each pair of GPUs, which are slower than others, and which gave nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.model import Outcome
from microbench.stats import Row
from microbench.units import as_time, percent, quantity, round_percent, times

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

"""Explains link_peer: each pair of GPUs, which are slower than others, and which cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.limits import ceiling
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


def refusals(evidence: Evidence) -> dict[str, list[Pair]]:
    """Why pairs could not be measured with peer access, and which they are."""
    found: dict[str, dict[Pair, None]] = {}
    for outcome in evidence.outcomes("link_peer"):
        pair = pair_of(outcome.case.params)
        if outcome.status != "ok" and pair is not None and outcome.case.params.get("access") == "on":
            found.setdefault(outcome.reason or "no reason given", {})[pair] = None
    return {reason: list(members) for reason, members in found.items()}


def named(members: Iterable[Pair]) -> str:
    """Pairs by name, the first few of many."""
    words = [pair.words for pair in members]
    more = [f"{len(words) - NAMED} more"] if len(words) > NAMED else []
    return listed([*words[:NAMED], *more])


def peers(evidence: Evidence) -> list[Finding]:
    """How fast pairs exchange data, which of them are slower, and what peer access brings."""
    way = usual_way(evidence)
    refused = refusals(evidence)
    if way is None:
        return [_none(refused)] if refused else []
    found = pairs(evidence, way)
    best, worst = (pick(found, key=lambda pair: found[pair].value) for pick in (max, min))
    slow = [pair for pair, row in found.items() if row.value < SLOW * found[best].value]
    words = [f"By {WAYS[way]}, {_span(found, best, worst)}.", _limit(evidence, found[best])]
    words += [_ways(evidence, best, way), _latency(evidence), _without(evidence, found), _refused(refused)]
    if slow:
        words.append(f"{named(slow)} lie further apart: keep what talks much on pairs that are close.")
    missing = {pair for members in refused.values() for pair in members} - set(found)
    title = f"GPU to GPU: {quantity(found[best].value, 'B/s')}"
    if slow:
        title += f" at best, {quantity(found[worst].value, 'B/s')} from {worst.words}"
    return [
        Finding(
            rule="link.peers",
            severity="advice" if slow or refused else "good",
            title=title + (f"; {len(missing)} pair{'s' * (len(missing) != 1)} cannot" if missing else ""),
            text=" ".join(word for word in words if word),
            threshold=f"a pair under {round_percent(SLOW)} of the fastest is slow",
            rests_on=rests_on(*found.values(), *pairs(evidence, LATENCY).values()),
            suite="link",
        )
    ]


def _none(refused: dict[str, list[Pair]]) -> Finding:
    return Finding(
        rule="link.peers",
        severity="advice",
        title="No pair of GPUs reaches each other",
        text=_refused(refused),
        threshold="every pair skipped or failed",
        suite="link",
    )


def _span(found: dict[Pair, Row], best: Pair, worst: Pair) -> str:
    low, high = quantity(found[worst].value, "B/s"), quantity(found[best].value, "B/s")
    if len(found) == 1:
        return f"{best.words} {high}"
    if low == high:
        return f"all {len(found)} pairs {high}"
    return f"{len(found)} pairs from {low} ({worst.words}) to {high} ({best.words})"


def _limit(evidence: Evidence, row: Row) -> str:
    limit = ceiling(row.measurement.bound, evidence.gpu)
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


def _refused(refused: dict[str, list[Pair]]) -> str:
    words = [f"{named(members)}: {reason}" for reason, members in refused.items()]
    return f"Not measured: {'; '.join(words)}." if words else ""

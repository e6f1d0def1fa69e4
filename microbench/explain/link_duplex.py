"""Explains link_bidirectional: what both directions carry together, and which one gives way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding, Severity
from microbench.explain.link_copies import DIRECTIONS, fastest
from microbench.explain.link_facts import OTHERS_BUSY, partly_alone
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent

TAKES_TURNS = 0.65
GIVES_WAY = 0.05


class Both(NamedTuple):
    """One direction, alone and while the other one works."""

    alone: Row
    beside: Row
    total: Row

    @property
    def kept(self) -> float:
        """The share of its rate that it keeps."""
        return self.beside.value / self.alone.value


def both(evidence: Evidence) -> dict[str, Both]:
    """Each direction at its largest size, where it was measured alone as well."""
    found = {}
    for direction in DIRECTIONS:
        peak = fastest(evidence, direction)
        curve = evidence.curve("link_bidirectional", "bandwidth", "size_bytes", direction=direction)
        sums = dict(evidence.curve("link_bidirectional", "sum_bandwidth", "size_bytes", direction=direction))
        known = [(row, sums[size]) for size, row in curve if size in sums and row.value > 0 and sums[size].value > 0]
        if peak is not None and known:
            found[direction] = Both(peak[1], *known[-1])
    return found


def together(evidence: Evidence) -> list[Finding]:
    """The sum of both directions against twice one, and which one suffers."""
    found = both(evidence)
    if len(found) < len(DIRECTIONS):
        return []
    alone = sum(one.alone.value for one in found.values())
    total = max((one.total for one in found.values()), key=lambda row: row.value)
    share = total.value / alone
    ended = [direction for direction, one in found.items() if partly_alone(one.beside)]
    severity: Severity = "note" if ended else "good"
    if share < TAKES_TURNS:
        severity = "warning"
    return [
        Finding(
            rule="link.both",
            severity=severity,
            title=f"Both directions at once carry {quantity(total.value, 'B/s')}, {percent(share)} of twice one alone",
            text=f"{_kept(found)}{_ended_first(ended)}{_limit(evidence, total)} {_meaning(found, share)}",
            threshold=f"warning under {round_percent(TAKES_TURNS)} of both alone; the sum while both are busy",
            rests_on=(*rests_on(*(row for one in found.values() for row in one)), *([OTHERS_BUSY] if ended else [])),
            suite="link",
        )
    ]


def _kept(found: dict[str, Both]) -> str:
    words = [
        f"{DIRECTIONS[direction]} {quantity(one.beside.value, 'B/s')} of {quantity(one.alone.value, 'B/s')} "
        f"({percent(one.kept)})"
        for direction, one in found.items()
    ]
    return f"While the other works, copies keep {listed(words)}."


def _ended_first(ended: Sequence[str]) -> str:
    """What the kept rates are of where the other direction was done too early; the sum counts only both."""
    if not ended:
        return ""
    words = listed([DIRECTIONS[direction] for direction in ended])
    return f" Beside copies {words} the other direction ended first, so what they keep is partly that of one alone."


def _limit(evidence: Evidence, total: Row) -> str:
    limit = evidence.ceiling(total)
    if limit is None:
        return ""
    return f" The sum is {percent(total.value / limit.value)} of its ceiling, {quantity(limit.value, 'B/s')}."


def _meaning(found: dict[str, Both], share: float) -> str:
    if share < TAKES_TURNS:
        return (
            "Link or memory take turns: look for a memory channel, an uplink or a processor link that carries both, "
            "and do not count on overlapping the two directions."
        )
    weak, strong = sorted(found, key=lambda direction: found[direction].kept)
    if found[strong].kept - found[weak].kept < GIVES_WAY:
        lost = 1 - found[weak].kept
        alike = "both give way by about as much" if lost > GIVES_WAY else "neither gives way to the other"
        return f"Overlap copies both ways: {alike}."
    reason = "its requests wait behind the other's data" if weak == "h2d" else "the other's requests take its place"
    return f"Overlap copies both ways; the one {DIRECTIONS[weak]} gives way, as {reason}."

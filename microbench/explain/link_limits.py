"""Explains figures above their ceiling: there are none, so an assumption behind the ceiling is wrong."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.limits import Ceiling
from microbench.stats import Row
from microbench.units import percent, quantity

NAMED = 3


def exceeds(row: Row, limit: Ceiling) -> bool:
    """Whether a rate is above its limit by more than its interval."""
    return limit.unit == row.metric.unit and row.interval.low > limit.value


def over_limit(evidence: Evidence) -> list[Finding]:
    """Rates that are higher than their limit allows."""
    limits = [(row, evidence.ceiling(row)) for row in evidence.suite("link")]
    found = [(row, limit) for row, limit in limits if limit is not None and exceeds(row, limit)]
    if not found:
        return []
    worst, limit = max(found, key=lambda one: one[0].value / one[1].value)
    named = "; ".join(f"{row.case_id} {quantity(row.value, 'B/s')}" for row, _ in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    behind = ", ".join((limit.source, *limit.assumptions))
    return [
        Finding(
            rule="link.over_limit",
            severity="warning",
            title=f"A figure is {percent(worst.value / limit.value)} of its ceiling, so the ceiling is wrong",
            text=(
                f"{named}{more}. The ceiling of {quantity(limit.value, 'B/s')} rests on: {behind}. One of these is not "
                "so on this machine (a larger payload, a faster link than reported): do not rely on percentages of it."
            ),
            threshold="a rate above its ceiling by more than its interval",
            rests_on=rests_on(*(row for row, _ in found)),
            suite="link",
        )
    ]

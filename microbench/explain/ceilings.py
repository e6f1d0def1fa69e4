"""Figures above their ceiling: there are none, so an assumption behind the ceiling is wrong. For every suite."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.limits import Ceiling
from microbench.stats import Row
from microbench.units import percent, quantity

NAMED = 3
# A unit that is never idle reaches its ceiling: what is above by less is the clock's own step.
MARGIN = 0.003


def exceeds(row: Row, limit: Ceiling) -> bool:
    """Whether a rate is above its limit by more than its interval and MARGIN."""
    return limit.unit == row.metric.unit and row.interval.low > limit.value * (1 + MARGIN)


def share_of(evidence: Evidence, row: Row) -> float | None:
    """A row's value over its ceiling; None where there is no ceiling in its unit."""
    limit = evidence.ceiling(row)
    return row.value / limit.value if limit is not None and limit.unit == row.metric.unit else None


def beyond_ceiling(evidence: Evidence, suite: str, perhaps: str) -> list[Finding]:
    """Rates of a suite that are higher than their limit allows; ``perhaps`` says what may be the matter."""
    limits = [(row, evidence.ceiling(row)) for row in evidence.suite(suite)]
    found = [(row, limit) for row, limit in limits if limit is not None and exceeds(row, limit)]
    if not found:
        return []
    worst, limit = max(found, key=lambda one: one[0].value / one[1].value)
    named = [f"{row.case_id} {quantity(row.value, row.metric.unit)}" for row, own in found if own == limit][:NAMED]
    more = f" and {len(found) - len(named)} more" if len(found) > len(named) else ""
    behind = ", ".join((limit.source, *limit.assumptions))
    return [
        Finding(
            rule=f"{suite}.over_limit",
            severity="warning",
            title=f"A figure is {percent(worst.value / limit.value)} of its ceiling, so the ceiling is wrong",
            text=(
                f"{'; '.join(named)}{more}. The ceiling of {quantity(limit.value, limit.unit)} rests on: "
                f"{behind}. One of these is not so on this machine ({perhaps}): do not rely on percentages of it."
            ),
            threshold="a rate above its ceiling by more than its interval",
            rests_on=rests_on(*(row for row, _ in found)),
            suite=suite,
        )
    ]

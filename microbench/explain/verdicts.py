"""What the verdicts on link, memory and compute share: rates against ceilings, causes, and ceilings that are wrong."""

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, exceeds, rests_on
from microbench.analysis.limits import Ceiling
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity


class Reached(NamedTuple):
    """A rate and its ceiling; ``what`` names the copies' direction or the kernel."""

    what: str
    row: Row
    limit: Ceiling

    @property
    def share(self) -> float:
        """1 is the ceiling."""
        return self.row.value / self.limit.value

    @property
    def over(self) -> bool:
        return self.row.interval.low > self.limit.value


class Cause(NamedTuple):
    """Something that this run saw and that slows copies or memory down: for the title, as a sentence, and what to do.

    ``certain`` causes follow from facts alone, without any measured copy.
    """

    short: str
    text: str
    advice: str
    rests_on: tuple[str, ...]
    name: str = ""
    certain: bool = False


def beyond_ceiling(evidence: Evidence, suite: str, perhaps: str) -> Finding | None:
    """Rates of a suite above their ceiling, which shows that the ceiling is wrong; ``perhaps`` lists likely causes."""
    limits = [(row, evidence.ceiling(row)) for row in evidence.suite(suite)]
    above = [(row, limit) for row, limit in limits if limit is not None and exceeds(row, limit)]
    if not above:
        return None
    worst, limit = max(above, key=lambda pair: pair[0].value / pair[1].value)
    value, most = quantity(worst.value, worst.metric.unit), quantity(limit.value, limit.unit)
    assumed = ", ".join(limit.assumptions)
    title = f"A figure is {percent(worst.value / limit.value)} of its ceiling, so the ceiling is wrong"
    text = f"{worst.case_id} reaches {value} of {most}.{f' The ceiling assumes: {assumed}.' if assumed else ''}"
    threshold = f"a rate above its ceiling by more than its interval; this ceiling is {limit.source}"
    advice = f"Do not rely on percentages of it: one of its assumptions does not hold here ({perhaps})."
    return Finding(
        f"{suite}.over_limit", "warning", title, text, threshold, rests_on(*(row for row, _ in above)), advice=advice
    )

"""Explains memory_occupancy: how many bytes must be under way, and how threads and loads make them up."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, facts_of, rests_on, whole
from microbench.explain.finding import Finding
from microbench.explain.memory_latency import latency_levels
from microbench.stats import Row
from microbench.units import about_size, as_time, quantity, round_percent

BENCHMARK, BANDWIDTH = "memory_occupancy", "bandwidth"
ENOUGH = 0.9
LOAD_BYTES = 16
NEAR = 1.01
MOST_NAMED = 3


class Flight(NamedTuple):
    """A read with so many bytes under way on each SM."""

    under_way_bytes: int
    row: Row

    @property
    def threads(self) -> int:
        """Threads on each SM."""
        return whole(self.row, "blocks_per_sm") * whole(self.row, "block_threads")


def flights(evidence: Evidence) -> list[Flight]:
    """Reads by the bytes under way on each SM, ascending."""
    found = []
    for row in evidence.rows(BENCHMARK, BANDWIDTH):
        told = [value for value in facts_of(row, "under_way_per_sm") if isinstance(value, int)]
        if told and row.value > 0:
            found.append(Flight(told[-1], row))
    return sorted(found, key=lambda one: (one.under_way_bytes, one.row.value))


def needed(found: list[Flight]) -> Flight | None:
    """The least under way that reaches ENOUGH of the best; None where nothing was tried with less than that."""
    best = max((one.row.value for one in found), default=0.0)
    reaching = next((one for one in found if one.row.value >= ENOUGH * best), None)
    return reaching if reaching is not None and reaching.under_way_bytes > found[0].under_way_bytes else None


def little_bytes(evidence: Evidence, bandwidth: float) -> float | None:
    """Bytes under way on each SM by Little's law: latency of DRAM x bandwidth / SMs."""
    sms = evidence.gpu.sm_count if evidence.gpu is not None else None
    dram = next((one for one in latency_levels(evidence) if one.name == "DRAM"), None)
    return dram.value * bandwidth / sms if dram is not None and sms else None


def under_way(evidence: Evidence) -> list[Finding]:
    """How many bytes fill the memory, against Little's law, and which threads and loads have them under way."""
    found = flights(evidence)
    least = needed(found)
    if least is None:
        return []
    best = max(found, key=lambda one: one.row.value)
    named = ways(found, least)
    little = little_bytes(evidence, best.row.value)
    law = ""
    if little is not None:
        dram = next(one for one in latency_levels(evidence) if one.name == "DRAM")
        law = (
            f" Little's law asks for {about_size(little)} at the latency of an idle memory ({as_time(dram.value)}); a "
            "busy one answers later, so it takes more."
        )
    return [
        Finding(
            rule="memory.under_way",
            severity="note",
            title=(
                f"{round_percent(ENOUGH)} of the bandwidth needs {about_size(least.under_way_bytes)} under way on each "
                "SM"
            ),
            text=(
                f"That is {' or '.join(named)}: {quantity(least.row.value, 'B/s')} of "
                f"{quantity(best.row.value, 'B/s')}.{_fewer(found, least)}{law} A kernel with fewer threads must have "
                "more loads in each: unroll, or load wider."
            ),
            threshold=f"the least under way that reaches {round_percent(ENOUGH)} of the best of memory_occupancy",
            rests_on=rests_on(least.row, best.row),
            suite="memory",
        )
    ]


def _fewer(found: list[Flight], least: Flight) -> str:
    """What the next lower amount that was tried gives: what is needed lies between the two."""
    below_bytes = max(one.under_way_bytes for one in found if one.under_way_bytes < least.under_way_bytes)
    below = max(one.row.value for one in found if one.under_way_bytes == below_bytes)
    return f" With {about_size(below_bytes)}, the next less that was tried, {quantity(below, 'B/s')}."


def ways(found: list[Flight], least: Flight) -> list[str]:
    """Which threads and loads have as much under way as ``least`` and are no slower."""
    same = [one for one in found if one.under_way_bytes <= NEAR * least.under_way_bytes]
    same = [one for one in same if one.under_way_bytes >= least.under_way_bytes and one.row.value >= least.row.value]
    counted = sorted({(one.threads, whole(one.row, "loads")) for one in same}, reverse=True)[:MOST_NAMED]
    return [
        f"{threads} threads with {loads} load{'s' if loads > 1 else ''} of {LOAD_BYTES} bytes each"
        for threads, loads in counted
    ]

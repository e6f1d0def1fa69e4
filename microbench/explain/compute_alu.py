"""Explains ALU instructions: what an SM issues of each in a cycle, and how many must be under way for that."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from microbench.explain.ceilings import share_of
from microbench.explain.compute_units import ALUS, PER_CLOCK, beside, figure, rates
from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, round_percent

BELOW = 0.9
WARP_THREADS = 32
SLACK = 0.02
# Operations of one instruction of one thread: a multiply-add is two, of packed halves four.
OPERATIONS = {"fma_fp64": 2, "fma_fp32": 2, "fma_fp16x2": 4, "fma_bf16x2": 4}


class Instruction(NamedTuple):
    """An ALU instruction: its rate, its latency, and how many of them a warp scheduler's SM must have under way."""

    operation: str
    rate: Row
    share: float | None
    latency: Row | None

    @property
    def under_way(self) -> float | None:
        """Instructions of a warp that an SM needs under way: latency x instructions issued in a cycle."""
        if self.latency is None:
            return None
        # A rate that is a hair above its round figure wants no further instruction.
        exact = self.latency.value * self.rate.value / (WARP_THREADS * OPERATIONS.get(self.operation, 1))
        return float(ceil(exact * (1 - SLACK)))


def instructions(evidence: Evidence) -> list[Instruction]:
    """Every ALU instruction that was measured."""
    return [
        Instruction(
            str(row.params.get("operation")), row, share_of(evidence, row), beside(evidence, row, "latency")
        )
        for row in rates(evidence, ALUS, PER_CLOCK)
    ]  # fmt: skip


def alus(evidence: Evidence) -> list[Finding]:
    """What ALUs issue in a cycle against the architecture's table, and what must be under way for it."""
    found = instructions(evidence)
    if not found:
        return []
    shown = next((one for one in found if one.operation == "fma_fp32"), found[0])
    less = [one.operation for one in found if one.share is not None and one.share < BELOW]
    of_rate = f" ({percent(shown.share)} of the rate)" if shown.share is not None else ""
    needed = f", {shown.under_way:.0f} warp instructions under way fill an SM" if shown.under_way is not None else ""
    ending = f" Below the table's rate: {listed(less)}." if less else ""
    return [
        Finding(
            rule="compute.alu",
            severity="note",
            title=f"{shown.operation} gives {figure(shown.rate)}{of_rate}{needed}",
            text=(
                f"{'; '.join(_instruction_words(one) for one in found)}.{ending} With fewer under way, as warps "
                "or as independent instructions of one, the units wait."
            ),
            threshold=f"under way: latency x rate over {WARP_THREADS} threads; below its rate under "
            f"{round_percent(BELOW)}",
            rests_on=rests_on(*(row for one in found for row in (one.rate, one.latency))),
            suite="compute",
        )
    ]


def _instruction_words(one: Instruction) -> str:
    share = f" ({percent(one.share)})" if one.share is not None else ""
    if one.latency is None or one.under_way is None:
        return f"{one.operation} {figure(one.rate)}{share}"
    return f"{one.operation} {figure(one.rate)}{share}, {figure(one.latency)}: {one.under_way:.0f} under way"

"""The memory suite explained: its rules in the order they are told, the verdict first."""

from __future__ import annotations

from microbench.explain import (
    memory_access,
    memory_allocation,
    memory_causes,
    memory_copy,
    memory_energy,
    memory_latency,
    memory_levels,
    memory_occupancy,
    memory_stream,
    memory_verdict,
)
from microbench.explain.ceilings import beyond_ceiling
from microbench.explain.evidence import Evidence, Rule
from microbench.explain.finding import Finding


def over_limit(evidence: Evidence) -> list[Finding]:
    """Rates that are higher than their limit allows."""
    return beyond_ceiling(
        evidence, "memory", "a memory clock or bus width that is misreported, or a nearer cache answers"
    )


RULES: tuple[Rule, ...] = (
    memory_verdict.verdict,
    over_limit,
    memory_causes.clock,
    memory_stream.python,
    memory_stream.shapes,
    memory_stream.resident,
    memory_levels.levels,
    memory_latency.latency,
    memory_latency.near_and_far,
    memory_latency.translations,
    memory_occupancy.under_way,
    memory_access.stride,
    memory_access.random,
    memory_access.atomic,
    memory_copy.engines,
    memory_allocation.allocate,
    memory_allocation.capacity,
    memory_energy.energy,
)

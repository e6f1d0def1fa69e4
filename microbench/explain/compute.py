"""The compute suite explained: its rules in the order they are told, the verdict first."""

from __future__ import annotations

from microbench.explain import (
    compute_alu,
    compute_energy,
    compute_gemm,
    compute_libraries,
    compute_power,
    compute_shapes,
    compute_tensor,
    compute_verdict,
)
from microbench.explain.ceilings import beyond_ceiling
from microbench.explain.evidence import Evidence, Rule
from microbench.explain.finding import Finding


def over_limit(evidence: Evidence) -> list[Finding]:
    """Rates that are higher than their limit allows."""
    return beyond_ceiling(
        evidence, "compute", "a rate that this board's name does not tell, or a highest clock that is misreported"
    )


RULES: tuple[Rule, ...] = (
    compute_verdict.verdict,
    over_limit,
    compute_power.limited,
    compute_power.loss,
    compute_power.sustained,
    compute_energy.data,
    compute_energy.energy,
    compute_tensor.alone,
    compute_tensor.paths,
    compute_tensor.accumulate,
    compute_gemm.fast,
    compute_gemm.fed_from,
    compute_gemm.searched,
    compute_libraries.candidates,
    compute_libraries.libraries,
    compute_gemm.halved,
    compute_shapes.bounds,
    compute_shapes.launches,
    compute_alu.alus,
)

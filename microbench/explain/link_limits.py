"""Explains figures of the link above their ceiling: there are none, so an assumption behind the ceiling is wrong."""

from __future__ import annotations

from microbench.explain.ceilings import beyond_ceiling
from microbench.explain.evidence import Evidence
from microbench.explain.finding import Finding


def over_limit(evidence: Evidence) -> list[Finding]:
    """Rates that are higher than their limit allows."""
    return beyond_ceiling(evidence, "link", "a larger payload, a faster link than reported")

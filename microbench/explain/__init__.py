"""THE EXPLANATIONS: rules that turn a run into findings, one file a suite; ``findings(run)`` applies them all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from microbench.explain import compute, environment, graph, host, launch, link, memory
from microbench.explain.evidence import Evidence, Rule, evidence_by_device
from microbench.explain.finding import Finding
from microbench.explain.noise import noise
from microbench.model import Run
from microbench.stats import Row

HOST = "host"
RULES: dict[str, tuple[Rule, ...]] = {
    "host": host.RULES,
    "launch": launch.RULES,
    "graph": graph.RULES,
    "link": link.RULES,
    "memory": memory.RULES,
    "compute": compute.RULES,
}


def findings(run: Run, found: Sequence[Row] | None = None) -> list[Finding]:
    """Every finding of a run: what distorts it first, then suite by suite and GPU by GPU.

    ``found`` are the run's rows where the caller has them already. Nothing measured, nothing found; never raises.
    """
    groups = evidence_by_device(run, found)
    result = list(environment.findings(run))
    for suite in RULES:
        for group in groups if suite != HOST else groups[:1]:
            several = len(groups) > 1 and suite != HOST
            result += [_named(finding, group) if several else finding for finding in of_suite(group, suite)]
    return result


def of_suite(evidence: Evidence, suite: str) -> list[Finding]:
    """The findings of one suite on one GPU; none for a suite without rules."""
    if suite not in RULES:
        return []
    return [finding for rule in RULES[suite] for finding in rule(evidence)] + noise(evidence, suite)


def _named(finding: Finding, evidence: Evidence) -> Finding:
    gpu = evidence.gpu
    name = f"GPU {gpu.index}, {gpu.name}" if gpu else str(evidence.device)
    return msgspec.structs.replace(finding, title=f"{name}: {finding.title}")

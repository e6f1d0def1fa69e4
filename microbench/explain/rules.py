"""Lists every rule by suite, in the order in which a report shows findings, and applies them: ``findings(run)``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from microbench.analysis.evidence import Evidence, Finding, Rule, beyond_ceiling, evidence_by_device, rests_on
from microbench.analysis.stats import STABLE_HALF_WIDTH, STABLE_ROUNDS, STEADY_HALF_WIDTH, Row
from microbench.core.model import Run
from microbench.core.units import percent
from microbench.explain import (
    compute_power,
    compute_products,
    compute_units,
    compute_verdict,
    environment,
    graph_rules,
    host,
    launch_rules,
    link_copy,
    link_gpus,
    link_verdict,
    memory_access,
    memory_allocation,
    memory_levels,
    memory_stream,
    memory_verdict,
)

HOST_RULES: tuple[Rule, ...] = (
    host.clock,
    host.calls,
    host.memory,
    host.wakeups,
)

LAUNCH_RULES: tuple[Rule, ...] = (
    launch_rules.cost,
    launch_rules.starving,
    launch_rules.gaps,
    launch_rules.same_kernel,
    launch_rules.one_op,
    launch_rules.queue,
    launch_rules.traffic,
    launch_rules.counters,
    launch_rules.waits,
    launch_rules.calls,
    launch_rules.threads,
    launch_rules.streams,
    launch_rules.kinds,
    launch_rules.arguments,
    launch_rules.cold,
    launch_rules.tails,
)

GRAPH_RULES: tuple[Rule, ...] = (
    graph_rules.break_even,
    graph_rules.crossovers,
    graph_rules.phases,
    graph_rules.replaying,
    graph_rules.upload,
    graph_rules.update,
    graph_rules.kinds,
    graph_rules.one_by_one,
    graph_rules.dependent_launch,
    graph_rules.decided,
    graph_rules.refused,
    graph_rules.shapes,
    graph_rules.memory,
    graph_rules.footprint,
    graph_rules.foresight,
)


def link_over_limit(evidence: Evidence) -> list[Finding]:
    """Rates above their ceiling: an assumption behind the ceiling is wrong."""
    return beyond_ceiling(evidence, "link", "a larger payload, a faster link than reported")


LINK_RULES: tuple[Rule, ...] = (
    link_verdict.link_verdict,
    link_over_limit,
    link_verdict.errors,
    link_verdict.settings,
    link_copy.copy_size,
    link_copy.pinned,
    link_copy.both,
    link_copy.zero_copy,
    link_copy.latency,
    link_gpus.numa,
    link_gpus.concurrent,
    link_gpus.peers,
    link_copy.chunks,
    link_copy.managed,
)

MEMORY_RULES: tuple[Rule, ...] = (
    *memory_verdict.RULES,
    *memory_stream.RULES,
    *memory_levels.RULES,
    *memory_access.RULES,
    *memory_allocation.RULES,
)

COMPUTE_RULES: tuple[Rule, ...] = (
    *compute_verdict.RULES,
    *compute_power.RULES,
    *compute_products.RULES,
    *compute_units.RULES,
)

HOST = "host"
RULES: dict[str, tuple[Rule, ...]] = {
    "host": HOST_RULES,
    "launch": LAUNCH_RULES,
    "graph": GRAPH_RULES,
    "link": LINK_RULES,
    "memory": MEMORY_RULES,
    "compute": COMPUTE_RULES,
}


def findings(run: Run, measured: Sequence[Row] | None = None) -> list[Finding]:
    """Every finding of a run: what distorts it first, then suite by suite and GPU by GPU.

    ``measured`` are the run's rows where the caller has them already. A run without rows has no findings of a suite.
    """
    groups = evidence_by_device(run, measured)
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


NOISY_SHARE = 0.25


def noise(evidence: Evidence, suite: str) -> list[Finding]:
    """How far a suite's figures can be trusted as a whole: a warning if many are noisy, a note if one process made
    them."""
    measured = evidence.suite(suite)
    if not measured:
        return []
    noisy = [row for row in measured if row.trust in ("noisy", "throttled")]
    share, rounds = len(noisy) / len(measured), median(len(row.outcomes) for row in measured)
    if share > NOISY_SHARE:
        again = f" with --rounds {STABLE_ROUNDS}" if rounds < STABLE_ROUNDS else ""
        widest = STEADY_HALF_WIDTH if rounds < STABLE_ROUNDS else STABLE_HALF_WIDTH
        return [
            Finding(
                rule=f"{suite}.noise",
                severity="warning",
                title=f"{len(noisy)} figures of this suite are noisy or throttled ({percent(share)})",
                text="Something else runs on this machine, or its clocks move.",
                advice=f"See what distorts this run, close other work and repeat{again}.",
                threshold=f"over {percent(NOISY_SHARE)} of the rows wider than ±{percent(widest)}, or throttled",
                rests_on=rests_on(*noisy),
                suite=suite,
            )
        ]
    if rounds >= STABLE_ROUNDS:
        return []
    return [
        Finding(
            rule=f"{suite}.rounds",
            severity="note",
            title="Each figure comes from one process: steady at best, not stable",
            text="Another process may settle a few percent away.",
            advice=f"Compare machines or versions only from runs with --rounds {STABLE_ROUNDS} or more.",
            threshold=f"fewer than {STABLE_ROUNDS} rounds",
            suite=suite,
        )
    ]

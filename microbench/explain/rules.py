"""THE EXPLANATIONS: rules that turn a run into findings, one file a suite; ``findings(run)`` applies them all."""

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
    graph_change,
    graph_gains,
    graph_nodes,
    host,
    launch_cost,
    launch_ways,
    link_copy,
    link_gpus,
    link_verdict,
    memory_access,
    memory_allocation,
    memory_levels,
    memory_stream,
    memory_verdict,
)
from microbench.predict import model_check

COMPUTE_RULES: tuple[Rule, ...] = (
    *compute_verdict.RULES,
    *compute_power.RULES,
    *compute_products.RULES,
    *compute_units.RULES,
)


# The graph suite explained: its rules in the order they are told.


GRAPH_RULES: tuple[Rule, ...] = (
    graph_gains.break_even,
    graph_gains.crossovers,
    graph_gains.no_help,
    graph_gains.phases,
    graph_change.replaying,
    graph_change.upload,
    graph_change.update,
    graph_nodes.kinds,
    graph_nodes.one_by_one,
    graph_nodes.dependent_launch,
    graph_nodes.decided,
    graph_nodes.refused,
    graph_nodes.shapes,
    graph_nodes.memory,
    graph_change.footprint,
    model_check.foresight,
)


# The launch suite explained: its rules in the order they are told.


LAUNCH_RULES: tuple[Rule, ...] = (
    launch_cost.cost,
    launch_cost.starving,
    launch_cost.gaps,
    launch_cost.same_kernel,
    launch_cost.one_op,
    launch_ways.queue,
    launch_ways.traffic,
    launch_ways.counters,
    launch_ways.waits,
    launch_ways.calls,
    launch_ways.threads,
    launch_ways.streams,
    launch_ways.kinds,
    launch_ways.arguments,
    launch_ways.cold,
    launch_cost.tails,
)


# The link suite: its rules in the order of their findings, the verdict first.


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


# How far a suite's figures can be trusted as a whole: grades counted, with the next step.


NOISY_SHARE = 0.25


def noise(evidence: Evidence, suite: str) -> list[Finding]:
    """A warning when too many rows are noisy or throttled; else how to make them stable, if only one process spoke."""
    found = evidence.suite(suite)
    noisy = [row for row in found if row.trust in ("noisy", "throttled")]
    if not found:
        return []
    share = len(noisy) / len(found)
    rounds = median(len(row.outcomes) for row in found)
    if share > NOISY_SHARE:
        return [_noisy(suite, noisy, share, rounds)]
    if rounds >= STABLE_ROUNDS:
        return []
    return [
        Finding(
            rule=f"{suite}.rounds",
            severity="note",
            title="One process each: these figures are steady at best, not stable",
            text=(
                "Another process may settle a few percent away. Compare machines or versions only from runs with "
                f"--rounds {STABLE_ROUNDS} or more, which measure in fresh processes."
            ),
            threshold=f"fewer than {STABLE_ROUNDS} rounds",
            suite=suite,
        )
    ]


def _noisy(suite: str, noisy: list[Row], share: float, rounds: float) -> Finding:
    widest = STEADY_HALF_WIDTH if rounds < STABLE_ROUNDS else STABLE_HALF_WIDTH
    return Finding(
        rule=f"{suite}.noise",
        severity="warning",
        title=f"{len(noisy)} figures of this suite are noisy or throttled ({percent(share)})",
        text=(
            "Something else runs on this machine, or its clocks move. See what distorts this run, close other work and "
            + (f"repeat with --rounds {STABLE_ROUNDS}." if rounds < STABLE_ROUNDS else "repeat.")
        ),
        threshold=f"over {percent(NOISY_SHARE)} of the rows wider than ±{percent(widest)}, or throttled",
        rests_on=rests_on(*noisy),
        suite=suite,
    )


HOST = "host"
RULES: dict[str, tuple[Rule, ...]] = {
    "host": host.RULES,
    "launch": LAUNCH_RULES,
    "graph": GRAPH_RULES,
    "link": LINK_RULES,
    "memory": MEMORY_RULES,
    "compute": COMPUTE_RULES,
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

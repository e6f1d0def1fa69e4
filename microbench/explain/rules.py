"""Applies the rules of every file to a run, suite by suite in the order of a report; here those of the host suite."""

from collections.abc import Sequence
from statistics import median

import msgspec

from microbench.analysis.evidence import (
    Evidence,
    Finding,
    Rule,
    evidence_by_device,
    rests_on,
    row_name,
    rule,
    said,
    with_grade,
)
from microbench.analysis.stats import STABLE_HALF_WIDTH, STABLE_ROUNDS, STEADY_HALF_WIDTH, Row
from microbench.core.model import Run
from microbench.core.units import as_time, percent, round_percent, times
from microbench.explain import (
    compute_products,
    compute_units,
    compute_verdict,
    environment,
    graph_rules,
    launch_rules,
    link_paths,
    link_rules,
    link_verdict,
    memory_access,
    memory_levels,
    memory_verdict,
    own,
)

COARSE_CLOCK_S = 1e-6
SLEEP_RATIO = 3.0


@rule("host.clock", f"step or reading above {as_time(COARSE_CLOCK_S)}")
def clock(evidence: Evidence) -> Finding | None:
    """Whether the host's clock can time single calls."""
    step, call = evidence.row("host_timer", "step"), evidence.row("host_timer", "call")
    if step is None or call is None:
        return None
    coarse = max(step.value, call.value) > COARSE_CLOCK_S
    title = f"The host's clock is {'too coarse' if coarse else 'fine enough'} to time single calls"
    text = f"A reading takes {as_time(call.value)}, and it moves in steps of {as_time(step.value)}."
    advice = "Use tsc as the kernel's clock source instead of hpet or acpi_pm." if coarse else ""
    return said(title, text, advice, rows=(step, call), severity="warning" if coarse else "good")


@rule("host.wakeup", f"a sleeping hand-off above {SLEEP_RATIO:g} times a spinning one")
def wakeups(evidence: Evidence) -> Finding | None:
    """What it costs to wake a sleeping thread against one that spins."""
    spin = evidence.row("host_wakeup", "round_trip", how="spin")
    sleeping = [row for how in ("event", "pipe") if (row := evidence.row("host_wakeup", "round_trip", how=how))]
    if spin is None or not sleeping:
        return None
    least = min(row.value for row in sleeping)
    slow = least > spin.value * SLEEP_RATIO
    title = f"Waking a sleeping thread takes {as_time(least)}, {times(least / spin.value)} a spinning hand-off"
    text = "A blocking wait for the GPU pays for such a wake-up."
    advice = "Spin while waiting for short GPU work." if slow else ""
    return said(title, text, advice, rows=(spin, *sleeping))


HOST = "host"
RULES: dict[str, tuple[Rule, ...]] = {
    "host": (clock, wakeups),
    "launch": launch_rules.RULES,
    "graph": graph_rules.RULES,
    "link": (*link_verdict.RULES, *link_rules.RULES, *link_paths.RULES),
    "memory": (*memory_verdict.RULES, *memory_levels.RULES, *memory_access.RULES),
    "compute": (*compute_verdict.RULES, *compute_products.RULES, *compute_units.RULES),
    "own": own.RULES,
}


def findings(run: Run, measured: Sequence[Row] | None = None) -> list[Finding]:
    """Every finding of a run: what distorts it first, then suite by suite and GPU by GPU.

    ``measured`` are the run's rows where the caller has them already. A run without rows has no findings of a suite.
    """
    groups = evidence_by_device(run, measured)
    result = list(environment.findings(run))
    for suite in RULES:
        for group in groups if suite != HOST else groups[:1]:
            found = of_suite(group, suite)
            if len(groups) > 1 and suite != HOST:
                name = f"GPU {group.gpu.index}, {group.gpu.name}" if group.gpu else str(group.device)
                found = [msgspec.structs.replace(each, title=f"{name}: {each.title}") for each in found]
            result += found
    return result


def of_suite(evidence: Evidence, suite: str, *, reference: bool = False, checks: bool = True) -> list[Finding]:
    """The findings of one suite on one GPU; none for a suite without rules. ``reference``: the run is a bundled one.
    Without ``checks`` the model is not checked, which takes long and gives a note at most."""
    if suite not in RULES:
        return []
    by_name = {row_name(row): row for row in evidence.all_rows()}
    rules = [rule for rule in RULES[suite] if checks or rule is not graph_rules.foresight]
    found = [finding for rule in rules if (finding := rule(evidence)) is not None]
    graded = [with_grade(each, [by_name[name] for name in each.rests_on if name in by_name]) for each in found]
    own = noise(evidence, suite, reference=reference)
    return graded if own is None else [*graded, own]


NOISY_SHARE = 0.25
NOISE = ".noise"


def noise(evidence: Evidence, suite: str, *, reference: bool = False) -> Finding | None:
    """How far a suite's figures can be trusted: a warning if many are noisy, a note if each comes from one process.

    A bundled run (``reference``) cannot be repeated, so its advice only says how to read the figures.
    """
    measured = evidence.suite(suite)
    if not measured:
        return None
    noisy = [row for row in measured if row.trust in ("noisy", "throttled")]
    share, rounds = len(noisy) / len(measured), median(len(row.outcomes) for row in measured)
    if share > NOISY_SHARE:
        again = f" with --rounds {STABLE_ROUNDS}" if rounds < STABLE_ROUNDS else ""
        widest = STEADY_HALF_WIDTH if rounds < STABLE_ROUNDS else STABLE_HALF_WIDTH
        title = f"{len(noisy)} figures of the {suite} suite are noisy or throttled ({percent(share)})"
        text = "Something else ran on the machine, or its clocks moved."
        threshold = (
            f"over {percent(NOISY_SHARE)} of the rows wider than ±{percent(widest)}, at two levels, or throttled"
        )
        advice = (
            "Read figures marked ○ or ▼ as rough."
            if reference
            else f"Look for the cause with `microbench doctor`, close other work and repeat{again}."
        )
        return Finding(f"{suite}{NOISE}", "warning", title, text, threshold, rests_on(*noisy), advice=advice)
    if rounds >= STABLE_ROUNDS:
        return None
    title = "Each figure comes from one process: steady at best, not stable"
    text = f"A stable figure has {STABLE_ROUNDS} processes that agree within ±{round_percent(STABLE_HALF_WIDTH)}."
    threshold = f"fewer than {STABLE_ROUNDS} rounds"
    advice = f"Compare machines or versions only from runs with --rounds {STABLE_ROUNDS} or more."
    return Finding(f"{suite}.rounds", "note", title, text, threshold, advice=advice)

"""How far a suite's figures can be trusted as a whole: grades counted, with the next step."""

from __future__ import annotations

from statistics import median

from microbench.explain.evidence import Evidence, rests_on
from microbench.explain.finding import Finding
from microbench.stats import STABLE_HALF_WIDTH, STABLE_ROUNDS, STEADY_HALF_WIDTH, Row
from microbench.units import percent

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

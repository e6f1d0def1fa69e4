"""Explains a comparison: its one line, what moved together, what the host and the SM clock did, what is unclear."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from microbench.compare import BETTER, COUNTED, MINIMUM_ROUNDS, VERDICTS, WORSE, Change, Comparison, HostDrift
from microbench.compare_decision import FALSE_DISCOVERIES, HOST_DRIFT, SMALLEST_CHANGE
from microbench.explain.comparison_notices import SUITE, figures_in_words
from microbench.explain.comparison_unclear import SMALLEST, hidden, unclear
from microbench.explain.evidence import row_name
from microbench.explain.finding import Finding, Severity
from microbench.explain.remeasuring import Side
from microbench.units import percent, ratio, round_percent

LEAST_TOGETHER = 4
# Of a drift of the whole host its figures speak with one voice, but for a few.
MOST_OF_THE_HOST = 0.9
LARGEST_DRIFT = round_percent(math.expm1(HOST_DRIFT))
BEYOND_DRIFT = f"That is more than hosts were seen to drift by ({LARGEST_DRIFT}): each figure is judged as measured."
WITHIN_DRIFT = (
    "A host drifts by as much from run to run, so this is taken off each figure before it is judged, and --fail-on "
    f"does not see it. To tell a drift from a change, measure the two in turn, {MINIMUM_ROUNDS} times a round of "
    "each: run --into adds them up."
)
RULE = (
    f"the whole 95 % interval of the ratio beyond {SMALLEST}; false discoveries held to {percent(FALSE_DISCOVERIES)} "
    "over all suites (Benjamini-Hochberg in each)"
)


def summary(comparison: Comparison) -> Finding:
    """The comparison in one line: "3 slower, 1 faster, 412 same, 7 unclear, 2 incomparable"."""
    counted = {verdict: len(comparison.of(verdict)) for verdict in VERDICTS}
    words = [f"{count} {verdict}" for verdict, count in counted.items() if count or verdict == "same"]
    changed = any(counted[verdict] for verdict in (*BETTER, *COUNTED))
    severity: Severity = "note" if changed or not counted["same"] else "good"
    return Finding(
        rule="compare.changes",
        severity="problem" if any(counted[verdict] for verdict in WORSE) else severity,
        title=", ".join(words) if comparison.changes else "The two runs have no figure in common",
        text="",
        threshold=RULE,
        suite=SUITE,
    )


def findings(comparison: Comparison, base: Side, new: Side) -> list[Finding]:
    """What the verdicts come down to: a host far slower, what moved together, what host and clock did, what is
    unclear with what to run for it, and what could hide. ``base`` and ``new`` say what the runs are called."""
    host = list(_host(comparison.drifts))
    return [
        *(one for one in host if one.severity == "problem"),
        *_together(comparison),
        *(one for one in host if one.severity != "problem"),
        *_clock(comparison),
        *unclear(comparison, base, new),
        *hidden(comparison),
    ]


def _together(comparison: Comparison) -> Iterator[Finding]:
    """Benchmarks of which many figures changed the same way."""
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for one in comparison.of(*WORSE, *BETTER):
        groups.setdefault((one.new.benchmark, one.verdict, one.metric.kind), []).append(one)
    for (benchmark, verdict, kind), found in groups.items():
        if len(found) < LEAST_TOGETHER:
            continue
        everything = sum((one.new.benchmark, one.metric.kind) == (benchmark, kind) for one in comparison.changes)
        middle = float(np.median([one.judged.median for one in found if one.judged is not None]))
        yield Finding(
            rule="compare.together",
            severity="problem" if verdict in WORSE else "good",
            title=f"{len(found)} of {everything} {kind}s of {benchmark} are {verdict}: {ratio(middle)} in the median",
            text="Figures of one benchmark that move together mostly have one cause: look for that first.",
            threshold=f"{LEAST_TOGETHER} or more figures of a benchmark with one verdict",
            rests_on=tuple(row_name(one.new) for one in found),
            suite=SUITE,
        )


def _host(drifts: tuple[HostDrift, ...]) -> Iterator[Finding]:
    """What the times and rates did together that the host's clock measured: alike suites in one finding, the farthest
    first."""
    groups: dict[tuple[bool, str, bool], list[HostDrift]] = {}
    for one in sorted(drifts, key=lambda one: -abs(math.log(one.ratio))):
        whole = one.went >= MOST_OF_THE_HOST * one.rows
        groups.setdefault((one.counted, "slower" if one.ratio > 1 else "faster", whole), []).append(one)
    for (counted, way, whole), found in groups.items():
        yield Finding(
            rule="compare.host",
            severity=_host_severity(counted, way, whole),
            title=_throughout(found, way) if whole else _some(found, way),
            text=BEYOND_DRIFT if counted else WITHIN_DRIFT,
            threshold=f"the median cost of what the host's clock timed moved by {SMALLEST} or more",
            suite=SUITE,
        )


def _host_severity(counted: bool, way: str, whole: bool) -> Severity:
    if counted and whole:
        return "problem" if way == "slower" else "good"
    return "advice" if counted or not whole else "note"


def _throughout(found: list[HostDrift], way: str) -> str:
    first, *others = found
    suites = [
        f"{first.rows} of its figures of {first.suite} by {_by(first)}",
        *(f"{one.rows} of {one.suite} by {_by(one)}" for one in others),
    ]
    return f"The host was {way} throughout: {', '.join(suites)} in the median"


def _some(found: list[HostDrift], way: str) -> str:
    suites = (f"{one.went} of {one.rows} of {one.suite} (the median of all is {_by(one)} {way})" for one in found)
    return f"Of the host's figures many were {way}: {', '.join(suites)}"


def _by(drift: HostDrift) -> str:
    return percent(abs(drift.ratio - 1))


def _clock(comparison: Comparison) -> Iterator[Finding]:
    """Figures that moved as the SM clock did, and no farther."""
    beyond = math.exp(SMALLEST_CHANGE)
    moved = [
        one
        for one in comparison.of("same")
        if one.by == "clock" and one.ratio is not None and (one.ratio.low > beyond or one.ratio.high < 1 / beyond)
    ]
    if moved:
        sizes = float(np.median([abs(math.log(one.ratio.median)) for one in moved if one.ratio is not None]))
        yield Finding(
            rule="compare.clock",
            severity="note",
            title=f"{figures_in_words(moved)} moved with the SM clock alone, by {percent(math.expm1(sizes))}",
            text="At one SM clock they are the same: the card was warmer or cooler, or spent its power elsewhere.",
            threshold=f"beyond {SMALLEST} as measured, the same at one SM clock",
            rests_on=tuple(row_name(one.new) for one in moved),
            suite=SUITE,
        )

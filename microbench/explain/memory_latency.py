"""Explains memory_latency: a dependent read from every level, the near and far part of the L2, and TLB reaches."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence, facts_of, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.explain.memory_levels import (
    BEYOND_L2,
    SAME,
    SURELY_DRAM_BYTES,
    Plateau,
    Point,
    crossing,
    ends,
    footprints,
    l2_bytes,
    plateaus,
    reaches,
    runs,
    shared_row,
)
from microbench.stats import Row
from microbench.units import about_size, as_time, percent, quantity, size, times

BENCHMARK = "memory_latency"
LATENCY, CYCLES, LINES = "latency", "cycles", "line_cycles"
MOST_STEPS = 3
APART = "two groups of lines with a valley between them, each 5 % of them or more"


class Step(NamedTuple):
    """A rise of the latency within DRAM: from where on, by how much."""

    reach_bytes: float
    before: float
    after: float


class Modes(NamedTuple):
    """The near and the far part of the L2 as one SM sees them, in cycles; the share of lines that are near."""

    row: Row
    near: float
    far: float
    near_share: float


def latency_levels(evidence: Evidence, metric: str = LATENCY) -> list[Plateau]:
    """L1, L2 and DRAM, the last up to the first step within it."""
    points = footprints(evidence, BENCHMARK, metric)
    found = [one for one in plateaus(points, l2_bytes(evidence)) if one.name != "DRAM"]
    beyond = _beyond_l2(evidence, points)
    if not beyond:
        return found
    first = runs(beyond)[0]
    return [*found, Plateau("DRAM", statistics.median(row.value for _, row in first), tuple(first))]


def _beyond_l2(evidence: Evidence, points: Sequence[Point]) -> list[Point]:
    reported = l2_bytes(evidence)
    least_bytes = BEYOND_L2 * reported if reported else SURELY_DRAM_BYTES
    return [one for one in points if one[0] >= least_bytes]


def steps(evidence: Evidence, metric: str = CYCLES) -> list[Step]:
    """Rises within DRAM by more than SAME to a run of sets, or to the largest set: a translation cache ends there."""
    beyond = _beyond_l2(evidence, footprints(evidence, BENCHMARK, metric))
    groups = runs(beyond)
    kept = [one for index, one in enumerate(groups) if len(one) > 1 or index in (0, len(groups) - 1)]
    found = []
    for below, above in itertools.pairwise(kept):
        before, after = (statistics.median(row.value for _, row in one) for one in (below, above))
        between = [one for one in beyond if below[-1][0] <= one[0] <= above[0][0]]
        at = crossing(between, math.sqrt(before * after))
        if after > SAME * before and at is not None:
            found.append(Step(at, before, after))
    return found[:MOST_STEPS]


def latency(evidence: Evidence) -> list[Finding]:
    """What a read costs that the next one waits for, level by level."""
    found = latency_levels(evidence)
    if not found:
        return []
    cycles = {one.name: one.value for one in latency_levels(evidence, CYCLES)}
    shared, shared_cycles = shared_row(evidence, BENCHMARK, LATENCY), shared_row(evidence, BENCHMARK, CYCLES)
    words = [_level_words(one.name, one.value, cycles.get(one.name)) for one in found]
    if shared is not None:
        in_cycles = shared_cycles.value if shared_cycles is not None else None
        words.insert(0, _level_words("shared memory", shared.value, in_cycles))
    title = ", ".join(f"{one.name} {as_time(one.value)}" for one in found)
    held = ends(footprints(evidence, BENCHMARK, LATENCY), found)
    seen = f" As one SM sees it, {reaches(held)}." if held else ""
    return [
        Finding(
            rule="memory.latency",
            severity="note",
            title=f"A dependent read takes: {title}",
            text=(
                f"One thread that waits for each read: {listed(words)}.{seen} What follows pointers runs at this pace; "
                "have many reads under way, or keep what is chased in a nearer level."
            ),
            threshold="dependent reads in random order, medians over the sets of a level",
            rests_on=rests_on(shared, *(row for one in found for _, row in one.points)),
            suite="memory",
        )
    ]


def _level_words(name: str, seconds: float, cycles: float | None) -> str:
    counted = f" ({quantity(cycles, 'cycle')})" if cycles is not None else ""
    return f"{name} {as_time(seconds)}{counted}"


def translations(evidence: Evidence) -> list[Finding]:
    """Steps within DRAM: the reach of translation caches."""
    found = steps(evidence)
    if not found:
        return []
    words = [
        f"from {quantity(one.before, 'cycle')} to {quantity(one.after, 'cycle')} near {about_size(one.reach_bytes)}"
        for one in found
    ]
    return [
        Finding(
            rule="memory.tlb",
            severity="note",
            title=f"TLB reach about {listed([about_size(one.reach_bytes) for one in found])}",
            text=(
                f"Reads from DRAM rise {listed(words)}: beyond it each also waits for its page's address. Random "
                f"accesses over more than {about_size(found[0].reach_bytes)} pay it: sort or partition them by address."
            ),
            threshold=f"a rise of over {percent(SAME - 1)} among sets of at least {BEYOND_L2} times the L2",
            rests_on=rests_on(*(row for _, row in _beyond_l2(evidence, footprints(evidence, BENCHMARK, CYCLES)))),
            suite="memory",
        )
    ]


def l2_modes(evidence: Evidence) -> Modes | None:
    """The near and far part of the L2 of the smallest set that shows both."""
    for row in sorted(evidence.rows(BENCHMARK, LINES), key=lambda one: whole(one, "footprint_bytes")):
        near, far, share = (_number(row, name) for name in ("l2_near", "l2_far", "l2_near_share"))
        if near and far and share is not None:
            return Modes(row, near, far, share)
    return None


def _number(row: Row, name: str) -> float | None:
    """A fact of the newest round that says it."""
    told = [value for value in facts_of(row, name) if isinstance(value, int | float)]
    return float(told[-1]) if told else None


def near_and_far(evidence: Evidence) -> list[Finding]:
    """Lines of the L2 that answer an SM sooner than others, or that all answer alike."""
    modes = l2_modes(evidence)
    if modes is None:
        return _one_mode(evidence)
    return [
        Finding(
            rule="memory.l2_modes",
            severity="note",
            title=(
                f"The L2 has a near and a far part: {quantity(modes.near, 'cycle')} and {quantity(modes.far, 'cycle')}"
            ),
            text=(
                f"Seen from one SM, {percent(modes.near_share)} of the lines of {_set(modes.row)} answer in "
                f"{quantity(modes.near, 'cycle')}, the others in {quantity(modes.far, 'cycle')} "
                f"({times(modes.far / modes.near)}). Addresses are hashed over both, so no simple layout keeps to "
                "the near one: expect the mean, and such a spread."
            ),
            threshold=APART,
            rests_on=rests_on(modes.row),
            suite="memory",
        )
    ]


def _one_mode(evidence: Evidence) -> list[Finding]:
    alike = [row for row in evidence.rows(BENCHMARK, LINES) if 1 in facts_of(row, "l2_modes")]
    if not alike:
        return []
    row = alike[0]
    return [
        Finding(
            rule="memory.l2_modes",
            severity="note",
            title=f"All lines of the L2 answer alike: {quantity(row.value, 'cycle')}",
            text=f"No near and far part separate among the lines of {_set(row)}, seen from one SM.",
            threshold=APART,
            rests_on=rests_on(row),
            suite="memory",
        )
    ]


def _set(row: Row) -> str:
    return f"a set of {size(whole(row, 'footprint_bytes'))}"

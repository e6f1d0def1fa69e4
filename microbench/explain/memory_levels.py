"""The levels of memory: plateaus of bandwidth and latency over the working set, and where each level ends."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, rule, said, whole
from microbench.analysis.stats import Row
from microbench.core.units import quantity, round_percent, size
from microbench.explain.memory_stream import best_stream

BANDWIDTH, PER_CLOCK = "bandwidth", "per_clock"
LATENCY, CYCLES, LINES = "latency", "cycles", "line_cycles"
# No SM has a larger L1.
LARGEST_L1_BYTES = 256 << 10
# A set this many times as large as the L2 lies in DRAM; if the L2's size is unknown, a set of SURELY_DRAM_BYTES does.
BEYOND_L2 = 4
SURELY_DRAM_BYTES = 1 << 30
# Figures within this factor of each other belong to one level.
SAME = 1.1
FEWEST = 2
# Two measured sets further apart than this factor say nothing about what lies between them.
WIDEST_GAP = 4
L2_BOUNDS = ("l2", "l2_per_clock")
MOST_STEPS = 3
# Bytes of a working set and its row.
Point = tuple[int, Row]


class Plateau(NamedTuple):
    """One level: its name, the median of its figures, and the working sets that it answers.

    ``together``: SMs asked for the same lines at the same time, so more may have arrived than this level sent.
    """

    name: str
    value: float
    points: tuple[Point, ...]
    together: bool = False

    @property
    def first_bytes(self) -> int:
        return self.points[0][0]

    @property
    def last_bytes(self) -> int:
        return self.points[-1][0]


def footprints(evidence: Evidence, benchmark: str, metric: str) -> list[Point]:
    """Figures over the working set in device memory, ascending."""
    curve = evidence.curve(benchmark, metric, "footprint_bytes", space="global")
    return [(footprint, row) for footprint, row in curve if footprint > 0 and row.value > 0]


def l2_bytes(evidence: Evidence) -> int | None:
    """The size of the L2 as the GPU reports it."""
    return evidence.gpu.l2_bytes if evidence.gpu is not None else None


def shared_row(evidence: Evidence, benchmark: str, metric: str) -> Row | None:
    """The figure of shared memory: the highest rate or the shortest time."""
    rows = [row for row in evidence.rows(benchmark, metric, space="shared") if row.value > 0]
    best = min if any(row.metric.kind == "time" for row in rows) else max
    return best(rows, key=lambda row: row.value, default=None)


def bandwidth_levels(evidence: Evidence, metric: str = BANDWIDTH) -> list[Plateau]:
    """The levels of memory_levels."""
    return plateaus(footprints(evidence, "memory_levels", metric), l2_bytes(evidence))


def plateaus(points: Sequence[Point], l2_bytes: int | None) -> list[Plateau]:
    """L1, L2 and DRAM, as far as they were measured.

    The L1 is the first run of sets up to LARGEST_L1_BYTES that are as fast as the smallest one (an L1 may be far
    smaller than that). DRAM begins at BEYOND_L2 times the L2. There, and for the L2 between them, the level is the
    longest run of points whose figures lie within SAME of each other; a single point is a level only where no other
    was measured. Where rates name the L2 as their bound, the L2's level begins there: in smaller sets the L2 answers
    several SMs at once.
    """
    dram_bytes = BEYOND_L2 * l2_bytes if l2_bytes else SURELY_DRAM_BYTES
    within_l1 = runs([point for point in points if point[0] <= LARGEST_L1_BYTES])
    within_l2 = [point for point in points if LARGEST_L1_BYTES < point[0] <= (l2_bytes or 0)]
    own_from = next((footprint for footprint, row in within_l2 if row.measurement.bound in L2_BOUNDS), None)
    by_name = {
        "L1": within_l1[0] if within_l1 else None,
        "L2": _longest([point for point in within_l2 if point[0] >= (own_from or 0)]),
        "DRAM": _longest([point for point in points if point[0] >= dram_bytes]),
    }
    return [
        Plateau(name, statistics.median(row.value for _, row in run), tuple(run), name == "L2" and own_from is None)
        for name, run in by_name.items()
        if run is not None
    ]


def runs(points: Sequence[Point]) -> list[list[Point]]:
    """Points in groups of neighbours whose figures lie within SAME of each other, from the left."""
    groups: list[list[Point]] = []
    for point in points:
        values = [row.value for _, row in (*groups[-1], point)] if groups else []
        if values and max(values) <= SAME * min(values):
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _longest(points: Sequence[Point]) -> list[Point] | None:
    if len(points) < FEWEST:
        return list(points) or None
    longest = max((runs(points[begin:])[0] for begin in range(len(points))), key=len)
    return longest if len(longest) >= FEWEST else None


def ends(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Plateau]:
    """Levels whose end is known: the next larger set, which is another level's, lies no further than WIDEST_GAP."""
    result = []
    for before, after in itertools.pairwise(levels):
        beyond_bytes = next(footprint for footprint, _ in points if footprint > before.last_bytes)
        apart = max(before.value, after.value) > SAME * min(before.value, after.value)
        if apart and beyond_bytes <= WIDEST_GAP * before.last_bytes:
            result.append(before)
    return result


def answered_together(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Point]:
    """Sets between L1 and L2 that exceed the L2's own rate: it answers SMs that ask for a line together once."""
    by_name = {level.name: level for level in levels}
    l1, l2 = by_name.get("L1"), by_name.get("L2")
    if l2 is None or l2.together:
        return []
    from_bytes = max(LARGEST_L1_BYTES, l1.last_bytes if l1 is not None else 0)
    return [point for point in points if from_bytes < point[0] < l2.first_bytes and point[1].value > SAME * l2.value]


def up_to(level: Plateau) -> str:
    """ "up to " before the rate of a level that answers several SMs at once, else nothing."""
    return "up to " if level.together else ""


def latency_levels(evidence: Evidence, metric: str = LATENCY) -> list[Plateau]:
    """The levels of memory_latency; DRAM reaches up to the first step within it."""
    points = footprints(evidence, "memory_latency", metric)
    levels = [level for level in plateaus(points, l2_bytes(evidence)) if level.name != "DRAM"]
    beyond = _beyond_l2(evidence, points)
    if not beyond:
        return levels
    first = runs(beyond)[0]
    return [*levels, Plateau("DRAM", statistics.median(row.value for _, row in first), tuple(first))]


def _beyond_l2(evidence: Evidence, points: Sequence[Point]) -> list[Point]:
    reported = l2_bytes(evidence)
    least_bytes = BEYOND_L2 * reported if reported else SURELY_DRAM_BYTES
    return [point for point in points if point[0] >= least_bytes]


def steps(evidence: Evidence, metric: str = CYCLES) -> list[float]:
    """Sets at which the latency rises within DRAM by more than SAME: each is the reach of a translation cache (TLB).

    A single set counts only at either end, where it may be the first or the last of a run.
    """
    beyond = _beyond_l2(evidence, footprints(evidence, "memory_latency", metric))
    groups = runs(beyond)
    groups = [group for place, group in enumerate(groups) if len(group) > 1 or place in (0, len(groups) - 1)]
    result = []
    for below, above in itertools.pairwise(groups):
        before, after = (statistics.median(row.value for _, row in group) for group in (below, above))
        between = [point for point in beyond if below[-1][0] <= point[0] <= above[0][0]]
        reach_bytes = crossing(between, math.sqrt(before * after))
        if after > SAME * before and reach_bytes is not None:
            result.append(reach_bytes)
    return result[:MOST_STEPS]


def crossing(points: Sequence[Point], value: float) -> float | None:
    """Where the figures first pass ``value``, by a straight line in logarithms between two points.

    None where they do not pass it, or where the two points lie further apart than WIDEST_GAP.
    """
    for (low, first), (high, second) in itertools.pairwise(points):
        if (first.value - value) * (second.value - value) <= 0 and first.value != second.value:
            share = math.log(value / first.value) / math.log(second.value / first.value)
            return float(low * (high / low) ** share) if high <= WIDEST_GAP * low else None
    return None


def l2_modes(evidence: Evidence) -> tuple[Row, float, float, float] | None:
    """The near and the far part of the L2 as one SM sees them, in cycles, and the share of near lines, from the row of
    the smallest set that shows both."""
    for row in sorted(evidence.rows("memory_latency", LINES), key=lambda row: whole(row, "footprint_bytes")):
        near, far, share = (_number(row, name) for name in ("l2_near", "l2_far", "l2_near_share"))
        if near and far and share is not None:
            return row, near, far, share
    return None


def _number(row: Row, name: str) -> float | None:
    """A numeric fact of the row's case, from the newest round that has it."""
    values = [value for value in facts_of(row, name) if isinstance(value, int | float)]
    return float(values[-1]) if values else None


@rule("memory.levels", f"a level is a run of sets within {round_percent(SAME - 1)} of each other")
def levels(evidence: Evidence) -> Finding | None:
    """The bandwidth of each level, and the largest working sets that L1 and L2 hold."""
    by_level = bandwidth_levels(evidence)
    if not by_level:
        return None
    points = footprints(evidence, "memory_levels", BANDWIDTH)
    text = "Rates are totals over all SMs."
    if any(level.together for level in by_level):
        text = "SMs read the same lines at the same time in these sets, which hides what the L2 alone sends."
    elif answered_together(points, by_level):
        text = "Smaller sets in the L2 look faster, as it answers SMs that ask for a line at the same time once."
    streamed, last = best_stream(evidence, "read"), by_level[-1]
    if last.name == "DRAM" and streamed is not None and last.value > streamed.value:
        text += " The rate of DRAM lies above memory_stream's, which has the begin and end of a kernel in it."
    held = [f"{size(end.last_bytes)} ({end.name})" for end in ends(points, by_level)]
    rates = [f"{level.name} {up_to(level)}{quantity(level.value, 'B/s')}" for level in by_level]
    title = f"Bandwidth by level, by stamps on the SMs: {', '.join(rates)}"
    advice = f"Keep a working set within {' or '.join(held)} to run at that level's rate." if held else ""
    return said(title, text, advice, rows=(row for level in by_level for _, row in level.points), severity="note")


RULES: tuple[Rule, ...] = (levels,)

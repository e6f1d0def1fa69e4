"""The levels of memory: plateaus of bandwidth and latency over the working set, and the knees between them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.ceilings import share_of
from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import about_size, percent, quantity, size

# The largest L1 of an SM there is; the least multiple of the L2 that leaves nothing of a set in it.
LARGEST_L1_BYTES = 256 << 10
BEYOND_L2 = 4
# Where the size of the L2 is not known: no GPU has one as large.
SURELY_DRAM_BYTES = 1 << 30
SAME = 1.1
FEWEST = 2
WIDEST_GAP = 4
BETTER = 1.01
BANDWIDTH, PER_CLOCK = "bandwidth", "per_clock"

# Bytes of a working set and its row.
Point = tuple[int, Row]


class Plateau(NamedTuple):
    """One level: its name, the median of its figures, and the working sets between which it answers."""

    name: str
    value: float
    points: tuple[Point, ...]

    @property
    def first_bytes(self) -> int:
        """The smallest set."""
        return self.points[0][0]

    @property
    def last_bytes(self) -> int:
        """The largest set."""
        return self.points[-1][0]


class Knee(NamedTuple):
    """Where one level ends and the next takes over."""

    before: str
    after: str
    at_bytes: float


def footprints(evidence: Evidence, benchmark: str, metric: str) -> list[Point]:
    """Figures over the working set in device memory, ascending."""
    found = evidence.curve(benchmark, metric, "footprint_bytes", space="global")
    return [(footprint, row) for footprint, row in found if footprint > 0 and row.value > 0]


def plateaus(points: Sequence[Point], l2_bytes: int | None) -> list[Plateau]:
    """L1, L2 and DRAM as far as they show.

    Sets up to LARGEST_L1_BYTES may be the L1's, from BEYOND_L2 times the L2 on they are the DRAM's. Within these bounds
    the level is the longest run of points whose figures lie within SAME of each other (of the L1's the first as long);
    one point alone is a level only where no other was measured.
    """
    dram_bytes = BEYOND_L2 * l2_bytes if l2_bytes else SURELY_DRAM_BYTES
    regions = {
        "L1": [one for one in points if one[0] <= LARGEST_L1_BYTES],
        "L2": [one for one in points if LARGEST_L1_BYTES < one[0] <= (l2_bytes or 0)],
        "DRAM": [one for one in points if one[0] >= dram_bytes],
    }
    return [
        Plateau(name, statistics.median(row.value for _, row in run), tuple(run))
        for name, members in regions.items()
        if (run := _longest(members)) is not None
    ]


def runs(points: Sequence[Point]) -> list[list[Point]]:
    """Neighbouring points whose figures lie within SAME of each other, each point in one run, from the left."""
    found: list[list[Point]] = []
    for point in points:
        values = [row.value for _, row in (*found[-1], point)] if found else []
        if values and max(values) <= SAME * min(values):
            found[-1].append(point)
        else:
            found.append([point])
    return found


def _longest(points: Sequence[Point]) -> list[Point] | None:
    if len(points) < FEWEST:
        return list(points) or None
    longest = max((runs(points[begin:])[0] for begin in range(len(points))), key=len)
    return longest if len(longest) >= FEWEST else None


def knees(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Knee]:
    """Where the figures pass the geometric mean of two levels that follow each other."""
    found = []
    for before, after in itertools.pairwise(levels):
        between = [one for one in points if before.last_bytes <= one[0] <= after.first_bytes]
        at = crossing(between, math.sqrt(before.value * after.value))
        if at is not None and max(before.value, after.value) > SAME * min(before.value, after.value):
            found.append(Knee(before.name, after.name, at))
    return found


def crossing(points: Sequence[Point], value: float) -> float | None:
    """Where the figures first pass ``value``, straight in logarithms between two points.

    None where they do not, or where these points lie further apart than WIDEST_GAP: then nobody looked.
    """
    for (low, first), (high, second) in itertools.pairwise(points):
        if (first.value - value) * (second.value - value) <= 0 and first.value != second.value:
            share = math.log(value / first.value) / math.log(second.value / first.value)
            return float(low * (high / low) ** share) if high <= WIDEST_GAP * low else None
    return None


def l2_bytes(evidence: Evidence) -> int | None:
    """The size of the L2 as the GPU reports it."""
    return evidence.gpu.l2_bytes if evidence.gpu is not None else None


def shared_row(evidence: Evidence, benchmark: str, metric: str) -> Row | None:
    """The figure of shared memory: the highest rate, the shortest time."""
    found = [row for row in evidence.rows(benchmark, metric, space="shared") if row.value > 0]
    best = min if any(row.metric.kind == "time" for row in found) else max
    return best(found, key=lambda row: row.value, default=None)


def bandwidth_levels(evidence: Evidence, metric: str = BANDWIDTH) -> list[Plateau]:
    """The levels of memory_levels."""
    return plateaus(footprints(evidence, "memory_levels", metric), l2_bytes(evidence))


def levels(evidence: Evidence) -> list[Finding]:
    """What each level gives, in total and to an SM for each clock cycle, and where it ends."""
    found, by_clock = bandwidth_levels(evidence), {one.name: one for one in bandwidth_levels(evidence, PER_CLOCK)}
    shared = shared_row(evidence, "memory_levels", BANDWIDTH)
    if not found:
        return []
    words = [_shared_words(evidence, shared)] if shared is not None else []
    words += [_words(evidence, one, by_clock.get(one.name)) for one in found]
    ends = [
        f"{one.after} near {about_size(one.at_bytes)}"
        for one in knees(footprints(evidence, "memory_levels", BANDWIDTH), found)
    ]
    reported = l2_bytes(evidence)
    known = (
        f" (the L2 is reported as {size(reported)})" if reported and any(one.startswith("DRAM") for one in ends) else ""
    )
    closing = (
        f"The next level takes over: {listed(ends)}{known}. Cut work into pieces that fit the level it should run from."
        if ends
        else ""
    )
    title = ", ".join(f"{one.name} {quantity(one.value, 'B/s')}" for one in found)
    return [
        Finding(
            rule="memory.levels",
            severity="note",
            title=f"Bandwidth by level: {title}",
            text=" ".join(one for one in (*words, closing) if one),
            threshold=(
                f"a level is a run of sets within {percent(SAME - 1)}; a knee lies at the geometric mean of two levels"
            ),
            rests_on=rests_on(shared, *(row for one in found for _, row in one.points)),
            suite="memory",
        )
    ]


def _shared_words(evidence: Evidence, shared: Row) -> str:
    each = shared_row(evidence, "memory_levels", PER_CLOCK)
    by_clock = f", {_clocked(evidence, each, each.value)}" if each is not None else ""
    return f"Shared memory {quantity(shared.value, 'B/s')}{by_clock}."


def _words(evidence: Evidence, one: Plateau, by_clock: Plateau | None) -> str:
    best_bytes, best = max(one.points, key=lambda point: point[1].value)
    upto = f", sets up to {size(one.last_bytes)}" if one.name != "DRAM" and len(one.points) > 1 else ""
    words = f"{one.name} {quantity(one.value, 'B/s')}"
    if by_clock is not None:
        bounded = next((row for _, row in by_clock.points if row.measurement.bound is not None), by_clock.points[0][1])
        words += f", {_clocked(evidence, bounded, by_clock.value)}"
    elif (share := share_of(evidence, best)) is not None:
        words += f", {percent(share)} of its ceiling"
    if best.value > BETTER * one.value:
        words += f", at its best {quantity(best.value, 'B/s')} at {size(best_bytes)}"
    return f"{words}{upto}."


def _clocked(evidence: Evidence, row: Row, value: float) -> str:
    """A rate by the clock with its share of the ceiling, where the row has one."""
    limit = evidence.ceiling(row)
    share = f" ({percent(value / limit.value)} of {quantity(limit.value, limit.unit)})" if limit is not None else ""
    return f"{quantity(value, 'B/clk/SM')}{share}"

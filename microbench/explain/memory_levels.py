"""The levels of memory: plateaus of bandwidth and latency over the working set, and where each of them ends."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, facts_of, listed, rests_on, share_of, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, quantity, round_percent, size, times

# The largest L1 of an SM there is; the least multiple of the L2 that leaves nothing of a set in it.
LARGEST_L1_BYTES = 256 << 10
BEYOND_L2 = 4
# Where the size of the L2 is not known: no GPU has one as large.
SURELY_DRAM_BYTES = 1 << 30
SAME = 1.1
FEWEST = 2
WIDEST_GAP = 4
BETTER = 1.01
L2_BOUNDS = ("l2", "l2_per_clock")
BANDWIDTH, PER_CLOCK = "bandwidth", "per_clock"

# Bytes of a working set and its row.
Point = tuple[int, Row]


class Plateau(NamedTuple):
    """One level: its name, the median of its figures, and the working sets between which it answers.

    ``together``: SMs asked for the same lines at the same time, so that more may have arrived than this level sent.
    """

    name: str
    value: float
    points: tuple[Point, ...]
    together: bool = False

    @property
    def first_bytes(self) -> int:
        """The smallest set."""
        return self.points[0][0]

    @property
    def last_bytes(self) -> int:
        """The largest set."""
        return self.points[-1][0]


class End(NamedTuple):
    """The largest set that a level holds, and the next one measured, which it does not."""

    level: str
    last_bytes: int
    beyond_bytes: int


def footprints(evidence: Evidence, benchmark: str, metric: str) -> list[Point]:
    """Figures over the working set in device memory, ascending."""
    found = evidence.curve(benchmark, metric, "footprint_bytes", space="global")
    return [(footprint, row) for footprint, row in found if footprint > 0 and row.value > 0]


def plateaus(points: Sequence[Point], l2_bytes: int | None) -> list[Plateau]:
    """L1, L2 and DRAM as far as they show.

    Sets up to LARGEST_L1_BYTES may be the L1's: those as fast as the smallest, as an L1 may be far smaller. From
    BEYOND_L2 times the L2 on they are the DRAM's. Between, and there, the level is the longest run of points whose
    figures lie within SAME of each other; one point alone is a level only where no other was measured. Where rates
    name the L2 as their bound, its own begin there: smaller sets are answered for several SMs at once.
    """
    dram_bytes = BEYOND_L2 * l2_bytes if l2_bytes else SURELY_DRAM_BYTES
    within_l1 = runs([one for one in points if one[0] <= LARGEST_L1_BYTES])
    within_l2 = [one for one in points if LARGEST_L1_BYTES < one[0] <= (l2_bytes or 0)]
    own_from = next((footprint for footprint, row in within_l2 if row.measurement.bound in L2_BOUNDS), None)
    found = {
        "L1": within_l1[0] if within_l1 else None,
        "L2": _longest([one for one in within_l2 if one[0] >= (own_from or 0)]),
        "DRAM": _longest([one for one in points if one[0] >= dram_bytes]),
    }
    return [
        Plateau(name, statistics.median(row.value for _, row in run), tuple(run), name == "L2" and own_from is None)
        for name, run in found.items()
        if run is not None
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


def ends(points: Sequence[Point], levels: Sequence[Plateau]) -> list[End]:
    """Where levels end that another one follows: between two sets that lie no further apart than WIDEST_GAP."""
    found = []
    for before, after in itertools.pairwise(levels):
        beyond_bytes = next(footprint for footprint, _ in points if footprint > before.last_bytes)
        apart = max(before.value, after.value) > SAME * min(before.value, after.value)
        if apart and beyond_bytes <= WIDEST_GAP * before.last_bytes:
            found.append(End(before.name, before.last_bytes, beyond_bytes))
    return found


def reaches(held: Sequence[End]) -> str:
    """Ends in words: "L1 holds 192 KiB, not 256 KiB; L2 holds 48 MiB, not 64 MiB"."""
    return "; ".join(f"{one.level} holds {size(one.last_bytes)}, not {size(one.beyond_bytes)}" for one in held)


def answered_together(points: Sequence[Point], levels: Sequence[Plateau]) -> list[Point]:
    """Sets between L1 and L2 with more than the L2's own rate: SMs that ask for a line together are answered once."""
    by_name = {one.name: one for one in levels}
    l1, l2 = by_name.get("L1"), by_name.get("L2")
    if l2 is None or l2.together:
        return []
    from_bytes = max(LARGEST_L1_BYTES, l1.last_bytes if l1 is not None else 0)
    return [one for one in points if from_bytes < one[0] < l2.first_bytes and one[1].value > SAME * l2.value]


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
    words += _around(evidence, found)
    title = ", ".join(f"{one.name} {up_to(one)}{quantity(one.value, 'B/s')}" for one in found)
    return [
        Finding(
            rule="memory.levels",
            severity="note",
            title=f"Bandwidth by level: {title}",
            text=" ".join(words),
            threshold=f"a level is a run of sets within {round_percent(SAME - 1)} of each other",
            rests_on=rests_on(shared, *(row for one in found for _, row in one.points)),
            suite="memory",
        )
    ]


def _shared_words(evidence: Evidence, shared: Row) -> str:
    each = shared_row(evidence, "memory_levels", PER_CLOCK)
    by_clock = f", {_clocked(evidence, each, each.value)}" if each is not None else ""
    return f"Shared memory {quantity(shared.value, 'B/s')}{by_clock}."


def _around(evidence: Evidence, found: Sequence[Plateau]) -> list[str]:
    """Sets that belong to no level alone, and where levels end."""
    points, reported = footprints(evidence, "memory_levels", BANDWIDTH), l2_bytes(evidence)
    words = []
    if together := answered_together(points, found):
        between = " to ".join(dict.fromkeys((size(together[0][0]), size(together[-1][0]))))
        fastest = max(row.value for _, row in together)
        words.append(
            f"Sets of {between} seem faster, up to {quantity(fastest, 'B/s')}: SMs that ask for a line at the same "
            "time are answered once, which is not what the L2 can send."
        )
    elif any(one.together for one in found):
        words.append(
            "SMs were too close to each other in these sets to tell what the L2 sends: some may share an answer."
        )
    if held := ends(points, found):
        known = f" (its size is reported as {size(reported)})" if reported and held[-1].level == "L2" else ""
        words.append(f"{reaches(held)}{known}. Cut work into pieces that fit the level it should run from.")
    return words


def up_to(one: Plateau) -> str:
    """The reserve with which a level's rate is told."""
    return "up to " if one.together else ""


def _words(evidence: Evidence, one: Plateau, by_clock: Plateau | None) -> str:
    best_bytes, best = max(one.points, key=lambda point: point[1].value)
    sets = " to ".join(dict.fromkeys((size(one.first_bytes), size(one.last_bytes))))
    words = f"{one.name} {up_to(one)}{quantity(one.value, 'B/s')}"
    if by_clock is not None:
        bounded = next((row for _, row in by_clock.points if row.measurement.bound is not None), by_clock.points[0][1])
        words += f", {_clocked(evidence, bounded, by_clock.value)}"
    elif (share := share_of(evidence, best)) is not None:
        words += f", {percent(share)} of its ceiling"
    if best.value > BETTER * one.value:
        words += f", at its best {quantity(best.value, 'B/s')} at {size(best_bytes)}"
    return f"{words} (sets of {sets})."


def _clocked(evidence: Evidence, row: Row, value: float) -> str:
    """A rate by the clock with its share of the ceiling, where the row has one."""
    limit = evidence.ceiling(row)
    if limit is None:
        return quantity(value, "B/clk/SM")
    port = " that an SM's port could take" if row.measurement.bound in L2_BOUNDS else ""
    share = f"{percent(value / limit.value)} of {quantity(limit.value, limit.unit)}{port}"
    return f"{quantity(value, 'B/clk/SM')}, {share}"


# Explains memory_latency: a dependent read from every level, the near and far part of the L2, and TLB reaches.


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

"""The hierarchy in pictures: bandwidth and latency over the working set, levels named, and the L2 as one SM sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from microbench.explain.evidence import Evidence, whole
from microbench.explain.memory_latency import CYCLES, LATENCY, l2_modes, latency_levels, steps
from microbench.explain.memory_levels import (
    BANDWIDTH,
    PER_CLOCK,
    Plateau,
    Point,
    answered_together,
    bandwidth_levels,
    ends,
    footprints,
    l2_bytes,
    shared_row,
    up_to,
)
from microbench.report.curves import ticks
from microbench.report.document import Curve, Histogram, Line, Mark, Tone
from microbench.stats import Row
from microbench.units import about_size, as_time, percent, quantity, size

FEWEST_DRAWN = 5
TONES: dict[str, Tone] = {"L1": "first", "L2": "second", "DRAM": "third"}
TICK_SIZES = tuple(1 << power for power in range(14, 41, 3))
HEADROOM = 1.6
# Marks nearer to each other than this say the same.
APART = 1.05


def hierarchy(evidence: Evidence) -> Curve | None:
    """Bandwidth over the working set: L1, L2 and DRAM named with their figures, where each ends, the L2's size."""
    points = footprints(evidence, "memory_levels", BANDWIDTH)
    levels = bandwidth_levels(evidence)
    if len(points) < FEWEST_DRAWN:
        return None
    by_clock = {one.name: one.value for one in bandwidth_levels(evidence, PER_CLOCK)}
    names = [
        f"{one.name} {up_to(one)}{quantity(one.value, 'B/s')}"
        + (f", {quantity(by_clock[one.name], 'B/clk/SM')}" if one.name in by_clock else "")
        for one in levels
    ]
    marks = [Mark(float(one.last_bytes), f"{one.level} to {size(one.last_bytes)}") for one in ends(points, levels)]
    shared = shared_row(evidence, "memory_levels", BANDWIDTH)
    shared_clocked = shared_row(evidence, "memory_levels", PER_CLOCK)
    return _curve(
        "Bandwidth over the working set",
        f"all SMs read one set again and again{_shared_rate(shared, shared_clocked)}{_together(points, levels)}",
        points,
        levels,
        names,
        _with_l2(evidence, marks, points),
    )


def _shared_rate(shared: Row | None, clocked: Row | None) -> str:
    if shared is None:
        return ""
    by_clock = f", {quantity(clocked.value, 'B/clk/SM')}" if clocked is not None else ""
    return f"; from shared memory {quantity(shared.value, 'B/s')}{by_clock}"


def _together(points: Sequence[Point], levels: Sequence[Plateau]) -> str:
    """Which sets show more than the L2 sends."""
    found = answered_together(points, levels)
    return f"; above the L2's line up to {size(found[-1][0])}: one answer for several SMs" if found else ""


def latencies(evidence: Evidence) -> Curve | None:
    """The time of one dependent read over the working set: levels named, reaches of translation caches marked."""
    points = footprints(evidence, "memory_latency", LATENCY)
    levels = latency_levels(evidence)
    if len(points) < FEWEST_DRAWN:
        return None
    cycles = {one.name: one.value for one in latency_levels(evidence, CYCLES)}
    names = [
        f"{one.name} {as_time(one.value)}" + (f", {quantity(cycles[one.name], 'cycle')}" if one.name in cycles else "")
        for one in levels
    ]
    marks = [Mark(one.reach_bytes, f"TLB reach {about_size(one.reach_bytes)}") for one in steps(evidence)]
    shared = shared_row(evidence, "memory_latency", LATENCY)
    beside = f"; from shared memory {as_time(shared.value)}" if shared is not None else ""
    return _curve(
        "Latency over the working set",
        f"one thread, each read waits for the one before it{beside}",
        points,
        levels,
        names,
        _with_l2(evidence, marks, points),
    )


def _with_l2(evidence: Evidence, marks: Sequence[Mark], points: Sequence[Point]) -> tuple[Mark, ...]:
    """The marks that lie within the curve, and the L2's size where no mark is as good as there."""
    reported = l2_bytes(evidence)
    kept = [mark for mark in marks if points[0][0] < mark.at < points[-1][0]]
    if reported and points[0][0] < reported < points[-1][0]:
        near = [mark for mark in kept if 1 / APART < mark.at / reported < APART]
        if not near:
            kept.append(Mark(reported, f"L2 is {size(reported)}"))
    return tuple(sorted(kept, key=lambda mark: mark.at))


def _curve(
    title: str,
    about: str,
    points: Sequence[Point],
    levels: Sequence[Plateau],
    names: Sequence[str],
    marks: tuple[Mark, ...],
) -> Curve:
    """Levels in colour over the whole curve, which is quiet: what lies on a level is seen to."""
    lines = [
        Line(name, tuple((x, row.value) for x, row in one.points), TONES[one.name])
        for one, name in zip(levels, names, strict=True)
    ]
    lines.append(Line("", tuple((x, row.value) for x, row in points), "quiet"))
    values = [row.value for _, row in points]
    unit = points[0][1].metric.unit
    smallest, largest = points[0][0], points[-1][0]
    return Curve(
        title=title,
        about=about,
        x_title="working set",
        lines=tuple(lines),
        x_ticks=tuple(Mark(one, size(one)) for one in TICK_SIZES if smallest <= one <= largest),
        y_ticks=_ticks(min(values) / HEADROOM, max(values) * HEADROOM, unit),
        marks=marks,
    )


def _ticks(low: float, high: float, unit: str) -> tuple[Mark, ...]:
    """Ticks of either half of a logarithmic axis: over all of it they might be powers of ten alone."""
    middle = math.sqrt(low * high)
    both = {mark.at: mark for half in ((low, middle), (middle, high)) for mark in ticks(*half, True, unit)}
    return tuple(both[at] for at in sorted(both))


def l2_lines(evidence: Evidence) -> Histogram | None:
    """How many lines of the L2 answer one SM in which time, where a near and a far part separate."""
    modes = l2_modes(evidence)
    one = modes.row.measurement.per_call if modes is not None else None
    if modes is None or one is None:
        return None
    footprint = size(whole(modes.row, "footprint_bytes"))
    return Histogram(
        title="The L2 as one SM sees it: lines by their latency",
        about=f"each line of a set of {footprint}, past the L1; {percent(modes.near_share)} of them near",
        first_edge=one.first_edge,
        ratio=one.ratio,
        counts=one.counts,
        marks=(
            Mark(modes.near, f"near {quantity(modes.near, 'cycle')}"),
            Mark(modes.far, f"far {quantity(modes.far, 'cycle')}"),
        ),
    )

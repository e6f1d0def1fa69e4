"""The memory suite's pictures: kernels by implementation, the hierarchy, what must be under way, other accesses."""

from __future__ import annotations

from microbench.explain.evidence import Evidence, row_name
from microbench.explain.memory_access import contention
from microbench.explain.memory_allocation import WAYS as ALLOCATED
from microbench.explain.memory_allocation import costs
from microbench.explain.memory_energy import draws
from microbench.explain.memory_occupancy import ENOUGH, flights, little_bytes, needed
from microbench.report.curves import ticks_beyond
from microbench.report.document import Cell, Column, Curve, Line, Mark, Picture, Table, Tone
from microbench.report.sections.memory_levels import hierarchy, l2_lines, latencies
from microbench.report.sections.memory_stream import by_dtype, by_implementation
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import about_size, as_time, quantity, round_percent, size, times

# Tables in the order of the questions: what memory gives, what each level gives, what is needed for it, what it costs.
ORDER = (
    "memory_stream", "memory_levels", "memory_latency", "memory_occupancy", "memory_stride", "memory_random",
    "memory_atomic", "memory_copy", "memory_allocate", "memory_capacity", "memory_energy",
)  # fmt: skip
FEWEST_DRAWN = 3
TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
TICK_SIZES = tuple(1 << power for power in range(6, 25))


def pictures(evidence: Evidence) -> list[Picture]:
    """Every picture that the run has figures for."""
    drawn = (
        by_implementation(evidence),
        by_dtype(evidence),
        hierarchy(evidence),
        latencies(evidence),
        l2_lines(evidence),
        under_way(evidence),
        additions(evidence),
        allocations(evidence),
        energies(evidence),
    )
    return [picture for picture in drawn if picture is not None]


def under_way(evidence: Evidence) -> Curve | None:
    """Bandwidth over bytes under way on each SM, a line for each number of loads in a thread."""
    found = flights(evidence)
    loads = sorted({_loads(one.row) for one in found})
    lines = []
    for count, tone in zip(loads, TONES, strict=False):
        best: dict[float, float] = {}
        for one in found:
            if _loads(one.row) == count:
                best[one.under_way_bytes] = max(one.row.value, best.get(one.under_way_bytes, 0.0))
        lines.append(Line(f"{count} load{'s' if count > 1 else ''} a thread", tuple(sorted(best.items())), tone))
    if max((len(line.points) for line in lines), default=0) < FEWEST_DRAWN:
        return None
    least, most = needed(found), max(one.row.value for one in found)
    little = little_bytes(evidence, most)
    smallest, largest = found[0].under_way_bytes, found[-1].under_way_bytes
    marks = (
        [Mark(float(least.under_way_bytes), f"{round_percent(ENOUGH)} at {about_size(least.under_way_bytes)}")]
        if (least is not None)
        else []
    )
    if little is not None:
        marks.append(Mark(little, f"Little {about_size(little)}"))
    return Curve(
        title="Bandwidth over bytes under way on each SM",
        about="blocks x threads x loads x 16 bytes; Little: latency of an idle memory x bandwidth",
        x_title="under way on an SM",
        lines=tuple(lines),
        x_ticks=tuple(Mark(one, size(one)) for one in TICK_SIZES if smallest <= one <= largest),
        y_ticks=ticks_beyond(most, "B/s"),
        y_log=False,
        marks=tuple(sorted((one for one in marks if smallest < one.at < largest), key=lambda one: one.at)),
    )


def _loads(row: Row) -> int:
    value = row.params.get("loads")
    return value if isinstance(value, int) else 0


def additions(evidence: Evidence) -> Table | None:
    """Atomic additions: one word for all, one a warp, one a thread, and what sharing one costs."""
    found = contention(evidence)
    if not found:
        return None
    rows = []
    for one in found:
        warp = evidence.row("memory_atomic", "additions", space=one.space, dtype=one.dtype, spread="warp")
        rows.append(
            (
                Cell(f"{one.dtype}, {one.space}", tone="strong"),
                _operations(one.same),
                _operations(warp),
                _operations(one.spread),
                Cell(times(one.factor), tone="strong"),
            )
        )
    columns = (
        Column("", "left"), Column("one word"), Column("one a warp", drop=1), Column("one a thread"), Column("factor"),
    )  # fmt: skip
    return Table(
        "Atomic additions a second",
        "by all threads, whose result nobody asks for; in shared memory one word is one of each block",
        columns,
        tuple(rows),
    )


def _operations(row: Row | None) -> Cell:
    return Cell(quantity(row.value, row.metric.unit), trust=row.trust, of=row_name(row)) if row is not None else NOTHING


def allocations(evidence: Evidence) -> Table | None:
    """What memory costs to have: who is asked and how big down; first, later, given back across."""
    found = costs(evidence)
    if not found:
        return None
    rows = tuple(
        (
            Cell(ALLOCATED[one.way], tone="strong"),
            Cell(size(one.size_bytes)),
            Cell(as_time(one.first.value), tone="quiet") if one.first is not None else NOTHING,
            Cell(as_time(one.later.value), tone="strong"),
            Cell(as_time(one.free.value)) if one.free is not None else NOTHING,
        )
        for one in found
    )
    columns = (
        Column("who is asked", "left"), Column("block"), Column("first", drop=1), Column("later"),
        Column("given back"),
    )  # fmt: skip
    return Table("What memory costs to have", "host time; first: of that size, from an emptied pool", columns, rows)


def energies(evidence: Evidence) -> Table | None:
    """Power under each load, energy of a byte, and what of it is above idle."""
    found = draws(evidence)
    if not found:
        return None
    idle = evidence.row("memory_energy", "power", load="idle")
    rows = [
        (
            Cell(one.load, tone="strong"),
            Cell(quantity(one.power.value, "W")),
            Cell(quantity(one.energy.value, "J/B"), tone="strong"),
            Cell(quantity(one.above_idle, "J/B")) if one.above_idle is not None else NOTHING,
        )
        for one in found
    ]
    if idle is not None:
        rows.append((Cell("idle", tone="strong"), Cell(quantity(idle.value, "W")), NOTHING, NOTHING))
    columns = (Column("load", "left"), Column("power"), Column("a byte"), Column("above idle"))
    return Table("Energy of a byte", "two seconds of one kernel, by the GPU's energy counter", columns, tuple(rows))

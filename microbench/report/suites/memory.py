"""The memory suite's pictures: kernels by implementation, the hierarchy, bytes in flight, and other accesses."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, facts_of, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, gigabytes, percent, quantity, round_percent, size, times
from microbench.explain import memory_levels
from microbench.explain.memory_access import contention
from microbench.explain.memory_levels import Plateau
from microbench.report.curves import size_ticks, ticks, ticks_beyond
from microbench.report.document import SERIES_TONES, Cell, Column, Curve, Histogram, Line, Mark, Table, Tone
from microbench.report.tables import NOTHING, limited_cell, matrix, row_cell, table_of, value_cell

FEWEST_LEVEL_SIZES = 5
LEVEL_TONES: dict[str, Tone] = {"L1": "first", "L2": "second", "DRAM": "third"}
QUIET: Tone = "quiet"
HEADROOM = 1.6
# Of marks closer together than this ratio only one is drawn.
APART = 1.05


def hierarchy(evidence: Evidence) -> Curve | None:
    """Bandwidth over the working set: L1, L2 and DRAM named with their figures, where each ends, the L2's size."""
    points = memory_levels.footprints(evidence, "memory_levels", memory_levels.BANDWIDTH)
    levels, clocked = (
        memory_levels.bandwidth_levels(evidence, metric)
        for metric in (memory_levels.BANDWIDTH, memory_levels.PER_CLOCK)
    )
    words = {one.name: f"{memory_levels.up_to(one)}{quantity(one.value, 'B/s')}" for one in levels}
    ends = memory_levels.ends(points, levels)
    marks = [Mark(float(one.last_bytes), f"{one.name} to {size(one.last_bytes)}") for one in ends]
    about = "all SMs read the same working set repeatedly"
    shared = memory_levels.shared_row(evidence, "memory_levels", memory_levels.BANDWIDTH)
    if shared is not None:
        about += f"; from shared memory {quantity(shared.value, 'B/s')}"
        of_clock = memory_levels.shared_row(evidence, "memory_levels", memory_levels.PER_CLOCK)
        about += f", {quantity(of_clock.value, 'B/clk/SM')}" if of_clock is not None else ""
    together = memory_levels.answered_together(points, levels)
    if together:
        about += f"; above the L2's line up to {size(together[-1][0])}: one answer for several SMs"
    names = _named(levels, words, clocked, "B/clk/SM")
    return _curve(evidence, "Bandwidth over the working set", about, points, names, marks)


def latencies(evidence: Evidence) -> Curve | None:
    """The time of one dependent read over the working set: levels named, reaches of translation caches marked."""
    points = memory_levels.footprints(evidence, "memory_latency", memory_levels.LATENCY)
    levels, cycles = (
        memory_levels.latency_levels(evidence, metric) for metric in (memory_levels.LATENCY, memory_levels.CYCLES)
    )
    marks = [Mark(reach_bytes, f"TLB reach {about_size(reach_bytes)}") for reach_bytes in memory_levels.steps(evidence)]
    shared = memory_levels.shared_row(evidence, "memory_latency", memory_levels.LATENCY)
    about = "one thread, in which each read waits for the one before it"
    about += f"; from shared memory {as_time(shared.value)}" if shared is not None else ""
    names = _named(levels, {one.name: as_time(one.value) for one in levels}, cycles, "cycle")
    return _curve(evidence, "Latency over the working set", about, points, names, marks)


def _named(levels: list[Plateau], words: Mapping[str, str], others: list[Plateau], unit: str) -> dict[str, Plateau]:
    """Each level by the words for its line: with its figure, and with its figure in another unit if there is one."""
    also = {one.name: f", {quantity(one.value, unit)}" for one in others}
    return {f"{one.name} {words[one.name]}{also.get(one.name, '')}": one for one in levels}


def under_load(evidence: Evidence) -> Curve | None:
    """The time of one dependent read over the bandwidth that the other SMs take meanwhile, a line for each level."""
    lines = []
    for level, name in (("dram", "DRAM"), ("l2", "L2")):
        metrics = (memory_levels.BANDWIDTH, memory_levels.LATENCY, "idle")
        curves = [dict(evidence.curve("memory_loaded", metric, "load_percent", level=level)) for metric in metrics]
        loads = sorted(set.intersection(*map(set, curves)))
        every = [tuple(curve[load].value for curve in curves) for load in loads]
        points = [point for point in every if min(point) > 0]
        if len(points) >= FEWEST_DRAWN:
            idle_s = statistics.median(alone_s for _, _, alone_s in points)
            busy = sorted((rate, latency_s) for rate, latency_s, _ in points)
            words = f"{name} {as_time(idle_s)} idle, {as_time(busy[-1][1])} at {quantity(busy[-1][0], 'B/s')}"
            lines.append(Line(words, ((0.0, idle_s), *busy), LEVEL_TONES[name]))
    if not lines:
        return None
    xs, ys = zip(*(point for line in lines for point in line.points), strict=True)
    title, below = "Latency under load", "bandwidth of the other SMs"
    about = "one thread, in which each read waits for the one before it, while the other SMs read the same level"
    x_ticks, y_ticks = ticks_beyond(max(xs), "B/s"), ticks_beyond(max(ys), "s")
    return Curve(title, about, below, tuple(lines), x_ticks, y_ticks, x_log=False, y_log=False)


def _curve(
    evidence: Evidence,
    title: str,
    about: str,
    points: Sequence[memory_levels.Point],
    levels: Mapping[str, Plateau],
    marks: Sequence[Mark],
) -> Curve | None:
    """The whole curve in a quiet tone, with the points of each level over it in a colour; the marks within it, and one
    for the reported size of the L2 unless a mark is close to it."""
    if len(points) < FEWEST_LEVEL_SIZES:
        return None
    reported, first, last = memory_levels.l2_bytes(evidence), points[0][0], points[-1][0]
    inside = [mark for mark in marks if first < mark.at < last]
    if reported and first < reported < last and not any(1 / APART < mark.at / reported < APART for mark in inside):
        inside.append(Mark(reported, f"L2 is {size(reported)}"))
    values = [row.value for _, row in points]
    low, high, unit = min(values) / HEADROOM, max(values) * HEADROOM, points[0][1].metric.unit
    # Ticks of each half of the logarithmic axis: over the whole axis they might be powers of ten only.
    middle = math.sqrt(low * high)
    y_ticks = {mark.at: mark for half in ((low, middle), (middle, high)) for mark in ticks(*half, True, unit)}
    drawn = [*((name, level.points, LEVEL_TONES[level.name]) for name, level in levels.items()), ("", points, QUIET)]
    lines = tuple(Line(name, tuple((x, row.value) for x, row in each), tone) for name, each, tone in drawn)
    x_ticks, by_place = size_ticks(first, last, every=3, first=14), tuple(sorted(inside, key=lambda mark: mark.at))
    ordered = tuple(y_ticks[at] for at in sorted(y_ticks))
    return Curve(title, about, "working set", lines, x_ticks, ordered, marks=by_place)


def l2_lines(evidence: Evidence) -> Histogram | None:
    """How many lines of the L2 answer one SM in which time, if a near and a far part are distinct."""
    modes = memory_levels.l2_modes(evidence)
    if modes is None:
        return None
    row, near, far, near_share = modes
    calls, footprint = row.measurement.per_call, size(whole(row, "footprint_bytes"))
    if calls is None:
        return None
    title = "The L2 as one SM sees it: lines by their latency"
    about = f"each line of a working set of {footprint}, past the L1; {percent(near_share)} of them are near"
    marks = tuple(Mark(at, f"{name} {quantity(at, 'cycle')}") for name, at in (("near", near), ("far", far)))
    return Histogram(title, about, calls.first_edge, calls.ratio, calls.counts, marks)


SHAPE = "shape of CUDA C++"


def by_implementation(evidence: Evidence) -> Table | None:
    """A row for each kernel, a column for each implementation, on the largest arrays; the chosen shape at the end."""
    size_bytes, dtype = memory_levels.largest_bytes(evidence), memory_levels.main_dtype(evidence)
    if size_bytes is None or dtype is None:
        return None
    by_place = _by_kernel(evidence, "implementation", dtype=dtype, size_bytes=size_bytes)
    across = {
        way: name for way, name in memory_levels.IMPLEMENTATIONS.items() if any(way == key for _, key in by_place)
    }
    cells = {place: limited_cell(evidence, row, lambda row: gigabytes(row.value)) for place, row in by_place.items()}
    for kernel, _ in by_place:
        native = by_place.get((kernel, memory_levels.NATIVE))
        name = memory_levels.shape_of(native) if native is not None else None
        if name is not None:
            cells[kernel, SHAPE] = Cell(memory_levels.shape_words(name), tone="quiet")
    limits = dict.fromkeys(limit for row in by_place.values() if (limit := evidence.ceiling(row)) is not None)
    notes = tuple(f"ceiling: {gigabytes(limit.value)} GB/s, {limit.source}" for limit in limits)
    title = f"Streaming kernels on arrays of {size(size_bytes)}, {dtype}, in GB/s"
    about = "bytes read plus written, with the share of the ceiling"
    table = matrix(title, about, {**across, SHAPE: SHAPE}, cells, notes=notes)
    last = Column(SHAPE, "left", drop=1)
    return replace(table, columns=(*table.columns[:-1], last))


DTYPES = ("fp64", "fp32", "fp16", "int8")


def by_dtype(evidence: Evidence) -> Table | None:
    """A row for each kernel, a column for each type, in CUDA C++ on the largest arrays; None for one type."""
    size_bytes = memory_levels.largest_bytes(evidence)
    if size_bytes is None:
        return None
    by_place = _by_kernel(evidence, "dtype", implementation=memory_levels.NATIVE, size_bytes=size_bytes)
    types = {dtype: dtype for dtype in DTYPES if any(dtype == key for _, key in by_place)}
    cells = {place: limited_cell(evidence, row, lambda row: gigabytes(row.value)) for place, row in by_place.items()}
    title = f"Types of elements on arrays of {size(size_bytes)}, CUDA C++, in GB/s"
    about = "moving bytes does not depend on the type; adding and multiplying may"
    return matrix(title, about, types, cells) if len(types) > 1 else None


def _by_kernel(evidence: Evidence, across: str, **params: int | str) -> dict[tuple[str, str], Row]:
    """The streaming rows with these parameters by kernel, in the order of KERNELS, and by another parameter."""
    rows = memory_levels.streams(evidence, **params)
    by_place = {(str(row.params.get("kernel")), str(row.params.get(across))): row for row in rows}
    return {place: row for kernel in memory_levels.KERNELS for place, row in by_place.items() if place[0] == kernel}


# The order of the tables: rates, levels, what reaches them, other accesses, costs.
ORDER = (
    "memory_stream", "memory_levels", "memory_writes", "memory_latency", "memory_loaded", "memory_cluster",
    "memory_bulk", "memory_occupancy", "memory_stride", "memory_random", "memory_conflicts", "memory_atomic",
    "memory_copy", "memory_allocate", "memory_capacity", "memory_energy",
)  # fmt: skip
FEWEST_DRAWN = 3
# The share of the best rate that counts as enough bytes in flight.
ENOUGH = 0.9


def in_flight(evidence: Evidence) -> Curve | None:
    """Bandwidth over bytes in flight on each SM, a line for each number of loads in a thread."""
    best: dict[int, dict[float, float]] = {}
    cases = []  # bytes in flight on each SM, and the rate
    for row in evidence.rows("memory_occupancy", "bandwidth"):
        amounts = [value for value in facts_of(row, "under_way_per_sm") if isinstance(value, int)]
        if amounts and row.value > 0:
            cases.append((amounts[-1], row.value))
            points = best.setdefault(whole(row, "loads"), {})
            points[amounts[-1]] = max(row.value, points.get(amounts[-1], 0.0))
    cases.sort()
    lines = [
        Line(f"{count} load{'s' if count > 1 else ''} per thread", tuple(sorted(points.items())), tone)
        for (count, points), tone in zip(sorted(best.items()), SERIES_TONES, strict=False)
    ]
    if max((len(line.points) for line in lines), default=0) < FEWEST_DRAWN:
        return None
    smallest, largest, most = cases[0][0], cases[-1][0], max(rate for _, rate in cases)
    least = next(in_flight_bytes for in_flight_bytes, rate in cases if rate >= ENOUGH * most)
    marks = [Mark(float(least), f"{round_percent(ENOUGH)} at {about_size(least)}")]
    sms = evidence.gpu.sm_count if evidence.gpu is not None else None
    dram = next((level for level in memory_levels.latency_levels(evidence) if level.name == "DRAM"), None)
    if dram is not None and sms:  # Little's law: latency x bandwidth
        little = dram.value * most / sms
        marks.append(Mark(little, f"Little {about_size(little)}"))
    title, below = "Bandwidth over bytes in flight on each SM", "in flight on an SM"
    about = "blocks x threads x loads x 16 bytes; Little: latency without load x bandwidth"
    x_ticks, y_ticks = size_ticks(smallest, min(largest, 1 << 24), first=6), ticks_beyond(most, "B/s")
    inside = tuple(sorted((one for one in marks if smallest < one.at < largest), key=lambda one: one.at))
    return Curve(title, about, below, tuple(lines), x_ticks, y_ticks, y_log=False, marks=inside)


def additions(evidence: Evidence) -> Table | None:
    """Atomic additions to one word for all threads, one per warp and one per thread, and the cost of sharing."""

    def per_warp(pair: tuple[float, Row, Row]) -> Cell:
        return row_cell(evidence.row("memory_atomic", "additions", **{**pair[1].params, "spread": "warp"}))

    return table_of(
        "Atomic additions per second",
        "by all threads, result unused; in shared memory one word means one for each block",
        contention(evidence),
        ("", lambda pair: Cell(f"{pair[1].params['dtype']}, {pair[1].params['space']}", tone="strong")),
        ("one word", lambda pair: row_cell(pair[1])),
        (Column("one per warp", drop=1), per_warp),
        ("one per thread", lambda pair: row_cell(pair[2])),
        ("factor", lambda pair: Cell(times(pair[0]), tone="strong")),
    )


ALLOCATORS = {
    "malloc": "cudaMalloc", "pool": "stream-ordered pool", "cupy_pool": "CuPy's pool",
    "host_pinned": "pinned host memory",
}  # fmt: skip


def allocations(evidence: Evidence) -> Table | None:
    """What an allocation costs: a row for each allocator and size; the first one, later ones, and freeing."""
    rows = evidence.rows("memory_allocate", "allocate")

    def other(metric: str, tone: Tone = "plain") -> Callable[[Row], Cell]:
        return lambda row: value_cell(
            evidence.row(row.benchmark, metric, **row.params), lambda cost: as_time(cost.value), tone
        )

    return table_of(
        "What an allocation costs",
        "host time; first: the first of that size, from an empty pool",
        [row for row in rows if row.params.get("way") in ALLOCATORS and row.value > 0],
        ("allocator", lambda row: Cell(ALLOCATORS[str(row.params["way"])], tone="strong")),
        ("block", lambda row: Cell(size(whole(row, "size_bytes")))),
        (Column("first", drop=1), other("first", "quiet")),
        ("later", lambda row: Cell(as_time(row.value), tone="strong")),
        ("free", other("free")),
    )


def energies(evidence: Evidence) -> Table | None:
    """Power under each load, the energy of a byte, and the part of it above idle."""
    idle = evidence.row("memory_energy", "power", load="idle")
    loads: dict[str, tuple[Row, Row | None]] = {}  # power and energy, of each load on the largest arrays
    for row in sorted(evidence.rows("memory_energy", "energy"), key=lambda row: whole(row, "size_bytes")):
        power = evidence.row("memory_energy", "power", **row.params)
        if power is not None and row.value > 0:
            loads[str(row.params.get("load"))] = power, row
    if loads and idle is not None:
        loads["idle"] = idle, None

    def above(load: str) -> Cell:
        power, energy = loads[load]
        share = 1 - idle.value / power.value if idle is not None else 0.0
        return Cell(quantity(energy.value * share, "J/B")) if energy is not None and share > 0 else NOTHING

    return table_of(
        "Energy of a byte",
        "two seconds of one kernel, by the GPU's energy counter",
        loads,
        ("load", lambda load: Cell(load, tone="strong")),
        ("power", lambda load: Cell(quantity(loads[load][0].value, "W"))),
        ("a byte", lambda load: value_cell(loads[load][1], lambda row: quantity(row.value, "J/B"), "strong")),
        ("above idle", above),
    )

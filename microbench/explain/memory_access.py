"""Accesses other than streaming: strided, random and atomic ones, the driver's copies, and bytes in flight."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, facts_of, rests_on, sentence, whole
from microbench.analysis.fits import Line, line
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, quantity, rate_of, round_percent, size, times
from microbench.explain.memory_levels import l2_bytes, latency_levels
from microbench.explain.memory_stream import NATIVE, best_stream, streams

WORD_BYTES, RANDOM_WORD_BYTES = 4, 8
# A word that costs at least this share of its stride, in bytes of contiguous access, costs its whole stride.
WHOLE = 0.85
ACCESSES = {"gather": "reads", "scatter": "writes", "update": "updates"}


class Apart(NamedTuple):
    """The useful rate over the stride, and the largest stride up to which a word costs its whole stride."""

    points: list[tuple[int, Row]]
    whole_bytes: int


def apart(evidence: Evidence, access: str) -> Apart | None:
    """The curve of one access; None without contiguous words or without a second stride."""
    curve = evidence.curve("memory_stride", "bandwidth", "stride_bytes", access=access)
    points = [(stride_bytes, row) for stride_bytes, row in curve if row.value > 0]
    if len(points) < 2 or points[0][0] != WORD_BYTES:
        return None
    contiguous = points[0][1].value
    costly = itertools.takewhile(lambda point: WORD_BYTES * contiguous / point[1].value >= WHOLE * point[0], points)
    return Apart(points, max(stride_bytes for stride_bytes, _ in costly))


def stride(evidence: Evidence) -> Finding | None:
    """How much of the bandwidth is useful at the stride up to which all bytes between two words are moved."""
    access, curve = next(
        ((access, curve) for access in ("read", "write") if (curve := apart(evidence, access)) is not None), ("", None)
    )
    if curve is None:
        return None
    share = dict(curve.points)[curve.whole_bytes].value / curve.points[0][1].value
    return Finding(
        rule="memory.stride",
        severity="note",
        title=f"At a stride of {size(curve.whole_bytes)}, {access}s keep {percent(share)} of the bandwidth",
        text="Up to that stride the memory also moves every byte between two words.",
        advice="Let neighbouring threads access neighbouring words, for example in structures of arrays.",
        threshold=f"a word costs its stride where it costs at least {round_percent(WHOLE)} of it in bytes in a row",
        rests_on=rests_on(*(row for _, row in curve.points)),
    )


def random(evidence: Evidence) -> Finding | None:
    """Random accesses a second over the largest set, against streaming and against a smaller set."""
    for access in ACCESSES:
        curve = evidence.curve("memory_random", "accesses", "footprint_bytes", access=access)
        if points := [(footprint, row) for footprint, row in curve if row.value > 0]:
            break
    else:
        return None
    (smallest, near), (largest, row) = points[0], points[-1]
    kernel = "write" if access == "scatter" else "read"
    stream = best_stream(evidence, kernel)
    words = []
    if stream is not None:
        words.append(f"Each takes as long as {stream.value / row.value:.0f} bytes of a streaming {kernel}.")
    if smallest < largest and near.value > row.value:
        words.append(f"Over {size(smallest)} they are {times(near.value / row.value)} as fast.")
    return Finding(
        rule="memory.random",
        severity="note",
        title=(
            f"Random {RANDOM_WORD_BYTES}-byte {ACCESSES[access]} over {size(largest)} reach "
            f"{rate_of(row.value, 'words')}"
        ),
        text=" ".join(words),
        advice="Sort or partition by address so that what is accessed together fits the L2.",
        threshold="each word of a set is accessed once in the order of a hash",
        rests_on=rests_on(stream, *(row for _, row in points)),
    )


CONTENDED = 4.0


class Contention(NamedTuple):
    """Additions of all threads to one word, and of each thread to a word of its own."""

    space: str
    dtype: str
    same: Row
    spread: Row

    @property
    def factor(self) -> float:
        """How many times faster additions to separate words are."""
        return self.spread.value / self.same.value


def contention(evidence: Evidence) -> list[Contention]:
    """Global and shared memory in each type, where both were measured."""
    result = []
    for space, dtype in itertools.product(("global", "shared"), ("int32", "fp32")):
        same, spread = (
            evidence.row("memory_atomic", "additions", space=space, dtype=dtype, spread=spread)
            for spread in ("same", "thread")
        )
        if same is not None and spread is not None:
            result.append(Contention(space, dtype, same, spread))
    return result


def atomic(evidence: Evidence) -> Finding | None:
    """How much slower additions are when all threads add to one word."""
    pairs = contention(evidence)
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: pair.factor)
    heavy = worst.factor > CONTENDED
    return Finding(
        rule="memory.atomic",
        severity="advice" if heavy else "note",
        title=(
            f"Atomic additions to one word are {times(worst.factor)} slower than to a word per thread "
            f"({worst.dtype}, {worst.space} memory)"
        ),
        text=(
            f"They reach {quantity(worst.same.value, 'OP/s')} instead of {quantity(worst.spread.value, 'OP/s')}, "
            "as additions to one address wait for each other."
        ),
        advice=(
            "Add up in registers, a warp or shared memory first, and send one addition per block." if heavy else ""
        ),
        threshold=f"advice where one word costs over {times(CONTENDED)}",
        rests_on=rests_on(*(row for pair in pairs for row in (pair.same, pair.spread))),
    )


BANK_WORDS = 32


def conflicts(evidence: Evidence) -> Finding | None:
    """What a load of shared memory costs with the most bank conflicts, and what each further way adds."""
    by_ways = {
        ways: row
        for stride_bytes, row in reversed(evidence.curve("memory_conflicts", "cycles", "stride_bytes"))
        for ways in facts_of(row, "ways")[-1:]
        if isinstance(ways, int) and stride_bytes and row.value > 0
    }
    if 1 not in by_ways or len(by_ways) < 2:
        return None
    most = max(by_ways)
    free, worst = by_ways[1], by_ways[most]
    each = (worst.value - free.value) / (most - 1)
    return Finding(
        rule="memory.conflicts",
        severity="note",
        title=f"{most}-way bank conflicts make loads of shared memory {times(worst.value / free.value)} slower",
        text=f"Each further word of a bank takes {quantity(each, 'cycle')}.",
        advice=f"Pad rows to an odd number of 4-byte words, as in float tile[{BANK_WORDS}][{BANK_WORDS + 1}].",
        threshold="cycles of a warp's load while the SM is full of them, against words in a row",
        rests_on=rests_on(*by_ways.values()),
    )


# A copy that loses more than this against a faster way is worth replacing.
LOSS = 0.1


# A copy that touches at most this share of the L2 stays in it; those of 16 MiB, 53 % of an H200's, still do. Larger
# ones run at the pace of DRAM, so one line through both would describe neither.
STAYS_IN_L2 = 0.6


class Engine(NamedTuple):
    """T = a + V / b of one call whose data stay in the L2, where V counts the bytes read and written."""

    line: Line
    points: tuple[tuple[int, Row], ...]

    @property
    def fixed_s(self) -> float:
        """a: the time of a call on the device, however little it moves."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope


def engine(evidence: Evidence, way: str) -> Engine | None:
    """The fit by relative least squares over the sizes that stay in the L2; None with too few of them, where time does
    not grow with them, or where the size of the L2 is unknown."""
    within_bytes = STAYS_IN_L2 * (l2_bytes(evidence) or 0)
    points = tuple(point for point in curve(evidence, way).items() if point[1].measurement.work.bytes <= within_bytes)
    moved = ((row.measurement.work.bytes, row.measurement.work.bytes / row.value) for _, row in points)
    fit = line(moved)
    return Engine(fit, points) if fit is not None and fit.slope > 0 else None


def curve(evidence: Evidence, way: str) -> dict[int, Row]:
    """Rates by the bytes of the destination, ascending."""
    points = evidence.curve("memory_copy", "bandwidth", "size_bytes", way=way)
    return {size_bytes: row for size_bytes, row in points if row.value > 0 and row.measurement.work.bytes > 0}


def copy(evidence: Evidence) -> Finding | None:
    """What a copy by the driver costs however small, and whether a kernel copies faster."""
    driver, fit = curve(evidence, "copy"), engine(evidence, "copy")
    kernel = {whole(row, "size_bytes"): row for row in streams(evidence, kernel="copy", implementation=NATIVE)}
    common = max(driver.keys() & kernel.keys(), default=None)
    if common is None and fit is None:
        return None
    formula = f"takes {as_time(fit.fixed_s)} + V / {quantity(fit.bandwidth, 'B/s')}" if fit is not None else ""
    within = f"up to {size(fit.points[-1][0])}, which stay in the L2" if fit is not None else ""
    compared = (driver[common], kernel[common]) if common is not None else ()
    title, text, share = f"cuMemcpyDtoD {formula} for V bytes read and written, {within}", "", 1.0
    if common is not None:
        share = driver[common].value / kernel[common].value
        title = f"cuMemcpyDtoD reaches {percent(share)} of a copy kernel's rate at {size(common)}"
        text = f"{sentence(within)}, a call {formula} for V bytes read and written." if fit is not None else ""
    heavy = share < 1 - LOSS
    return Finding(
        rule="memory.copy",
        severity="advice" if heavy else "note",
        title=title,
        text=text,
        advice="Copy large arrays with a kernel." if heavy else "",
        threshold=(
            "T = a + V / b by the least relative residuals over copies that touch at most "
            f"{round_percent(STAYS_IN_L2)} of the L2; advice where the driver's copy loses over {round_percent(LOSS)} "
            "against a kernel"
        ),
        rests_on=rests_on(*((row for _, row in fit.points) if fit is not None else ()), *compared),
    )


def copy_2d(evidence: Evidence) -> Finding | None:
    """A 2D copy that is slower than the plain one on the largest blocks of both."""
    plain, rowwise = curve(evidence, "copy"), curve(evidence, "copy_2d")
    common = max(plain.keys() & rowwise.keys(), default=None)
    if common is None or rowwise[common].value >= (1 - LOSS) * plain[common].value:
        return None
    return Finding(
        rule="memory.copy_2d",
        severity="advice",
        title=(
            f"A 2D copy reaches {percent(rowwise[common].value / plain[common].value)} of a plain copy's rate at "
            f"{size(common)}"
        ),
        text="Its rows fill half of their pitch.",
        advice="Keep what is copied often contiguous, or copy its rows with a kernel.",
        threshold=f"a 2D copy loses over {round_percent(LOSS)} against the plain one",
        rests_on=rests_on(plain[common], rowwise[common]),
    )


ENOUGH = 0.9
LOAD_BYTES = 16
# Amounts in flight within this factor of each other count as equal.
NEAR = 1.01
MOST_NAMED = 3
FEWEST_PIECES = 2


class Flight(NamedTuple):
    """A read with a known number of bytes in flight on each SM."""

    in_flight_bytes: int
    row: Row

    @property
    def threads(self) -> int:
        """Threads on each SM."""
        return whole(self.row, "blocks_per_sm") * whole(self.row, "block_threads")


def flights(evidence: Evidence) -> list[Flight]:
    """Reads by the bytes in flight on each SM, ascending."""
    result = []
    for row in evidence.rows("memory_occupancy", "bandwidth"):
        amounts = [value for value in facts_of(row, "under_way_per_sm") if isinstance(value, int)]
        if amounts and row.value > 0:
            result.append(Flight(amounts[-1], row))
    return sorted(result, key=lambda flight: (flight.in_flight_bytes, flight.row.value))


def needed(flights: list[Flight]) -> Flight | None:
    """The least in flight that reaches ENOUGH of the best; None where nothing smaller was measured."""
    best = max((flight.row.value for flight in flights), default=0.0)
    least = next((flight for flight in flights if flight.row.value >= ENOUGH * best), None)
    return least if least is not None and least.in_flight_bytes > flights[0].in_flight_bytes else None


def little_bytes(evidence: Evidence, bandwidth: float) -> float | None:
    """Bytes in flight on each SM by Little's law: latency of DRAM x bandwidth / SMs."""
    sms = evidence.gpu.sm_count if evidence.gpu is not None else None
    dram = next((level for level in latency_levels(evidence) if level.name == "DRAM"), None)
    return dram.value * bandwidth / sms if dram is not None and sms else None


def ways(flights: list[Flight], least: Flight) -> list[str]:
    """The threads and loads that have as much in flight as ``least`` and are no slower."""
    same = {
        (flight.threads, whole(flight.row, "loads"))
        for flight in flights
        if least.in_flight_bytes <= flight.in_flight_bytes <= NEAR * least.in_flight_bytes
        and flight.row.value >= least.row.value
    }
    return [
        f"{threads} threads with {loads} load{'s' if loads > 1 else ''} of {LOAD_BYTES} bytes"
        for threads, loads in sorted(same, reverse=True)[:MOST_NAMED]
    ]


def in_flight(evidence: Evidence) -> Finding | None:
    """How many bytes in flight fill the memory, against Little's law, and which threads and loads give them."""
    every = flights(evidence)
    least = needed(every)
    if least is None:
        return None
    best = max(every, key=lambda flight: flight.row.value)
    little = little_bytes(evidence, best.row.value)
    return Finding(
        rule="memory.in_flight",
        severity="note",
        title=(
            f"{round_percent(ENOUGH)} of the bandwidth needs {about_size(least.in_flight_bytes)} in flight on each SM"
        ),
        text=(
            f"Little's law asks for {about_size(little)} at the idle latency; a busy memory answers later."
            if little is not None
            else ""
        ),
        advice=f"Run {' or '.join(ways(every, least))} on each SM; with fewer threads unroll or load wider.",
        threshold=f"the least in flight that reaches {round_percent(ENOUGH)} of the best of memory_occupancy",
        rests_on=rests_on(least.row, best.row),
    )


BULK, LOAD = "bulk", "load"


def bulk(evidence: Evidence) -> Finding | None:
    """From which size of a piece on bulk copies fill shared memory at their best rate, against ordinary loads."""
    largest = max((whole(row, "footprint_bytes") for row in evidence.rows("memory_bulk", "bandwidth")), default=0)
    by_way = {}
    for way in (BULK, LOAD):
        points = evidence.curve("memory_bulk", "bandwidth", "piece_bytes", way=way, footprint_bytes=largest)
        by_way[way] = [(piece_bytes, row) for piece_bytes, row in points if row.value > 0]
    if len(by_way[BULK]) < FEWEST_PIECES or not by_way[LOAD]:
        return None
    best, loaded = (max((row for _, row in curve), key=lambda row: row.value) for curve in by_way.values())
    piece_bytes, _ = next(point for point in by_way[BULK] if point[1].value >= ENOUGH * best.value)
    small_bytes, small = by_way[BULK][0]
    share = small.value / best.value
    return Finding(
        rule="memory.bulk",
        severity="note",
        title=(
            f"Bulk copies fill shared memory at {quantity(best.value, 'B/s')} from {size(largest)}, "
            f"{percent(best.value / loaded.value)} of what loads reach"
        ),
        text=f"Pieces of {size(small_bytes)} give {percent(share)} of that." if share < ENOUGH else "",
        advice=f"Copy at least {size(piece_bytes)} at a time." if piece_bytes > small_bytes else "",
        threshold=f"the best of each way; the smallest piece with {round_percent(ENOUGH)} of the best",
        rests_on=rests_on(*(row for curve in by_way.values() for _, row in curve)),
    )


RULES: tuple[Rule, ...] = (in_flight, stride, random, atomic, conflicts, copy, copy_2d, bulk)

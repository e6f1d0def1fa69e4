"""Explains accesses that do not stream: words that lie apart, random ones, atomic additions."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, facts_of, listed, rests_on, whole
from microbench.analysis.fits import Line, line
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, quantity, rate_of, round_percent, size, times
from microbench.explain.memory_levels import latency_levels
from microbench.explain.memory_stream import NATIVE, best_stream, streams

WORD_BYTES, RANDOM_WORD_BYTES = 4, 8
WHOLE = 0.85
CONTENDED = 4.0
ACCESSES = {"gather": "read", "scatter": "written", "update": "updated"}


class Apart(NamedTuple):
    """Words that lie apart: the useful rate over the stride, and up to where a word costs its whole stride."""

    points: list[tuple[int, Row]]
    whole_bytes: int

    def cost_bytes(self, row: Row) -> float:
        """What a word costs in bytes of the rate of neighbouring words."""
        return WORD_BYTES * self.points[0][1].value / row.value


def apart(evidence: Evidence, access: str) -> Apart | None:
    """The curve of one access from neighbouring words on; None without them, or where it has no second point."""
    points = evidence.curve("memory_stride", "bandwidth", "stride_bytes", access=access)
    points = [(stride, row) for stride, row in points if row.value > 0]
    if len(points) < 2 or points[0][0] != WORD_BYTES:
        return None
    found = Apart(points, WORD_BYTES)
    costly = itertools.takewhile(lambda one: found.cost_bytes(one[1]) >= WHOLE * one[0], points)
    return found._replace(whole_bytes=max(stride for stride, _ in costly))


def stride(evidence: Evidence) -> list[Finding]:
    """What a word costs whose neighbours nobody wants: as much as memory moves at a time."""
    found = {access: one for access in ("read", "write") if (one := apart(evidence, access)) is not None}
    if not found:
        return []
    access, first = next(iter(found.items()))
    row = dict(first.points)[first.whole_bytes]
    kept = row.value / first.points[0][1].value
    return [
        Finding(
            rule="memory.stride",
            severity="note",
            title=f"Words {size(first.whole_bytes)} apart keep {percent(kept)} of the useful bandwidth ({access})",
            text=(
                f"{' '.join(_stride_words(*one) for one in found.items())} Let neighbouring threads touch neighbouring "
                "words, or turn arrays of structures into structures of arrays."
            ),
            threshold=f"a word costs its stride where it costs at least {round_percent(WHOLE)} of it in bytes in a row",
            rests_on=rests_on(*(point[1] for one in found.values() for point in one.points)),
            suite="memory",
        )
    ]


def _stride_words(access: str, one: Apart) -> str:
    last_bytes, last = one.points[-1]
    name = "Read" if access == "read" else "Written"
    if one.whole_bytes == last_bytes:
        return f"{name} up to {size(last_bytes)} apart, a word costs as much as all bytes from it to the next."
    return (
        f"{name} up to {size(one.whole_bytes)} apart, a word costs as much as all bytes from it to the next: so many "
        f"are moved at a time. {size(last_bytes)} apart {quantity(last.value, 'B/s')} of "
        f"{quantity(one.points[0][1].value, 'B/s')} are left, a word costs {one.cost_bytes(last):.0f} bytes in a row."
    )


def random(evidence: Evidence) -> list[Finding]:
    """Random accesses a second in the largest set, and how many bytes in a row each costs as much as."""
    found = {access: rows for access in ACCESSES if (rows := _by_footprint(evidence, access))}
    if not found:
        return []
    words = [_random_words(evidence, access, rows) for access, rows in found.items()]
    title = ", ".join(f"{access} {_short(rows[-1][1])}" for access, rows in found.items())
    largest = size(max(rows[-1][0] for rows in found.values()))
    return [
        Finding(
            rule="memory.random",
            severity="note",
            title=f"Random {RANDOM_WORD_BYTES}-byte words a second over {largest}: {title}",
            text=(
                f"{' '.join(words)} Sort or partition by address so that what is touched together fits the L2, and "
                "use the neighbours of each word."
            ),
            threshold="each word of a set touched once in the order of a hash",
            rests_on=rests_on(*(row for rows in found.values() for _, row in rows)),
            suite="memory",
        )
    ]


def _by_footprint(evidence: Evidence, access: str) -> list[tuple[int, Row]]:
    found = evidence.curve("memory_random", "accesses", "footprint_bytes", access=access)
    return [(footprint, row) for footprint, row in found if row.value > 0]


def _random_words(evidence: Evidence, access: str, rows: list[tuple[int, Row]]) -> str:
    largest, row = rows[-1]
    words = f"Over {size(largest)} {rate_of(row.value, 'words')} are {ACCESSES[access]}"
    kernel = "write" if access == "scatter" else "read"
    stream = best_stream(evidence, kernel)
    if stream is not None:
        words += f", one in the time of {stream.value / row.value:.0f} bytes of the streaming {kernel}"
    smallest, near = rows[0]
    if smallest < largest and near.value > row.value:
        words += f"; over {size(smallest)} {times(near.value / row.value)} as many"
    return f"{words}."


def _short(row: Row) -> str:
    return quantity(row.value, "1/s").removesuffix("/s").strip()


class Contention(NamedTuple):
    """Additions to one word against additions to words of the threads' own."""

    space: str
    dtype: str
    same: Row
    spread: Row

    @property
    def factor(self) -> float:
        """How many times faster those to words of their own are."""
        return self.spread.value / self.same.value


def contention(evidence: Evidence) -> list[Contention]:
    """For global and shared memory and each type, where both were measured."""
    found = []
    for space in ("global", "shared"):
        for dtype in ("int32", "fp32"):
            same, spread = (
                evidence.row("memory_atomic", "additions", space=space, dtype=dtype, spread=one)
                for one in ("same", "thread")
            )
            if same is not None and spread is not None:
                found.append(Contention(space, dtype, same, spread))
    return found


def atomic(evidence: Evidence) -> list[Finding]:
    """What it costs that threads add to the same word."""
    found = contention(evidence)
    if not found:
        return []
    worst = max(found, key=lambda one: one.factor)
    heavy = worst.factor > CONTENDED
    words = [
        f"{one.dtype} in {one.space} memory {quantity(one.same.value, 'OP/s')} against "
        f"{quantity(one.spread.value, 'OP/s')}"
        for one in found
    ]
    advice = " Add up in registers, a warp or shared memory first, and send one addition a block." if heavy else ""
    return [
        Finding(
            rule="memory.atomic",
            severity="advice" if heavy else "note",
            title=(
                f"Additions to one word are {times(worst.factor)} slower than to one a thread "
                f"({worst.dtype}, {worst.space} memory)"
            ),
            text=f"All threads to one word (in shared memory: one a block), against one each: {listed(words)}.{advice}",
            threshold=f"advice where one word costs over {times(CONTENDED)}",
            rests_on=rests_on(*(row for one in found for row in (one.same, one.spread))),
            suite="memory",
        )
    ]


# Explains memory_copy: the driver's copies and memset over size, T = a + V / b, against a kernel's copy.


WAYS = {"copy": "cuMemcpyDtoD", "copy_2d": "2D copy", "memset": "memset"}
HALF = 0.5
LOSS = 0.1


class Engine(NamedTuple):
    """T = a + V / b of one call, V the bytes it reads and writes."""

    way: str
    line: Line
    points: tuple[tuple[int, Row], ...]

    @property
    def fixed_s(self) -> float:
        """a: what a call takes on the device however little it moves."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope

    @property
    def half_bytes(self) -> float:
        """Bytes moved at which a call reaches half of b."""
        return self.fixed_s * self.bandwidth * HALF / (1 - HALF)


def curve(evidence: Evidence, way: str) -> list[tuple[int, Row]]:
    """Rates over the bytes of the destination, ascending."""
    found = evidence.curve("memory_copy", "bandwidth", "size_bytes", way=way)
    return [(size_bytes, row) for size_bytes, row in found if row.value > 0 and row.measurement.work.bytes > 0]


def engine(evidence: Evidence, way: str) -> Engine | None:
    """The fit by relative least squares; None with too few sizes, or where time does not grow with them."""
    points = tuple(curve(evidence, way))
    moved = ((row.measurement.work.bytes, row.measurement.work.bytes / row.value) for _, row in points)
    found = line(moved)
    return Engine(way, found, points) if found is not None and found.slope > 0 else None


def engines(evidence: Evidence) -> list[Finding]:
    """What a call of the driver costs however small, where it ends, and whether a kernel copies faster."""
    found = [one for way in WAYS if (one := engine(evidence, way)) is not None]
    against, lost, rows = _against(evidence)
    if not found and not against:
        return []
    words, rowwise = [_words(one) for one in found], _rows_apart(evidence)
    words += [one for one in (against, rowwise) if one]
    title = f"{WAYS['copy']} within the GPU reaches {percent(1 - lost)} of a kernel's copy"
    if found:
        first = found[0]
        (least, small), (most, large) = first.points[0], first.points[-1]
        small_s = small.measurement.work.bytes / small.value
        title = (
            f"{WAYS[first.way]} within the GPU: {as_time(small_s)} at {size(least)}, "
            f"{quantity(large.value, 'B/s')} at {size(most)}"
        )
    heavy = lost > LOSS
    advice = " Copy large arrays by a kernel where the copy matters." if heavy else ""
    return [
        Finding(
            rule="memory.copy",
            severity="advice" if heavy or rowwise else "note",
            title=title,
            text=f"{' '.join(words)}{advice}",
            threshold=(
                "T = a + V / b by the least relative residuals, V read plus written; advice where the driver's copy "
                f"loses over {round_percent(LOSS)} against a kernel, or its 2D copy against the plain one"
            ),
            rests_on=rests_on(*(row for one in found for _, row in one.points), *rows),
            suite="memory",
        )
    ]


def _words(one: Engine) -> str:
    bend = ""
    if one.line.misfit.largest > LOSS:
        bend = " Some sizes are far off that line: take theirs from the table."
    return (
        f"{WAYS[one.way]} takes {as_time(one.fixed_s)} + V / {quantity(one.bandwidth, 'B/s')}, half of that rate at "
        f"V = {about_size(one.half_bytes)} (misfit {percent(one.line.misfit.median)}, at most "
        f"{percent(one.line.misfit.largest)}).{bend}"
    )


def _rows_apart(evidence: Evidence) -> str:
    """What the 2D copy loses against the plain one on the largest blocks of both; nothing where it is as fast."""
    plain, rowwise = dict(curve(evidence, "copy")), dict(curve(evidence, "copy_2d"))
    common = max((size_bytes for size_bytes in rowwise if size_bytes in plain), default=None)
    if common is None or rowwise[common].value >= (1 - LOSS) * plain[common].value:
        return ""
    return (
        f"Rows that lie apart cost much: at {size(common)} the 2D copy reaches "
        f"{percent(rowwise[common].value / plain[common].value)} of the plain one. Keep what is copied often in one "
        "piece, or copy its rows by a kernel."
    )


def _against(evidence: Evidence) -> tuple[str, float, tuple[Row, ...]]:
    """The driver's copy and a kernel's over arrays of one size: words, what the driver's loses, rows."""
    driver = dict(curve(evidence, "copy"))
    kernel = {row.params.get("size_bytes"): row for row in streams(evidence, kernel="copy", implementation=NATIVE)}
    common = max((size_bytes for size_bytes in driver if size_bytes in kernel), default=None)
    if common is None:
        return "", 0.0, ()
    call, best = driver[common], kernel[common]
    words = (
        f"At {size(common)} the call reaches {quantity(call.value, 'B/s')}, a kernel's copy "
        f"{quantity(best.value, 'B/s')} ({percent(call.value / best.value)} of it)."
    )
    return words, 1 - call.value / best.value, (call, best)


# Explains memory_occupancy: how many bytes must be under way, and how threads and loads make them up.


BENCHMARK, BANDWIDTH = "memory_occupancy", "bandwidth"
ENOUGH = 0.9
LOAD_BYTES = 16
NEAR = 1.01
MOST_NAMED = 3


class Flight(NamedTuple):
    """A read with so many bytes under way on each SM."""

    under_way_bytes: int
    row: Row

    @property
    def threads(self) -> int:
        """Threads on each SM."""
        return whole(self.row, "blocks_per_sm") * whole(self.row, "block_threads")


def flights(evidence: Evidence) -> list[Flight]:
    """Reads by the bytes under way on each SM, ascending."""
    found = []
    for row in evidence.rows(BENCHMARK, BANDWIDTH):
        told = [value for value in facts_of(row, "under_way_per_sm") if isinstance(value, int)]
        if told and row.value > 0:
            found.append(Flight(told[-1], row))
    return sorted(found, key=lambda one: (one.under_way_bytes, one.row.value))


def needed(found: list[Flight]) -> Flight | None:
    """The least under way that reaches ENOUGH of the best; None where nothing was tried with less than that."""
    best = max((one.row.value for one in found), default=0.0)
    reaching = next((one for one in found if one.row.value >= ENOUGH * best), None)
    return reaching if reaching is not None and reaching.under_way_bytes > found[0].under_way_bytes else None


def little_bytes(evidence: Evidence, bandwidth: float) -> float | None:
    """Bytes under way on each SM by Little's law: latency of DRAM x bandwidth / SMs."""
    sms = evidence.gpu.sm_count if evidence.gpu is not None else None
    dram = next((one for one in latency_levels(evidence) if one.name == "DRAM"), None)
    return dram.value * bandwidth / sms if dram is not None and sms else None


def under_way(evidence: Evidence) -> list[Finding]:
    """How many bytes fill the memory, against Little's law, and which threads and loads have them under way."""
    found = flights(evidence)
    least = needed(found)
    if least is None:
        return []
    best = max(found, key=lambda one: one.row.value)
    named = ways(found, least)
    little = little_bytes(evidence, best.row.value)
    law = ""
    if little is not None:
        dram = next(one for one in latency_levels(evidence) if one.name == "DRAM")
        law = (
            f" Little's law asks for {about_size(little)} at the latency of an idle memory ({as_time(dram.value)}); a "
            "busy one answers later, so it takes more."
        )
    return [
        Finding(
            rule="memory.under_way",
            severity="note",
            title=(
                f"{round_percent(ENOUGH)} of the bandwidth needs {about_size(least.under_way_bytes)} under way on each "
                "SM"
            ),
            text=(
                f"That is {' or '.join(named)}: {quantity(least.row.value, 'B/s')} of "
                f"{quantity(best.row.value, 'B/s')}.{_fewer(found, least)}{law} A kernel with fewer threads must have "
                "more loads in each: unroll, or load wider."
            ),
            threshold=f"the least under way that reaches {round_percent(ENOUGH)} of the best of memory_occupancy",
            rests_on=rests_on(least.row, best.row),
            suite="memory",
        )
    ]


def _fewer(found: list[Flight], least: Flight) -> str:
    """What the next lower amount that was tried gives: what is needed lies between the two."""
    below_bytes = max(one.under_way_bytes for one in found if one.under_way_bytes < least.under_way_bytes)
    below = max(one.row.value for one in found if one.under_way_bytes == below_bytes)
    return f" With {about_size(below_bytes)}, the next less that was tried, {quantity(below, 'B/s')}."


def ways(found: list[Flight], least: Flight) -> list[str]:
    """Which threads and loads have as much under way as ``least`` and are no slower."""
    same = [one for one in found if one.under_way_bytes <= NEAR * least.under_way_bytes]
    same = [one for one in same if one.under_way_bytes >= least.under_way_bytes and one.row.value >= least.row.value]
    counted = sorted({(one.threads, whole(one.row, "loads")) for one in same}, reverse=True)[:MOST_NAMED]
    return [
        f"{threads} threads with {loads} load{'s' if loads > 1 else ''} of {LOAD_BYTES} bytes each"
        for threads, loads in counted
    ]

"""Explains accesses that do not stream: words that lie apart, random ones, atomic additions."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on, sentence
from microbench.explain.finding import Finding
from microbench.explain.memory_stream import best_stream
from microbench.stats import Row
from microbench.units import percent, quantity, size, times

WORD_BYTES, RANDOM_WORD_BYTES = 4, 8
SECTOR_BYTES = 32
FLAT = 1.15
FLAT_TO_BYTES = 256
CONTENDED = 4.0
ACCESSES = {"gather": "read", "scatter": "written", "update": "updated"}


class Apart(NamedTuple):
    """Words that lie apart: the useful rate over the stride, and where it no longer falls."""

    points: list[tuple[int, Row]]
    flat_from_bytes: int

    def cost_bytes(self, row: Row) -> float:
        """What a word costs in bytes of the rate of neighbouring words."""
        return WORD_BYTES * self.points[0][1].value / row.value


def apart(evidence: Evidence, access: str) -> Apart | None:
    """The curve of one access from neighbouring words on; None without them, or where it has no second point."""
    points = evidence.curve("memory_stride", "bandwidth", "stride_bytes", access=access)
    points = [(stride, row) for stride, row in points if row.value > 0]
    if len(points) < 2 or points[0][0] != WORD_BYTES:
        return None
    near = [one for one in points if one[0] <= FLAT_TO_BYTES]
    least = near[-1][1].value
    flat = next(stride for stride, row in near if row.value <= FLAT * least)
    return Apart(points, flat)


def stride(evidence: Evidence) -> list[Finding]:
    """What a word costs whose neighbours nobody wants: the sector that memory moves."""
    found = {access: one for access in ("read", "write") if (one := apart(evidence, access)) is not None}
    if not found:
        return []
    words = []
    for access, one in found.items():
        stride_bytes, row = next(point for point in one.points if point[0] == one.flat_from_bytes)
        words.append(
            f"{access} {size(stride_bytes)} apart, {quantity(row.value, 'B/s')} of words are left of "
            f"{quantity(one.points[0][1].value, 'B/s')}: each costs as much as {one.cost_bytes(row):.0f} bytes in a row"
        )
    first = next(iter(found.values()))
    row = dict(first.points)[first.flat_from_bytes]
    kept = row.value / first.points[0][1].value
    return [
        Finding(
            rule="memory.stride",
            severity="note",
            title=f"Words {size(first.flat_from_bytes)} or more apart keep {percent(kept)} of the useful bandwidth",
            text=(
                f"{sentence('; '.join(words))}. Memory moves sectors of {SECTOR_BYTES} bytes, some memories two at "
                "once: let neighbouring threads touch neighbouring words, or turn arrays of structures into structures "
                "of arrays."
            ),
            threshold=f"the least stride from which on up to {size(FLAT_TO_BYTES)} the rate falls no further",
            rests_on=rests_on(*(point[1] for one in found.values() for point in one.points)),
            suite="memory",
        )
    ]


def random(evidence: Evidence) -> list[Finding]:
    """Random accesses a second in the largest set, and how many bytes in a row each costs as much as."""
    found = {access: rows for access in ACCESSES if (rows := _by_footprint(evidence, access))}
    if not found:
        return []
    words = [_random_words(evidence, access, rows) for access, rows in found.items()]
    title = ", ".join(f"{access} {quantity(rows[-1][1].value, 'OP/s')}" for access, rows in found.items())
    largest = size(max(rows[-1][0] for rows in found.values()))
    return [
        Finding(
            rule="memory.random",
            severity="note",
            title=f"Random {RANDOM_WORD_BYTES}-byte accesses over {largest}: {title}",
            text=(
                f"{' '.join(words)} Sort or partition by address so that what is touched together fits the L2, and "
                "use all of each sector."
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
    words = f"In {size(largest)} {quantity(row.value, 'OP/s')} are {ACCESSES[access]}"
    stream = best_stream(evidence, "write" if access == "scatter" else "read")
    if stream is not None:
        words += f", each as dear as {stream.value / row.value:.0f} bytes in a row"
    smallest, near = rows[0]
    if smallest < largest and near.value > row.value:
        words += f"; in {size(smallest)} {times(near.value / row.value)} as many"
    return f"{words}."


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

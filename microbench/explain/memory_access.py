"""Explains accesses that do not stream: words that lie apart, random ones, atomic additions."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on
from microbench.explain.finding import Finding
from microbench.explain.memory_stream import best_stream
from microbench.stats import Row
from microbench.units import percent, quantity, rate_of, round_percent, size, times

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

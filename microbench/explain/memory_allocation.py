"""Explains memory_allocate and memory_capacity: what memory costs to have, and how much of it can be had."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.evidence import Evidence, listed, rests_on, sentence, whole
from microbench.explain.finding import Finding
from microbench.model import Fact
from microbench.stats import Row
from microbench.units import about_size, as_time, percent, size, times

WAYS = {
    "malloc": "cudaMalloc",
    "pool": "stream-ordered pool",
    "cupy_pool": "CuPy's pool",
    "host_pinned": "pinned host memory",
}
POOLS = ("pool", "cupy_pool")
WORTH = 3.0
CAPACITY = "memory_capacity"
FRAGMENTED = 0.98


class Cost(NamedTuple):
    """A block of one size by one way: the first, a later one, given back."""

    way: str
    size_bytes: int
    first: Row | None
    later: Row
    free: Row | None

    @property
    def pair_s(self) -> float:
        """A later block had and given back."""
        return self.later.value + (self.free.value if self.free is not None else 0.0)


def costs(evidence: Evidence) -> list[Cost]:
    """Every way at every size, in the order of the run."""
    found = []
    for row in evidence.rows("memory_allocate", "allocate"):
        way, size_bytes = str(row.params.get("way")), whole(row, "size_bytes")
        if way in WAYS and row.value > 0:
            first, free = (
                evidence.row("memory_allocate", name, way=way, size_bytes=size_bytes) for name in ("first", "free")
            )
            found.append(Cost(way, size_bytes, first, row, free))
    return found


def allocate(evidence: Evidence) -> list[Finding]:
    """A pool against cudaMalloc and cudaFree, and the first block against later ones."""
    found = costs(evidence)
    compared = [size_bytes for size_bytes in {one.size_bytes for one in found} if _both(found, size_bytes)]
    if not compared:
        return []
    largest = max(compared)
    at = {one.way: one for one in found if one.size_bytes == largest}
    malloc, pool = at["malloc"], next(at[way] for way in POOLS if way in at)
    factor = malloc.pair_s / pool.pair_s
    words = [_cost_words(one) for one in at.values()]
    advice = ""
    if factor > WORTH:
        advice = (
            " Take memory from a pool in anything that repeats (cudaMallocAsync, or a library's own allocator); give "
            "it a release threshold, or it hands memory back at each synchronise."
        )
    if "host_pinned" in at:
        advice += " Pin host memory once and keep it."
    return [
        Finding(
            rule="memory.allocate",
            severity="advice" if factor > WORTH else "note",
            title=(
                f"cudaMalloc and cudaFree of {size(largest)} take {as_time(malloc.pair_s)}, {_short(pool)} "
                f"{as_time(pool.pair_s)} ({times(factor)})"
            ),
            text=f"Blocks of {size(largest)}: {'; '.join(words)}.{advice}",
            threshold=f"advice where a pool is over {times(WORTH)} faster, had and given back",
            rests_on=rests_on(*(row for one in at.values() for row in (one.first, one.later, one.free))),
            suite="memory",
        )
    ]


def _both(found: list[Cost], size_bytes: int) -> bool:
    ways = {one.way for one in found if one.size_bytes == size_bytes and one.pair_s > 0}
    return "malloc" in ways and any(way in ways for way in POOLS)


def _short(one: Cost) -> str:
    return "a pool" if one.way == "pool" else WAYS[one.way]


def _cost_words(one: Cost) -> str:
    first = f", the first {as_time(one.first.value)}" if one.first is not None else ""
    free = f", given back in {as_time(one.free.value)}" if one.free is not None else ""
    return f"{WAYS[one.way]} {as_time(one.later.value)}{free}{first}"


def capacity_facts(evidence: Evidence) -> dict[str, Fact]:
    """What memory_capacity found out, by name: that of the newest round."""
    sound = [one for one in evidence.outcomes(CAPACITY) if one.status == "ok" and one.facts]
    return {fact.name: fact for fact in sound[-1].facts} if sound else {}


def capacity(evidence: Evidence) -> list[Finding]:
    """How much of the memory can be had, in one block and in all, and who has the rest."""
    facts = capacity_facts(evidence)
    known = {name: fact.value for name, fact in facts.items() if isinstance(fact.value, int) and fact.value > 0}
    total, most = known.get("total_bytes"), known.get("obtainable_bytes")
    holders = facts.get("memory_holders")
    if total is None:
        return []
    words = [
        f"{words} {about_size(known[name])}"
        for name, words in (
            ("free_bytes", "free"), ("largest_block_bytes", "the largest block"), ("obtainable_bytes", "in all"),
            ("context_bytes", "this process's context keeps"),
        )
        if name in known
    ]  # fmt: skip
    unknown = facts.get("obtainable_bytes")
    why = f" Not tried: {unknown.reason}." if most is None and unknown is not None and unknown.reason else ""
    held = f" Who else has memory of it: {holders.value}." if holders is not None and holders.value is not None else ""
    title = (
        f"{about_size(total)} of memory" if most is None else f"{about_size(most)} of {about_size(total)} can be had"
    )
    share = f" ({percent(most / total)})" if most is not None else ""
    block = known.get("largest_block_bytes")
    split = block is not None and most is not None and block < FRAGMENTED * most
    advice = " No single block is as large: split the largest arrays." if split else ""
    return [
        Finding(
            rule="memory.capacity",
            severity="note",
            title=f"{title}{share}",
            text=f"{sentence(listed(words))}.{held}{why}{advice}" if words else f"{held}{why}".strip(),
            threshold="blocks taken until the driver refuses, and given back at once",
            rests_on=tuple(facts),
            suite="memory",
        )
    ]

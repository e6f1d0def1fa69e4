"""Explains memory_allocate and memory_capacity: what memory costs to have, and how much of it can be had."""

from __future__ import annotations

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on, sentence, whole
from microbench.analysis.stats import Row
from microbench.core.model import Fact
from microbench.core.units import about_size, as_time, percent, quantity, size, times

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


# Explains memory_energy: joules a byte, and how much of it idling would draw as well.


BENCHMARK, POWER, ENERGY = "memory_energy", "power", "energy"
IDLE = "idle"
CHEAPER = 0.9


class Draw(NamedTuple):
    """Power under one load, energy of a byte, and the part of it above idle where idle is known."""

    load: str
    power: Row
    energy: Row
    above_idle: float | None


def draws(evidence: Evidence) -> list[Draw]:
    """Every load, on the largest arrays that it was measured on."""
    idle = evidence.row(BENCHMARK, POWER, load=IDLE)
    found: dict[str, Draw] = {}
    for row in evidence.rows(BENCHMARK, ENERGY):
        load = str(row.params.get("load"))
        size_bytes = row.params.get("size_bytes")
        power = evidence.row(BENCHMARK, POWER, load=load, size_bytes=size_bytes if isinstance(size_bytes, int) else 0)
        if power is None or row.value <= 0:
            continue
        above = row.value * (1 - idle.value / power.value) if idle is not None and idle.value < power.value else None
        one = Draw(load, power, row, above)
        if load not in found or _size(one) > _size(found[load]):
            found[load] = one
    return list(found.values())


def _size(one: Draw) -> int:
    value = one.energy.params.get("size_bytes")
    return value if isinstance(value, int) else 0


def energy(evidence: Evidence) -> list[Finding]:
    """What a byte costs in energy."""
    found = draws(evidence)
    if not found:
        return []
    idle = evidence.row(BENCHMARK, POWER, load=IDLE)
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    most = max(found, key=lambda one: one.power.value)
    words = [_words(one) for one in found]
    if idle is not None:
        words.append(f"idle {quantity(idle.value, 'W')}")
    against = ""
    if limit_w:
        share = percent(most.power.value / limit_w)
        against = f" Power reaches {share} of the board's {quantity(limit_w, 'W')}."
    shown = max(found, key=lambda one: one.energy.value)
    return [
        Finding(
            rule="memory.energy",
            severity="note",
            title=(
                f"Moving data costs {quantity(shown.energy.value, 'J/B')} ({shown.load}, "
                f"{quantity(shown.power.value, 'W')})"
            ),
            text=f"{sentence('; '.join(words))}.{against}{_small(evidence, found)}",
            threshold="energy counter over two seconds of one kernel, bytes read plus written",
            rests_on=rests_on(idle, *(row for one in found for row in (one.power, one.energy))),
            suite="memory",
        )
    ]


def _small(evidence: Evidence, found: list[Draw]) -> str:
    """What a byte of small arrays costs, by the load that shows the most of it; nothing where it costs no less."""
    pairs = [
        (one, row) for one in found for row in evidence.rows(BENCHMARK, ENERGY, load=one.load)
        if 0 < row.value < CHEAPER * one.energy.value
    ]  # fmt: skip
    if not pairs:
        return ""
    one, row = min(pairs, key=lambda pair: pair[1].value / pair[0].energy.value)
    return (
        f" On arrays of {size(whole(row, 'size_bytes'))} {one.load} takes {quantity(row.value, 'J/B')}: what a cache "
        "holds saves energy beside time."
    )


def _words(one: Draw) -> str:
    above = f", {quantity(one.above_idle, 'J/B')} above idle" if one.above_idle is not None else ""
    return f"{one.load} {quantity(one.energy.value, 'J/B')} at {quantity(one.power.value, 'W')}{above}"

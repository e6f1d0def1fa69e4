"""What memory costs to allocate, and how much of it can be allocated."""

from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, rule, said, whole
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, size, times

WAYS = {
    "malloc": "cudaMalloc",
    "pool": "stream-ordered pool",
    "cupy_pool": "CuPy's pool",
    "host_pinned": "pinned host memory",
}
POOLS = ("pool", "cupy_pool")
WORTH = 3.0


class Cost(NamedTuple):
    """Host time for a block of one size by one way: the first block, a later one, freeing it, and these two added."""

    way: str
    size_bytes: int
    first: Row | None
    later: Row
    free: Row | None
    pair_s: float


def costs(evidence: Evidence) -> list[Cost]:
    """Every way at every size, in the order of the run."""
    result = []
    for row in evidence.rows("memory_allocate", "allocate"):
        way, size_bytes = str(row.params.get("way")), whole(row, "size_bytes")
        if way in WAYS and row.value > 0:
            first, free = (
                evidence.row("memory_allocate", name, way=way, size_bytes=size_bytes) for name in ("first", "free")
            )
            pair_s = row.value + (free.value if free is not None else 0.0)
            result.append(Cost(way, size_bytes, first, row, free, pair_s))
    return result


@rule("memory.allocate", f"advice where a pool allocates and frees over {times(WORTH)} faster")
def allocate(evidence: Evidence) -> Finding | None:
    """A pool against cudaMalloc and cudaFree, on the largest block that both were measured with."""
    every = costs(evidence)
    mallocs = {cost.size_bytes: cost for cost in every if cost.way == "malloc"}
    pools = {cost.size_bytes: cost for way in reversed(POOLS) for cost in every if cost.way == way}
    size_bytes = max(mallocs.keys() & pools.keys(), default=None)
    if size_bytes is None:
        return None
    malloc, pool = mallocs[size_bytes], pools[size_bytes]
    factor = malloc.pair_s / pool.pair_s
    name = "a pool" if pool.way == "pool" else WAYS[pool.way]
    title = (
        f"cudaMalloc and cudaFree of {size(size_bytes)} take {as_time(malloc.pair_s)}, {name} "
        f"{as_time(pool.pair_s)} ({times(factor)})"
    )
    text = "A pool gives out memory that it already holds; its first block still costs a driver call."
    advice = (
        "In anything that repeats, allocate from a pool (cudaMallocAsync) with a release threshold, or it "
        "returns its memory at each synchronise."
        if factor > WORTH
        else ""
    )
    return said(title, text, advice, rows=(malloc.later, malloc.free, pool.later, pool.free))


FRAGMENTED = 0.98


@rule("memory.capacity", "blocks taken until the driver refuses, then freed at once")
def capacity(evidence: Evidence) -> Finding | None:
    """How much of the memory can be allocated, and which processes hold the rest."""
    outcomes = [outcome for outcome in evidence.outcomes("memory_capacity") if outcome.status == "ok" and outcome.facts]
    facts = {fact.name: fact for fact in outcomes[-1].facts} if outcomes else {}
    sizes = {name: fact.value for name, fact in facts.items() if isinstance(fact.value, int) and fact.value > 0}
    total, most, block = (sizes.get(name) for name in ("total_bytes", "obtainable_bytes", "largest_block_bytes"))
    if total is None:
        return None
    title = f"{about_size(total)} of memory"
    if most is not None:
        title = f"{about_size(most)} of {about_size(total)} can be allocated ({percent(most / total)})"
    holders, untried = facts.get("memory_holders"), facts.get("obtainable_bytes")
    words = []
    if most is None and untried is not None and untried.reason:
        words.append(f"How much can be allocated was not tried: {untried.reason}.")
    if holders is not None and holders.value is not None:
        words.append(f"Other holders of memory: {holders.value}.")
    split = block is not None and most is not None and block < FRAGMENTED * most
    text = " ".join(words)
    advice = "Split the largest arrays: no single block can be that large." if split else ""
    return said(title, text, advice, names=tuple(facts))


RULES: tuple[Rule, ...] = (allocate, capacity)

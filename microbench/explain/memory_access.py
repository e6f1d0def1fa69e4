"""Accesses other than streaming: atomic ones and the driver's copies; what memory costs to allocate."""

import itertools

from microbench.analysis.evidence import Evidence, Finding, Rule, rule, said, sentence, whole
from microbench.analysis.fits import line
from microbench.analysis.stats import Row
from microbench.core.units import about_size, as_time, percent, quantity, round_percent, size, times
from microbench.explain.link_facts import CopyFit
from microbench.explain.memory_levels import NATIVE, l2_bytes, streams

CONTENDED = 4.0


def contention(evidence: Evidence) -> list[tuple[float, Row, Row]]:
    """Additions of all threads to one word, and of each to its own, behind their ratio, by memory and type."""
    pairs = []
    for space, dtype in itertools.product(("global", "shared"), ("int32", "fp32")):
        chosen = {"space": space, "dtype": dtype}
        same, spread = (
            evidence.row("memory_atomic", "additions", spread=each, **chosen) for each in ("same", "thread")
        )
        if same is not None and spread is not None:
            pairs.append((spread.value / same.value, same, spread))
    return pairs


@rule("memory.atomic", f"advice where one word costs over {times(CONTENDED)}")
def atomic(evidence: Evidence) -> Finding | None:
    """How much slower additions are when all threads add to one word."""
    pairs = contention(evidence)
    if not pairs:
        return None
    factor, same, spread = max(pairs, key=lambda pair: pair[0])
    heavy = factor > CONTENDED
    title = (
        f"Atomic additions to one word are {times(factor)} slower than to a word per thread "
        f"({same.params['dtype']}, {same.params['space']} memory)"
    )
    text = (
        f"They reach {quantity(same.value, 'OP/s')} instead of {quantity(spread.value, 'OP/s')}, "
        "as additions to one address wait for each other."
    )
    advice = "Add up in registers, a warp or shared memory first, and send one addition per block." if heavy else ""
    return said(title, text, advice, rows=(row for _, *both in pairs for row in both))


# A copy that loses more than this against a faster way is worth replacing.
LOSS = 0.1


# A copy that touches at most this share of the L2 stays in it; those of 16 MiB, 53 % of an H200's, still do. Larger
# ones run at the pace of DRAM, so one line through both would describe neither.
STAYS_IN_L2 = 0.6


def engine(evidence: Evidence, way: str) -> CopyFit | None:
    """The fit by relative least squares over the sizes that stay in the L2, where V counts the bytes read and written;
    None with too few of them, where time does not grow with them, or where the size of the L2 is unknown."""
    within_bytes = STAYS_IN_L2 * (l2_bytes(evidence) or 0)
    points = tuple(point for point in curve(evidence, way).items() if point[1].measurement.work.bytes <= within_bytes)
    moved = ((row.measurement.work.bytes, row.measurement.work.bytes / row.value) for _, row in points)
    fit = line(moved)
    return CopyFit(fit, points) if fit is not None and fit.slope > 0 else None


def curve(evidence: Evidence, way: str) -> dict[int, Row]:
    """Rates by the bytes of the destination, ascending."""
    points = evidence.curve("memory_copy", "bandwidth", "size_bytes", way=way)
    return {size_bytes: row for size_bytes, row in points if row.value > 0 and row.measurement.work.bytes > 0}


@rule(
    "memory.copy",
    "T = a + V / b by the least relative residuals over copies that touch at most "
    f"{round_percent(STAYS_IN_L2)} of the L2; advice where the driver's copy loses over {round_percent(LOSS)} "
    "against a kernel",
)
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
    advice = "Copy large arrays with a kernel." if heavy else ""
    return said(title, text, advice, rows=(*((row for _, row in fit.points) if fit is not None else ()), *compared))


@rule("memory.copy_2d", f"a 2D copy loses over {round_percent(LOSS)} against the plain one")
def copy_2d(evidence: Evidence) -> Finding | None:
    """A 2D copy that is slower than the plain one on the largest blocks of both."""
    plain, rowwise = curve(evidence, "copy"), curve(evidence, "copy_2d")
    common = max(plain.keys() & rowwise.keys(), default=None)
    if common is None or rowwise[common].value >= (1 - LOSS) * plain[common].value:
        return None
    title = (
        f"A 2D copy reaches {percent(rowwise[common].value / plain[common].value)} of a plain copy's rate at "
        f"{size(common)}"
    )
    text = "Its rows fill half of their pitch."
    advice = "Keep what is copied often contiguous, or copy its rows with a kernel."
    return said(title, text, advice, rows=(plain[common], rowwise[common]))


WORTH = 3.0


@rule("memory.allocate", f"advice where a pool allocates and frees over {times(WORTH)} faster")
def allocate(evidence: Evidence) -> Finding | None:
    """A pool against cudaMalloc and cudaFree, on the largest block that both were measured with."""
    malloc, pool, other = (
        {
            size: row
            for size, row in evidence.curve("memory_allocate", "allocate", "size_bytes", way=way)
            if row.value > 0
        }
        for way in ("malloc", "pool", "cupy_pool")
    )
    pools = other | pool
    size_bytes = max(malloc.keys() & pools.keys(), default=None)
    if size_bytes is None:
        return None
    later = malloc[size_bytes], pools[size_bytes]
    freed = [evidence.row("memory_allocate", "free", **row.params) for row in later]
    malloc_s, pool_s = (row.value + (free.value if free else 0.0) for row, free in zip(later, freed, strict=True))
    factor = malloc_s / pool_s
    name = "a pool" if size_bytes in pool else "CuPy's pool"
    title = (
        f"cudaMalloc and cudaFree of {size(size_bytes)} take {as_time(malloc_s)}, {name} "
        f"{as_time(pool_s)} ({times(factor)})"
    )
    text = "A pool gives out memory that it already holds; its first block still costs a driver call."
    advice = (
        "In anything that repeats, allocate from a pool (cudaMallocAsync) with a release threshold, or it "
        "returns its memory at each synchronise."
        if factor > WORTH
        else ""
    )
    return said(title, text, advice, rows=(later[0], freed[0], later[1], freed[1]))


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


RULES: tuple[Rule, ...] = (atomic, copy, copy_2d, allocate, capacity)

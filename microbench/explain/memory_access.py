"""Accesses other than streaming: atomic ones and the driver's copies."""

import itertools
from typing import NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, rule, said, sentence, whole
from microbench.analysis.fits import line
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, round_percent, size, times
from microbench.explain.link_facts import CopyFit
from microbench.explain.memory_levels import l2_bytes
from microbench.explain.memory_stream import NATIVE, streams

CONTENDED = 4.0


class Contention(NamedTuple):
    """Additions of all threads to one word, and of each thread to a word of its own."""

    space: str
    dtype: str
    same: Row
    spread: Row
    factor: float


def contention(evidence: Evidence) -> list[Contention]:
    """Global and shared memory in each type, where both were measured."""
    result = []
    for space, dtype in itertools.product(("global", "shared"), ("int32", "fp32")):
        same, spread = (
            evidence.row("memory_atomic", "additions", space=space, dtype=dtype, spread=spread)
            for spread in ("same", "thread")
        )
        if same is not None and spread is not None:
            result.append(Contention(space, dtype, same, spread, spread.value / same.value))
    return result


@rule("memory.atomic", f"advice where one word costs over {times(CONTENDED)}")
def atomic(evidence: Evidence) -> Finding | None:
    """How much slower additions are when all threads add to one word."""
    pairs = contention(evidence)
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: pair.factor)
    heavy = worst.factor > CONTENDED
    title = (
        f"Atomic additions to one word are {times(worst.factor)} slower than to a word per thread "
        f"({worst.dtype}, {worst.space} memory)"
    )
    text = (
        f"They reach {quantity(worst.same.value, 'OP/s')} instead of {quantity(worst.spread.value, 'OP/s')}, "
        "as additions to one address wait for each other."
    )
    advice = "Add up in registers, a warp or shared memory first, and send one addition per block." if heavy else ""
    return said(title, text, advice, rows=(row for pair in pairs for row in (pair.same, pair.spread)))


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


RULES: tuple[Rule, ...] = (atomic, copy, copy_2d)

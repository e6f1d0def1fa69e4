"""Explains products of cuBLASLt: from which size on they are fed, which shape is fastest, what short sums gain."""

from __future__ import annotations

from typing import NamedTuple

from microbench.explain.compute_units import (
    MAIN_DTYPE,
    NATIVE,
    PRODUCTS,
    RATES,
    SEARCH,
    accumulator,
    beside,
    counted,
    dtype_of,
    dtypes,
    fact_of,
    figure,
    one_rate,
    rates,
    shape_of,
    some,
)
from microbench.explain.evidence import Evidence, listed, rests_on, whole
from microbench.explain.finding import Finding
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent, times

FED = 0.9
FEWEST_SIZES = 3
EQUAL = 0.02
FAST = "_fast"


class Fed(NamedTuple):
    """From which size on a type's products come near their best."""

    dtype: str
    size: int
    best: Row
    points: list[tuple[int, Row]]


def fed_sizes(evidence: Evidence) -> list[Fed]:
    """For each type that was measured at FEWEST_SIZES sizes or more."""
    found = []
    for dtype in sorted(dtypes(evidence, PRODUCTS), key=lambda one: one != MAIN_DTYPE):
        points = sorted(
            ((whole(row, "size"), row) for row in rates(evidence, PRODUCTS, dtype=dtype, library=NATIVE)),
            key=lambda point: point[0],
        )
        if len(points) >= FEWEST_SIZES:
            best = max((row for _, row in points), key=lambda row: row.value)
            size = next(size for size, row in points if row.value >= FED * best.value)
            found.append(Fed(dtype, size, best, points))
    return found


def fed_from(evidence: Evidence) -> list[Finding]:
    """The size from which on the tensor cores are fed."""
    found = fed_sizes(evidence)
    if not found:
        return []
    first = found[0]
    smallest, slow = first.points[0]
    return [
        Finding(
            rule="compute.fed_from",
            severity="note",
            title=f"{first.dtype} products reach {round_percent(FED)} of their best from size {first.size} on",
            text=(
                f"{some([f'{one.dtype} from {one.size} on' for one in found])}. At size {smallest} {first.dtype} "
                f"gives {figure(slow)}, {percent(slow.value / first.best.value)} of its best {figure(first.best)}: "
                "join small products to batches."
            ),
            threshold=f"the smallest square size with {round_percent(FED)} of the best rate of its type",
            rests_on=rests_on(*(row for one in found for _, row in one.points)),
            suite="compute",
        )
    ]


def searched(evidence: Evidence) -> list[Finding]:
    """The best shape of the search, against the best square one where that was measured."""
    pairs: list[tuple[Row, Row | None]] = []
    for row in sorted(rates(evidence, SEARCH), key=lambda row: dtype_of(row) != MAIN_DTYPE):
        squares = rates(evidence, PRODUCTS, dtype=dtype_of(row), library=NATIVE)
        if shape_of(row):
            pairs.append((row, max(squares, key=lambda one: one.value, default=None)))
    if not pairs:
        return []
    row, square = pairs[0]
    clock, power = beside(evidence, row, "sm_clock"), beside(evidence, row, "power")
    at = listed([figure(one) for one in (clock, power) if one is not None])
    return [
        Finding(
            rule="compute.search",
            severity="note",
            title=f"The fastest {dtype_of(row)} product is {shape_of(row)}: {figure(row)}{f' at {at}' if at else ''}",
            text=f"{_against(row, square)}{some([_search_words(*pair) for pair in pairs])}.",
            threshold=f"more where over {round_percent(EQUAL)} faster than the best of gemm_throughput",
            rests_on=rests_on(*(one for pair in pairs for one in pair), clock, power),
            suite="compute",
        )
    ]


def _against(row: Row, square: Row | None) -> str:
    if square is None:
        return ""
    gain = row.value / square.value - 1
    more = f"{percent(gain)} more than" if gain > EQUAL else "no more than" if gain < -EQUAL else "as much as"
    return (
        f"That is {more} the best square one ({figure(square)}), measured minutes apart, so that a few percent are the "
        "board's own. "
    )


def _search_words(row: Row, square: Row | None) -> str:
    fact = fact_of(row, "candidate")
    by = f" by {fact.value}" if fact is not None else ""
    beside_it = f", square {figure(square)}" if square is not None else ""
    return f"{dtype_of(row)} {shape_of(row)} {figure(row)}{by}{beside_it}"


def halved(evidence: Evidence) -> list[Finding]:
    """Shapes that did not fit the free memory and were made smaller: their rate is that of another size."""
    found = []
    for row in (row for name in (PRODUCTS, SEARCH) for metric in RATES for row in evidence.rows(name, metric)):
        fact = fact_of(row, "shape")
        if fact is not None and (fact.source or "").startswith("halved"):
            found.append((row, fact))
    if not found:
        return []
    told = [f"{row.case_id} is {fact.value}" for row, fact in found]
    return [
        Finding(
            rule="compute.halved",
            severity="warning",
            title=f"{counted(len(found), 'product')} did not fit the free memory: a smaller one was measured",
            text=f"{some(told)}. End what holds memory on this GPU and measure them again.",
            threshold="fact shape says that it was halved",
            rests_on=rests_on(*(row for row, _ in found)),
            suite="compute",
        )
    ]


def fast(evidence: Evidence) -> list[Finding]:
    """fp8 that adds up in the tensor cores alone against sums that are promoted to fp32."""
    pairs = []
    for row in rates(evidence, PRODUCTS, library=NATIVE):
        dtype = dtype_of(row)
        other = one_rate(
            evidence, PRODUCTS, dtype=dtype.removesuffix(FAST), library=NATIVE, size=whole(row, "size")
        )  # fmt: skip
        if dtype.endswith(FAST) and other is not None:
            pairs.append((row, other))
    if not pairs:
        return []
    quick, exact = max(pairs, key=lambda pair: whole(pair[0], "size"))
    gain = quick.value / exact.value
    return [
        Finding(
            rule="compute.fast",
            severity="note",
            title=(
                f"Fast accumulation makes {dtype_of(exact)} {times(gain)} as fast: {figure(quick)} against "
                f"{quantity(exact.value, exact.metric.unit)}"
            ),
            text=(
                f"{dtype_of(quick)}{accumulator(quick)}; {dtype_of(exact)}{accumulator(exact)}. Short sums lose bits "
                f"over long depths: {'check what the model needs.' if gain > 1 + EQUAL else 'here they gain nothing.'}"
            ),
            threshold=f"the same size; a gain from {round_percent(EQUAL)} on",
            rests_on=rests_on(*(row for pair in pairs for row in pair)),
            suite="compute",
        )
    ]

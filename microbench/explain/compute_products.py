"""Explains products of cuBLASLt: from which size on they are fed, which shape is fastest, what short sums gain."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal, NamedTuple

from microbench.analysis.evidence import Evidence, Finding, listed, rests_on, whole
from microbench.analysis.limits import ceiling
from microbench.analysis.stats import Row
from microbench.core.units import as_time, percent, quantity, round_percent, times
from microbench.explain.compute_units import (
    LIBRARIES,
    MAIN_DTYPE,
    NATIVE,
    PRODUCTS,
    RATES,
    SEARCH,
    SHAPES,
    SUSTAINED,
    TENSORS,
    accumulator,
    beside,
    best_product,
    best_products,
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
from microbench.explain.memory_stream import best_stream

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


# Explains who multiplies: CuPy's and PyTorch's matmul and cuBLASLt's own guesses beside its fastest candidate.


EQUAL_RATE, HEAVY_LOSS = 0.02, 0.05
AGAINST = "against"
GUESS = re.compile(r"guess (\d+) of the heuristics")


class Rival(NamedTuple):
    """Another library against cuBLASLt: the same type, the same size; ``against`` of batches in turn on the same
    operands, None in runs that took them one after the other."""

    library: str
    row: Row
    native: Row
    against: Row | None

    @property
    def ratio(self) -> float:
        """Above 1 the other library is faster."""
        return self.against.value if self.against is not None else self.row.value / self.native.value


def rivals(evidence: Evidence) -> list[Rival]:
    """Every pair that was measured, at the largest size of each type."""
    found = []
    for library in LIBRARIES:
        for dtype in dtypes(evidence, PRODUCTS):
            rows = rates(evidence, PRODUCTS, dtype=dtype, library=library)
            row = max(rows, key=lambda one: whole(one, "size"), default=None)
            if row is None:
                continue
            native = one_rate(evidence, PRODUCTS, dtype=dtype, library=NATIVE, size=whole(row, "size"))
            if native is not None:
                found.append(Rival(library, row, native, beside(evidence, row, AGAINST)))
    return found


def libraries(evidence: Evidence) -> list[Finding]:
    """CuPy's and PyTorch's matmul beside cuBLASLt's fastest candidate."""
    found = rivals(evidence)
    if not found:
        return []
    by_library = {name: [one for one in found if one.library == name] for name in LIBRARIES}
    worst = min(found, key=lambda one: one.ratio)
    heavy = worst.ratio < 1 - HEAVY_LOSS
    told = {name: own for name, own in by_library.items() if own}
    in_turn = all(one.against is not None for one in found)
    ahead = [f"{LIBRARIES[one.library]} in {dtype_of(one.row)}" for one in found if one.ratio > 1 + EQUAL_RATE]
    claim = "Faster than every candidate that was tried" if in_turn else "Ahead, though not measured in turn"
    faster = f" {claim}: {listed(ahead)}." if ahead else ""
    advice = (
        f" {LIBRARIES[worst.library]} takes another kernel for {dtype_of(worst.row)}: where that product matters, "
        "choose the candidate by measuring."
        if heavy else ""
    )  # fmt: skip
    return [
        Finding(
            rule="compute.libraries",
            severity="advice" if heavy else "note",
            title=f"Beside cuBLASLt: {'; '.join(_range(name, own) for name, own in told.items())}",
            text=f"{'. '.join(_rival_words(name, own) for name, own in told.items())}.{faster}{advice}",
            threshold=(
                f"{'in turn' if in_turn else 'one after the other'}, the same operands at the largest size of a type; "
                f"equal within {round_percent(EQUAL_RATE)}, advice where over {round_percent(HEAVY_LOSS)} is lost"
            ),
            rests_on=rests_on(*(row for one in found for row in (one.row, one.native))),
            suite="compute",
        )
    ]


def _range(name: str, own: list[Rival]) -> str:
    low, high = min(one.ratio for one in own), max(one.ratio for one in own)
    span = percent(low) if low == high else f"{percent(low)} to {percent(high)}"
    return f"{LIBRARIES[name]} reaches {span}"


def _rival_words(name: str, own: list[Rival]) -> str:
    return f"{LIBRARIES[name]}: {some([_beside(one) for one in sorted(own, key=lambda one: one.ratio)])}"


def _beside(one: Rival) -> str:
    """Measured in turn, the ratio is of pairs: it is not that of the two rates, which are of other moments."""
    if one.against is not None:
        return f"{dtype_of(one.row)} {percent(one.ratio)} (at {figure(one.row)})"
    return f"{dtype_of(one.row)} {figure(one.row)} of {figure(one.native)} ({percent(one.ratio)})"


def candidates(evidence: Evidence) -> list[Finding]:
    """How often the heuristics' first guess was not the fastest."""
    found = [(row, guess) for row in best_products(evidence) if (guess := _guess(row)) is not None]
    later = [(row, guess) for row, guess in found if guess > 1]
    if not found:
        return []
    told = [f"{dtype_of(row)} {_candidate(row)} (guess {guess})" for row, guess in (later or found)]
    return [
        Finding(
            rule="compute.candidate",
            severity="note",
            title=(
                f"cuBLASLt's first guess was not the fastest for {len(later)} of {counted(len(found), 'type')}"
                if later
                else f"cuBLASLt's first guess was the fastest for {counted(len(found), 'type')}"
            ),
            text=(
                f"{some(told)}. Calls that take what the heuristics propose first get the first guess: products "
                "that matter are worth a search."
                if later else f"{some(told)}. A search gains nothing at these sizes."
            ),
            threshold="the least median of three samples of each candidate, in turn, at each type's best size",
            rests_on=rests_on(*(row for row, _ in found)),
            suite="compute",
        )
    ]  # fmt: skip


def _guess(row: Row) -> int | None:
    """Which of the heuristics' candidates was the fastest, from 1; None where there was one only."""
    fact = fact_of(row, "candidate")
    told = GUESS.search(fact.source or "") if fact is not None else None
    return int(told[1]) if told else None


def _candidate(row: Row) -> str:
    fact = fact_of(row, "candidate")
    return str(fact.value) if fact is not None else ""


# Explains the products of language models: which roof of this run holds each up, and what a graph would give.


# A product is a launch in disguise where a call from Python takes so many times as long as its work on the device.
LAUNCHES_FROM = 1.2
# A graph is worth its trouble where it makes a call so many times as fast.
GRAPH_WORTH = 1.2

Held = Literal["launch", "bandwidth", "compute"]


class Roof(NamedTuple):
    """What this run holds a shape against: a rate in ``unit``, and who gave it. ``row`` is None for a computed one."""

    value: float
    unit: str
    name: str
    row: Row | None


def bandwidth_roof(evidence: Evidence) -> Roof | None:
    """Reads by memory_stream on arrays beyond the L2, else memory clock x 2 x bus width; None if neither is known."""
    row = best_stream(evidence, "read")
    if row is not None:
        return Roof(row.value, "B/s", "memory_stream read", row)
    limit = ceiling("dram", evidence.gpu)
    return Roof(limit.value, "B/s", limit.source, None) if limit is not None else None


def compute_roof(evidence: Evidence, dtype: str) -> Roof | None:
    """The tensor cores' sustained rate of a type alone or its fastest product, whichever is more, else the ceiling at
    the highest clock. A product is more where the instructions that were measured are not this architecture's best."""
    found = rates(evidence, TENSORS, dtype=dtype.removesuffix("_fast"), load=SUSTAINED)
    row = max(found, key=lambda one: one.value, default=None)
    product = best_product(evidence, dtype)
    if row is not None and (product is None or product.value <= row.value):
        return Roof(row.value, row.metric.unit, f"tensor_ceiling {row.params.get('path')}, sustained", row)
    row = product
    if row is not None:
        return Roof(row.value, row.metric.unit, f"gemm_throughput size {row.params.get('size')}", row)
    limit = ceiling(f"gemm:{dtype}", evidence.gpu)
    return Roof(limit.value, limit.unit, limit.source, None) if limit is not None else None


class Shaped(NamedTuple):
    """A product of a model: what its work takes on the device, a call from Python, a call in a graph, and what holds it
    up by this run's own roofs; ``held`` is None where no roof is known."""

    row: Row
    bandwidth: Row | None
    call: Row | None
    graph: Row | None
    held: Held | None

    @property
    def operations(self) -> int:
        """Of one product, floating or integer."""
        work = self.row.measurement.work
        return work.flops or work.operations or 0

    @property
    def device_s(self) -> float:
        """What the work itself takes."""
        return self.operations / self.row.value

    @property
    def intensity(self) -> float | None:
        """Operations for each byte of operands and result: the roofline's horizontal axis."""
        moved = self.bandwidth.measurement.work.bytes if self.bandwidth is not None else None
        return self.operations / moved if moved else None

    @property
    def graph_factor(self) -> float | None:
        """How many times as fast a call is in a graph."""
        if self.call is None or self.graph is None or self.graph.value <= 0:
            return None
        return self.call.value / self.graph.value


def bound_of(evidence: Evidence, row: Row) -> Held | None:
    """What holds a shape up: "launch" where a call from Python takes longer than the work, else the roof under which
    its bytes or its operations would take longer: "bandwidth" or "compute"."""
    one = _shaped(evidence, row)
    return _held(one, bandwidth_roof(evidence), compute_roof(evidence, dtype_of(row)))


def shaped(evidence: Evidence) -> list[Shaped]:
    """Every product of a model that was measured, in the order of the run."""
    rows, memory = rates(evidence, SHAPES), bandwidth_roof(evidence)
    roofs = {dtype: compute_roof(evidence, dtype) for dtype in dict.fromkeys(dtype_of(row) for row in rows)}
    found = [_shaped(evidence, row) for row in rows]
    return [one._replace(held=_held(one, memory, roofs[dtype_of(one.row)])) for one in found]


def _shaped(evidence: Evidence, row: Row) -> Shaped:
    bandwidth, call, graph = (beside(evidence, row, name) for name in ("bandwidth", "call", "graph"))
    return Shaped(row, bandwidth, call, graph, None)


def _held(one: Shaped, memory: Roof | None, compute: Roof | None) -> Held | None:
    if one.call is not None and one.call.value > LAUNCHES_FROM * one.device_s:
        return "launch"
    if memory is None or compute is None or one.intensity is None or compute.unit != one.row.metric.unit:
        return None
    return "bandwidth" if one.intensity * memory.value < compute.value else "compute"


def bounds(evidence: Evidence) -> list[Finding]:
    """How many shapes are held up by what, and from how many rows on it changes."""
    found = [one for one in shaped(evidence) if one.held is not None]
    if not found:
        return []
    held = Counter(one.held for one in found)
    order: tuple[Held, ...] = ("launch", "bandwidth", "compute")
    title = ", ".join(f"{held[name]} {name}-bound" for name in order if held[name])
    words = [_group_words([one for one in found if one.held == name], name) for name in order if held[name]]
    roofs = [bandwidth_roof(evidence), *(compute_roof(evidence, dtype) for dtype in _types(found))]
    named = [f"{roof.name} {quantity(roof.value, roof.unit)}" for roof in roofs if roof is not None]
    return [
        Finding(
            rule="compute.shapes",
            severity="note",
            title=f"Of {counted(len(found), 'product')} of models: {title}",
            text=f"{' '.join(words)} By this run's own roofs: {listed(named)}.",
            threshold=(
                f"launch: a call from Python over {times(LAUNCHES_FROM)} the work on the device; else the roof under "
                "which it would take longer"
            ),
            rests_on=rests_on(*(one.row for one in found), *(roof.row for roof in roofs if roof is not None)),
            suite="compute",
        )
    ]


def _types(found: list[Shaped]) -> list[str]:
    return list(dict.fromkeys(dtype_of(one.row) for one in found))


def _group_words(found: list[Shaped], name: Held) -> str:
    numbers = [whole(one.row, "rows") for one in found]
    span = counted(min(numbers), "row") if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)} rows"
    if name == "compute":
        best = max(found, key=lambda one: one.row.value)
        return f"Compute-bound at {span}, up to {figure(best.row)}."
    if name == "bandwidth":
        rows = [one.bandwidth for one in found if one.bandwidth is not None]
        best_row = max(rows, key=lambda row: row.value, default=None)
        most = f", up to {figure(best_row)}" if best_row is not None else ""
        return f"Bandwidth-bound at {span}{most}: more rows cost little."
    return f"Launch-bound at {span}: the device waits for Python."


def launches(evidence: Evidence) -> list[Finding]:
    """Small products that are launches in disguise, and what a graph would give."""
    found = [
        (one, factor)
        for one in shaped(evidence)
        if one.held == "launch" and (factor := one.graph_factor) is not None and factor >= GRAPH_WORTH
    ]
    if not found:
        return []
    found.sort(key=lambda pair: -pair[1])
    worst, factor = found[0]
    words = [_launch_words(one, by) for one, by in found]
    return [
        Finding(
            rule="compute.launches",
            severity="advice",
            title=(
                f"{_launches(len(found))} in disguise among the products: a graph makes {_name(worst.row)} "
                f"{times(factor)} as fast"
            ),
            text=f"{some(words)}. Capture a step of the model in a graph, or take more rows at a time.",
            threshold=(
                f"a call from Python over {times(LAUNCHES_FROM)} its work on the device, and a graph at least "
                f"{times(GRAPH_WORTH)} as fast"
            ),
            rests_on=rests_on(*(row for one, _ in found for row in (one.row, one.call, one.graph))),
            suite="compute",
        )
    ]


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _name(row: Row) -> str:
    return f"{row.params.get('projection')} of {counted(whole(row, 'rows'), 'row')} ({dtype_of(row)})"


def _launch_words(one: Shaped, factor: float) -> str:
    call, graph = (as_time(row.value) if row is not None else "" for row in (one.call, one.graph))
    return f"{_name(one.row)} {call} a call, {graph} in a graph, {as_time(one.device_s)} of work ({times(factor)})"

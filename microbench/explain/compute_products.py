"""Matrix products: sizes that feed the units, shapes, libraries, and what bounds a model's products."""

import itertools
from typing import Literal, NamedTuple

from microbench.analysis.evidence import Evidence, Finding, Rule, listed, rule, said, whole
from microbench.analysis.limits import ceiling
from microbench.analysis.stats import Row
from microbench.core.units import as_time, counted, percent, round_percent, times
from microbench.explain import compute_units as units
from microbench.explain.memory_levels import best_stream

FED = 0.9
FEWEST_SIZES = 3
# Rates that differ by less count as equal.
EQUAL = 0.02
HEAVY_LOSS = 0.05
FAST = "_fast"


def fed_sizes(evidence: Evidence) -> dict[str, tuple[int, list[tuple[int, Row]]]]:
    """For each type that was measured at FEWEST_SIZES sizes or more: the size from which its products come near their
    best rate, and its rates by size."""
    result = {}
    for dtype in units.dtypes(evidence, units.PRODUCTS):
        rows = units.rates(evidence, units.PRODUCTS, dtype=dtype, library=units.NATIVE)
        points = sorted(((whole(row, "size"), row) for row in rows), key=lambda point: point[0])
        if len(points) >= FEWEST_SIZES:
            best = max(row.value for row in rows)
            result[dtype] = next(size for size, row in points if row.value >= FED * best), points
    return result


class Rival(NamedTuple):
    """Another library against cuBLASLt in one type and size; above 1 the other library is faster.

    ``sustained`` is the ratio of rates at the clock that each library settles at; None unless both ran in blocks of a
    second. ``per_clock`` is the ratio for each cycle of the clock, from the same blocks, or else from the two cases'
    rates and clocks. ``rows`` are the rows that the ratios rest on.
    """

    library: str
    row: Row
    native: Row
    sustained: float | None
    per_clock: float
    rows: tuple[Row | None, ...]


def rivals(evidence: Evidence) -> list[Rival]:
    """Every pair that was measured, at the largest size of each type.

    Metric ``against`` of version 2 is left out: it took batches of milliseconds in turn, whose clocks were neither
    equal nor each library's own.
    """
    result = []
    for library, dtype in itertools.product(units.LIBRARIES, units.dtypes(evidence, units.PRODUCTS)):
        rows = units.rates(evidence, units.PRODUCTS, dtype=dtype, library=library)
        row = max(rows, key=lambda row: whole(row, "size"), default=None)
        chosen = {**row.params, "library": units.NATIVE} if row is not None else {}
        native = units.one_rate(evidence, units.PRODUCTS, **chosen)
        if row is None or native is None:
            continue
        against, per_clock = (units.same_case(evidence, row, name) for name in ("against", "against_per_clock"))
        theirs, ours = (units.same_case(evidence, one, "sm_clock") for one in (row, native))
        if per_clock is not None:
            sustained = against.value if against is not None else None
            result.append(Rival(library, row, native, sustained, per_clock.value, (row, native, against, per_clock)))
        elif theirs is not None and ours is not None:
            ratio = row.value / theirs.value / (native.value / ours.value)
            result.append(Rival(library, row, native, None, ratio, (row, native, theirs, ours)))
    return result


# A product is launch-bound where a call from Python takes this many times as long as its work on the device.
LAUNCHES_FROM = 1.2
# A graph is advised where it makes a call at least this many times as fast.
GRAPH_WORTH = 1.2

Held = Literal["launch", "bandwidth", "compute"]
HELD: tuple[Held, ...] = ("launch", "bandwidth", "compute")


class Roof(NamedTuple):
    """The rate that bounds a shape, in ``unit``, and its source by name; ``row`` is None for a computed one."""

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
    """The sustained rate of tensor instructions or the fastest product of a type, whichever is higher.

    Else the ceiling at the highest clock. A product is faster where the instructions that were measured are not this
    architecture's best.
    """
    sustained = units.rates(evidence, units.TENSORS, dtype=dtype.removesuffix(FAST), load=units.SUSTAINED)
    row, product = max(sustained, key=lambda row: row.value, default=None), units.best_product(evidence, dtype)
    if row is not None and (product is None or product.value <= row.value):
        return Roof(row.value, row.metric.unit, f"tensor_ceiling {row.params.get('path')}, sustained", row)
    if product is not None:
        name = f"gemm_throughput size {product.params.get('size')}"
        return Roof(product.value, product.metric.unit, name, product)
    limit = ceiling(f"gemm:{dtype}", evidence.gpu)
    return Roof(limit.value, limit.unit, limit.source, None) if limit is not None else None


class Shaped(NamedTuple):
    """A product of a model, what it moves, a call of it from Python and one in a graph, and what bounds it.

    ``held`` follows this run's own roofs; it is None where no roof is known. ``intensity`` counts operations for each
    byte of operands and result, and ``graph_factor`` is how many times as fast a call is in a graph.
    """

    row: Row
    bandwidth: Row | None
    call: Row | None
    graph: Row | None
    device_s: float
    intensity: float | None
    graph_factor: float | None
    held: Held | None


def shaped(evidence: Evidence) -> list[Shaped]:
    """Every product of a model that was measured, in the order of the run."""
    rows, memory = units.rates(evidence, units.SHAPES), bandwidth_roof(evidence)
    roofs = {dtype: compute_roof(evidence, dtype) for dtype in dict.fromkeys(units.dtype_of(row) for row in rows)}
    result = []
    for row in rows:
        bandwidth, call, graph = (units.same_case(evidence, row, name) for name in ("bandwidth", "call", "graph"))
        operations = row.measurement.work.flops or row.measurement.work.operations or 0
        moved = bandwidth.measurement.work.bytes if bandwidth is not None else None
        device_s, intensity = operations / row.value, operations / moved if moved else None
        compute = roofs[units.dtype_of(row)]
        held: Held | None = None
        if call is not None and call.value > LAUNCHES_FROM * device_s:
            held = "launch"
        elif memory is not None and compute is not None and intensity is not None and compute.unit == row.metric.unit:
            held = "bandwidth" if intensity * memory.value < compute.value else "compute"
        factor = call.value / graph.value if call is not None and graph is not None and graph.value > 0 else None
        result.append(Shaped(row, bandwidth, call, graph, device_s, intensity, factor, held))
    return result


def libraries(evidence: Evidence) -> Finding | None:
    """The lowest share of cuBLASLt's fastest candidate that each library's matmul reaches, and where one is faster."""
    every = rivals(evidence)
    if not every:
        return None
    sustained = all(rival.sustained is not None for rival in every)

    def share(rival: Rival) -> float:
        return rival.sustained if sustained and rival.sustained is not None else rival.per_clock

    least: dict[str, Rival] = {}
    for rival in every:
        least[rival.library] = min(least.get(rival.library, rival), rival, key=share)
    worst = min(every, key=share)
    dtype = units.dtype_of(worst.row)
    ahead = [f"{units.LIBRARIES[one.library]} in {units.dtype_of(one.row)}" for one in every if share(one) > 1 + EQUAL]
    reach = [
        f"{units.LIBRARIES[name]} {percent(share(one))} ({units.dtype_of(one.row)})" for name, one in least.items()
    ]
    rate = "sustained rate" if sustained else "rate, clock for clock"
    words = ["At the power limit a kernel that draws less also gets a higher clock: --full measures that."]
    if sustained:
        kernel = f"{units.LIBRARIES[worst.library]}'s {dtype} kernel"
        words = [f"Clock for clock {kernel} reaches {percent(worst.per_clock)}."]
    words += [f"Faster than every candidate tried: {listed(ahead)}."] if ahead else []
    title = f"Lowest share of cuBLASLt's {rate}: {', '.join(reach)}"
    advice = f"Where {dtype} products matter, call cuBLASLt with a candidate chosen by measuring."
    advice = advice if share(worst) < 1 - HEAVY_LOSS else ""
    rows = [row for rival in every for row in rival.rows]
    threshold = (
        f"{rate}, at the largest size of a type; "
        f"equal within {round_percent(EQUAL)}, advice where over {round_percent(HEAVY_LOSS)} is lost"
    )
    return said(title, " ".join(words), advice, rows=rows, rule="compute.libraries", threshold=threshold)


@rule("compute.halved", "fact shape says that it was halved")
def halved(evidence: Evidence) -> Finding | None:
    """Shapes that did not fit the free memory and were made smaller: their rate is that of another size."""
    every = [
        (row, fact)
        for row in (*units.rates(evidence, units.PRODUCTS), *units.rates(evidence, units.SEARCH))
        if (fact := units.fact_of(row, "shape")) is not None and (fact.source or "").startswith("halved")
    ]
    if not every:
        return None
    row, fact = every[0]
    title = f"{counted(len(every), 'product')} did not fit the free memory: a smaller one was measured"
    text = f"{row.case_id} is {fact.value}."
    advice = "Free the memory of this GPU and measure again."
    return said(title, text, advice, rows=(row for row, _ in every), severity="warning")


@rule(
    "compute.shapes",
    f"launch: a call from Python over {times(LAUNCHES_FROM)} the work on the device; else the roof under "
    "which it would take longer",
)
def bounds(evidence: Evidence) -> Finding | None:
    """How many products of models are launch-, bandwidth- or compute-bound, and at how many rows."""
    every = [product for product in shaped(evidence) if product.held is not None]
    if not every:
        return None
    groups = {held: [whole(product.row, "rows") for product in every if product.held == held] for held in HELD}
    spans = [f"{held}-bound at {_span(rows)}" for held, rows in groups.items() if rows]
    computing = (compute_roof(evidence, dtype) for dtype in units.dtypes(evidence, units.SHAPES))
    roofs = [bandwidth_roof(evidence), *computing]
    counts = ", ".join(f"{len(rows)} {held}-bound" for held, rows in groups.items() if rows)
    title = f"Of {counted(len(every), 'product')} of models: {counts}"
    text = f"They are {listed(spans)}."
    advice = "Batch more rows: while a product is bandwidth-bound, they cost little." if groups["bandwidth"] else ""
    rows = (*(product.row for product in every), *(roof.row for roof in roofs if roof is not None))
    return said(title, text, advice, rows=rows, severity="note")


def _span(rows: list[int]) -> str:
    return counted(rows[0], "row") if min(rows) == max(rows) else f"{min(rows)} to {max(rows)} rows"


@rule(
    "compute.launches",
    f"a call from Python over {times(LAUNCHES_FROM)} its work on the device, and a graph at least "
    f"{times(GRAPH_WORTH)} as fast",
)
def launches(evidence: Evidence) -> Finding | None:
    """Launch-bound products that a graph makes faster."""
    every = [
        (product, factor)
        for product in shaped(evidence)
        if product.held == "launch" and (factor := product.graph_factor) is not None and factor >= GRAPH_WORTH
    ]
    if not every:
        return None
    worst, factor = max(every, key=lambda pair: pair[1])
    name = f"{worst.row.params.get('projection')} of {counted(whole(worst.row, 'rows'), 'row')}"
    call = f"a call from Python takes {as_time(worst.call.value)} for " if worst.call is not None else ""
    title = f"A graph makes {name} ({units.dtype_of(worst.row)}) {times(factor)} as fast"
    text = f"The product is launch-bound: {call}{as_time(worst.device_s)} of work."
    advice = "Capture a step of the model in a graph, or batch more rows."
    return said(title, text, advice, rows=(row for one, _ in every for row in (one.row, one.call, one.graph)))


@rule(
    "compute.grouped",
    f"advice where a batch is at least {times(GRAPH_WORTH)} as fast as single calls, by the host's clock",
)
def grouped(evidence: Evidence) -> Finding | None:
    """What many small products take one by one, as a graph and as one batch, where a batch gains most."""
    every = []
    for alone in evidence.rows(units.GROUPED, "one_by_one"):
        graph, batch, stream = (units.same_case(evidence, alone, name) for name in ("graph", "batch", "stream"))
        if graph is not None and batch is not None and alone.value > 0:
            every.append((alone, graph, batch, stream))
    if not every:
        return None
    first = max(every, key=lambda rows: rows[0].value / rows[2].value)
    alone, graph, batch, stream = first
    products, gain = whole(alone, "products"), alone.value / batch.value
    took = [as_time(products * row.value) for row in (alone, graph, batch)]
    text = ""
    if stream is not None:
        waits = alone.value > LAUNCHES_FROM * stream.value
        text = (
            f"One by one, {'the GPU waits for the calls from Python' if waits else 'the GPU is never idle for long'}."
        )
    worth = gain >= GRAPH_WORTH
    title = (
        f"{products} products of {whole(alone, 'size')} ({units.dtype_of(alone)}) take {took[0]} one by one, "
        f"{took[1]} as a graph, {took[2]} as one batch"
    )
    advice = "Put products of one shape into one batched call, and capture what remains in a graph." if worth else ""
    return said(title, text, advice, rows=(row for rows in every for row in rows))


RULES: tuple[Rule, ...] = (libraries, halved, bounds, launches, grouped)

"""Draws compute's matrix products: rate, clock and power over time, and models' products under this GPU's roofs."""

import math
from collections.abc import Mapping, Sequence

from microbench.analysis.evidence import Evidence, facts_of, whole
from microbench.analysis.stats import Row
from microbench.core.units import as_time, quantity, round_percent, times
from microbench.explain import compute_units as units
from microbench.explain.compute_products import Held, Roof, Shaped, bandwidth_roof, compute_roof, shaped
from microbench.explain.compute_units import MAIN_DTYPE, dtype_of, figure, same_case
from microbench.explain.compute_verdict import lasting
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Mark, Table, Tone
from microbench.report.tables import matrix, row_cell

FEWEST_DRAWN = 5
TICKS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
REACH = 0.3
STEPS, MOST_STEPS = (0.1, 0.2), 6
HOT_C = 100.0


def rates_over_time(evidence: Evidence) -> Curve | None:
    """The rate as a share of the burst, and the SM clock and NVML's clock as shares of the highest clock."""
    row = _shown(evidence)
    if row is None:
        return None
    burst, turn = same_case(evidence, row, "burst"), same_case(evidence, row, "turn")
    highest_hz = evidence.gpu.sm_clock_max_hz if evidence.gpu is not None else None
    lines = [
        _line(row, "sm_clock", f"SM clock, 100 % is {quantity(highest_hz, 'Hz')}", highest_hz, "second"),
        _line(row, "nvml_sm_clock", "NVML's clock", highest_hz, "third"),
    ]
    if burst is not None:
        lines.insert(0, _line(row, "rate", f"rate, 100 % is {figure(burst)}", burst.value, "first"))
    marks = (Mark(turn.value, f"half of the loss after {as_time(turn.value)}"),) if turn is not None else ()
    title = f"Sustained {dtype_of(row)} products: rate and clock"
    names = [value for value in facts_of(row, "accumulator") if isinstance(value, str)]
    accumulator = f", accumulator {names[-1]}" if names else ""
    return _panel(title, f"from idle{accumulator}; the axis of time is logarithmic", lines, marks)


def state_over_time(evidence: Evidence) -> Curve | None:
    """Power as a share of its limit, and temperature as a share of HOT_C."""
    row = _shown(evidence)
    if row is None:
        return None
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    lines = [
        _line(row, "power", f"power, 100 % is the limit of {quantity(limit_w, 'W')}", limit_w, "first"),
        _line(row, "temperature", f"temperature, 100 % is {HOT_C:.0f} °C", HOT_C, "fourth"),
    ]
    about = "read from NVML with every batch; on some boards its power is the mean of the last second"
    return _panel(f"Sustained {dtype_of(row)} products: power and temperature", about, lines, ())


def _shown(evidence: Evidence) -> Row | None:
    """The row that the findings describe: the longest run of the main type, else of another type."""
    return next(iter(lasting(evidence)), None)


def _line(row: Row, name: str, title: str, whole: float | None, tone: Tone) -> Line | None:
    """The newest series of that name in shares of ``whole``; None if either is missing or it is too short."""
    series = next((one for outcome in row.outcomes[::-1] for one in outcome.series[::-1] if one.metric == name), None)
    if series is None or not whole:
        return None
    points = [(t_s, value / whole) for t_s, value in zip(series.t_s, series.values, strict=False) if t_s > 0]
    return Line(title, tuple(points), tone) if len(points) >= FEWEST_DRAWN else None


def _panel(title: str, about: str, lines: list[Line | None], marks: tuple[Mark, ...]) -> Curve | None:
    drawn = tuple(line for line in lines if line is not None)
    if not drawn:
        return None
    shares = [share for line in drawn for _, share in line.points]
    begin_s = min(line.points[0][0] for line in drawn)
    end_s = max(line.points[-1][0] for line in drawn)
    for step in STEPS:  # with marks, one tick more above the lines, into whose room they may reach a little
        low = math.floor(min(shares) / step + 1e-9)
        high = math.ceil(max(shares) / step - (REACH if marks else 1e-9)) + bool(marks)
        if high - low <= MOST_STEPS:
            break
    times_s = [one for one in TICKS_S if begin_s <= one <= end_s]
    x_ticks = tuple(Mark(one, f"{one:g} s" if one >= 1 else f"{one * 1e3:g} ms") for one in times_s)
    y_ticks = tuple(Mark(one * step, round_percent(one * step)) for one in range(low, high + 1))
    inside = tuple(mark for mark in marks if begin_s < mark.at < end_s)
    return Curve(title, about, "since the work began", drawn, x_ticks, y_ticks, y_log=False, marks=inside)


FEWEST_POINTS = 4
MOST_ROOFLINES = 2
TONES: dict[Held, Tone] = {"bandwidth": "first", "compute": "second", "launch": "warning"}
# Bytes of an operand and of a result, as the operands are stored; types that gemm_shapes multiplies.
STORED_BYTES = {"bf16": (2, 2), "fp16": (2, 2), "fp8_e4m3_fast": (1, 2), "int8": (1, 4)}
POWERS = range(-4, 6)
# Room on both sides of the points.
BESIDE = 0.7


def rooflines(evidence: Evidence) -> list[Curve]:
    """Rooflines of at most MOST_ROOFLINES types: the main type first, then the fastest."""
    by_dtype: dict[str, list[Shaped]] = {}
    for one in shaped(evidence):
        if one.intensity is not None and one.held is not None:
            by_dtype.setdefault(dtype_of(one.row), []).append(one)
    order = sorted(by_dtype, key=lambda name: (name != MAIN_DTYPE, -max(one.row.value for one in by_dtype[name])))
    drawn = (_roofline(evidence, dtype, by_dtype[dtype]) for dtype in order[:MOST_ROOFLINES])
    return [one for one in drawn if one is not None]


def _roofline(evidence: Evidence, dtype: str, products: list[Shaped]) -> Curve | None:
    memory, compute = bandwidth_roof(evidence), compute_roof(evidence, dtype)
    if memory is None or compute is None or len(products) < FEWEST_POINTS:
        return None
    squares = _squares(evidence, dtype)
    points = [Line("square products", squares, "third", kind="points")] if squares else []
    points += [
        Line(f"{name}-bound", tuple(sorted(places)), tone, kind="points")
        for name, tone in TONES.items()
        if (places := [(one.intensity, one.row.value) for one in products if one.held == name and one.intensity])
    ]
    values = [y for line in points for _, y in line.points] + [compute.value]
    top = Mark(compute.value, quantity(compute.value, compute.unit))
    rates = (top, *ticks(min(values), max(values), True, compute.unit))
    ridge = quantity(round(compute.value / memory.value), "1")
    about = f"of models, and square ones; the roofs meet at {ridge} operations per byte"
    roofs = {f"{memory.name} {quantity(memory.value, memory.unit)}": memory.value}
    begin = min(x for line in points for x, _ in line.points) * BESIDE
    return under_roofs(f"Products of {dtype} under this run's own roofs", about, points, roofs, compute, begin, rates)


def under_roofs(
    title: str,
    about: str,
    points: Sequence[Line],
    roofs: Mapping[str, float],
    compute: Roof,
    begin: float,
    rates: tuple[Mark, ...],
) -> Curve:
    """Points under the roofs of memory, the lowest of these first, and that of compute, with ticks of ``rates``."""
    end = max(*(x for line in points for x, _ in line.points), compute.value / next(iter(roofs.values()))) / BESIDE
    slopes = (
        Line(name, ((begin, begin * rate), (compute.value / rate, compute.value)), TONES["bandwidth"], "limit")
        for name, rate in roofs.items()
    )
    flat = ((compute.value / max(roofs.values()), compute.value), (end, compute.value))
    name = f"{compute.name} {quantity(compute.value, compute.unit)}"
    lines = (*points, *slopes, Line(name, flat, TONES["compute"], "limit"))
    x_ticks = tuple(Mark(10.0**power, f"{10.0**power:g}") for power in POWERS if begin <= 10.0**power <= end)
    return Curve(title, about, "operations per byte", lines, x_ticks, rates)


def _squares(evidence: Evidence, dtype: str) -> tuple[tuple[float, float], ...]:
    """Intensity and rate of cuBLASLt's square products, each operand read once and the result written once."""
    if dtype not in STORED_BYTES:
        return ()
    operand_bytes, result_bytes = STORED_BYTES[dtype]
    points = []
    for row in units.rates(evidence, units.PRODUCTS, dtype=dtype, library=units.NATIVE):
        work = row.measurement.work
        # 2 size^3 operations: where memory was short, size is less than was asked for.
        size = round(math.cbrt((work.flops or work.operations or 0) / 2))
        if size > 0:
            points.append((2.0 * size / (2 * operand_bytes + result_bytes), row.value))
    return tuple(sorted(points))


def shapes(evidence: Evidence) -> list[Table]:
    """A table for each size of model in the main type: rows down, projections across; each cell names what bounds the
    product and, if that is the launch, the speed-up of a graph."""
    every = shaped(evidence)
    names = sorted({dtype_of(one.row) for one in every}, key=lambda name: name != MAIN_DTYPE)
    found = [one for one in every if dtype_of(one.row) == names[0]]
    by_model: dict[str, list[tuple[str, Shaped]]] = {}
    for one in found:
        projection = str(one.row.params.get("projection"))
        by_model.setdefault(projection.partition("_")[0], []).append((projection, one))
    about = "bandwidth and compute: the share of that roof; launch: the speed-up of a graph"
    tables = []
    for model, products in by_model.items():
        across = {projection: projection.partition("_")[2] for projection, _ in products}
        down = sorted(products, key=lambda pair: whole(pair[1].row, "rows"))
        cells = {(whole(one.row, "rows"), projection): _shape_cell(evidence, one) for projection, one in down}
        title = f"What limits products of a model of {model.replace('b', ' billion')} parameters, {names[0]}"
        tables.append(matrix(title, about, across, cells, corner=Column("rows"), align="left"))
    return tables


def _shape_cell(evidence: Evidence, product: Shaped) -> Cell:
    if product.held is None:
        return row_cell(product.row)
    memory, compute = bandwidth_roof(evidence), compute_roof(evidence, dtype_of(product.row))
    note = round_percent(product.row.value / compute.value) if compute is not None else ""
    if product.held == "launch":
        note = times(product.graph_factor) if product.graph_factor is not None else ""
    elif product.held == "bandwidth" and memory is not None and product.bandwidth is not None:
        note = round_percent(product.bandwidth.value / memory.value)
    return Cell(product.held, note, TONES[product.held])

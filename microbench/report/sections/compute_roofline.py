"""Products of models under this run's own roofs: as points in a roofline, and as a table of what holds each up."""

from __future__ import annotations

import math

from microbench.explain.compute_shapes import Held, Roof, Shaped, bandwidth_roof, compute_roof, shaped
from microbench.explain.compute_units import MAIN_DTYPE, NATIVE, PRODUCTS, dtype_of, rates
from microbench.explain.evidence import Evidence, row_name, whole
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Mark, Table, Tone
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import quantity, round_percent, times

FEWEST_DRAWN = 4
MOST_ROOFLINES = 2
TONES: dict[Held, Tone] = {"bandwidth": "first", "compute": "second", "launch": "warning"}
# Bytes of an operand and of a result, as the operands are stored; types that gemm_shapes multiplies.
STORED_BYTES = {"bf16": (2, 2), "fp16": (2, 2), "fp8_e4m3_fast": (1, 2), "int8": (1, 4)}
POWERS = range(-1, 6)
# Room on both sides of the points.
BESIDE = 0.7


def rooflines(evidence: Evidence) -> list[Curve]:
    """A roofline for each of the first types: that which speaks for the suite, then the fastest other one."""
    found: dict[str, list[Shaped]] = {}
    for one in shaped(evidence):
        if one.intensity is not None and one.held is not None:
            found.setdefault(dtype_of(one.row), []).append(one)
    order = sorted(found, key=lambda name: (name != MAIN_DTYPE, -max(one.row.value for one in found[name])))
    drawn = (_roofline(evidence, dtype, found[dtype]) for dtype in order[:MOST_ROOFLINES])
    return [one for one in drawn if one is not None]


def _roofline(evidence: Evidence, dtype: str, found: list[Shaped]) -> Curve | None:
    memory, compute = bandwidth_roof(evidence), compute_roof(evidence, dtype)
    if memory is None or compute is None or len(found) < FEWEST_DRAWN:
        return None
    squares = _squares(evidence, dtype)
    points = [Line("square products", squares, "third", joined=False)] if squares else []
    points += [
        Line(f"{name}-bound", _points([one for one in found if one.held == name]), tone, joined=False)
        for name, tone in TONES.items()
        if any(one.held == name for one in found)
    ]
    ridge = compute.value / memory.value
    reach = [x for line in points for x, _ in line.points]
    begin, end = min(reach) * BESIDE, max(*reach, ridge) / BESIDE
    values = [y for line in points for _, y in line.points] + [compute.value]
    powers = ticks(min(values), max(values), True, compute.unit)
    return Curve(
        title=f"Products of {dtype} under this run's own roofs",
        about=f"of models, and square ones; the roofs meet at {quantity(round(ridge), '1')} operations for a byte",
        x_title="operations for a byte",
        lines=(*points, *_roofs(memory, compute, begin, end)),
        x_ticks=tuple(Mark(10.0**power, f"{10.0**power:g}") for power in POWERS if begin <= 10.0**power <= end),
        y_ticks=(Mark(compute.value, quantity(compute.value, compute.unit)), *powers),
    )


def _roofs(memory: Roof, compute: Roof, begin: float, end: float) -> tuple[Line, Line]:
    ridge = compute.value / memory.value
    slope = Line(
        f"{memory.name} {quantity(memory.value, memory.unit)}",
        ((begin, begin * memory.value), (ridge, compute.value)),
        TONES["bandwidth"],
    )
    flat = Line(
        f"{compute.name} {quantity(compute.value, compute.unit)}",
        ((ridge, compute.value), (end, compute.value)),
        TONES["compute"],
    )
    return slope, flat


def _points(found: list[Shaped]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((one.intensity, one.row.value) for one in found if one.intensity is not None))


def _squares(evidence: Evidence, dtype: str) -> tuple[tuple[float, float], ...]:
    """cuBLASLt's square products: each operand read once and the result written once, as of the shapes."""
    if dtype not in STORED_BYTES:
        return ()
    operand_bytes, result_bytes = STORED_BYTES[dtype]
    found = [
        (2.0 * size / (2 * operand_bytes + result_bytes), row.value)
        for row in rates(evidence, PRODUCTS, dtype=dtype, library=NATIVE)
        if (size := _measured_size(row)) > 0
    ]
    return tuple(sorted(found))


def _measured_size(row: Row) -> int:
    """By its operations, 2 size^3: where memory was short it is less than the size that was asked for."""
    work = row.measurement.work
    return round(math.cbrt((work.flops or work.operations or 0) / 2))


def shapes(evidence: Evidence) -> list[Table]:
    """A table for each size of model in the type that speaks for the suite: rows down, projections across, what holds
    each up, and how many times as fast a call in a graph is."""
    every = shaped(evidence)
    names = sorted({dtype_of(one.row) for one in every}, key=lambda name: name != MAIN_DTYPE)
    found = [one for one in every if dtype_of(one.row) == names[0]]
    models = dict.fromkeys(_model(one) for one in found)
    return [_shape_table(evidence, model, [one for one in found if _model(one) == model]) for model in models]


def _projection(one: Shaped) -> str:
    return str(one.row.params.get("projection"))


def _model(one: Shaped) -> str:
    return _projection(one).partition("_")[0]


def _shape_table(evidence: Evidence, model: str, found: list[Shaped]) -> Table:
    across = list(dict.fromkeys(_projection(one) for one in found))
    down = sorted({whole(one.row, "rows") for one in found})
    by_place = {(whole(one.row, "rows"), _projection(one)): one for one in found}
    rows = tuple(
        (Cell(str(count), tone="strong"), *(_shape_cell(evidence, by_place.get((count, name))) for name in across))
        for count in down
    )
    columns = (Column("rows"), *(Column(name.partition("_")[2], "left") for name in across))
    return Table(
        f"What holds products up in a model of {model.replace('b', ' billion')} parameters, {dtype_of(found[0].row)}",
        "beside bandwidth and compute the share of that roof that is reached, beside launch what a graph gains",
        columns,
        rows,
    )


def _shape_cell(evidence: Evidence, one: Shaped | None) -> Cell:
    if one is None:
        return NOTHING
    if one.held is None:
        return Cell(quantity(one.row.value, one.row.metric.unit), trust=one.row.trust, of=row_name(one.row))
    gain = times(one.graph_factor) if one.graph_factor is not None else ""
    return Cell(one.held, gain if one.held == "launch" else _share(evidence, one), TONES[one.held])


def _share(evidence: Evidence, one: Shaped) -> str:
    memory, compute = bandwidth_roof(evidence), compute_roof(evidence, dtype_of(one.row))
    if one.held == "bandwidth" and memory is not None and one.bandwidth is not None:
        return round_percent(one.bandwidth.value / memory.value)
    return round_percent(one.row.value / compute.value) if compute is not None else ""

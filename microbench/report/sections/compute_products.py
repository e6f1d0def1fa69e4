"""Products in pictures: types beside their ceilings at each clock, over size, by library, and the fastest shape."""

from __future__ import annotations

import re

from microbench.explain.ceilings import exceeds
from microbench.explain.compute_gemm import FED, fed_sizes
from microbench.explain.compute_libraries import Rival, rivals
from microbench.explain.compute_units import (
    ENERGIES,
    LIBRARIES,
    MAIN_DTYPE,
    SEARCH,
    Reached,
    beside,
    best_products,
    dtype_of,
    fact_of,
    figure,
    rates,
    reached,
    shape_of,
    typed,
)
from microbench.explain.evidence import Evidence, listed, row_name, whole
from microbench.report.curves import ticks
from microbench.report.document import Cell, Column, Curve, Line, Mark, Table, Tone
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import percent, quantity, round_percent, tera

TONES: tuple[Tone, ...] = ("first", "second", "third", "fourth")
# Types whose rates differ most come first; there is room for four lines.
DRAWN_TYPES = (MAIN_DTYPE, "fp8_e4m3_fast", "tf32", "fp64", "fp32", "fp16")
IN_TERA = "in TFLOP/s (int8: TOP/s)"
GUESS = re.compile(r"guess \d+")


def by_type(evidence: Evidence) -> Table | None:
    """Types down; what they add up in, the best square product's rate, and its share of the ceiling at each clock."""
    found = best_products(evidence)
    if not found:
        return None
    columns = (
        Column("type", "left"), Column("adds up in", "left"), Column("rate"), Column("at SM clock"), Column("highest"),
        Column("data sheet"),
    )  # fmt: skip
    each = [reached(evidence, row) for row in found]
    return Table(
        f"Square products by type, {IN_TERA}, dense",
        "each with its share of rate x SMs x clock: the clock measured meanwhile, the highest, the data sheet's",
        columns,
        tuple(_type_row(one) for one in each),
        (_sizes(found), *_clocks(each)),
    )


def _type_row(one: Reached) -> tuple[Cell, ...]:
    row = one.row
    over = one.highest is not None and exceeds(row, one.highest)
    clock = quantity(one.clock_hz, "Hz")
    return (
        Cell(typed(row), tone="strong"),
        Cell(adds_up(row), tone="quiet"),
        Cell(tera(row.value), tone="problem" if over else "strong", trust=row.trust, of=row_name(row)),
        Cell(clock, percent(one.fed) if one.fed is not None else "") if one.clock_hz is not None else NOTHING,
        Cell(percent(one.of_highest)) if one.of_highest is not None else NOTHING,
        Cell(percent(one.of_data_sheet)) if one.of_data_sheet is not None else NOTHING,
    )


def _sizes(found: list[Row]) -> str:
    """Rows, columns and depth of each type's best product, the commonest first: "8192 x 8192 x 8192, fp64 1024 x …"."""
    by_shape: dict[str, list[str]] = {}
    for row in found:
        side = whole(row, "size")
        by_shape.setdefault(shape_of(row) or f"{side}x{side}x{side}", []).append(dtype_of(row))
    shapes = sorted(by_shape, key=lambda shape: -len(by_shape[shape]))
    words = [f"{listed(by_shape[shape])} {shape}" if place else shape for place, shape in enumerate(shapes)]
    return f"rows x columns x depth: {'; '.join(words)}"


def _clocks(each: list[Reached]) -> tuple[str, ...]:
    """The clocks behind the shares; a data sheet may take another one for some types, which are named."""
    highest = {one.highest_hz for one in each if one.of_highest is not None}
    words = [f"highest: {listed([quantity(hz, 'Hz') for hz in highest])}"] if highest else []
    by_clock: dict[float | None, list[str]] = {}
    for one in each:
        if one.of_data_sheet is not None:
            by_clock.setdefault(one.data_sheet_hz, []).append(dtype_of(one.row))
    for place, (hz, names) in enumerate(by_clock.items()):
        words.append(
            f"{'data sheet: ' if not place else ''}{quantity(hz, 'Hz')}{f' for {listed(names)}' if place else ''}"
        )
    return (", ".join(words),) if words else ()


def adds_up(row: Row) -> str:
    """What a product is added up in, in few letters: "fp32", "~14 bits"."""
    fact = fact_of(row, "accumulator")
    return str(fact.value).replace("about ", "~") if fact is not None and fact.value is not None else ""


def over_size(evidence: Evidence) -> Curve | None:
    """Rate over the size of a square product, a line for each type, with the size from which the units are fed."""
    by_name = {one.dtype: one for one in fed_sizes(evidence)}
    kept = [by_name[name] for name in DRAWN_TYPES if name in by_name][: len(TONES)]
    if not kept:
        return None
    values = [row.value for one in kept for _, row in one.points]
    sizes = sorted({size for one in kept for size, _ in one.points})
    first = kept[0]
    mark = Mark(float(first.size), f"{round_percent(FED)} from {first.size} on")
    return Curve(
        title="Rate over the size of a square product",
        about=f"small products leave units without work; marked: where {first.dtype} comes near its best",
        x_title="rows, columns and depth",
        lines=tuple(
            Line(f"{one.dtype} {figure(one.best)}", tuple((float(size), row.value) for size, row in one.points), tone)
            for one, tone in zip(kept, TONES, strict=False)
        ),
        x_ticks=tuple(Mark(float(size), str(size)) for size in sizes),
        y_ticks=ticks(min(values), max(values), True, first.best.metric.unit),
        marks=(mark,) if sizes[0] < first.size < sizes[-1] else (),
    )


def by_library(evidence: Evidence) -> Table | None:
    """Types down, libraries across at the largest common size, the candidate that cuBLASLt was fastest with."""
    found = {(one.library, dtype_of(one.row)): one for one in rivals(evidence)}
    if not found:
        return None
    types = [dtype_of(row) for row in best_products(evidence) if any(key[1] == dtype_of(row) for key in found)]
    across = [name for name in LIBRARIES if any(key[0] == name for key in found)]
    rows = []
    for dtype in types:
        own = {name: found[name, dtype] for name in across if (name, dtype) in found}
        native = next(iter(own.values())).native
        others = (_rival(own[name]) if name in own else NOTHING for name in across)
        rows.append(
            (
                Cell(dtype, tone="strong"),
                Cell(tera(native.value), tone="strong", trust=native.trust, of=row_name(native)),
                *others,
                _candidate(native),
            )
        )
    columns = (
        Column("type", "left"), Column("cuBLASLt"), *(Column(LIBRARIES[name]) for name in across),
        Column("cuBLASLt's fastest candidate", "left", drop=1),
    )  # fmt: skip
    sizes = sorted({whole(one.row, "size") for one in found.values()})
    order = "in turn" if all(one.against is not None for one in found.values()) else "one after the other"
    return Table(
        f"Who multiplies, at size {listed([str(one) for one in sizes])}, {IN_TERA}",
        f"the same operands, {order}; beside each figure its share of cuBLASLt's fastest candidate",
        columns,
        tuple(rows),
    )


def _rival(one: Rival) -> Cell:
    """A library's rate, and its share of that of cuBLASLt's fastest candidate."""
    return Cell(tera(one.row.value), percent(one.ratio), trust=one.row.trust, of=row_name(one.row))


def _candidate(row: Row) -> Cell:
    fact = fact_of(row, "candidate")
    if fact is None:
        return NOTHING
    guess = GUESS.search(fact.source or "")
    return Cell(str(fact.value), guess[0] if guess is not None else "", "quiet")


def fastest(evidence: Evidence) -> Table | None:
    """The fastest shape and candidate of each type, with its clock, its power and what an operation costs."""
    found = sorted(rates(evidence, SEARCH), key=lambda row: dtype_of(row) != MAIN_DTYPE)
    if not found:
        return None
    columns = (
        Column("type", "left"), Column("adds up in", "left"), Column("shape", "left"), Column("rate"),
        Column("at SM clock"), Column("power", drop=1), Column("an operation", drop=2),
    )  # fmt: skip
    by_candidate: dict[str, list[str]] = {}
    for row in found:
        by_candidate.setdefault(_candidate(row).text, []).append(dtype_of(row))
    return Table(
        f"The fastest product, {IN_TERA}, dense",
        "rows x columns x depth, of all that were tried; beside the clock the share of rate x SMs x this clock",
        columns,
        tuple(_fastest_row(evidence, row) for row in found),
        tuple(f"{', '.join(names)}: {candidate}" for candidate, names in by_candidate.items()),
    )


def _fastest_row(evidence: Evidence, row: Row) -> tuple[Cell, ...]:
    one = reached(evidence, row)
    drawn = (beside(evidence, row, "power"), beside(evidence, row, *ENERGIES))
    fed = percent(one.fed) if one.fed is not None else ""
    return (
        Cell(dtype_of(row), tone="strong"),
        Cell(adds_up(row), tone="quiet"),
        Cell(shape_of(row) or ""),
        Cell(tera(row.value), tone="strong", trust=row.trust, of=row_name(row)),
        Cell(quantity(one.clock_hz, "Hz"), fed) if one.clock_hz is not None else NOTHING,
        *(Cell(figure(each)) if each is not None else NOTHING for each in drawn),
    )

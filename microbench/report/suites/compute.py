"""The compute suite's pictures: products by type, over size and time, under their roofs, by data; units alone."""

import re
from collections.abc import Callable

from microbench.analysis.evidence import Evidence, exceeds, listed, share_of, whole
from microbench.analysis.stats import Row
from microbench.core.units import percent, quantity, round_percent, tera
from microbench.explain import compute_units as units
from microbench.explain.compute_products import FED, fed_sizes, rivals
from microbench.report.curves import ticks
from microbench.report.document import SERIES_TONES, Cell, Column, Curve, Line, Mark, Table, columns
from microbench.report.tables import NOTHING, limited_cell, row_cell, table_of, value_cell

# Products: by type, over size, by library, and the fastest shape.

# Types whose rates differ most come first; there is room for four lines.
DRAWN_TYPES = (units.MAIN_DTYPE, "fp8_e4m3_fast", "tf32", "fp64", "fp32", "fp16")
IN_TERA = "in TFLOP/s (int8: TOP/s)"
GUESS = re.compile(r"guess \d+")


def by_type(evidence: Evidence) -> Table | None:
    """A row for each type: accumulator, rate of the best square product, and its share of the ceiling at each clock."""
    best = units.best_products(evidence)
    each = [units.reached(evidence, row) for row in best]

    def rate(one: units.Reached) -> Cell:
        over = one.highest is not None and exceeds(one.row, one.highest)
        return row_cell(one.row, tera(one.row.value), tone="problem" if over else "strong")

    return table_of(
        f"Square products by type, {IN_TERA}, dense",
        "shares of rate x SMs x clock, at the measured clock, the highest one and the data sheet's",
        each,
        ("type", lambda one: Cell(units.typed(one.row), tone="strong")),
        (Column("adds up in", "left"), lambda one: Cell(_accumulator(one.row), tone="quiet")),
        ("rate", rate),
        ("at SM clock", _clock),
        ("highest", lambda one: value_cell(one.of_highest, percent)),
        ("data sheet", lambda one: value_cell(one.of_data_sheet, percent)),
        notes=(_sizes(best), *_clocks(each)),
    )


def _clock(product: units.Reached) -> Cell:
    if product.clock_hz is None:
        return NOTHING
    return Cell(quantity(product.clock_hz, "Hz"), percent(product.fed) if product.fed is not None else "")


def _sizes(found: list[Row]) -> str:
    """Rows, columns and depth of each type's best product, the commonest first: "8192 x 8192 x 8192, fp64 1024 x …"."""
    by_shape: dict[str, list[str]] = {}
    for row in found:
        side = whole(row, "size")
        by_shape.setdefault(units.shape_of(row) or f"{side}x{side}x{side}", []).append(units.dtype_of(row))
    shapes = sorted(by_shape, key=lambda shape: -len(by_shape[shape]))
    words = [f"{listed(by_shape[shape])} {shape}" if place else shape for place, shape in enumerate(shapes)]
    return f"rows x columns x depth: {'; '.join(words)}"


def _clocks(each: list[units.Reached]) -> tuple[str, ...]:
    """The clocks behind the shares; a data sheet may take another one for some types, which are named."""
    highest = {one.highest_hz for one in each if one.of_highest is not None}
    words = [f"highest: {listed([quantity(hz, 'Hz') for hz in highest])}"] if highest else []
    by_clock: dict[float | None, list[str]] = {}
    for one in each:
        if one.of_data_sheet is not None:
            by_clock.setdefault(one.data_sheet_hz, []).append(units.dtype_of(one.row))
    for place, (hz, names) in enumerate(by_clock.items()):
        words.append(
            f"{'data sheet: ' if not place else ''}{quantity(hz, 'Hz')}{f' for {listed(names)}' if place else ''}"
        )
    return (", ".join(words),) if words else ()


def _accumulator(row: Row) -> str:
    """The type that products are added up in: "fp32", "~14 bits"."""
    fact = units.fact_of(row, "accumulator")
    return str(fact.value).replace("about ", "~") if fact is not None and fact.value is not None else ""


def over_size(evidence: Evidence) -> Curve | None:
    """Rate over the size of a square product, a line for each type, with the size from which the units are fed."""
    fed = fed_sizes(evidence)
    drawn = [(name, *fed[name]) for name in DRAWN_TYPES if name in fed][: len(SERIES_TONES)]
    if not drawn:
        return None
    rows = [row for _, _, points in drawn for _, row in points]
    values, sizes = [row.value for row in rows], sorted({size for _, _, points in drawn for size, _ in points})
    dtype, first, _ = drawn[0]
    mark = Mark(float(first), f"{round_percent(FED)} from {first} on")
    lines = []
    for (name, _, points), tone in zip(drawn, SERIES_TONES, strict=False):
        best = max((row for _, row in points), key=lambda row: row.value)
        places = tuple((float(at), row.value) for at, row in points)
        lines.append(Line(f"{name} {units.figure(best)}", places, tone))
    title = "Rate over the size of a square product"
    about = f"small products leave units idle; marked: the size from which {dtype} is near its best"
    x_ticks = tuple(Mark(float(size), str(size)) for size in sizes)
    y_ticks = ticks(min(values), max(values), True, rows[0].metric.unit)
    marks = (mark,) if sizes[0] < first < sizes[-1] else ()
    return Curve(title, about, "rows, columns and depth", tuple(lines), x_ticks, y_ticks, marks=marks)


def by_library(evidence: Evidence) -> Table | None:
    """A row for each type, a column for each library at the largest common size, and cuBLASLt's fastest candidate."""
    by_key = {(one.library, units.dtype_of(one.row)): one for one in rivals(evidence)}
    if not by_key:
        return None
    across = [name for name in units.LIBRARIES if any(key[0] == name for key in by_key)]
    rows = []
    for dtype in map(units.dtype_of, units.best_products(evidence)):
        own = {name: by_key[name, dtype] for name in across if (name, dtype) in by_key}
        if own:
            native = next(iter(own.values())).native
            best = row_cell(native, tera(native.value), tone="strong")
            cells = {}
            for name, one in own.items():
                shares = [percent(share) for share in (one.sustained, one.per_clock) if share is not None]
                cells[name] = row_cell(one.row, tera(one.row.value), ", ".join(shares))
            others = (cells.get(name, NOTHING) for name in across)
            rows.append((Cell(dtype, tone="strong"), best, *others, _candidate(native)))
    titles = columns("type", "cuBLASLt", *(units.LIBRARIES[name] for name in across))
    candidate = Column("cuBLASLt's fastest candidate", "left", drop=1)
    sizes = sorted({whole(one.row, "size") for one in by_key.values()})
    title = f"Libraries at size {listed([str(one) for one in sizes])}, {IN_TERA}"
    sustained = all(one.sustained is not None for one in by_key.values())
    how = "sustained at each one's own clock, then clock for clock" if sustained else "clock for clock"
    about = f"shares of the rate of cuBLASLt's fastest candidate, {how}"
    return Table(title, about, (*titles, candidate), tuple(rows))


def _candidate(row: Row) -> Cell:
    fact = units.fact_of(row, "candidate")
    if fact is None:
        return NOTHING
    guess = GUESS.search(fact.source or "")
    return Cell(str(fact.value), guess[0] if guess is not None else "", "quiet")


def _same_case(evidence: Evidence, *metrics: str) -> Callable[[Row], Cell]:
    return lambda row: value_cell(units.same_case(evidence, row, *metrics), units.figure)


def fastest(evidence: Evidence) -> Table | None:
    """The fastest shape and candidate of each type, with its clock, its power and the energy of an operation."""
    products = sorted(units.rates(evidence, units.SEARCH), key=units.not_main)
    by_candidate: dict[str, list[str]] = {}
    for row in products:
        by_candidate.setdefault(_candidate(row).text, []).append(units.dtype_of(row))
    about = (
        "rows x columns x depth, the best of all that were tried; share of rate x SMs x clock; power and energy over "
        "two seconds, in which the rate may be lower"
    )
    return table_of(
        f"The fastest product, {IN_TERA}, dense",
        about,
        products,
        ("type", lambda row: Cell(units.dtype_of(row), tone="strong")),
        (Column("adds up in", "left"), lambda row: Cell(_accumulator(row), tone="quiet")),
        (Column("shape", "left"), lambda row: Cell(units.shape_of(row) or "")),
        ("rate", lambda row: row_cell(row, tera(row.value), tone="strong")),
        ("at SM clock", lambda row: _clock(units.reached(evidence, row))),
        (Column("power", drop=1), _same_case(evidence, "power")),
        (Column("an operation", drop=2), _same_case(evidence, *units.ENERGIES)),
        notes=tuple(f"{', '.join(types)}: {candidate}" for candidate, types in by_candidate.items()),
    )


ACCUMULATORS = "adds up: fp16_acc16 in fp16, int8 in int32, fp64 in fp64, all others in fp32 (fp8 by wgmma: 14 bits)"


def alone(evidence: Evidence) -> Table | None:
    """A row for each type: operations per cycle and SM by each path, and the rates of the faster path."""

    def by_path(path: str) -> Callable[[str], Cell]:
        def words(row: Row) -> str:
            return units.figure(row).split()[0]

        return lambda dtype: limited_cell(evidence, units.per_clock(evidence, path, dtype), words, "plain")

    def rate(load: str) -> Callable[[str], Cell]:
        def cell(dtype: str) -> Cell:
            paths = filter(None, (units.per_clock(evidence, path, dtype) for path in (units.WGMMA, units.MMA)))
            faster = max(paths, key=lambda row: row.value)
            row = units.one_rate(evidence, units.TENSORS, **{**faster.params, "load": load})
            clock = units.same_case(evidence, row, "sm_clock")
            return row_cell(row, tera(row.value), units.figure(clock) if clock else "", "strong") if row else NOTHING

        return cell

    share = "operations per cycle and SM by each path, with their share of the SM's rate"
    return table_of(
        f"Tensor cores alone, {IN_TERA}, dense",
        f"{share}; rate and clock by the faster path",
        units.tensor_dtypes(evidence),
        ("type", lambda dtype: Cell(dtype, tone="strong")),
        ("wgmma", by_path(units.WGMMA)),
        ("mma", by_path(units.MMA)),
        ("sustained", rate(units.SUSTAINED)),
        (Column("burst", drop=1), rate(units.BURST)),
        notes=(ACCUMULATORS,),
    )


# Tables in the order of the questions: what products reach, for how long, in a model, of which data; units alone.
ORDER = (
    "gemm_throughput", "gemm_search", "gemm_sustained", "gemm_shapes", "gemm_grouped", "gemm_data", "tensor_ceiling",
    "tensor_sparse", "alu_ceiling",
)  # fmt: skip


def data(evidence: Evidence) -> Table | None:
    """A row for each type and kind of data: rate, share of the rate with normal data, clock, power and energy."""
    products = units.rates(evidence, units.DATA)
    types = units.dtypes(evidence, units.DATA)

    def of_normal(row: Row) -> Cell:
        normal = units.one_rate(evidence, units.DATA, **{**row.params, "data": "normal"})
        return NOTHING if normal is None else Cell(percent(row.value / normal.value))

    table = table_of(
        f"Effect of the data at size {' and '.join(map(str, sorted({whole(row, 'size') for row in products})))}",
        "the same work in turn: flipping bits take power, and power lowers the clock; models have normal data",
        sorted(products, key=lambda row: (units.not_main(row), types.index(units.dtype_of(row)))),
        ("type", lambda row: Cell(units.dtype_of(row), tone="quiet")),
        (Column("data", "left"), lambda row: Cell(str(row.params.get("data")), tone="strong")),
        ("rate", lambda row: row_cell(row, units.figure(row), tone="strong")),
        ("of normal", of_normal),
        ("SM clock", _same_case(evidence, "sm_clock")),
        (Column("power", drop=1), _same_case(evidence, "power")),
        ("an operation", _same_case(evidence, *units.ENERGIES)),
    )
    return table if len(products) > 1 else None


def alus(evidence: Evidence) -> Table | None:
    """A row for each ALU instruction: rate per cycle and SM, rate of all SMs, latency, and the number in flight."""

    def rate(row: Row) -> Cell:
        share = share_of(evidence, row)
        return row_cell(row, units.figure(row), percent(share) if share is not None else "", "strong")

    return table_of(
        "ALUs alone",
        "share of the architecture's rate; in flight: instructions of a warp that an SM needs for it",
        units.rates(evidence, units.ALUS, units.PER_CLOCK),
        ("instruction", lambda row: Cell(str(row.params.get("operation")), tone="strong")),
        ("per cycle and SM", rate),
        (Column("all SMs", drop=1), _same_case(evidence, "rate", "integer_rate")),
        ("latency", _same_case(evidence, "latency")),
        ("in flight", lambda row: value_cell(units.in_flight(evidence, row), lambda count: quantity(count, "1"))),
    )

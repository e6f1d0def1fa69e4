"""The compute suite's pictures: products by type, over size and time, under their roofs, by data; units alone."""

from __future__ import annotations

from microbench.explain.compute_alu import instructions
from microbench.explain.compute_units import DATA, ENERGIES, MAIN_DTYPE, beside, dtype_of, dtypes, figure, rates
from microbench.explain.evidence import Evidence, row_name, whole
from microbench.report.document import Cell, Column, Picture, Table
from microbench.report.sections.compute_lasting import rates_over_time, state_over_time
from microbench.report.sections.compute_products import by_library, by_type, fastest, over_size
from microbench.report.sections.compute_roofline import rooflines, shapes
from microbench.report.sections.compute_tensor import alone
from microbench.report.shapes import NOTHING
from microbench.stats import Row
from microbench.units import percent, quantity

# Tables in the order of the questions: what products reach, for how long, in a model, of which data; units alone.
ORDER = (
    "gemm_throughput", "gemm_search", "gemm_sustained", "gemm_shapes", "gemm_data", "tensor_ceiling", "alu_ceiling",
)  # fmt: skip


def pictures(evidence: Evidence) -> list[Picture]:
    """Every picture that the run has figures for."""
    drawn = (
        by_type(evidence),
        over_size(evidence),
        by_library(evidence),
        fastest(evidence),
        rates_over_time(evidence),
        state_over_time(evidence),
        *rooflines(evidence),
        *shapes(evidence),
        data(evidence),
        alone(evidence),
        alus(evidence),
    )
    return [picture for picture in drawn if picture is not None]


def data(evidence: Evidence) -> Table | None:
    """Types and data down; rate, clock, power and energy across, each rate against that of normal numbers."""
    found = rates(evidence, DATA)
    if len(found) < 2:
        return None
    order = sorted(dtypes(evidence, DATA), key=lambda dtype: dtype != MAIN_DTYPE)
    rows = tuple(_data_row(evidence, row, found) for dtype in order for row in found if dtype_of(row) == dtype)
    columns = (
        Column("type", "left"), Column("data", "left"), Column("rate"), Column("of normal"), Column("SM clock"),
        Column("power", drop=1), Column("an operation"),
    )  # fmt: skip
    sizes = sorted({whole(row, "size") for row in found})
    return Table(
        f"What the data do, at size {' and '.join(str(one) for one in sizes)}",
        "the same work each time: bits that flip take power, power takes clock; only normal data say what a model gets",
        columns,
        rows,
    )


def _data_row(evidence: Evidence, row: Row, found: list[Row]) -> tuple[Cell, ...]:
    same = (one for one in found if (dtype_of(one), one.params.get("size")) == (dtype_of(row), row.params.get("size")))
    normal = next((one for one in same if one.params.get("data") == "normal"), None)
    others = (beside(evidence, row, "sm_clock"), beside(evidence, row, "power"), beside(evidence, row, *ENERGIES))
    return (
        Cell(dtype_of(row), tone="quiet"),
        Cell(str(row.params.get("data")), tone="strong"),
        Cell(figure(row), tone="strong", trust=row.trust, of=row_name(row)),
        Cell(percent(row.value / normal.value)) if normal is not None else NOTHING,
        *(Cell(figure(one)) if one is not None else NOTHING for one in others),
    )


def alus(evidence: Evidence) -> Table | None:
    """ALU instructions down; what an SM does in a cycle with its share of the rate, latency, what must be under way."""
    found = instructions(evidence)
    if not found:
        return None
    rows = []
    for one in found:
        total = beside(evidence, one.rate, "rate", "integer_rate")
        rows.append(
            (
                Cell(one.operation, tone="strong"),
                Cell(
                    figure(one.rate),
                    percent(one.share) if one.share is not None else "",
                    "strong",
                    one.rate.trust,
                    row_name(one.rate),
                ),
                Cell(figure(total)) if total is not None else NOTHING,
                Cell(figure(one.latency)) if one.latency is not None else NOTHING,
                Cell(quantity(round(one.under_way), "1")) if one.under_way is not None else NOTHING,
            )
        )
    columns = (
        Column("instruction", "left"), Column("an SM in a cycle"), Column("all SMs", drop=1), Column("latency"),
        Column("under way"),
    )  # fmt: skip
    return Table(
        "ALUs alone",
        "beside each figure its share of the architecture's rate; under way: instructions of a warp that an SM needs",
        columns,
        tuple(rows),
    )

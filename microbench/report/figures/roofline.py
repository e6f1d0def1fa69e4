"""Roofline: products of models, and square ones, under the roofs that this GPU itself reached."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.analysis.evidence import whole
from microbench.core.units import quantity, three_digits
from microbench.explain.compute_products import Shaped, bounds, shaped
from microbench.explain.compute_units import dtype_of
from microbench.report.document import Cell, Column, Curve, Line, Table
from microbench.report.figures.curves import Kind, Panel, Style, drawing, found_in
from microbench.report.figures.figure import Drawing, Source, first_title
from microbench.report.suites.roofline import rooflines
from microbench.report.tables import NOTHING

TITLE = "Products of models under this GPU's own roofs"


def draw(sources: Sequence[Source]) -> Drawing | None:
    """Rate over operations for a byte, in the type that speaks for the suite."""
    found = found_in(sources, _first)
    about = f"{found[0][1].title}: {found[0][1].about}" if found else ""
    products = [(source, one) for source, _ in found for one in shaped(source.evidence) if one.intensity is not None]
    names = {(one.intensity or 0.0, one.row.value): _name(one) for _, one in products}
    panels = [Panel("rate", found, _operations, _rate, names)]
    drawn = drawing(panels, Style(_kind), lambda one: first_title(bounds(one.evidence)), about)
    return drawn._replace(table=_table(products)) if drawn is not None else None


def _first(source: Source) -> Curve | None:
    return next(iter(rooflines(source.evidence)), None)


def _kind(line: Line) -> Kind:
    return "limit" if line.joined else "points"


def _name(one: Shaped) -> str:
    return f"{one.row.params.get('projection')}, {whole(one.row, 'rows')} rows, {dtype_of(one.row)}"


def _operations(value: float) -> str:
    return f"{three_digits(value)} operations a byte"


def _rate(value: float) -> str:
    return quantity(value, "FLOP/s")


def _table(products: Sequence[tuple[Source, Shaped]]) -> Table:
    """A product a row."""
    columns = (
        Column("run", "left"), Column("product", "left"), Column("operations a byte"), Column("rate"),
        Column("held up by", "left"),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(source.label),
            Cell(_name(one), tone="strong"),
            Cell(three_digits(one.intensity or 0.0)),
            Cell(quantity(one.row.value, one.row.metric.unit), trust=one.row.trust),
            Cell(one.held) if one.held is not None else NOTHING,
        )
        for source, one in products
    )
    return Table(TITLE, "", columns, rows)

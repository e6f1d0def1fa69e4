"""The shapes a table can take: metrics side by side, metrics by the values of one axis, or one metric a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from microbench.explain.ceilings import exceeds
from microbench.explain.evidence import row_name
from microbench.limits import Ceiling
from microbench.model import BenchmarkInfo, Param
from microbench.report.document import Cell, Column, Tone
from microbench.stats import Row
from microbench.units import axis_title, axis_value, percent, quantity, spread

MOST_METRICS_ACROSS = 3
MOST_VALUES_ACROSS = 5
MOST_VALUES_KEPT = 4
Tail = Literal["p1", "p90", "p99", "worst", "min", "max"]
# What stands beside a single figure, and in which order it goes where the page is narrow.
TAILS: dict[str, tuple[Tail, ...]] = {"time": ("p90", "p99", "worst"), "rate": ("p1", "min"), "": ("p90", "p99", "max")}
QUANTILES: dict[Tail, Literal["p1", "p90", "p99", "min", "max"]] = {
    "p1": "p1", "p90": "p90", "p99": "p99", "worst": "max", "min": "min", "max": "max",
}  # fmt: skip
DROPS: dict[Tail, int] = {"p90": 2, "p99": 1, "worst": 3, "max": 3, "p1": 1, "min": 2}
NOTHING = Cell("–", tone="quiet")

Shape = tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]
LimitOf = Callable[[Row], Ceiling | None]


def figure(row: Row, limit: Ceiling | None = None) -> Cell:
    """A row's value with its spread, its share of the ceiling where there is one, and its grade."""
    note = spread(row.interval.half_width)
    if row.trust == "single":
        note = f"n={sum(one.n for one in row.summaries)}"
    text = quantity(row.value, row.metric.unit)
    tone: Tone = "strong"
    if limit is not None and limit.unit == row.metric.unit:
        note += f", {percent(row.value / limit.value)} of limit"
        if exceeds(row, limit):  # there is no such thing, so the figure itself says so: notes may go
            text, tone = f"{text}, over limit", "problem"
    return Cell(text, note, tone, row.trust, row_name(row))


def varying_axes(info: BenchmarkInfo, found: Iterable[Row]) -> list[str]:
    """Axes with more than one value among the rows, in the benchmark's own order."""
    values: dict[str, set[Param]] = {axis.name: set() for axis in info.axes}
    for row in found:
        for name, value in row.params.items():
            values.setdefault(name, set()).add(value)
    return [name for name, seen in values.items() if len(seen) > 1]


def shape(axes: list[str], found: Sequence[Row], limit_of: LimitOf) -> Shape:
    """The columns and lines that suit these rows, whose cases differ in ``axes``."""
    metrics = list(dict.fromkeys(row.metric.name for row in found))
    if axes and len(metrics) <= MOST_METRICS_ACROSS:
        return _cases(axes, metrics, found, limit_of)
    if len(axes) == 1 and len({row.params.get(axes[0]) for row in found}) <= MOST_VALUES_ACROSS:
        return _metrics_by_value(axes[0], metrics, found, limit_of)
    return _one_a_line(axes, found, limit_of)


def _cases(axes: list[str], metrics: list[str], found: Sequence[Row], limit_of: LimitOf) -> Shape:
    cases: dict[str, dict[str, Row]] = {}
    for row in found:
        cases.setdefault(row.case_id, {})[row.metric.name] = row
    tails = _tails(found) if len(metrics) == 1 else ()
    columns = [
        *_axis_columns(axes),
        *(Column(name) for name in metrics),
        *(Column(name, drop=DROPS[name]) for name in tails),
    ]
    blank = _blank_at_zero(axes, found)
    lines = []
    for by_metric in cases.values():
        first = next(iter(by_metric.values()))
        cells = [
            figure(by_metric[name], limit_of(by_metric[name])) if name in by_metric else NOTHING for name in metrics
        ]
        lines.append((*_axis_cells(axes, first, blank), *cells, *_tail_cells(first, tails)))
    return tuple(columns), tuple(lines)


def _metrics_by_value(axis: str, metrics: list[str], found: Sequence[Row], limit_of: LimitOf) -> Shape:
    values = list(dict.fromkeys(row.params[axis] for row in found if axis in row.params))
    cells = {(row.metric.name, row.params.get(axis)): figure(row, limit_of(row)) for row in found}
    # Where the page is narrow, every other of five values goes; the first and the last stay.
    drops = [index % 2 if len(values) > MOST_VALUES_KEPT else 0 for index in range(len(values))]
    across = (Column(axis_value(axis, value), drop=drop) for value, drop in zip(values, drops, strict=True))
    columns = (Column(f"metric by {axis_title(axis)}", "left"), *across)
    return columns, tuple((Cell(name), *(cells.get((name, value), NOTHING) for value in values)) for name in metrics)


def _one_a_line(axes: list[str], found: Sequence[Row], limit_of: LimitOf) -> Shape:
    tails = _tails(found)
    columns = [*_axis_columns(axes), Column("metric", "left"), Column("value")]
    columns += [Column(name, drop=DROPS[name]) for name in tails]
    blank = _blank_at_zero(axes, found)
    lines = [
        (*_axis_cells(axes, row, blank), Cell(row.metric.name), figure(row, limit_of(row)), *_tail_cells(row, tails))
        for row in found
    ]
    return tuple(columns), tuple(lines)


def _axis_columns(axes: list[str]) -> list[Column]:
    return [Column(axis_title(name), "left") for name in axes]


def _axis_cells(axes: list[str], row: Row, blank: frozenset[str]) -> list[Cell]:
    return [
        NOTHING if name in blank and row.params.get(name) == 0
        else Cell(axis_value(name, row.params[name]) if name in row.params else "")
        for name in axes
    ]  # fmt: skip


def _blank_at_zero(axes: Iterable[str], found: Sequence[Row]) -> frozenset[str]:
    """Sizes whose 0 says that there is nothing of a size: the kind of case alone decides between it and any other."""
    kinds = {name for row in found for name, value in row.params.items() if isinstance(value, str)}
    sizes = (name for name in axes if name.endswith("_bytes"))
    return frozenset(name for name in sizes if any(_decides(kind, name, found) for kind in kinds))


def _decides(kind: str, size: str, found: Sequence[Row]) -> bool:
    """Whether each kind of case has a size throughout, or has none throughout, and there are both."""
    without = {row.params.get(kind) for row in found if row.params.get(size) == 0}
    sized = {row.params.get(kind) for row in found if row.params.get(size)}
    return bool(without and sized) and not without & sized


def _tails(found: Sequence[Row]) -> tuple[Tail, ...]:
    kinds = {row.metric.kind for row in found}
    return TAILS[kinds.pop() if len(kinds) == 1 and "count" not in kinds else ""]


def _tail_cells(row: Row, tails: tuple[Tail, ...]) -> list[Cell]:
    return [Cell(quantity(row.over_rounds(QUANTILES[name]), row.metric.unit), tone="quiet") for name in tails]

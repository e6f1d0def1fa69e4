"""Rows of a run as tables: those of a benchmark with what was checked and found out, and what was not measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from microbench.analysis.evidence import exceeds, row_name
from microbench.analysis.limits import Ceiling
from microbench.analysis.stats import Row
from microbench.core.model import BenchmarkInfo, Fact, Outcome, Param
from microbench.core.units import MISSING, as_time, axis_title, axis_value, percent, quantity, short_size, spread
from microbench.report.document import Cell, Column, Curve, Line, Mark, Table, Tone

# Curves and their ticks: rows over a numeric axis, with readable numbers at both axes.


FEWEST_POINTS = 4
MOST_LINES = 3
LOG_RATIO = 20.0
FEW_DECADES = 30.0
TONES: tuple[Tone, ...] = ("first", "second", "third")


def benchmark_curve(info: BenchmarkInfo, found: Sequence[Row]) -> Curve | None:
    """The first metric over the first numeric axis, a line for each combination of the other axes; None when no line
    has FEWEST_POINTS points."""
    axis = next((axis.name for axis in info.axes if all(isinstance(value, int) for value in axis.values)), None)
    if axis is None or not found:
        return None
    metric = found[0].metric
    lines = _lines(axis, [row for row in found if row.metric.name == metric.name])
    if not lines:
        return None
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_log, y_log = logarithmic(xs), logarithmic(ys)
    return Curve(
        title=f"{metric.name} over {axis_title(axis)}",
        about="",
        x_title=axis_title(axis),
        lines=tuple(lines),
        x_ticks=tuple(Mark(x, axis_value(axis, round(x))) for x in sorted(set(xs))),
        y_ticks=ticks(min(ys) if y_log else 0.0, max(ys), y_log, metric.unit),
        x_log=x_log,
        y_log=y_log,
    )


def _lines(axis: str, found: Sequence[Row]) -> list[Line]:
    varying = [name for name in found[0].params if len({row.params.get(name) for row in found}) > 1 and name != axis]
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        value = row.params.get(axis)
        if isinstance(value, int) and row.value > 0:
            others = ", ".join(_held(name, row.params[name]) for name in varying if name in row.params)
            groups.setdefault(others, []).append((float(value), row.value))
    long = [(name, sorted(points)) for name, points in groups.items() if len(points) >= FEWEST_POINTS][:MOST_LINES]
    return [
        Line(name if len(long) > 1 else "", tuple(points), tone)
        for (name, points), tone in zip(long, TONES, strict=False)
    ]


def _held(name: str, value: Param) -> str:
    return value if isinstance(value, str) else f"{axis_title(name)} {axis_value(name, value)}"


def logarithmic(values: Sequence[float]) -> bool:
    """Whether values ask for a logarithmic axis: all above 0 and more than LOG_RATIO apart."""
    return min(values) > 0 and max(values) / min(values) > LOG_RATIO


def ticks(low: float, high: float, log: bool, unit: str) -> tuple[Mark, ...]:
    """Round numbers from ``low`` to ``high`` with their words: 1, 2, 5 times powers of ten, or four equal steps."""
    if high <= low:
        return (Mark(low, quantity(low, unit)),)
    if not log:
        step = nice_step((high - low) / 5)
        count = math.floor((high - low) / step + 1e-9)
        return tuple(Mark(low + index * step, short(low + index * step, unit)) for index in range(count + 1))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < FEW_DECADES else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return tuple(Mark(value, short(value, unit)) for value in values if low * 0.999 <= value <= high * 1.001)


def ticks_beyond(most: float, unit: str) -> tuple[Mark, ...]:
    """Equal steps from 0 to the first one above ``most``, which must be positive: marks have room over the lines."""
    step = nice_step(most / 5)
    return ticks(0.0, (math.floor(most / step) + 1) * step, False, unit)


def nice_step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) at or above ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def short(value: float, unit: str) -> str:
    """A round number without its empty decimals: "10 µs", "2.5 GB/s"."""
    number, _, rest = quantity(value, unit).partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {rest}".strip()


# The shapes a table can take: metrics side by side, metrics by the values of one axis, or one metric a line.


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
        return _shape_cases(axes, metrics, found, limit_of)
    if len(axes) == 1 and len({row.params.get(axes[0]) for row in found}) <= MOST_VALUES_ACROSS:
        return _metrics_by_value(axes[0], metrics, found, limit_of)
    return _one_a_line(axes, found, limit_of)


def _shape_cases(axes: list[str], metrics: list[str], found: Sequence[Row], limit_of: LimitOf) -> Shape:
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


STATUS_WORDS = {"timed_out": "timed out"}
MOST_VALUES = 4
MOST_LIMITS = 8
# Several times what any grid has: more would be the lines of a run that was put together, and nobody reads them.
MOST_CASES = 1000
KEPT_ACROSS = 2
# Facts of one kind, told apart by a number: hop0_kind, hop1_kind.
NUMBERED = re.compile(r"(?P<group>[a-z]+)(?P<number>[0-9]{1,3})_(?P<name>[a-z_]+)")


def benchmark_tables(info: BenchmarkInfo, found: Sequence[Row], limit_of: LimitOf) -> tuple[Table, ...]:
    """The tables of one benchmark: cases that measured the same metrics share one. The first has the benchmark's title
    and question, the last the notes."""
    kinds: dict[frozenset[str], list[Row]] = {}
    cases = list(_by_case(found).values())
    for members in cases[:MOST_CASES]:
        kinds.setdefault(frozenset(row.metric.name for row in members), []).extend(members)
    axes = varying_axes(info, found)
    shapes = [shape([axis for axis in axes if _holds(axis, rows)], rows, limit_of) for rows in kinds.values()]
    tables = [Table("", "", columns, lines) for columns, lines in shapes]
    title = f"{info.name}: {info.title}"
    tables[0] = Table(title, question(info), tables[0].columns, tables[0].rows)
    notes = _notes(info, found, limit_of)
    if len(cases) > MOST_CASES:
        notes = (f"{len(cases) - MOST_CASES} more cases: microbench export lists them all", *notes)
    tables[-1] = Table(tables[-1].title, tables[-1].question, tables[-1].columns, tables[-1].rows, notes)
    return tuple(tables)


def question(info: BenchmarkInfo) -> str:
    """The question a benchmark answers: the first line of what it says about itself."""
    return (info.about.strip().splitlines() or [""])[0]


def _by_case(found: Sequence[Row]) -> dict[str, list[Row]]:
    cases: dict[str, list[Row]] = {}
    for row in found:
        cases.setdefault(row.case_id, []).append(row)
    return cases


def _holds(axis: str, rows: Sequence[Row]) -> bool:
    """Whether any of these rows has the axis at a value that says something: not 0 throughout."""
    return any(row.params.get(axis) not in (0, None) for row in rows)


def _notes(info: BenchmarkInfo, found: Sequence[Row], limit_of: LimitOf) -> tuple[str, ...]:
    cases = {row.case_id for row in found}
    checked: dict[str, set[str]] = {}
    for row in found:
        if row.measurement.verified:
            checked.setdefault(row.measurement.verified, set()).add(row.case_id)
    notes = [
        f"checked: {how}" + (f" ({len(ids)} of {len(cases)} cases)" if len(ids) < len(cases) else "")
        for how, ids in checked.items()
    ]
    notes += _limits(dict.fromkeys(limit for row in found if (limit := limit_of(row)) is not None))
    varying = varying_axes(info, found)
    fixed = {name: value for name, value in found[0].params.items() if name not in varying}
    if fixed:
        notes.append(", ".join(f"{axis_title(name)} {axis_value(name, value)}" for name, value in fixed.items()))
    return tuple(notes + fact_notes(found))


def _limits(limits: Collection[Ceiling]) -> list[str]:
    """Each limit with what it rests on; of many how many they are, as pictures show the shares of each."""
    if len(limits) > MOST_LIMITS:
        return [f"limit: {len(limits)} different ones"]
    return [
        f"limit: {quantity(limit.value, limit.unit)}, {', '.join((limit.source, *limit.assumptions))}"
        for limit in sorted(limits, key=lambda one: one.value)
    ]


def fact_notes(found: Sequence[Row]) -> list[str]:
    """Facts that the cases found out, one line for each name: its values with the cases they hold for."""
    told: dict[str, list[Fact]] = {}
    for outcome in {id(row.outcomes[0]): row.outcomes[0] for row in found}.values():
        for fact in outcome.facts:
            told.setdefault(axis_title(fact.name), []).append(fact)
    return [f"{name}: {_values(facts)}" for name, facts in told.items()]


def _values(facts: Sequence[Fact]) -> str:
    """Each value with the number of cases that it holds for; of many numbers the least and the most, of many texts how
    many they are: findings say what they mean."""
    seen = Counter(fact_words(fact) for fact in facts)
    numbers = {fact.value: fact_words(fact) for fact in facts if isinstance(fact.value, int | float)}
    if len(seen) > MOST_VALUES and len(numbers) == len({fact.value for fact in facts}):
        return f"{numbers[min(numbers)]} to {numbers[max(numbers)]} ({len(facts)} cases)"
    if len(seen) > MOST_VALUES and not numbers:
        return f"{len(seen)} different ones ({len(facts)} cases)"
    return ", ".join(f"{value} ({cases} cases)" if cases > 1 else value for value, cases in seen.items())


def fact_words(fact: Fact) -> str:
    """A fact in words: its value by its unit, or why it is unknown."""
    if fact.value is None:
        return f"unknown ({fact.reason})"
    if isinstance(fact.value, bool):
        return ("yes" if fact.value else "no") + (f" ({fact.reason})" if fact.reason else "")
    if fact.name.endswith("_bytes_per_s") and isinstance(fact.value, int | float):
        return quantity(fact.value, "B/s")
    if isinstance(fact.value, float):
        return quantity(fact.value, fact.unit)
    if isinstance(fact.value, int) and fact.name.endswith("_ns"):
        return as_time(fact.value * 1e-9)
    if isinstance(fact.value, int) and (fact.unit == "B" or fact.name.endswith("_bytes")):
        return short_size(fact.value)
    return f"{fact.value} {fact.unit}".strip()


def fact_tables(info: BenchmarkInfo, outcomes: Iterable[Outcome]) -> tuple[Table, ...]:
    """The facts of a benchmark that times nothing, one a line with its source; what the rounds of its newest session
    do not agree on has all their values. Numbered ones that say several things (hop0_kind, hop0_lanes) are a table of
    their own, a line for each number."""
    sound = [outcome for outcome in outcomes if outcome.status == "ok"]
    facts: dict[str, list[Fact]] = {}
    for fact in (fact for one in sound if one.session == sound[-1].session for fact in one.facts):
        facts.setdefault(fact.name, []).append(fact)
    numbered: dict[str, dict[str, dict[str, Cell]]] = {}
    for name, told in facts.items():
        if (found := NUMBERED.fullmatch(name)) is not None:
            numbered.setdefault(found["group"], {}).setdefault(found["number"], {})[found["name"]] = _fact_cell(told)
    several = {group: members for group, members in numbered.items() if max(map(len, members.values())) > 1}
    lines = tuple(
        (Cell(name), _fact_cell(told), Cell(told[-1].source, tone="quiet"))
        for name, told in facts.items()
        if (found := NUMBERED.fullmatch(name)) is None or found["group"] not in several
    )
    columns = (Column("fact", "left"), Column("value", "left"), Column("source", "left", drop=1))
    first = Table(f"{info.name}: {info.title}", question(info), columns, lines)
    return (first, *(_numbered(group, members) for group, members in several.items()))


def _fact_cell(told: Sequence[Fact]) -> Cell:
    """A fact as each round told it, once where they agree."""
    words = ", ".join(dict.fromkeys(fact_words(fact) for fact in told))
    return Cell(words, tone="quiet" if all(fact.value is None for fact in told) else "plain")


def _numbered(group: str, members: dict[str, dict[str, Cell]]) -> Table:
    titles = list(dict.fromkeys(title for cells in members.values() for title in cells))
    blank = Cell(MISSING, tone="quiet")
    rows = tuple((Cell(number), *(cells.get(title, blank) for title in titles)) for number, cells in members.items())
    # What is told first says which one it is; where the page is narrow, the last goes first.
    across = (
        Column(axis_title(title), "left", drop=max(index + 1 - KEPT_ACROSS, 0)) for index, title in enumerate(titles)
    )
    return Table("", "", (Column(group, "left"), *across), rows)


def problem_table(outcomes: Iterable[Outcome]) -> Table | None:
    """What was not measured and why, failures first, one line for each reason; None when everything was measured."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status != "ok":
            groups.setdefault((outcome.status, outcome.reason or "no reason given"), []).append(outcome)
    if not groups:
        return None
    rows = []
    for (status, reason), members in sorted(groups.items(), key=lambda group: group[0][0] == "skipped"):
        tone: Tone = "quiet" if status == "skipped" else "problem"
        rows.append(
            (Cell(STATUS_WORDS.get(status, status), tone=tone), Cell(_cases(members)), Cell(reason, tone="quiet"))
        )
    columns = (Column("what", "left"), Column("case", "left"), Column("reason", "left"))
    return Table("Not measured", "", columns, tuple(rows))


def _cases(members: Iterable[Outcome]) -> str:
    """One case by its id, several of a benchmark by their number."""
    ids: dict[str, set[str]] = {}
    for outcome in members:
        ids.setdefault(outcome.case.benchmark, set()).add(outcome.case.id)
    return ", ".join(min(cases) if len(cases) == 1 else f"{name} ({len(cases)} cases)" for name, cases in ids.items())

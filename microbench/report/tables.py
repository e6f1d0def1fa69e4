"""Turns the rows of a run into tables: a benchmark's figures with notes, facts, and cases that were not measured."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from microbench.analysis.evidence import exceeds, row_name
from microbench.analysis.limits import Ceiling
from microbench.analysis.stats import Row
from microbench.core.model import BenchmarkInfo, Fact, Outcome, Param
from microbench.core.units import MISSING, as_time, axis_title, axis_value, percent, quantity, short_size, spread
from microbench.report.document import Bars, Cell, Column, Table, Tone

NOTHING = Cell(MISSING, tone="quiet")
MOST_METRICS_ACROSS = 3
MOST_VALUES_ACROSS = 5
MOST_VALUES_KEPT = 4
# No grid has as many cases; a run that was put together by hand may.
MOST_CASES = 1000
MOST_LIMITS = 8
MOST_FACT_VALUES = 4
STATUS_WORDS = {"timed_out": "timed out"}
Tail = Literal["p1", "p90", "p99", "worst", "min", "max"]
# The columns after a single figure, by the kind of its metric, and the order in which a narrow page drops them.
TAILS: dict[str, tuple[Tail, ...]] = {"time": ("p90", "p99", "worst"), "rate": ("p1", "min"), "": ("p90", "p99", "max")}
DROPS: dict[Tail, int] = {"p90": 2, "p99": 1, "worst": 3, "max": 3, "p1": 1, "min": 2}
QUANTILES: dict[Tail, Literal["p1", "p90", "p99", "min", "max"]] = {
    "p1": "p1", "p90": "p90", "p99": "p99", "worst": "max", "min": "min", "max": "max",
}  # fmt: skip

Value = TypeVar("Value")
LimitOf = Callable[[Row], Ceiling | None]
Layout = tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]


def figure(row: Row, limit: Ceiling | None = None) -> Cell:
    """A row's value with its spread, its share of the limit if it has one, and its grade."""
    note = spread(row.interval.half_width)
    if row.trust == "single":
        note = f"n={sum(summary.n for summary in row.summaries)}"
    text = quantity(row.value, row.metric.unit)
    tone: Tone = "strong"
    if limit is not None and limit.unit == row.metric.unit:
        note += f", {percent(row.value / limit.value)} of limit"
        if exceeds(row, limit):  # part of the text, because a narrow page drops notes
            text, tone = f"{text}, over limit", "problem"
    return Cell(text, note, tone, row.trust, row_name(row))


def value_cell(value: Value | None, words: Callable[[Value], str], tone: Tone = "plain") -> Cell:
    """A value in words; NOTHING if it is None."""
    return NOTHING if value is None else Cell(words(value), tone=tone)


def row_cell(row: Row | None, text: str = "", note: str = "", tone: Tone = "plain") -> Cell:
    """A row's value, or ``text`` for it, with its grade and a link to its details; NOTHING without a row."""
    if row is None:
        return NOTHING
    return Cell(text or quantity(row.value, row.metric.unit), note, tone, row.trust, row_name(row))


def bars_table(bars: Bars) -> Table:
    """The figures of bars as a table, the labels first."""
    rows = tuple((Cell(bar.label), *bar.cells) for bar in bars.bars)
    return Table(bars.title, bars.about, (Column("", "left"), *bars.columns), rows, bars.notes)


def benchmark_tables(info: BenchmarkInfo, measured: Sequence[Row], limit_of: LimitOf) -> tuple[Table, ...]:
    """The tables of a benchmark, one for all cases that measured the same metrics.

    The first has the benchmark's title and question, the last the notes.
    """
    cases: dict[str, list[Row]] = {}
    for row in measured:
        cases.setdefault(row.case_id, []).append(row)
    kinds: dict[frozenset[str], list[Row]] = {}
    for members in list(cases.values())[:MOST_CASES]:
        kinds.setdefault(frozenset(row.metric.name for row in members), []).extend(members)
    values: dict[str, set[Param]] = {axis.name: set() for axis in info.axes}
    for name, value in (pair for row in measured for pair in row.params.items()):
        values.setdefault(name, set()).add(value)
    varying = [name for name, members in values.items() if len(members) > 1]
    tables = []
    for rows in kinds.values():
        # An axis that is 0 in all of these cases gets no column.
        axes = [axis for axis in varying if any(row.params.get(axis) not in (0, None) for row in rows)]
        tables.append(Table("", "", *_layout(axes, rows, limit_of)))
    notes = _notes(measured, varying, limit_of)
    if len(cases) > MOST_CASES:
        notes.insert(0, f"{len(cases) - MOST_CASES} more cases: microbench export lists them all")
    tables[0] = msgspec.structs.replace(tables[0], title=f"{info.name}: {info.title}", question=question(info))
    tables[-1] = msgspec.structs.replace(tables[-1], notes=tuple(notes))
    return tuple(tables)


def question(info: BenchmarkInfo) -> str:
    """The question that a benchmark answers: the first line of its text."""
    return (info.about.strip().splitlines() or [""])[0]


# The layouts of a table: metrics side by side, metrics by the values of one axis, or one metric a row.


def _layout(axes: list[str], measured: Sequence[Row], limit_of: LimitOf) -> Layout:
    """The columns and rows for these rows, whose cases differ in ``axes``."""
    metrics = list(dict.fromkeys(row.metric.name for row in measured))
    if axes and len(metrics) <= MOST_METRICS_ACROSS:
        return _metrics_across(axes, metrics, measured, limit_of)
    if len(axes) == 1 and len({row.params.get(axes[0]) for row in measured}) <= MOST_VALUES_ACROSS:
        return _values_across(axes[0], metrics, measured, limit_of)
    tails = _tails(measured)
    columns = [*_axis_columns(axes), Column("metric", "left"), Column("value"), *_tail_columns(tails)]
    blank = _blank_at_zero(axes, measured)
    rows = (
        (*_axis_cells(axes, row, blank), Cell(row.metric.name), figure(row, limit_of(row)), *_tail_cells(row, tails))
        for row in measured
    )
    return tuple(columns), tuple(rows)


def _metrics_across(axes: list[str], metrics: list[str], measured: Sequence[Row], limit_of: LimitOf) -> Layout:
    cases: dict[str, dict[str, Row]] = {}
    for row in measured:
        cases.setdefault(row.case_id, {})[row.metric.name] = row
    tails = _tails(measured) if len(metrics) == 1 else ()
    blank = _blank_at_zero(axes, measured)
    rows = []
    for by_metric in cases.values():
        first = next(iter(by_metric.values()))
        cells = (
            figure(by_metric[name], limit_of(by_metric[name])) if name in by_metric else NOTHING for name in metrics
        )
        rows.append((*_axis_cells(axes, first, blank), *cells, *_tail_cells(first, tails)))
    return (*_axis_columns(axes), *(Column(name) for name in metrics), *_tail_columns(tails)), tuple(rows)


def _values_across(axis: str, metrics: list[str], measured: Sequence[Row], limit_of: LimitOf) -> Layout:
    values = list(dict.fromkeys(row.params[axis] for row in measured if axis in row.params))
    cells = {(row.metric.name, row.params.get(axis)): figure(row, limit_of(row)) for row in measured}
    # A narrow page drops every other one of five values; the first and the last stay.
    drops = [index % 2 if len(values) > MOST_VALUES_KEPT else 0 for index in range(len(values))]
    across = (Column(axis_value(axis, value), drop=drop) for value, drop in zip(values, drops, strict=True))
    columns = (Column(f"metric by {axis_title(axis)}", "left"), *across)
    return columns, tuple((Cell(name), *(cells.get((name, value), NOTHING) for value in values)) for name in metrics)


def _axis_columns(axes: list[str]) -> list[Column]:
    return [Column(axis_title(name), "left") for name in axes]


def _axis_cells(axes: list[str], row: Row, blank: frozenset[str]) -> list[Cell]:
    return [
        NOTHING if name in blank and row.params.get(name) == 0
        else Cell(axis_value(name, row.params[name]) if name in row.params else "")
        for name in axes
    ]  # fmt: skip


def _blank_at_zero(axes: Iterable[str], measured: Sequence[Row]) -> frozenset[str]:
    """Sizes whose 0 means "has no size": for some axis of words, each word has the size always or never."""
    kinds = {name for row in measured for name, value in row.params.items() if isinstance(value, str)}
    blank = set()
    for size, kind in itertools.product((name for name in axes if name.endswith("_bytes")), kinds):
        without = {row.params.get(kind) for row in measured if row.params.get(size) == 0}
        sized = {row.params.get(kind) for row in measured if row.params.get(size)}
        if without and sized and not without & sized:
            blank.add(size)
    return frozenset(blank)


def _tails(found: Sequence[Row]) -> tuple[Tail, ...]:
    kinds = {row.metric.kind for row in found}
    return TAILS[kinds.pop() if len(kinds) == 1 and "count" not in kinds else ""]


def _tail_columns(tails: tuple[Tail, ...]) -> list[Column]:
    return [Column(name, drop=DROPS[name]) for name in tails]


def _tail_cells(row: Row, tails: tuple[Tail, ...]) -> list[Cell]:
    return [Cell(quantity(row.over_rounds(QUANTILES[name]), row.metric.unit), tone="quiet") for name in tails]


# Notes below the tables of a benchmark: checks, limits, fixed parameters and facts.


def _notes(measured: Sequence[Row], varying: Collection[str], limit_of: LimitOf) -> list[str]:
    cases = {row.case_id for row in measured}
    checked: dict[str, set[str]] = {}
    for row in measured:
        if row.measurement.verified:
            checked.setdefault(row.measurement.verified, set()).add(row.case_id)
    notes = [
        f"checked: {how}" + (f" ({len(ids)} of {len(cases)} cases)" if len(ids) < len(cases) else "")
        for how, ids in checked.items()
    ]
    limits = list(dict.fromkeys(limit for row in measured if (limit := limit_of(row)) is not None))
    if len(limits) > MOST_LIMITS:  # pictures show the share of each
        notes.append(f"limit: {len(limits)} different ones")
    else:
        notes += [
            f"limit: {quantity(limit.value, limit.unit)}, {', '.join((limit.source, *limit.assumptions))}"
            for limit in sorted(limits, key=lambda limit: limit.value)
        ]
    fixed = {name: value for name, value in measured[0].params.items() if name not in varying}
    if fixed:
        notes.append(", ".join(f"{axis_title(name)} {axis_value(name, value)}" for name, value in fixed.items()))
    return notes + fact_notes(measured)


def fact_notes(found: Sequence[Row]) -> list[str]:
    """The facts of the cases, a line for each name: its values, each with its number of cases."""
    by_name: dict[str, list[Fact]] = {}
    for outcome in {id(row.outcomes[0]): row.outcomes[0] for row in found}.values():
        for fact in outcome.facts:
            by_name.setdefault(axis_title(fact.name), []).append(fact)
    return [f"{name}: {_values(facts)}" for name, facts in by_name.items()]


def _values(facts: Sequence[Fact]) -> str:
    """Each value with its number of cases; many numbers become a range, many texts a count."""
    counts = Counter(fact_words(fact) for fact in facts)
    numbers = {fact.value: fact_words(fact) for fact in facts if isinstance(fact.value, int | float)}
    if len(counts) > MOST_FACT_VALUES and len(numbers) == len({fact.value for fact in facts}):
        return f"{numbers[min(numbers)]} to {numbers[max(numbers)]} ({len(facts)} cases)"
    if len(counts) > MOST_FACT_VALUES and not numbers:
        return f"{len(counts)} different ones ({len(facts)} cases)"
    return ", ".join(f"{value} ({cases} cases)" if cases > 1 else value for value, cases in counts.items())


def fact_words(fact: Fact) -> str:
    """A fact in words: its value by its unit, or why it is unknown."""
    value = fact.value
    if value is None:
        return f"unknown ({fact.reason})"
    if isinstance(value, bool):
        return ("yes" if value else "no") + (f" ({fact.reason})" if fact.reason else "")
    if fact.name.endswith("_bytes_per_s") and isinstance(value, int | float):
        return quantity(value, "B/s")
    if isinstance(value, float):
        return quantity(value, fact.unit)
    if isinstance(value, int) and fact.name.endswith("_ns"):
        return as_time(value * 1e-9)
    if isinstance(value, int) and (fact.unit == "B" or fact.name.endswith("_bytes")):
        return short_size(value)
    return f"{value} {fact.unit}".strip()


# Tables of facts, and of cases that were not measured.

# Facts with a number in their name, such as those of each device on a path: hop0_kind, hop1_kind.
NUMBERED = re.compile(r"(?P<group>[a-z]+)(?P<number>[0-9]{1,3})_(?P<name>[a-z_]+)")
KEPT_ACROSS = 2


def fact_tables(info: BenchmarkInfo, outcomes: Iterable[Outcome]) -> tuple[Table, ...]:
    """The facts of a benchmark without metrics, a row each with its source, from its newest session.

    Rounds that disagree are listed with all their values. Numbered facts with several names (hop0_kind, hop0_lanes)
    are a table of their own, with a row for each number.
    """
    sound = [outcome for outcome in outcomes if outcome.status == "ok"]
    facts: dict[str, list[Fact]] = {}
    for fact in (fact for one in sound if one.session == sound[-1].session for fact in one.facts):
        facts.setdefault(fact.name, []).append(fact)
    numbered: dict[str, dict[str, dict[str, Cell]]] = {}
    for name, members in facts.items():
        if (match := NUMBERED.fullmatch(name)) is not None:
            by_number = numbered.setdefault(match["group"], {})
            by_number.setdefault(match["number"], {})[match["name"]] = _fact_cell(members)
    several = {group: members for group, members in numbered.items() if max(map(len, members.values())) > 1}
    rows = tuple(
        (Cell(name), _fact_cell(members), Cell(members[-1].source, tone="quiet"))
        for name, members in facts.items()
        if (match := NUMBERED.fullmatch(name)) is None or match["group"] not in several
    )
    columns = (Column("fact", "left"), Column("value", "left"), Column("source", "left", drop=1))
    first = Table(f"{info.name}: {info.title}", question(info), columns, rows)
    return (first, *(_numbered_table(group, members) for group, members in several.items()))


def _fact_cell(rounds: Sequence[Fact]) -> Cell:
    words = ", ".join(dict.fromkeys(map(fact_words, rounds)))
    return Cell(words, tone="quiet" if all(fact.value is None for fact in rounds) else "plain")


def _numbered_table(group: str, members: dict[str, dict[str, Cell]]) -> Table:
    titles = list(dict.fromkeys(title for cells in members.values() for title in cells))
    rows = tuple((Cell(number), *(cells.get(title, NOTHING) for title in titles)) for number, cells in members.items())
    # The first columns identify the device; a narrow page drops the last ones first.
    drops = (max(index + 1 - KEPT_ACROSS, 0) for index in range(len(titles)))
    across = (Column(axis_title(title), "left", drop) for title, drop in zip(titles, drops, strict=True))
    return Table("", "", (Column(group, "left"), *across), rows)


def problem_table(outcomes: Iterable[Outcome]) -> Table | None:
    """A row for each reason why cases were not measured, failures first; None if everything was measured."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status != "ok":
            groups.setdefault((outcome.status, outcome.reason or "no reason given"), []).append(outcome)
    rows = []
    for (status, reason), members in sorted(groups.items(), key=lambda group: group[0][0] == "skipped"):
        ids: dict[str, set[str]] = {}
        for outcome in members:
            ids.setdefault(outcome.case.benchmark, set()).add(outcome.case.id)
        cases = (min(each) if len(each) == 1 else f"{name} ({len(each)} cases)" for name, each in ids.items())
        tone: Tone = "quiet" if status == "skipped" else "problem"
        words = Cell(STATUS_WORDS.get(status, status), tone=tone)
        rows.append((words, Cell(", ".join(cases)), Cell(reason, tone="quiet")))
    columns = (Column("what", "left"), Column("case", "left"), Column("reason", "left"))
    return Table("Not measured", "", columns, tuple(rows)) if rows else None

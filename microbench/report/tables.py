"""Turns the rows of a run into tables: a benchmark's figures with notes, facts, and cases that were not measured."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, exceeds, row_name, share_of
from microbench.analysis.limits import Ceiling
from microbench.analysis.stats import Row
from microbench.core.model import BenchmarkInfo, Fact, Outcome, Param, PerCall
from microbench.core.units import MISSING, as_time, axis_title, axis_value, percent, quantity, short_size, spread
from microbench.report.document import WITHIN, Bars, Cell, Column, Table, Tone, columns

NOTHING = Cell(MISSING, tone="quiet")
MOST_METRICS_ACROSS = 3
MOST_VALUES_ACROSS = 5
MOST_VALUES_KEPT = 4
# No grid has as many cases; a run that was put together by hand may.
MOST_CASES = 1000
MOST_LIMITS = 8
MOST_LEVELS = 4
MOST_FACT_VALUES = 4
STATUS_WORDS = {"timed_out": "timed out"}
Quantile = Literal["p1", "p90", "p99", "min", "max"]
# The columns after a single figure, by the kind of its metric, and the order in which a narrow page drops them.
TAILS: dict[str, tuple[tuple[str, Quantile, int], ...]] = {
    "time": (("p90", "p90", 2), ("p99", "p99", 1), ("worst", "max", 3)), "rate": (("p1", "p1", 1), ("min", "min", 2)),
    "": (("p90", "p90", 2), ("p99", "p99", 1), ("max", "max", 3)),
}  # fmt: skip

# With fewer calls p99 is hardly different from the slowest one.
FEWEST_FOR_P99 = 200

LEFT = Column("", "left")
Key = TypeVar("Key")
Value = TypeVar("Value")
LimitOf = Callable[[Row], Ceiling | None]
Layout = tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]


def figure(row: Row, limit: Ceiling | None = None) -> Cell:
    """A row's value with its spread, its share of the limit if it has one, and its grade."""
    note = "two levels" if row.levels else spread_of(row)
    if row.busy_value is not None:
        note = f"{quantity(row.busy_value, row.metric.unit)} busy"
    if row.trust == "single":
        note = f"n={sum(summary.n for summary in row.summaries)}"
    text = quantity(row.value, row.metric.unit)
    tone: Tone = "strong"
    if limit is not None and limit.unit == row.metric.unit:
        note += f", {percent(row.value / limit.value)} of limit"
        if exceeds(row, limit):  # part of the text, because a narrow page drops notes
            text, tone = f"{text}, over limit", "problem"
    return Cell(text, note, tone, row.trust, row_name(row))


def call_quantiles(calls: PerCall) -> list[tuple[str, float]]:
    """What a histogram of single calls marks: their quantiles, as far as there are calls enough."""
    p99 = [("p99", calls.p99)] if calls.n >= FEWEST_FOR_P99 else []
    return [("p50", calls.p50), ("p90", calls.p90), *p99, ("worst", calls.max)]


def spread_of(row: Row) -> str:
    """Half the interval of a figure: "±1.2 %"; with WITHIN behind it if it holds within one process only."""
    return spread(row.interval.half_width) + (WITHIN if row.within_process else "")


def levels_words(row: Row) -> str:
    """The two levels at which a row lies: "1.58 and 1.83 µs", "2.92 µs, 4.18 µs while the host is busy"; "" if it lies
    at one."""
    if row.busy_value is not None:
        quiet, busy = (quantity(value, row.metric.unit) for value in (row.value, row.busy_value))
        return f"{quiet}, {busy} while the host is busy"
    if row.levels is None:
        return ""
    low, high = (quantity(level, row.metric.unit) for level in row.levels)
    digits, _, unit = low.partition(" ")
    return f"{digits if high.endswith(f' {unit}') else low} and {high}"


def value_cell(value: Value | None, words: Callable[[Value], str], tone: Tone = "plain") -> Cell:
    """A value in words; NOTHING if it is None."""
    return NOTHING if value is None else Cell(words(value), tone=tone)


def row_cell(row: Row | None, text: str = "", note: str = "", tone: Tone = "plain") -> Cell:
    """A row's value, or ``text`` for it, with its grade and a link to its details; NOTHING without a row."""
    if row is None:
        return NOTHING
    return Cell(text or quantity(row.value, row.metric.unit), note, tone, row.trust, row_name(row))


def limited_cell(evidence: Evidence, row: Row | None, words: Callable[[Row], str], tone: Tone = "strong") -> Cell:
    """A row in words with its share of its ceiling, above which it stands out; NOTHING without a row."""
    if row is None:
        return NOTHING
    share, limit = share_of(evidence, row), evidence.ceiling(row)
    over = limit is not None and exceeds(row, limit)
    return row_cell(row, words(row), percent(share) if share is not None else "", "problem" if over else tone)


def matrix(
    title: str,
    about: str,
    across: Mapping[Value, str],
    cells: Mapping[tuple[Key, Value], Cell],
    name: Callable[[Key], str] = str,
    corner: Column = LEFT,
    notes: tuple[str, ...] = (),
    drops: Sequence[int] = (),
    align: Literal["left", "right"] = "right",
) -> Table:
    """A row for each first key of the cells, named by ``name``, and a column for each of ``across`` with its title."""
    rows = tuple(
        (Cell(name(down), tone="strong"), *(cells.get((down, key), NOTHING) for key in across))
        for down in dict.fromkeys(down for down, _ in cells)
    )
    named = zip(across.values(), drops or [0] * len(across), strict=True)
    return Table(title, about, (corner, *(Column(words, align, drop) for words, drop in named)), rows, notes)


def table_of(
    title: str,
    about: str,
    each: Iterable[Value],
    *cells: tuple[str | Column, Callable[[Value], Cell]],
    notes: tuple[str, ...] = (),
) -> Table | None:
    """A row for each thing, a column for each of ``cells``: its title, and the cell of a thing. None without any."""
    rows = tuple(tuple(cell(one) for _, cell in cells) for one in each)
    titles = tuple(
        name if isinstance(name, Column) else Column(name, "right" if at else "left")
        for at, (name, _) in enumerate(cells)
    )
    return Table(title, about, titles, rows, notes) if rows else None


def bars_table(bars: Bars, tone: Tone = "plain") -> Table:
    """The figures of bars as a table, the labels first."""
    rows = tuple((Cell(bar.label, tone=tone), *bar.cells) for bar in bars.bars)
    return Table(bars.title, bars.about, (LEFT, *bars.columns), rows, bars.notes)


def benchmark_tables(info: BenchmarkInfo, measured: Sequence[Row], limit_of: LimitOf) -> tuple[Table, ...]:
    """The tables of a benchmark. Few metrics share one table; otherwise cases that measured the same ones share one.

    The first has the benchmark's title and question, the last how to read them and the notes.
    """
    cases: dict[str, list[Row]] = {}
    for row in measured:
        cases.setdefault(row.case_id, []).append(row)
    few = len({row.metric.name for row in measured}) <= MOST_METRICS_ACROSS
    kinds: dict[frozenset[str], list[Row]] = {}
    for members in list(cases.values())[:MOST_CASES]:
        kind = frozenset() if few else frozenset(row.metric.name for row in members)
        kinds.setdefault(kind, []).extend(members)
    values: dict[str, set[Param]] = {axis.name: set() for axis in info.axes}
    for name, value in (pair for row in measured for pair in row.params.items()):
        values.setdefault(name, set()).add(value)
    varying = [name for name, members in values.items() if len(members) > 1]
    tables = []
    for rows in kinds.values():
        # An axis that is 0 in all of these cases gets no column.
        axes = [axis for axis in varying if any(row.params.get(axis) not in (0, None) for row in rows)]
        tables.append(Table("", "", *_layout(axes, rows, limit_of)))
    reading = " ".join(info.about.partition("\nReading\n")[2].split())
    notes = [*([reading] if reading else []), *_notes(measured, varying, limit_of)]
    if len(cases) > MOST_CASES:
        notes.insert(0, f"{len(cases) - MOST_CASES} more cases: microbench export lists them all")
    tables[0] = replace(tables[0], title=f"{info.name}: {info.title}", question=question(info))
    tables[-1] = replace(tables[-1], notes=tuple(notes))
    return tuple(tables)


def question(info: BenchmarkInfo) -> str:
    """The question that a benchmark answers: the first line of its text."""
    return (info.about.strip().splitlines() or [""])[0]


def _layout(axes: list[str], measured: Sequence[Row], limit_of: LimitOf) -> Layout:
    """The columns and rows for these rows, whose cases differ in ``axes``."""
    metrics = list(dict.fromkeys(row.metric.name for row in measured))
    across = bool(axes) and len(metrics) <= MOST_METRICS_ACROSS
    if not across and len(axes) == 1 and len({row.params.get(axes[0]) for row in measured}) <= MOST_VALUES_ACROSS:
        return _values_across(axes[0], metrics, measured, limit_of)
    kinds = {row.metric.kind for row in measured}
    alike = len(kinds) == 1 and "count" not in kinds
    tails = TAILS[kinds.pop() if alike else ""] if not across or len(metrics) == 1 else ()
    titles = [Column(axis_title(name), "left") for name in axes]
    titles += map(Column, metrics) if across else [Column("metric", "left"), Column("value")]
    titles += [Column(name, drop=drop) for name, _, drop in tails]
    lines: dict[str | int, dict[str, Row]] = {}
    for number, row in enumerate(measured):
        lines.setdefault(row.case_id if across else number, {})[row.metric.name] = row
    blank = _blank_at_zero(axes, measured)
    rows = []
    for by_metric in lines.values():
        first = next(iter(by_metric.values()))
        cells = [
            NOTHING if name in blank and first.params.get(name) == 0
            else Cell(axis_value(name, first.params[name]) if name in first.params else "")
            for name in axes
        ]  # fmt: skip
        cells += [] if across else [Cell(first.metric.name)]
        figures = {name: figure(row, limit_of(row)) for name, row in by_metric.items()}
        cells += [figures.get(name, NOTHING) for name in (metrics if across else by_metric)]
        ends = (quantity(first.over_rounds(quantile), first.metric.unit) for _, quantile, _ in tails)
        rows.append((*cells, *(Cell(words, tone="quiet") for words in ends)))
    return tuple(titles), tuple(rows)


def _values_across(axis: str, metrics: list[str], measured: Sequence[Row], limit_of: LimitOf) -> Layout:
    values = list(dict.fromkeys(row.params[axis] for row in measured if axis in row.params))
    cells = {(row.metric.name, row.params.get(axis)): figure(row, limit_of(row)) for row in measured}
    # A narrow page drops every other one of five values; the first and the last stay.
    drops = [index % 2 if len(values) > MOST_VALUES_KEPT else 0 for index in range(len(values))]
    across = (Column(axis_value(axis, value), drop=drop) for value, drop in zip(values, drops, strict=True))
    first = Column(f"metric by {axis_title(axis)}", "left")
    return (first, *across), tuple(
        (Cell(name), *(cells.get((name, value), NOTHING) for value in values)) for name in metrics
    )


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
    two = [(row, levels_words(row)) for row in measured if row.levels and not row.busy]
    if two:
        named = []
        for row, words in two[:MOST_LEVELS]:
            place = [axis_value(name, value) for name, value in row.params.items() if name in varying]
            named.append(f"{row.metric.name} ({', '.join(place)}) {words}" if place else f"{row.metric.name} {words}")
        more = f" and {len(two) - MOST_LEVELS} more" if len(two) > MOST_LEVELS else ""
        notes.append(f"two levels: {'; '.join(named)}{more}")
    if any(row.busy for row in measured):
        notes.append("busy: the same in the rounds in which the host was busy, as a Python call and others show")
    fixed = {name: value for name, value in measured[0].params.items() if name not in varying}
    if fixed:
        notes.append(", ".join(f"{axis_title(name)} {axis_value(name, value)}" for name, value in fixed.items()))
    return notes + fact_notes(measured)


def fact_notes(found: Sequence[Row]) -> list[str]:
    """The facts of the cases over their rounds, a line for each name: its values, each with its number of cases."""
    by_name: dict[str, dict[tuple[str, str], Fact]] = {}
    for row in found:
        for outcome in row.outcomes:
            for fact in outcome.facts:
                by_name.setdefault(axis_title(fact.name), {})[row.case_id, fact_words(fact)] = fact
    return [f"{name}: {_values(facts)}" for name, facts in by_name.items()]


def _values(found: Mapping[tuple[str, str], Fact]) -> str:
    """Each value with its number of cases; many numbers become a range, many texts a count. Keys: case and words."""
    cases, facts = len({case for case, _ in found}), list(found.values())
    counts = Counter(words for _, words in found)
    numbers = {fact.value: fact_words(fact) for fact in facts if isinstance(fact.value, int | float)}
    if len(counts) > MOST_FACT_VALUES and len(numbers) == len({fact.value for fact in facts}):
        return f"{numbers[min(numbers)]} to {numbers[max(numbers)]}{in_cases(cases)}"
    if len(counts) > MOST_FACT_VALUES and not numbers:
        return f"{len(counts)} different ones{in_cases(cases)}"
    return ", ".join(f"{value}{in_cases(count)}" for value, count in counts.items())


def in_cases(count: int) -> str:
    """The number of cases in brackets if there are several."""
    return f" ({count} cases)" if count > 1 else ""


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
            by_number.setdefault(match["number"], {})[match["name"]] = fact_cell(members)
    several = {group: members for group, members in numbered.items() if max(map(len, members.values())) > 1}
    rows = tuple(
        (Cell(name), fact_cell(members), Cell(members[-1].source, tone="quiet"))
        for name, members in facts.items()
        if (match := NUMBERED.fullmatch(name)) is None or match["group"] not in several
    )
    titles = columns("fact", "value", "source", left=3, drop={"source": 1})
    first = Table(f"{info.name}: {info.title}", question(info), titles, rows)
    tables = [first]
    for group, by_number in several.items():
        across = list(dict.fromkeys(title for cells in by_number.values() for title in cells))
        # The first columns identify the device; a narrow page drops the last ones first.
        kept = (Column(axis_title(title), "left", max(at + 1 - KEPT_ACROSS, 0)) for at, title in enumerate(across))
        lines = ((Cell(key), *(cells.get(title, NOTHING) for title in across)) for key, cells in by_number.items())
        tables.append(Table("", "", (Column(group, "left"), *kept), tuple(lines)))
    return tuple(tables)


def fact_cell(rounds: Sequence[Fact]) -> Cell:
    """The values of a fact in each round, quiet if all are unknown."""
    words = ", ".join(dict.fromkeys(map(fact_words, rounds)))
    return Cell(words, tone="quiet" if all(fact.value is None for fact in rounds) else "plain")


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
    return Table("Not measured", "", columns("what", "case", "reason", left=3), tuple(rows)) if rows else None

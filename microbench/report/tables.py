"""Rows of a run as tables: those of a benchmark with what was checked and found out, and what was not measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from microbench.limits import Ceiling
from microbench.model import BenchmarkInfo, Fact, Outcome
from microbench.report.document import Cell, Column, Table, Tone
from microbench.report.shapes import LimitOf, shape, varying_axes
from microbench.stats import Row
from microbench.units import MISSING, as_time, axis_title, axis_value, quantity, short_size

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

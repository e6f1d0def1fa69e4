"""A comparison as a sheet: what cannot be compared first, then the changes by size, what they mean, what is open."""

from __future__ import annotations

import math
from collections.abc import Sequence

from microbench.analysis.evidence import Finding, row_name
from microbench.analysis.stats import Interval, Row
from microbench.compare.compare import BETTER, COUNTED, WORSE, Change, Comparison, Verdict
from microbench.compare.words import SUITE, Side, findings, methods_in_words, notices, summary
from microbench.core.model import Run
from microbench.core.units import MISSING, axis_title, axis_value, from_to, ratio, ratio_range
from microbench.report.document import Banner, Cell, Column, Histogram, Mark, Picture, Report, Section, Table, Tone
from microbench.report.heading import SIMULATED
from microbench.report.prediction import run_words
from microbench.report.tables import fact_words

MOST_LISTED = 40
MOST_BESIDE = 12
TONES: dict[Verdict, Tone] = {
    "slower": "problem", "farther": "problem", "faster": "good", "nearer": "good", "more": "note", "fewer": "note",
    "same": "quiet", "unclear": "advice", "incomparable": "warning",
}  # fmt: skip
# The picture's bins: a percent each, from 15 % less to 15 % more; what lies beyond is in the last one.
BIN, BINS = 1.01, 30
MARKS = {0.9: "−10 %", 0.95: "−5 %", 1.0: "as before", 1.05: "+5 %", 1.1: "+10 %"}
# No word of the machines is longer: the beginning of a UUID or commit tells it.
LONGEST = 24
# An adjusted ratio that rounds to the measured one says nothing more.
TELLING = 0.002


def sheet(comparison: Comparison, base: Side, new: Side, *, everything: bool = False) -> Report:
    """The comparison as a report; ``everything`` lists the figures that are the same or unclear, too. ``base`` and
    ``new`` say what the runs are called."""
    before, after = comparison.base, comparison.new
    changed = comparison.of(*WORSE, *BETTER, *COUNTED)
    pictures: list[Picture] = [*_incomparable(comparison), *_changes(changed, everything), *_moved(comparison)]
    if everything:
        pictures += [*_table("unclear", comparison.of("unclear")), *_table("same", comparison.of("same"))]
    told = Section(
        suite=SUITE,
        title="compare: NEW held against BASE",
        pictures=tuple(pictures),
        studies=(),
        findings=tuple(findings(comparison, base, new)),
        verdict=summary(comparison),
    )
    beside = [*_missing(comparison), *_differences(comparison)]
    besides = Section("both", "beside the figures: what else is not the same", tuple(beside), (), ())
    return Report(
        title="BASE and NEW",
        mark=SIMULATED if before.simulated or after.simulated else "",
        banners=tuple(_banner(one) for one in notices(comparison)),
        facts=(("BASE", _named(base, before)), ("NEW", _named(new, after))),
        environment=(),
        sections=(told, besides) if beside else (told,),
        problems=None,
        grades=(),
        footer=() if everything else ("every figure: --all    for a script: --fail-on slower ends with exit code 5",),
    )


def _named(side: Side, run: Run) -> str:
    words = run_words(run)
    driver = run.sessions[-1].environment.driver_version if run.sessions else None
    named = words if side.name in words else f"{side.name}: {words}"
    return f"{named}, driver {driver}" if driver else named


def _banner(notice: Finding) -> Banner:
    return Banner(notice.title, notice.text, tone="warning" if notice.severity == "warning" else "note")


# -- what changed ------------------------------------------------------------------------------------------------------


def _changes(changed: Sequence[Change], everything: bool) -> list[Table]:
    listed = changed if everything else changed[:MOST_LISTED]
    left = len(changed) - len(listed)
    more = (f"and {left} smaller changes: --all lists them",) if left else ()
    return _table("Changes, the largest first", listed, more)


def _table(title: str, found: Sequence[Change], more: tuple[str, ...] = ()) -> list[Table]:
    if not found:
        return []
    adjusted = any(map(_tells_more, found))
    columns = [Column("", "left"), Column("figure", "left"), Column("BASE → NEW"), Column("ratio"), Column("")]
    columns += [Column("adjusted")] if adjusted else []
    notes = ["ratio: NEW over BASE over all pairs of rounds, and its 95 % interval"]
    if adjusted:
        notes.append("adjusted decides: at one SM clock, or less the drift of the whole host")
    if any(one.shares for one in found):
        notes.append("shares of each GPU's own ceiling are compared")
    rows = tuple(_row(one, adjusted) for one in found)
    return [Table(title[:1].upper() + title[1:], "", tuple(columns), rows, (*notes, *more))]


def _row(one: Change, adjusted: bool) -> tuple[Cell, ...]:
    unit = one.metric.unit
    found = one.ratio if one.ratio is not None and 0 not in (one.base.value, one.new.value) else None
    return (
        Cell(one.verdict, tone=TONES[one.verdict]),
        Cell(figure_words(one.new), of=row_name(one.new)),
        Cell(from_to(one.base.value, one.new.value, unit)),
        _ratio(one, found),
        Cell(ratio_range(found.low, found.high) if found is not None else "", tone="quiet"),
        *([_ratio(one, one.judged if _tells_more(one) else None, one.by)] if adjusted else []),
    )


def _ratio(one: Change, found: Interval | None, note: str = "") -> Cell:
    return Cell(ratio(found.median), note, TONES[one.verdict]) if found is not None else Cell(MISSING, tone="quiet")


def _tells_more(one: Change) -> bool:
    """Whether the ratio that decided differs from the measured one by more than rounding."""
    if one.by == "value" or one.judged is None or one.ratio is None or 0 in (one.base.value, one.new.value):
        return False
    return abs(math.log(one.judged.median / one.ratio.median)) >= TELLING


def figure_words(row: Row) -> str:
    """A row for people: "link_copy bandwidth: h2d, pinned, size 64 MiB"."""
    params = [
        axis_value(name, value) if isinstance(value, str) else f"{axis_title(name)} {axis_value(name, value)}"
        for name, value in row.params.items()
    ]
    return f"{row.benchmark} {row.metric.name}" + (f": {', '.join(params)}" if params else "")


def _moved(comparison: Comparison) -> list[Histogram]:
    """How far each time and rate moved, what costs more to the right."""
    costs = [cost for one in comparison.changes if (cost := _cost(one)) is not None]
    if not costs:
        return []
    first_edge = BIN ** (-BINS // 2)
    counts = [0] * BINS
    for cost in costs:
        counts[min(max(math.floor(math.log(cost / first_edge, BIN)), 0), BINS - 1)] += 1
    marks = tuple(Mark(at, text) for at, text in MARKS.items())
    about = f"{len(costs)} times and rates, a percent to each column: to the right what became slower"
    return [Histogram("How far figures moved", about, first_edge, BIN, tuple(counts), marks)]


def _cost(one: Change) -> float | None:
    """What a figure costs in NEW over BASE, as it is judged; None for a count, and where it was not judged."""
    if one.judged is None or one.verdict == "incomparable" or one.metric.kind == "count" or one.reason == "rounds":
        return None
    return 1 / one.judged.median if one.metric.kind == "rate" else one.judged.median


# -- what cannot be compared -------------------------------------------------------------------------------------------


def _incomparable(comparison: Comparison) -> list[Table]:
    groups: dict[tuple[str, str], int] = {}
    for one in comparison.of("incomparable"):
        why = {"simulated": "one of them is simulated", "model": "no ceiling to hold it against"}.get(str(one.reason))
        key = one.new.benchmark, why or methods_in_words(comparison, one.new.benchmark)
        groups[key] = groups.get(key, 0) + 1
    rows = tuple((Cell(name), Cell(str(count)), Cell(why, tone="quiet")) for (name, why), count in groups.items())
    columns = (Column("benchmark", "left"), Column("figures"), Column("why", "left"))
    return [Table("Incomparable", "", columns, rows)] if rows else []


def _missing(comparison: Comparison) -> list[Table]:
    """How many figures only one of the runs has, by benchmark."""
    counted: dict[str, list[int]] = {}
    for side, rows in enumerate((comparison.only_base, comparison.only_new)):
        for row in rows:
            counted.setdefault(row.benchmark, [0, 0])[side] += 1
    lines = [
        (Cell(name), *(Cell(str(count) if count else MISSING) for count in both)) for name, both in counted.items()
    ]
    columns = (Column("benchmark", "left"), Column("only in BASE"), Column("only in NEW"))
    return _beside("Figures that one of them lacks", columns, lines)


def _differences(comparison: Comparison) -> list[Table]:
    columns = (Column("", "left"), Column("BASE", "left"), Column("NEW", "left"))
    lines = [
        (Cell(one.name), Cell(fact_words(one.base)[:LONGEST]), Cell(fact_words(one.new)[:LONGEST]))
        for one in comparison.differences
    ]
    return _beside("The machines", columns, lines)


def _beside(title: str, columns: tuple[Column, ...], lines: Sequence[tuple[Cell, ...]]) -> list[Table]:
    left = len(lines) - MOST_BESIDE
    notes = (f"and {left} more",) if left > 0 else ()
    return [Table(title, "", columns, tuple(lines[:MOST_BESIDE]), notes)] if lines else []

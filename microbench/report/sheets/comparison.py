"""Makes the report of a comparison: what cannot be compared, the changes by size, findings, and other differences."""

import math
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from microbench.analysis.evidence import row_name
from microbench.analysis.stats import Interval, Row
from microbench.comparison.compare import BETTER, COUNTED, WORSE, Change, Comparison, Verdict
from microbench.comparison.in_turn import InTurn
from microbench.comparison.words import SUITE, Side, findings, methods_in_words, notices, summary
from microbench.core.model import Run
from microbench.core.units import MISSING, from_to, percent, ratio, ratio_range
from microbench.report.curves import param_words
from microbench.report.document import Banner, Cell, Column, Histogram, Mark, Report, Section, Table, Tone, columns
from microbench.report.heading import SIMULATED, run_words
from microbench.report.tables import NOTHING, fact_words

MOST_LISTED = 40
MOST_DIFFERENCES = 12
TONES: dict[Verdict, Tone] = {
    "slower": "problem", "farther": "problem", "faster": "good", "nearer": "good", "more": "note", "fewer": "note",
    "same": "quiet", "within 10 %": "plain", "unclear": "advice", "incomparable": "warning",
}  # fmt: skip
# The histogram has bins of 1 %, from 15 % less to 15 % more; the outer bins also count what lies beyond.
BIN, BINS = 1.01, 30
MARKS = {0.9: "−10 %", 0.95: "−5 %", 1.0: "as before", 1.05: "+5 %", 1.1: "+10 %"}
# Facts of machines are cut here: the beginning of a UUID or commit is enough.
LONGEST = 24
# An adjusted ratio closer than this to the measured one is not listed.
TELLING = 0.002


def sheet(comparison: Comparison, base: Side, new: Side, *, everything: bool = False) -> Report:
    """The comparison as a report.

    ``base`` and ``new`` say what the runs are called; ``everything`` also lists figures that are the same or unclear.
    """
    before, after = comparison.base, comparison.new
    changed = comparison.of(*WORSE, *BETTER, *COUNTED)
    grouped = {id(change) for group in comparison.benchmarks for change in group.moved}
    single = changed if everything else [change for change in changed if id(change) not in grouped]
    listed = single if everything else single[:MOST_LISTED]
    left = len(single) - len(listed)
    more = (f"and {left} smaller changes: --all lists them",) if left else ()
    changes = [*_benchmarks(comparison, everything=everything), *_table("Changes, the largest first", listed, more)]
    unconfirmed = comparison.unconfirmed
    shown = unconfirmed if everything else unconfirmed[:MOST_LISTED]
    hidden = (f"and {len(unconfirmed) - len(shown)} smaller ones",) if len(shown) < len(unconfirmed) else ()
    changes += _table("Moved, but not confirmed: alternate sessions to confirm", shown, hidden)
    pictures: list[Table | Histogram] = [*_incomparable(comparison), *changes, *_moved(comparison)]
    if everything:
        unclear = [change for change in comparison.of("unclear") if change.reason != "unconfirmed"]
        pictures += [*_table("Unclear", unclear), *_table("Within 10 %", comparison.of("within 10 %"))]
        pictures += _table("Same", comparison.of("same"))
    section = Section(SUITE, "compare: NEW against BASE", tuple(pictures), (), tuple(findings(comparison, base, new)))
    differences = (*_missing(comparison), *_machines(comparison, "BASE", "NEW"))
    others = Section("both", "both: other differences between the runs", differences, (), ())
    verdict = summary(comparison)
    banners = [Banner(verdict.title, verdict.text, tone=verdict.severity)]
    banners += [
        Banner(notice.title, notice.text, tone="warning" if notice.severity == "warning" else "note")
        for notice in notices(comparison)
    ]
    return Report(
        title="BASE and NEW",
        mark=SIMULATED if before.simulated or after.simulated else "",
        banners=tuple(banners),
        facts=(("BASE", _named(base, before)), ("NEW", _named(new, after))),
        sections=(section, others) if differences else (section,),
        footer=() if everything else ("every figure: --all    for a script: --fail-on slower ends with exit code 5",),
    )


def in_turn_sheet(found: InTurn, a: str, b: str) -> Report:
    """Two sides measured in turn, as a report; ``a`` and ``b`` say what they are."""
    comparison = found.comparison
    order: tuple[Verdict, ...] = (*WORSE, *BETTER, *COUNTED, "unclear", "same", "incomparable")
    judged = sorted(
        zip(comparison.changes, found.smallest, strict=True),
        key=lambda one: (order.index(one[0].verdict), -one[0].size),
    )
    rows = []
    for change, smallest in judged:
        base, by = change.base.value, change.judged
        # The medians of both sides may be of two states of the host; the ratio is of pairs.
        after = base * by.median if by is not None else change.new.value
        found_from = percent(smallest) if smallest is not None else str(change.reason or "")
        rows.append((*_cells(change, base, after, by), Cell(found_from, tone="quiet")))
    titles = columns("", "figure", "A → B", "B / A", "", "would find", left=2)
    notes = (
        f"B / A: the mean over {found.pairs} pairs of rounds with its {percent(found.confidence)} interval; a pair in "
        "which the host changed its state does not count; A → B: the median of A, and B by this ratio",
        f"same: the interval stays within ±{percent(comparison.same_within)}; would find: the smallest change that 95 "
        "of 100 such measurements find",
    )
    not_measured = tuple((Cell(side), Cell(why, tone="warning")) for side, why in found.unmeasured)
    tables = (
        Table("Figures", "", titles, tuple(rows), notes),
        *_cut(Table("Not measured", "", columns("", "why", left=2), not_measured)),
        *_machines(comparison, "A", "B"),
    )
    verdict = summary(comparison)
    return Report(
        title="A and B in turn",
        mark=SIMULATED if comparison.new.simulated else "",
        banners=(Banner(verdict.title, verdict.text, tone=verdict.severity),),
        facts=(("A", a), ("B", b)),
        sections=(Section(SUITE, "ab: B against A", tables, (), ()),),
    )


def _machines(comparison: Comparison, base: str, new: str) -> list[Table]:
    facts = ((fact.name, fact_words(fact.base), fact_words(fact.new)) for fact in comparison.differences)
    rows = tuple((Cell(name), Cell(before[:LONGEST]), Cell(after[:LONGEST])) for name, before, after in facts)
    return _cut(Table("The machines", "", columns("", base, new, left=3), rows))


def _named(side: Side, run: Run) -> str:
    words = run_words(run)
    driver = run.sessions[-1].environment.driver_version if run.sessions else None
    named = words if side.name in words else f"{side.name}: {words}"
    return f"{named}, driver {driver}" if driver else named


def _table(title: str, changes: Sequence[Change], more: tuple[str, ...] = ()) -> list[Table]:
    if not changes:
        return []
    adjusted = any(map(_tells_more, changes))
    titles = columns("", "figure", "BASE → NEW", "ratio", "", *(["adjusted"] if adjusted else []), left=2)
    notes = ["ratio: NEW over BASE over all pairs of rounds, and its 95 % interval with what differs from run to run"]
    if adjusted:
        notes.append("adjusted decides: at the same SM clock, or less what the whole suite did")
        notes.append("beside an adjusted ratio, the interval of the measured one is that of its rounds alone")
    if any(change.reason in ("rounds", "grade") for change in changes):
        notes.append("figures with too few rounds or no sound grade: the interval is that of their rounds alone")
    if any(change.shares for change in changes):
        notes.append("shares of each GPU's own ceiling are compared")
    rows = []
    for change in changes:
        base, new, telling = change.base.value, change.new.value, _tells_more(change)
        # Where nothing was adjusted, the interval shown is the one that decided, with what differs from run to run.
        measured = None if 0 in (base, new) else change.ratio if telling else change.judged
        by = [_ratio_cell(change, change.judged if telling else None, change.by)] if adjusted else []
        rows.append((*_cells(change, base, new, measured), *by))
    return [Table(title, "", titles, tuple(rows), (*notes, *more))]


def _cells(change: Change, before: float, after: float, by: Interval | None) -> tuple[Cell, ...]:
    return (
        Cell(change.verdict, tone=TONES[change.verdict]),
        Cell(figure_words(change.new), of=row_name(change.new)),
        Cell(from_to(before, after, change.metric.unit)),
        _ratio_cell(change, by),
        Cell(ratio_range(by.low, by.high) if by is not None else "", tone="quiet"),
    )


def _benchmarks(comparison: Comparison, *, everything: bool) -> list[Table]:
    """One row for each benchmark of which several figures moved the same way."""
    rows = [
        (
            Cell(group.verdict, tone=TONES[group.verdict]),
            Cell(group.benchmark),
            Cell(f"{len(group.moved)} of {group.total} {group.kind}s"),
            Cell(ratio(group.ratio.median), tone=TONES[group.verdict]),
            Cell(ratio_range(group.ratio.low, group.ratio.high), tone="quiet"),
        )
        for group in comparison.benchmarks
    ]
    titles = columns("", "benchmark", "figures", "ratio", "", left=2)
    notes = ["ratio: NEW over BASE as judged: the median, and from the smallest to the largest"]
    notes += [] if everything else ["--all lists each figure"]
    return [Table("Benchmarks that moved", "", titles, tuple(rows), tuple(notes))] if rows else []


def _ratio_cell(change: Change, interval: Interval | None, note: str = "") -> Cell:
    return NOTHING if interval is None else Cell(ratio(interval.median), note, TONES[change.verdict])


def _tells_more(change: Change) -> bool:
    """True if the ratio that decided differs from the measured one by more than rounding."""
    zero = 0 in (change.base.value, change.new.value)
    if change.by == "value" or change.judged is None or change.ratio is None or zero:
        return False
    return abs(math.log(change.judged.median / change.ratio.median)) >= TELLING


def figure_words(row: Row) -> str:
    """A row in words: "link_copy bandwidth: h2d, pinned, size 64 MiB"."""
    params = [param_words(name, value) for name, value in row.params.items()]
    return f"{row.benchmark} {row.metric.name}" + (f": {', '.join(params)}" if params else "")


def _moved(comparison: Comparison) -> list[Histogram]:
    """How far each time and rate that was judged moved; slower figures are on the right."""
    costs = [
        1 / change.judged.median if change.metric.kind == "rate" else change.judged.median
        for change in comparison.changes
        if change.judged is not None
        if change.verdict != "incomparable" and change.reason != "rounds" and change.metric.kind != "count"
    ]
    if not costs:
        return []
    first_edge = BIN ** (-BINS // 2)
    counts = [0] * BINS
    for cost in costs:
        counts[min(max(math.floor(math.log(cost / first_edge, BIN)), 0), BINS - 1)] += 1
    marks = tuple(Mark(at, text) for at, text in MARKS.items())
    about = f"{len(costs)} times and rates, 1 % per column; slower figures are on the right"
    return [Histogram("How far figures moved", about, first_edge, BIN, tuple(counts), marks)]


def _incomparable(comparison: Comparison) -> list[Table]:
    reasons = {"simulated": "one of them is simulated", "model": "there is no ceiling to compare it with"}
    counts = Counter(
        (change.new.benchmark, reasons.get(str(change.reason)) or methods_in_words(comparison, change.new.benchmark))
        for change in comparison.of("incomparable")
    )
    rows = tuple((Cell(name), Cell(str(count)), Cell(why, tone="quiet")) for (name, why), count in counts.items())
    titles = (*columns("benchmark", "figures"), Column("why", "left"))
    return [Table("Incomparable", "", titles, rows)] if rows else []


def _missing(comparison: Comparison) -> list[Table]:
    """How many figures only one of the runs has, by benchmark."""
    counts: dict[str, list[int]] = {}
    for side, members in enumerate((comparison.only_base, comparison.only_new)):
        for row in members:
            counts.setdefault(row.benchmark, [0, 0])[side] += 1
    told = ((name, (str(count) if count else MISSING for count in both)) for name, both in counts.items())
    rows = tuple((Cell(name), *map(Cell, both)) for name, both in told)
    return _cut(Table("Figures that only one run has", "", columns("benchmark", "only in BASE", "only in NEW"), rows))


def _cut(table: Table) -> list[Table]:
    """The table with its first rows, and how many more there are; nothing without any."""
    left = len(table.rows) - MOST_DIFFERENCES
    notes = (f"and {left} more",) if left > 0 else ()
    return [replace(table, rows=table.rows[:MOST_DIFFERENCES], notes=notes)] if table.rows else []

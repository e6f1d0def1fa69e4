"""The recorded runs as a table: date, run, device, suites, findings, and what a person called them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from microbench.analysis.evidence import SEVERITIES, Severity
from microbench.core.units import quantity, spread
from microbench.report.curves import nice_step, short
from microbench.report.document import (
    GRADES,
    SERIES_TONES,
    SEVERITY_MARKS,
    SUITE_TITLES,
    Cell,
    Column,
    Curve,
    Line,
    Mark,
    Report,
    Section,
    Study,
    Table,
    Tone,
)
from microbench.report.heading import SIMULATED
from microbench.runs.history import Entry
from microbench.runs.store import GROWING
from microbench.runs.trend import Point, by_series

MINUTE = 16
TONES = SERIES_TONES[:3]
WORST_FIRST: tuple[Severity, ...] = tuple(reversed(SEVERITIES))
UNKNOWN = "…"
COLUMNS = (
    Column("date (UTC)", "left"),
    Column("run", "left"),
    Column("device", "left"),
    Column("suites", "left", drop=2),
    Column("findings", "left", drop=1),
    Column("label", "left"),
)


def table(found: Sequence[Entry], *, title: str, more: int = 0) -> Table:
    """One line a run, what was noted about them below; ``more`` are the older runs that are not among them."""
    return Table(title, "", COLUMNS, tuple(_row(entry) for entry in found), tuple(_notes(found, more)))


def _run_name(entry: Entry) -> str:
    return entry.path.stem.rpartition("-")[2] or entry.path.stem


def _row(entry: Entry) -> tuple[Cell, ...]:
    head, run = entry.head, Cell(_run_name(entry), tone="first")
    if head.problem:  # `show` tells why; here it would take the room of all the others
        return Cell(""), run, Cell("unreadable", tone="problem"), Cell(""), Cell(""), Cell(entry.remarks.label)
    devices = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in head.devices.items())
    return (
        Cell(head.started_at[:MINUTE].replace("T", " ")),
        run,
        Cell(devices or "no GPU", "SIMULATED" if head.simulated and "SIMULATED" not in devices else ""),
        Cell(" ".join(head.suites), tone="quiet"),
        _findings(entry.counts, unfinished=entry.path.suffix == GROWING),
        Cell(entry.remarks.label, tone="strong"),
    )


def _findings(counts: Mapping[str, int] | None, *, unfinished: bool) -> Cell:
    """How many of each severity, in the tone of the worst."""
    seen = [name for name in WORST_FIRST if counts and counts.get(name)]
    words = " ".join(f"{SEVERITY_MARKS[name]}{(counts or {})[name]}" for name in seen)
    tone: Tone = seen[0] if seen else "quiet"
    return Cell(UNKNOWN if counts is None else words or "none", "unfinished" if unfinished else "", tone)


def _notes(found: Sequence[Entry], more: int) -> list[str]:
    seen = {name for entry in found for name in entry.counts or ()}
    legend = "  ".join(f"{SEVERITY_MARKS[name]} {name}" for name in WORST_FIRST if name in seen)
    uncounted = sum(entry.counts is None and not entry.head.problem for entry in found)
    notes = [f"findings: {legend}"] if legend else []
    notes += [f"{_run_name(entry)}: {entry.remarks.note}" for entry in found if entry.remarks.note]
    if uncounted:
        notes.append(f"{UNKNOWN} {uncounted} not counted yet: ask again, or show the run")
    if more:
        notes.append(f"{more} older runs are not listed: --last N or --all")
    return notes


# A figure over the recorded runs as a sheet: a curve with each run's interval, and the newest runs as a table.


# What changes by less than this shall not look as if it went up and down.
LEAST_SPAN = 0.05
Y_STEPS = 4
X_TICKS = 6
DAY, MINUTE = 10, 16
Series = Mapping[tuple[str, str], Sequence[Point]]


def sheet(metric: str, found: Sequence[Point], labels: Mapping[str, str], *, looked_at: int, table_rows: int) -> Report:
    """Points of up to three cases, oldest first, as a report. ``labels`` are the runs' own, ``looked_at`` is how many
    runs were asked; the table has the newest ``table_rows`` points."""
    real = [point for point in found if not point.simulated]
    series = by_series(real or found)
    newest = sorted(series, key=lambda key: series[key][-1].started_at, reverse=True)
    drawn = {key: series[key] for key in newest[: len(TONES)]}
    left_out = [f"{device}, {case}" for device, case in newest[len(TONES) :]]
    facts = [(_series_name(key, series), _summary(members)) for key, members in drawn.items()]
    if real and len(real) < len(found):
        left_out.append(f"{len(found) - len(real)} {SIMULATED} figures: they say nothing about a real GPU")
    facts += [("not drawn", name) for name in left_out]
    facts.append(("runs", f"{len({point.run for point in found})} of the {looked_at} newest have it"))
    seen = {point.trust for members in drawn.values() for point in members}
    suite = metric.partition("_")[0]
    study = Study(metric, (_table(drawn, series, labels, table_rows),))
    return Report(
        title=f"trend of {metric}",
        mark="" if real else SIMULATED,
        banners=(),
        facts=tuple(facts),
        environment=(),
        sections=(Section(suite, SUITE_TITLES.get(suite, suite), (_curve(metric, drawn, series),), (study,), ()),),
        problems=None,
        grades=tuple(grade for grade in GRADES if grade in seen),
        footer=("whether two runs differ: microbench compare RUN RUN",),
    )


def _series_name(key: tuple[str, str], series: Series) -> str:
    """A series by what tells it apart from the others: its device, its case, or both."""
    device, case = key
    several_devices, several_cases = (len({other[part] for other in series}) > 1 for part in (0, 1))
    inside = case.partition("[")[2].rstrip("]") or case
    return f"{device}, {inside}" if several_devices and several_cases else inside if several_cases else device


def _summary(members: Sequence[Point]) -> str:
    values = [point.interval.median for point in _alike(members)]
    unit = members[-1].unit
    if len(values) == 1:
        return quantity(values[0], unit)
    middle, low, high = float(np.median(values)), min(values), max(values)
    return (
        f"{quantity(values[-1], unit)} in the newest of {len(values)}; in the median {quantity(middle, unit)}, "
        f"from {quantity(low, unit)} to {quantity(high, unit)}"
    )


def _alike(members: Sequence[Point]) -> list[Point]:
    """Those measured by the newest one's method: figures of another are no measure for it."""
    newest = members[-1]
    return [point for point in members if (point.version, point.unit) == (newest.version, newest.unit)]


def _curve(metric: str, drawn: Series, series: Series) -> Curve:
    """One place for each session, in their order in time: runs come in bursts, and a burst is what one looks at."""
    moments = sorted({(point.started_at, point.run) for members in drawn.values() for point in members})
    places = {moment: float(index) for index, moment in enumerate(moments)}
    lines = []
    for tone, (key, members) in zip(TONES, drawn.items(), strict=False):
        at = [places[point.started_at, point.run] for point in members]
        middle = tuple((x, point.interval.median) for x, point in zip(at, members, strict=True))
        lines.append(Line(_series_name(key, series) if len(drawn) > 1 else "", middle, tone))
        for x, point in zip(at, members, strict=True):
            lines.append(Line("", ((x, point.interval.low), (x, point.interval.high)), tone))
    unit = next(iter(drawn.values()))[0].unit
    return Curve(
        title=f"{metric} over {len(moments)} sessions",
        about="Each upright line is a 95 % interval.",
        x_title="UTC",
        lines=tuple(lines),
        x_ticks=_dates([moment for moment, _ in moments]),
        y_ticks=_figures([y for line in lines for _, y in line.points], unit),
        x_log=False,
        y_log=False,
        marks=_methods(drawn, places),
    )


def _methods(drawn: Series, places: Mapping[tuple[str, str], float]) -> tuple[Mark, ...]:
    """Where a benchmark's method became another one: figures on both sides are not of one kind."""
    marks = {}
    for members in drawn.values():
        for before, after in pairwise(members):
            if before.version != after.version:
                marks[places[after.started_at, after.run]] = f"method {after.version}"
    return tuple(Mark(at, text) for at, text in sorted(marks.items()))


def _dates(moments: Sequence[str]) -> tuple[Mark, ...]:
    """Some of the moments with their day, or with their time where all are of one day."""
    one_day = len({moment[:DAY] for moment in moments}) == 1
    step = max(1, math.ceil(len(moments) / X_TICKS))
    return tuple(
        Mark(float(index), moments[index][:MINUTE].replace("T", " ") if one_day else moments[index][:DAY])
        for index in range(0, len(moments), step)
    )


def _figures(values: Sequence[float], unit: str) -> tuple[Mark, ...]:
    """Round numbers around the values, never closer than would blow up nothing."""
    low, high = min(values), max(values)
    middle = (low + high) / 2
    half = max((high - low) / 2, abs(middle) * LEAST_SPAN / 2)
    if half == 0:
        return (Mark(middle, quantity(middle, unit)),)
    step = nice_step(2 * half / Y_STEPS)
    first, last = math.floor((middle - half) / step), math.ceil((middle + half) / step)
    return tuple(Mark(index * step, short(index * step, unit)) for index in range(first, last + 1))


def _table(drawn: Series, series: Series, labels: Mapping[str, str], most: int) -> Table:
    """The newest points first, each beside the median of its series' newest method."""
    alike = {key: _alike(members) for key, members in drawn.items()}
    middles = {key: float(np.median([point.interval.median for point in members])) for key, members in alike.items()}
    newest = sorted(
        ((point.started_at, point.run, key, point) for key, members in drawn.items() for point in members),
        key=lambda one: one[:3],
        reverse=True,
    )
    rows = []
    for _, _, key, point in newest[:most]:
        value = point.interval.median
        change = (value - middles[key]) / middles[key] if middles[key] else math.nan
        against = f"{change * 100:+.1f} %" if math.isfinite(change) else ""
        rows.append(
            (
                Cell(point.started_at[:MINUTE].replace("T", " ")),
                Cell(point.run.rpartition("-")[2] or point.run, tone="first"),
                Cell(_series_name(key, series), tone="quiet"),
                Cell(quantity(value, point.unit), spread(point.interval.half_width), trust=point.trust),
                Cell(against if point in alike[key] else f"method {point.version}", tone="quiet"),
                Cell(labels.get(point.run, ""), tone="strong"),
            )
        )
    columns = (
        Column("date (UTC)", "left"),
        Column("run", "left"),
        Column("of", "left", drop=2),
        Column("value"),
        Column("against the median", drop=1),
        Column("label", "left"),
    )
    notes = (f"{len(newest) - most} older ones are not listed",) if len(newest) > most else ()
    return Table("The newest runs", "", columns, tuple(rows), notes)

"""Makes the table of recorded runs (history), and the report of one metric over them (trend)."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from microbench.analysis.evidence import listed
from microbench.archive.history import Entry
from microbench.archive.store import GROWING
from microbench.archive.trend import Point, by_series
from microbench.core.units import plain, quantity
from microbench.report import document
from microbench.report.curves import nice_step, short
from microbench.report.document import (
    SERIES_TONES,
    WITHIN,
    Cell,
    Column,
    Curve,
    Line,
    Mark,
    Report,
    Study,
    Table,
    columns,
)
from microbench.report.heading import SIMULATED
from microbench.report.tables import spread_of

DAY, MINUTE = 10, 16  # characters of a time in ISO 8601
# The y axis spans at least this share of the value, so that noise does not look like a change.
LEAST_SPAN = 0.05
Y_STEPS = 4
X_TICKS = 6
MOST_NAMED = 3
TONES = SERIES_TONES[:3]
HISTORY_COLUMNS = columns("date (UTC)", "run", "device", "suites", "label", left=5, drop={"suites": 1})
OF, LABEL = Column("of", "left", drop=2), Column("label", "left")
TREND_COLUMNS = (*HISTORY_COLUMNS[:2], OF, Column("value"), Column("against the median", drop=1), LABEL)
Series = Mapping[tuple[str, str], Sequence[Point]]


def table(entries: Sequence[Entry], *, title: str, more: int = 0) -> Table:
    """One row a run, and the runs' notes below. ``more`` counts older runs that are not in ``entries``."""
    notes = [f"{_short_name(entry.path.stem)}: {entry.remarks.note}" for entry in entries if entry.remarks.note]
    if more:
        notes.append(f"{more} older runs are not listed: --last N or --all")
    rows = []
    for entry in entries:
        run, name, label = entry.run, _short_name(entry.path.stem), entry.remarks.label
        if run is None:  # `show` says why; the text would be too long for the table
            rows.append((Cell(""), Cell(name, tone="first"), Cell("unreadable", tone="problem"), Cell(""), Cell(label)))
            continue
        gpus = list({gpu.uuid: gpu.name for session in run.sessions for gpu in session.gpus}.values())
        devices = ", ".join(f"{gpus.count(gpu)} × {gpu}".removeprefix("1 × ") for gpu in dict.fromkeys(gpus))
        rows.append((
            Cell(run.sessions[0].started_at[:MINUTE].replace("T", " ")),
            Cell(name, "unfinished" if entry.path.suffix == GROWING else "", tone="first"),
            Cell(devices or "no GPU", SIMULATED if run.simulated and SIMULATED not in devices else ""),
            Cell(" ".join(dict.fromkeys(info.suite for info in run.benchmarks)), tone="quiet"),
            Cell(label, tone="strong"),
        ))  # fmt: skip
    return Table(title, "", HISTORY_COLUMNS, tuple(rows), tuple(notes))


def _short_name(run: str) -> str:
    return run.rpartition("-")[2] or run


def sheet(
    metric: str,
    points: Sequence[Point],
    labels: Mapping[str, str],
    unreadable: Sequence[str],
    *,
    looked_at: int,
    table_rows: int,
) -> Report:
    """A report of points, oldest first: a curve of up to three series, and a table of the newest ``table_rows`` points.

    ``labels`` are the users' labels by run, ``unreadable`` names runs, and ``looked_at`` counts the runs searched.
    """
    real = [point for point in points if not point.simulated]
    series = by_series(real or points)
    newest = sorted(series, key=lambda key: series[key][-1].started_at, reverse=True)
    drawn = {key: series[key] for key in newest[: len(TONES)]}
    left_out = [f"{device}, {case}" for device, case in newest[len(TONES) :]]
    if real and len(real) < len(points):
        left_out.append(f"{len(points) - len(real)} {SIMULATED} figures: they say nothing about a real GPU")
    names = list(map(plain, unreadable))
    if len(names) > MOST_NAMED:
        names[MOST_NAMED:] = [f"{len(names) - MOST_NAMED} more"]
    facts = [
        *((_series_name(key, series), _summary(members)) for key, members in drawn.items()),
        *(("not drawn", name) for name in left_out),
        ("runs", f"{len({point.run for point in points})} of the {looked_at} newest have it"),
        *([("unreadable", listed(names))] if names else []),
    ]
    grades = {point.row.trust for members in drawn.values() for point in members}
    suite = metric.partition("_")[0]
    runs = [_short_name(run) for run in list(dict.fromkeys(point.run for point in real or points))[-2:]]
    study = Study(metric, (_table(drawn, series, labels, table_rows),))
    title, pictures = document.SUITE_TITLES.get(suite, suite), (_curve(metric, drawn, series),)
    return Report(
        title=f"trend of {metric}",
        mark="" if real else SIMULATED,
        banners=(),
        facts=tuple(facts),
        sections=(document.Section(suite, title, pictures, (study,), ()),),
        grades=tuple(grade for grade in document.GRADES if grade in grades),
        footer=(f"whether the newest two differ: microbench compare {' '.join(runs)}",) if len(runs) > 1 else (),
    )


def _series_name(key: tuple[str, str], series: Series) -> str:
    """What distinguishes a series from the others: its device, its case, or both."""
    device, case = key
    several_devices, several_cases = (len({other[part] for other in series}) > 1 for part in (0, 1))
    inside = case.partition("[")[2].rstrip("]") or case
    return f"{device}, {inside}" if several_devices and several_cases else inside if several_cases else device


def _summary(members: Sequence[Point]) -> str:
    values, unit = [point.row.value for point in _same_method(members)], members[-1].row.metric.unit
    if len(values) == 1:
        return quantity(values[0], unit)
    middle, low, high = float(np.median(values)), min(values), max(values)
    return (
        f"{quantity(values[-1], unit)} in the newest of {len(values)}; in the median {quantity(middle, unit)}, "
        f"from {quantity(low, unit)} to {quantity(high, unit)}"
    )


def _same_method(members: Sequence[Point]) -> list[Point]:
    """The points measured by the newest one's method; others cannot be compared with it."""
    newest = members[-1].version, members[-1].row.metric.unit
    return [point for point in members if (point.version, point.row.metric.unit) == newest]


def _curve(metric: str, drawn: Series, series: Series) -> Curve:
    """A place for each session in order: runs come in bursts, which an axis of time would squeeze together."""
    moments = sorted({(point.started_at, point.run) for members in drawn.values() for point in members})
    places = {moment: float(index) for index, moment in enumerate(moments)}
    lines, marks = [], {}
    for tone, (key, members) in zip(TONES, drawn.items(), strict=False):
        at = [places[point.started_at, point.run] for point in members]
        middle = tuple((x, point.row.value) for x, point in zip(at, members, strict=True))
        lines.append(Line(_series_name(key, series) if len(drawn) > 1 else "", middle, tone))
        for x, point in zip(at, members, strict=True):
            lines.append(Line("", ((x, point.row.interval.low), (x, point.row.interval.high)), tone))
        for before, after in pairwise(members):
            if before.version != after.version:  # figures on both sides cannot be compared
                marks[places[after.started_at, after.run]] = f"method {after.version}"
    # Some of the moments with their day, or with their time if all are of one day.
    one_day = len({moment[:DAY] for moment, _ in moments}) == 1
    shown = list(enumerate(moment for moment, _ in moments))[:: max(1, math.ceil(len(moments) / X_TICKS))]
    dates = tuple(
        Mark(float(at), moment[:MINUTE].replace("T", " ") if one_day else moment[:DAY]) for at, moment in shown
    )
    unit = next(iter(drawn.values()))[0].row.metric.unit
    alone = any(point.row.within_process for members in drawn.values() for point in members)
    within = f", within its process for a figure with {WITHIN}" if alone else ""
    return Curve(
        title=f"{metric} over {len(moments)} sessions",
        about=f"Each upright line is a 95 % interval{within}.",
        x_title="UTC",
        lines=tuple(lines),
        x_ticks=dates,
        y_ticks=_y_ticks([y for line in lines for _, y in line.points], unit),
        x_log=False,
        y_log=False,
        marks=tuple(Mark(at, text) for at, text in sorted(marks.items())),
    )


def _y_ticks(values: Sequence[float], unit: str) -> tuple[Mark, ...]:
    """Round numbers around the values, spanning at least LEAST_SPAN of them."""
    low, high = min(values), max(values)
    middle = (low + high) / 2
    half = max((high - low) / 2, abs(middle) * LEAST_SPAN / 2)
    if half == 0:
        return (Mark(middle, quantity(middle, unit)),)
    step = nice_step(2 * half / Y_STEPS)
    first, last = math.floor((middle - half) / step), math.ceil((middle + half) / step)
    return tuple(Mark(index * step, short(index * step, unit)) for index in range(first, last + 1))


def _table(drawn: Series, series: Series, labels: Mapping[str, str], most: int) -> Table:
    """The newest points first, each with its distance from the median of its series' newest method."""
    medians = {key: float(np.median([point.row.value for point in _same_method(drawn[key])])) for key in drawn}
    points = [(key, point) for key, members in drawn.items() for point in members]
    newest_first = sorted(points, key=lambda pair: (pair[1].started_at, pair[1].run, pair[0]), reverse=True)
    rows = []
    for key, point in newest_first[:most]:
        value, median = point.row.value, medians[key]
        against = f"{(value - median) / median * 100:+.1f} %" if median else ""
        if point not in _same_method(drawn[key]):
            against = f"method {point.version}"
        rows.append((
            Cell(point.started_at[:MINUTE].replace("T", " ")),
            Cell(_short_name(point.run), tone="first"),
            Cell(_series_name(key, series), tone="quiet"),
            Cell(quantity(value, point.row.metric.unit), spread_of(point.row), trust=point.row.trust),
            Cell(against, tone="quiet"),
            Cell(labels.get(point.run, ""), tone="strong"),
        ))  # fmt: skip
    notes = (f"{len(points) - len(rows)} older ones are not listed",) if len(points) > len(rows) else ()
    return Table("The newest runs", "", TREND_COLUMNS, tuple(rows), notes)

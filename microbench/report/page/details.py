"""What the page tells of a single figure when asked: its spread, limit, rounds and checks, and how its samples lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.evidence import Evidence, row_name
from microbench.analysis.stats import Row, values_of
from microbench.core.model import PerCall, Telemetry
from microbench.core.units import axis_title, axis_value, percent, plain, quantity, spread, wall
from microbench.report.document import TRUST_MARKS, UNKNOWN_MARK, Histogram, Mark
from microbench.report.page.plots import columns
from microbench.report.tables import QUANTILES, TAILS, fact_notes
from microbench.report.view import GRADES

CLOCKS = {"host": "the host's clock", "device": "the GPU's clock", "counter": "a counter"}
BINS = 40
MOST_ROUNDS = 10
LONGEST_WORDS = 2000
# Less than this apart and samples are one value: its last digits are those of a division.
ONE_VALUE = 1 + 1e-9


class Picture(msgspec.Struct, frozen=True):
    """A histogram to draw: the counts of its equally wide columns, and its marks as (percent, words, line, late)."""

    title: str
    counts: tuple[int, ...]
    marks: tuple[tuple[float, str, int, bool], ...]


class Detail(msgspec.Struct, frozen=True):
    """What is told of one figure, in words. ``grade`` is its mark, the name of its colour and what the grade means."""

    title: str
    case: str
    about: str
    value: str
    spread: str
    grade: tuple[str, str, str]
    words: tuple[tuple[str, str], ...]
    pictures: tuple[Picture, ...]


class Details(NamedTuple):
    """Details of all figures of a run, and where each row's is found: by GPU (None: the host's) and name."""

    found: list[Detail]
    places: dict[tuple[str | None, str], int]

    def place(self, device: str | None, name: str) -> int | None:
        """Where the detail of a row is among ``found``, that of the host's row if the GPU has none."""
        return self.places.get((device, name), self.places.get((None, name)))


def details(groups: Sequence[Evidence]) -> Details:
    """Details of each newest row of each GPU."""
    told = Details([], {})
    for group in groups:
        for row in group.all_rows():
            if (row.device, row_name(row)) not in told.places:
                told.places[row.device, row_name(row)] = len(told.found)
                told.found.append(_detail(row, group))
    return told


def _detail(row: Row, group: Evidence) -> Detail:
    mark, tone = TRUST_MARKS.get(row.trust, UNKNOWN_MARK)
    words = [(name, plain(text, LONGEST_WORDS)) for name, text in _words(row, group) if text]
    return Detail(
        title=plain(f"{row.benchmark}: {row.metric.name}"),
        case=plain(row.case_id, LONGEST_WORDS),
        about=plain(row.metric.about, LONGEST_WORDS),
        value=quantity(row.value, row.metric.unit),
        spread=spread(row.interval.half_width),
        grade=(mark, tone, f"{row.trust}: {GRADES[row.trust]}"),
        words=tuple(words),
        pictures=tuple(_pictures(row)),
    )


def _words(row: Row, group: Evidence) -> Iterator[tuple[str, str]]:
    unit, measurement = row.metric.unit, row.measurement
    for name, value in row.params.items():
        yield axis_title(name), axis_value(name, value)
    yield "95 % interval", f"{quantity(row.interval.low, unit)} to {quantity(row.interval.high, unit)}"
    for tail in TAILS.get(row.metric.kind, TAILS[""]):
        yield tail, quantity(row.over_rounds(QUANTILES[tail]), unit)
    yield from _rounds(row)
    limit = group.ceiling(row)
    if limit is not None:
        share = f"{percent(row.value / limit.value)} of " if limit.unit == unit else ""
        yield "limit", f"{share}{quantity(limit.value, limit.unit)}, {', '.join((limit.source, *limit.assumptions))}"
    calls = f", each of {measurement.calls_per_sample} calls" if measurement.calls_per_sample > 1 else ""
    yield "samples", f"{sum(one.n for one in row.summaries)} taken{calls}"
    yield "timed by", CLOCKS.get(measurement.clock, measurement.clock)
    yield "checked", measurement.verified or ""
    for note in fact_notes([row]):
        name, _, words = note.partition(": ")
        yield name, words
    yield from _machine([one for outcome in row.outcomes for one in outcome.telemetry.values()])
    yield "took", wall(sum(outcome.wall_s for outcome in row.outcomes))


def _rounds(row: Row) -> Iterator[tuple[str, str]]:
    count = len(row.summaries)
    if count > 1:
        shown = [quantity(one.interval.median, row.metric.unit) for one in row.summaries[:MOST_ROUNDS]]
        more = f" and {count - MOST_ROUNDS} more" if count > MOST_ROUNDS else ""
        yield f"{count} rounds", " · ".join(shown) + more


def _machine(told: Sequence[Telemetry]) -> Iterator[tuple[str, str]]:
    """The GPU's state meanwhile, least to most over the rounds."""
    clocks = [one for state in told for one in (state.sm_clock_begin_hz, state.sm_clock_end_hz)]
    yield "SM clock", _range(clocks, "Hz")
    yield "temperature", _range([state.temperature_c for state in told], "°C")
    yield "power", _range([state.power_w for state in told], "W")
    yield "clock held down by", ", ".join(dict.fromkeys(reason for state in told for reason in state.throttle_reasons))


def _range(values: Sequence[float | None], unit: Literal["Hz", "°C", "W"]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    words = dict.fromkeys(quantity(value, unit) for value in (min(known), max(known)))
    return " to ".join(words)


def _pictures(row: Row) -> Iterator[Picture]:
    samples = np.concatenate(
        [
            values_of(row.metric, one)
            for outcome in row.outcomes
            for one in outcome.measurements
            if one.metric == row.metric.name and one.n
        ]
    )
    found = histogram(samples, row.metric.unit)
    rounds = f" of {len(row.outcomes)} rounds" if len(row.outcomes) > 1 else ""
    if found is not None:
        yield _picture(f"{len(samples)} samples{rounds}", found)
    calls = row.summaries[0].per_call
    if calls is not None:
        yield _picture(f"{calls.n} single calls" + (" of the first round" if rounds else ""), _single_calls(calls, row))


def histogram(samples: np.typing.NDArray[np.floating], unit: str) -> Histogram | None:
    """Samples in BINS logarithmic bins from the least to the most; None for fewer than two different values above 0."""
    low, high = float(samples.min()), float(samples.max())
    if not (low > 0 and high > low * ONE_VALUE and math.isfinite(high)):
        return None
    ratio = (high / low) ** (1 / BINS)
    counts, _ = np.histogram(np.log(samples / low), BINS, (0.0, math.log(high / low)))
    middle = float(np.median(samples))
    marks = (
        Mark(low, quantity(low, unit)),
        Mark(middle, f"median {quantity(middle, unit)}"),
        Mark(high, quantity(high, unit)),
    )
    return Histogram("", "", low, ratio, tuple(int(count) for count in counts), marks)


def _single_calls(calls: PerCall, row: Row) -> Histogram:
    """Without the empty bins after the last call."""
    last = max((index for index, count in enumerate(calls.counts) if count), default=0)
    quantiles = (("p50", calls.p50), ("p90", calls.p90), ("p99", calls.p99), ("worst", calls.max))
    marks = tuple(Mark(value, f"{name} {quantity(value, row.metric.unit)}") for name, value in quantiles)
    return Histogram("", "", calls.first_edge, calls.ratio, calls.counts[: last + 1], marks)


def _picture(title: str, drawn: Histogram) -> Picture:
    marks = tuple((round(place.at, 2), place.text, place.line, place.late) for place in columns(drawn).marks)
    return Picture(title, drawn.counts, marks)

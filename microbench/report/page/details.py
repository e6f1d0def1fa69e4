"""Gathers what the page shows about a single figure: its spread, limit, rounds and checks, and its samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from microbench.analysis.evidence import Evidence, row_name
from microbench.analysis.stats import Row, values_of
from microbench.core.units import axis_title, axis_value, percent, plain, quantity, wall
from microbench.report.document import GRADES, TRUST_MARKS
from microbench.report.tables import TAILS, call_quantiles, fact_notes, levels_words, spread_of

CLOCKS = {"host": "the host's clock", "device": "the GPU's clock", "counter": "a counter"}
BINS = 40
MOST_ROUNDS = 10
LONGEST_WORDS = 2000
# Samples closer together than this ratio are the same value.
ONE_VALUE = 1 + 1e-9


# What the page's script shows: a figure, and the counts of equally wide columns over a logarithmic axis.
Detail = dict[str, Any]
# The index of a row's detail by its name; None without one.
Place = Callable[[str], int | None]


def details(groups: Sequence[Evidence], found: list[Detail]) -> Callable[[str | None], Place]:
    """Adds details of each newest row of each GPU to ``found``.

    Returns what finds the rows of a GPU (None: the host); it finds the host's row if the GPU has none of that name.
    """
    places: dict[tuple[str | None, str], int] = {}
    for group in groups:
        for row in group.all_rows():
            if (row.device, row_name(row)) not in places:
                places[row.device, row_name(row)] = len(found)
                found.append({
                    "title": plain(f"{row.benchmark}: {row.metric.name}"),
                    "case": plain(row.case_id, LONGEST_WORDS),
                    "about": plain(row.metric.about, LONGEST_WORDS),
                    "value": quantity(row.value, row.metric.unit),
                    "spread": spread_of(row),
                    "grade": (*TRUST_MARKS[row.trust], f"{row.trust}: {GRADES[row.trust]}"),  # mark, tone, meaning
                    "words": [(name, plain(text, LONGEST_WORDS)) for name, text in _words(row, group) if text],
                    "pictures": list(_pictures(row)),
                })  # fmt: skip
    return lambda device: lambda name: places.get((device, name), places.get((None, name)))


def _words(row: Row, group: Evidence) -> Iterator[tuple[str, str]]:
    unit, measurement = row.metric.unit, row.measurement
    for name, value in row.params.items():
        yield axis_title(name), axis_value(name, value)
    covered = " within this process" if row.within_process else ""
    yield "95 % interval", f"{quantity(row.interval.low, unit)} to {quantity(row.interval.high, unit)}{covered}"
    if (known := row.deviation) is not None:
        yield "other processes", f"standard deviation {percent(known.share)}, from {known.rounds} rounds of other runs"
    yield "two levels", levels_words(row)
    for tail, quantile, _ in TAILS.get(row.metric.kind, TAILS[""]):
        yield tail, quantity(row.over_rounds(quantile), unit)
    rounds = len(row.summaries)
    if rounds > 1:
        medians = [quantity(summary.interval.median, unit) for summary in row.summaries[:MOST_ROUNDS]]
        more = f" and {rounds - MOST_ROUNDS} more" if rounds > MOST_ROUNDS else ""
        yield f"{rounds} rounds", " · ".join(medians) + more
    limit = group.ceiling(row)
    if limit is not None:
        share = f"{percent(row.value / limit.value)} of " if limit.unit == unit else ""
        yield "limit", f"{share}{quantity(limit.value, limit.unit)}, {', '.join((limit.source, *limit.assumptions))}"
    calls = f", each of {measurement.calls_per_sample} calls" if measurement.calls_per_sample > 1 else ""
    yield "samples", f"{sum(summary.n for summary in row.summaries)} taken{calls}"
    yield "timed by", CLOCKS.get(measurement.clock, measurement.clock)
    yield "checked", measurement.verified or ""
    for note in fact_notes([row]):
        name, _, words = note.partition(": ")
        yield name, words
    # The GPU's state meanwhile, as ranges over the rounds.
    states = [state for outcome in row.outcomes for state in outcome.telemetry.values()]
    clocks = [clock for state in states for clock in (state.sm_clock_begin_hz, state.sm_clock_end_hz)]
    yield "SM clock", _range(clocks, "Hz")
    yield "temperature", _range([state.temperature_c for state in states], "°C")
    yield "power", _range([state.power_w for state in states], "W")
    reasons = dict.fromkeys(reason for state in states for reason in state.throttle_reasons)
    yield "clock held down by", ", ".join(reasons)
    yield "took", wall(sum(outcome.wall_s for outcome in row.outcomes))


def _range(values: Sequence[float | None], unit: Literal["Hz", "°C", "W"]) -> str:
    known = [value for value in values if value is not None]
    ends = (min(known), max(known)) if known else ()
    return " to ".join(dict.fromkeys(quantity(value, unit) for value in ends))


def _pictures(row: Row) -> Iterator[Detail]:
    """Histograms of the samples and of single calls; ``marks`` are (percent of the width, words)."""
    unit = row.metric.unit
    every = (one for outcome in row.outcomes for one in outcome.measurements)
    samples = np.concatenate([values_of(row.metric, one) for one in every if one.metric == row.metric.name and one.n])
    several = len(row.outcomes) > 1
    low, high = float(samples.min()), float(samples.max())
    if low > 0 and high > low * ONE_VALUE and math.isfinite(high):  # two different values above 0
        length = math.log(high / low)
        places = np.minimum((np.log(samples / low) * (BINS / length)).astype(np.int64), BINS - 1)
        middle = float(np.median(samples))
        at = round(math.log(middle / low) / length * 100, 1)
        marks = [(0.0, quantity(low, unit)), (at, f"median {quantity(middle, unit)}"), (100.0, quantity(high, unit))]
        title = f"{len(samples)} samples{f' of {len(row.outcomes)} rounds' if several else ''}"
        yield {"title": title, "counts": np.bincount(places, minlength=BINS).tolist(), "marks": marks}
    calls = row.summaries[0].per_call
    if calls is not None:  # without the empty bins after the last one
        bins = max((index for index, count in enumerate(calls.counts) if count), default=0) + 1
        step = 100 / math.log(calls.ratio) / bins
        marks = [
            (min(max(round(math.log(at / calls.first_edge) * step, 1), 0.0), 100.0), f"{name} {quantity(at, unit)}")
            for name, at in call_quantiles(calls)
            if at > 0
        ]
        title = f"{calls.n} single calls{' of the first round' if several else ''}"
        yield {"title": title, "counts": calls.counts[:bins], "marks": marks}

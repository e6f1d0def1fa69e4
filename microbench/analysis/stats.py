"""THE STATISTICS: raw samples -> value, confidence interval over samples and over rounds, tails, trust grade."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.quantiles import (
    ClockState,
    FloatArray,
    Quantiles,
    clock_state,
    is_arithmetic,
    median_ranks,
    of_rows,
    quantile,
    work_of,
)
from microbench.core.model import Measurement, Metric, Outcome, PerCall, Run, Telemetry

Trust = Literal["stable", "steady", "noisy", "throttled", "single", "below floor", "unverified"]

MINIMUM_SAMPLES = 10
STABLE_ROUNDS = 3
STEADY_HALF_WIDTH = 0.03
STABLE_HALF_WIDTH = 0.10
FLOORS_PER_SAMPLE = 5
# Samples that wait for measurements of as many: some 10 MB.
MOST_WAITING = 1 << 20


class Interval(msgspec.Struct, frozen=True, gc=False):
    """A value with the interval that holds it at quantiles.CONFIDENCE."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the value; infinite for a value of 0 with a width."""
        if self.high == self.low:
            return 0.0
        return (self.high - self.low) / 2 / abs(self.median) if self.median else math.inf

    def overlaps(self, other: Interval) -> bool:
        """True if the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


def median_interval(values: Sequence[float] | FloatArray, step: float = 0.0) -> Interval:
    """Median and its order-statistics interval; a zero-width interval counts as one ``step`` of the clock."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    low_rank, high_rank = median_ranks(len(ordered))
    median, low, high = quantile(ordered, 0.5), float(ordered[low_rank]), float(ordered[high_rank])
    if high - low < step:
        low, high = median - step / 2, median + step / 2
    return Interval(median, low, high)


# Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom (any statistics table); beyond, the normal's.
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def rounds_interval(rounds: Sequence[Interval]) -> Interval:
    """One interval over the rounds' medians.

    Student's t on the medians of fresh processes, never narrower than the middle round's own interval: with three
    rounds an order-statistics interval would reach 75 % only.
    """
    if len(rounds) == 1:
        return rounds[0]
    medians = np.array([one.median for one in rounds])
    middle = _median(medians)
    factor = STUDENT_T[len(rounds) - 2] if len(rounds) - 2 < len(STUDENT_T) else 1.96
    between = factor * float(np.std(medians, ddof=1)) / math.sqrt(len(rounds))
    within = _median(np.array([(one.high - one.low) / 2 for one in rounds]))
    half = max(between, within)
    return Interval(middle, middle - half, middle + half)


def _median(values: FloatArray) -> float:
    """What NumPy's median is, in a tenth of its time."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if math.isnan(ordered[-1]):  # they are sorted to the end
        return math.nan
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def values_of(metric: Metric, measurement: Measurement) -> FloatArray:
    """Samples as values in the metric's unit: per call for a time or count, work over time for a rate.

    Raises ValueError for a rate whose work is not counted.
    """
    samples: FloatArray = np.array(measurement.values) / measurement.calls_per_sample
    return samples if metric.kind != "rate" else work_of(metric, measurement) / samples


class Summary(msgspec.Struct, frozen=True, gc=False):
    """One measurement in numbers, in the metric's unit. ``tail`` is p99 of a cost, p1 of a rate; percentiles come
    from single calls where those were stamped, else from the samples."""

    n: int
    interval: Interval
    p1: float
    p90: float
    p99: float
    min: float
    max: float
    tail: float
    trust: Trust
    per_call: PerCall | None = None


def _trust(measurement: Measurement, raw_median: float, interval: Interval, state: ClockState) -> Trust:
    if measurement.needs_verification and not measurement.verified:
        return "unverified"
    if state.throttled:
        return "throttled"
    floor_s = measurement.floor_s
    if floor_s and measurement.clock != "counter" and raw_median < FLOORS_PER_SAMPLE * floor_s:
        return "below floor"
    if measurement.n < MINIMUM_SAMPLES:
        return "single"
    return "steady" if interval.half_width <= STEADY_HALF_WIDTH and not state.waking else "noisy"


def _summary(metric: Metric, measurement: Measurement, state: ClockState, found: Quantiles) -> Summary:
    p1, median, p90, p99, low, high, least, most, raw_median = found
    interval = Interval(median, low, high)
    calls = measurement.per_call
    if calls is not None and metric.kind == "time":
        p1, p90, p99, least, most = calls.p1, calls.p90, calls.p99, calls.min, calls.max
    trust = _trust(measurement, raw_median, interval, state)
    tail = p1 if metric.kind == "rate" else p99
    return Summary(measurement.n, interval, p1, p90, p99, least, most, tail, trust, calls)


class _Summaries:
    """Summaries of one measurement after the other: those of as many samples are worked out together."""

    def __init__(self) -> None:
        self._made: list[Summary | None] = []
        self._waiting: dict[tuple[int, bool], list[tuple[int, bytes, Metric, Measurement, ClockState]]] = {}
        self._samples_waiting = 0

    def add(self, metric: Metric, measurement: Measurement, state: ClockState) -> int:
        """Take a measurement's samples, which need not be there afterwards; its place among ``all``."""
        values = measurement.values
        place, key = len(self._made), (len(values), metric.kind == "rate")
        self._waiting.setdefault(key, []).append(
            (place, _doubles(len(values)).pack(*values), metric, measurement, state)
        )
        self._made.append(None)
        self._samples_waiting += len(values)
        if self._samples_waiting > MOST_WAITING:
            self._work_out()
        return place

    def all(self) -> list[Summary]:
        """Summaries of all that were added."""
        self._work_out()
        return [one for one in self._made if one is not None]

    def _work_out(self) -> None:
        for (count, _), group in self._waiting.items():
            places, packed, metrics, measured, states = zip(*group, strict=True)
            samples = np.frombuffer(b"".join(packed)).reshape(len(packed), count)
            found = of_rows(samples, metrics, measured)
            for place, summary in zip(places, map(_summary, metrics, measured, states, found), strict=True):
                self._made[place] = summary
        self._waiting.clear()
        self._samples_waiting = 0


@cache
def _doubles(count: int) -> Struct:
    """Packs ``count`` floats: NumPy takes four times as long to convert a tuple of them."""
    return Struct(f"{count}d")


def summarize(
    metric: Metric, measurement: Measurement, telemetry: Telemetry | None = None, *, arithmetic: bool = False
) -> Summary:
    """The numbers of one measurement of one process; its trust is ``steady`` at best.

    ``arithmetic`` says that its case kept tensor cores or ALUs at work (``is_arithmetic``).
    """
    summaries = _Summaries()
    summaries.add(metric, measurement, clock_state(telemetry, arithmetic=arithmetic))
    return summaries.all()[0]


def combined_trust(rounds: Sequence[Summary], interval: Interval) -> Trust:
    """Grade over rounds in fresh processes: the worst fault of any round, else ``stable`` if there were enough rounds
    and the interval over them is narrow."""
    faults: tuple[Trust, ...] = ("unverified", "throttled", "below floor")
    grades = {one.trust for one in rounds}
    for fault in faults:
        if fault in grades:
            return fault
    if len(rounds) >= STABLE_ROUNDS:
        return "stable" if interval.half_width <= STABLE_HALF_WIDTH else "noisy"
    if "single" in grades:
        return "single"
    return "noisy" if "noisy" in grades else "steady"


class Row(msgspec.Struct, frozen=True, gc=False):
    """One case and metric over all its rounds: what a table shows. ``rounds`` and ``outcomes`` go together;
    ``measurement`` is that of the first round (clock, work, bound, verification)."""

    case_id: str
    benchmark: str
    suite: str
    metric: Metric
    params: dict[str, int | str]
    measurement: Measurement
    interval: Interval
    summaries: tuple[Summary, ...]
    outcomes: tuple[Outcome, ...]
    trust: Trust
    session: int
    device: str | None

    @property
    def value(self) -> float:
        """The figure to quote, in the metric's unit."""
        return self.interval.median

    def over_rounds(self, name: Literal["p1", "p90", "p99", "min", "max", "tail"]) -> float:
        """A quantile over the rounds: min and max over all, else the rounds' median (of single samples, their own)."""
        ordered = np.sort([float(getattr(one, name)) for one in self.summaries])
        if name in ("min", "max"):
            return float(ordered[0] if name == "min" else ordered[-1])
        if all(one.n == 1 for one in self.summaries):
            tail = 0.01 if self.metric.kind == "rate" else 0.99
            return quantile(ordered, {"p1": 0.01, "p90": 0.9, "p99": 0.99, "tail": tail}[name])
        return quantile(ordered, 0.5)


class _Group(NamedTuple):
    """A row on its way: its first round, and each round's outcome with the place of its summary."""

    metric: Metric
    measurement: Measurement
    outcomes: list[Outcome]
    places: list[int]


def rows(run: Run, outcomes: Iterable[Outcome] | None = None, only: str | None = None) -> list[Row]:
    """Every case and metric measured, rounds joined, in the order of the run. Sessions and devices are kept apart.

    ``outcomes`` are those to look at: some of the run's, or all as they come where it does not hold them yet; of a
    measurement beyond the first of its row nothing is kept. ``only`` names the metric that is wanted.
    """
    groups: dict[tuple[int, str | None, str, str], _Group] = {}
    declared = {(info.name, one.name): one for info in reversed(run.benchmarks) for one in reversed(info.metrics)}
    summaries = _Summaries()
    for outcome in run.outcomes if outcomes is None else outcomes:
        telemetry = next(iter(outcome.telemetry.values()), None)
        state = clock_state(telemetry, arithmetic=is_arithmetic(outcome.measurements))
        benchmark, case_id = outcome.case.benchmark, outcome.case.id
        for measurement in outcome.measurements:
            metric = declared.get((benchmark, measurement.metric))
            if metric is None or measurement.n == 0 or only not in (None, metric.name):
                continue
            key = outcome.session, outcome.device, case_id, metric.name
            if (group := groups.get(key)) is None:
                group = groups[key] = _Group(metric, measurement, [], [])
            group.outcomes.append(outcome)
            group.places.append(summaries.add(metric, measurement, state))
    suites = {info.name: info.suite for info in reversed(run.benchmarks)}
    found = summaries.all()
    return [_row(suites, case_id, group, found) for (_, _, case_id, _), group in groups.items()]


def _row(suites: Mapping[str, str], case_id: str, group: _Group, found: Sequence[Summary]) -> Row:
    first = group.outcomes[0]
    summaries = tuple(found[place] for place in group.places)
    interval = rounds_interval([summary.interval for summary in summaries])
    return Row(
        case_id=case_id,
        benchmark=first.case.benchmark,
        suite=suites[first.case.benchmark],
        metric=group.metric,
        params=dict(first.case.params),
        measurement=group.measurement,
        interval=interval,
        summaries=summaries,
        outcomes=tuple(group.outcomes),
        trust=combined_trust(summaries, interval),
        session=first.session,
        device=first.device,
    )


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Median of paired ratios and its interval, for A B A B of equal counts. Raises ValueError for unequal lengths."""
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError("pairs need two sequences of one length")
    return median_interval(np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64))

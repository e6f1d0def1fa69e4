"""THE STATISTICS: raw samples -> value, confidence interval over samples and over rounds, tails, trust grade."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.model import Measurement, Metric, Outcome, PerCall, Run, Telemetry
from microbench.throttling import CLOCK_LOSS, clock_change, is_arithmetic, throttled

FloatArray = npt.NDArray[np.floating[Any]]
Trust = Literal["stable", "steady", "noisy", "throttled", "single", "below floor", "unverified"]

CONFIDENCE = 0.95
MINIMUM_SAMPLES = 10
MOST_EXACT = 5000
STABLE_ROUNDS = 3
STEADY_HALF_WIDTH = 0.03
STABLE_HALF_WIDTH = 0.10
FLOORS_PER_SAMPLE = 5


class Interval(msgspec.Struct, frozen=True):
    """A value with the interval that holds it at CONFIDENCE."""

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


@cache
def median_ranks(n: int) -> tuple[int, int]:
    """Ranks (from 0) of the order statistics that hold the median with at least CONFIDENCE.

    Distribution-free: the count of samples below the median is binomial(n, 1/2). Under 6 samples no pair of ranks
    reaches 95 %, so the whole range is returned. Source: Le Boudec, Performance Evaluation, section 2.2.
    """
    if n < 6:
        return 0, max(n - 1, 0)
    if n > MOST_EXACT:  # far more than are kept: a file from elsewhere
        reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of the binomial
        return math.floor(n / 2 - reach), min(math.ceil(n / 2 + reach), n - 1)
    outside, ways = 0, 1  # whole numbers of the 2**n patterns: beyond n = 1029 they no longer fit a float
    for rank in range(n // 2):
        outside += 2 * ways
        if outside / (1 << n) > 1 - CONFIDENCE:
            return max(rank - 1, 0), min(n - rank, n - 1)
        ways = ways * (n - rank) // (rank + 1)
    return 0, n - 1


def quantile(ordered: FloatArray, share: float) -> float:
    """A quantile of sorted values by linear interpolation, NumPy's default, in a fraction of its time."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * (position - below)


def median_interval(values: Sequence[float] | FloatArray, step: float = 0.0) -> Interval:
    """Median and its order-statistics interval; a zero-width interval counts as one ``step`` of the clock."""
    return _interval(np.sort(np.asarray(values, dtype=np.float64)), step)


def _interval(ordered: FloatArray, step: float) -> Interval:
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
    medians = np.array([one.median for one in rounds])
    if len(rounds) == 1:
        return rounds[0]
    middle = float(np.median(medians))
    factor = STUDENT_T[len(rounds) - 2] if len(rounds) - 2 < len(STUDENT_T) else 1.96
    between = factor * float(np.std(medians, ddof=1)) / math.sqrt(len(rounds))
    within = float(np.median([(one.high - one.low) / 2 for one in rounds]))
    half = max(between, within)
    return Interval(middle, middle - half, middle + half)


def values_of(metric: Metric, measurement: Measurement, raw: FloatArray | None = None) -> FloatArray:
    """Samples as values in the metric's unit: per call for a time or count, work over time for a rate.

    ``raw`` are the samples where the caller has them. Raises ValueError for a rate whose work is not counted.
    """
    samples: FloatArray = (np.array(measurement.values) if raw is None else raw) / measurement.calls_per_sample
    if metric.kind != "rate":
        return samples
    work = measurement.work
    amounts = {
        "B/s": work.bytes, "B/clk/SM": work.bytes, "FLOP/s": work.flops, "FLOP/clk/SM": work.flops,
        "OP/s": work.operations, "OP/clk/SM": work.operations, "1/s": work.launches,
    }  # fmt: skip
    if not (amount := amounts.get(metric.unit, 0)):
        raise ValueError(f"{metric.name}: a rate in {metric.unit} without its work")
    result: FloatArray = amount / samples
    return result


class Summary(msgspec.Struct, frozen=True):
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


def _clock_step(metric: Metric, measurement: Measurement) -> float:
    if not measurement.resolution or metric.kind == "rate":
        return 0.0
    return measurement.resolution / measurement.calls_per_sample


def _trust(
    measurement: Measurement, raw: FloatArray, interval: Interval, telemetry: Telemetry | None, arithmetic: bool
) -> Trust:
    if measurement.needs_verification and not measurement.verified:
        return "unverified"
    if throttled(telemetry, arithmetic=arithmetic):
        return "throttled"
    floor_s = measurement.floor_s
    timed = measurement.clock != "counter"
    if timed and floor_s and quantile(raw, 0.5) < FLOORS_PER_SAMPLE * floor_s:
        return "below floor"
    if measurement.n < MINIMUM_SAMPLES:
        return "single"
    # Arithmetic waits for its own clock to settle, and is measured right behind what may have held it down.
    still_waking = not arithmetic and clock_change(telemetry) > 1 + CLOCK_LOSS
    return "steady" if interval.half_width <= STEADY_HALF_WIDTH and not still_waking else "noisy"


def summarize(
    metric: Metric, measurement: Measurement, telemetry: Telemetry | None = None, *, arithmetic: bool = False
) -> Summary:
    """The numbers of one measurement of one process; its trust is ``steady`` at best.

    ``arithmetic`` says that its case kept tensor cores or ALUs at work (``is_arithmetic``).
    """
    raw = np.array(measurement.values)
    raw.sort()  # once: a large run has a hundred thousand of these
    ordered = values_of(metric, measurement, raw)
    if metric.kind == "rate":
        ordered.sort()  # the longest time is the lowest rate
    interval = _interval(ordered, _clock_step(metric, measurement))
    p1, p90, p99 = quantile(ordered, 0.01), quantile(ordered, 0.9), quantile(ordered, 0.99)
    low, high = float(ordered[0]), float(ordered[-1])
    calls = measurement.per_call
    if calls is not None and metric.kind == "time":
        p1, p90, p99, low, high = calls.p1, calls.p90, calls.p99, calls.min, calls.max
    return Summary(
        n=measurement.n,
        interval=interval,
        p1=p1,
        p90=p90,
        p99=p99,
        min=low,
        max=high,
        tail=p1 if metric.kind == "rate" else p99,
        trust=_trust(measurement, raw, interval, telemetry, arithmetic),
        per_call=calls,
    )


def combined_trust(rounds: Sequence[Summary], interval: Interval) -> Trust:
    """Grade over rounds in fresh processes: the worst fault of any round, else ``stable`` if there were enough rounds
    and the interval over them is narrow."""
    faults: tuple[Trust, ...] = ("unverified", "throttled", "below floor")
    for fault in faults:
        if any(one.trust == fault for one in rounds):
            return fault
    if len(rounds) >= STABLE_ROUNDS:
        return "stable" if interval.half_width <= STABLE_HALF_WIDTH else "noisy"
    if any(one.trust == "single" for one in rounds):
        return "single"
    return "noisy" if any(one.trust == "noisy" for one in rounds) else "steady"


class Row(msgspec.Struct, frozen=True):
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


def rows(run: Run) -> list[Row]:
    """Every case and metric measured, rounds joined, in the order of the run. Sessions and devices are kept apart."""
    groups: dict[tuple[int, str | None, str, str], list[tuple[Outcome, Measurement, Summary]]] = {}
    infos = {info.name: info for info in reversed(run.benchmarks)}
    declared = {(name, one.name): one for name, info in infos.items() for one in reversed(info.metrics)}
    for outcome in run.outcomes:
        telemetry = next(iter(outcome.telemetry.values()), None)
        arithmetic = is_arithmetic(outcome.measurements)
        case_id = outcome.case.id
        for measurement in outcome.measurements:
            metric = declared.get((outcome.case.benchmark, measurement.metric))
            if metric is None or measurement.n == 0:
                continue
            one = (outcome, measurement, summarize(metric, measurement, telemetry, arithmetic=arithmetic))
            groups.setdefault((outcome.session, outcome.device, case_id, metric.name), []).append(one)
    return [
        _row(infos[name := members[0][0].case.benchmark].suite, declared[name, metric_name], case_id, members)
        for (_, _, case_id, metric_name), members in groups.items()
    ]


def _row(suite: str, metric: Metric, case_id: str, members: list[tuple[Outcome, Measurement, Summary]]) -> Row:
    first, measurement, _ = members[0]
    summaries = tuple(summary for _, _, summary in members)
    interval = rounds_interval([summary.interval for summary in summaries])
    return Row(
        case_id=case_id,
        benchmark=first.case.benchmark,
        suite=suite,
        metric=metric,
        params=dict(first.case.params),
        measurement=measurement,
        interval=interval,
        summaries=summaries,
        outcomes=tuple(outcome for outcome, _, _ in members),
        trust=combined_trust(summaries, interval),
        session=first.session,
        device=first.device,
    )


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Median of paired ratios and its interval, for A B A B of equal counts. Raises ValueError for unequal lengths."""
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError("pairs need two sequences of one length")
    return median_interval(np.asarray(numerator, dtype=np.float64) / np.asarray(denominator, dtype=np.float64))

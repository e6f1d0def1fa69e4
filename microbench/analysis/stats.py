"""Turns raw samples into values, confidence intervals over samples and rounds, tails and trust grades."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from struct import pack
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.clocks import ClockState, clock_state, is_arithmetic
from microbench.analysis.quantiles import (
    LEAST_DISTANCE,
    FloatArray,
    Levels,
    Quantiles,
    levels_of_rounds,
    middle,
    of_rows,
    quantile,
    ranks_of,
    work_of,
)
from microbench.core.model import HOST, BenchmarkInfo, Deviation, Measurement, Metric, Outcome, PerCall, Run, Telemetry

Trust = Literal["stable", "steady", "noisy", "throttled", "single", "below floor", "unverified"]
Quantile = Literal["p1", "p90", "p99", "min", "max", "tail"]

MINIMUM_SAMPLES = 10
STABLE_ROUNDS = 3
STEADY_HALF_WIDTH = 0.03
STABLE_HALF_WIDTH = 0.10
FLOORS_PER_SAMPLE = 5
TOGETHER = 1 << 15  # samples that are computed together: few calls of NumPy, and arrays that stay in the cache
MOST_LOG = 700.0  # the logarithm of the largest end of an interval, near that of the largest float

NORMAL_95 = 1.959964
# Two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom (any statistics table), then the normal's.
STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    NORMAL_95,
)  # fmt: skip
INVERSE_FREEDOM = (*(1 / freedom for freedom in range(1, len(STUDENT_T))), 0.0)
# Calls from Python and of compiled code, a reading of the clock, a thread that wakes another: times of every round.
CONTROLS = ("host_call", "host_timer", "host_wakeup")
# With a single quiet round nobody knows how far quiet rounds lie apart.
LEAST_QUIET = 2
# A quiet host drifts by 12 % within a minute. Calls of Python layers lie within 5 % of their fastest round there.
QUIET_WITHIN = 0.15


def student_95(freedom: FloatArray) -> FloatArray:
    """The two-sided 95 % quantile of Student's t for each count of degrees of freedom, at least 1.

    Between the table's entries it is interpolated over 1 / freedom, which is accurate to 0.2 % from 4 degrees.
    """
    result: FloatArray = np.interp(1 / freedom, INVERSE_FREEDOM[::-1], STUDENT_T[::-1])
    return result


class Interval(msgspec.Struct, frozen=True, gc=False):
    """A median with its interval at quantiles.CONFIDENCE."""

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
        return self.low <= other.high and other.low <= self.high


def median_interval(values: Sequence[float] | FloatArray, step: float = 0.0) -> Interval:
    """The median and its order-statistics interval, for samples in the order taken.

    It is widened for the samples' autocorrelation, and to a ``step`` of the clock if it is narrower.
    """
    samples = np.asarray(values, dtype=np.float64)
    ordered = np.sort(samples)
    median = quantile(ordered, 0.5)
    (low_rank,), (high_rank,) = ranks_of(samples[None, :], np.array([median]), np.array([len(samples)]))
    low, high = float(ordered[low_rank]), float(ordered[high_rank])
    if high - low < step:
        low, high = median - step / 2, median + step / 2
    return Interval(median, low, high)


def rounds_interval(
    rounds: Sequence[Interval], deviation: Deviation | None = None, busy: Sequence[bool] = ()
) -> Interval:
    """The median of the rounds, each of a fresh process, and an interval over their medians.

    It is Student's t on their logarithms, if all are above 0. It reaches below 0 only if a median does, and it is never
    narrower than the median interval of a round. With three rounds order statistics would reach 75 % only. Where the
    host was ``busy`` in some rounds, the value is the median of the others. There, and where rounds lie on two levels,
    each level has an interval by the scatter within levels, and the result reaches from the lower to the upper one. A
    single round is widened by the ``deviation`` of fresh processes, if it is known; else its interval holds within this
    process only.
    """
    if len(rounds) == 1:
        return rounds[0] if deviation is None else _over_processes(rounds[0], deviation)
    medians = [interval.median for interval in rounds]
    low, high = _median([interval.low for interval in rounds]), _median([interval.high for interval in rounds])
    two = None if busy else levels_of_rounds(medians, high - low)
    states, upper = [medians], [2 * value > sum(two) for value in medians] if two else busy
    if upper:
        states = [[one for one, flag in zip(medians, upper, strict=True) if flag == state] for state in (False, True)]
    middle = _median(states[0] if busy else medians)
    ends = [middle, low, high]
    if min(medians) > 0 and math.isfinite(sum(medians)):
        ends += map(math.exp, _by_student([[math.log(value) for value in state] for state in states if state]))
    else:
        ends += _by_student([state for state in states if state])
    return Interval(middle, max(min(ends), 0.0) if min(medians) >= 0 else min(ends), max(ends))


def _by_student(states: Sequence[Sequence[float]]) -> list[float]:
    """The ends of the 95 % interval of the mean of each state, by the scatter that all states have in common."""
    means = [sum(state) / len(state) for state in states]
    squares = sum((value - mean) ** 2 for state, mean in zip(states, means, strict=True) for value in state)
    freedom = max(sum(map(len, states)) - len(states), 1)
    half = student_factor(freedom + 1) * math.sqrt(squares / freedom)
    return [
        min(mean + sign * half / math.sqrt(len(state)), MOST_LOG)
        for state, mean in zip(states, means, strict=True)
        for sign in (-1, 1)
    ]


@cache
def student_factor(rounds: int) -> float:
    """The two-sided 95 % quantile of Student's t for the scatter of that many rounds, at least 2."""
    return float(student_95(np.array(rounds - 1.0)))


def _over_processes(interval: Interval, deviation: Deviation) -> Interval:
    """One process's interval, widened by how far fresh processes lie apart; the two parts are independent.

    It does not reach below 0 if the process's own interval does not.
    """
    apart = student_factor(deviation.rounds) * deviation.share * abs(interval.median)
    below, above = interval.median - interval.low, interval.high - interval.median
    least = 0.0 if interval.low >= 0 else -math.inf
    low = max(interval.median - math.hypot(below, apart), least)
    return Interval(interval.median, low, interval.median + math.hypot(above, apart))


def _median(values: Sequence[float]) -> float:
    """The median of a few values; NaN if any value is."""
    return math.nan if any(map(math.isnan, values)) else middle(sorted(values))


def values_of(metric: Metric, measurement: Measurement) -> FloatArray:
    """Samples as values in the metric's unit: per call for a time or count, work over time for a rate.

    Raises ValueError for a rate whose work is not counted.
    """
    samples: FloatArray = np.array(measurement.values) / measurement.calls_per_sample
    return samples if metric.kind != "rate" else work_of(metric, measurement) / samples


class Summary(msgspec.Struct, frozen=True, gc=False):
    """The figures of a measurement, in the metric's unit. ``tail`` is p99 of a cost and p1 of a rate. Percentiles come
    from single calls if these were timed, else from the samples. ``levels`` are the two at which the samples lie, if
    they do."""

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
    levels: Levels | None = None


def summarize(
    metric: Metric, measurement: Measurement, telemetry: Telemetry | None = None, *, arithmetic: bool = False
) -> Summary:
    """The figures of a measurement in one process; its trust is ``steady`` at best.

    ``arithmetic``: its case keeps tensor cores or ALUs busy (``is_arithmetic``).
    """
    return _summaries([(metric, measurement, clock_state(telemetry, arithmetic=arithmetic))])[0]


def _summaries(measured: Sequence[tuple[Metric, Measurement, ClockState]]) -> list[Summary]:
    """Summaries of many measurements; those with similar counts of samples are computed together, which is faster."""
    made: dict[int, Summary] = {}
    groups: dict[tuple[int, bool], list[tuple[int, bytes]]] = {}
    for place, (metric, measurement, _) in enumerate(measured):
        values = measurement.values
        packed = pack(f"{len(values)}d", *values)  # NumPy takes four times as long to convert a tuple
        groups.setdefault(((len(values) - 1).bit_length(), metric.kind == "rate"), []).append((place, packed))
    for (doublings, _), group in groups.items():
        for first in range(0, len(group), several := max(TOGETHER >> doublings, 1)):
            places, parts = zip(*group[first : first + several], strict=True)
            metrics, measurements, states = zip(*(measured[place] for place in places), strict=True)
            counts, samples = np.array(list(map(len, parts))) // 8, np.full((len(parts), 1 << doublings), np.nan)
            samples[np.arange(1 << doublings) < counts[:, None]] = np.frombuffer(b"".join(parts))
            summaries = map(_summary, metrics, measurements, states, of_rows(samples, counts, metrics, measurements))
            made |= dict(zip(places, summaries, strict=True))
    return [made[place] for place in range(len(measured))]


def _summary(metric: Metric, measurement: Measurement, state: ClockState, quantiles: Quantiles) -> Summary:
    interval = Interval(quantiles.median, quantiles.low, quantiles.high)
    calls = measurement.per_call
    ends = calls if calls is not None and metric.kind == "time" else quantiles
    trust = _trust(measurement, quantiles, interval, state)
    tail = ends.p1 if metric.kind == "rate" else ends.p99
    return Summary(
        measurement.n, interval, ends.p1, ends.p90, ends.p99, ends.min, ends.max, tail, trust, calls, quantiles.levels
    )


def _trust(measurement: Measurement, quantiles: Quantiles, interval: Interval, state: ClockState) -> Trust:
    if measurement.needs_verification and not measurement.verified:
        return "unverified"
    if state.throttled:
        return "throttled"
    floor_s = measurement.floor_s
    if floor_s and measurement.clock != "counter" and quantiles.raw_median < FLOORS_PER_SAMPLE * floor_s:
        return "below floor"
    if measurement.n < MINIMUM_SAMPLES:
        return "single"
    steady = interval.half_width <= STEADY_HALF_WIDTH and quantiles.levels is None and not state.waking
    return "steady" if steady else "noisy"


def combined_trust(rounds: Sequence[Summary], interval: Interval) -> Trust:
    """The grade over rounds in fresh processes: the worst fault of any round, else ``stable`` for enough rounds that
    agree: a narrow interval, no round far from their median, and one level."""
    faults: tuple[Trust, ...] = ("unverified", "throttled", "below floor")
    grades = {summary.trust for summary in rounds}
    for fault in faults:
        if fault in grades:
            return fault
    enough = len(rounds) >= STABLE_ROUNDS
    # The median of two rounds lies in the middle between them.
    near = STABLE_HALF_WIDTH if enough else STABLE_HALF_WIDTH / 2
    farthest = max(abs(summary.interval.median - interval.median) for summary in rounds)
    agree = farthest <= near * abs(interval.median) and levels_over(rounds) is None
    if enough:
        return "stable" if agree and interval.half_width <= STABLE_HALF_WIDTH else "noisy"
    if "single" in grades:
        return "single"
    return "steady" if agree and "noisy" not in grades else "noisy"


def levels_over(rounds: Sequence[Summary]) -> Levels | None:
    """The two levels at which the rounds lie, or at which the samples of most rounds do; None if there is only one.

    Rounds of a single sample have none, because nobody knows how far one sample of a process lies from the next.
    """
    if all(summary.n == 1 for summary in rounds):
        return None
    if len(rounds) == 1:
        return rounds[0].levels
    within = [summary.levels for summary in rounds if summary.levels is not None]
    if 2 * len(within) > len(rounds):
        low, high = (_median(several) for several in zip(*within, strict=True))
        return low, high
    widths = [summary.interval.high - summary.interval.low for summary in rounds]
    return levels_of_rounds([summary.interval.median for summary in rounds], _median(widths))


class Row(msgspec.Struct, frozen=True, gc=False):
    """One case and metric over all its rounds: a row of a table. ``summaries`` and ``outcomes`` are by round;
    ``measurement`` is that of the first round (clock, work, bound, verification). ``deviation`` is how far fresh
    processes lie apart, where it is known and the row has one round. ``busy`` has a flag for each round, True where
    the host was busy and the row felt it, or nothing if the rounds show no two states: the value is that of the others.
    """

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
    deviation: Deviation | None = None
    busy: tuple[bool, ...] = ()

    @property
    def value(self) -> float:
        """The figure to quote, in the metric's unit."""
        return self.interval.median

    @property
    def busy_value(self) -> float | None:
        """The figure while the host was busy; None if the rounds show no two states of the host."""
        slowed = [summary.interval.median for summary, flag in zip(self.summaries, self.busy, strict=False) if flag]
        return _median(slowed) if slowed else None

    @property
    def within_process(self) -> bool:
        """True if the interval holds within one process only: nobody knows how far another one lies from it."""
        return len(self.summaries) == 1 and self.deviation is None

    @property
    def levels(self) -> Levels | None:
        """The two levels at which the row lies, the lower one first, or None."""
        return levels_over(self.summaries)

    def over_rounds(self, name: Quantile) -> float:
        """A quantile over the rounds: the least min, the largest max, else the median of the rounds' quantiles.

        Rounds of a single sample have no quantiles, so the quantile is then taken over these samples.
        """
        if len(self.summaries) == 1:
            return float(getattr(self.summaries[0], name))
        ordered = np.sort([float(getattr(summary, name)) for summary in self.summaries])
        if name in ("min", "max"):
            return float(ordered[0] if name == "min" else ordered[-1])
        if all(summary.n == 1 for summary in self.summaries):
            tail = 0.01 if self.metric.kind == "rate" else 0.99
            return quantile(ordered, {"p1": 0.01, "p90": 0.9, "p99": 0.99, "tail": tail}[name])
        return quantile(ordered, 0.5)


class _Group(NamedTuple):
    """The parts of a row: its first round, and each round's outcome with the place of its summary."""

    metric: Metric
    measurement: Measurement
    outcomes: list[Outcome]
    places: list[int]


def rows(run: Run, outcomes: Iterable[Outcome] | None = None, only: str | None = None) -> list[Row]:
    """Every case and metric measured, rounds joined, in the order of the run. Sessions and devices are separate rows.

    Where a session drew the order of its cases, a benchmark's rows are in the order of its axes.
    ``outcomes`` may be some of the run's; ``only`` limits the rows to one metric.
    """
    groups: dict[tuple[int, str | None, str, str], _Group] = {}
    declared = {(info.name, metric.name): metric for info in reversed(run.benchmarks) for metric in info.metrics[::-1]}
    measured: list[tuple[Metric, Measurement, ClockState]] = []
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
            group.places.append(len(measured))
            measured.append((metric, measurement, state))
    infos = {info.name: info for info in reversed(run.benchmarks)}
    made, busy = _summaries(measured), busy_rounds(run)
    found = [_row(run, infos, case_id, group, made, busy) for (_, _, case_id, _), group in groups.items()]
    return _listed(run, found) if any(session.order_seed for session in run.sessions) else found


def _listed(run: Run, found: Sequence[Row]) -> list[Row]:
    """Rows with each benchmark of a session that drew the order of its cases together, in the order of its axes."""
    places = {
        info.name: [(axis.name, {value: place for place, value in enumerate(axis.values)}) for axis in info.axes]
        for info in run.benchmarks
    }
    first: dict[tuple[int, str | None, str], int] = {}
    keys: dict[int, tuple[int, list[int]]] = {}
    for number, row in enumerate(found):
        at, axes = number, list[int]()
        if run.sessions[row.session].order_seed is not None:
            at = first.setdefault((row.session, row.device, row.benchmark), number)
            axes = [known.get(row.params.get(name, ""), len(known)) for name, known in places[row.benchmark]]
        keys[number] = at, axes
    return [found[number] for number in sorted(keys, key=keys.__getitem__)]


def deviation_key(benchmark: str, metric: Metric) -> str:
    """The key of a metric in Run.deviations."""
    return f"{benchmark}.{metric.name}"


def model_of(run: Run, outcome: Outcome) -> str:
    """The key in Run.deviations for the machine of an outcome: its GPU's name, or HOST."""
    gpus = run.sessions[outcome.session].environment.gpus if outcome.session < len(run.sessions) else ()
    return next((gpu.name for gpu in gpus if gpu.uuid == outcome.device), HOST)


def _deviation(run: Run, info: BenchmarkInfo, group: _Group) -> Deviation | None:
    """How far fresh processes lie apart; None if it is unknown, or known only for another version."""
    if len(group.outcomes) > 1 or not run.deviations:
        return None
    known = run.deviations.get(model_of(run, group.outcomes[0]), {}).get(deviation_key(info.name, group.metric))
    return known if known is not None and known.version == info.version else None


def _row(
    run: Run,
    infos: Mapping[str, BenchmarkInfo],
    case_id: str,
    group: _Group,
    made: Sequence[Summary],
    slow: Mapping[int, Collection[int]],
) -> Row:
    first = group.outcomes[0]
    info = infos[first.case.benchmark]
    summaries = tuple(made[place] for place in group.places)
    deviation = _deviation(run, info, group)
    busy: tuple[bool, ...] = ()
    if first.session in slow and group.measurement.clock == "host" and group.metric.kind != "count":
        flags = tuple(outcome.round in slow[first.session] for outcome in group.outcomes)
        costs = [summary.interval.median for summary in summaries]
        if group.metric.kind == "rate":
            costs = [1 / cost if cost else math.nan for cost in costs]
        busy = flags if follows(costs, flags) else ()
    interval = rounds_interval([summary.interval for summary in summaries], deviation, busy)
    return Row(
        case_id=case_id,
        benchmark=first.case.benchmark,
        suite=info.suite,
        metric=group.metric,
        params=dict(first.case.params),
        measurement=group.measurement,
        interval=interval,
        summaries=summaries,
        outcomes=tuple(group.outcomes),
        trust=combined_trust(summaries, interval),
        session=first.session,
        device=first.device,
        deviation=deviation,
        busy=busy,
    )


# Rounds in which the host was busy, by work that no driver and no GPU takes part in.


def busy_rounds(run: Run) -> dict[int, frozenset[int]]:
    """The rounds of each session in which the controls lie on the slower of two levels. Other sessions have none.

    The state of a round is the median over the controls of how much slower each is than in its fastest round.
    """
    measured: dict[int, dict[str, dict[int, float]]] = {}
    for outcome in run.outcomes:
        if outcome.case.benchmark in CONTROLS and outcome.measurements and outcome.measurements[0].n:
            first = outcome.measurements[0]
            rounds = measured.setdefault(outcome.session, {}).setdefault(outcome.case.id, {})
            rounds[outcome.round] = _median(first.values) / first.calls_per_sample
    found = {session: _busy(list(cases.values())) for session, cases in measured.items()}
    return {session: rounds for session, rounds in found.items() if rounds}


def _busy(controls: Sequence[Mapping[int, float]]) -> frozenset[int]:
    """The rounds that all of these controls have, and in which most of them were on the slower level."""
    rounds = sorted(set.intersection(*map(set, controls)))
    costs = np.array([[control[number] for number in rounds] for control in controls])
    if len(rounds) <= LEAST_QUIET or not (np.isfinite(costs).all() and costs.min() > 0):
        return frozenset()
    slowed = [_median(column) for column in (costs / costs.min(axis=1, keepdims=True)).T.tolist()]
    two = levels_of_rounds(slowed, 0.0)
    between = math.sqrt(math.prod(two)) if two is not None else math.inf
    return frozenset(number for number, slow in zip(rounds, slowed, strict=True) if slow > between)


def follows(costs: Sequence[float], busy: Sequence[bool]) -> bool:
    """Whether a figure is worse in every busy round than in every quiet one, by as much as levels lie apart."""
    quiet, slowed = ([cost for cost, flag in zip(costs, busy, strict=True) if flag == state] for state in (False, True))
    if len(quiet) < LEAST_QUIET or not slowed or max(quiet) >= min(slowed):
        return False
    return middle(sorted(slowed)) > (1 + LEAST_DISTANCE) * middle(sorted(quiet))


def busy_for_calls(costs: Sequence[Sequence[float]]) -> tuple[bool, ...]:
    """The rounds in which a layer's own calls show that the host was busy; nothing if they show no quiet ones beside.

    Each layer of Python has processes of its own, minutes after the controls. ``costs`` are the rounds of its figures,
    of which at least a quarter feels the host.
    """
    values = np.array(costs)
    if values.shape[1] <= LEAST_QUIET or not (np.isfinite(values).all() and values.min() > 0):
        return ()
    slowed = np.sort(values / values.min(axis=1, keepdims=True), axis=0).T
    busy = tuple(quantile(ordered, 0.75) > 1 + QUIET_WITHIN for ordered in slowed)
    return busy if any(busy) and busy.count(False) >= LEAST_QUIET else ()

"""The statistics: intervals cover what they claim, values are in the metric's unit."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import make_run
from msgspec.structs import replace
from test_trust import measured

from microbench.analysis.quantiles import CONFIDENCE, median_ranks, samples_per_independent
from microbench.analysis.stats import Interval, median_interval, rounds_interval, rows, student_95, summarize, values_of
from microbench.core.model import BenchmarkInfo, Case, Measurement, Metric, Outcome, PerCall, Run, Work

TIME = Metric("submit", "time", "s/launch", "time of a call")
RATE = Metric("copy", "rate", "B/s", "bytes copied")
LAUNCHES = Metric("rate", "rate", "1/s", "launches")
COUNT = Metric("received", "count", "B/launch", "bytes to the GPU")


def coverage(n: int, low: int, high: int) -> Fraction:
    """Exact probability that order statistics ``low`` to ``high`` (from 0) hold the median of a continuous law."""
    between = sum(math.comb(n, below) for below in range(low + 1, high + 1))
    return Fraction(between, 2**n)


@pytest.mark.parametrize("n", [*range(6, 80), 512, 1029, 1030, 1100, 5000])
def test_median_ranks_cover_the_median_and_no_narrower_pair_does(n: int) -> None:
    low, high = median_ranks(n)
    assert low + high == n - 1
    assert coverage(n, low, high) >= Fraction(str(CONFIDENCE))
    if low + 1 < high - 1:
        assert coverage(n, low + 1, high - 1) < Fraction(str(CONFIDENCE))
    assert [median_ranks(few) for few in range(1, 6)] == [(0, few - 1) for few in range(1, 6)], "the whole range"


def test_ranks_of_ten_samples_are_the_second_and_the_ninth() -> None:
    # Le Boudec, Performance Evaluation, table A.1.
    assert median_ranks(10) == (1, 8)
    interval = median_interval([10.0, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert interval == Interval(5.5, 2.0, 9.0)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([10, 25, 60]), st.sampled_from(["normal", "exponential", "cauchy"]))
def test_the_interval_holds_the_true_median_at_the_stated_confidence(seed: int, n: int, law: str) -> None:
    """Simulated: of 1000 sets of samples at least 92 % hold the median (95 % less 4.3 standard errors)."""
    random = np.random.default_rng(seed)
    draw = {
        "normal": lambda: random.standard_normal((1000, n)),
        "exponential": lambda: random.exponential(1, (1000, n)) - math.log(2),
        "cauchy": lambda: random.standard_cauchy((1000, n)),
    }
    intervals = [median_interval(row) for row in draw[law]()]
    held = sum(interval.low <= 0 <= interval.high for interval in intervals)
    assert held >= 0.92 * len(intervals)


def correlated(correlation: float, n: int, several: int = 1000, seed: int = 3) -> np.ndarray:
    """Series of n samples with median 0; each sample is ``correlation`` times the one before, plus noise."""
    random = np.random.default_rng(seed)
    series = np.empty((several, n))
    last = random.standard_normal(several) / math.sqrt(1 - correlation**2)
    for place in range(n):
        last = correlation * last + random.standard_normal(several)
        series[:, place] = last
    return series


@pytest.mark.parametrize(("correlation", "n", "alone", "least"), [
    (0.0, 40, 0.94, 0.94), (0.5, 40, 0.85, 0.91), (0.5, 512, 0.85, 0.92),
    (0.8, 100, 0.65, 0.90), (0.8, 512, 0.65, 0.92), (0.9, 512, 0.50, 0.90),
])  # fmt: skip
def test_correlated_samples_count_less(correlation: float, n: int, alone: float, least: float) -> None:
    """Without the effective number of samples the interval holds the median in ``alone`` of the cases, or fewer."""
    low, high = median_ranks(n)
    series = correlated(correlation, n)
    ordered = np.sort(series, axis=1)
    as_independent = np.mean((ordered[:, low] <= 0) & (ordered[:, high] >= 0))
    held = np.mean([interval.low <= 0 <= interval.high for interval in map(median_interval, series)])
    assert as_independent < alone or correlation == 0
    assert held >= least
    random = np.random.default_rng(4)
    mixed = [median_interval(random.permutation(row)) for row in series]
    assert np.median([one.high - one.low for one in mixed]) < 1.2 * np.median(ordered[:, high] - ordered[:, low])


def test_equal_alternating_and_few_samples_count_in_full() -> None:
    for series in (np.ones(40), np.tile([1.0, 2.0], 20), np.arange(9.0)):
        assert samples_per_independent(series[None, :], np.median(series)[None], np.array([len(series)])) == [1]


def test_a_zero_width_interval_counts_as_one_step_of_the_clock() -> None:
    interval = median_interval([5.0] * 20, step=0.5)
    assert interval == Interval(5.0, 4.75, 5.25)
    assert interval.half_width == pytest.approx(0.05)
    assert median_interval([5.0] * 20).half_width == 0
    assert Interval(0.0, -1.0, 1.0).half_width == math.inf
    shared = summarize(TIME, measured([1e-3] * 20, calls_per_sample=100, resolution=1e-6)).interval
    assert shared.high - shared.low == pytest.approx(1e-8), "the calls of a sample share the step"


def test_overlap_is_symmetric_and_includes_touching() -> None:
    left, right, far = Interval(1, 0, 2), Interval(3, 2, 4), Interval(9, 8, 10)
    assert left.overlaps(right)
    assert right.overlaps(left)
    assert not left.overlaps(far)
    assert not far.overlaps(left)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60), st.floats(1e-6, 1e6))
def test_the_interval_scales_with_the_unit(values: list[float], factor: float) -> None:
    plain, scaled = median_interval(values), median_interval([factor * value for value in values])
    assert scaled.median == pytest.approx(factor * plain.median)
    assert (scaled.low, scaled.high) == pytest.approx((factor * plain.low, factor * plain.high))
    assert plain.low <= plain.median <= plain.high


def test_rounds_take_student_t_on_their_medians() -> None:
    rounds = [Interval(median, median, median) for median in (3.0, 3.1, 3.3)]
    interval = rounds_interval(rounds)
    assert interval.median == 3.1
    # t(2 degrees, 95 %) = 4.303; standard deviation of the medians' logarithms 0.0484217, about their mean.
    centre, half = (3.0 * 3.1 * 3.3) ** (1 / 3), 4.303 * 0.0484217 / math.sqrt(3)
    assert math.log(interval.high / centre) == pytest.approx(half, rel=1e-4)
    assert math.log(centre / interval.low) == pytest.approx(half, rel=1e-4)
    only = Interval(3.0, 2.0, 9.0)
    assert rounds_interval([only]) == only
    alike = rounds_interval([Interval(3.0, 2.9, 3.1)] * 5)
    assert (alike.median, alike.low, alike.high) == pytest.approx((3.0, 2.9, 3.1)), "never narrower than a round"


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Integrated numerically; whole degrees are in any table.
    [(1, 12.706), (2, 4.303), (4.5, 2.659), (8, 2.306), (13.7, 2.149), (16, 2.120), (39, 2.023), (1e9, 1.960)],
)
def test_the_quantile_of_student_t(freedom: float, quantile: float) -> None:
    assert student_95(np.array([freedom])) == pytest.approx(quantile, rel=2e-3)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_the_interval_over_three_rounds_covers_their_common_mean(seed: int) -> None:
    medians = np.random.default_rng(seed).normal(10, 1, (400, 3))
    intervals = [rounds_interval([Interval(value, value, value) for value in row]) for row in medians]
    assert sum(one.low <= 10 <= one.high for one in intervals) >= 0.90 * len(intervals)


@pytest.mark.parametrize(("metric", "measurement", "values"), [
    (TIME, measured([2.0, 4.0], calls_per_sample=2), [1.0, 2.0]),
    (COUNT, measured([1800.0, 3600.0], calls_per_sample=2, clock="counter"), [900, 1800]),
    (RATE, measured([2.0, 4.0], calls_per_sample=2, work=Work(bytes=100)), [100.0, 50.0]),
    (LAUNCHES, measured([0.5], work=Work(launches=10)), [20.0]),
])  # fmt: skip
def test_values_are_per_call_and_rates_are_work_over_time(
    metric: Metric, measurement: Measurement, values: list[float]
) -> None:
    assert values_of(metric, measurement) == pytest.approx(values)


def test_a_rate_without_its_work_is_refused() -> None:
    with pytest.raises(ValueError, match="without its work"):
        values_of(RATE, measured([1.0], work=Work(launches=1)))


def test_the_tail_is_the_bad_end_of_each_kind() -> None:
    seconds = [1.0 + index / 100 for index in range(101)]
    cost = summarize(TIME, measured(seconds))
    assert cost.tail == cost.p99 == pytest.approx(1.99)
    rate = summarize(RATE, measured(seconds, work=Work(bytes=10)))
    assert rate.tail == rate.p1 < rate.interval.median < rate.p99
    assert rate.p1 == pytest.approx(10 / 1.99, rel=1e-3)
    assert (rate.min, rate.max) == pytest.approx((5.0, 10.0))


def test_percentiles_come_from_single_calls_where_those_were_stamped() -> None:
    calls = PerCall(n=1000, p1=1, p50=2, p90=3, p99=4, min=0.5, max=99, first_edge=0.5, ratio=1.05, counts=(1000,))
    one = summarize(TIME, measured([2.0] * 20, per_call=calls))
    assert (one.p1, one.p90, one.p99, one.min, one.max, one.tail) == (1, 3, 4, 0.5, 99, 4)
    assert one.interval.median == 2.0


@st.composite
def any_measurements(draw: st.DrawFn) -> list[tuple[Metric, Measurement]]:
    """Some of as many samples as others, some not; times and rates; of clocks that step."""
    found = []
    for count in draw(st.lists(st.sampled_from([1, 2, 5, 6, 7, 40]), min_size=1, max_size=8)):
        fields = {
            "calls_per_sample": draw(st.integers(1, 1000)),
            "resolution": draw(st.none() | st.floats(1e-9, 1.0)),
            "work": Work(bytes=draw(st.integers(1, 2**63 - 1))),
        }
        times = draw(st.lists(st.floats(1e-9, 1e9), min_size=count, max_size=count))
        found.append((draw(st.sampled_from([TIME, RATE])), measured(times, **fields)))
    return found


@given(any_measurements())
def test_measurements_are_summed_up_together_as_one_by_one(some: list[tuple[Metric, Measurement]]) -> None:
    """To the last bit, and as NumPy's own quantiles have it."""
    outcomes = [
        Outcome(Case(f"benchmark {place}"), 0, 0, "ok", measurements=(replace(one, metric=metric.name),))
        for place, (metric, one) in enumerate(some)
    ]
    infos = [
        BenchmarkInfo(outcome.case.benchmark, "suite", "", "", 1, (), (metric,))
        for outcome, (metric, _) in zip(outcomes, some, strict=True)
    ]
    found = rows(Run(1, "run", (), tuple(infos), tuple(outcomes)))
    for row, (metric, one) in zip(found, some, strict=True):
        assert row.summaries == (summarize(metric, one),)
        (summary,) = row.summaries
        taken = values_of(metric, one)
        values = np.sort(taken)
        # A step of the clock is as large a share of a time as of the rate that is made from it.
        step = one.resolution or 0.0
        if metric.kind == "rate":
            step *= median_interval(taken).median / median_interval(one.values).median
        else:
            step /= one.calls_per_sample
        assert summary.interval == median_interval(taken, step)
        assert (summary.min, summary.max) == (values[0], values[-1])
        quantiles = np.quantile(values, [0.01, 0.9, 0.99])
        assert (summary.p1, summary.p90, summary.p99) == pytest.approx(tuple(quantiles), rel=1e-12)


def test_times_of_nothing_are_known_to_a_step_of_the_clock() -> None:
    summary = summarize(TIME, measured([0.0] * 20, calls_per_sample=4, resolution=8e-9))
    assert (summary.interval.low, summary.interval.high) == pytest.approx((-1e-9, 1e-9))


def test_only_one_metric_is_summed_up_where_only_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    wanted = [row for row in rows(run) if row.metric.name == "submit"]
    decoded: list[str] = []
    whole = Measurement.__dict__["values"].fget
    monkeypatch.setattr(Measurement, "values", property(lambda one: decoded.append(one.metric) or whole(one)))
    assert rows(run, only="submit") == wanted
    assert set(decoded) == {"submit", "call", "round_trip"}, "and the host's own work, which tells busy rounds"


def test_rows_of_a_drawn_order_stand_in_the_order_of_their_axes() -> None:
    run = make_run()
    backwards = replace(run, outcomes=tuple(reversed(run.outcomes)))
    seeded = replace(backwards, sessions=tuple(replace(one, order_seed="seed") for one in run.sessions))
    layers = [
        [row.params["layer"] for row in rows(one) if row.benchmark == "launch_layers"] for one in (run, backwards)
    ]
    drawn = [row for row in rows(seeded) if row.benchmark == "launch_layers"]
    (info,) = (info for info in run.benchmarks if info.name == "launch_layers")
    planned = {axis.name: axis.values for axis in info.axes}
    assert layers[0] != layers[1]
    places = [tuple(planned[name].index(row.params[name]) for name in planned) for row in drawn]
    assert places == sorted(places)
    assert {row.case_id for row in drawn} == {row.case_id for row in rows(run) if row.benchmark == "launch_layers"}

"""The Meter on a clock moved by hand, and on the simulated GPU: stopping, storing, bursts, gated time."""

from collections.abc import Callable, Sequence
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import MeasurementError
from microbench.core.model import SAMPLES_KEPT, Floors, Measurement, Work
from microbench.core.ops import Copy, IntArray, Launch, Query
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.sampling import SamplingLimits, clock_step_ns, per_call_distribution, seconds, stored
from microbench.meter.timer import LONGEST_BURST, SHORTEST_BURST, VOID_SAMPLES, WARM_UP_CALLS, Meter, cold

Samples = Callable[[int], Sequence[float]]


class TinyClock:
    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns


def taking(clock: TinyClock, step_s: float, samples: Samples) -> Callable[[], Sequence[float]]:
    """A ``take`` that lasts ``step_s`` by the clock and returns ``samples(number of the call)``."""
    calls = iter(range(10**9))

    def take() -> Sequence[float]:
        clock.time_ns += round(step_s * 1e9)
        return samples(next(calls))

    return take


def wild(call: int) -> Sequence[float]:
    """A sample between 1 and 7 that never comes twice: the median of many stays uncertain."""
    return (1.0 + 6 * (call * 0.6180339887 % 1),)


def value(measurement: Measurement) -> float:
    return float(np.median(measurement.values)) / measurement.calls_per_sample


def same(_: int) -> Sequence[float]:
    return (5.0,)


def rising(call: int) -> Sequence[float]:
    return (1.0 + call,)


@pytest.mark.parametrize(("step_s", "samples", "stopped", "fewest", "most"), [
    (0.01, same, "narrow", 10, 10),  # equal samples stop at the minimum
    (0.001, same, "narrow", 75, 90),  # but not before a quarter of the time
    (0.001, wild, "time", 300, 300),
    (1.0, rising, "time", 10, 10),  # the time is up only after the minimum
])  # fmt: skip
def test_sampling_stops(step_s: float, samples: Samples, stopped: str, fewest: int, most: int) -> None:
    clock = TinyClock()
    measured = Meter(clock).collect("m", taking(clock, step_s, samples), clock="host", calls=2)
    assert (measured.stopped, measured.calls_per_sample) == (stopped, 2)
    assert fewest <= measured.n <= most
    assert clock.time_ns == round(measured.n * step_s * 1e9)


def test_wild_samples_stop_at_the_greatest_count_or_when_they_narrow() -> None:
    clock = TinyClock()
    meter = Meter(clock, limits=SamplingLimits(maximum=2000))
    measured = meter.collect("m", taking(clock, 0, wild), clock="host")
    assert (measured.stopped, measured.n) == ("count", 2000)
    assert len(measured.values) == SAMPLES_KEPT
    samples = taking(clock, 1e-6, lambda call: wild(call) if call < 20 else (4.0,))
    measured = Meter(clock, limits=SamplingLimits(least_share=0)).collect("m", samples, clock="host")
    assert measured.stopped == "narrow"
    assert 30 <= measured.n <= 70


def test_half_width_is_what_the_limits_say() -> None:
    def run(half_width: float) -> Measurement:
        clock = TinyClock()
        samples = taking(clock, 1e-3, lambda call: (1.0 + 0.04 * (call % 2),))
        return Meter(clock, limits=SamplingLimits(half_width=half_width)).collect("m", samples, clock="host")

    assert run(0.05).stopped == "narrow"
    assert run(0.01).stopped == "time"


def test_samples_that_resemble_their_neighbours_take_longer() -> None:
    """The same samples, in an order that drifts to and fro and in one that mixes them."""
    values = 1.0 + 0.02 * np.abs(np.linspace(-1, 1, 100))
    mixed = np.random.default_rng(5).permutation(values)

    def run(order: FloatArray) -> Measurement:
        clock = TinyClock()
        samples = taking(clock, 1e-4, lambda call: (float(order[call % 100]),))
        limits = SamplingLimits(seconds=0.05, half_width=0.004, least_share=0.2)
        return Meter(clock, limits=limits).collect("m", samples, clock="host")

    assert run(mixed).stopped == "narrow"
    assert run(values).n > 2 * run(mixed).n


def test_void_samples_are_left_out_and_too_many_in_a_row_fail() -> None:
    clock = TinyClock()
    measured = Meter(clock).collect("m", taking(clock, 0.001, lambda call: () if call % 10 else (1.0,)), clock="device")
    assert (measured.n, measured.stopped) == (10, "narrow"), "ninety void samples, but never many in a row"
    clock = TinyClock()
    take = taking(clock, 0.5, lambda call: (1.0,) if call == 0 else ())
    with pytest.raises(MeasurementError, match="gate timed out"):
        Meter(clock).collect("copy", take, clock="device")
    assert clock.time_ns == (1 + VOID_SAMPLES) * 500_000_000
    with pytest.raises(MeasurementError, match="a host benchmark has no GPU"):
        _ = Meter(clock).gpu


def test_ticks_have_the_median_of_a_call() -> None:
    ticks: list[tuple[str, int, float]] = []
    clock = TinyClock()
    meter = Meter(clock, tick=lambda metric, n, value: ticks.append((metric, n, value)))
    meter.collect("m", taking(clock, 1e-3, lambda call: (9.0 + wild(call)[0],)), clock="host", calls=10)
    assert ticks[0][:2] == ("m", 10)
    assert ticks[0][2] == pytest.approx(1.3, abs=0.1)
    counts = [n for _, n, _ in ticks]
    assert counts == sorted(set(counts)), "the display must not be flooded"
    assert len(counts) < 30


def test_samples_of_seconds_are_reported_one_by_one() -> None:
    counts: list[int] = []
    clock = TinyClock()
    meter = Meter(clock, tick=lambda metric, n, value: counts.append(n))
    meter.collect("m", taking(clock, 12.0, lambda call: (12.0,)), clock="device")
    assert counts == list(range(1, 10)), "after a minute without a word the case would be ended"


def test_several_metrics_of_one_batch_go_on_until_all_are_narrow() -> None:
    clock = TinyClock()
    batches = iter(range(10**9))

    def take() -> IntArray:
        clock.time_ns += 1_000_000
        first = 5 * next(batches)
        rows = [[0, 1000, 1000 + round(1000 * wild(call)[0])] for call in range(first, first + 5)]
        return np.array(rows, dtype=np.int64)

    measured = Meter(clock).collect_stamps(
        take,
        {
            "submit": lambda stamps: np.float64(1e-9) * (stamps[:, 1] - stamps[:, 0]),
            "complete": lambda stamps: np.float64(1e-9) * (stamps[:, 2] - stamps[:, 1]),
        },
    )
    assert [each.metric for each in measured] == ["submit", "complete"]
    assert {each.stopped for each in measured} == {"time"}
    assert measured[0].n == measured[1].n == 300, "a sample is the median of a batch of five"
    assert value(measured[0]) == pytest.approx(1e-6)
    assert measured[1].per_call.n == 1500


@given(st.lists(st.floats(0, 1e6), max_size=2000))
def test_at_most_512_samples_are_kept_with_both_ends(samples: list[float]) -> None:
    values = msgspec.json.decode(stored(samples), type=list[float])
    if len(samples) <= SAMPLES_KEPT:
        assert values == pytest.approx(samples, rel=5.1e-7, abs=1e-12)
    else:
        assert len(values) == SAMPLES_KEPT
        assert (values[0], values[-1]) == pytest.approx((samples[0], samples[-1]), rel=5.1e-7, abs=1e-12)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_the_histogram_holds_every_call_in_its_bin(calls: list[float]) -> None:
    measured = per_call_distribution(np.array(calls))
    assert sum(measured.counts) == measured.n == len(calls)
    top_edge = measured.first_edge * measured.ratio ** len(measured.counts)
    assert measured.first_edge <= max(measured.min, 1e-9) * 1.0001
    assert max(measured.max, 1e-9) <= top_edge * 1.0001
    assert measured.counts[0] > 0
    assert measured.counts[-1] > 0
    assert measured.min <= measured.p1 <= measured.p50 <= measured.p90 <= measured.p99 <= measured.max


def test_a_histogram_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no calls"):
        per_call_distribution(np.zeros(0))


def test_the_step_of_a_clock_is_its_least_move_or_what_its_differences_share() -> None:
    assert clock_step_ns(np.array([0, 0, 1000, 1000, 1000, 3000])) == 1000
    assert clock_step_ns(np.array([0, 64, 160, 192, 320])) == 32
    assert clock_step_ns(np.array([7, 7, 7])) is None


def test_a_batch_without_calls_is_void() -> None:
    clock = TinyClock()
    batches = iter(range(10**9))

    def take() -> IntArray:
        clock.time_ns += 10_000_000
        return np.arange(5 * (next(batches) % 2), dtype=np.int64) + 100

    (measured,) = Meter(clock).collect_stamps(take, {"m": seconds})
    assert value(measured) == pytest.approx(102e-9)
    assert measured.per_call.n == 5 * measured.n


def exact(floors: Floors | None = None, costs: FakeCosts | None = None) -> tuple[Gpu, Meter]:
    gpu = open_fake(costs, spread=0)
    return gpu, Meter(gpu.clock, gpu, floors)


def test_a_burst_is_a_millisecond_of_calls_at_most_the_longest() -> None:
    gpu, meter = exact()
    assert meter.burst(gpu.bind(Launch())) == LONGEST_BURST
    slow, meter = exact(costs=FakeCosts(submit_ns=40_000))
    assert meter.burst(slow.bind(Launch())) == pytest.approx(25, abs=1)
    very_slow, meter = exact(costs=FakeCosts(submit_ns=10_000_000))
    assert meter.burst(very_slow.bind(Launch())) == SHORTEST_BURST


def test_a_burst_is_a_hundred_steps_of_a_coarse_clock_but_never_fills_the_queue() -> None:
    gpu, meter = exact(Floors(timer_step_s=12.8e-6))
    assert meter.burst(gpu.bind(Launch())) == pytest.approx(400, abs=2)
    gpu, meter = exact(Floors(timer_step_s=1e-3))
    launch = gpu.bind(Launch())
    assert meter.burst(launch) == launch.queue_slots == 510
    query = gpu.bind(Query())
    assert query.queue_slots is None
    assert meter.burst(query) > 510


def test_submit_time_gives_the_cost_of_a_call_and_its_distribution() -> None:
    gpu, meter = exact(Floors(timer_call_s=25e-9, timer_step_s=1e-9))
    measured = meter.submit_time("submit", gpu.bind(Launch()))
    assert value(measured) == pytest.approx(3.2e-6, rel=1e-3)
    assert (measured.clock, measured.calls_per_sample, measured.resolution) == ("host", LONGEST_BURST, 1e-9)
    assert measured.per_call.n == 20 * LONGEST_BURST
    assert measured.per_call.p50 == pytest.approx(3.225e-6, rel=1e-3), "a stamp's own cost is in each"
    assert meter.submit_time("submit", gpu.bind(Launch()), per_call=False).per_call is None


def test_noise_shows_in_the_tail_and_not_in_the_median() -> None:
    gpu = open_fake(seed=3)
    measured = Meter(gpu.clock, gpu).submit_time("submit", gpu.bind(Launch()))
    assert value(measured) == pytest.approx(3.2e-6, rel=0.01)
    assert measured.per_call.max > 1.5 * measured.per_call.p50


def test_round_trip_is_one_call_and_one_synchronise() -> None:
    gpu, meter = exact()
    costs = FakeCosts()
    on_the_gpu_ns = costs.launch_to_start_ns + costs.empty_kernel_ns
    expected_ns = costs.submit_ns + on_the_gpu_ns + costs.completion_ns["auto"] + costs.timer_call_ns
    assert value(meter.round_trip("round_trip", gpu.bind(Launch()))) == pytest.approx(expected_ns * 1e-9, rel=1e-3)


@given(st.integers(500, 8000), st.integers(0, 3000), st.integers(0, 20_000))
def test_throughput_is_the_slower_of_host_and_gpu(submit_ns: int, gap_ns: int, duration_ns: int) -> None:
    costs = FakeCosts(submit_ns=submit_ns, gap_stream_ns=gap_ns, empty_kernel_ns=10)
    gpu, meter = exact(costs=costs)
    measured = meter.throughput("period", gpu.bind(Launch(duration_ns=duration_ns)), 2000)
    slower_ns = max(submit_ns, max(duration_ns, 10) + gap_ns)
    ends_ns = costs.launch_to_start_ns + costs.completion_ns["auto"] + duration_ns + 2 * submit_ns + gap_ns
    assert slower_ns * 1e-9 <= value(measured) <= (slower_ns + ends_ns / 2000 + 10) * 1e-9
    assert measured.work == Work(launches=1)


@given(st.integers(100, 9000), st.integers(100, 9000))
def test_device_time_does_not_see_what_submission_costs(one_ns: int, other_ns: int) -> None:
    def device_time(submit_ns: int) -> Measurement:
        gpu, meter = exact(costs=FakeCosts(submit_ns=submit_ns))
        return meter.device_time("gated", gpu.bind(Launch(duration_ns=500)), 200)

    step_s = 32e-9 / 200
    assert value(device_time(one_ns)) == pytest.approx(value(device_time(other_ns)), abs=1.01 * step_s)


def test_device_time_is_duration_and_gap_and_a_share_of_the_events() -> None:
    gpu, meter = exact(Floors(event_pair_s=1.25e-6))
    costs = FakeCosts()
    measured = meter.device_time("gated", gpu.bind(Launch(duration_ns=2000)), 400)
    expected_ns = 2000 + costs.gap_stream_ns + costs.gap_event_ns / 400
    assert value(measured) == pytest.approx(expected_ns * 1e-9, abs=1e-10)
    assert (measured.clock, measured.floor_s) == ("device", 1.25e-6)


def test_device_time_of_copies_gives_their_rate() -> None:
    gpu, meter = exact()
    size_bytes = 1 << 24
    measured = meter.device_time("copy", gpu.bind(Copy("h2d", size_bytes)), 10)
    assert size_bytes / value(measured) == pytest.approx(60e9 * 256 / 276, rel=0.01)


@pytest.mark.parametrize(("argument_bytes", "most"), [(0, 508), (4000, 356)])
def test_device_time_refuses_more_calls_than_may_stand_behind_a_gate(argument_bytes: int, most: int) -> None:
    gpu, meter = exact()
    launch = gpu.bind(Launch(argument_bytes=argument_bytes))
    assert meter.device_time("gated", launch, most).n >= 10
    with pytest.raises(MeasurementError, match="do not fit behind a gate"):
        meter.device_time("gated", launch, most + 1)


def test_a_gate_that_always_times_out_fails_the_measurement() -> None:
    gpu, meter = exact(costs=FakeCosts(submit_ns=2e6))  # 300 calls of 2 ms are longer than the gate's half second
    with pytest.raises(MeasurementError, match="void"):
        meter.device_time("gated", gpu.bind(Launch()), 300)


def test_warm_up_is_outside_of_the_gate() -> None:
    gpu, meter = exact()
    counts: list[int] = []
    bound = gpu.bind(Launch())

    class Counting:
        queue_slots = bound.queue_slots
        burst_ns, stamps, round_trips = bound.burst_ns, bound.stamps, bound.round_trips

        def __call__(self, count: int) -> None:
            counts.append(count)
            bound(count)

    meter.device_time("gated", Counting(), 100)
    assert counts[0] == WARM_UP_CALLS
    assert set(counts[1:]) == {100}


def test_the_l2_is_overwritten_before_the_stream_is_held() -> None:
    gpu = MagicMock()
    gpu.info.l2_bytes = 1 << 20
    gpu.gate().was_late.return_value = False
    take = cold(gpu, gpu.submit)
    gpu.reset_mock()
    take()
    calls = [name for name, *_ in gpu.mock_calls if name != "synchronize"]
    before, after = ["bind()", "gate().shut", "events().start", "submit"], ["events().stop", "gate().open"]
    assert calls == [*before, *after, "gate().was_late", "events().elapsed_s"]

"""The Meter on the simulated GPU: bursts, submit time, round trip, throughput, gated device time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.core.errors import MeasurementError
from microbench.core.model import Floors, Measurement, Work
from microbench.core.ops import Copy, Launch, Query
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Gpu
from microbench.measure.timer import LONGEST_BURST, SHORTEST_BURST, WARM_UP_CALLS, Meter


def value(measurement: Measurement) -> float:
    """Median of a call."""
    return float(np.median(measurement.values)) / measurement.calls_per_sample


def exact(floors: Floors | None = None, costs: FakeCosts | None = None) -> tuple[Gpu, Meter]:
    """A simulated GPU without noise and a Meter for it."""
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
    assert measured.per_call is not None
    assert measured.per_call.n == 20 * LONGEST_BURST
    assert measured.per_call.p50 == pytest.approx(3.225e-6, rel=1e-3), "a stamp's own cost is in each"
    assert meter.submit_time("submit", gpu.bind(Launch()), per_call=False).per_call is None


def test_noise_shows_in_the_tail_and_not_in_the_median() -> None:
    gpu = open_fake(seed=3)
    measured = Meter(gpu.clock, gpu).submit_time("submit", gpu.bind(Launch()))
    assert value(measured) == pytest.approx(3.2e-6, rel=0.01)
    assert measured.per_call is not None
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
    copy, work = gpu.bind(Copy("h2d", size_bytes)), Work(bytes=size_bytes)
    measured = meter.device_time("copy", copy, 10, work=work, bound="pcie_h2d")
    assert size_bytes / value(measured) == pytest.approx(60e9 * 256 / 276, rel=0.01)
    assert measured.bound == "pcie_h2d"


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

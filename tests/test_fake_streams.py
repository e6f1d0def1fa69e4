"""Gates, events, streams and cases of the simulated GPU, and what it answers to wrong use."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Copy, GraphLaunch, Launch, LayerCall, Query, Record, Wait
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import Gpu

COSTS = FakeCosts()


def exact(costs: FakeCosts = COSTS) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def test_work_behind_a_shut_gate_does_not_start_until_it_opens() -> None:
    gpu = exact()
    gate, events = gpu.gate(), gpu.events()
    gate.shut()
    events.start()
    gpu.bind(Launch(duration_ns=1000))(10)
    events.stop()
    waited_until_ns = gpu.clock.now_ns() + 100_000
    while gpu.clock.now_ns() < waited_until_ns:
        pass
    gate.open()
    gpu.synchronize()
    assert gpu.clock.now_ns() > waited_until_ns + 10 * 2400
    assert not gate.was_late()
    expected_ns = 10 * (1000 + COSTS.gap_stream_ns) + COSTS.gap_event_ns
    assert events.elapsed_s() * 1e9 == pytest.approx(expected_ns, abs=32)


def test_a_gate_that_the_host_waits_behind_opens_by_its_time_out() -> None:
    gpu = exact()
    gate = gpu.gate()
    began_ns = gpu.clock.now_ns()
    gate.shut(timeout_s=0.01)
    gpu.bind(Launch())(1)
    gpu.synchronize_stream()
    assert gate.was_late()
    assert gpu.clock.now_ns() - began_ns == pytest.approx(10e6, rel=0.01)
    gate.open()
    assert gate.was_late(), "too late is too late"
    gate.shut()
    gate.open()
    gpu.synchronize()
    assert not gate.was_late(), "the last shut counts"
    gate.shut(timeout_s=1e-4)
    gpu.bind(Launch())(100)  # 320 us
    gate.open()
    gpu.synchronize()
    assert gate.was_late()


def test_a_gate_holds_the_streams_it_was_shut_for_and_no_other() -> None:
    gpu = exact()
    gate = gpu.gate()
    gate.shut((0, 1), timeout_s=1.0)
    for stream in (0, 1, 2):
        gpu.bind(Launch(stream=stream))(1)
    began_ns = gpu.clock.now_ns()
    gpu.synchronize_stream(2)
    assert gpu.clock.now_ns() - began_ns < 20_000
    gate.open()
    gpu.synchronize()
    assert not gate.was_late()
    gate.shut((0, 1), timeout_s=0.01)
    gpu.synchronize_stream(1)
    assert gate.was_late()


def test_a_wait_holds_its_stream_until_the_event_of_another_stream() -> None:
    gpu = exact()
    gpu.bind(Launch(duration_ns=1_000_000, stream=1))(1)
    gpu.bind(Record(timed=False, stream=1))(1)
    gpu.bind(Wait(stream=0, other=1))(1)
    began_ns = gpu.clock.now_ns()
    gpu.bind(Launch())(1)
    gpu.synchronize_stream(0)
    assert gpu.clock.now_ns() - began_ns == pytest.approx(1e6, rel=0.01)
    gate = gpu.gate()
    gate.shut((1,), timeout_s=0.01)
    gpu.bind(Record(stream=1))(1)
    gpu.bind(Wait(stream=0, other=1))(1)
    gpu.synchronize_stream(0)
    assert gate.was_late(), "the event stands behind the gate"


def test_one_copy_engine_a_direction_serves_all_streams() -> None:
    gpu = exact()
    size_bytes = 1 << 26
    one_way_s = COSTS.on_the_link_bytes("h2d", size_bytes) / COSTS.link_bytes_per_s

    def took_s(second: Copy) -> float:
        gpu.synchronize()
        began_ns = gpu.clock.now_ns()
        gpu.bind(Copy("h2d", size_bytes))(1)
        gpu.bind(second)(1)
        gpu.synchronize()
        return (gpu.clock.now_ns() - began_ns) * 1e-9

    assert took_s(Copy("h2d", size_bytes, stream=1)) == pytest.approx(2 * one_way_s, rel=0.02)
    assert took_s(Copy("d2h", size_bytes, stream=1)) == pytest.approx(one_way_s, rel=0.03)


def test_kernels_resident_at_once_are_limited_by_streams_time_and_the_gpu() -> None:
    gpu = exact()
    assert gpu.resident(7, 1_000_000) == 7
    assert gpu.resident(COSTS.resident_kernels, 1_000_000) == COSTS.resident_kernels
    assert gpu.resident(200, 1_000_000) == COSTS.resident_kernels
    assert gpu.resident(64, 1000) == math.ceil(1000 / COSTS.front_end_ns)


def test_a_case_that_raises_leaves_an_idle_gpu() -> None:
    gpu = exact()

    def broken() -> None:
        with gpu.case():
            gpu.gate().shut(timeout_s=0.01)
            gpu.bind(Launch(duration_ns=1_000_000))(5)
            raise MeasurementError("broken")

    with pytest.raises(MeasurementError, match="broken"):
        broken()
    with gpu.case():
        began_ns = gpu.clock.now_ns()
        gpu.synchronize()
        assert gpu.clock.now_ns() - began_ns < 5000
        assert gpu.bind(Launch()).burst_ns(100) / 100 == pytest.approx(COSTS.submit_ns, abs=1)


def test_what_was_made_before_a_case_outlives_it() -> None:
    gpu = exact()
    submit, graph = gpu.bind(Launch()), gpu.graph([Launch()])
    with gpu.case():
        submit(1)
    submit(1)
    gpu.bind(graph)(1)


@pytest.mark.parametrize(
    ("use", "error", "reason"),
    [
        (lambda gpu: gpu.bind(LayerCall("warp")), Skip, "warp"),
        (lambda gpu: gpu.bind(GraphLaunch(99, 1)), MeasurementError, "does not exist"),
        (lambda gpu: gpu.graph([]), MeasurementError, "at least one node"),
        (lambda gpu: gpu.graph([Query()]), MeasurementError, "captures"),
        (lambda gpu: gpu.gate().open(), MeasurementError, "never shut"),
        (lambda gpu: gpu.events().elapsed_s(), MeasurementError, "recorded"),
        (lambda gpu: gpu.record(Launch(), 511, graph=False, gated=True), MeasurementError, "behind a gate"),
    ],
)
def test_wrong_use_raises_with_a_reason(use: Callable[[Gpu], object], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        use(exact())

"""The simulated GPU gives its constants back: calls, start, complete, gaps, traffic, host, first acts."""

from __future__ import annotations

import numpy as np
import pytest

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import (
    LEGACY_STREAM,
    Copy,
    Launch,
    LaunchKind,
    LayerCall,
    Memset,
    Op,
    Query,
    Record,
    SynchronizeIdle,
    Wait,
)
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.environment import FAKE_NAME, FAKE_UUID, FakeHost, fake_environment, open_fake_cold
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.protocol.gpu import WAIT_MODES, WAIT_VARIABLE, ColdStarts, Gpu, Host, WaitMode

COSTS = FakeCosts()


def exact(costs: FakeCosts = COSTS) -> Gpu:
    """A simulated GPU without noise."""
    return open_fake(costs, spread=0)


def call_ns(gpu: Gpu, op: Op, count: int = 100) -> float:
    """Host time of a call in a burst."""
    gpu.synchronize()
    return (gpu.bind(op).burst_ns(count) - COSTS.timer_call_ns) / count


@pytest.mark.parametrize(
    ("op", "expected_ns"),
    [
        (Launch(), COSTS.submit_ns),
        (Launch(stream=LEGACY_STREAM), COSTS.submit_ns + COSTS.legacy_stream_submit_ns),
        (Launch(argument_bytes=1000), COSTS.submit_ns + 1000 * COSTS.submit_argument_ns),
        (Launch(kind="cooperative"), COSTS.submit_ns + COSTS.kind_submit_ns["cooperative"]),
        (Copy("h2d", 64), COSTS.copy_h2d_submit_ns),
        (Copy("d2h", 64), COSTS.copy_d2h_submit_ns),
        (Memset(4), COSTS.memset_submit_ns),
        (Record(), COSTS.timed_record_ns),
        (Record(timed=False), COSTS.untimed_record_ns),
        (Wait(), COSTS.wait_event_ns),
        (Query(), COSTS.query_ns),
        (SynchronizeIdle("stream"), COSTS.idle_stream_ns),
        (SynchronizeIdle("event"), COSTS.idle_event_ns),
        (LayerCall("torch_eager"), COSTS.layers["torch_eager"].call_ns),
        (LayerCall("cupy_raw", 4), COSTS.layers["cupy_raw"].call_ns + 4 * COSTS.layers["cupy_raw"].argument_ns),
    ],
    ids=str,
)
def test_each_call_keeps_the_host_as_long_as_its_constant(op: Op, expected_ns: float) -> None:
    assert call_ns(exact(), op) == pytest.approx(expected_ns, abs=0.1)


def test_a_graph_launch_costs_a_call_and_a_little_for_each_node() -> None:
    gpu = exact()
    graph = gpu.graph([Launch()] * 1000)
    assert graph.nodes == 1000
    assert call_ns(gpu, graph) == pytest.approx(COSTS.graph_submit_ns + 1000 * COSTS.graph_node_submit_ns, abs=0.1)


def test_start_and_complete_show_in_the_stamps() -> None:
    stamps = exact().start_stamps(50)
    before_ns, returned_ns, flag_ns, synchronised_ns = stamps.T
    assert np.allclose(returned_ns - before_ns, COSTS.submit_ns + COSTS.timer_call_ns, atol=1)
    assert np.allclose((flag_ns - before_ns) * 1e-9, COSTS.start_s, atol=1e-9)
    completes_s = (synchronised_ns - flag_ns) * 1e-9
    assert np.allclose(completes_s, COSTS.complete_s("auto") + COSTS.timer_call_ns * 1e-9, atol=2e-9)


def test_start_less_the_flags_way_back_is_the_first_instruction() -> None:
    gpu = exact()
    stamps = gpu.start_stamps(9)
    start_s = float(np.median(stamps[:, 2] - stamps[:, 0])) * 1e-9
    way_back_s = float(np.median(gpu.flag_round_trips(9)) - np.median(gpu.host_read_ns(9))) * 1e-9
    assert start_s - way_back_s == pytest.approx(COSTS.start_estimate_s, abs=2e-9)
    assert np.median(gpu.flag_round_trips(9)) * 1e-9 == pytest.approx(COSTS.flag_round_trip_s)


@pytest.mark.parametrize("wait", WAIT_MODES)
def test_the_wait_mode_decides_what_complete_costs(wait: WaitMode) -> None:
    stamps = open_fake(spread=0, wait=wait).start_stamps(5)
    assert np.median(stamps[:, 3] - stamps[:, 2]) * 1e-9 == pytest.approx(COSTS.complete_s(wait), abs=3e-8)


def test_the_wait_mode_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "blocking")
    stamps = open_fake(spread=0).start_stamps(5)
    assert np.median(stamps[:, 3] - stamps[:, 2]) * 1e-9 == pytest.approx(COSTS.complete_s("blocking"), abs=3e-8)
    monkeypatch.setenv(WAIT_VARIABLE, "patient")
    with pytest.raises(MeasurementError, match="patient is no wait mode"):
        open_fake()


def test_some_flags_are_missed_with_noise() -> None:
    flags_ns = open_fake(seed=1).start_stamps(5000)[:, 2]
    assert 0 < (flags_ns == 0).sum() < 50


@pytest.mark.parametrize("duration_ns", [0, 1000, 20_000])
@pytest.mark.parametrize("gated", [True, False])
def test_recorded_gaps_in_a_stream_and_in_a_graph(duration_ns: int, gated: bool) -> None:
    gpu = exact()
    in_graph = gpu.record(Launch(duration_ns=duration_ns), 400, graph=True, gated=gated)
    gap_ns = float(np.mean(in_graph.start_ns[1:] - in_graph.end_ns[:-1]))
    assert gap_ns == pytest.approx(COSTS.gap_graph_ns, abs=in_graph.step_ns / 10)
    in_stream = gpu.record(Launch(duration_ns=duration_ns), 400, graph=False, gated=gated)
    assert in_stream.start_ns.shape == in_stream.end_ns.shape == (400,)
    assert not (in_stream.start_ns % in_stream.step_ns).any()
    gap_ns = float(np.mean(in_stream.start_ns[1:] - in_stream.end_ns[:-1]))
    runs_ns = max(duration_ns, COSTS.empty_kernel_ns)
    hidden = gated or runs_ns + COSTS.gap_stream_ns > COSTS.submit_ns
    expected_ns = COSTS.gap_stream_ns if hidden else COSTS.submit_ns - runs_ns
    assert gap_ns == pytest.approx(expected_ns, abs=in_stream.step_ns)
    assert np.mean(in_stream.end_ns - in_stream.start_ns) == pytest.approx(runs_ns, abs=in_stream.step_ns)


@pytest.mark.parametrize("kind", ["launch_ex", "cooperative", "cluster", "pdl"])
def test_kinds_differ_by_their_constants(kind: LaunchKind) -> None:
    recorded = exact().record(Launch(kind=kind), 400, graph=False, gated=True)
    gap_ns = float(np.mean(recorded.start_ns[1:] - recorded.end_ns[:-1]))
    assert gap_ns == pytest.approx(COSTS.gap_stream_ns + COSTS.kind_gap_ns[kind], abs=4)


# -- what travels over the bus -----------------------------------------------------------------------------------


def traffic(gpu: Gpu, op: Op, count: int = 1000) -> tuple[float, float]:
    """Bytes received and sent a call, less what an idle GPU and the reading itself move."""
    bound = gpu.bind(op)
    begin, begin_ns = gpu.pcie_bytes(), gpu.clock.now_ns()
    bound(count)
    gpu.synchronize()
    end, elapsed_s = gpu.pcie_bytes(), (gpu.clock.now_ns() - begin_ns) * 1e-9
    received = end.received - begin.received - COSTS.counter_read_traffic.received
    sent = end.sent - begin.sent - COSTS.counter_read_traffic.sent
    idle = COSTS.idle_traffic_per_s
    return (received - idle.received * elapsed_s) / count, (sent - idle.sent * elapsed_s) / count


@pytest.mark.parametrize(
    ("op", "received", "sent"),
    [
        (Launch(), 1800, 300),
        (Launch(duration_ns=20_000), 1800, 300),
        (Launch(argument_bytes=1000), 1800 + 1100, 300),
        (Copy("h2d", 1 << 20), 250 + (1 << 20) * 276 / 256, 115 + (1 << 20) * 24 / 256),
        (Copy("d2h", 1 << 20), 200, 110 + (1 << 20) * 280 / 256),
        (Memset(4), 200, 95),
        (Record(), 180, 155),
        (Record(timed=False), 0, 0),
    ],
    ids=str,
)
def test_traffic_of_an_act(op: Op, received: float, sent: float) -> None:
    assert traffic(exact(), op) == pytest.approx((received, sent), rel=1e-3, abs=0.5)


def test_traffic_of_a_graph_grows_with_its_nodes() -> None:
    gpu = exact()
    assert traffic(gpu, gpu.graph([Launch()] * 100)) == pytest.approx((250 + 100, 150 + 5), abs=0.5)


# -- host, cold starts, environment ------------------------------------------------------------------------------


def test_the_simulated_host_gives_back_its_constants() -> None:
    host: Host = FakeHost(spread=0)
    assert host.simulated
    assert host.cores() == COSTS.host_cores
    assert np.diff(host.clock_stamps(100)).tolist() == [int(COSTS.timer_call_ns)] * 99
    for how, expected_ns in COSTS.host_call_ns.items():
        assert host.call_s(how, 1000) == pytest.approx(1000 * expected_ns * 1e-9)
    for how, expected_ns in COSTS.host_wakeup_ns.items():
        assert host.wakeup_stamps(how, 10).tolist() == [expected_ns] * 10
    size_bytes = 1 << 28
    assert size_bytes / host.copy_s(1, size_bytes) == pytest.approx(COSTS.host_core_bytes_per_s, rel=1e-3)
    together = COSTS.host_cores * size_bytes / host.copy_s(COSTS.host_cores, size_bytes)
    assert together == pytest.approx(COSTS.host_memory_bytes_per_s, rel=1e-3)
    assert 65536 / host.copy_s(1, 65536) > COSTS.host_core_bytes_per_s


def test_the_simulated_host_spends_its_time_and_refuses_what_it_has_not() -> None:
    host = FakeHost()
    before_ns = host.clock.now_ns()
    took_s = host.call_s("python", 10_000)
    assert (host.clock.now_ns() - before_ns) * 1e-9 >= took_s
    with pytest.raises(MeasurementError, match="no way of calling"):
        host.call_s("telepathy", 1)
    with pytest.raises(MeasurementError, match="no hand-off"):
        host.wakeup_stamps("telepathy", 1)


def test_cold_starts_can_be_taken_once() -> None:
    cold: ColdStarts = open_fake_cold(spread=0)
    for what, expected_s in COSTS.cold_s.items():
        assert cold.seconds(what) == pytest.approx(expected_s)
    assert len(set(COSTS.cold_s.values())) == len(COSTS.cold_s)
    with pytest.raises(MeasurementError, match="not cold"):
        cold.seconds("context")
    with pytest.raises(Skip):
        cold.seconds("breakfast")


def test_all_of_it_is_marked_simulated() -> None:
    environment = fake_environment()
    (info,) = environment.gpus
    gpu = exact()
    assert info == gpu.info
    assert (info.name, info.uuid, info.simulated, gpu.simulated) == (FAKE_NAME, FAKE_UUID, True, True)
    assert "SIMULATED" in FAKE_NAME
    assert environment.driver_version == "SIMULATED"
    assert environment.packages == {}
    assert environment.facts
    assert {fact.source for fact in environment.facts} == {"SIMULATED"}

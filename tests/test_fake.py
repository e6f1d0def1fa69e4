"""The simulated machine: clocks and noise, gates, events, streams and cases, and its launch queue."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_session import exact
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Copy, GraphLaunch, Launch, LayerCall, Op, Query, Record, Wait
from microbench.experiments.launch.exchanges import host_read_ns, resident, start_stamps, threads_stamps
from microbench.experiments.link.concurrent import play, visible_gpus
from microbench.experiments.link.state import link_state
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.device import max_plus
from microbench.gpu.fake.gpu import (
    COSTS_VARIABLE,
    FAKE_NAME,
    FAKE_UUID,
    GPUS_VARIABLE,
    SEED_VARIABLE,
    costs_here,
    fake_environment,
    open_fake,
    open_fake_cold,
)
from microbench.gpu.open import open_host
from microbench.gpu.protocol.gpu import WAIT_VARIABLE, ColdStarts, Gpu
from microbench.session.plan import make_plan, select

COSTS = FakeCosts()


def test_all_of_it_is_marked_simulated() -> None:
    environment, gpu = fake_environment(), open_fake()
    assert environment.gpus == (gpu.info,)
    assert (gpu.info.name, gpu.info.uuid, gpu.info.simulated, gpu.simulated) == (FAKE_NAME, FAKE_UUID, True, True)
    assert "SIMULATED" in FAKE_NAME
    assert environment.driver_version == "SIMULATED"
    assert environment.packages == {}
    assert {fact.source for fact in (*environment.facts, *link_state(gpu))} == {"SIMULATED"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_fact_of_the_link_has_a_value_or_a_reason(gpus: int) -> None:
    facts = {fact.name: fact for fact in link_state(open_fake(FakeCosts(gpus=gpus)))}
    assert all((fact.value is None) == (fact.reason is not None) for fact in facts.values())
    assert ("topology_gpu1" in facts) == (gpus == 2)
    assert (facts["nvlink_bytes_per_s"].value is None) == (gpus == 1)


def test_the_wait_mode_and_the_number_of_gpus_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "blocking")
    gpu = open_fake(spread=0)
    gpu.bind(Launch())(1)
    began_ns = gpu.clock.now_ns()
    gpu.synchronize()
    assert gpu.clock.now_ns() - began_ns > COSTS.completion_ns["blocking"]
    assert [gpu.index for gpu in fake_environment().gpus] == list(visible_gpus(open_fake())) == [0]
    monkeypatch.setenv(GPUS_VARIABLE, "2")
    first, second = fake_environment().gpus
    assert list(visible_gpus(open_fake())) == [first.index, second.index] == [0, 1]
    assert first.uuid != second.uuid
    assert first.pci_bus_id != second.pci_bus_id
    for variable, wrong in ((GPUS_VARIABLE, ("0", "17", "two", "-1", "")), (WAIT_VARIABLE, ("patient",))):
        for value in wrong:
            monkeypatch.setenv(variable, value)
            with pytest.raises(MeasurementError, match=f"{variable}={value} is no"):
                open_fake()


def test_the_environment_changes_costs_and_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        COSTS_VARIABLE,
        '{"link_bytes_per_s": 3e10, "memory": {"dram_bytes_per_s": {"read": 2e12}}, '
        '"memory_errors": {"remap_pending": true, "pages_retired": 2}}',
    )
    changed = costs_here()
    assert (changed.link_bytes_per_s, changed.memory.dram_bytes_per_s.read) == (3e10, 2e12)
    assert changed.memory.dram_bytes_per_s.write == COSTS.memory.dram_bytes_per_s.write
    errors = fake_environment().gpus[0].memory_errors
    assert (errors.remap_pending, errors.pages_retired, errors.remap_failed) == (True, 2, False)
    for value in ('{"no_such_cost": 1}', '{"memory": 3}', '{"link_bytes_per_s": "much"}', "[1]", "{"):
        monkeypatch.setenv(COSTS_VARIABLE, value)
        with pytest.raises(MeasurementError, match=f"{COSTS_VARIABLE} is no JSON of costs"):
            costs_here()
    monkeypatch.delenv(COSTS_VARIABLE)
    assert costs_here() == COSTS
    stamps = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv(SEED_VARIABLE, seed)
        stamps.append(open_host("fake").clock_stamps(20).tolist())
    assert stamps[0] == stamps[1] != stamps[2]
    monkeypatch.setenv(SEED_VARIABLE, "x")
    with pytest.raises(MeasurementError, match=f"{SEED_VARIABLE}=x is no seed"):
        open_host("fake")


@pytest.mark.parametrize("name", ["link_peer", "link_concurrent", "link_numa"])
def test_gpus_and_numa_nodes_are_planned_where_there_are_several(name: str) -> None:
    selected = select({name: discover()[name]}, (name,), "quick", {})
    for count in (1, 2):
        here = fake_environment(FakeCosts(gpus=count, links=LinkCosts(numa_nodes=count)))
        plan = make_plan(selected, here, device="fake")
        if name == "link_numa":
            assert {one.case.params["node"] for one in plan.cases} == set(range(count))
        else:
            assert bool(plan.cases) == (count == 2)


def test_cold_starts_can_be_taken_once() -> None:
    cold: ColdStarts = open_fake_cold(spread=0)
    assert cold("context") == pytest.approx(COSTS.cold_s["context"])
    with pytest.raises(MeasurementError, match="not cold"):
        cold("context")
    with pytest.raises(Skip):
        cold("breakfast")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["launch", "copy", "gate", "open", "sync", "record", "telemetry", "bytes", "threads"])))
def test_virtual_time_never_goes_backwards(acts: list[str]) -> None:
    gpu = open_fake(seed=7)
    gate = gpu.gate()
    gate.shut(timeout_s=1e-3)
    last_ns, globaltimer_ns = gpu.clock.now_ns(), 0
    for act in acts:
        match act:
            case "launch":
                stamps = np.zeros(600, dtype=np.int64)
                gpu.bind(Launch(duration_ns=4000)).stamps(stamps)
                assert stamps[0] >= last_ns
                assert (np.diff(stamps) > 0).all()
            case "copy":
                gpu.bind(Copy("d2h", 4096, stream=1))(3)
            case "gate":
                gate.shut((0, 1), timeout_s=1e-3)
            case "open":
                gate.open()
            case "sync":
                gpu.synchronize()
            case "record":
                recorded = gpu.record(Launch(), 20, graph=False, gated=False)
                assert recorded.start_ns[0] >= globaltimer_ns
                assert (recorded.end_ns >= recorded.start_ns).all()
                assert (recorded.start_ns[1:] >= recorded.end_ns[:-1]).all()
                globaltimer_ns = int(recorded.end_ns[-1])
            case "telemetry":
                assert gpu.telemetry().sm_clock_begin_hz == COSTS.sm_clock_hz
            case "bytes":
                before = gpu.pcie_bytes()
                assert gpu.pcie_bytes().sent > before.sent
            case "threads":
                threads_stamps(gpu, 2, 10)
        now_ns = gpu.clock.now_ns()
        assert now_ns > last_ns
        last_ns = now_ns


def trace(seed: int, spread: float = 0.005) -> list[int]:
    gpu = open_fake(seed=seed, spread=spread)
    stamps = np.zeros(200, dtype=np.int64)
    gpu.bind(Launch()).stamps(stamps)
    return [*stamps.tolist(), *start_stamps(gpu, 20).ravel().tolist(), *host_read_ns(gpu, 5).tolist()]


def test_one_seed_gives_one_sequence_of_times() -> None:
    assert trace(4) == trace(4)
    assert trace(4) != trace(5)
    assert trace(4, spread=0) == trace(5, spread=0)


def test_noise_has_the_spread_asked_for_a_rare_long_tail_and_missed_flags() -> None:
    stamps, gpu = np.zeros(20_001, dtype=np.int64), open_fake(seed=2, spread=0.01)
    gpu.bind(Launch()).stamps(stamps)
    took_ns = np.diff(stamps) - COSTS.timer_call_ns
    assert np.median(took_ns) == pytest.approx(COSTS.submit_ns, rel=2e-3)
    body_ns = took_ns[took_ns < 1.1 * COSTS.submit_ns]
    assert np.std(body_ns) / COSTS.submit_ns == pytest.approx(0.01, rel=0.1)
    assert 0.0005 < 1 - len(body_ns) / len(took_ns) < 0.004
    assert 0 < (start_stamps(gpu, 5000)[:, 2] == 0).sum() < 50


def test_ways_share_a_wire_until_one_of_them_is_done() -> None:
    # The link carries 1 byte a ns. Each of the two ways gets half of it for 200 ns, then the second all of it.
    costs = FakeCosts(link_bytes_per_s=1e9)
    ends_ns = play(costs, [{"up0": 1.0}, {"up0": 1.0}], [2, 4], size_bytes=50, before_ns=0)
    assert ends_ns[0] == pytest.approx([100, 200])
    assert ends_ns[1] == pytest.approx([100, 200, 250, 300])


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
    assert resident(gpu, 7, 1_000_000) == 7
    assert resident(gpu, COSTS.resident_kernels, 1_000_000) == COSTS.resident_kernels
    assert resident(gpu, 200, 1_000_000) == COSTS.resident_kernels
    assert resident(gpu, 64, 1000) == math.ceil(1000 / COSTS.front_end_ns)


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


@pytest.mark.parametrize(("use", "error", "reason"), [
    (lambda gpu: gpu.bind(LayerCall("warp")), Skip, "warp"),
    (lambda gpu: gpu.bind(GraphLaunch(99, 1)), MeasurementError, "does not exist"),
    (lambda gpu: gpu.graph([]), MeasurementError, "at least one node"),
    (lambda gpu: gpu.graph([Query()]), MeasurementError, "captures"),
    (lambda gpu: gpu.gate().open(), MeasurementError, "never shut"),
    (lambda gpu: gpu.events().elapsed_s(), MeasurementError, "recorded"),
    (lambda gpu: gpu.record(Launch(), 511, graph=False, gated=True), MeasurementError, "behind a gate"),
])  # fmt: skip
def test_wrong_use_raises_with_a_reason(use: Callable[[Gpu], object], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        use(exact())


def depth(gpu: Gpu, op: Op, tries: int = 1300) -> int | None:
    """How many calls behind a gate return before one blocks until the gate times out; None if none does."""
    stamps = np.zeros(tries + 1, dtype=np.int64)
    gpu.synchronize()
    gpu.gate().shut(timeout_s=0.05)
    gpu.bind(op).stamps(stamps)
    took_ns = np.diff(stamps)
    gpu.synchronize()
    return int(took_ns.argmax()) if took_ns.max() > 1e6 else None


@pytest.mark.parametrize(("op", "expected"), [
    (Launch(), COSTS.queue_slots),
    (Launch(argument_bytes=4000), COSTS.queue_depth(4000 + COSTS.launch_record_bytes)),
    (Copy("h2d", 4), COSTS.queue_slots),
    (Record(timed=False), None),
], ids=str)  # fmt: skip
def test_the_queue_holds_its_depth_and_half_of_it_may_stand_behind_a_gate(op: Op, expected: int | None) -> None:
    gpu = open_fake(COSTS, spread=0)
    assert depth(gpu, op) == expected
    assert gpu.bind(op).queue_slots == (expected // 2 if expected else None)


@dataclass
class PlainStream:
    """A stream of the plain simulation: when it is free, and (start, buffer bytes) of every item of its queue."""

    free_ns: float = -math.inf
    entered: list[tuple[float, float]] = field(default_factory=list)


def plain_returns(costs: FakeCosts, runs: list[tuple[Launch, int]], gate_s: float | None) -> list[float]:
    """When each call returns, one call after another and one waiting slot after another."""
    streams = {stream: PlainStream() for stream in (0, 1)}
    now_ns, returns = 1e9, []
    if gate_s is not None:
        now_ns += costs.submit_ns
        start_ns = now_ns + costs.launch_to_start_ns
        streams[0] = PlainStream(start_ns + gate_s * 1e9, [(start_ns, 0.0)])
    for op, count in runs:
        stream, buffer_bytes = streams[op.stream], op.argument_bytes + costs.launch_record_bytes
        for _ in range(count):
            while True:
                waiting = [(start, size) for start, size in stream.entered if start > now_ns]
                fits = sum(size for _, size in waiting) + buffer_bytes <= costs.queue_buffer_bytes
                if len(waiting) < costs.queue_slots and fits:
                    break
                now_ns = min(start for start, _ in waiting)
            now_ns += costs.submit_ns + costs.submit_argument_ns * op.argument_bytes
            returns.append(now_ns)
            start_ns = max(now_ns + costs.launch_to_start_ns, stream.free_ns + costs.gap_stream_ns)
            stream.entered.append((start_ns, buffer_bytes))
            stream.free_ns = start_ns + max(op.duration_ns, costs.empty_kernel_ns)
    return returns


launches = st.builds(
    Launch, duration_ns=st.sampled_from([0, 2000, 30_000]), argument_bytes=st.sampled_from([0, 500, 3000]),
    stream=st.sampled_from([0, 1]),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(launches, st.integers(1, 40)), min_size=1, max_size=6), st.sampled_from([None, 1e-4, 1e-2]))
def test_every_call_returns_when_a_plain_simulation_says(runs: list[tuple[Launch, int]], gate_s: float | None) -> None:
    costs = FakeCosts(queue_slots=12, queue_buffer_bytes=20_000, launch_record_bytes=1000, timer_call_ns=0)
    gpu = open_fake(costs, spread=0)
    if gate_s is not None:
        gpu.gate().shut(timeout_s=gate_s)
    returns: list[int] = []
    for op, count in runs:
        stamps = np.zeros(count + 1, dtype=np.int64)
        gpu.bind(op).stamps(stamps)
        returns.extend(stamps[1:].tolist())
    assert returns == pytest.approx(plain_returns(costs, runs, gate_s), rel=0, abs=1.01)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e5)), min_size=1, max_size=50))
def test_max_plus_solves_its_recurrence(pairs: list[tuple[float, float]]) -> None:
    floors, steps = np.array(pairs).T
    value, expected = -math.inf, []
    for floor, step in pairs:
        value = max(value, floor) + step
        expected.append(value)
    assert max_plus(floors, steps) == pytest.approx(expected, abs=1e-6)

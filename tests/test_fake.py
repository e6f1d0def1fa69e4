"""The simulated machine: everything is marked SIMULATED, time never runs back, one seed gives one sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.bench import discover
from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Copy, Launch
from microbench.gpu.fake.costs import FakeCosts, LinkCosts
from microbench.gpu.fake.environment import FAKE_NAME, FAKE_UUID, GPUS_VARIABLE, fake_environment, open_fake_cold
from microbench.gpu.fake.gpu import open_fake
from microbench.gpu.fake.links import play
from microbench.gpu.protocol.gpu import WAIT_VARIABLE, ColdStarts
from microbench.run.plan import make_plan, select

COSTS = FakeCosts()


def test_all_of_it_is_marked_simulated() -> None:
    environment, gpu = fake_environment(), open_fake()
    assert environment.gpus == (gpu.info,)
    assert (gpu.info.name, gpu.info.uuid, gpu.info.simulated, gpu.simulated) == (FAKE_NAME, FAKE_UUID, True, True)
    assert "SIMULATED" in FAKE_NAME
    assert environment.driver_version == "SIMULATED"
    assert environment.packages == {}
    assert {fact.source for fact in (*environment.facts, *gpu.links.state())} == {"SIMULATED"}


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_fact_of_the_link_has_a_value_or_a_reason(gpus: int) -> None:
    facts = {fact.name: fact for fact in open_fake(FakeCosts(gpus=gpus)).links.state()}
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
    assert [gpu.index for gpu in fake_environment().gpus] == list(open_fake().links.gpus()) == [0]
    monkeypatch.setenv(GPUS_VARIABLE, "2")
    first, second = fake_environment().gpus
    assert list(open_fake().links.gpus()) == [first.index, second.index] == [0, 1]
    assert first.uuid != second.uuid
    assert first.pci_bus_id != second.pci_bus_id
    for variable, wrong in ((GPUS_VARIABLE, ("0", "17", "two", "-1", "")), (WAIT_VARIABLE, ("patient",))):
        for value in wrong:
            monkeypatch.setenv(variable, value)
            with pytest.raises(MeasurementError, match=f"{variable}={value} is no"):
                open_fake()


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
    assert cold.seconds("context") == pytest.approx(COSTS.cold_s["context"])
    with pytest.raises(MeasurementError, match="not cold"):
        cold.seconds("context")
    with pytest.raises(Skip):
        cold.seconds("breakfast")


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
                gpu.threads_stamps(2, 10)
        now_ns = gpu.clock.now_ns()
        assert now_ns > last_ns
        last_ns = now_ns


def trace(seed: int, spread: float = 0.005) -> list[int]:
    gpu = open_fake(seed=seed, spread=spread)
    stamps = np.zeros(200, dtype=np.int64)
    gpu.bind(Launch()).stamps(stamps)
    return [*stamps.tolist(), *gpu.start_stamps(20).ravel().tolist(), *gpu.host_read_ns(5).tolist()]


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
    assert 0 < (gpu.start_stamps(5000)[:, 2] == 0).sum() < 50


def test_ways_share_a_wire_until_one_of_them_is_done() -> None:
    # The link carries 1 byte a ns. Each of the two ways gets half of it for 200 ns, then the second all of it.
    costs = FakeCosts(link_bytes_per_s=1e9)
    ends_ns = play(costs, [{"up0": 1.0}, {"up0": 1.0}], [2, 4], size_bytes=50, before_ns=0)
    assert ends_ns[0] == pytest.approx([100, 200])
    assert ends_ns[1] == pytest.approx([100, 200, 250, 300])

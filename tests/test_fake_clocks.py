"""Clocks and noise of the simulated GPU: time never runs back, one seed gives one sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microbench.core.ops import Copy, Launch
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import open_fake

COSTS = FakeCosts()


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


def test_noise_has_the_spread_asked_for_and_a_rare_long_tail() -> None:
    stamps = np.zeros(20_001, dtype=np.int64)
    open_fake(seed=2, spread=0.01).bind(Launch()).stamps(stamps)
    took_ns = np.diff(stamps) - COSTS.timer_call_ns
    assert np.median(took_ns) == pytest.approx(COSTS.submit_ns, rel=2e-3)
    body_ns = took_ns[took_ns < 1.1 * COSTS.submit_ns]
    assert np.std(body_ns) / COSTS.submit_ns == pytest.approx(0.01, rel=0.1)
    assert 0.0005 < 1 - len(body_ns) / len(took_ns) < 0.004

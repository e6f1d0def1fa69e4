"""What slow calls share, with made-up times whose causes are known, and the finding that says it."""

import numpy as np
import pytest
from make_fake_run import make_fake_run
from make_run import make_run, measurement, outcome, with_suite

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.core.ops import IntArray
from microbench.explain.rules import of_suite
from microbench.gpu.fake.costs import FakeCosts
from microbench.measure import tails

CALL_NS, BURST, APART_NS = 2400, 400, 1_370_000
Stamps = tuple[np.ndarray, np.ndarray]


def bursts(count: int, stopped: int, tick_ns: float | None, seed: int = 1) -> Stamps:
    """When the calls of bursts began, and which of them were stopped: those at a tick, then others by chance."""
    begins = np.arange(count)[:, None] * APART_NS + np.arange(BURST) * CALL_NS
    slow = np.zeros(begins.shape, dtype=bool)
    if tick_ns is not None:
        slow = np.floor(begins / tick_ns) != np.floor((begins + CALL_NS) / tick_ns)
    slow.flat[np.random.default_rng(seed).choice(slow.size, stopped, replace=False)] = True
    return begins, slow


def found(begins: np.ndarray, slow: np.ndarray) -> tails.Shared | None:
    return tails.tick(begins[slow].astype(float), begins.ravel().astype(float))


@pytest.mark.parametrize("tick_ns", tails.TICKS_NS)
def test_the_tick_at_which_half_of_the_slow_calls_come_is_found(tick_ns: float) -> None:
    at_tick = int(bursts(2000, 0, tick_ns)[1].sum())
    shared = found(*bursts(2000, at_tick, tick_ns))
    assert shared is not None
    assert shared.period == tick_ns
    assert 0.48 < shared.share < 0.6


def test_slow_calls_by_chance_share_nothing() -> None:
    """Also where bursts repeat at nearly the period of a tick."""
    for seed in range(200):
        for stopped in (5, 20, 60, 400):
            begins, slow = bursts(300, stopped, None, seed)
            assert found(begins, slow) is None
            assert tails.every([np.flatnonzero(row) for row in slow]) is None
    begins = np.arange(300)[:, None] * 4_000_000 + np.arange(BURST) * CALL_NS
    assert found(begins, bursts(300, 400, None)[1]) is None


def places(*values: int) -> IntArray:
    return np.array(values)


def test_the_number_of_calls_from_one_slow_call_to_the_next_is_found() -> None:
    every_64 = [places(3, 67, 131, 195), places(40, 104, 168), places(7, 19)]
    assert tails.every(every_64 * 4) == tails.Shared(64, 5 / 6)
    assert tails.every(every_64) is None  # six distances may be alike by chance
    assert tails.every([places(*range(30))]) is None  # a long stop of many calls


def slowest(costs: FakeCosts, beside: str = "nothing") -> Finding | None:
    run = make_fake_run(costs, [("launch_tail", {"launches": 8000, "beside": beside})], spread=0.005)
    return next((one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == "launch.slowest"), None)


def test_a_machine_that_stops_every_loop_is_told_from_slow_launches() -> None:
    """The simulated host is late in one call of a thousand, whatever it calls; so queries are stopped more often."""
    told = slowest(FakeCosts())
    assert told is not None
    assert told.title.startswith("One launch in 10 000 takes ")
    assert "the machine stops the core, not the launch" in told.text
    assert "isolcpus" in told.advice
    assert slowest(FakeCosts(), "copy") is None


@pytest.mark.parametrize(
    ("stops", "idle", "spread", "told"),
    [
        (500.0, 30.0, 0.01, "launch calls are slow by themselves"),
        (50.0, 30.0, 0.01, "the machine explains only a part"),  # more often, but not twice as often
        (30.5, 30.0, 0.1, "the machine stops the core"),
        (70.0, 30.0, 0.4, "the machine stops the core"),  # more than twice as often, but not surely
    ],
)
def test_launches_are_blamed_only_if_they_are_surely_stopped_more_often(
    stops: float, idle: float, spread: float, told: str
) -> None:
    calls = [measurement("p9999", 14e-6, n=10), measurement("worst", 90e-6, n=10)]
    rates = [measurement(name, rate, spread=spread, n=10) for name, rate in (("stops", stops), ("idle_stops", idle))]
    of_tail = outcome("launch_tail", [*calls, *rates], beside="nothing", launches=1_000_000)
    run = with_suite(make_run(), ["launch_tail"], "default", [of_tail])
    (found_,) = (one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == "launch.slowest")
    assert told in found_.text
    assert ("isolcpus" in found_.advice) == ("the machine stops" in told)

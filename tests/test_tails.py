"""What slow calls share, with made-up times whose causes are known, and the finding that says it."""

import numpy as np
import pytest

from microbench.benchmarks.launch import launch_tail
from microbench.core.ops import IntArray
from microbench.meter import tails

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
    assert shared.period == tick_ns
    assert 0.48 < shared.share < 0.6


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_slow_calls_by_chance_share_nothing(seeds: range) -> None:
    """Also where bursts repeat at nearly the period of a tick."""
    for seed in seeds:
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


def test_slow_calls_are_counted_in_the_bursts_in_which_the_thread_left_its_core() -> None:
    left = np.array([[0, 0], [0, 2], [1, 0], [0, 0]])
    slow = np.zeros((4, BURST), dtype=bool)
    slow[0, 0] = slow[1, :2] = slow[2, 5] = True
    facts = {fact.name: fact.value for fact in launch_tail.off_core(left, slow)}
    assert facts == {"waits": 1, "preemptions": 2, "off_core_bursts": 0.5, "off_core_slow": 0.75}
    assert {fact.name for fact in launch_tail.off_core(left * 0, slow)} == {"waits", "preemptions"}


def test_the_rate_of_interrupts_is_unknown_where_the_kernel_does_not_count_them() -> None:
    assert launch_tail.interrupt_rate(100, 350, 2.0).value == 125.0
    unknown = launch_tail.interrupt_rate("no such file", "no such file", 2.0)
    assert (unknown.value, unknown.reason) == (None, "no such file")

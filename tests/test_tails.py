"""What slow calls share, with made-up times whose causes are known, and the finding that says it."""

import msgspec
import numpy as np
import pytest
from make_fake_run import make_fake_run
from make_run import make_run, measurement, outcome, with_suite

from microbench.analysis.evidence import Finding, evidence_by_device
from microbench.benchmarks.launch import launch_tail
from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.explain.rules import of_suite
from microbench.gpu.fake.costs import FakeCosts
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
    assert shared is not None
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


def found_by(rule: str, costs: FakeCosts, *beside: str) -> Finding | None:
    run = make_fake_run(costs, [("launch_tail", {"launches": 100_000, "beside": one}) for one in beside], spread=0.005)
    return next((one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == rule), None)


def slowest(costs: FakeCosts, beside: str = "nothing") -> Finding | None:
    return found_by("launch.slowest", costs, beside)


def test_a_machine_that_stops_every_loop_is_told_from_slow_launches() -> None:
    """The simulated host is late in one call of a thousand of any kind, so queries are stopped more often a second."""
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
        (50.0, 30.0, 0.01, "the machine stops the core"),  # more often, but not twice as often
        (30.5, 30.0, 0.1, "the machine stops the core"),
        (70.0, 30.0, 0.4, "leaves open"),  # more than twice as often, but not surely
        (50.0, 30.0, 0.4, "leaves open"),
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


def test_what_takes_the_thread_off_its_core_is_told() -> None:
    """The simulated host is late in one call of 500: by interrupts, which nothing tells, or by preemptions."""
    interrupted, preempted = slowest(FakeCosts()), slowest(FakeCosts(preempted_share=1.0))
    assert interrupted is not None
    assert preempted is not None
    assert "left its core" not in interrupted.text
    assert "100 % of the slow calls are in bursts in which the thread left its core." in preempted.text


def test_slow_calls_are_counted_in_the_bursts_in_which_the_thread_left_its_core() -> None:
    left = np.array([[0, 0], [0, 2], [1, 0], [0, 0]])
    slow = np.zeros((4, BURST), dtype=bool)
    slow[0, 0] = slow[1, :2] = slow[2, 5] = True
    facts = {fact.name: fact.value for fact in launch_tail.off_core(left, slow)}
    assert facts == {"waits": 1, "preemptions": 2, "off_core_bursts": 0.5, "off_core_slow": 0.75}
    assert {fact.name for fact in launch_tail.off_core(left * 0, slow)} == {"waits", "preemptions"}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        # The thread left its core in 1 % of the bursts, and slow calls are hardly more often in these.
        ({"off_core_bursts": 0.01, "off_core_slow": 0.012}, ""),
        ({"off_core_bursts": 0.01, "off_core_slow": 0.3}, "30.0 % of the slow calls are in bursts in which"),
        ({"slow_tick": 0.004, "slow_tick_share": 0.25}, "25.0 % of the slow calls come with a timer's tick, 250 times"),
        ({"slow_every": 64, "slow_every_share": 0.9}, "90.0 % of the slow calls follow the one before after 64 calls."),
        ({"slow_tick": "none", "slow_every": "none"}, ""),
    ],
)
def test_what_the_slow_calls_share_is_told_if_it_is_surely_so(facts: dict[str, float | str], told: str) -> None:
    measured = [measurement("p9999", 14e-6, n=10), measurement("worst", 90e-6, n=10)]
    every = tuple(Fact(name, value) for name, value in {"slow_calls": 1800, **facts}.items())
    of_tail = outcome("launch_tail", measured, beside="nothing", launches=1_000_000)
    run = with_suite(make_run(), ["launch_tail"], "default", [msgspec.structs.replace(of_tail, facts=every)])
    (found_,) = (one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == "launch.slowest")
    assert told in found_.text
    assert ("slow calls" in found_.text) == bool(told)


@pytest.mark.parametrize(
    ("ticks", "told"),
    [([0.004, 0.004, "none"], "20.0 % of"), ([0.004, 0.01, 0.004], ""), ([0.004, "none", "none"], "")],
)
def test_a_period_is_told_if_most_rounds_agree_on_it(ticks: list[float | str], told: str) -> None:
    measured = [measurement("p9999", 14e-6, n=10), measurement("worst", 90e-6, n=10)]
    of_tail = outcome("launch_tail", measured, beside="nothing", launches=1_000_000)
    rounds = []
    for number, tick in enumerate(ticks):
        facts = [Fact("slow_calls", 600), Fact("slow_tick", tick)]
        facts += [Fact("slow_tick_share", 0.3)] if tick != "none" else []
        rounds.append(msgspec.structs.replace(of_tail, round=number, facts=tuple(facts)))
    run = with_suite(make_run(), ["launch_tail"], "default", rounds)
    (found_,) = (one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == "launch.slowest")
    assert ("timer's tick" in found_.text) == bool(told)
    assert told in found_.text


def test_the_rate_of_interrupts_is_unknown_where_the_kernel_does_not_count_them() -> None:
    assert launch_tail.interrupt_rate(100, 350, 2.0).value == 125.0
    unknown = launch_tail.interrupt_rate("no such file", "no such file", 2.0)
    assert (unknown.value, unknown.reason) == (None, "no such file")


def test_a_second_process_that_makes_launches_slower_is_told_with_whether_it_goes_through_mps() -> None:
    beside = ("nothing", "copy", "kernel", "priority", "process")
    slower = found_by("launch.slowest_beside", FakeCosts(second_process_ns=100_000), *beside)
    assert slower is not None
    assert slower.title.startswith("Beside a second process without MPS one launch in 10 000 takes 1")
    assert "beside a kernel of lower priority" in slower.text
    same = found_by("launch.slowest_beside", FakeCosts(second_process_ns=0.0), *beside)
    assert same is not None
    assert same.title.startswith(
        "Neither a copy nor a kernel nor a kernel of lower priority nor a second process without"
    )
    assert same.title.endswith("makes the slowest launches surely slower")
    one = found_by("launch.slowest_beside", FakeCosts(), "nothing", "copy")
    assert one is not None
    assert one.title == "A copy does not make the slowest launches surely slower"
    assert found_by("launch.slowest_beside", FakeCosts(), "nothing") is None


@pytest.mark.parametrize(("through", "words"), [(True, " through MPS"), (False, " without MPS"), (None, "")])
def test_the_title_says_how_processes_share_the_gpu(through: bool | None, words: str) -> None:
    alone, beside = (
        outcome("launch_tail", [measurement("p9999", value, n=10)], beside=name, launches=1_000_000)
        for name, value in (("nothing", 14e-6), ("process", 40e-6))
    )
    mps = Fact("mps", through, reason="an old driver" if through is None else None)
    run = with_suite(make_run(), ["launch_tail"], "default", [alone, msgspec.structs.replace(beside, facts=(mps,))])
    (told,) = (one for one in of_suite(evidence_by_device(run)[0], "launch") if one.rule == "launch.slowest_beside")
    assert told.title.startswith(f"Beside a second process{words} one launch in 10 000 takes 39.6 µs or more instead")

"""The time budget, on a clock that the tests turn by hand."""

from collections.abc import Iterator

import pytest

from microbench.core.bench import Axis, Benchmark, Measured, Preset
from microbench.core.model import Environment, GpuInfo, Metric
from microbench.session.budget import (
    CAPS_S,
    CORE_S,
    FRESH_PROCESS_S,
    LEAST_OF_CAP,
    LEAST_WAIT_S,
    LIMITS_S,
    OVERHEAD_S,
    Budget,
)
from microbench.session.plan import PlannedCase, make_plan, select

HERE = Environment(gpus=(GpuInfo(name="tiny", uuid="GPU-one"),))


Cases = tuple[PlannedCase, ...]


class HandClock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


def nothing(*_: object) -> Iterator[Measured]:
    yield from ()


def cases(
    *suites: str, each: int = 10, metrics: int = 1, fresh: bool = False, rounds: int = 1, core: bool = False
) -> Cases:
    """``each`` cases of a benchmark in every suite, each of them with ``metrics`` metrics."""
    made = {}
    for suite in suites:
        number = Axis.same("a number", tuple(range(each)))
        declared = tuple(Metric(f"metric_{index}", "time", "s", "") for index in range(metrics))
        name = f"{suite}_one"
        made[name] = Benchmark(
            "", declared, {"number": number}, measure=nothing, name=name, suite=suite, core=core,
            own_process=lambda params: str(params["number"]) if fresh else "",
        )  # fmt: skip
    return make_plan(select(made, (), "default", {}), HERE, rounds=rounds).cases


def budget_of(planned: Cases, limit_s: float | None, preset: Preset = "quick") -> tuple[Budget, HandClock]:
    clock = HandClock()
    return Budget(preset, limit_s, planned, clock, clock()), clock


def spend(planned: Cases, limit_s: float, overhead_s: float = 0.0, start_s: float = 0.0) -> list[float | None]:
    """Sampling times of every case when each takes what it is given, and ``overhead_s``."""
    budget, clock = budget_of(planned, limit_s)
    given: list[float | None] = []
    process = None
    for index, case in enumerate(planned):
        seconds = budget.seconds(index, running=process == case.process)
        given.append(seconds)
        if seconds is not None:
            if process != case.process:
                process = case.process
                clock.time_s += start_s
                budget.learn_start(start_s)
            wall_s = len(case.benchmark.metrics) * seconds + overhead_s
            clock.time_s += wall_s
            budget.learn_case(case, seconds, wall_s)
    assert clock.time_s - 100.0 <= limit_s + 1e-6
    return given


def test_the_core_fits_into_the_time_of_a_run() -> None:
    for preset, limit_s in LIMITS_S.items():
        assert limit_s is None or CORE_S[preset] <= limit_s


def test_without_a_limit_every_case_gets_its_cap() -> None:
    planned = cases("host", "launch", each=3)
    budget, clock = budget_of(planned, None, "full")
    for index in range(len(planned)):
        assert budget.seconds(index, running=False) == CAPS_S["full"]
        clock.time_s += 1e6
    assert budget.left_s is None


def test_with_time_to_spare_every_case_gets_its_cap() -> None:
    assert spend(cases("launch", each=5), 20.0) == [CAPS_S["quick"]] * 5


def test_sampling_shrinks_until_everything_fits() -> None:
    given = spend(cases("launch", each=40), 3.0, overhead_s=0.03)
    assert None not in given
    assert min(seconds or 0 for seconds in given) < CAPS_S["quick"]


def test_times_do_not_shrink_below_a_share_of_the_cap_and_then_cases_are_left_out() -> None:
    given = spend(cases("launch", each=400), 5.0, overhead_s=0.05)
    assert None in given
    reached = given[: given.index(None)]
    assert min(seconds or 0 for seconds in reached) == pytest.approx(CAPS_S["quick"] * LEAST_OF_CAP)
    assert set(given[len(reached) :]) == {None}
    assert len(reached) > 40


def test_metrics_count() -> None:
    few, many = spend(cases("launch", each=40, metrics=1), 4.0), spend(cases("launch", each=40, metrics=3), 4.0)
    assert sum(seconds or 0 for seconds in many) < sum(seconds or 0 for seconds in few)


def test_the_core_is_never_left_out_and_the_rest_gets_what_is_left() -> None:
    planned = cases("launch", each=100, core=True) + cases("memory", each=400)
    budget, clock = budget_of(planned, 40.0)
    given = []
    for index, case in enumerate(planned):
        seconds = budget.seconds(index, running=True)
        given.append(seconds)
        if seconds is not None:
            clock.time_s += 0.35  # more than planned: the core alone takes 35 s
            budget.learn_case(case, seconds, 0.35)
    core, others = given[:100], given[100:]
    assert None not in core
    assert core[-1] == pytest.approx(CAPS_S["quick"] * LEAST_OF_CAP)
    assert 8 < sum(seconds is not None for seconds in others) < 16


def test_the_core_of_each_round_is_measured_and_each_round_leaves_out_about_as_much() -> None:
    made = [cases("launch", each=20, core=True, rounds=3), cases("memory", each=60, rounds=3)]
    planned = tuple(sorted(made[0] + made[1], key=lambda case: (case.round, not case.core)))
    given = spend(planned, 12.0, overhead_s=0.05)
    assert all(seconds is not None for case, seconds in zip(planned, given, strict=True) if case.core)
    kept = [sum(seconds is not None for seconds in given[80 * number : 80 * (number + 1)]) for number in range(3)]
    assert max(kept) - min(kept) <= 2
    assert 30 < min(kept) < 80


def test_the_core_ends_with_the_limit_also_if_much_of_it_has_passed() -> None:
    """A probe took a third of a quick run's time."""
    planned = cases("launch", each=100, core=True)
    budget, clock = budget_of(planned, CORE_S["quick"])
    clock.time_s += CORE_S["quick"] / 3
    began_s = clock.time_s
    for index, case in enumerate(planned):
        seconds = budget.seconds(index, running=True) or 0.0
        clock.time_s += seconds + 0.15
        budget.learn_case(case, seconds, seconds + 0.15)
    assert clock.time_s - began_s == pytest.approx(CORE_S["quick"] * 2 / 3, rel=0.05)


def test_an_earlier_run_tells_how_long_cases_take() -> None:
    planned = cases("memory", each=20)
    clock = HandClock()
    earlier_s = {case.case.id: 2.0 for case in planned}
    learned = Budget("quick", 20.0, planned, clock, clock(), earlier_s).expected_s()
    assert learned > 3 * Budget("quick", 20.0, planned, clock, clock()).expected_s()


def test_rounds_share_equally() -> None:
    planned = cases("launch", each=400, rounds=3)
    given = spend(planned, 9.0, overhead_s=0.05)
    reached = [sum(seconds is not None for seconds in given[turn * 400 : turn * 400 + 400]) for turn in range(3)]
    assert min(reached) > 0.7 * max(reached) > 0


def test_a_silent_worker_is_waited_for_as_long_as_the_time_reaches() -> None:
    budget, clock = budget_of(cases("launch", each=1), 100.0)
    assert budget.wait_s == 100.0
    clock.time_s += 60.0
    assert budget.wait_s == 40.0
    clock.time_s += 60.0
    assert budget.wait_s == LEAST_WAIT_S
    assert budget_of(cases("launch", each=1), None)[0].wait_s is None


def test_a_fresh_process_is_paid_for_and_its_cost_is_learned() -> None:
    planned = cases("launch", each=10, fresh=True)
    budget, _ = budget_of(planned, FRESH_PROCESS_S + OVERHEAD_S - 0.01)
    assert budget.seconds(0, running=False) is None
    dear = spend(planned, 20.0, start_s=4.0)
    cheap = spend(planned, 20.0, start_s=0.3)
    assert sum(seconds is not None for seconds in dear) == 4
    assert None not in cheap


def test_no_process_is_started_in_advance_for_which_the_time_does_not_suffice() -> None:
    planned = cases("launch", each=10, fresh=True, rounds=2)
    assert len(budget_of(planned, None)[0].reached(planned)) == 20
    budget, clock = budget_of(planned, 12.0)
    assert budget.seconds(0, running=False) is not None
    assert [case.turn for case in budget.reached(planned)].count(0) == 3, "half of the time is the first round's"
    clock.time_s += 10.0
    assert len(budget.reached(planned[10:])) == 1
    core = cases("launch", each=10, fresh=True, core=True)
    assert len(budget_of(core, 2.0)[0].reached(core)) == 10


def test_one_odd_case_does_not_end_a_suite() -> None:
    planned = cases("launch", each=50)
    budget, clock = budget_of(planned, 20.0)
    budget.seconds(0, running=True)
    clock.time_s += 1.0
    budget.learn_case(planned[0], 0.08, 1e6)
    assert budget.seconds(1, running=True) is not None


def test_the_forecast_counts_sampling_overhead_and_processes() -> None:
    planned = cases("launch", each=4, metrics=2, fresh=True)
    budget, _ = budget_of(planned, None)
    assert budget.expected_s() == pytest.approx(4 * (2 * CAPS_S["quick"] + OVERHEAD_S + FRESH_PROCESS_S))


def test_a_run_of_nothing_costs_nothing() -> None:
    budget, _ = budget_of((), 20.0)
    assert budget.expected_s() == 0


def test_with_a_long_limit_the_core_gets_its_share_of_it() -> None:
    planned = cases("launch", each=100, core=True) + cases("memory", each=100)
    for limit_s, shrinks in ((CORE_S["quick"], True), (4 * CORE_S["quick"], False)):
        budget, clock = budget_of(planned, limit_s)
        given = []
        for index, case in enumerate(planned[:100]):
            seconds = budget.seconds(index, running=True)
            given.append(seconds)
            clock.time_s += 0.5
            budget.learn_case(case, seconds or 0.0, 0.5)
        assert (min(seconds or 0.0 for seconds in given) < CAPS_S["quick"]) == shrinks

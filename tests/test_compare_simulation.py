"""False alarms and missed changes of the comparison, on simulated pairs of runs and on the recorded rounds."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_simulation import LAUNCH, MEMORY_SUITE, NO_EFFECTS, Effects, World, pair, world

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.comparison.decision import SMALLEST_CHANGE, Decision, Figures, IntArray, decide
from microbench.comparison.pairs import Pair, clock_binding, figures, has_ratio
from microbench.core.model import Run

# Five rounds each on a quiet host, 2026-11: all suites but compute, and compute.
RECORDED = [str(Path(__file__).parent / "data" / f"{name}-h200.json.xz") for name in ("quiet", "compute")]
PAIRS = 200
FEW = 20
PLANTED = 300
CHANGE = math.log(1.03)
# In how many pairs of 200 the decision of commit 6ab9dd5, which took rounds to show how the device differs from run to
# run, reported a change: 194, 24, 142, 197, 25, 195, 147, 196 and 5.
EFFECTS = {
    "a row's state of the run": Effects(run_rows=0.005), "the GPU's state of the run": Effects(run_common=0.005),
    "a drift of the GPU that goes on": Effects(drift_common=0.004),
    "a drift of each row that goes on": Effects(drift_rows=0.004),
    "rounds with memory": Effects(memory=0.5), "rounds with a long memory": Effects(memory=0.8),
    "rows that keep a level": Effects(sticky=0.01), "many rows that keep a level": Effects(sticky=0.05),
    "drifts that start anew": Effects(drift_common=0.004, drift_rows=0.004, continues=False),
}  # fmt: skip


def alarms(effects: Effects, pairs: int, *, in_turn: bool = False) -> int:
    """In how many pairs of equal runs anything is said to have changed: a figure, or a suite."""
    random = np.random.default_rng(8)
    decisions = (decide(pair(world(random), random, effects=effects, in_turn=in_turn)) for _ in range(pairs))
    return sum(
        bool(one.changed.any()) or any(group.changed for group in one.judged.together.values()) for one in decisions
    )


@pytest.mark.slow
def test_at_most_one_of_a_hundred_pairs_of_equal_runs_reports_any_change() -> None:
    assert alarms(NO_EFFECTS, PAIRS) <= PAIRS / 100


@pytest.mark.slow
@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS.keys())
def test_at_most_one_of_fifty_pairs_reports_a_change_if_rounds_do_not_show_how_runs_differ(effects: Effects) -> None:
    assert alarms(effects, PAIRS) <= PAIRS / 50


@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS.keys())
def test_what_rounds_do_not_show_is_no_change(effects: Effects) -> None:
    assert alarms(effects, FEW) <= FEW / 20


@pytest.mark.slow
@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS.keys())
def test_alternating_sessions_have_as_few_false_alarms(effects: Effects) -> None:
    assert alarms(effects, PAIRS, in_turn=True) <= PAIRS / 50


def costlier(figures_: Figures, rows_: IntArray | int, change: float) -> Figures:
    """The same rounds, with these rows' cost in NEW multiplied."""
    new, new_at_clock = figures_.new.copy(), figures_.new_at_clock.copy()
    new[rows_] += math.log1p(change)
    new_at_clock[rows_] += math.log1p(change)
    return replace(figures_, new=new, new_at_clock=new_at_clock)


def found_alone(change: float, pairs: int) -> tuple[float, float, float]:
    """How often a change of one quiet row is seen: as changed, as moved alone, and as changed if sessions alternate."""
    random = np.random.default_rng(8)
    seen = np.zeros(3)
    for _ in range(pairs):
        machine = world(random)
        row = int(random.choice(machine.quiet))
        once = decide(costlier(pair(machine, random), row, change))
        in_turn = decide(costlier(pair(machine, random, in_turn=True), row, change))
        seen += [once.changed[row], once.unconfirmed[row], in_turn.changed[row]]
    changed, alone, turns = seen / pairs
    return float(changed), float(alone), float(turns)


@pytest.mark.parametrize("change", [0.05, -0.05, 0.10])
def test_a_row_that_moves_alone_is_named_and_confirmed_by_alternating_sessions(change: float) -> None:
    """One session of each run shows the same rounds whether the row changed or sits on another level."""
    changed, alone, in_turn = found_alone(change, FEW)
    assert changed <= 0.1
    assert min(alone, in_turn) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("change", [0.05, 0.10])
def test_nine_of_ten_rows_that_move_alone_are_found(change: float) -> None:
    _, alone, in_turn = found_alone(change, PAIRS)
    assert min(alone, in_turn) >= 0.92


def test_a_row_that_moves_by_half_needs_no_other() -> None:
    changed, _, _ = found_alone(0.5, FEW)
    assert changed >= 0.9


@pytest.mark.parametrize("change", [0.05, -0.10])
def test_a_change_of_all_that_the_device_times_in_a_suite_is_found(change: float) -> None:
    random = np.random.default_rng(8)
    for _ in range(FEW):
        machine = world(random)
        memory = np.flatnonzero((machine.suite == MEMORY_SUITE) & ~machine.host)
        decision = decide(costlier(pair(machine, random), memory, change))
        group = decision.judged.together[MEMORY_SUITE, False]
        assert group.changed
        assert group.shift.median == pytest.approx(math.log1p(change), abs=0.02)
        assert decision.changed[memory].mean() > 0.7
        assert not np.delete(decision.changed, memory).any()


def launch_costs(change: float, host: float) -> Decision:
    """Two runs on a calm host, in which launching costs more by ``change``, and all that the host does by ``host``."""
    random = np.random.default_rng(8)
    machine = world(random)
    calm = replace(machine, feels=np.where(machine.host, 0.1, machine.feels))
    figures_ = costlier(pair(calm, random), np.flatnonzero(machine.host), host)
    return decide(costlier(figures_, np.flatnonzero(machine.host & (machine.suite == LAUNCH)), change))


@pytest.mark.parametrize("change", [0.10, -0.10])
def test_a_driver_that_launches_more_slowly_is_told_from_a_slower_host(change: float) -> None:
    driver, host = launch_costs(change, 0.0), launch_costs(0.0, change)
    suite, whole = (one.judged.together[LAUNCH, True] for one in (driver, host))
    assert suite.changed
    assert suite.shift.median == pytest.approx(math.log1p(change), abs=0.01)
    assert suite.shift.half < 0.02
    assert not whole.changed
    assert whole.shift.median == pytest.approx(math.log1p(change), abs=0.01)
    assert not host.changed.any()
    assert driver.judged.controls.most < 0.025
    assert host.judged.controls.least > 0.05


def called_same(change: float) -> tuple[float, float]:
    """The share of figures that change so much, with rounds that scatter by 1 %, and that are called the same: by the
    rule of commit 6ab9dd5 (an interval within 10 % that reaches below 1.5 %), and now."""
    random = np.random.default_rng(8)
    rows_ = 600
    base, new = random.normal(0, 0.01, (rows_, 5)), random.normal(math.log1p(change), 0.01, (rows_, 5))
    none, one = np.zeros(rows_, dtype=bool), np.zeros(rows_, dtype=int)
    in_turn = Figures(base, new, base, new, none, np.full(rows_, 0.002), one, one, none, none, none, ~none)
    decision = decide(in_turn)
    least, most = (np.abs(decision.judged.shift) + sign * decision.judged.half for sign in (-1, 1))
    before = ~decision.changed & (most <= math.log(1.1)) & (least <= SMALLEST_CHANGE)
    now = [not decision.changed[row] and decision.unchanged(row) == "same" for row in range(rows_)]
    return float(before.mean()), float(np.mean(now))


def test_a_figure_that_changed_is_not_called_the_same() -> None:
    before, now = called_same(0.03)
    assert before > 0.3
    assert now < 0.02
    _, unchanged = called_same(0.0)
    assert unchanged > 0.9


def planted(machine: World, random: np.random.Generator, row: int, deviation: float, change: float) -> Figures:
    """Two runs, measured in turn. That row scatters by ``deviation`` from round to round, and NEW's costs more."""
    figures_ = pair(machine, random, in_turn=True)
    base, new = figures_.base.copy(), figures_.new.copy()
    base[row] = random.normal(0, deviation, base.shape[1])
    new[row] = random.normal(change, deviation, new.shape[1])
    return replace(figures_, base=base, new=new, base_at_clock=base, new_at_clock=new)


@pytest.mark.slow
@pytest.mark.parametrize(("least", "found"), [(0.001, 0.95), (0.005, 0.92)])
def test_a_change_of_three_percent_is_found_where_rounds_scatter_by_half_a_percent(least: float, found: float) -> None:
    """Deviations from ``least`` to 0.5 %: of all of these 95 %, and at exactly 0.5 % hardly less."""
    random = np.random.default_rng(8)
    seen = 0
    for number in range(PLANTED):
        machine = world(random)
        row = int(random.choice(machine.quiet))
        deviation = math.exp(random.uniform(math.log(least), math.log(0.005)))
        figures_ = planted(machine, random, row, deviation, CHANGE if number % 2 else -CHANGE)
        decision = decide(figures_)
        seen += bool(decision.changed[row]) and (decision.judged.shift[row] > 0) == bool(number % 2)
    assert seen >= found * PLANTED


def test_a_host_that_is_slower_as_a_whole_is_no_change_of_each_row() -> None:
    random = np.random.default_rng(8)
    for drift in (0.05, -0.10, 0.12, math.log(1.5)):
        machine = world(random)
        calm = pair(machine, random)
        moved = calm.new + (machine.host * drift)[:, None]
        assert not decide(replace(calm, new=moved, new_at_clock=moved)).changed.any()
    without_controls = replace(calm, new=moved, new_at_clock=moved, control=np.zeros_like(calm.control))
    changed = decide(without_controls).changed
    assert changed[machine.host].mean() > 0.5
    assert not changed[~machine.host].any()


def test_more_rounds_see_smaller_changes_and_both_ways_are_alike() -> None:
    random = np.random.default_rng(8)
    machine = world(random)
    found = pair(machine, random, count=12)
    at_clock = {"base_at_clock": found.new_at_clock, "new_at_clock": found.base_at_clock}
    there, back = decide(found), decide(replace(found, base=found.new, new=found.base, **at_clock))
    assert np.allclose(there.judged.shift, -back.judged.shift)
    assert (there.changed == back.changed).all()
    assert np.median(there.judged.own) < np.median(decide(pair(machine, random)).judged.own)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """95 of 100 for scatter between processes. Rounds cannot show what shifts a whole run."""
    random = np.random.default_rng(8)
    held: list[bool] = []
    for _ in range(40):
        machine = world(random)
        machine = replace(machine, feels=np.zeros_like(machine.feels))
        found = pair(machine, random)
        judged = decide(found).judged
        held += list(np.abs(judged.shift)[machine.quiet] <= judged.half[machine.quiet])
    assert 0.93 < np.mean(held) < 0.99


@pytest.fixture(scope="module", params=["nvidia-h200", *RECORDED])
def recorded(request: pytest.FixtureRequest) -> Run:
    return store.load(request.param)


def test_rounds_of_a_recorded_run_split_in_two_are_all_but_silent(recorded: Run) -> None:
    """Five real rounds, two against three in each of the ten ways: the same machine, so nothing has changed. A row that
    jumps between two levels is sorted by one split of ten, so that of so few rounds some must look changed."""
    whole = recorded_figures(recorded, "free", "partly", "bound")
    changed = [split(whole, two).changed for two in itertools.combinations(range(5), 2)]
    assert np.mean(changed) <= 0.001


def recorded_figures(run: Run, *bindings: str) -> Figures:
    """The rows of a run with five rounds, each compared with itself; those that the SM clock binds in this way."""
    gpus = {gpu.uuid: gpu for session in run.sessions for gpu in session.environment.gpus}
    pairs = [Pair(row, row) for row in rows(run) if len(row.outcomes) == 5 and clock_binding(row) in bindings]
    return figures([pair for pair in pairs if has_ratio(*pair[:2])], gpus)


def split(whole: Figures, base: tuple[int, ...]) -> Decision:
    """The decision on some rounds of a run against its others."""
    ours, others = list(base), [index for index in range(5) if index not in base]
    return decide(
        replace(
            whole, base=whole.base[:, ours], new=whole.new[:, others], base_at_clock=whole.base_at_clock[:, ours],
            new_at_clock=whole.new_at_clock[:, others],
        )
    )  # fmt: skip


def test_recorded_rates_of_tensor_cores_scatter_less_at_one_clock() -> None:
    """Where the SM clock moved most from round to round."""
    whole = recorded_figures(store.load(RECORDED[1]), "bound")
    moved = np.abs(whole.base - whole.base_at_clock).std(axis=1)
    loudest = np.argsort(-moved)[:10]
    assert whole.base_at_clock[loudest].std(axis=1).mean() < 0.7 * whole.base[loudest].std(axis=1).mean()

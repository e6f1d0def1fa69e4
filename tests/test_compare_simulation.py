"""Whether compare finds changes and reports none where nothing changed, by simulation: whole runs and many figures."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import shifts

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.comparison import decision
from microbench.comparison.decision import SMALLEST_CHANGE, BoolArray, Decision, Figures, FloatArray, IntArray, decide
from microbench.comparison.pairs import Pair, clock_binding, figures, has_ratio
from microbench.core.model import Run

# Rows of launch, graph, link, memory, compute and host, and the share of each that the host's clock times. The rows of
# the host suite are the controls.
SUITES = ((90, 0.8), (130, 0.6), (50, 0.3), (80, 0.1), (50, 0.0), (12, 1.0))
LAUNCH, MEMORY_SUITE, COMPUTE, CONTROLS = 0, 3, 4, 5
HOST_DEVIATION, DEVICE_DEVIATION = 0.012, 0.002
FAMILY_SCATTER, ROW_SCATTER, WITHIN_SCATTER = 0.9, 0.7, 0.8
LARGEST_DEVIATION = 0.2
# The part of each round's noise (as a deviation) that is common to a family, which is measured in the same few seconds.
COMMON = 0.5
OUTLIERS, OUTLIER_SIZE = 0.02, 8.0
# How the host varies from run to run and from process to process (correlated), and how strongly rows depend on it.
RUN_DRIFT, PROCESS_DRIFT, MEMORY = 0.025, 0.015, 0.7
FEELS = (0.6, 1.2)
WARMTH = 0.002
# Rows that are on one of two levels in each process: single rows, or whole families.
OWN_LEVELS = 0.01
OWN_APART, SHARED_APART = (0.03, 0.20), (0.03, 0.10)
HIGH_SHARE = (0.1, 0.9)
LOW_CLOCK, CLOCK_ERROR = 1755 / 1980, 0.001


@dataclass(frozen=True)
class Effects:
    """What else may differ between the runs and rounds of one machine, besides the scatter that every World has.

    ``run_rows`` and ``run_common`` are deviations between runs: of each row timed by the device, and of all of them
    together. ``drift_rows`` and ``drift_common`` are changes a round: of each of these rows, up or down, and of all
    together; the drift starts anew in NEW, or goes on from BASE if ``continues``. ``memory`` is the correlation of one
    round's noise with the next one's. ``sticky`` is the share of rows that sit at one of two levels for a whole run.
    """

    run_rows: float = 0.0
    run_common: float = 0.0
    drift_rows: float = 0.0
    drift_common: float = 0.0
    continues: bool = True
    memory: float = 0.0
    sticky: float = 0.0


NO_EFFECTS = Effects()


@dataclass(frozen=True)
class World:
    """The properties of one machine's rows. ``deviation`` is that of a row's noise between processes."""

    suite: IntArray
    family: IntArray
    host: BoolArray
    deviation: FloatArray
    within: FloatArray
    heavy: BoolArray
    feels: FloatArray
    apart: FloatArray
    high_share: FloatArray
    shared_apart: FloatArray
    shared_share: float

    @property
    def quiet(self) -> IntArray:
        """Device-timed rows that scatter by at most 0.5 % and have no levels."""
        level = (self.apart == 0) & (self.shared_apart == 0)
        return np.flatnonzero(~self.host & level & (self.deviation <= 0.005) & (self.suite != COMPUTE))


def world(random: np.random.Generator) -> World:
    suite, family, host, deviation = [], [], [], []
    for number, (left, host_share) in enumerate(SUITES):
        while left:
            size = min(left, int(random.integers(3, 13)))
            timed_by_host = bool(random.random() < host_share)
            usual = math.log(HOST_DEVIATION if timed_by_host else DEVICE_DEVIATION)
            usual += random.normal(0, FAMILY_SCATTER)
            suite += [number] * size
            family += [(family[-1] + 1) if family else 0] * size
            host += [timed_by_host] * size
            deviation += list(np.exp(usual + random.normal(0, ROW_SCATTER, size)))
            left -= size
    count = len(suite)
    families, scatter = np.array(family), np.minimum(deviation, LARGEST_DEVIATION)
    apart = np.zeros(count)
    for one in random.permutation(families[-1] + 1)[: max(1, int(OWN_LEVELS * count) // 2)]:
        rows_of_it = np.flatnonzero(families == one)
        chosen = random.choice(rows_of_it, min(2, len(rows_of_it)), replace=False)
        apart[chosen] = np.exp(random.uniform(*np.log(OWN_APART), len(chosen)))
    together = families == random.integers(families[-1] + 1)
    return World(
        suite=np.array(suite), family=families, host=np.array(host), deviation=scatter,
        within=scatter * np.exp(-1 + random.normal(0, WITHIN_SCATTER, count)),
        heavy=random.random(count) < 0.5, feels=random.uniform(*FEELS, count), apart=apart,
        high_share=random.uniform(*HIGH_SHARE, count),
        shared_apart=np.where(together, np.exp(random.uniform(*np.log(SHARED_APART))), 0.0),
        shared_share=float(random.uniform(*HIGH_SHARE)),
    )  # fmt: skip


def rounds(
    machine: World, random: np.random.Generator, count: int = 5, memory: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """One run: the logarithms of its rounds' medians, rows x rounds, as measured and at one SM clock."""
    shape = (len(machine.suite), count)
    light, heavy = random.normal(size=shape), random.standard_t(3, size=shape) / math.sqrt(3)
    noise = np.where(machine.heavy[:, None], heavy, light)
    noise += (random.random(shape) < OUTLIERS) * np.abs(random.normal(size=shape)) * OUTLIER_SIZE
    common = random.normal(size=(machine.family[-1] + 1, count))
    for values in (noise, common):
        for index in range(1, count):
            values[:, index] = memory * values[:, index - 1] + math.sqrt(1 - memory**2) * values[:, index]
    logs = machine.deviation[:, None] * (math.sqrt(1 - COMMON**2) * noise + COMMON * common[machine.family])
    logs += machine.apart[:, None] * (random.random(shape) < machine.high_share[:, None])
    logs += machine.shared_apart[:, None] * (random.random(count) < machine.shared_share)
    logs += (machine.host * machine.feels)[:, None] * _host(random, count)
    logs += (~machine.host * machine.feels)[:, None] * random.normal(0, WARMTH)
    clock = np.where(random.random(count) < 0.5, math.log(LOW_CLOCK), 0.0)
    clocked = (machine.suite == COMPUTE)[:, None]
    return logs + clocked * clock, logs + clocked * random.normal(0, CLOCK_ERROR, shape)


def _host(random: np.random.Generator, count: int) -> FloatArray:
    """How slow the host is in each round: a state of the run, plus one that is correlated from process to process."""
    state = np.empty(count)
    state[0] = random.normal(0, PROCESS_DRIFT)
    for index in range(1, count):
        state[index] = MEMORY * state[index - 1] + math.sqrt(1 - MEMORY**2) * random.normal(0, PROCESS_DRIFT)
    return state + random.normal(0, RUN_DRIFT)


def pair(
    machine: World,
    random: np.random.Generator,
    count: int = 5,
    effects: Effects = NO_EFFECTS,
    *,
    in_turn: bool = False,
) -> Figures:
    """Two runs of one machine, with nothing changed between them; ``in_turn``: each round is a session of its own, and
    those of the two runs alternate."""
    rows, device = len(machine.suite), ~machine.host
    sides = (slice(0, count), slice(count, None))
    if in_turn:
        logs, at_clock = rounds(machine, random, 2 * count, effects.memory)
        sides, session, moment = (slice(0, None, 2), slice(1, None, 2)), np.arange(2 * count), np.arange(2 * count)
    else:
        runs = [rounds(machine, random, count, effects.memory) for _ in sides]
        logs, at_clock = (np.concatenate(both, axis=1) for both in zip(*runs, strict=True))
        session = np.repeat([0, 1], count)
        moment = np.arange(2 * count) if effects.continues else np.tile(np.arange(count), 2)
    sessions = session[-1] + 1
    state = (
        random.normal(0, 1, (rows, sessions)) * effects.run_rows + random.normal(0, 1, sessions) * effects.run_common
    )
    slopes = random.choice([-1.0, 1.0], size=(rows, sessions)) * effects.drift_rows
    slopes += random.choice([-1.0, 1.0], size=sessions) * effects.drift_common
    if effects.continues or in_turn:
        slopes[:] = slopes[:, :1]
    levels = np.exp(random.uniform(*np.log(OWN_APART), rows)) * (random.random(rows) < effects.sticky)
    high = random.random((rows, sessions)) < machine.high_share[:, None]
    moved = device[:, None] * (state[:, session] + slopes[:, session] * moment)
    moved += levels[:, None] * high[:, session]
    base, new = (logs[:, side] + moved[:, side] for side in sides)
    base_at_clock, new_at_clock = (at_clock[:, side] + moved[:, side] for side in sides)
    return Figures(
        base=base, new=new, base_at_clock=base_at_clock, new_at_clock=new_at_clock,
        partly=np.zeros(rows, dtype=np.bool_),
        within=machine.within * np.exp(random.normal(0, 0.2, rows)),
        suite=machine.suite, family=machine.family, session=np.zeros(rows, dtype=int), host=machine.host,
        control=machine.suite == CONTROLS,
        counted=np.zeros(rows, dtype=np.bool_), in_turn=np.full(rows, in_turn),
    )  # fmt: skip


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
@pytest.mark.parametrize("in_turn", [False, True], ids=["one session each", "alternating sessions"])
@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS.keys())
def test_at_most_one_of_fifty_pairs_reports_what_rounds_do_not_show(effects: Effects, in_turn: bool) -> None:
    assert alarms(effects, PAIRS, in_turn=in_turn) <= PAIRS / 50


@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS.keys())
def test_what_rounds_do_not_show_is_no_change(effects: Effects) -> None:
    assert alarms(effects, FEW) <= FEW / 20


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
    in_turn = Figures(base, new, base, new, none, np.full(rows_, 0.002), one, one, one, none, none, none, ~none)
    decision = decide(in_turn)
    least, most = (np.abs(decision.judged.shift) + sign * decision.judged.half for sign in (-1, 1))
    before = ~decision.changed & (most <= math.log(1.1)) & (least <= SMALLEST_CHANGE)
    now = [not decision.changed[row] and decision.unchanged(row)[0] == "same" for row in range(rows_)]
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
    return store.read(store.find(request.param))


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
    whole = recorded_figures(store.read(store.find(RECORDED[1])), "bound")
    moved = np.abs(whole.base - whole.base_at_clock).std(axis=1)
    loudest = np.argsort(-moved)[:10]
    assert whole.base_at_clock[loudest].std(axis=1).mean() < 0.7 * whole.base[loudest].std(axis=1).mean()


@pytest.mark.parametrize(
    ("name", "suite", "most"), [("busy", "graph", 7), ("busy", "launch", 20), ("bundled", "graph", 10)]
)
def test_a_suite_that_hardly_feels_the_host_is_judged_though_the_host_is_busy(name: str, suite: str, most: int) -> None:
    """The decision of commit f0505c1 found none of these below 50 %. lab/shifts.py simulates more pairs."""
    recorded, random = shifts.machine(name), np.random.default_rng(8)
    number = next(number for number, title in recorded.names.items() if title == suite)
    runs = [shifts.drawn(recorded, random) for _ in range(FEW)]
    found, alarms_ = (
        [shifts.judged(recorded, two, decision, number, shifts.SHIFTS.index(shift)) for two in runs]
        for shift in (most, 0)
    )
    assert sum(map(bool, found)) >= FEW - 2
    assert not any(alarms_)


def test_rounds_of_another_session_do_not_say_what_a_suite_feels() -> None:
    recorded, random = shifts.machine("busy"), np.random.default_rng(8)
    number = next(number for number, title in recorded.names.items() if title == "graph")
    two = shifts.drawn(recorded, random)
    assert shifts.judged(recorded, two, decision, number, shifts.SHIFTS.index(10))
    recorded.figures.session[recorded.figures.control] = 1
    assert not shifts.judged(recorded, two, decision, number, shifts.SHIFTS.index(10))


def test_what_all_suites_do_alike_is_no_change_while_the_controls_may_have_moved_too() -> None:
    recorded, random = shifts.machine("busy"), np.random.default_rng(8)
    changed = 0
    for _ in range(FEW):
        base, new = shifts.drawn(recorded, random)
        later = new + (recorded.figures.host & ~recorded.figures.control)[:, None] * 0.06
        together = decision.shifts(replace(recorded.figures, base=base, new=later), base, later).together
        changed += any(group.changed for (_, host), group in together.items() if host)
    assert changed <= FEW / 5


def test_the_smallest_change_stated_is_found() -> None:
    random = np.random.default_rng(8)
    machine = world(random)
    figures_ = pair(machine, random)
    least = decide(figures_).judged.together[LAUNCH, True].least
    launch = np.flatnonzero(machine.host & (machine.suite == LAUNCH))
    assert decide(costlier(figures_, launch, math.expm1(least))).judged.together[LAUNCH, True].changed
    assert not decide(costlier(figures_, launch, math.expm1(least) / 5)).judged.together[LAUNCH, True].changed

"""Simulated rounds of two runs on one machine, as awkward as real ones: for the tests of the comparison's decision.

Every figure is SIMULATED. The scatter follows the recorded H200 runs: the deviation of a row's rounds spans three
decades, rows of one family scatter alike, and the scatter inside a process says a little about the scatter between
processes.
"""

import math
from dataclasses import dataclass

import numpy as np

from microbench.comparison.decision import BoolArray, Figures, FloatArray, IntArray

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
    for number, (rows, host_share) in enumerate(SUITES):
        left = rows
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
        suite=machine.suite, family=machine.family, host=machine.host, control=machine.suite == CONTROLS,
        counted=np.zeros(rows, dtype=np.bool_), in_turn=np.full(rows, in_turn),
    )  # fmt: skip

"""Measures two sides in turn, A B, B A, …, each round in processes of its own, until the caller knows enough."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from microbench.archive import store
from microbench.archive.schema import SCHEMA_VERSION
from microbench.core.bench import Preset
from microbench.core.model import Outcome, Run, Settings
from microbench.session.budget import Budget
from microbench.session.events import CaseDone, Listener
from microbench.session.plan import Plan, PlannedCase, Process, Selected, make_plan
from microbench.session.session import nothing_to_measure, session_of
from microbench.session.supervisor import Machine, Seams, Workers

PRESET: Preset = "quick"


class Side(NamedTuple):
    """What makes a side: the variables of its processes, their interpreter, and its cases.

    Cases of both sides belong together by their place; they are recorded by the first side's names.
    """

    selected: tuple[Selected, ...]
    variables: tuple[tuple[str, str], ...] = ()
    python: str = ""


class _EnoughError(Exception):
    """The caller knows enough."""


def measure_in_turn(
    sides: Sequence[Side],
    rounds: int,
    device: str | None,
    enough: Callable[[int, Run, Run], bool],
    listener: Listener,
    seams: Seams,
) -> tuple[Run, Run]:
    """Measure two sides, at most ``rounds`` times each, and return their runs, which are saved nowhere.

    ``enough`` is asked after each pair of rounds, with their number and both runs. Raises what ``execute`` raises
    before anything is measured, MicrobenchError if no worker can be started, and KeyboardInterrupt.
    """
    workers = Workers(seams, listener)
    found: dict[tuple[object, str], Machine] = {}
    for side in sides:
        if (key := (side.variables, side.python)) not in found:
            found[key] = workers.probe(Process("probe", device, 0, side.variables, python=side.python))
    machines = [found[side.variables, side.python] for side in sides]
    turns = _turns(sides, machines, rounds, device)
    runs = [_run(sides[0].selected, machine, rounds, device) for machine in machines]
    pairs = [(one.cases, other.cases) for one, other in zip(*(side.selected for side in sides), strict=True)]
    recorded = {theirs.id: ours for first, second in pairs for ours, theirs in zip(first, second, strict=True)}
    done: list[list[Outcome]] = [[], []]

    def record(outcome: Outcome) -> None:
        place = len(done[0]) + len(done[1])
        own = msgspec.structs.replace(outcome, case=recorded.get(outcome.case.id, outcome.case))
        done[turns[place].process.side].append(own)
        listener(CaseDone(own))
        after = turns[place + 1].turn if place + 1 < len(turns) else rounds
        if after > turns[place].turn and enough(after, *_with(runs, done)):
            raise _EnoughError

    budget = Budget(PRESET, None, turns, time.monotonic, time.monotonic())
    with suppress(_EnoughError):
        workers.measure(Plan(tuple(turns), ()), machines, budget, 0, record)
    return _with(runs, done)


def _turns(sides: Sequence[Side], machines: Sequence[Machine], rounds: int, device: str | None) -> list[PlannedCase]:
    """The cases of all rounds in order. Each pair of rounds begins with the side that ended the one before."""
    every: list[list[PlannedCase]] = [[] for _ in range(rounds)]
    for number, (side, (environment, _)) in enumerate(zip(sides, machines, strict=True)):
        plan = make_plan(
            side.selected, environment, device=device, rounds=rounds, order_seed="in turn", limited=False,
            elsewhere=bool(side.python),
        )  # fmt: skip
        if not plan.cases:
            raise nothing_to_measure(plan.skipped, environment)
        for case in plan.cases:
            variables = tuple((dict(side.variables) | dict(case.process.variables)).items())
            process = replace(case.process, variables=variables, side=number, python=side.python)
            every[case.turn].append(replace(case, process=process))
    return [
        case
        for turn, cases in enumerate(every)
        for case in sorted(cases, key=lambda one: one.process.side, reverse=turn % 2 == 1)
    ]


def _run(selected: Sequence[Selected], machine: Machine, rounds: int, device: str | None) -> Run:
    """The run of one side, still without outcomes."""
    now = datetime.now(UTC)
    settings = Settings(preset=PRESET, device=device, rounds=rounds)
    infos = tuple(chosen.benchmark.info(list(chosen.cases)) for chosen in selected if not chosen.absent)
    session = session_of(machine, settings, now.isoformat(timespec="seconds"))
    return Run(SCHEMA_VERSION, store.new_run_id(now), (session,), infos, ())


def _with(runs: Sequence[Run], done: Sequence[Sequence[Outcome]]) -> tuple[Run, Run]:
    one, other = (msgspec.structs.replace(run, outcomes=tuple(own)) for run, own in zip(runs, done, strict=True))
    return one, other

"""Executes a run: probe, plan, measure and write one file; or measures two sides in turn, and writes none.

Of a run each outcome is on disk before the next case begins. The parent process never opens a GPU; workers do.
"""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from microbench.archive import processes, store
from microbench.archive.damage import without_damage
from microbench.archive.runfile import ResultLostError, RunFile
from microbench.archive.schema import SCHEMA_VERSION
from microbench.core import errors
from microbench.core.bench import Benchmark, Preset, discover
from microbench.core.model import Environment, Outcome, Run, Session, Settings
from microbench.core.units import plain
from microbench.core.version import __version__
from microbench.session.budget import LIMITS_S, Budget
from microbench.session.messages import CaseDone, Event, Listener, NotLocked, RunEnded, RunStatus
from microbench.session.plan import Plan, PlannedCase, Process, Selected, make_plan
from microbench.session.process import Seams
from microbench.session.request import Intent, RunRequest, current, examine
from microbench.session.supervisor import Machine, Workers

__all__ = ["NothingMeasuredError", "RunRequest", "RunResult", "Seams", "Side", "execute", "measure_in_turn"]


class NothingMeasuredError(errors.MicrobenchError):
    """Ctrl-C came before anything was measured, so there is no run."""

    exit_code = errors.ExitCode.INTERRUPTED


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``exit_code`` is 0, 1 if a case of this session failed, crashed or timed out, or 130."""

    run: Run
    path: Path
    exit_code: errors.ExitCode


def execute(
    request: RunRequest,
    listener: Listener = lambda event: None,
    seams: Seams | None = None,
    catalogue: Mapping[str, Benchmark] | None = None,
) -> RunResult:
    """Measure the request and write one file.

    ``catalogue`` replaces the discovered benchmarks by benchmarks of the same names with other axes.
    Raises before anything is measured: UsageError (also if none of the named cases can be measured on this machine's
    GPUs), RunUnreadableError, ResultNotWrittenError, DeviceAbsentError if the named device is absent or if there is no
    GPU and all named cases need one, NothingMeasuredError on Ctrl-C. Raises later, with all outcomes on disk:
    ResultLostError if the file cannot be written (it says where the results are), UnkillableWorkerError if a worker
    cannot be killed, MicrobenchError if none can be started. Ctrl-C after the first case finishes the file and returns.
    """
    seams = seams or Seams()
    now = datetime.now(UTC)
    catalogue = discover(seams.benchmarks) if catalogue is None else catalogue
    intent = examine(request, catalogue, now)
    if intent.path.parent == store.data_folder():
        folder = intent.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            cause = f"the data folder {plain(folder)} cannot be created: {error.strerror or error}"
            next_step = "set MICROBENCH_DATA to a folder of yours, or use --out"
            raise errors.ResultNotWrittenError(cause, next_step) from None
    with closing(RunFile(intent.path, grow=intent.earlier is not None)) as file:
        if intent.earlier is not None:  # another process may have added to the run before its file was locked
            name = "into" if request.into is not None else "resume"
            intent = examine(replace(request, **{name: str(intent.path)}), catalogue, now)  # type: ignore[arg-type]

        def hear(event: Event) -> None:
            with suppress(OSError):  # if the listener's output is closed or full, the run continues
                listener(event)

        if file.no_lock_reason is not None:
            hear(NotLocked(intent.path, file.no_lock_reason))
        return _Session(intent, Workers(seams, hear), file, now.isoformat(timespec="seconds")).run()


@dataclass
class _Session:
    """One invocation of ``execute``: passes each outcome to the file and the listener, and finishes the run."""

    intent: Intent
    workers: Workers
    file: RunFile
    started_at: str
    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> RunResult:
        intent = self.intent
        try:
            machine = self.workers.probe(Process("probe", intent.settings.device, 0), self._budget().wait_s)
        except KeyboardInterrupt:
            raise NothingMeasuredError("interrupted before anything was measured", "start again") from None
        environment, head = machine[0], self._head(machine)
        plan = make_plan(
            intent.selected,
            environment,
            device=intent.settings.device,
            rounds=intent.settings.rounds,
            session=intent.session,
            measured=intent.measured,
            order_seed=head.sessions[-1].order_seed,
            limited=self._limit_s() is not None,
        )
        if not plan.cases and not intent.measured:
            raise nothing_to_measure(plan.skipped, environment)
        # Under a limit cases sample for less than their cap, so their wall times are a poor forecast.
        earlier_s = earlier_walls(intent.preset, environment) if self._limit_s() is None else {}
        self.file.begin(head)  # from here on this run is the last one
        status: RunStatus = "complete"
        try:
            budget = self._budget(plan.cases, earlier_s)
            self.workers.measure(plan, [machine], budget, intent.session, self._record)
        except KeyboardInterrupt:
            if not intent.resumed and all(outcome.status == "skipped" for outcome in self.outcomes):
                self.file.abandon(intent.earlier)
                raise NothingMeasuredError("interrupted before anything was measured", "start again") from None
            status = "interrupted"
        except ResultLostError as error:
            self._finish(head, "stopped")  # raises with the results' location unless the file can be written again
            cause = error.cause
            raise ResultLostError(cause, f"what was measured is in {plain(self.file.path)}: --resume it") from None
        except errors.MicrobenchError as error:
            self._finish(head, "stopped")
            next_step = f"what was measured is in {plain(self.file.path)}; {error.next_step}"
            raise type(error)(error.cause, next_step) from None
        run = self._finish(head, status)
        failed = any(outcome.status not in ("ok", "skipped") for outcome in self.outcomes)
        exit_code = errors.ExitCode.SOME_FAILED if failed else errors.ExitCode.MEASURED
        if status == "interrupted":
            exit_code = errors.ExitCode.INTERRUPTED
        return RunResult(run, self.file.path, exit_code)

    def _budget(self, cases: Sequence[PlannedCase] = (), earlier_s: Mapping[str, float] | None = None) -> Budget:
        return Budget(self.intent.preset, self._limit_s(), cases, time.monotonic, self.began_s, earlier_s)

    def _limit_s(self) -> float | None:
        settings = self.intent.settings
        if settings.time_limit_s is None and not settings.select:
            return LIMITS_S[self.intent.preset]
        return settings.time_limit_s

    def _record(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)  # first, so that an interruption cannot lose it from the finished file
        self.file.append(outcome)
        self.workers.listener(CaseDone(outcome))

    def _head(self, machine: Machine) -> Run:
        """The run as it is before this session's first outcome."""
        intent = self.intent
        earlier = intent.earlier or Run(SCHEMA_VERSION, intent.run_id, (), (), ())
        seed = f"{intent.run_id} session {intent.session}"
        session = session_of(machine, intent.settings, self.started_at, seed)
        if intent.resumed:
            # Raise UsageError if the GPU, driver or code is not the one that the session began with, because its rounds
            # would not be comparable. An unknown commit is not compared.
            begun = earlier.sessions[-1]
            both, with_commit = (begun, session), None not in (begun.commit, session.commit)
            compared = {
                "GPU": [", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in one.gpus) for one in both],
                "driver": [one.environment.driver_version or "" for one in both],
                "microbench": [f"{one.tool_version} {one.commit}" if with_commit else one.tool_version for one in both],
            }
            for name, (was, is_now) in compared.items():
                if was != is_now:
                    cause = f"the run began with {name} {was or 'none'}, but this machine has {is_now or 'none'}"
                    raise errors.UsageError(cause, "resume it where it began, or add a session with --into")
        sessions = earlier.sessions if intent.resumed else (*earlier.sessions, session)
        return msgspec.structs.replace(
            earlier, schema_version=SCHEMA_VERSION, sessions=sessions, benchmarks=intent.infos()
        )

    def _finish(self, head: Run, status: RunStatus) -> Run:
        run = msgspec.structs.replace(head, outcomes=current((*head.outcomes, *self.outcomes)))
        self.file.finish(run)
        run = without_damage(run)
        processes.learn(run, store.data_folder())
        run = processes.attached(run, store.data_folder())
        self.workers.listener(RunEnded(self.file.path, status))
        return run


def session_of(machine: Machine, settings: Settings, started_at: str, order_seed: str | None = None) -> Session:
    """A session of this microbench on that machine."""
    environment, floors = machine
    return Session(
        environment=environment,
        settings=settings,
        tool_version=__version__,
        started_at=started_at,
        floors=floors,
        simulated=any(gpu.simulated for gpu in environment.gpus),
        commit=commit(),
        order_seed=order_seed,
    )


def nothing_to_measure(skipped: Sequence[Outcome], environment: Environment) -> errors.MicrobenchError:
    """The error that says why there is no GPU, or why each benchmark was skipped."""
    if not environment.gpus:
        next_step = environment.no_gpu_next_step or "try `--device fake` (simulated), or another machine"
        return errors.DeviceAbsentError(environment.no_gpu_reason or "there is no GPU here", next_step)
    if not skipped:
        return errors.UsageError("these benchmarks have no cases by themselves", "`microbench measure` takes your code")
    reasons = dict.fromkeys(f"{outcome.case.benchmark}: {outcome.reason}" for outcome in skipped)
    names = " ".join(dict.fromkeys(outcome.case.benchmark for outcome in skipped))
    cause = f"nothing can be measured here: {'; '.join(reasons)}"
    return errors.UsageError(cause, f"`microbench list {names}` shows other values")


def earlier_walls(preset: str, environment: Environment) -> dict[str, float]:
    """The wall time of each case of the last run, by case id; empty if that run had another preset or other GPUs."""
    path = store.last()
    if path is None:
        return {}
    try:
        run = store.read(path)
    except errors.RunUnreadableError:
        return {}
    session = run.sessions[-1]
    devices = [gpu.uuid for gpu in environment.gpus]
    if session.settings.preset != preset or [gpu.uuid for gpu in session.environment.gpus] != devices:
        return {}
    return {outcome.case.id: outcome.wall_s for outcome in run.outcomes if outcome.status == "ok"}


def commit() -> str | None:
    """The commit of this checkout, with "-dirty" if files were changed; None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


# Two sides in turn, A B, B A, …, each round in processes of its own, until the caller knows enough.

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

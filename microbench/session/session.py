"""Executes a run: probe, plan, measure and write one file. Each outcome is on disk before the next case begins.

The parent process never opens a GPU; workers do.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from microbench.archive import processes, store
from microbench.archive.damage import without_damage
from microbench.archive.runfile import ResultLostError, RunFile
from microbench.archive.schema import SCHEMA_VERSION
from microbench.core import errors
from microbench.core.bench import Benchmark, discover
from microbench.core.model import Environment, Floors, Outcome, Run, Session
from microbench.core.units import plain
from microbench.core.version import __version__
from microbench.host.affinity import find_cores, pinned
from microbench.session.budget import LIMITS_S, Budget
from microbench.session.events import CaseDone, Event, Listener, NotLocked, PlanMade, Probed, RunEnded, RunStatus
from microbench.session.messages import EnvironmentFound, FloorsFound, Job, Ready, Refused
from microbench.session.plan import Plan, PlannedCase, Process, make_plan
from microbench.session.process import Patience, WorkerCrashedError, WorkerProcess, WorkerSilentError
from microbench.session.request import Intent, RunRequest, current, examine
from microbench.session.supervisor import Supervisor

__all__ = ["NothingMeasuredError", "RunRequest", "RunResult", "Seams", "execute"]

# The most workers that import packages at the same time, at most one per CPU; each may take 1 GB of memory.
MOST_SIDE_BY_SIDE = 6
LOOK_CLOSER = "see `microbench doctor`"


class NothingMeasuredError(errors.MicrobenchError):
    """Ctrl-C came before anything was measured, so there is no run."""

    exit_code = errors.ExitCode.INTERRUPTED


@dataclass(frozen=True)
class Seams:
    """The parts of a run that tests replace. ``benchmarks`` names the package of benchmarks, ``backend`` the module
    that opens devices; ``kill`` sends a signal to a process group."""

    benchmarks: str = "microbench.benchmarks"
    backend: str = "microbench.gpu.open"
    patience: Patience = field(default_factory=Patience)
    kill: Callable[[int, int], None] = os.killpg


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``exit_code`` is 0, 1 if a case of this session failed, crashed or timed out, or 130."""

    run: Run
    path: Path
    exit_code: errors.ExitCode
    environment: Environment


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
        return _Session(intent, hear, seams, file, now.isoformat(timespec="seconds")).run()


@dataclass
class _Session:
    """One invocation of ``execute``: passes each outcome to the file and the listener, and finishes the run."""

    intent: Intent
    listener: Listener
    seams: Seams
    file: RunFile
    started_at: str
    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    allowed_cpus: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(os.sched_getaffinity(0))))

    def run(self) -> RunResult:
        intent = self.intent
        worker = start_worker(Process("probe", intent.settings.device, 0), self.seams, self.allowed_cpus)
        try:
            environment, floors = probe(worker, intent.settings.device, self._budget().wait_s)
        except KeyboardInterrupt:
            raise NothingMeasuredError("interrupted before anything was measured", "start again") from None
        finally:
            worker.end()
        self.listener(Probed(environment))
        head = self._head(environment, floors)
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
            self._measure(plan, environment, floors, earlier_s)
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
        return RunResult(run, self.file.path, exit_code, environment)

    def _measure(self, plan: Plan, environment: Environment, floors: Floors, earlier_s: Mapping[str, float]) -> None:
        budget = self._budget(plan.cases, earlier_s)
        suites = tuple(dict.fromkeys(planned.benchmark.suite for planned in plan.cases))
        core = sum(planned.core for planned in plan.cases)
        self.listener(PlanMade(len(plan.cases), core, budget.left_s, suites, budget.expected_s()))
        for outcome in plan.skipped:
            self._record(outcome)
        nodes = {gpu.uuid: gpu.numa_node for gpu in environment.gpus}
        near_node = next(iter(nodes.values()), None)

        def start(process: Process, packages: tuple[str, ...] | None = None) -> WorkerProcess:
            node = nodes.get(process.device or "", near_node)
            return start_worker(process, self.seams, self.allowed_cpus, floors, node, packages)

        side_by_side = min(MOST_SIDE_BY_SIDE, len(self.allowed_cpus))
        with pinned(find_cores(near_node).plan.parent_cores):
            Supervisor(start, budget, self.intent.session, self._record, self.listener, side_by_side).run(plan.cases)

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
        self.listener(CaseDone(outcome))

    def _head(self, environment: Environment, floors: Floors) -> Run:
        """The run as it is before this session's first outcome."""
        intent = self.intent
        earlier = intent.earlier or Run(SCHEMA_VERSION, intent.run_id, (), (), ())
        session = Session(
            environment=environment,
            settings=intent.settings,
            tool_version=__version__,
            started_at=self.started_at,
            floors=floors,
            simulated=any(gpu.simulated for gpu in environment.gpus),
            commit=commit(),
            order_seed=f"{intent.run_id} session {intent.session}",
        )
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
        self.listener(RunEnded(self.file.path, status))
        return run


def start_worker(
    process: Process,
    seams: Seams,
    allowed_cpus: tuple[int, ...],
    floors: Floors | None = None,
    near_node: int | None = None,
    packages: tuple[str, ...] | None = None,
) -> WorkerProcess:
    """A worker for the process. With ``packages`` it imports them and then waits."""
    job = Job(
        seam=process.seam,
        device=process.device,
        benchmarks=seams.benchmarks,
        backend=seams.backend,
        parent_pid=os.getpid(),
        floors=floors or Floors(),
        near_node=near_node,
        allowed_cpus=allowed_cpus,
        packages=packages or (),
        waits=packages is not None,
    )
    return WorkerProcess(job, dict(process.variables), seams.patience, seams.kill, process.python)


def nothing_to_measure(skipped: Sequence[Outcome], environment: Environment) -> errors.MicrobenchError:
    """The error that says why there is no GPU, or why each benchmark was skipped."""
    if not environment.gpus:
        next_step = environment.no_gpu_next_step or "try `--device fake` (simulated), or another machine"
        return errors.DeviceAbsentError(environment.no_gpu_reason or "there is no GPU here", next_step)
    reasons = dict.fromkeys(f"{outcome.case.benchmark}: {outcome.reason}" for outcome in skipped)
    names = " ".join(dict.fromkeys(outcome.case.benchmark for outcome in skipped))
    cause = f"nothing can be measured here: {'; '.join(reasons)}"
    return errors.UsageError(cause, f"`microbench list {names}` shows other values")


def probe(worker: WorkerProcess, device: str | None, wait_s: float | None) -> tuple[Environment, Floors]:
    """The machine and its floors, as a worker with the job "probe" finds them.

    Each message may take ``wait_s``. A broken driver may kill or hang the probe. Then its earlier messages are used; if
    there are none, the environment has no GPU, for that reason. Raises DeviceAbsentError if the named ``device`` is
    absent, UsageError if the name is wrong.
    """
    environment, floors, reason = None, Floors(), ""
    try:
        while not isinstance(message := worker.receive(wait_s), Ready):
            if isinstance(message, EnvironmentFound):
                environment = message.environment
            elif isinstance(message, FloorsFound):
                floors = message.floors
            elif isinstance(message, Refused):
                for error in (errors.DeviceAbsentError, errors.UsageError):
                    if message.exit_code == error.exit_code:
                        raise error(message.reason, message.next_step)
                reason = message.reason
                break
        worker.close()
    except (WorkerCrashedError, WorkerSilentError) as failure:
        reason = str(failure)
    if environment is None:
        environment = Environment(no_gpu_reason=f"the search for a GPU failed: {reason}", no_gpu_next_step=LOOK_CLOSER)
    if device is not None and not environment.gpus:
        cause = f"{device} is not here: {environment.no_gpu_reason or 'no GPU'}"
        raise errors.DeviceAbsentError(cause, environment.no_gpu_next_step or LOOK_CLOSER)
    return environment, floors


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

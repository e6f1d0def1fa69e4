"""Workers probe and measure a machine, one process after another; one that fails does not end the run."""

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from microbench.core.errors import DeviceAbsentError, MicrobenchError, UsageError
from microbench.core.model import Environment, Floors, Outcome
from microbench.host.affinity import find_cores, pinned
from microbench.session import messages
from microbench.session.budget import Budget
from microbench.session.messages import Listener
from microbench.session.plan import FAKE, Plan, PlannedCase, Process
from microbench.session.process import (
    Seams,
    UnkillableWorkerError,
    WorkerCrashedError,
    WorkerProcess,
    WorkerSilentError,
)

# The most workers that import packages at the same time, at most one per CPU; each may take 1 GB of memory.
MOST_SIDE_BY_SIDE = 6
LOOK_CLOSER = "see `microbench doctor`"
Machine = tuple[Environment, Floors]
FAILURES_ALLOWED = 3
OUT_OF_TIME = "time budget"


@dataclass(frozen=True)
class Workers:
    """Starts workers, which probe and measure. The CPUs that they may use are found before this process is pinned."""

    seams: Seams
    listener: Listener
    allowed_cpus: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(os.sched_getaffinity(0))))

    def start(
        self, process: Process, machine: Machine | None = None, packages: tuple[str, ...] | None = None
    ) -> WorkerProcess:
        """A worker for the process. With ``packages`` it imports them and then waits."""
        environment, floors = machine or (Environment(), Floors())
        nodes = {gpu.uuid: gpu.numa_node for gpu in environment.gpus}
        job = messages.Job(
            seam=process.seam,
            device=process.device,
            benchmarks=self.seams.benchmarks,
            backend=self.seams.backend,
            parent_pid=os.getpid(),
            floors=floors,
            near_node=nodes.get(process.device or "", next(iter(nodes.values()), None)),
            allowed_cpus=self.allowed_cpus,
            packages=packages or (),
            waits=packages is not None,
        )
        return WorkerProcess(job, dict(process.variables), self.seams.patience, process.python)

    def probe(self, process: Process, wait_s: float | None = None) -> Machine:
        """The machine and its floors, as a worker with the job "probe" finds them.

        Each message may take ``wait_s``. A broken driver may kill or hang the probe. Then its earlier messages are
        used; if there are none, the environment has no GPU, for that reason. Raises DeviceAbsentError if the named
        device is absent, UsageError if the name is wrong.
        """
        environment, floors, reason = None, Floors(), ""
        worker = self.start(process)
        try:
            while not isinstance(message := worker.receive(wait_s), messages.Ready):
                if isinstance(message, messages.Probed):
                    environment = message.environment
                elif isinstance(message, messages.FloorsFound):
                    floors = message.floors
                elif isinstance(message, messages.Refused):
                    for error in (DeviceAbsentError, UsageError):
                        if message.exit_code == error.exit_code:
                            raise error(message.reason, message.next_step)
                    reason = message.reason
                    break
            worker.close()
        except (WorkerCrashedError, WorkerSilentError) as failure:
            reason = str(failure)
        finally:
            worker.end()
        if environment is None:
            cause = f"the search for a GPU failed: {reason}"
            environment = Environment(no_gpu_reason=cause, no_gpu_next_step=LOOK_CLOSER)
        if process.device is not None and not environment.gpus:
            cause = f"{process.device} is not here: {environment.no_gpu_reason or 'no GPU'}"
            raise DeviceAbsentError(cause, environment.no_gpu_next_step or LOOK_CLOSER)
        self.listener(messages.Probed(environment))
        return environment, floors

    def measure(
        self, plan: Plan, machines: Sequence[Machine], budget: Budget, session: int, record: Callable[[Outcome], None]
    ) -> None:
        """Have the cases measured in their order; ``machines`` has that of each side."""
        suites = tuple(dict.fromkeys(planned.benchmark.suite for planned in plan.cases))
        core = sum(planned.core for planned in plan.cases)
        self.listener(messages.PlanMade(len(plan.cases), core, budget.left_s, suites, budget.expected_s()))
        for outcome in plan.skipped:
            record(outcome)

        near_node = next((gpu.numa_node for environment, _ in machines for gpu in environment.gpus), None)
        with pinned(find_cores(near_node).parent_cores):
            Supervisor(self, machines, budget, session, record).run(plan.cases)


@dataclass
class Supervisor:
    """Runs the cases of one session; ``machines`` has that of each side. ``record`` saves and shows an outcome."""

    workers: Workers
    machines: Sequence[Machine]
    budget: Budget
    session: int
    record: Callable[[Outcome], None]
    _side_by_side: int = 0  # the most workers that import at the same time
    _waiting: dict[Process, WorkerProcess] = field(default_factory=dict)
    _import_s: float = 0.0  # the wait for the last imports, divided by the number of workers
    _worker: WorkerProcess | None = None
    _process: Process | None = None
    _refused: dict[Process, str] = field(default_factory=dict)
    _failures: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def run(self, cases: Sequence[PlannedCase]) -> None:
        """Measure every case in order and record an outcome for each.

        Raises UnkillableWorkerError after recording its case, and whatever ``record`` raises. No worker is left
        running.
        """
        self._side_by_side = min(MOST_SIDE_BY_SIDE, len(self.workers.allowed_cpus))
        try:
            for index in range(len(cases)):
                self.record(self._outcome(index, cases))
            self._close_worker()
        finally:
            with ExitStack() as ends:  # calls all of them, even if one raises
                for worker in (self._worker, *self._waiting.values()):
                    if worker is not None:
                        ends.callback(worker.end)

    def _outcome(self, index: int, cases: Sequence[PlannedCase]) -> Outcome:
        planned = cases[index]
        name = planned.benchmark.name
        failures = self._failures[name, planned.device]
        if failures >= FAILURES_ALLOWED:
            return self._unmeasured(planned, "skipped", f"given up: {failures} cases of {name} failed before")
        if planned.process in self._refused:
            return self._unmeasured(planned, "skipped", self._refused[planned.process])
        running = self._worker is not None and self._process == planned.process
        seconds = self.budget.seconds(index, running=running)
        if seconds is None:
            return self._unmeasured(planned, "skipped", OUT_OF_TIME)
        case_id, suite = planned.case.id, planned.benchmark.suite
        self.workers.listener(messages.CaseStarted(case_id, index, len(cases), suite, planned.round))
        began_s = time.monotonic()
        try:
            outcome = self._measure(planned, seconds, cases[index:])
        except WorkerCrashedError as crash:
            outcome = self._unmeasured(planned, "crashed", str(crash), began_s)
        except WorkerSilentError as silence:
            outcome = self._unmeasured(planned, "timed_out", str(silence), began_s)
        except UnkillableWorkerError as error:
            self.record(self._unmeasured(planned, "timed_out", error.cause, began_s))
            raise
        if outcome.status not in ("ok", "skipped"):
            self._failures[name, planned.device] += 1
            self._close_worker()
        return outcome

    def _measure(self, planned: PlannedCase, seconds: float, coming: Sequence[PlannedCase]) -> Outcome:
        """The worker's outcome for the case; starts a new worker if the running one may not be shared. ``coming`` has
        the case and all later ones."""
        if self._worker is None or self._process != planned.process:
            refused = self._start_worker(planned.process, coming)
            if refused is not None:
                if refused.status == "skipped":
                    self._refused[planned.process] = refused.reason
                return self._unmeasured(planned, refused.status, refused.reason)
        assert self._worker is not None
        self._worker.order(messages.Order(planned.case, self.session, planned.round, planned.device, seconds))
        while not isinstance(message := self._worker.receive(self.budget.wait_s), messages.CaseDone):
            if isinstance(message, messages.Tick):
                metric = next((metric for metric in planned.benchmark.metrics if metric.name == message.metric), None)
                if metric is not None:  # a benchmark may sample what it does not report
                    unit = "s" if metric.kind == "rate" else metric.unit
                    tick = messages.CaseTick(planned.case.id, metric.name, unit, message.n, message.value)
                    self.workers.listener(tick)
        outcome = message.outcome
        if (outcome.case, outcome.round, outcome.device) != (planned.case, planned.round, planned.device):
            raise WorkerCrashedError(f"the worker sent the outcome of {outcome.case.id}")
        if outcome.status == "ok":
            self.budget.learn_case(planned, seconds, outcome.wall_s)
        return outcome

    def _start_worker(self, process: Process, coming: Sequence[PlannedCase]) -> messages.Refused | None:
        """Replace the worker by one for ``process`` and wait until it is ready; returns its refusal if it refuses.

        The old worker exits while the new one opens its device.
        """
        before, self._worker, self._process = self._worker, None, process
        if before is not None:
            before.leave()
        try:
            if process.seam == "gpu" and process not in self._waiting and self._side_by_side > 1:
                self._import_next(self.budget.reached(coming))
            waited = self._waiting.pop(process, None)
            import_s = self._import_s if waited is not None else 0.0
            if waited is not None:
                waited.go()
            self._worker = waited or self._start(process)
            try:
                refused = self._refusal()
            except WorkerCrashedError:  # it may have died while it waited, for lack of memory: try a new one
                if waited is None:
                    raise
                self._worker = self._start(process)
                refused = self._refusal()
        finally:
            if before is not None:
                before.close()
        if refused is None:
            self.budget.learn_start(time.monotonic() - self._worker.began_s + import_s)
        return refused

    def _start(self, process: Process, packages: tuple[str, ...] | None = None) -> WorkerProcess:
        return self.workers.start(process, self.machines[process.side], packages)

    def _refusal(self) -> messages.Refused | None:
        """Wait until the worker is ready, or close it and return its refusal. A hung process is not tried again."""
        assert self._worker is not None and self._process is not None
        try:
            while not isinstance(message := self._worker.receive(self.budget.wait_s), messages.Ready):
                if isinstance(message, messages.Refused):
                    self._close_worker()
                    return message
        except WorkerSilentError as silence:
            self._refused[self._process] = f"its process did not start: {silence}"
            raise
        return None

    def _import_next(self, coming: Sequence[PlannedCase]) -> None:
        """Start the next processes, and wait until all of them have imported their packages.

        If one fails, no process is started in advance any more; each reports its error when its cases are due.
        """
        packages: dict[Process, tuple[str, ...]] = {}
        for process, planned in itertools.groupby(coming, key=lambda one: one.process):
            if process.seam == "gpu" and process not in packages and process not in self._refused:
                # The main process imports a package when a case needs it: earlier cases are measured without it.
                separate = process.own and process.device != FAKE
                needed = [one.benchmark.needs(one.case.params) for one in planned if separate]
                packages[process] = tuple(dict.fromkeys(package.name for package in needed if package is not None))
            if len(packages) == self._side_by_side:
                break
        for process in self._waiting.keys() - packages.keys():  # its cases were skipped
            self._waiting.pop(process).end()
        began_s, new = time.monotonic(), [process for process in packages if process not in self._waiting]
        try:
            for process in new:
                self._waiting[process] = self._start(process, packages[process])
            for process in new:
                while not isinstance(self._waiting[process].receive(self.budget.wait_s), messages.Waiting):
                    pass
        except UnkillableWorkerError:
            raise
        except (MicrobenchError, WorkerCrashedError, WorkerSilentError):
            self._side_by_side = 1
            while self._waiting:
                self._waiting.popitem()[1].end()
        self._import_s = (time.monotonic() - began_s) / max(len(new), 1)

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _unmeasured(
        self,
        planned: PlannedCase,
        status: Literal["skipped", "failed", "crashed", "timed_out"],
        reason: str,
        began_s: float | None = None,
    ) -> Outcome:
        wall_s = 0.0 if began_s is None else time.monotonic() - began_s
        return Outcome(planned.case, self.session, planned.round, status, reason, wall_s=wall_s, device=planned.device)

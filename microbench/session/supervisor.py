"""Supervisor: measures planned cases in one worker process after another; a failed worker does not end the run."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

from microbench.core.errors import MicrobenchError
from microbench.core.model import Outcome
from microbench.session.budget import Budget
from microbench.session.events import CaseStarted, CaseTick, Listener
from microbench.session.messages import Done, Order, Ready, Refused, Tick, Waiting
from microbench.session.plan import FAKE, PlannedCase, Process
from microbench.session.process import UnkillableWorkerError, WorkerCrashedError, WorkerProcess, WorkerSilentError

FAILURES_ALLOWED = 3
OUT_OF_TIME = "time budget"


@dataclass
class Supervisor:
    """Runs the cases of one session.

    ``start`` starts a worker; with packages it imports them and then waits. ``record`` saves and shows an outcome.
    ``side_by_side`` is how many workers may import at the same time.
    """

    start: Callable[[Process, tuple[str, ...] | None], WorkerProcess]
    budget: Budget
    session: int
    record: Callable[[Outcome], None]
    listener: Listener
    side_by_side: int = 1
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
        self.listener(CaseStarted(planned.case.id, index, len(cases), planned.benchmark.suite, planned.round))
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
        self._worker.order(Order(planned.case, self.session, planned.round, planned.device, seconds))
        while not isinstance(message := self._worker.receive(self.budget.wait_s), Done):
            if isinstance(message, Tick):
                metric = next((metric for metric in planned.benchmark.metrics if metric.name == message.metric), None)
                if metric is not None:  # a benchmark may sample what it does not report
                    unit = "s" if metric.kind == "rate" else metric.unit
                    self.listener(CaseTick(planned.case.id, metric.name, unit, message.n, message.value))
        outcome = message.outcome
        if (outcome.case, outcome.round, outcome.device) != (planned.case, planned.round, planned.device):
            raise WorkerCrashedError(f"the worker sent the outcome of {outcome.case.id}")
        if outcome.status == "ok":
            self.budget.learn_case(planned, seconds, outcome.wall_s)
        return outcome

    def _start_worker(self, process: Process, coming: Sequence[PlannedCase]) -> Refused | None:
        """Replace the worker by one for ``process`` and wait until it is ready; returns its refusal if it refuses.

        The old worker exits while the new one opens its device.
        """
        before, self._worker, self._process = self._worker, None, process
        if before is not None:
            before.leave()
        try:
            if process.seam == "gpu" and process not in self._waiting and self.side_by_side > 1:
                self._import_next(self.budget.reached(coming))
            waited = self._waiting.pop(process, None)
            import_s = self._import_s if waited is not None else 0.0
            if waited is not None:
                waited.go()
            self._worker = waited or self.start(process, None)
            try:
                refused = self._refusal()
            except WorkerCrashedError:  # it may have died while it waited, for lack of memory: try a new one
                if waited is None:
                    raise
                self._worker = self.start(process, None)
                refused = self._refusal()
        finally:
            if before is not None:
                before.close()
        if refused is None:
            self.budget.learn_start(time.monotonic() - self._worker.began_s + import_s)
        return refused

    def _refusal(self) -> Refused | None:
        """Wait until the worker is ready, or close it and return its refusal. A hung process is not tried again."""
        assert self._worker is not None and self._process is not None
        try:
            while not isinstance(message := self._worker.receive(self.budget.wait_s), Ready):
                if isinstance(message, Refused):
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
            if len(packages) == self.side_by_side:
                break
        for process in self._waiting.keys() - packages.keys():  # its cases were skipped
            self._waiting.pop(process).end()
        began_s, new = time.monotonic(), [process for process in packages if process not in self._waiting]
        try:
            for process in new:
                self._waiting[process] = self.start(process, packages[process])
            for process in new:
                while not isinstance(self._waiting[process].receive(self.budget.wait_s), Waiting):
                    pass
        except UnkillableWorkerError:
            raise
        except (MicrobenchError, WorkerCrashedError, WorkerSilentError):
            self.side_by_side = 1
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

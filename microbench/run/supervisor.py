"""Supervisor: turns planned cases into outcomes, one worker process after another; no worker can stop the rest."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from microbench.core.model import Outcome
from microbench.run.budget import Budget
from microbench.run.events import CaseStarted, CaseTick, Listener
from microbench.run.messages import Done, Order, Ready, Refused, Tick, Waiting
from microbench.run.plan import FAKE, PlannedCase, Process
from microbench.run.process import UnkillableWorkerError, WorkerCrashedError, WorkerProcess, WorkerSilentError

FAILURES_ALLOWED = 3
# Processes that import their packages side by side; each may take a gigabyte.
MOST_PREPARED = 6
OUT_OF_TIME = "time budget"
Prepare = Callable[[Process, tuple[str, ...]], WorkerProcess]


@dataclass
class Supervisor:
    """Runs the cases of one session.

    ``start`` starts a worker, ``record`` saves and shows an outcome. ``prepare`` starts a worker that imports some
    packages and then waits; None if this machine has no core to spare for that.
    """

    start: Callable[[Process], WorkerProcess]
    budget: Budget
    session: int
    record: Callable[[Outcome], None]
    listener: Listener
    prepare: Prepare | None = None
    _prepared: dict[Process, WorkerProcess] = field(default_factory=dict)
    _importing: set[Process] = field(default_factory=set)
    _import_s: float = 0.0  # what one of the prepared processes took of the run's time
    _worker: WorkerProcess | None = None
    _process: Process | None = None
    _refused: dict[Process, str] = field(default_factory=dict)
    _failures: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    def run(self, cases: Sequence[PlannedCase]) -> None:
        """Measure every case in order and record an outcome for each.

        Raises UnkillableWorkerError after recording its case, and whatever ``record`` raises. No worker is left running
        in any case.
        """
        try:
            for index, planned in enumerate(cases):
                if planned.benchmark.device_timed and not self._prepared:
                    self._prepare_next(cases[index:])  # only the GPU's clock times such a case
                    self._import_s = 0.0
                self.record(self._outcome(index, cases))
            self._close_worker()
        finally:
            for worker in (self._worker, *self._prepared.values()):
                if worker is not None:
                    worker.end()

    def _prepare_next(self, cases: Sequence[PlannedCase]) -> None:
        """Start the next processes, so that they import their packages side by side."""
        if self.prepare is None:
            return
        for process, planned in itertools.groupby(cases, key=lambda planned: planned.process):
            if process.seam != "gpu" or process == self._process or process in self._prepared:
                continue
            # The main process imports each package where a case needs it, so that no other case meets the package.
            real = process.own and process.device != FAKE
            needed = [one.benchmark.needs(one.case.params) for one in planned] if real else []
            packages = dict.fromkeys(package.name for package in needed if package is not None)
            self._prepared[process] = self.prepare(process, tuple(packages))
            self._importing.add(process)
            if len(self._prepared) >= MOST_PREPARED:
                return

    def _finish_imports(self) -> None:
        """Wait until no prepared process imports any more, since that would disturb the next case."""
        for process in self._importing & set(self._prepared):
            worker = self._prepared[process]
            try:
                while not isinstance(worker.receive(self.budget.wait_s), Waiting):
                    pass
            except (WorkerCrashedError, WorkerSilentError):  # a process that is not prepared will say why
                del self._prepared[process]
        self._importing.clear()

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
            self._worker = None
            self.record(self._unmeasured(planned, "timed_out", error.cause, began_s))
            raise
        if outcome.status not in ("ok", "skipped"):
            self._failures[name, planned.device] += 1
            self._close_worker()
        return outcome

    def _measure(self, planned: PlannedCase, seconds: float, coming: Sequence[PlannedCase]) -> Outcome:
        """The worker's outcome for the case; starts a new worker if the running one may not be shared. ``coming`` are
        the case and all after it."""
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
                self._show(planned, message)
        outcome = message.outcome
        if (outcome.case, outcome.round, outcome.device) != (planned.case, planned.round, planned.device):
            raise WorkerCrashedError(f"the worker answered for {outcome.case.id}")
        if outcome.status == "ok":
            self.budget.learn_case(planned, seconds, outcome.wall_s)
        return outcome

    def _start_worker(self, process: Process, coming: Sequence[PlannedCase]) -> Refused | None:
        """Replace the worker by one for ``process`` and wait until it is ready; returns its refusal if it is not.

        The one before exits while the new one opens its device. Where no process is prepared, the next ones are.
        """
        before, self._worker, self._process = self._worker, None, None
        if before is not None:
            before.leave()
        try:
            if process.seam == "gpu" and process not in self._prepared:
                began_s, count = time.monotonic(), len(self._prepared)
                self._prepare_next(coming)
                self._finish_imports()
                self._import_s = (time.monotonic() - began_s) / max(len(self._prepared) - count, 1)
            self._finish_imports()
            prepared = self._prepared.pop(process, None)
            if prepared is not None:
                prepared.go()
            self._worker, self._process = prepared or self.start(process), process
            while not isinstance(message := self._worker.receive(self.budget.wait_s), Ready):
                if isinstance(message, Refused):
                    self._close_worker()
                    return message
        finally:
            if before is not None:
                before.close()
        import_s = self._import_s if prepared is not None else 0.0
        self.budget.learn_start(time.monotonic() - self._worker.began_s + import_s)
        return None

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _show(self, planned: PlannedCase, tick: Tick) -> None:
        metric = next((metric for metric in planned.benchmark.metrics if metric.name == tick.metric), None)
        if metric is not None:  # a benchmark may sample what it does not report
            unit = "s" if metric.kind == "rate" else metric.unit
            self.listener(CaseTick(planned.case.id, metric.name, unit, tick.n, tick.value))

    def _unmeasured(
        self,
        planned: PlannedCase,
        status: Literal["skipped", "failed", "crashed", "timed_out"],
        reason: str,
        began_s: float | None = None,
    ) -> Outcome:
        wall_s = 0.0 if began_s is None else time.monotonic() - began_s
        return Outcome(planned.case, self.session, planned.round, status, reason, wall_s=wall_s, device=planned.device)

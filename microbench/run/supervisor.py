"""Supervisor: turns planned cases into outcomes, one worker process after another; no worker can stop the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from microbench.core.model import Outcome
from microbench.run.budget import Budget
from microbench.run.events import CaseStarted, CaseTick, Listener
from microbench.run.messages import Done, Order, Ready, Refused, Tick
from microbench.run.plan import FAKE, PlannedCase, Process
from microbench.run.process import UnkillableWorkerError, WorkerCrashedError, WorkerProcess, WorkerSilentError

FAILURES_ALLOWED = 3
# Processes that import their packages while the GPU's clock times products; each may take a gigabyte.
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
                if planned.benchmark.device_timed and self.prepare is not None:
                    self._prepare_next(cases[index:], self.prepare)
                    self.prepare = None
                self.record(self._outcome(index, planned, len(cases)))
            self._close_worker()
        finally:
            for worker in (self._worker, *self._prepared.values()):
                if worker is not None:
                    worker.end()

    def _prepare_next(
        self, cases: Sequence[PlannedCase], prepare: Callable[[Process, tuple[str, ...]], WorkerProcess]
    ) -> None:
        """Start the next processes of their own, so that their imports cost no time later."""
        packages: dict[Process, dict[str, None]] = {}
        for planned in cases:
            if planned.core == cases[0].core and planned.process.own and planned.process.seam == "gpu":
                package = planned.benchmark.needs(planned.case.params) if planned.process.device != FAKE else None
                packages.setdefault(planned.process, {}).update({package.name: None} if package else {})
        for process in list(packages)[:MOST_PREPARED]:
            self._prepared[process] = prepare(process, tuple(packages[process]))

    def _outcome(self, index: int, planned: PlannedCase, total: int) -> Outcome:
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
        self.listener(CaseStarted(planned.case.id, index, total, planned.benchmark.suite, planned.round))
        began_s = time.monotonic()
        try:
            outcome = self._measure(planned, seconds)
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

    def _measure(self, planned: PlannedCase, seconds: float) -> Outcome:
        """The worker's outcome for the case; starts a new worker if the running one may not be shared."""
        if self._worker is None or self._process != planned.process:
            refused = self._start_worker(planned.process)
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

    def _start_worker(self, process: Process) -> Refused | None:
        """Replace the worker by one for ``process`` and wait until it is ready; returns its refusal if it is not.

        The one before exits while the new one opens its device.
        """
        before, self._worker = self._worker, None
        if before is not None:
            before.leave()
        try:
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
        self.budget.learn_start(time.monotonic() - self._worker.began_s)
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

"""From a plan to outcomes: one worker after another, and nothing that a worker does stops the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from microbench.core.model import Outcome
from microbench.run.budget import Budget
from microbench.run.events import CaseStarted, CaseTick, Listener
from microbench.run.messages import Done, Message, Order, Ready, Refused, Tick
from microbench.run.plan import PlannedCase, Process
from microbench.run.process import UnkillableWorkerError, WorkerCrashedError, WorkerProcess, WorkerSilentError

FAILURES_ALLOWED = 3
OUT_OF_TIME = "time budget"

Start = Callable[[Process], WorkerProcess]
Record = Callable[[Outcome], None]


class Supervisor:
    """Runs the cases of one session. ``start`` gives a worker for a process, ``record`` saves and tells an outcome."""

    def __init__(self, start: Start, budget: Budget, session: int, record: Record, listener: Listener) -> None:
        self._start = start
        self._budget = budget
        self._session = session
        self._record = record
        self._listener = listener
        self._worker: WorkerProcess | None = None
        self._process: Process | None = None
        self._refused: dict[Process, str] = {}
        self._failures: Counter[tuple[str, str | None]] = Counter()

    def run(self, cases: Sequence[PlannedCase]) -> None:
        """Measure every case in order and record an outcome for each.

        Raises UnkillableWorkerError, its case recorded, and whatever ``record`` raises; on any way out no worker is
        left behind.
        """
        try:
            for index, one in enumerate(cases):
                self._record(self._outcome(index, one, len(cases)))
            self._leave()
        finally:
            if self._worker:
                self._worker.end()

    def _outcome(self, index: int, one: PlannedCase, total: int) -> Outcome:
        failures = self._failures[one.benchmark.name, one.device]
        if failures >= FAILURES_ALLOWED:
            return self._without(one, "skipped", f"given up: {failures} cases of {one.benchmark.name} failed before")
        if one.process in self._refused:
            return self._without(one, "skipped", self._refused[one.process])
        running = self._worker is not None and self._process == one.process
        seconds = self._budget.seconds(index, running=running)
        if seconds is None:
            return self._without(one, "skipped", OUT_OF_TIME)
        self._listener(CaseStarted(one.case.id, index, total, one.block.suite, one.round))
        began_s = time.monotonic()
        try:
            outcome = self._measured(one, seconds)
        except WorkerCrashedError as crash:
            outcome = self._without(one, "crashed", str(crash), began_s)
        except WorkerSilentError as silence:
            outcome = self._without(one, "timed_out", str(silence), began_s)
        except UnkillableWorkerError as error:
            self._worker = None
            self._record(self._without(one, "timed_out", error.cause, began_s))
            raise
        if outcome.status not in ("ok", "skipped"):
            self._failures[one.benchmark.name, one.device] += 1
            self._leave()
        return outcome

    def _without(
        self,
        one: PlannedCase,
        status: Literal["skipped", "failed", "crashed", "timed_out"],
        reason: str,
        began_s: float | None = None,
    ) -> Outcome:
        wall_s = 0.0 if began_s is None else time.monotonic() - began_s
        return Outcome(one.case, self._session, one.round, status, reason, wall_s=wall_s, device=one.device)

    def _measured(self, one: PlannedCase, seconds: float) -> Outcome:
        """The outcome that a worker gives for the case, a fresh worker where the running one may not be shared."""
        if self._worker is None or self._process != one.process:
            refused = self._replace(one.process)
            if refused is not None:
                if refused.status == "skipped":
                    self._refused[one.process] = refused.reason
                return self._without(one, refused.status, refused.reason)
        assert self._worker is not None
        self._worker.order(Order(one.case, self._session, one.round, one.device, seconds))
        while not isinstance(message := self._worker.receive(), Done):
            self._tell(one, message)
        outcome = message.outcome
        if (outcome.case, outcome.round, outcome.device) != (one.case, one.round, one.device):
            raise WorkerCrashedError(f"the worker answered for {outcome.case.id}")
        if outcome.status == "ok":
            self._budget.learn_case(one, seconds, outcome.wall_s)
        return outcome

    def _replace(self, process: Process) -> Refused | None:
        """A worker for ``process``, ready; or why it is not."""
        self._leave()
        self._worker, self._process = self._start(process), process
        while not isinstance(message := self._worker.receive(), Ready):
            if isinstance(message, Refused):
                self._leave()
                return message
        self._budget.learn_start(time.monotonic() - self._worker.began_s)
        return None

    def _leave(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _tell(self, one: PlannedCase, message: Message) -> None:
        if not isinstance(message, Tick):
            return
        metric = next((metric for metric in one.benchmark.metrics if metric.name == message.metric), None)
        if metric is None:
            return  # a benchmark may sample what it does not report
        unit = "s" if metric.kind == "rate" else metric.unit
        self._listener(CaseTick(one.case.id, metric.name, unit, message.n, message.value))

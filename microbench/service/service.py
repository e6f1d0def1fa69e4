"""Records the processes of a watched command now and then, within a budget, and whenever somebody asks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MicrobenchError
from microbench.core.units import percent, plain
from microbench.diagnosis.diagnosis import diagnose
from microbench.diagnosis.health import launches_of
from microbench.fleet.windows import LOG, Window
from microbench.library.answers import Costs
from microbench.recorder.cells import ENDING
from microbench.recorder.orders import Orders
from microbench.recorder.program import Reason, left
from microbench.service.alerts import Alerts
from microbench.service.budget import Budget, behind
from microbench.service.windows import shown
from microbench.traces.reading import read

if TYPE_CHECKING:
    from microbench.service.metrics import Metrics

NICE = 19
LOOK_S = 0.5
LEAST_LAUNCHES = 20  # without one kernel, where CUPTI gives none
MOST_LOGGED = 16 << 20  # bytes; then the older half is dropped


class Request(NamedTuple):
    """What --attach asks for: how long to record in s, where the answer goes, and whether nobody wants more of it."""

    for_s: float
    answer: queue.SimpleQueue[Mapping[str, Any]]
    over: threading.Event


class Service:
    """Works in a thread of its own while the command runs.

    It records into ``folder``, and keeps the newest recordings of no more than ``keep_bytes`` and the one with the
    longest step. Without a ``budget``, a share of the program's time, it records only when somebody asks. ``tell`` gets
    lines for the terminal.
    """

    def __init__(
        self,
        folder: Path,
        costs: Costs,
        budget: float | None,
        keep_bytes: int,
        tell: Callable[[str], None],
        metrics: Metrics | None = None,
    ) -> None:
        self._folder, self._costs, self._share, self._keep_bytes = folder, costs, budget, keep_bytes
        self._tell, self._metrics = tell, metrics
        self.now = folder / "now"  # into which the processes record
        self._private = Path(tempfile.mkdtemp(prefix="microbench-"))
        self._private.chmod(0o711)  # for a process that gives up root's rights
        self.orders = self._private / "orders"
        self._orders = Orders(self.orders, self.now)
        self._asked: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._alerts: dict[str, Alerts] = {}
        self._reasons, self._told = Path(), set[Reason]()
        self._silent: list[Reason] = []  # processes of whose kernels the last recording has none
        self._began_s = time.time()
        self._slowest: tuple[float, Path | None] = (-1.0, None)  # the longest step in s, and its recording
        self.windows = self.processes = 0  # that were recorded
        self.lost = 0.0  # the share of the time that recording has taken, at most
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, reasons: Path) -> None:
        """Begin to record. In the folder ``reasons`` recorders say why they cannot."""
        self._reasons = reasons
        self._thread.start()

    def end(self) -> None:
        """End, and remove what only the running command needed."""
        self._ended.set()
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join()
        for folder in (self.now, self._private):
            shutil.rmtree(folder, ignore_errors=True)

    def asked(self, for_s: float, wanted: Callable[[], bool] = lambda: True) -> Mapping[str, Any]:
        """Record for so long, or until it is ``wanted`` no more, and give the files."""
        request = Request(for_s, queue.SimpleQueue(), threading.Event())
        self._asked.put(request)
        while not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                return request.answer.get(timeout=LOOK_S)
            if not wanted():
                request.over.set()
        request.over.set()
        return {"error": "the command has ended meanwhile"}

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        last_s = time.monotonic()
        budget = Budget(self._share or 1.0, last_s)
        automatic = self._share is not None
        while not self._ended.is_set():
            due_s = budget.next_s(last_s) if automatic else math.inf
            if due_s is None:
                self._tell(f"no more windows: {percent(budget.share)} of the time is less than the shortest one takes")
                automatic = False
                continue
            request = None
            with contextlib.suppress(queue.Empty):
                request = self._asked.get(timeout=max(min(due_s - time.monotonic(), LOOK_S), 0.0))
            if self._ended.is_set() or (request is None and time.monotonic() < due_s):
                continue
            window_s = budget.window_s if request is None else request.for_s
            files, windows, self._silent = list[Path](), list[Window](), []
            try:
                meanwhile = self._ended.wait if request is None else request.over.wait
                files = self._orders.record(window_s, behind(window_s), self._folder, self._ended.wait, meanwhile)
                windows = [one for path in files if (one := self._look(path, asked=request is not None)) is not None]
                self._tidy(files)
            except Exception as error:  # noqa: BLE001  (whatever one recording holds, the watch goes on for weeks)
                self._tell(f"a recording is left out: {plain(str(error) or type(error).__name__)}")
            last_s = time.monotonic()
            budget.add(windows, window_s, last_s, seen=bool(self._silent) or any(path.exists() for path in files))
            self.lost = budget.lost(last_s)
            reasons = self._new_reasons()
            running = {plain(path.stem) for path in self.now.glob(f"*{ENDING}")}
            self.processes = max(self.processes, len(running))
            self._alerts = {process: alerts for process, alerts in self._alerts.items() if process in running}
            if self._metrics is not None:
                self._metrics.keep(running, self.lost)
            if request is None:
                for cause, next_step in reasons:
                    self._tell(f"not recorded: {cause}; {next_step}")
            elif not self._ended.is_set():
                paths = [str(path.absolute()) for path in files if path.exists()]
                request.answer.put({"files": paths, "processes": len(running), "reasons": [*reasons, *self._silent]})
        self.processes = max(self.processes, len(list(self.now.glob(f"*{ENDING}"))))

    def _new_reasons(self) -> list[Reason]:
        """Why processes were not recorded, each once."""
        found = list(self._silent)
        with contextlib.suppress(OSError):
            found += left(self._reasons)
        found = [one for one in found if one not in self._told]
        self._told.update(found)
        return found

    def _look(self, path: Path, *, asked: bool) -> Window | None:
        """What a recording shows; one without work of a GPU is removed."""
        process = plain(path.stem.rpartition("-")[0])
        try:
            trace = read(path)
            found = None
            launches, _, submits = launches_of(trace)
            silent = np.count_nonzero(launches) >= LEAST_LAUNCHES and not (launches & submits).any()
            if len(trace.work) and not silent:
                found = diagnose(trace, self._costs.fit, None, self._costs.gpu, elsewhere=self._costs.elsewhere)
        except (MicrobenchError, OSError):
            return None
        if found is None:
            path.unlink(missing_ok=True)
            if silent:
                cause = f"CUPTI gives no kernels of {process} any more"
                self._silent.append(Reason(cause, "start the program again, on a GPU that few processes share"))
            return None
        self.windows += 1
        window = shown(process, plain(path.absolute()), self._began_s, time.time(), found)
        if window is None:
            return None
        self._slowest = max(self._slowest, (window.step_s or 0.0, path), key=lambda one: one[0])
        self._log(window)
        if self._metrics is not None:
            self._metrics.add(window)
        alert = None if asked else self._alerts.setdefault(process, Alerts()).add(window)
        if alert is not None:
            self._tell(json.dumps(alert, ensure_ascii=False))
        return window

    def _log(self, window: Window) -> None:
        """Add a line for `fleet import`."""
        path = self._folder / LOG
        short = msgspec.structs.replace(
            window,
            steps_s=() if window.step_s is None else (window.step_s,),
            counts={**window.counts, "steps": len(window.steps_s)},
        )
        with contextlib.suppress(OSError):
            if path.exists() and path.stat().st_size > MOST_LOGGED:
                lines = path.read_bytes().splitlines(keepends=True)
                path.write_bytes(b"".join(lines[len(lines) // 2 :]))
            with path.open("ab") as file:
                file.write(msgspec.json.encode(short) + b"\n")

    def _tidy(self, newest: list[Path]) -> None:
        """Remove the oldest recordings beyond what may be kept, but never the newest ones and the slowest."""
        room, kept = self._keep_bytes, {*newest, self._slowest[1]}
        with contextlib.suppress(OSError):
            files = sorted(self._folder.glob(f"*{ENDING}"), key=lambda path: -path.stat().st_mtime_ns)
            for path in sorted(files, key=lambda path: path not in kept):
                room -= path.stat().st_size
                if room < 0 and path not in kept:
                    path.unlink()

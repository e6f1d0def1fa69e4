"""Says in one line how a program that is being recorded runs at the moment."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from microbench.core.units import as_time, round_percent
from microbench.diagnosis.diagnosis import BUSY
from microbench.diagnosis.idle import busiest, gaps_of
from microbench.diagnosis.steps import Steps, find_steps
from microbench.diagnosis.window import with_only
from microbench.traces.recording import Growing
from microbench.traces.trace import NONE, Trace

MOST_ROWS = 1 << 14  # that one update looks at
LONGEST_NS = 10 * 10**9  # what was recorded before says nothing of the moment
QUIET_S = 10.0  # after so long without new work the last line is out of date


class Live:
    """Follows the recordings of processes while they grow."""

    def __init__(self) -> None:
        self._growing: dict[Path, Growing] = {}
        self._line, self._since_s = "", 0.0

    def line(self, recordings: Iterable[Path]) -> str:
        """The line of the one of these recordings with most unread rows; "" if there is nothing to say.

        It reads the new rows of that recording alone, and no more than MOST_ROWS of them.
        """
        for path in recordings:
            if path not in self._growing:
                self._growing[path] = Growing(path)
        if not self._growing:
            return ""
        most = max(self._growing.values(), key=Growing.new_cells)
        now_s = time.monotonic()
        trace = most.newest(MOST_ROWS, LONGEST_NS) if most.new_cells() > 0 else None
        if trace is not None and len(trace.work):
            processes = len(self._growing)
            self._line = " · ".join([*figures(trace), *[f"most active of {processes} processes"] * (processes > 1)])
            self._since_s = now_s
        if most.between_windows:  # whose work may lie too far back to be read
            return f"between two windows · last {self._line}" if self._line else "between two windows"
        return self._line if now_s - self._since_s < QUIET_S else ""


def figures(trace: Trace) -> list[str]:
    """The time of a step where steps repeat, how busy the GPU with most work is, and whether it waits for the host."""
    begin_ns, end_ns = int(trace.work["begin_ns"][0]), int(trace.work["end_ns"].max())
    gaps = gaps_of(trace.work, busiest(trace), begin_ns, end_ns)
    busy = 1 - int((gaps.end_ns - gaps.begin_ns).sum()) / max(end_ns - begin_ns, 1)
    found = [f"GPU busy {round_percent(busy)}", "GPU-bound" if busy >= BUSY else "GPU waits"]
    steps = _steps(trace)
    return found if steps is None else [f"step {as_time(steps.step_s)}", *found]


def _steps(trace: Trace) -> Steps | None:
    """The steps of the calls whose work was read; that of the calls before and behind them was not."""
    submitting = trace.work["call"][trace.work["call"] != NONE]
    if not len(submitting):
        return None
    calls = np.zeros(len(trace.calls), bool)
    calls[submitting.min() : submitting.max() + 1] = True
    work = np.append(calls, False)[trace.work["call"]]
    return find_steps(with_only(trace, work, calls, np.zeros(len(trace.ranges), bool)))

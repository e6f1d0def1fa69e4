"""Notices when the steps of a program become longer or shorter, and says since when and why."""

import math
import statistics
from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np

from microbench.core.units import as_time
from microbench.diagnosis.host_time import BETWEEN
from microbench.fleet.changes import LEAST_CAMPAIGNS, bar, changes, places, scatters
from microbench.fleet.windows import Window

LEAST_TIMES = 1.1  # changes of a step that are told
MOST_KEPT = 96  # windows
WORK = "work on the GPU"


class Alerts:
    """Follows the windows of one process."""

    def __init__(self) -> None:
        self._windows: list[Window] = []
        self._told_s = -math.inf  # the time of the newest change that was told
        self._left: list[float] = []  # how long steps were in s before each change that was told

    def add(self, window: Window) -> dict[str, object] | None:
        """Take the next window. Gives a new change of the step as an object for JSON."""
        if not window.step_s:
            return None
        self._windows = [*self._windows[-MOST_KEPT + 1 :], window]
        if len(self._windows) < LEAST_CAMPAIGNS:
            return None
        series = np.log([one.step_s or 1.0 for one in self._windows])
        found = changes(series, scatters([series], [0.0])[0], bar(places(len(series))))
        change = next((one for one in found if abs(one.size) >= math.log(LEAST_TIMES)), None)
        if change is None or self._windows[change.place].unix_s <= self._told_s:
            return None
        before, after = self._windows[change.begin : change.place], self._windows[change.place : change.end]
        self._told_s = after[-1].unix_s  # a place that moves by a window is no new change
        since, times = datetime.fromtimestamp(after[0].unix_s).astimezone(), math.exp(change.size)
        part, before_s, after_s = _cause(before, after)
        step_s = [_middle(side, lambda one: one.step_s or 0.0) for side in (before, after)]
        again = sum(1 / LEAST_TIMES < step_s[1] / one < LEAST_TIMES for one in self._left)
        self._left = [*self._left[-MOST_KEPT + 1 :], step_s[0]]
        words = f"since {since:%H:%M} the step takes {times:.2g} times as long"
        words += f", as {'once' if again == 1 else f'{again} times'} before" if again else ""
        if part:
            words += f": {part} {as_time(before_s)} → {as_time(after_s)}"
        return {
            "microbench": words,
            "process": window.process,
            "since": since.isoformat(timespec="seconds"),
            "times": round(times, 3),
            "step_s": step_s,
            "again": again,
            "cause": part,
            "cause_s": [before_s, after_s],
            "file": after[-1].file,
        }


def _parts(window: Window) -> dict[str, float]:
    """The idle time by cause, that between calls by its owners, and the GPU's work."""
    causes = {name: seconds for name, seconds in window.causes.items() if name != BETWEEN}
    return {WORK: window.busy_s, **causes, **window.owners}


def _middle(windows: Sequence[Window], figure: Callable[[Window], float]) -> float:
    return statistics.median(map(figure, windows))


def _cause(before: Sequence[Window], after: Sequence[Window]) -> tuple[str, float, float]:
    """The part of the idle time, or the GPU's work, that changed most a step, and what it took before and after."""
    names = {name for one in (*before, *after) for name in _parts(one)}

    def of(name: str, side: Sequence[Window]) -> float:
        return _middle(side, lambda one: _parts(one).get(name, 0.0) / len(one.steps_s))

    most = max(names, key=lambda name: abs(of(name, after) - of(name, before)))
    return most, of(most, before), of(most, after)

"""When the next recording may begin, so that recording takes no more than a share of the program's time."""

from __future__ import annotations

import math

import numpy as np

from microbench.fleet.windows import Window

# Until the pauses of a program show what a recording takes of it: more than any program lost (lab/measurements).
ASSUMED = 0.5
ASSUMED_BEHIND = 0.1
# A recording lasts so many steps, within these limits, and half as long again for the pause behind it.
STEPS, SHORTEST_S, LONGEST_S, BEHIND = 20, 0.5, 8.0, 0.5
LEAST_BETWEEN_S = 10.0  # a diagnosis takes a second of another processor
MOST_BETWEEN_S = 3600.0  # a budget that allows fewer recordings cannot be kept
SURE = 2.8  # standard deviations: 95 % of Student's t with four degrees of freedom
FEW = 5  # recordings


class Budget:
    """Counts what recordings have taken of the program with most loss, at the upper end of a 95 % interval."""

    def __init__(self, share: float, began_s: float) -> None:
        self.share, self._began_s = share, began_s
        self._lengths: list[tuple[float, float]] = []  # of windows and the pauses behind them, in s
        self._lost: list[float] = []  # shares
        self._behind = ASSUMED_BEHIND
        self.window_s = SHORTEST_S

    @property
    def pause_s(self) -> float:
        """How long waits and turns are recorded behind a window."""
        return BEHIND * self.window_s

    def add(self, windows: list[Window], window_s: float, pause_s: float) -> None:
        """Take a recording of that length, of several processes or of none that used the GPU."""
        if not windows:
            return
        self._lengths.append((window_s, pause_s))
        if known := [one for one in windows if one.lost is not None]:
            worst = max(known, key=lambda one: one.lost or 0.0)
            self._lost.append(worst.lost or 0.0)
            self._behind = max(one.lost_behind for one in known)
        if steps := [one.step_s for one in windows if one.step_s is not None]:
            self.window_s = min(max(STEPS * max(steps), SHORTEST_S), LONGEST_S)

    def lost_s(self) -> float:
        """What the recordings have taken, in s."""
        windows_s, pauses_s = np.sum(self._lengths, axis=0) if self._lengths else (0.0, 0.0)
        return float(windows_s * self._share() + pauses_s * self._behind)

    def lost(self, now_s: float) -> float:
        """The share of the time since the begin that they have taken."""
        return self.lost_s() / max(now_s - self._began_s, 1e-9)

    def _share(self) -> float:
        """The share of a window that is lost, in the mean; a few recordings may be off by all of what is assumed."""
        count = len(self._lost)
        if count < FEW:
            return max(ASSUMED, *self._lost, 0.0)
        error = float(np.std(self._lost, ddof=1)) / math.sqrt(count)
        return min(float(np.mean(self._lost)) + SURE * error, 1.0)

    def next_s(self, last_s: float) -> float | None:
        """When the next recording may begin, if the last one ended then; None if it cannot be paid for within
        MOST_BETWEEN_S. Before it ends, all of them have to be paid for."""
        more_s = self.window_s * self._share() + self.pause_s * self._behind
        due_s = self._began_s + (self.lost_s() + more_s) / self.share
        if more_s / self.share > MOST_BETWEEN_S:
            return None
        return max(due_s, last_s + LEAST_BETWEEN_S)

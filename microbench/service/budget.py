"""When the next recording may begin, so that recording takes no more than a share of the program's time."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from microbench.fleet.windows import Window

# Until pauses show what a recording takes of a program: more than those of lab/measurements lost in the mean.
ASSUMED = 0.5
ASSUMED_BEHIND = 0.15
# A window lasts so many steps, within these limits. Behind it CUPTI tells of its last kernels, and then waits and turns
# are recorded for half as long.
STEPS, SHORTEST_S, LONGEST_S = 20, 0.5, 8.0
SETTLING_S, BEHIND, SHORTEST_BEHIND_S = 0.4, 0.5, 0.5
LEAST_BETWEEN_S = 10.0  # a diagnosis takes a second of another processor
# What is not used is saved for so long, and what an attached recording took is paid back in no more.
SAVED_S = 3600.0
SURE = 2.8  # standard deviations: 95 % of Student's t with four degrees of freedom
FEW, RECENT = 5, 50  # recordings


def behind(window_s: float) -> float:
    """How long a recording goes on behind its window, in s."""
    return SETTLING_S + max(BEHIND * window_s, SHORTEST_BEHIND_S)


class Budget:
    """Pays for recordings of the program with most loss, each at the upper end of a 95 % interval."""

    def __init__(self, share: float, began_s: float) -> None:
        self.share, self._began_s, self._at_s = share, began_s, began_s
        self._saved_s = 0.0  # that may be taken now
        self._recent: deque[float] = deque(maxlen=RECENT)  # shares of windows that were lost
        self._doubt_s = 0.0  # paid for the first few beyond what they showed
        self._behind = ASSUMED_BEHIND
        self._wanted_s = SHORTEST_S
        self.taken_s = 0.0

    @property
    def window_s(self) -> float:
        """How long the next window is: no longer than half of what can be saved pays for."""
        fixed_s, each = self._cost_s(0.0, self._expected()), self._expected() + BEHIND * self._behind
        affordable_s = (self.share * SAVED_S / 2 - fixed_s) / each
        return min(self._wanted_s, max(affordable_s, SHORTEST_S))

    def add(self, windows: Sequence[Window], window_s: float, now_s: float, *, seen: bool) -> None:
        """Pay for a recording of several processes, of none whose loss is known, or, unless ``seen``, of none that used
        the GPU. A window that is too short for steps is followed by a longer one."""
        self._save(now_s)
        if not seen:
            return
        steps_s = [one.step_s for one in windows if one.step_s is not None]
        wanted_s = STEPS * max(steps_s) if steps_s else 2 * window_s
        self._wanted_s = min(max(wanted_s, SHORTEST_S), LONGEST_S)
        lost = ASSUMED
        if known := [one for one in windows if one.lost is not None]:
            measured = max(one.lost or 0.0 for one in known)
            self._recent.append(measured)
            self._behind = max(one.lost_behind for one in known)
            lost = min(measured + self._error(), 1.0)
            if len(self._recent) < FEW:
                self._doubt_s += max(ASSUMED - lost, 0.0) * (window_s + SETTLING_S)
                lost = max(ASSUMED, lost)
            else:
                self._pay(-self._doubt_s)
                self._doubt_s = 0.0
        self._pay(self._cost_s(window_s, lost))

    def lost(self, now_s: float) -> float:
        """The share of the time since the begin that recordings have taken."""
        return self.taken_s / max(now_s - self._began_s, 1e-9)

    def next_s(self, last_s: float) -> float | None:
        """When the next recording may begin, if the last one ended then; None if no saving pays for it."""
        more_s = self._cost_s(self.window_s, self._expected())
        if more_s > self.share * SAVED_S:
            return None
        self._save(last_s)
        return max(last_s + (more_s - self._saved_s) / self.share, last_s + LEAST_BETWEEN_S)

    def _save(self, now_s: float) -> None:
        self._saved_s = min(self._saved_s + self.share * max(now_s - self._at_s, 0.0), self.share * SAVED_S)
        self._at_s = max(now_s, self._at_s)

    def _pay(self, seconds: float) -> None:
        self.taken_s += seconds
        self._saved_s = max(self._saved_s - seconds, -self.share * SAVED_S)

    def _cost_s(self, window_s: float, lost: float) -> float:
        """The seconds that a recording costs the program, if its window loses that share."""
        return (window_s + SETTLING_S) * lost + (behind(window_s) - SETTLING_S) * self._behind

    def _expected(self) -> float:
        """The share of the next window that will be lost."""
        if len(self._recent) < FEW:
            return max(ASSUMED, *self._recent, 0.0)
        return min(max(self._recent[-1], float(np.mean(self._recent))) + self._error(), 1.0)

    def _error(self) -> float:
        """How far the mean of the recent losses may be off; neighbours show the scatter, whatever the program does."""
        count = len(self._recent)
        if count < 2:
            return 0.0
        scatter = float(np.sqrt(np.mean(np.square(np.diff(self._recent))) / 2))
        return SURE * scatter / math.sqrt(count)

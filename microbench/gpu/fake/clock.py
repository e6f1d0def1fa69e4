"""The virtual host clock and the seeded noise of the simulation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from microbench.gpu.api import IntArray

FloatArray = npt.NDArray[np.float64]

# Rare long host calls (an interrupt, another process): one call in 500 takes 6 us longer on average.
TAIL_SHARE = 0.002
TAIL_MEAN_NS = 6000.0


class VirtualClock:
    """Host time in ns since the simulated machine started; it moves only when the simulation says so, never back.

    A reading costs ``call_ns`` and shows whole multiples of ``step_ns``.
    """

    def __init__(self, call_ns: float = 0.0, step_ns: int = 1) -> None:
        self._time_ns = 1e9
        self._call_ns = call_ns
        self._step_ns = step_ns

    @property
    def time_ns(self) -> float:
        """The exact time, for the simulation itself: looking costs nothing."""
        return self._time_ns

    def now_ns(self) -> int:
        """A reading, as the Meter takes it."""
        self._time_ns += self._call_ns
        return self.shown(self._time_ns)

    def shown(self, time_ns: float) -> int:
        """What the clock shows at that time."""
        return math.floor(time_ns / self._step_ns) * self._step_ns

    def all_shown(self, times_ns: FloatArray) -> IntArray:
        """What the clock shows at each of those times."""
        return (np.floor(times_ns / self._step_ns) * self._step_ns).astype(np.int64)

    def pass_ns(self, duration_ns: float) -> float:
        """Let time pass; the new time. Raises ValueError for a negative duration."""
        if duration_ns < 0:
            raise ValueError("time does not run backwards")
        self._time_ns += duration_ns
        return self._time_ns

    def wait_until(self, time_ns: float) -> float:
        """Let time pass until then, if it is not past already; the new time."""
        self._time_ns = max(self._time_ns, time_ns)
        return self._time_ns


class Noise:
    """Seeded noise: a share of ``spread`` log-normal about each cost (its median), and rare long host calls.

    ``spread`` 0 gives every cost exactly.
    """

    def __init__(self, seed: int, spread: float) -> None:
        self._random = np.random.default_rng(seed)
        self.spread = spread

    def device(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the device: no tails."""
        if not self.spread or not cost_ns:
            return np.full(count, cost_ns)
        if count == 1:  # most calls come alone, and an array of one takes numpy longer than a number
            return np.array([cost_ns * math.exp(self.spread * self._random.standard_normal())])
        costs: FloatArray = cost_ns * np.exp(self.spread * self._random.standard_normal(count))
        return costs

    def host(self, cost_ns: float, count: int) -> FloatArray:
        """``count`` costs of the host, tails included."""
        costs = self.device(cost_ns, count)
        if self.spread and count == 1:
            if self._random.random() < TAIL_SHARE:
                costs[0] += self._random.exponential(TAIL_MEAN_NS)
        elif self.spread:
            late = self._random.random(count) < TAIL_SHARE
            costs[late] += self._random.exponential(TAIL_MEAN_NS, int(late.sum()))
        return costs

    def one(self, cost_ns: float) -> float:
        """A single cost of the host."""
        return float(self.host(cost_ns, 1)[0]) if self.spread else cost_ns

    def happens(self, share: float) -> bool:
        """True in that share of all times; never without noise."""
        return bool(self.spread) and float(self._random.random()) < share

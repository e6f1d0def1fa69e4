"""Budget: how long each case may sample, and when a suite has used its share of the run's time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from microbench.core.bench import Preset
from microbench.run.plan import Block, PlannedCase

# Wall time from the first worker's start to the last outcome; the full preset has no limit.
LIMITS_S: Mapping[Preset, float | None] = {"quick": 20.0, "default": 120.0, "full": None}
# The longest time that one metric of one case may sample.
CAPS_S: Mapping[Preset, float] = {"quick": 0.08, "default": 0.3, "full": 1.0}
# The least share of that time: with less, the values lose more than the additional cases are worth.
LEAST_OF_CAP = 0.25
# Seconds of each suite if all of them run; fewer suites share the whole budget in these proportions.
SHARES_S: Mapping[Preset, Mapping[str, float]] = {
    "quick": {"host": 2, "launch": 5, "graph": 4, "link": 4, "memory": 3, "compute": 2},
    "default": {"host": 5, "launch": 30, "graph": 25, "link": 25, "memory": 20, "compute": 15},
    "full": {"host": 5, "launch": 30, "graph": 25, "link": 25, "memory": 20, "compute": 15},
}
# First guesses, used until the run has measured its own: interpreter, packages and context of a process; warm-up of a
# case.
FRESH_PROCESS_S = 1.5
OVERHEAD_S = 0.1
# Limits of what a case's wall time may change in the forecast, so that one outlier does not end a suite.
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0


@dataclass
class _Mean:
    """A running mean; ``guess`` until a value is added."""

    guess: float
    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else self.guess

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1


class Budget:
    """Divides the remaining time among the remaining suites, in their proportions, at the start of each suite.

    Unused time thus goes to all later suites, and overdrawn time is taken from them. Within a suite the sampling time
    shrinks from the preset's cap until all its cases fit; when it cannot shrink further and the next case does not fit,
    the rest of the suite is left out.
    """

    def __init__(
        self,
        preset: Preset,
        limit_s: float | None,
        cases: Sequence[PlannedCase],
        now_s: Callable[[], float],
        began_s: float,
    ) -> None:
        """``limit_s`` counts from ``began_s`` on the clock ``now_s``; None is no limit. ``cases`` are in order."""
        self.limit_s = limit_s
        self._cap_s = CAPS_S[preset]
        self._shares_s = SHARES_S[preset]
        self._cases = list(cases)
        self._now_s, self._began_s = now_s, began_s
        self._block: Block | None = None
        self._block_ends_s = 0.0
        self._spent: set[Block] = set()
        self._start = _Mean(FRESH_PROCESS_S)
        self._factors: dict[str, _Mean] = {}

    @property
    def left_s(self) -> float | None:
        """Remaining wall time, never negative; None without a limit."""
        return None if self.limit_s is None else max(0.0, self._began_s + self.limit_s - self._now_s())

    def expected_s(self) -> float:
        """Forecast for all cases at the preset's cap, before any of them has run."""
        sampling_s = sum(self._cost_s(case, self._cap_s) for case in self._cases)
        return sampling_s + _processes(self._cases) * self._start.value

    def seconds(self, index: int, *, running: bool) -> float | None:
        """Sampling time of a metric of case number ``index``, in seconds; None if its suite has no time left.

        ``running`` says that a process for it already runs. Cases must be asked for in their order.
        """
        case = self._cases[index]
        left_s = self._left_in_block_s(index)
        rest = [other for other in self._cases[index:] if other.block == case.block]
        if left_s is None:
            return self._cap_s
        if case.block in self._spent:
            return None
        starts_s = (_processes(rest) - running) * self._start.value
        fixed_s = starts_s + sum(self._cost_s(other, 0.0) for other in rest)
        by_second = sum(self._factor(other) * len(other.benchmark.metrics) for other in rest)
        fitting_s = (left_s - fixed_s) / max(by_second, 1e-9)
        seconds = min(max(fitting_s, self._cap_s * LEAST_OF_CAP), self._cap_s)
        if self._cost_s(case, seconds) + (0.0 if running else self._start.value) > left_s:
            self._spent.add(case.block)
            return None
        return seconds

    def learn_start(self, wall_s: float) -> None:
        """Learn how long a process took from its start until it was ready for its first case."""
        self._start.add(wall_s)

    def learn_case(self, case: PlannedCase, seconds: float, wall_s: float) -> None:
        """Learn how long a case with this sampling time took in all."""
        factor = wall_s / (len(case.benchmark.metrics) * seconds + OVERHEAD_S)
        mean = self._factors.setdefault(case.benchmark.name, _Mean(1.0))
        mean.add(min(max(factor, LEAST_FACTOR), MOST_FACTOR))

    def _left_in_block_s(self, index: int) -> float | None:
        left_s = self.left_s
        if left_s is None:
            return None
        block = self._cases[index].block
        if block != self._block:
            coming = dict.fromkeys(case.block for case in self._cases[index:])
            share = self._shares_s[block.suite] / sum(self._shares_s[other.suite] for other in coming)
            self._block, self._block_ends_s = block, self._now_s() + left_s * share
        return self._block_ends_s - self._now_s()

    def _factor(self, case: PlannedCase) -> float:
        mean = self._factors.get(case.benchmark.name)
        return mean.value if mean else 1.0

    def _cost_s(self, case: PlannedCase, seconds: float) -> float:
        return self._factor(case) * (len(case.benchmark.metrics) * seconds + OVERHEAD_S)


def _processes(cases: Sequence[PlannedCase]) -> int:
    """How many processes the cases need, one after the other."""
    return len(cases) and 1 + sum(first.process != second.process for first, second in itertools.pairwise(cases))

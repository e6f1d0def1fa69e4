"""Budget: how long each case may sample, and which cases are left out for lack of time."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from microbench.core.bench import Preset
from microbench.session.plan import PlannedCase

# Wall time of a run without names, from the first worker's start to the last outcome; the full preset has no limit. A
# run of named suites or benchmarks measures them whole.
LIMITS_S: Mapping[Preset, float | None] = {"quick": 30.0, "default": 120.0, "full": None}
# Wall time that the core of all rounds should fit into, or its share of a longer limit: its cases sample less if need
# be, but none is left out.
CORE_S: Mapping[Preset, float] = {"quick": 30.0, "default": 80.0, "full": 80.0}
# The longest time that one metric of one case may sample.
CAPS_S: Mapping[Preset, float] = {"quick": 0.08, "default": 0.3, "full": 1.0}
# The smallest share of CAPS_S: below it the values lose more than the additional cases are worth.
LEAST_OF_CAP = 0.25
# The least time to wait for a silent worker, even past the time limit, because it may import or compile.
LEAST_WAIT_S = 30.0
# Guesses until the run has measured its own times: start of a process (interpreter, packages, context); warm-up of a
# case.
FRESH_PROCESS_S = 1.5
OVERHEAD_S = 0.1
# Limits on how far one case's wall time may change the forecast, so that one outlier does not end a suite.
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0


class Budget:
    """Divides the wall time among the rounds, and each round's time between its core and its other cases.

    The sampling time shrinks from the preset's cap until the core fits; that of other cases, until the round fits. If
    it cannot shrink further, the core takes longer than planned, and other cases that do not fit are left out.
    """

    def __init__(
        self,
        preset: Preset,
        limit_s: float | None,
        cases: Sequence[PlannedCase],
        now_s: Callable[[], float],
        began_s: float,
        earlier_s: Mapping[str, float] | None = None,
    ) -> None:
        """``limit_s`` counts from ``began_s`` on the clock ``now_s``; None is no limit. ``cases`` are in order.
        ``earlier_s`` is the wall time of cases in an earlier run of this preset on this machine, by their id."""
        self.limit_s = limit_s
        self._cap_s = CAPS_S[preset]
        self._core_s = CORE_S[preset] / max(len({case.turn for case in cases if case.core}), 1)
        self._cases = list(cases)
        self._now_s, self._began_s = now_s, began_s
        self._ends_s: dict[tuple[int, bool], float] = {}
        self._starts_s: list[float] = []
        self._factors: dict[str, list[float]] = {}
        known = earlier_s or {}
        for case in cases:
            if case.case.id in known:
                self.learn_case(case, self._cap_s, known[case.case.id])

    @property
    def left_s(self) -> float | None:
        """Remaining wall time, never negative; None without a limit."""
        return None if self.limit_s is None else max(0.0, self._began_s + self.limit_s - self._now_s())

    @property
    def wait_s(self) -> float | None:
        """The longest time to wait for a message of a worker; None without a limit."""
        return None if self.left_s is None else max(self.left_s, LEAST_WAIT_S)

    @property
    def _start_s(self) -> float:
        return sum(self._starts_s) / len(self._starts_s) if self._starts_s else FRESH_PROCESS_S

    def learn_start(self, wall_s: float) -> None:
        """Learn how long a process took from its start until it was ready for its first case."""
        self._starts_s.append(wall_s)

    def expected_s(self) -> float:
        """Forecast for all cases at the preset's cap, before any of them has run."""
        sampling_s = sum(self._cost_s(case, self._cap_s) for case in self._cases)
        return sampling_s + _processes(self._cases) * self._start_s

    def seconds(self, index: int, *, running: bool) -> float | None:
        """Sampling time of a metric of case number ``index``, in seconds; None if there is no time left for it.

        ``running`` is True if a process for the case already runs. Call this for the cases in their order.
        """
        case = self._cases[index]
        if self.left_s is None:
            return self._cap_s
        part = (case.turn, case.core)
        if part not in self._ends_s:
            self._divide(self._cases[index:], case.turn, self.left_s)
        rest = [other for other in self._cases[index:] if (other.turn, other.core) == part]
        left_s = self._ends_s[part] - self._now_s()
        starts_s = (_processes(rest) - running) * self._start_s
        fixed_s = starts_s + sum(self._cost_s(other, 0.0) for other in rest)
        by_second = sum(self._factor(other) * len(other.benchmark.metrics) for other in rest)
        fitting_s = (left_s - fixed_s) / max(by_second, 1e-9)
        seconds = min(max(fitting_s, self._cap_s * LEAST_OF_CAP), self._cap_s)
        needed_s = self._cost_s(case, seconds) + (0.0 if running else self._start_s)
        return None if needed_s > left_s and not case.core else seconds

    def reached(self, coming: Sequence[PlannedCase]) -> Sequence[PlannedCase]:
        """The cases of ``coming``, the next ones in order, that are expected to fit the remaining time."""
        if self.limit_s is None:
            return coming
        reached: list[PlannedCase] = []
        time_s = self._now_s()
        for case in coming:
            same = bool(reached) and reached[-1].process == case.process
            after_s = time_s + self._cost_s(case, self._cap_s * LEAST_OF_CAP) + (0.0 if same else self._start_s)
            if case.core or after_s <= self._ends_s.get((case.turn, case.core), self._began_s + self.limit_s):
                reached.append(case)
                time_s = after_s
        return reached

    def _divide(self, coming: Sequence[PlannedCase], turn: int, left_s: float) -> None:
        """Set when a round ends and when its core does.

        A round gets a share of the remaining time in proportion to its cases. So does its core, but at least the
        round's share of CORE_S, or of the remaining time if that is less.
        """
        here = [case for case in coming if case.turn == turn]
        per_case_s = left_s / len(coming)
        cores = len({case.turn for case in coming if case.core})
        least_s = min(self._core_s, left_s / max(cores, 1))
        now_s = self._now_s()
        self._ends_s[turn, False] = now_s + per_case_s * len(here)
        self._ends_s[turn, True] = now_s + max(per_case_s * sum(case.core for case in here), least_s)

    def learn_case(self, case: PlannedCase, seconds: float, wall_s: float) -> None:
        """Learn how long a case with this sampling time took in all."""
        factor = wall_s / (len(case.benchmark.metrics) * seconds + OVERHEAD_S)
        factors = self._factors.setdefault(case.benchmark.name, [])
        factors.append(min(max(factor, LEAST_FACTOR), MOST_FACTOR))

    def _factor(self, case: PlannedCase) -> float:
        factors = self._factors.get(case.benchmark.name, [1.0])
        return sum(factors) / len(factors)

    def _cost_s(self, case: PlannedCase, seconds: float) -> float:
        return self._factor(case) * (len(case.benchmark.metrics) * seconds + OVERHEAD_S)


def _processes(cases: Sequence[PlannedCase]) -> int:
    """How many processes the cases need, one after the other."""
    return len(cases) and 1 + sum(first.process != second.process for first, second in itertools.pairwise(cases))

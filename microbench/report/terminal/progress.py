"""Shows the progress of a run: a live display on a terminal, plain lines elsewhere. Both listen to its events."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from microbench.analysis.stats import summarize
from microbench.core.model import Metric, Outcome
from microbench.core.units import quantity, spread, wall
from microbench.report.document import Tone
from microbench.report.tables import STATUS_WORDS
from microbench.report.terminal.terminal import Painter
from microbench.session.messages import CaseDone, CaseStarted, CaseTick, Event, NotLocked, PlanMade, Probed, RunEnded

REFRESHES_PER_S = 4
RECENT_CASES = 8
FIGURES_SHOWN = 3
OUTCOME_MARKS: dict[str, tuple[str, Tone]] = {"ok": ("✓", "good"), "skipped": ("○", "quiet")}

MetricsByBenchmark = Mapping[str, Sequence[Metric]]


def figures(outcome: Outcome, metrics: MetricsByBenchmark) -> str:
    """An outcome's first figures: "submit 3.61 µs ±0.5 %, start 6.40 µs ±0.7 % within this process".

    Without any it is the number of its facts."""
    known = {metric.name: metric for metric in metrics.get(outcome.case.benchmark, ())}
    words = []
    for measurement in outcome.measurements[:FIGURES_SHOWN]:
        metric = known.get(measurement.metric)
        if metric is not None and measurement.n > 0:
            interval = summarize(metric, measurement).interval
            figure = f"{metric.name} {quantity(interval.median, metric.unit)}"
            words.append(f"{figure} {spread(interval.half_width)}" if measurement.n > 1 else figure)
    if not words and outcome.facts:
        words.append(f"{len(outcome.facts)} facts")
    return ", ".join(words) + (" within this process" if any("±" in word for word in words) else "")


class Progress:
    """Counts finished cases; the plan's total does not include cases that were skipped before the first one started."""

    def __init__(self, console: Console, metrics: MetricsByBenchmark) -> None:
        self._painter = Painter(console)
        self._metrics = metrics
        self._done = 0
        self._started = False

    def _see(self, event: Event) -> None:
        self._started = self._started or isinstance(event, CaseStarted)
        self._done += isinstance(event, CaseDone) and (self._started or event.outcome.status != "skipped")
        if isinstance(event, NotLocked):
            self._line(f"{event.path} cannot be locked ({event.reason}): measure nothing else into it meanwhile")

    def _line(self, words: str) -> None:
        self._painter.console.print(self._painter.text(words), soft_wrap=True)


class PlainProgress(Progress):
    """A line for each case, for pipes and logs; cases that are skipped one after the other for one reason share one."""

    def __init__(self, console: Console, metrics: MetricsByBenchmark) -> None:
        super().__init__(console, metrics)
        self._total = 0
        self._skipped: list[Outcome] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Write the plan, each finished case, and an end that was not complete."""
        if self._skipped:
            first, now = self._skipped[0], event.outcome if isinstance(event, CaseDone) else None
            if now is None or (now.status, now.reason) != (first.status, first.reason):
                self._skips()
        self._see(event)
        if isinstance(event, PlanMade):
            self._total = event.total_cases
            cases = f"{event.total_cases} case{'s' * (event.total_cases != 1)} of {', '.join(event.suites)}"
            if event.budget_s is not None and 0 < event.core_cases < event.total_cases:
                cases += f": {event.core_cases} always, the others as far as {wall(event.budget_s)} reach"
            elif event.budget_s:
                cases += f", at most {wall(event.budget_s)}"
            elif event.budget_s is not None:
                cases += ", each once: the time limit leaves no time for more"
            self._line(cases if event.total_cases else "no case to measure")
        elif isinstance(event, CaseDone):
            outcome = event.outcome
            if outcome.status == "skipped":
                self._skipped.append(outcome)
                return
            status = STATUS_WORDS.get(outcome.status, outcome.status)
            words = figures(outcome, self._metrics) if outcome.status == "ok" else f"{status}: {outcome.reason}"
            self._line(f"[{self._done}/{self._total}] {outcome.case.id}: {words}")
        elif isinstance(event, RunEnded) and event.status != "complete":
            self._line(f"{event.status}: what was measured is kept in {event.path}")

    def _skips(self) -> None:
        first, *others = self._skipped
        self._skipped = []
        more = f" and {len(others)} more" if others else ""
        words = f"{first.case.id}{more}: {STATUS_WORDS.get(first.status, first.status)}: {first.reason}"
        self._line(f"[{self._done}/{self._total}] {words}")


class LiveProgress(Progress):
    """A display that is redrawn at most REFRESHES_PER_S times a second; only failures stay on the screen."""

    def __init__(
        self, console: Console, metrics: MetricsByBenchmark, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, metrics)
        self._clock = clock
        self._begun_s = clock()
        self._plan: PlanMade | None = None
        self._case: CaseStarted | None = None
        self._tick: CaseTick | None = None
        self._recent: deque[RenderableType] = deque(maxlen=RECENT_CASES)
        self._live = Live(
            console=console, get_renderable=self._drawn, refresh_per_second=REFRESHES_PER_S, transient=True
        )

    def __enter__(self) -> Self:
        with suppress(OSError):  # as in __exit__: the run goes on without a terminal
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Remember what the next refresh shows."""
        self._see(event)
        if isinstance(event, PlanMade):
            self._plan, self._begun_s = event, self._clock()
        elif isinstance(event, CaseStarted):
            self._case, self._tick = event, None
        elif isinstance(event, CaseTick):
            self._tick = event
        elif isinstance(event, CaseDone):
            self._case, outcome = None, event.outcome
            sign, tone = OUTCOME_MARKS.get(outcome.status, ("✗", "problem"))
            words = figures(outcome, self._metrics) if outcome.status == "ok" else outcome.reason or ""
            self._recent.append(self._row(sign, tone, outcome.case.id, words))
            if tone == "problem":
                self._live.console.print(self._recent[-1])
        elif isinstance(event, Probed | RunEnded):
            self._case = None

    def _row(self, sign: str, tone: Tone, name: str, words: str) -> RenderableType:
        text = self._painter.text
        line = text(f"{sign} ", tone) + text(f"{name}  ") + text(words, "quiet")
        line.no_wrap, line.overflow = True, "ellipsis" if self._painter.fine else "crop"
        return line

    def _drawn(self) -> RenderableType:
        if self._plan is None:
            return self._painter.text("Looking at this machine…", "quiet")
        now: RenderableType = Text(" ")
        case, tick = self._case, self._tick
        if case is not None:
            words = f"{tick.metric} {quantity(tick.value, tick.unit)}, {tick.n} samples" if tick else ""
            now = self._row("▸", "first", case.case_id, words)
        return Group(*list(self._recent), now, self._bar(self._plan))

    def _bar(self, plan: PlanMade) -> RenderableType:
        grid, text, done = Grid.grid(padding=(0, 1)), self._painter.text, self._done
        suite, left = self._case.suite if self._case else "", self.seconds_left()
        bar = ProgressBar(total=max(plan.total_cases, 1), completed=done, width=min(40, self._painter.width // 3))
        left_words = text(f"{wall(left)} left" if left is not None else "", "quiet")
        grid.add_row(text(suite.ljust(8), "strong"), bar, text(f"{done}/{plan.total_cases}"), left_words)
        return grid

    def seconds_left(self) -> float | None:
        """How long the rest should take, at most what is left of the budget; None while nothing is known.

        The mean of the forecast and of the pace so far, weighted by the cases left and by the cases done: early cases
        are seldom like late ones.
        """
        plan = self._plan
        if plan is None:
            return None
        elapsed_s = self._clock() - self._begun_s
        done = min(self._done / max(plan.total_cases, 1), 1.0)
        pace_s = elapsed_s / done * (1 - done) if done else None
        forecast_s = max(plan.expected_s - elapsed_s, 0.0) if plan.expected_s is not None else None
        left_s = pace_s if forecast_s is None else forecast_s
        if pace_s is not None and forecast_s is not None:
            left_s = done * pace_s + (1 - done) * forecast_s
        if plan.budget_s is not None:
            budget_s = max(plan.budget_s - elapsed_s, 0.0)
            left_s = budget_s if left_s is None else min(left_s, budget_s)
        return left_s

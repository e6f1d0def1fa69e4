"""What programs and notebooks get as an answer: two runs compared, a step predicted, traces diagnosed."""

from dataclasses import dataclass
from typing import Any

import msgspec

from microbench.analysis.evidence import Finding
from microbench.comparison.compare import Change, Verdict
from microbench.comparison.words import findings as findings_of_comparison
from microbench.comparison.words import summary
from microbench.core.units import plain
from microbench.diagnosis.diagnosis import Bound
from microbench.diagnosis.words import findings as findings_of_diagnosis
from microbench.library.answers import Compared, Diagnosed, fails
from microbench.library.results import Drawn, Sheet
from microbench.model.words import findings as findings_of_forecast
from microbench.report.document import Report, Screen
from microbench.report.sheets import prediction as prediction_sheet
from microbench.report.sheets.comparison import figure_words
from microbench.report.sheets.prediction import Side


@dataclass(frozen=True)
class ComparedFigure:
    """The verdict on one figure of two runs.

    ``base`` and ``new`` are its values in SI base units. ``verdict`` is "slower", "farther" (from its ceiling),
    "faster", "nearer", "more", "fewer", "same", "within 10 %", "unclear" or "incomparable"; ``reason`` says why one of
    the last two. ``ratio`` is NEW over BASE as judged, with its 95 % interval; None where nothing could be judged.
    """

    name: str
    suite: str
    benchmark: str
    case: str
    metric: str
    unit: str
    base: float
    new: float
    verdict: Verdict
    reason: str | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None


def compared_figure(change: Change) -> ComparedFigure:
    """A change as programs get it."""
    row, judged = change.new, change.judged
    return ComparedFigure(
        name=figure_words(row),
        suite=row.suite,
        benchmark=row.benchmark,
        case=row.case_id,
        metric=row.metric.name,
        unit=row.metric.unit,
        base=change.base.value,
        new=row.value,
        verdict=change.verdict,
        reason=change.reason,
        ratio=None if judged is None else judged.median,
        ratio_low=None if judged is None else judged.low,
        ratio_high=None if judged is None else judged.high,
    )


class ComparedRuns(Drawn):
    """Two runs compared: a verdict on each figure that both have, and on the suites."""

    def __init__(self, compared: Compared) -> None:
        self._compared = compared

    @property
    def verdict(self) -> str:
        """The verdict in a word or a few: "SLOWER", "NO CHANGE SHOWN". The first finding has the figures."""
        return summary(self._compared.comparison).title

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the verdicts on the figures add up to."""
        return (summary(self._compared.comparison), *findings_of_comparison(*self._compared))

    @property
    def figures(self) -> tuple[ComparedFigure, ...]:
        """The verdict on each figure that both runs have."""
        return tuple(map(compared_figure, self._compared.comparison.changes))

    @property
    def details(self) -> Sheet:
        """The comparison with every figure, including the same and the unclear ones, to draw."""
        return Sheet("comparison", self._compared.sheet(everything=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything that `microbench compare --json` prints, in SI base units."""
        comparison = self._compared.comparison
        whole = {
            "base": comparison.base.run_id,
            "new": comparison.new.run_id,
            "verdict": self.verdict,
            "findings": [one.words for one in self.findings],
            "figures": msgspec.to_builtins(self.figures),
        }
        return as_json(whole)

    def fails(self, limit: str = "slower") -> bool:
        """True if a suite or figure is "slower", "suspected" (slower, or worse but not confirmed), "faster", or "any".

        A figure that the new run failed to measure is slower. Raises UsageError if nothing could be compared.
        """
        return fails(self._compared.comparison, limit)

    def _sheet(self) -> Report:
        return self._compared.sheet()

    def __repr__(self) -> str:
        count = len(self._compared.comparison.changes)
        return f"<microbench.ComparedRuns {self.verdict}: {count} figures{_simulated(self._sheet())}>"


def as_json(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as those who read its JSON get it."""
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return read


def _simulated(shown: Report | Screen) -> str:
    return f", {shown.mark}" if shown.mark else ""


class PredictedStep(Drawn):
    """A step predicted from measured costs: its time in a stream and as a graph, and what limits it."""

    def __init__(self, side: Side) -> None:
        self._side = side

    @property
    def stream_s(self) -> float:
        """The time of a step in a stream, in seconds."""
        return self._side.forecast.stream.step_s

    @property
    def graph_s(self) -> float | None:
        """The time of a step as a graph, in seconds; None if nothing of it can be captured."""
        graph = self._side.forecast.graph
        return None if graph is None else graph.step_s

    @property
    def speedup(self) -> float:
        """How many times faster a step is as a graph; 1 if it cannot be one."""
        return self._side.forecast.speedup

    @property
    def break_even_steps(self) -> int | None:
        """The number of steps after which making the graph has paid; None if it never does."""
        return self._side.forecast.break_even

    @property
    def limits(self) -> tuple[str, ...]:
        """What limits the step in a stream: host, front end, kernel, link or sync; two at the ends of a range."""
        return self._side.forecast.stream.limits

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the figures mean; the first finding is the verdict."""
        return tuple(findings_of_forecast(self._side.forecast))

    def to_dict(self) -> dict[str, Any]:
        """Everything that `microbench predict --json` prints, in SI base units."""
        return as_json(prediction_sheet.answer(self._side))

    def _sheet(self) -> Report:
        return prediction_sheet.sheet(self._side)

    def __repr__(self) -> str:
        return f"<microbench.PredictedStep: {self.findings[0].title}{_simulated(self._sheet())}>"


class DiagnosedTraces(Drawn):
    """Why the GPU waits in one trace or several, and what a graph would give."""

    def __init__(self, diagnosed: Diagnosed) -> None:
        self._diagnosed = diagnosed

    @property
    def bounds(self) -> tuple[Bound | None, ...]:
        """What limits the program, for each trace: "launch-bound", "GPU-bound", …; None if a trace cannot say it."""
        return tuple(one.bound for one in self._diagnosed.several)

    @property
    def idle_shares(self) -> tuple[float | None, ...]:
        """The share of the time in which the GPU is idle, for each trace; None if a trace cannot say it."""
        idles = (one.idle for one in self._diagnosed.several)
        return tuple(None if one is None or not one.span_s else one.idle_s / one.span_s for one in idles)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all traces, in their order; the first of each trace is its verdict."""
        return tuple(finding for one in self._diagnosed.several for finding in findings_of_diagnosis(one))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Why files of a folder were left out."""
        return tuple(error.cause for error in self._diagnosed.left_out)

    @property
    def details(self) -> Sheet:
        """The diagnosis with its tables of causes, places, changes and what a graph cannot hold, to draw."""
        return Sheet("diagnosis", self._diagnosed.screen(everything=True))

    def to_dicts(self) -> list[dict[str, Any]]:
        """What `microbench diagnose --json` prints of each trace, in SI base units."""
        return list(map(as_json, self._diagnosed.answers()))

    def _sheet(self) -> Screen:
        return self._diagnosed.screen()

    def __repr__(self) -> str:
        names = ", ".join(one.trace.source for one in self._diagnosed.several)
        bounds = ", ".join(bound or "no verdict" for bound in self.bounds)
        return f"<microbench.DiagnosedTraces {plain(names)}: {bounds}>"

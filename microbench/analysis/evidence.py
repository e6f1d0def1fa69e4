"""Gives rules the measured rows of one GPU by benchmark, metric and parameters, and defines the finding they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Literal, TypeVar, cast

import msgspec

from microbench.analysis.limits import Ceiling, ceiling, mover
from microbench.analysis.stats import Row, Trust, rows
from microbench.core.model import Environment, GpuInfo, Outcome, Run, Scalar

Made = TypeVar("Made")
Severity = Literal["good", "note", "advice", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = ("good", "note", "advice", "warning", "problem")
# A unit that is never idle reaches its ceiling; the clock's own steps explain an excess below this share.
MARGIN = 0.003


class Finding(msgspec.Struct, frozen=True):
    """A conclusion about a run, derived from it and never stored in it.

    ``rule`` names the rule ("launch.starving"). ``title`` is the headline with the number that matters. ``text`` reads
    the numbers in at most two sentences, ``advice`` says in one sentence what to do ("" if there is nothing to do).
    ``threshold`` is the rule's condition in words, shown with --why. ``rests_on`` lists the rows and facts used, each
    as "case-id metric" or as the name of a fact. ``trust`` is the worst grade of these rows, "" without any. A verdict
    has ``reached``: the share of a ceiling that decides it, and the least share that is healthy.
    """

    rule: str
    severity: Severity
    title: str
    text: str
    threshold: str
    rests_on: tuple[str, ...] = ()
    advice: str = ""
    trust: Trust | Literal[""] = ""
    reached: tuple[float, float] | None = None

    @property
    def suite(self) -> str:
        """The rule's first part: a benchmark suite, "environment", "compare" or a kind of prediction."""
        return self.rule.partition(".")[0]

    @property
    def words(self) -> dict[str, str]:
        """What it says, for JSON."""
        return {name: getattr(self, name) for name in ("rule", "severity", "title", "text", "advice")}


def said(
    title: str,
    text: str = "",
    advice: str = "",
    *,
    rows: Iterable[Row | None] = (),
    names: Sequence[str] = (),
    severity: Severity | None = None,
    rule: str = "",
    threshold: str = "",
) -> Finding:
    """A finding that rests on these rows and facts; without a ``severity`` it is advice if it gives any, else a note.

    A function under ``rule`` leaves the rule and its threshold out.
    """
    severity = severity or ("advice" if advice else "note")
    return Finding(rule, severity, title, text, threshold, (*rests_on(*rows), *names), advice)


class Evidence:
    """The newest row of each case and metric on one GPU, and the host's rows.

    ``device`` is the GPU's UUID, None for a run without a GPU. Queries return None or an empty list for rows that were
    not measured, so a rule without its rows returns no finding. ``ceilings`` is the Evidence of another run on a GPU of
    the same model. The user's own kernels are compared with its memory bandwidth if this run did not measure it.
    """

    def __init__(self, run: Run, measured: Sequence[Row], device: str | None, ceilings: Evidence | None = None) -> None:
        self.run = run
        self.ceilings = ceilings
        self.device = device
        self._rows: dict[tuple[str, str], Row] = {}
        for row in measured:
            if row.device in (device, None) and math.isfinite(row.value):
                self._rows[row.case_id, row.metric.name] = row
        self._by_benchmark: dict[tuple[str, str | None], list[Row]] = {}  # None: every metric
        for row in self._rows.values():
            for metric in (row.metric.name, None):
                self._by_benchmark.setdefault((row.benchmark, metric), []).append(row)
        self._once: dict[object, object] = {}
        self._outcomes: dict[str, list[Outcome]] = {}
        for outcome in run.outcomes:
            if outcome.device in (device, None):
                self._outcomes.setdefault(outcome.case.benchmark, []).append(outcome)

    def once(self, work: Callable[[Evidence], Made]) -> Made:
        """What ``work`` makes of this evidence; it is done at the first call."""
        if work not in self._once:
            self._once[work] = work(self)
        return cast("Made", self._once[work])

    @property
    def environment(self) -> Environment:
        """The machine of the newest session."""
        return self.run.sessions[-1].environment if self.run.sessions else Environment()

    @property
    def gpu(self) -> GpuInfo | None:
        for session in reversed(self.run.sessions):
            for gpu in session.environment.gpus:
                if gpu.uuid == self.device:
                    return gpu
        return None

    def ceiling(self, row: Row) -> Ceiling | None:
        """The physical limit of a row on the GPU that moves its data; None if there is none."""
        gpus = self.run.sessions[row.session].environment.gpus
        return ceiling(row.measurement.bound, mover(row.params, self.gpu, gpus))

    def rows(self, benchmark: str, metric: str | None = None, /, **params: int | str) -> list[Row]:
        """Rows of a benchmark with these parameter values, in the order of the run."""
        named = self._by_benchmark.get((benchmark, metric), ())
        return [row for row in named if params.items() <= row.params.items()]

    def row(self, benchmark: str, metric: str, /, **params: int | str) -> Row | None:
        """The first row of that benchmark, metric and parameters with a value above 0, or None."""
        named = self._by_benchmark.get((benchmark, metric), ())
        return next((row for row in named if row.value > 0 and params.items() <= row.params.items()), None)

    def all_rows(self) -> list[Row]:
        return list(self._rows.values())

    def suite(self, suite: str) -> list[Row]:
        return [row for row in self._rows.values() if row.suite == suite]

    def curve(self, benchmark: str, metric: str, axis: str, /, **params: int | str) -> list[tuple[int, Row]]:
        """Value and row for each value of a numeric axis, ascending. Of several rows with a value, the first."""
        points: dict[int, Row] = {}
        for row in self.rows(benchmark, metric, **params):
            value = row.params.get(axis)
            if isinstance(value, int):
                points.setdefault(value, row)
        return sorted(points.items())

    def outcomes(self, benchmark: str) -> list[Outcome]:
        """Outcomes of a benchmark on this GPU, of any status."""
        return self._outcomes.get(benchmark, [])


# A rule returns its finding, or None if its rows are missing or there is nothing worth reporting.
Rule = Callable[[Evidence], Finding | None]


def rule(name: str, threshold: str) -> Callable[[Rule], Rule]:
    """A rule whose findings have this name, and this condition in words."""

    def named(own: Rule) -> Rule:
        @wraps(own)
        def found(evidence: Evidence) -> Finding | None:
            finding = own(evidence)
            return msgspec.structs.replace(finding, rule=name, threshold=threshold) if finding is not None else None

        return found

    return named


def evidence_by_device(
    run: Run, measured: Sequence[Row] | None = None, ceilings: Evidence | None = None
) -> list[Evidence]:
    """An Evidence for each GPU that has rows or facts, in the order of the run's outcomes; one without a GPU if none
    has. ``measured`` are the run's rows, if the caller has them."""
    measured = rows(run) if measured is None else measured
    with_facts = (outcome.device for outcome in run.outcomes if outcome.status == "ok" and outcome.facts)
    devices = dict.fromkeys((*(row.device for row in measured), *with_facts))
    devices.pop(None, None)
    return [Evidence(run, measured, device, ceilings) for device in devices or (None,)]


def whole(row: Row, name: str) -> int:
    """A parameter that is an integer; 0 if it is not."""
    value = row.params.get(name)
    return value if isinstance(value, int) else 0


def facts_of(row: Row, name: str) -> list[Scalar]:
    """The values of a fact in each round of a row that has it."""
    return [fact.value for outcome in row.outcomes for fact in outcome.facts if fact.name == name]


def row_name(row: Row) -> str:
    """A name that is unique among the rows of its GPU."""
    return f"{row.case_id} {row.metric.name}"


def rests_on(*found: Row | None) -> tuple[str, ...]:
    """How a finding names the rows it used, each once."""
    return tuple(dict.fromkeys(row_name(row) for row in found if row is not None))


# Grades of figures that may be wrong, the worst first, with the words for a figure that has one.
DOUBTS: dict[Trust, str] = {
    "unverified": "unverified", "throttled": "throttled", "below floor": "too short for its clock",
    "single": "from too few samples", "noisy": "noisy",
}  # fmt: skip


def doubtful(graded: Finding | Row) -> bool:
    """Whether a finding or a row has one of the grades of DOUBTS."""
    return graded.trust in DOUBTS


def with_grade(finding: Finding, behind: Sequence[Row]) -> Finding:
    """The finding with the worst grade of the rows that it rests on. Its text says which of them are doubtful."""
    grades = {row.trust for row in behind}
    worst = next((grade for grade in (*DOUBTS, "steady", "stable") if grade in grades), "")
    doubts = [row for row in behind if doubtful(row)]
    if not doubts:
        return msgspec.structs.replace(finding, trust=worst)
    words = " or ".join(word for grade, word in DOUBTS.items() if grade in grades)
    if len(doubts) == len(behind):
        several = "Both of its" if len(behind) == 2 else f"All of its {len(behind)}"
        said = f"{f'{several} figures are' if len(behind) > 1 else 'Its figure is'} {words}."
    else:
        names = dict.fromkeys(f"{row.benchmark} {row.metric.name}" for row in doubts)
        others = len(names) - 1
        more = f" and {others} more {'metric' if others == 1 else 'metrics'}" if others else ""
        verb = "are" if len(doubts) > 1 else "is"
        said = f"{len(doubts)} of its {len(behind)} figures {verb} {words}: {next(iter(names))}{more}."
    return msgspec.structs.replace(finding, trust=worst, text=f"{finding.text} {said}".lstrip())


def paid_after(cost: float, saved: float) -> int | None:
    """After how many times a saving has paid a cost, once at least; None where nothing is saved."""
    return max(math.ceil(cost / saved), 1) if saved > 0 else None


def sentence(words: str) -> str:
    """Words with a capital first letter; the rest is unchanged, because units have capitals."""
    return words[:1].upper() + words[1:]


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def exceeds(row: Row, limit: Ceiling) -> bool:
    """Whether a rate is above its limit by more than its interval and MARGIN."""
    return limit.unit == row.metric.unit and row.interval.low > limit.value * (1 + MARGIN)


def share_of(evidence: Evidence, row: Row) -> float | None:
    """A row's value over its ceiling; None if there is no ceiling in its unit."""
    limit = evidence.ceiling(row)
    return row.value / limit.value if limit is not None and limit.unit == row.metric.unit else None

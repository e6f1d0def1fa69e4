"""The bundled run with one thing changed: rows multiplied or left out, facts and properties of the GPU set."""

import re
from collections.abc import Callable
from functools import cache

import msgspec
from msgspec.structs import replace

from microbench.analysis.evidence import Finding
from microbench.archive import store
from microbench.core.model import Fact, GpuInfo, Measurement, Outcome, Param, Run


@cache
def bundled(*suites: str, name: str = "nvidia-h200") -> Run:
    """The bundled run with these suites alone; with all of them if none is named."""
    run = store.read(store.find(name))
    infos = tuple(info for info in run.benchmarks if not suites or info.suite in suites)
    names = {info.name for info in infos}
    outcomes = tuple(one for one in run.outcomes if one.case.benchmark in names)
    return replace(run, benchmarks=infos, outcomes=outcomes)


def changed(run: Run, change: Callable[[Outcome], Outcome | None]) -> Run:
    """The run with each outcome changed, or left out for None."""
    return replace(run, outcomes=tuple(new for old in run.outcomes if (new := change(old)) is not None))


def is_case(one: Outcome, benchmark: str, params: dict[str, Param]) -> bool:
    """Whether an outcome is of that benchmark and has those parameters."""
    return one.case.benchmark == benchmark and all(one.case.params.get(name) == at for name, at in params.items())


def without(run: Run, *benchmarks: str, **params: Param) -> Run:
    """The run without the cases of these benchmarks that have those parameters."""
    return changed(run, lambda one: None if any(is_case(one, name, params) for name in benchmarks) else one)


def with_metrics(run: Run, benchmark: str, change: Callable[[Measurement], Measurement | None], **params: Param) -> Run:
    """The run with each measurement of some cases changed, or left out for None."""

    def remade(one: Outcome) -> Outcome:
        if not is_case(one, benchmark, params):
            return one
        return replace(one, measurements=tuple(filter(None, map(change, one.measurements))))

    return changed(run, remade)


def times(old: Measurement, factor: float) -> Measurement:
    """The measurement with its samples multiplied; single calls stay as they were."""
    return replace(old, samples=msgspec.Raw(msgspec.json.encode([value * factor for value in old.values])))


def scaled(run: Run, benchmark: str, metrics: str | tuple[str, ...], factor: float, **params: Param) -> Run:
    """The run with some figures of some cases multiplied. A rate's samples are times, so these are divided."""
    names = (metrics,) if isinstance(metrics, str) else metrics
    info = run.benchmark(benchmark)
    rates = {metric.name for metric in info.metrics if metric.kind == "rate"} if info is not None else set()

    def change(old: Measurement) -> Measurement:
        return old if old.metric not in names else times(old, 1 / factor if old.metric in rates else factor)

    return with_metrics(run, benchmark, change, **params)


def with_facts(run: Run, benchmark: str, **values: object) -> Run:
    """The run with other values of a benchmark's facts; None leaves one without a value."""

    def remade(one: Outcome) -> Outcome:
        facts = tuple(replace(fact, value=values.get(fact.name, fact.value)) for fact in one.facts)
        known = {fact.name for fact in one.facts}
        more = tuple(Fact(name, value, "a test") for name, value in values.items() if name not in known)
        return replace(one, facts=(*facts, *more)) if one.case.benchmark == benchmark else one

    return changed(run, remade)


def with_gpu(run: Run, change: Callable[[GpuInfo], GpuInfo]) -> Run:
    """The run with each GPU of each session changed."""
    sessions = []
    for session in run.sessions:
        gpus = tuple(change(gpu) for gpu in session.environment.gpus)
        sessions.append(replace(session, environment=replace(session.environment, gpus=gpus)))
    return replace(run, sessions=tuple(sessions))


def in_one_round(run: Run) -> Run:
    """The run as if it had had one round."""
    return changed(run, lambda one: one if one.round == 0 else None)


@cache
def simulated(*suites: str) -> Run:
    """The first round of the bundled run, as if a simulated GPU had given it."""
    run = in_one_round(bundled(*suites))
    return replace(run, sessions=tuple(replace(one, simulated=True) for one in run.sessions))


FIGURE = re.compile(r"\d+(?:\.\d+)?(?:×| (?:%|[nµm]?s|[kMGT]?B(?:/s)?)(?![A-Za-z]))")


def figures(finding: Finding) -> list[str]:
    """The quantities that a finding's title and text name, in order."""
    return FIGURE.findall(f"{finding.title} {finding.text}")

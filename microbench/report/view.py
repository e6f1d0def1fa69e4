"""WHAT A REPORT SAYS: a Run becomes a Report: banners, facts, sections, findings, what was not measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.analysis.stats import Row, rows
from microbench.core.model import BenchmarkInfo, Run
from microbench.explain import environment
from microbench.explain.rules import HOST, of_suite
from microbench.report.document import Report, Section, Study
from microbench.report.heading import head
from microbench.report.suites.catalogue import DRAWN, ORDER, PICTURES, VERDICTS
from microbench.report.tables import benchmark_curve, benchmark_tables, fact_tables, problem_table

SUITE_TITLES = {
    "host": "host: what the CPU side costs",
    "launch": "launch: what it costs to submit a kernel",
    "graph": "graph: what CUDA Graphs gain",
    "link": "link: is it as fast as it should be",
    "memory": "memory: what each level gives, near which limit",
    "compute": "compute: what the units really do, and why it is not the data sheet",
}
GRADES = {
    "stable": "three or more fresh processes agree",
    "steady": "one process, narrow interval",
    "noisy": "wide interval",
    "throttled": "the SM clock fell meanwhile",
    "single": "too few samples for an interval",
    "below floor": "too short for its clock",
    "unverified": "its result was not checked",
}


def build(
    run: Run,
    found: Sequence[Row] | None = None,
    *,
    reference: bool = False,
    unfinished: bool = False,
    footer: tuple[str, ...] = (),
) -> Report:
    """The report of a run; ``reference`` marks it as another machine's, ``unfinished`` as cut off. ``found`` are
    the run's rows where the caller has them: its measurements are not looked at then."""
    found = rows(run) if found is None else found
    groups = evidence_by_device(run, found)
    sections = [
        section
        for suite in dict.fromkeys(info.suite for info in run.benchmarks)
        for group in (groups if suite != HOST else groups[:1])
        if (section := _section(run, suite, group, several=len(groups) > 1 and suite != HOST)) is not None
    ]
    return msgspec.structs.replace(
        head(run, reference=reference, unfinished=unfinished, footer=footer),
        environment=tuple(environment.findings(run)),
        sections=tuple(sections),
        problems=problem_table(run.outcomes),
        grades=_grades(found),
    )


def _section(run: Run, suite: str, group: Evidence, *, several: bool) -> Section | None:
    infos = sorted((info for info in run.benchmarks if info.suite == suite), key=_place)
    studies = []
    for info in infos:
        found = group.rows(info.name)
        if found:
            curve = None if info.name in DRAWN else benchmark_curve(info, found)
            studies.append(Study(info.name, benchmark_tables(info, found, group.ceiling), curve))
        elif not info.metrics and any(outcome.facts for outcome in group.outcomes(info.name)):
            studies.append(Study(info.name, fact_tables(info, group.outcomes(info.name))))
    if not studies:
        return None
    title = SUITE_TITLES.get(suite, suite)
    if several and group.gpu:
        title += f" · GPU {group.gpu.index}, {group.gpu.name}"
    drawn = PICTURES[suite](group) if suite in PICTURES else []
    told = tuple(of_suite(group, suite))
    verdict = next((one for one in told if one.rule == VERDICTS.get(suite)), None)
    return Section(suite, title, tuple(drawn), tuple(studies), told, verdict, group.device)


def _place(info: BenchmarkInfo) -> int:
    return ORDER.index(info.name) if info.name in ORDER else len(ORDER)


def _grades(found: Sequence[Row]) -> tuple[str, ...]:
    seen = {row.trust for row in found}
    return tuple(grade for grade in GRADES if grade in seen)

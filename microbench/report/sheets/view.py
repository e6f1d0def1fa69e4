"""Makes the report of a run: banners, facts, a section with findings for each suite, and cases not measured."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.analysis.stats import Row, rows
from microbench.core.model import Run
from microbench.explain import environment
from microbench.explain.rules import HOST, of_suite
from microbench.report.curves import benchmark_curve
from microbench.report.document import GRADES, SUITE_TITLES, Picture, Report, Section, Study
from microbench.report.heading import head
from microbench.report.suites import compute, graph, launch, link, memory, own
from microbench.report.tables import benchmark_tables, fact_tables, problem_table

PICTURES: dict[str, Callable[[Evidence], list[Picture]]] = {
    "launch": launch.pictures,
    "graph": graph.pictures,
    "link": link.pictures,
    "memory": memory.pictures,
    "compute": compute.pictures,
    "own": own.pictures,
}
# Benchmarks whose curve is one of the suite's pictures, or whose axis numbers GPUs or NUMA nodes.
WITHOUT_CURVE = frozenset({
    "launch_duration", "graph_gain", "link_copy", "link_peer", "link_concurrent", "link_numa", "link_nccl",
    "memory_levels", "memory_latency", "memory_loaded", "memory_occupancy", "gemm_throughput", "gemm_shapes",
})  # fmt: skip
# The rule whose finding sums up a suite: its title comes before any picture.
VERDICTS = {"link": "link.verdict", "memory": "memory.verdict", "compute": "compute.verdict"}
# Benchmarks in the order of their tables; others follow as the run has them.
ORDER = (*launch.ORDER, *graph.ORDER, *link.ORDER, *memory.ORDER, *compute.ORDER)


def build(
    run: Run,
    run_rows: Sequence[Row] | None = None,
    *,
    reference: bool = False,
    unfinished: bool = False,
    ceilings: Evidence | None = None,
) -> Report:
    """The report of a run.

    ``reference`` marks a bundled run, ``unfinished`` a run that was cut off. A caller that has the run's rows passes
    them as ``run_rows``; the samples are not read again then. ``ceilings`` gives the ceilings of own kernels if the run
    has none.
    """
    run_rows = rows(run) if run_rows is None else run_rows
    groups = evidence_by_device(run, run_rows, ceilings)
    sections = [
        section
        for suite in dict.fromkeys(info.suite for info in run.benchmarks)
        for group in (groups if suite != HOST else groups[:1])
        if (section := _section(run, suite, group, several=len(groups) > 1 and suite != HOST, reference=reference))
        is not None
    ]
    grades = {row.trust for row in run_rows}
    return replace(
        head(run, reference=reference, unfinished=unfinished),
        environment=tuple(environment.findings(run)),
        sections=tuple(sections),
        problems=problem_table(run.outcomes),
        grades=tuple(grade for grade in GRADES if grade in grades),
    )


def _section(run: Run, suite: str, group: Evidence, *, several: bool, reference: bool) -> Section | None:
    infos = [info for info in run.benchmarks if info.suite == suite]
    studies = []
    for info in sorted(infos, key=lambda info: ORDER.index(info.name) if info.name in ORDER else len(ORDER)):
        found = group.rows(info.name)
        if found:
            curve = None if info.name in WITHOUT_CURVE else benchmark_curve(info, found)
            studies.append(Study(info.name, benchmark_tables(info, found, group.ceiling), curve))
        elif not info.metrics and any(outcome.facts for outcome in group.outcomes(info.name)):
            studies.append(Study(info.name, fact_tables(info, group.outcomes(info.name))))
    if not studies:
        return None
    title = SUITE_TITLES.get(suite, suite)
    if several and group.gpu:
        title += f" · GPU {group.gpu.index}, {group.gpu.name}"
    pictures = PICTURES[suite](group) if suite in PICTURES else []
    findings = tuple(of_suite(group, suite, reference=reference))
    verdict = next((finding for finding in findings if finding.rule == VERDICTS.get(suite)), None)
    return Section(suite, title, tuple(pictures), tuple(studies), findings, verdict, group.device)

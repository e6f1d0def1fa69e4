"""Makes the report of a run, a section for each suite, and its answer on one screen with what to type next."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device, listed
from microbench.analysis.stats import Row, rows
from microbench.core.model import Environment, Run
from microbench.explain import environment
from microbench.explain.answer import Answer, answers, host, most_important
from microbench.explain.link_facts import DIRECTIONS
from microbench.explain.rules import HOST, NOISE, RULES, noise, of_suite
from microbench.report.curves import benchmark_curve
from microbench.report.document import (
    GRADES,
    SUITE_TITLES,
    AnswerLine,
    Block,
    Cell,
    Curve,
    Picture,
    Report,
    Screen,
    Section,
    Study,
    Table,
)
from microbench.report.heading import banners, cases_words, head, mark_of
from microbench.report.suites import compute, graph, launch, link, memory, own, roofline
from microbench.report.tables import benchmark_tables, fact_tables, problem_table

# What draws the pictures of each suite, in their order.
PICTURES: dict[str, tuple[Callable[[Evidence], Picture | list[Table] | list[Curve] | None], ...]] = {
    "launch": (
        launch.ladder, launch.one_op, launch.anatomy, launch.durations, launch.single_calls, launch.idle_gaps,
        launch.waiting, launch.between,
    ),
    "graph": (
        graph.gain, graph.surface, graph.step, graph.life, graph.libraries, graph.kinds, graph.deciders,
    ),
    "link": (
        link.path, link.devices, *(partial(link.rates, direction=one) for one in DIRECTIONS), link.fits, link.pinning,
        link.batches, link.zero_copy, link.peers, link.uplinks, link.collectives,
    ),
    "memory": (
        memory.by_implementation, memory.by_dtype, memory.hierarchy, memory.latencies, memory.under_load,
        memory.l2_lines, memory.in_flight, memory.additions, memory.allocations, memory.energies,
    ),
    "compute": (
        compute.by_type, compute.over_size, compute.by_library, compute.fastest, roofline.rates_over_time,
        roofline.state_over_time, roofline.rooflines, roofline.shapes, compute.data, compute.alone, compute.alus,
    ),
    "own": (own.roofline, own.functions, own.launches, own.limits),
}  # fmt: skip
# Benchmarks whose curve is one of the suite's pictures, or whose axis numbers GPUs or NUMA nodes.
WITHOUT_CURVE = frozenset({
    "launch_duration", "graph_gain", "link_copy", "link_batch", "link_peer", "link_concurrent", "link_numa",
    "link_nccl", "memory_levels", "memory_latency", "memory_loaded", "memory_occupancy", "gemm_throughput",
    "gemm_shapes",
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
    findings = tuple(of_suite(group, suite, reference=reference))
    verdict = next((finding for finding in findings if finding.rule == VERDICTS.get(suite)), None)
    return Section(suite, title, tuple(pictures(suite, group)), tuple(studies), findings, verdict, group.device)


def pictures(suite: str, evidence: Evidence) -> list[Picture]:
    """Every picture of a suite that the run has figures for."""
    drawn = (draw(evidence) for draw in PICTURES.get(suite, ()))
    return [one for each in drawn for one in (each if isinstance(each, list) else [each]) if one is not None]


OUT_OF_TIME = "time budget"
MOST_NAMED = 4
# Lines of the tables of benchmarks that were named, and those of a table besides its rows and notes.
TABLE_LINES = 18
HEADING_LINES = 4
# The bundled run of one GPU with every suite.
RECORDED = "nvidia-h200"


def screen(
    run: Run,
    found: Sequence[Row] | None = None,
    *,
    name: str = "",
    reference: bool = False,
    unfinished: bool = False,
    ceilings: Evidence | None = None,
) -> Screen:
    """The answer of a run. ``name`` is what the commands in the last line call it, "" for the last run.

    ``ceilings`` gives the ceilings of own kernels if the run has none.
    """
    found = rows(run) if found is None else found
    groups = evidence_by_device(run, found, ceilings)
    where = run.sessions[-1].environment if run.sessions else Environment()
    findings = [
        each
        for group in groups
        for suite in RULES
        if suite != HOST
        for each in of_suite(group, suite, reference=reference, checks=False)
    ]
    host_noise = noise(groups[0], HOST, reference=reference)
    findings += [host_noise] if host_noise is not None else []
    distorting = [each for each in environment.findings(run) if each.severity not in ("good", "note")]
    blocks = []
    for group in groups:
        if (gpu := group.gpu) is not None:
            linked = gpu.link.generation_max and gpu.link.lanes_max and not gpu.integrated
            about = [f"PCIe {gpu.link.generation_max}.0 x{gpu.link.lanes_max}"] if linked else []
            about += [f"driver {where.driver_version}"] if where.driver_version else []
            about += [f"CUDA {where.cuda_driver_version}"] if where.cuda_driver_version else []
            blocks.append(Block(gpu.name, tuple(about), tuple(map(_line, answers(group)))))
    own = host(groups[0])
    if not blocks and own is not None:
        blocks = [Block("no GPU", (), (_line(own),))]
    return Screen(
        mark=mark_of(run, reference=reference),
        run=f"run {run.run_id} · {cases_words(run)}" if run.sessions else f"run {run.run_id}",
        banners=tuple(banners(run, reference=reference, unfinished=unfinished)),
        blocks=tuple(blocks),
        tables=tuple(table for group in groups for table in _tables(run, group)),
        findings=tuple(most_important(with_one_noise(findings))),
        distorting=tuple(distorting),
        left_out=_left_out(name or run.run_id, run, reference=reference),
        footer=_footer(name, run, with_gpu=any(group.gpu is not None for group in groups), measured=bool(found)),
    )


def with_one_noise(findings: list[Finding]) -> list[Finding]:
    """The findings with one about noise for all suites, so that noise does not take the place of everything else."""
    noisy = [each for each in findings if each.rule.endswith(NOISE)]
    if len(noisy) < 2:
        return findings
    counts = listed([f"{len(each.rests_on)} of {each.rule.removesuffix(NOISE)}" for each in noisy])
    title = f"Figures are noisy or throttled: {counts}"
    joined = msgspec.structs.replace(noisy[0], title=title, rests_on=tuple(n for each in noisy for n in each.rests_on))
    return [*(each for each in findings if each not in noisy), joined]


def _tables(run: Run, group: Evidence) -> list[Table]:
    """The tables of the benchmarks that the only session named, as far as they fit the screen."""
    tables = []
    left = TABLE_LINES
    for info in run.benchmarks:
        measured = group.rows(info.name) if info.name in _named(run) else []
        for table in benchmark_tables(info, measured, group.ceiling) if measured else ():
            left -= HEADING_LINES + len(table.rows) + len(table.notes)
            tables += [table] if left >= 0 else []
    return tables


def _named(run: Run) -> list[str]:
    selected = run.sessions[0].settings.select if len(run.sessions) == 1 else ()
    return [info.name for info in run.benchmarks if info.name in selected]


def _line(answer: Answer) -> AnswerLine:
    """The line with the grade of most of its figures; a figure of another grade has its own."""
    known: list[str] = [part.row.trust for part in answer.parts if part.row is not None]
    usual = max(GRADES, key=lambda grade: known.count(grade)) if known else ""  # the better one of equal counts
    grades = (part.row.trust if part.row is not None else usual for part in answer.parts)
    cells = tuple(
        Cell(part.text, trust=None if grade == usual else grade)
        for part, grade in zip(answer.parts, grades, strict=True)
    )
    return AnswerLine(answer.name, cells, usual, answer.verdict)


def _left_out(name: str, run: Run, *, reference: bool) -> str:
    """What the time budget left out, with the command that measures it; "" if nothing. A reference is not resumed."""
    late, answered = {}, set()
    for outcome in run.outcomes if any(each.reason == OUT_OF_TIME for each in run.outcomes) else ():
        case = (outcome.case.id, outcome.device)
        if outcome.status == "skipped" and outcome.reason == OUT_OF_TIME:
            late[case] = outcome.case.benchmark
        else:
            answered.add(case)  # in another round at least
    missing = [name for case, name in late.items() if case not in answered]
    if not missing:
        return ""
    names = list(dict.fromkeys(missing))
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    what = listed([*names[:MOST_NAMED], *more])
    said = f"Not measured for lack of time: {len(missing)} case{'s' if len(missing) > 1 else ''} of {what}."
    return said if reference else f"{said} `microbench run --resume {name}` measures what is missing."


def _footer(name: str, run: Run, *, with_gpu: bool, measured: bool) -> str:
    """What to type next. ``name`` is what the user called the run, "" for the last one."""
    suites = list(dict.fromkeys(info.suite for info in run.benchmarks))
    first = next((suite for suite in suites if suite != HOST), HOST) if with_gpu else HOST
    called = f" {name}" if name else ""
    parts = _named(run)[:2] or [first]
    own = [f"show{called} {part}" for part in parts] if measured else ["doctor"]
    rest = [f"show{called} --all", f"report{called} -o run.html"] if with_gpu else [f"show {RECORDED}, a real GPU"]
    return f"more: {' · '.join(f'microbench {command}' for command in [*own, *rest])}"

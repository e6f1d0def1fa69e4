"""Makes the answer on one screen: a line for each question, the findings that matter most, and what to type next."""

from collections.abc import Sequence

import msgspec

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device, listed
from microbench.analysis.stats import Row, rows
from microbench.core.model import Environment, Run
from microbench.explain import environment
from microbench.explain.answer import Answer, answers, host, most_important
from microbench.explain.rules import HOST, NOISE, RULES, noise, of_suite
from microbench.report.document import GRADES, AnswerLine, Block, Cell, Screen, Table
from microbench.report.heading import banners, cases_words, mark_of
from microbench.report.tables import benchmark_tables

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
        for each in of_suite(group, suite, reference=reference)
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
    """The benchmarks that the only session named."""
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
    for outcome in run.outcomes:
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

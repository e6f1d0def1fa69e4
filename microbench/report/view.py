"""WHAT A REPORT SAYS: a Run becomes a Report: banners, facts, sections, findings, what was not measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from microbench.explain import HOST, environment, of_suite
from microbench.explain.evidence import Evidence, evidence_by_device
from microbench.model import BenchmarkInfo, Environment, GpuInfo, Run, Session
from microbench.report.curves import benchmark_curve
from microbench.report.document import Banner, Report, Section, Study
from microbench.report.sections import DRAWN, ORDER, PICTURES
from microbench.report.tables import benchmark_tables, problem_table
from microbench.stats import Row, rows
from microbench.units import quantity, size, wall

SIMULATED, REFERENCE = "SIMULATED", "REFERENCE"
SUITE_TITLES = {"host": "host: what the CPU side costs", "launch": "launch: what it costs to submit a kernel"}
GRADES = {
    "stable": "three or more fresh processes agree",
    "steady": "one process, narrow interval",
    "noisy": "wide interval",
    "throttled": "the SM clock fell meanwhile",
    "single": "too few samples for an interval",
    "below floor": "too short for its clock",
    "unverified": "its result was not checked",
}


def build(run: Run, *, reference: bool = False, unfinished: bool = False, footer: tuple[str, ...] = ()) -> Report:
    """The report of a run; ``reference`` marks it as another machine's, ``unfinished`` as cut off."""
    found = rows(run)
    groups = evidence_by_device(run, found)
    sections = [
        section
        for suite in dict.fromkeys(info.suite for info in run.benchmarks)
        for group in (groups if suite != HOST else groups[:1])
        if (section := _section(run, suite, group, several=len(groups) > 1 and suite != HOST)) is not None
    ]
    return Report(
        title=_title(run),
        mark=SIMULATED if run.simulated else REFERENCE if reference else "",
        banners=tuple(_banners(run, reference, unfinished)),
        facts=tuple(_facts(run)),
        environment=tuple(environment.findings(run)),
        sections=tuple(sections),
        problems=problem_table(run.outcomes),
        grades=_grades(found),
        footer=footer,
    )


def _title(run: Run) -> str:
    gpus = run.sessions[-1].environment.gpus if run.sessions else ()
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus)) or "no GPU"


def _banners(run: Run, reference: bool, unfinished: bool) -> Iterable[Banner]:
    if run.simulated:
        yield Banner(SIMULATED, "These figures come from a simulated GPU. They say nothing about any real one.")
    if reference:
        yield Banner(REFERENCE, f"Recorded on {_title(run)}, not on this machine.", tone="note")
    where = run.sessions[-1].environment if run.sessions else Environment()
    if not where.gpus and where.no_gpu_reason:
        yield Banner("NO GPU", where.no_gpu_reason, where.no_gpu_next_step or "")
    if unfinished:
        yield Banner("UNFINISHED", "This run was cut off, or is still going on.", "microbench run --resume finishes it")


def _facts(run: Run) -> Iterable[tuple[str, str]]:
    if not run.sessions:
        return
    session = run.sessions[-1]
    for gpu in session.environment.gpus:
        yield "GPU" if len(session.environment.gpus) == 1 else f"GPU {gpu.index}", _gpu_words(gpu)
    yield from _software(session.environment)
    known = (session.environment.fact(name) for name in ("cpu_model", "virtualization"))
    host = [str(value) for value in known if value not in (None, "none")]
    if host:
        yield "host", " · ".join(host)
    yield "run", _run_words(run, session)


def _gpu_words(gpu: GpuInfo) -> str:
    words = [gpu.name]
    if gpu.compute_capability:
        words.append("compute capability {}.{}".format(*gpu.compute_capability))
    if gpu.sm_count:
        words.append(f"{gpu.sm_count} SMs")
    if gpu.memory_bytes:
        words.append(size(gpu.memory_bytes) if gpu.memory_bytes % (1 << 30) == 0 else quantity(gpu.memory_bytes, "B"))
    if gpu.link.generation_max and gpu.link.lanes_max:
        words.append(f"PCIe {gpu.link.generation_max} x{gpu.link.lanes_max}")
    return " · ".join(words)


def _software(where: Environment) -> Iterable[tuple[str, str]]:
    words = [
        f"{name} {version}"
        for name, version in (
            ("driver", where.driver_version),
            ("CUDA", where.cuda_driver_version),
            ("toolkit", where.cuda_toolkit_version),
        )
        if version
    ]
    if words:
        yield "software", " · ".join(words)


def _run_words(run: Run, session: Session) -> str:
    settings = session.settings
    measured = sum(outcome.status == "ok" for outcome in run.outcomes)
    words = [session.started_at[:16].replace("T", " ") + " UTC", f"{settings.preset} preset"]
    if settings.rounds > 1:
        words.append(f"{settings.rounds} rounds")
    if len(run.sessions) > 1:
        words.append(f"{len(run.sessions)} sessions, the newest figures shown")
    words.append(f"{measured} cases in {wall(sum(outcome.wall_s for outcome in run.outcomes))}")
    words.append(f"microbench {session.tool_version}")
    return " · ".join(words)


def _section(run: Run, suite: str, group: Evidence, *, several: bool) -> Section | None:
    infos = sorted((info for info in run.benchmarks if info.suite == suite), key=_place)
    studies = []
    for info in infos:
        found = group.rows(info.name)
        if found:
            curve = None if info.name in DRAWN else benchmark_curve(info, found)
            studies.append(Study(info.name, benchmark_tables(info, found, group.gpu), curve))
    if not studies:
        return None
    title = SUITE_TITLES.get(suite, suite)
    if several and group.gpu:
        title += f" · GPU {group.gpu.index}, {group.gpu.name}"
    drawn = PICTURES[suite](group) if suite in PICTURES else []
    return Section(suite, title, tuple(drawn), tuple(studies), tuple(of_suite(group, suite)))


def _place(info: BenchmarkInfo) -> int:
    return ORDER.index(info.name) if info.name in ORDER else len(ORDER)


def _grades(found: Sequence[Row]) -> tuple[str, ...]:
    seen = {row.trust for row in found}
    return tuple(grade for grade in GRADES if grade in seen)

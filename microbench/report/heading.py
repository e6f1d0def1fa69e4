"""How each report begins: marks, banners, and the facts of machine and run that its figures come from."""

from __future__ import annotations

from collections.abc import Iterable

from microbench.core.model import Environment, GpuInfo, Run, Session
from microbench.core.units import quantity, size, wall
from microbench.report.document import Banner, Report

SIMULATED, REFERENCE = "SIMULATED", "REFERENCE"


def head(run: Run, *, reference: bool = False, unfinished: bool = False, footer: tuple[str, ...] = ()) -> Report:
    """A report of a run that says where its figures come from, and nothing of them yet."""
    return Report(
        title=_title(run),
        mark=mark_of(run, reference=reference),
        banners=tuple(_banners(run, reference, unfinished)),
        facts=tuple(_facts(run)),
        environment=(),
        sections=(),
        problems=None,
        grades=(),
        footer=footer,
    )


def mark_of(run: Run, *, reference: bool) -> str:
    """What stands at everything that is shown of a run that was not measured here; nothing of one that was."""
    return SIMULATED if run.simulated else REFERENCE if reference else ""


def _title(run: Run) -> str:
    gpus = run.sessions[-1].gpus if run.sessions else ()
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
    for gpu in session.gpus:
        yield "GPU" if len(session.gpus) == 1 else f"GPU {gpu.index}", _gpu_words(gpu)
    if others := _others(session):
        yield "other GPUs", others
    yield from _software(session.environment)
    known = (session.environment.fact(name) for name in ("cpu_model", "virtualization"))
    host = [str(value) for value in known if value not in (None, "none")]
    if host:
        yield "host", " · ".join(host)
    yield "run", _run_words(run, session)


def _others(session: Session) -> str:
    """GPUs that were not measured, by name: what copies between GPUs and copies at once went to."""
    names = [gpu.name for gpu in session.environment.gpus if gpu not in session.gpus]
    counted = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items())


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

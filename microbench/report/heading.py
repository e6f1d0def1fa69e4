"""Makes the heading of a report: its mark, its banners, and facts about the machine and the run."""

from collections import Counter
from collections.abc import Iterable

from microbench.archive.damage import DAMAGED
from microbench.core.model import Environment, Run
from microbench.core.units import about_size, wall
from microbench.report.document import Banner, Report

SIMULATED, REFERENCE = "SIMULATED", "REFERENCE"


def head(run: Run, *, reference: bool = False, unfinished: bool = False) -> Report:
    """A report of a run with its heading and without sections."""
    return Report(
        title=_title(run),
        mark=mark_of(run, reference=reference),
        banners=tuple(banners(run, reference=reference, unfinished=unfinished)),
        facts=tuple(_facts(run)),
    )


def mark_of(run: Run, *, reference: bool) -> str:
    """The mark of a run that was not measured on this machine; "" for one that was."""
    return SIMULATED if run.simulated else REFERENCE if reference else ""


def run_words(run: Run) -> str:
    """A run on one line: "run 20251120T…, NVIDIA H200, 2025-11-20"."""
    session = run.sessions[-1]
    return f"run {run.run_id}, {_title(run)}, {session.started_at[:10]}"


def _title(run: Run) -> str:
    gpus = run.sessions[-1].gpus if run.sessions else ()
    return ", ".join(dict.fromkeys(gpu.name for gpu in gpus)) or "no GPU"


def banners(run: Run, *, reference: bool = False, unfinished: bool = False) -> Iterable[Banner]:
    """Warnings about the whole run: simulated, recorded elsewhere, without a GPU, damaged, cut off."""
    if run.simulated:
        yield Banner(SIMULATED, "These figures come from a simulated GPU. They say nothing about any real one.")
    if reference:
        yield Banner(REFERENCE, f"Recorded on {_title(run)}, not on this machine.", tone="note")
    where = run.sessions[-1].environment if run.sessions else Environment()
    if not where.gpus and where.no_gpu_reason:
        yield Banner("NO GPU", where.no_gpu_reason, where.no_gpu_next_step or "")
    if run.damaged_lines:
        lines = "1 damaged line" if run.damaged_lines == 1 else f"{run.damaged_lines} damaged lines"
        words = f"{lines} of the file cannot be read, and the outcomes in them are missing."
        yield Banner("DAMAGED", words, "microbench run --resume RUN measures them again")
    facts = (fact for session in run.sessions for fact in session.environment.facts)
    impossible = dict.fromkeys(fact.name for fact in facts if (fact.reason or "").startswith(DAMAGED))
    if impossible:
        words = f"Impossible numbers of the machine are taken as unknown: {', '.join(impossible)}."
        yield Banner("DAMAGED", words, "measure again, or take the file from its source again")
    if unfinished:
        yield Banner(
            "UNFINISHED", "This run was cut off, or is still going on.", "microbench run --resume RUN finishes it"
        )


def _facts(run: Run) -> Iterable[tuple[str, str]]:
    if not run.sessions:
        return
    session = run.sessions[-1]
    where = session.environment
    for gpu in session.gpus:
        words = [gpu.name]
        if gpu.compute_capability:
            words.append("compute capability {}.{}".format(*gpu.compute_capability))
        words += [f"{gpu.sm_count} SMs"] if gpu.sm_count else []
        words += [about_size(gpu.memory_bytes)] if gpu.memory_bytes else []
        if gpu.link.generation_max and gpu.link.lanes_max:
            words.append(f"PCIe {gpu.link.generation_max} x{gpu.link.lanes_max}")
        yield "GPU" if len(session.gpus) == 1 else f"GPU {gpu.index}", " · ".join(words)
    # Not measured, but used by copies between GPUs and by concurrent copies.
    names = [gpu.name for gpu in where.gpus if gpu not in session.gpus]
    if names:
        counts = {name: names.count(name) for name in names}
        yield "other GPUs", ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    versions = (where.driver_version, where.cuda_driver_version, where.cuda_toolkit_version)
    named = zip(("driver", "CUDA", "toolkit"), versions, strict=True)
    software = [f"{name} {version}" for name, version in named if version]
    if software:
        yield "software", " · ".join(software)
    known = (where.fact(name) for name in ("cpu_model", "virtualization"))
    host = [str(value) for value in known if value not in (None, "none")]
    if host:
        yield "host", " · ".join(host)
    words = [
        run.run_id.rpartition("-")[2], session.started_at[:16].replace("T", " ") + " UTC",
        f"{session.settings.preset} preset",
    ]  # fmt: skip
    words += [f"{len(run.sessions)} sessions, the newest figures shown"] if len(run.sessions) > 1 else []
    words.append(f"{cases_words(run)} in {wall(sum(outcome.wall_s for outcome in run.outcomes))}")
    yield "run", " · ".join((*words, f"microbench {session.tool_version}"))


def cases_words(run: Run) -> str:
    """How many cases were measured, in how many rounds: "88 cases", "88 cases, up to 5 rounds"."""
    rounds = Counter((outcome.case.id, outcome.device) for outcome in run.outcomes if outcome.status == "ok")
    most = max(rounds.values(), default=1)
    cases = f"{len(rounds)} case{'' if len(rounds) == 1 else 's'}"
    return cases if most == 1 else f"{cases}, {'up to ' if min(rounds.values()) < most else ''}{most} rounds"

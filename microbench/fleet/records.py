"""Turns a run into the records of a store: its figures, the run itself, its GPUs, and what its findings say."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from microbench.analysis.evidence import Evidence, Finding, evidence_by_device
from microbench.analysis.stats import Row, rows
from microbench.archive import store as runs_store
from microbench.archive.export import row_cells
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Environment, GpuInfo, MemoryErrors, Run
from microbench.core.units import plain
from microbench.explain import environment
from microbench.explain.rules import HOST, RULES, of_suite

Record = dict[str, Any]
TEXT, WHOLE, NUMBER, TRUTH, WORDS = "text", "whole", "number", "truth", "words"
# The tables of a store, and the type of each column. WORDS is a map from text to text.
TABLES: dict[str, dict[str, str]] = {
    "rows": {
        "campaign": TEXT, "suite": TEXT, "node": TEXT, "device": TEXT, "gpu": TEXT, "labels": WORDS, "run": TEXT,
        "simulated": TRUTH, "benchmark": TEXT, "version": WHOLE, "case": TEXT, "params": WORDS, "session": WHOLE,
        "metric": TEXT, "kind": TEXT, "unit": TEXT, "clock": TEXT, "n": WHOLE, "rounds": WHOLE, "median": NUMBER,
        "ci_low": NUMBER, "ci_high": NUMBER, "interval": TEXT, "deviation": NUMBER, "p90": NUMBER, "p99": NUMBER,
        "min": NUMBER, "max": NUMBER, "tail": NUMBER, "low_level": NUMBER, "high_level": NUMBER, "bound": TEXT,
        "ceiling": NUMBER, "trust": TEXT, "verified": TEXT,
    },
    "runs": {
        "campaign": TEXT, "node": TEXT, "labels": WORDS, "run": TEXT, "file": TEXT, "digest": TEXT, "began": TEXT,
        "tool_version": TEXT, "driver": TEXT, "cuda": TEXT, "preset": TEXT, "rounds": WHOLE, "simulated": TRUTH,
        "figures": WHOLE, "ok": WHOLE, "skipped": WHOLE, "failed": WHOLE, "seconds": NUMBER,
    },
    "nodes": {
        "campaign": TEXT, "node": TEXT, "device": TEXT, "index": WHOLE, "gpu": TEXT, "class": TEXT, "labels": WORDS,
        "run": TEXT, "began": TEXT, "simulated": TRUTH, "numa_node": WHOLE, "power_limit_w": NUMBER, "power_w": NUMBER,
        "temperature_c": NUMBER, "throttled": NUMBER, "throttle_reasons": TEXT, "facts": WORDS,
    },
    "findings": {
        "campaign": TEXT, "node": TEXT, "device": TEXT, "labels": WORDS, "run": TEXT, "rule": TEXT, "suite": TEXT,
        "severity": TEXT, "title": TEXT, "text": TEXT, "advice": TEXT,
    },
    "windows": {
        "campaign": TEXT, "node": TEXT, "labels": WORDS, "process": TEXT, "began_s": NUMBER, "unix_s": NUMBER,
        "kind": TEXT, "name": TEXT, "seconds": NUMBER, "count": NUMBER,
    },
}  # fmt: skip
OF_RUNS = ("rows", "runs", "nodes", "findings")
# Facts of a GPU that may explain why it is an outlier.
GPU_FACTS = (
    "pci_bus_id", "sm_count", "memory_bytes", "sm_clock_max_hz", "memory_clock_max_hz", "ecc", "mig", "persistence",
    "confidential_computing", "power_limit_w",
)  # fmt: skip
LINK_FACTS = ("generation_now", "generation_max", "lanes_now", "lanes_max", "max_payload_bytes", "nvlinks")
THROTTLED = "throttled"


class Source(NamedTuple):
    """A run file and where it comes from: its campaign, node and labels."""

    path: Path
    campaign: str
    node: str
    labels: Mapping[str, str]


def records(source: Source) -> dict[str, list[Record]]:
    """The records of a run by table. A run without a node is named by its host's or GPU's identity.

    Raises RunUnreadableError.
    """
    run = runs_store.read(source.path)
    if not run.sessions:
        raise RunUnreadableError(f"{plain(source.path.name)} has no session", "measure again")
    try:
        every = rows(run)
        groups = evidence_by_device(run, every)
        names = {gpu.uuid: gpu.name for session in run.sessions for gpu in session.environment.gpus}
        gpus = run.sessions[-1].gpus
        base: Record = {
            "campaign": source.campaign,
            "node": source.node or (gpus[0].uuid if gpus else run.run_id),
            "labels": list(source.labels.items()),
            "run": run.run_id,
        }
        figures = [base | {"gpu": names.get(row.device or "")} | _figure(run, row) for row in every]
        return {
            "rows": figures,
            "runs": [base | _run(run, source.path) | {"figures": len(figures)}],
            "nodes": [base | _gpu(run, group, group.gpu) for group in groups if group.gpu is not None],
            "findings": [base | found for found in _findings(run, groups)],
        }
    except (ArithmeticError, ValueError, msgspec.DecodeError) as error:
        cause = f"{plain(source.path.name)} contains impossible values: {plain(error)}"
        raise RunUnreadableError(cause, "measure again") from None


def digest(path: Path) -> str:
    """A digest of a run file's content. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _figure(run: Run, row: Row) -> Record:
    cells = row_cells(run, row)
    cells["params"] = [(name, str(value)) for name, value in row.params.items()]
    return cells | {"kind": row.metric.kind, "bound": row.measurement.bound, "deviation": _deviation(row)}


def _deviation(row: Row) -> float | None:
    """How far the value would lie from that of another measurement of the same GPU, as a share: one deviation."""
    if row.deviation is not None:
        return row.deviation.share
    medians = [summary.interval.median for summary in row.summaries]
    if len(medians) < 2 or not row.value:
        return None
    variance = sum((value / row.value - 1) ** 2 for value in medians) / (len(medians) - 1)
    return float((variance / len(medians)) ** 0.5)


def _run(run: Run, path: Path) -> Record:
    session, statuses = run.sessions[-1], [outcome.status for outcome in run.outcomes]
    ok, skipped = statuses.count("ok"), statuses.count("skipped")
    return {
        "file": str(path),
        "digest": digest(path),
        "began": session.started_at,
        "tool_version": session.tool_version,
        "driver": session.environment.driver_version,
        "cuda": session.environment.cuda_driver_version,
        "preset": session.settings.preset,
        "rounds": session.settings.rounds,
        "simulated": run.simulated,
        "ok": ok,
        "skipped": skipped,
        "failed": len(statuses) - ok - skipped,
        "seconds": sum(outcome.wall_s for outcome in run.outcomes),
    }


def _gpu(run: Run, group: Evidence, gpu: GpuInfo) -> Record:
    session = run.sessions[-1]
    own = (outcome for outcome in run.outcomes if outcome.device == gpu.uuid)
    telemetry = [outcome.telemetry[gpu.uuid] for outcome in own if gpu.uuid in outcome.telemetry]
    measured = [row for row in group.all_rows() if row.device == gpu.uuid]
    slowed = sum(row.trust == THROTTLED for row in measured)
    powers = [each.power_w for each in telemetry if each.power_w is not None]
    heats = [each.temperature_c for each in telemetry if each.temperature_c is not None]
    # GPUs of a class are compared. The speed of the link is not part of it, because a link that came up too slow is one
    # of the faults to find.
    memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
    units = f", {gpu.sm_count} SMs" if gpu.sm_count else ""
    count = len(session.environment.gpus)
    return {
        "device": gpu.uuid,
        "index": gpu.index,
        "gpu": gpu.name,
        "class": f"{gpu.name}{memory}{units}; {count} a node; {session.environment.fact('cpu_model') or 'unknown CPU'}",
        "began": session.started_at,
        "simulated": run.simulated,
        "numa_node": gpu.numa_node,
        "power_limit_w": gpu.power_limit_w,
        "power_w": max(powers, default=None),
        "temperature_c": max(heats, default=None),
        "throttled": slowed / len(measured) if measured else None,
        "throttle_reasons": ", ".join(dict.fromkeys(reason for each in telemetry for reason in each.throttle_reasons)),
        "facts": _facts(gpu, session.environment),
    }


def _facts(gpu: GpuInfo, machine: Environment) -> list[tuple[str, str]]:
    found = {f"gpu {name}": getattr(gpu, name) for name in GPU_FACTS}
    found |= {f"link {name}": getattr(gpu.link, name) for name in LINK_FACTS}
    found |= {f"memory {name}": getattr(gpu.memory_errors, name, None) for name in MemoryErrors.__struct_fields__}
    found |= {fact.name: fact.value for fact in machine.facts if fact.name not in found}
    found["driver"] = machine.driver_version
    return [(name, str(value)) for name, value in found.items() if value is not None]


def _findings(run: Run, groups: list[Evidence]) -> Iterator[Record]:
    """The findings about the run's environment, then those of each GPU."""
    for finding in environment.findings(run):
        # It is about the only GPU that was measured, or the one that it names.
        gpus = run.sessions[-1].gpus
        named = (gpu.uuid for gpu in gpus if len(gpus) == 1 or finding.title.startswith(f"GPU {gpu.index}: "))
        yield _finding(finding, finding.suite, next(named, None))
    for place, group in enumerate(groups):
        for suite in RULES if place == 0 else [suite for suite in RULES if suite != HOST]:
            for finding in of_suite(group, suite):
                yield _finding(finding, suite, group.device)


def _finding(finding: Finding, suite: str, device: str | None) -> Record:
    told = {name: getattr(finding, name) for name in ("rule", "severity", "title", "text", "advice")}
    return told | {"suite": suite, "device": device}

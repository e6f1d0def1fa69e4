"""The recorded runs, one line each: when, on what, which suites, what was found, and what a person said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from microbench import remarks, store
from microbench.errors import RunUnreadableError
from microbench.explain import findings
from microbench.explain.finding import SEVERITIES, Finding
from microbench.index import Index
from microbench.model import Run
from microbench.schema import LARGE_BYTES

HEADS, FINDINGS = "head", "findings"
# Findings are derived from a whole run: of runs that nobody has shown yet so much is read at a time, one at least; a
# large one is counted when it is shown.
MOST_READ_BYTES, MOST_READ = 4 << 20, 100
NOT_COUNTABLE = b"null"  # it begins like a run, and then is none: not to be read each time


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands at the beginning of a run's file. ``started_at`` and ``grown_at`` are when its first and last session
    began, UTC in ISO 8601; ``devices`` are GPU names with how many there were; ``problem`` says why there is nothing
    else."""

    started_at: str = ""
    grown_at: str = ""
    devices: dict[str, int] = {}
    suites: tuple[str, ...] = ()
    simulated: bool = False
    problem: str = ""


class Entry(NamedTuple):
    """One recorded run; ``counts`` are findings by severity, None if nobody has counted them yet."""

    path: Path
    head: Head
    counts: Mapping[str, int] | None
    remarks: remarks.Remarks


def entries(index: Index, paths: Sequence[Path]) -> list[Entry]:
    """What is known of the runs in ``paths``, in their order: heads are read, and whole runs as far as MOST_READ_BYTES
    allow."""
    known = heads(index, paths)
    counted = _counted(index, [path for path, head in known if not head.problem])
    said = remarks.read_all(paths)
    return [Entry(path, head, counted.get(path), said[path]) for path, head in known]


def heads(index: Index, paths: Iterable[Path]) -> list[tuple[Path, Head]]:
    """Each run with its head, in the order of ``paths``."""
    return [(path, msgspec.json.decode(data or b"{}", type=Head)) for path, data in index.each(HEADS, paths, _head)]


def _head(path: Path) -> bytes:
    try:
        return msgspec.json.encode(head_of(store.read_head(path)))
    except RunUnreadableError as error:
        return msgspec.json.encode(Head(problem=error.cause))


def head_of(run: Run) -> Head:
    """The line of a run in the history, as far as its sessions and benchmarks say it."""
    gpus = {gpu.uuid: gpu.name for session in run.sessions for gpu in session.gpus}
    return Head(
        started_at=run.sessions[0].started_at,
        grown_at=run.sessions[-1].started_at,
        devices=dict(Counter(gpus.values())),
        suites=tuple(dict.fromkeys(info.suite for info in run.benchmarks)),
        simulated=run.simulated,
    )


def _counted(index: Index, paths: Iterable[Path]) -> dict[Path, dict[str, int] | None]:
    read_bytes = read = 0

    def count(path: Path) -> bytes | None:
        nonlocal read_bytes, read
        try:
            size_bytes = path.stat().st_size
            if size_bytes >= LARGE_BYTES or (read and read_bytes + size_bytes > MOST_READ_BYTES) or read == MOST_READ:
                return None
            read_bytes, read = read_bytes + size_bytes, read + 1
            return severities(findings(store.read(path)))
        except (OSError, RunUnreadableError, ArithmeticError, ValueError, msgspec.DecodeError):
            return NOT_COUNTABLE

    found = index.each(FINDINGS, paths, count)
    return {path: msgspec.json.decode(data, type=dict[str, int] | None) for path, data in found if data is not None}


def severities(found: Iterable[Finding]) -> bytes:
    """How many findings of each severity, the worst first, as the index keeps it."""
    counts = Counter(finding.severity for finding in found)
    return msgspec.json.encode({severity: counts[severity] for severity in reversed(SEVERITIES) if counts[severity]})

"""The recorded runs, one line each: when, on what, which suites, what was found, and what a person said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from microbench.analysis.evidence import SEVERITIES, Finding
from microbench.core.errors import ResultNotWrittenError, RunUnreadableError
from microbench.core.model import Run
from microbench.core.units import plain
from microbench.explain.rules import findings
from microbench.runs import remarks, store
from microbench.runs.index import Index, state_of
from microbench.runs.runfile import is_growing

HEADS, FINDINGS = "head", "findings"
# Findings are derived from a whole run: of runs that nobody has shown yet so much is read at a time, one at least.
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
            if (read and read_bytes + size_bytes > MOST_READ_BYTES) or read == MOST_READ:
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


# Which recorded runs may go, and how they go: never a run with a label or note, one that grows, or what is no run.


State = tuple[str | None, ...]


class Deletion(NamedTuple):
    """Which runs went, and which are left because they were no longer those that had been listed."""

    deleted: list[Path]
    changed: list[Path]


def prunable(
    runs: Sequence[tuple[Path, Head]], keep: int | None, older_than: timedelta | None, now: datetime
) -> list[Path]:
    """Of the runs, newest first, those beyond the newest ``keep`` and begun longer ago than ``older_than``.

    A limit that is None holds nothing back. ``now`` is in UTC.
    """
    sound = [(path, head) for path, head in runs if not head.problem]
    return [
        path
        for place, (path, head) in enumerate(sound)
        if place >= (keep or 0)
        and (older_than is None or _age(head, now) > older_than)
        and not remarks.may_be(path)
        and not is_growing(path)
        and path not in store.bundled().values()
    ]


def _age(head: Head, now: datetime) -> timedelta:
    """How long ago its last session began; of a time that says nothing, no time at all."""
    try:
        begun = datetime.fromisoformat(head.grown_at)
    except ValueError:
        return timedelta(0)
    return now - (begun if begun.tzinfo else begun.replace(tzinfo=UTC))


def state(path: Path) -> State:
    """What changes as soon as a run does: its file, the one that it grows in, or what a person says of it."""
    return tuple(map(state_of, _parts(path)))


def delete(listed: Mapping[Path, State]) -> Deletion:
    """Delete runs with all that lies beside them, if they still are in the state in which they were listed.

    Raises ResultNotWrittenError at the first that will not go.
    """
    deleted, changed = [], []
    for path, before in listed.items():
        now = state(path)
        if now == before and not is_growing(path):
            for part in _parts(path):
                _unlink(part)
            deleted.append(path)
        elif any(now):
            changed.append(path)
    return Deletion(deleted, changed)


def _parts(path: Path) -> tuple[Path, ...]:
    finished = store.finished_path(path)
    return finished, store.growing_path(finished), remarks.place(path)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        cause = f"{plain(path)} cannot be deleted: {error.strerror or error}"
        raise ResultNotWrittenError(cause, "delete it by hand, or leave it") from None

"""Lists recorded runs from the heads of their files, and deletes old ones."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from microbench.archive import remarks, store
from microbench.archive.runfile import is_growing
from microbench.core.errors import ResultNotWrittenError, RunUnreadableError
from microbench.core.model import Run
from microbench.core.units import plain


class Entry(NamedTuple):
    """A recorded run in the history. ``run`` has no outcomes, and is None if the file cannot be read."""

    path: Path
    run: Run | None
    remarks: remarks.Remarks


def entries(paths: Sequence[Path]) -> list[Entry]:
    """The runs in ``paths``, in their order."""
    notes = remarks.read_all(paths)
    return [Entry(path, head(path), notes[path]) for path in paths]


def head(path: Path) -> Run | None:
    """The run in a file without its outcomes; None if it cannot be read."""
    try:
        return store.read_head(path)
    except RunUnreadableError:
        return None


State = tuple[tuple[int, ...] | None, ...]


def prunable(
    runs: Sequence[tuple[Path, Run | None]], keep: int | None, older_than: timedelta | None, now: datetime
) -> list[Path]:
    """The runs that may be deleted: beyond the newest ``keep``, and older than ``older_than``. None sets no limit.

    ``runs`` are the newest first, ``now`` is in UTC. Runs with a label or note, runs being measured, bundled runs and
    unreadable files are never deleted.
    """
    readable = [(path, run) for path, run in runs if run is not None]
    return [
        path
        for place, (path, run) in enumerate(readable)
        if place >= (keep or 0)
        and (older_than is None or _age(run, now) > older_than)
        and not remarks.may_exist(path)
        and not is_growing(path)
        and path not in store.bundled().values()
    ]


def _age(run: Run, now: datetime) -> timedelta:
    """The time since the last session began; 0 if it is unreadable."""
    try:
        begun = datetime.fromisoformat(run.sessions[-1].started_at)
        return now - (begun if begun.tzinfo else begun.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return timedelta(0)


def state(path: Path) -> State:
    """A value that changes whenever the run's file, its growing file or its remarks do."""
    return tuple(map(_stamp, _parts(path)))


def delete(listed: Mapping[Path, State]) -> tuple[list[Path], list[Path]]:
    """Delete each run with its growing file and remarks, unless its state has changed since it was listed.

    Returns the runs deleted, and those left. Raises ResultNotWrittenError at the first file that cannot be deleted.
    """
    deleted, changed = list[Path](), list[Path]()
    for path, before in listed.items():
        now = state(path)
        if now == before and not is_growing(path):
            for part in _parts(path):
                try:
                    part.unlink(missing_ok=True)
                except OSError as error:
                    cause = f"{plain(part)} cannot be deleted: {error.strerror or error}"
                    raise ResultNotWrittenError(cause, "delete it by hand, or leave it") from None
            deleted.append(path)
        elif any(now):
            changed.append(path)
    return deleted, changed


def _parts(path: Path) -> tuple[Path, ...]:
    finished = store.finished_path(path)
    return finished, store.growing_path(finished), remarks.place(path)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino

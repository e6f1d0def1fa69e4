"""Which recorded runs may go, and how they go: never a run with a label or note, one that grows, or what is no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from microbench import remarks, store
from microbench.errors import ResultNotWrittenError
from microbench.history import Head
from microbench.index import state_of
from microbench.runfile import is_growing
from microbench.text import plain

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

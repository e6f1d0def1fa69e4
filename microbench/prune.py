"""Which recorded runs may go, and how they go: never a run with a label or note, one that grows, or what is no run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from microbench import remarks, store
from microbench.errors import ResultNotWrittenError
from microbench.history import Head
from microbench.runfile import is_growing
from microbench.text import plain


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


def delete(paths: Iterable[Path]) -> None:
    """Delete runs with all that lies beside them. Raises ResultNotWrittenError at the first that will not go."""
    for path in paths:
        for part in (store.finished_path(path), store.growing_path(store.finished_path(path)), remarks.place(path)):
            try:
                part.unlink(missing_ok=True)
            except OSError as error:
                cause = f"{plain(part)} cannot be deleted: {error.strerror or error}"
                raise ResultNotWrittenError(cause, "delete it by hand, or leave it") from None

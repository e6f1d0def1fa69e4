"""What was made of run files, kept so that ten thousand of them can be listed without reading one: a cache in SQLite.

The files are what counts: an entry holds for one state of its file and for this very microbench, else it is made anew.
Whatever happens to the cache (another process writes it, it is damaged, its folder is read-only) only costs time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from microbench import __version__
from microbench.runs.store import data_folder

if TYPE_CHECKING:
    import sqlite3


FILE = ".index.sqlite3"
WAIT_S = 1.0  # for another process that is writing
COMMIT_EVERY = 500
FEW = 100  # files that are looked up one by one: of more all that is known is fetched at once
DIGEST_BYTES = 8
TABLE = """CREATE TABLE IF NOT EXISTS entries (
    kind TEXT, path TEXT, state TEXT, maker TEXT, data BLOB, PRIMARY KEY (kind, path)
)"""
ALL_OF_KIND = "SELECT path, state, data FROM entries WHERE kind = ? AND maker = ?"
LOOK_UP = "SELECT data FROM entries WHERE kind = ? AND path = ? AND state = ? AND maker = ?"
KEEP = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)"
FORGET = "DELETE FROM entries WHERE path = ?"
NEWEST_ONLY = """DELETE FROM entries WHERE kind = ?1 AND rowid NOT IN (
    SELECT rowid FROM entries WHERE kind = ?1 ORDER BY rowid DESC LIMIT ?2
)"""


def state_of(path: Path) -> str | None:
    """What changes when a file does; None where there is none. Ask before reading, so that a change shows."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def maker() -> str:
    """This microbench, to the state of its source: words and figures of another one are not its own."""
    digest = hashlib.sha256(__version__.encode())
    for folder, _, names in sorted(os.walk(Path(__file__).parents[1])):
        for name in sorted(names):
            if name.endswith(".py"):
                digest.update(f"{folder}/{name} {state_of(Path(folder, name))}".encode())
    return digest.hexdigest()[:16]


def _key(path: Path) -> bytes:
    """A file by its whole path; in bytes, as its name need not be text."""
    return os.fsencode(os.path.abspath(path))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _intact(kept: object) -> bytes | None:
    """The data as it was put; None where anything became of it, which SQLite itself does not see."""
    if not isinstance(kept, bytes):
        return None
    data = kept[DIGEST_BYTES:]
    return data if kept[:DIGEST_BYTES] == _digest(data) else None


class Index:
    """Bytes by kind and run file; without a ``connection`` nothing is kept. Open it with ``opened``. ``damaged``: it
    turned out to be no index."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection
        self.damaged = False
        self._maker = maker()
        self._waiting: list[tuple[str, bytes, str, str, bytes]] = []

    def get(self, kind: str, path: Path) -> bytes | None:
        """What was made of the file as it is now, or None."""
        return self._look_up(kind, path, state_of(path))

    def put(self, kind: str, path: Path, state: str | None, data: bytes) -> None:
        """Keep ``data``, made of the file in ``state``; of a file that was not there nothing is kept."""
        if state is not None:
            self._waiting.append((kind, _key(path), state, self._maker, _digest(data) + data))
        if len(self._waiting) >= COMMIT_EVERY:
            self.write()

    def each(
        self, kind: str, paths: Iterable[Path], make: Callable[[Path], bytes | None]
    ) -> Iterator[tuple[Path, bytes | None]]:
        """Each file with what was, or now is, made of it. What ``make`` answers None for is not kept."""
        several = list(paths)
        known = self._all(kind) if len(several) > FEW else None
        for path in several:
            state = state_of(path)
            if known is None:
                data = self._look_up(kind, path, state)
            else:
                data = known.get((_key(path), (state or "").encode()))
            if data is None and (data := make(path)) is not None:
                self.put(kind, path, state, data)
            yield path, data

    def forget(self, paths: Iterable[Path]) -> None:
        """Drop all that was made of files that are gone."""
        self._execute_many(FORGET, [(_key(path),) for path in paths])

    def keep_newest(self, kind: str, count: int) -> None:
        """Drop all entries of a kind but those put last."""
        self.write()
        self._execute_many(NEWEST_ONLY, [(kind, count)])

    def write(self) -> None:
        """Write what waits, all or nothing."""
        self._execute_many(KEEP, self._waiting)
        self._waiting.clear()

    def _execute_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._forgiving():
            if self._connection is not None and rows:
                self._connection.executemany(statement, rows)
                self._connection.commit()

    def _all(self, kind: str) -> dict[tuple[object, object], bytes]:
        """All that is known of a kind, by file and its state, both in bytes."""
        with self._forgiving():
            if self._connection is not None:
                found = self._connection.execute(ALL_OF_KIND, (kind, self._maker))
                return {(path, state): data for path, state, kept in found if (data := _intact(kept)) is not None}
        return {}

    def _look_up(self, kind: str, path: Path, state: str | None) -> bytes | None:
        with self._forgiving():
            if self._connection is not None and state is not None:
                row = self._connection.execute(LOOK_UP, (kind, _key(path), state, self._maker)).fetchone()
                return _intact(row[0]) if row else None
        return None

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        """A connection that fails is not asked again."""
        if self._connection is None:
            yield
            return
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            self._connection = None
            self.damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


@contextmanager
def opened() -> Iterator[Index]:
    """The data folder's index; what was put into it is written at the end. One that cannot be opened keeps nothing."""
    try:
        import sqlite3
    except ImportError:  # a Python built without it
        yield Index(None)
        return
    connection = None
    with contextlib.suppress(OSError, sqlite3.Error):
        connection = _connection(data_folder() / FILE)
    index = Index(connection)
    try:
        yield index
    finally:
        index.write()
        if connection is not None:
            connection.close()
        if index.damaged:  # or it would keep nothing for ever: the next one is begun anew
            with contextlib.suppress(OSError):
                (data_folder() / FILE).unlink(missing_ok=True)


def _connection(path: Path) -> sqlite3.Connection:
    """An index ready for use; a damaged one, or what is none, is begun anew."""
    import sqlite3

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connected(path)
    except sqlite3.OperationalError:  # another process is writing, or nobody may write here
        raise
    except sqlite3.DatabaseError:
        path.unlink()
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(path, timeout=WAIT_S)
    connection.text_factory = bytes  # an entry that became text, and none in UTF-8, is damaged like any other
    try:
        connection.execute("PRAGMA synchronous = OFF")  # after a power cut it may be damaged: then it is begun anew
        connection.execute(TABLE)
        connection.execute(LOOK_UP, ("", "", "", ""))  # a damaged one tells by now
    except sqlite3.Error:
        connection.close()
        raise
    return connection

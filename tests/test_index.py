"""The index: never trusted over a file, never in the way, whatever happens to it."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from microbench.runs import index
from microbench.runs.index import FILE, opened, state_of

MAKER = index.maker


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(index, "maker", lambda: "this one")  # the source tree may change while tests run
    return tmp_path


def made(path: Path, calls: list[Path] | None = None) -> bytes:
    """What the tests make of a file: its own bytes, backwards."""
    if calls is not None:
        calls.append(path)
    return path.read_bytes()[::-1]


def asked(*paths: Path) -> tuple[list[bytes | None], list[Path]]:
    """What the index answers for these files, and which of them it had to read."""
    calls: list[Path] = []
    with opened() as found:
        return [data for _, data in found.each("backwards", paths, lambda path: made(path, calls))], calls


@pytest.fixture(params=[0, 100], ids=["all at once", "one by one"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of asking for what is known."""
    monkeypatch.setattr(index, "FEW", request.param)


@pytest.mark.usefixtures("few")
def test_a_file_is_read_once_until_it_changes(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    assert asked(path) == ([b"eno"], [path])
    assert asked(path) == ([b"eno"], [])
    path.write_bytes(b"other")
    assert asked(path) == ([b"rehto"], [path])


def test_a_change_that_hides_is_seen_all_the_same(folder: Path) -> None:
    """Same size, same time of modification: the file was replaced, or written and its time set back."""
    import os

    path = folder / "a"
    path.write_bytes(b"one")
    before = path.stat()
    asked(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert asked(path) == ([b"owt"], [path])


@pytest.mark.usefixtures("few")
def test_what_another_microbench_made_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    asked(path)
    monkeypatch.setattr(index, "maker", lambda: "another one")
    assert asked(path) == ([b"eno"], [path])


def test_a_microbench_is_known_by_its_version_and_its_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "__file__", str(folder / "index.py"))
    (folder / "rules.py").write_text("one = 1")
    first = MAKER()
    assert MAKER() == first
    (folder / "notes.txt").write_text("no source")
    assert MAKER() == first
    (folder / "rules.py").write_text("one = 22")
    second = MAKER()
    monkeypatch.setattr(index, "__version__", "99.0")
    assert len({first, second, MAKER()}) == 3


def test_a_file_that_changes_while_it_is_read_is_read_again(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")

    def interrupted(file: Path) -> bytes:
        data = made(file)
        file.write_bytes(b"three")
        return data

    with opened() as found:
        assert [data for _, data in found.each("backwards", [path], interrupted)] == [b"eno"]
    assert asked(path) == ([b"eerht"], [path])


def test_a_file_that_is_not_there_is_not_kept(folder: Path) -> None:
    with opened() as found:
        found.put("backwards", folder / "a", state_of(folder / "a"), b"x")
        assert found.get("backwards", folder / "a") is None


def test_what_cannot_be_made_is_asked_for_again(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    with opened() as found:
        assert [data for _, data in found.each("backwards", [path], lambda path: None)] == [None]
    assert asked(path)[1] == [path]


@pytest.mark.usefixtures("few")
def test_kinds_are_apart_and_what_is_gone_is_forgotten(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    with opened() as found:
        found.put("first", path, state_of(path), b"1")
        found.put("second", path, state_of(path), b"2")
    with opened() as found:
        assert (found.get("first", path), found.get("second", path)) == (b"1", b"2")
        found.forget([path])
        assert (found.get("first", path), found.get("second", path)) == (None, None)


def test_of_many_files_all_that_is_known_is_fetched_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [folder / str(number) for number in range(index.FEW + 1)]
    for path in paths:
        path.write_bytes(b"x")
    asked(*paths)
    monkeypatch.setattr(index.Index, "_look_up", lambda *_: pytest.fail("looked up one by one"))
    assert asked(*paths) == ([b"x"] * len(paths), [])


def test_only_the_newest_are_kept_where_there_is_a_limit(folder: Path) -> None:
    paths = [folder / str(number) for number in range(5)]
    with opened() as found:
        for path in paths:
            path.write_bytes(b"x")
            found.put("large", path, state_of(path), b"x")
        found.put("other", paths[0], state_of(paths[0]), b"y")
        found.keep_newest("large", 2)
        assert [found.get("large", path) for path in paths] == [None, None, None, b"x", b"x"]
        assert found.get("other", paths[0]) == b"y"


# -- whatever happens to it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"no database at all, but long enough to be taken for one" * 100, b"", b"SQLite format 3\0"]
)
def test_a_damaged_index_is_begun_anew(data: bytes, folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    (folder / FILE).write_bytes(data)
    assert asked(path)[0] == [b"eno"]
    assert asked(path) == ([b"eno"], [])


@pytest.mark.usefixtures("few")
def test_an_index_damaged_in_its_middle_only_costs_time(folder: Path) -> None:
    paths = [folder / str(number) for number in range(50)]
    for path in paths:
        path.write_bytes(b"x" * 5000)
    asked(*paths)
    data = bytearray((folder / FILE).read_bytes())
    data[len(data) // 3 : len(data) // 3 * 2] = b"\xff" * (len(data) // 3 * 2 - len(data) // 3)
    (folder / FILE).write_bytes(data)
    assert asked(*paths)[0] == [b"x" * 5000] * 50
    asked(*paths)
    assert asked(*paths) == ([b"x" * 5000] * 50, []), "and only once"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("changed", ["X'00'", "X''", "'text'", "7", "NULL", "data || X'00'", "substr(data, 1, 9)"])
def test_a_damaged_entry_is_made_anew(changed: str, folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    asked(path)
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute(f"UPDATE entries SET data = {changed}")
    assert asked(path) == ([b"eno"], [path])
    assert asked(path) == ([b"eno"], [])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("column", ["path", "state", "maker"])
@pytest.mark.parametrize("changed", ["X'ff'", "7", "NULL", "'text'"])
def test_an_entry_of_no_file_is_none(column: str, changed: str, folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    asked(path)
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute(f"UPDATE entries SET {column} = {changed}")
    assert asked(path) == ([b"eno"], [path])


@pytest.mark.usefixtures("few")
def test_a_file_whose_name_is_no_text_is_kept_too(folder: Path) -> None:
    path = folder / os.fsdecode(b"a\xff")
    path.write_bytes(b"one")
    assert asked(path) == ([b"eno"], [path])
    assert asked(path) == ([b"eno"], [])


def test_an_index_that_another_process_holds_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "WAIT_S", 0.01)
    path = folder / "a"
    path.write_bytes(b"one")
    asked(path)
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert asked(path) == ([b"eno"], [path])
        other.execute("ROLLBACK")
    assert asked(path) == ([b"eno"], [])


def test_a_folder_that_cannot_be_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "a"
    path.write_bytes(b"one")
    monkeypatch.setenv("MICROBENCH_DATA", str(path / "below a file"))
    assert asked(path) == ([b"eno"], [path])
    assert asked(path) == ([b"eno"], [path])


def test_a_python_without_sqlite_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    path = folder / "a"
    path.write_bytes(b"one")
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert asked(path) == ([b"eno"], [path])
    assert not (folder / FILE).exists()


def test_several_at_once_do_no_harm(folder: Path) -> None:
    paths = [folder / str(number) for number in range(40)]
    for path in paths:
        path.write_bytes(path.name.encode())
    answers: list[list[bytes | None]] = []

    def work() -> None:
        for _ in range(3):
            answers.append(asked(*paths)[0])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[path.name.encode()[::-1] for path in paths]] * 18
    assert asked(*paths)[1] == []

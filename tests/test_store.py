"""Runs on disk: what a name means, what a killed run leaves, and that nothing is overwritten or half written."""

import errno
import fcntl
import gzip
import lzma
import os
import resource
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import call
from make_small_run import OUTCOMES, RUN
from msgspec.structs import replace
from recorded_runs import write

from microbench.archive import schema, store
from microbench.archive.runfile import ResultLostError, RunFile
from microbench.core import files
from microbench.core.errors import ExitCode, ResultNotWrittenError, RunUnreadableError

EMPTY = replace(RUN, outcomes=())
OLD, NEW = "20260101T000000Z-0011aabb", "20260102T000000Z-0022ccdd"
pytestmark = pytest.mark.usefixtures("folder")


def save(path: Path, run_id: str = RUN.run_id) -> Path:
    return write(path, replace(RUN, run_id=run_id))


Compress = Callable[[bytes], bytes]


def pack(path: Path, compress: Compress = lzma.compress) -> Path:
    path.write_bytes(compress(save(path).read_bytes()))
    return path


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """A disk that is full once a file has that size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_run_ids_sort_by_time_and_differ() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    ids = [store.new_run_id(now + timedelta(microseconds=later)) for later in range(0, 1_000_000, 19_999)]
    assert ids == sorted(set(ids))
    assert all(one.startswith("20260102T030405Z-") and len(one) == 25 for one in ids)
    assert len({store.new_run_id(now) for _ in range(50)}) > 40  # two nodes may begin in the same microsecond


def test_runs_are_listed_newest_first_with_those_that_still_grow(folder: Path) -> None:
    assert store.listing() == []
    assert store.last() is None
    old, new = save(folder / f"{OLD}.json", OLD), save(folder / f"{NEW}.jsonl", NEW)
    (folder / "20270101T000000Z-reserved.jsonl").touch()
    (folder / ".20270101T000000Z-half.json").touch()
    assert store.listing() == [new, old]
    assert store.last() == new


def test_a_file_of_another_name_is_as_old_as_its_last_change(folder: Path) -> None:
    other, new = save(folder / "h100-costs.json", OLD), save(folder / f"{NEW}.json", NEW)
    for day, newest in ((1, new), (3, other)):
        changed_s = datetime(2026, 1, day, tzinfo=UTC).timestamp()
        os.utime(other, (changed_s, changed_s))
        assert store.last() == newest


def test_the_data_folder_is_the_users_or_the_one_of_the_variable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert store.data_folder() == folder
    for missing in (str(folder / "not" / "there"), "~nobody-of-that-name/runs"):
        monkeypatch.setenv("MICROBENCH_DATA", missing)
        assert store.listing() == []
    monkeypatch.delenv("MICROBENCH_DATA")
    assert store.data_folder().name == "microbench"


@pytest.mark.parametrize("name", [OLD, OLD[:10], "0011aabb", "0011"])
def test_a_run_is_found_by_id_and_by_the_beginning_of_it(name: str, folder: Path) -> None:
    path = save(folder / f"{OLD}.json", OLD)
    save(folder / f"{NEW}.json", NEW)
    assert store.find(name) == path
    assert store.read(store.find(name)).run_id == OLD


def test_a_run_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), "mine"):
        assert store.read(store.find(name)).run_id == RUN.run_id
    finished = save(tmp_path / "finished.json")
    assert store.find(tmp_path / "finished.jsonl") == finished


def test_a_name_of_two_runs_lists_them_and_a_near_one_is_suggested(folder: Path) -> None:
    save(folder / f"{OLD}.json")
    save(folder / f"{NEW}.json")
    with pytest.raises(RunUnreadableError, match=f"2 runs: {NEW}, {OLD}"):
        store.find("2026")
    with pytest.raises(RunUnreadableError, match="there is no run") as caught:
        store.find(OLD.replace("0011", "0012"))
    assert OLD in caught.value.next_step
    with pytest.raises(RunUnreadableError, match=r"no run file run\.json\.xz"):
        store.find("run.json.xz")


@pytest.mark.parametrize("name", ["", "nothing", "no/such/file", "run.json", "x" * 10_000, "\0", "a\nb", "[red]x[/]"])
def test_a_name_of_no_run_is_an_error_of_one_line(name: str, folder: Path) -> None:
    save(folder / f"{OLD}.json")
    with pytest.raises(RunUnreadableError) as caught:
        store.read(store.find(name))
    assert caught.value.exit_code == ExitCode.UNREADABLE_RUN
    assert len(caught.value.cause.splitlines()) == 1
    assert len(caught.value.cause) < 600


def test_bundled_runs_are_readable_small_and_packed() -> None:
    assert "nvidia-h200" in store.bundled()
    for name, path in store.bundled().items():
        assert store.read(store.find(name)).sessions
        assert path.stat().st_size < 3_500_000
        assert store.is_packed(path)


def test_a_bundled_run_is_named_without_its_endings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "__file__", str(tmp_path / "store.py"))
    (tmp_path / "reference").mkdir()
    for name in ("one.json.gz", "two.json", "v1.5.json.xz", "both.json", "both.json.xz", "notes.txt", "half.jsonl"):
        (tmp_path / "reference" / name).touch()
    names = {name: path.name for name, path in store.bundled().items()}
    assert names == {"one": "one.json.gz", "two": "two.json", "v1.5": "v1.5.json.xz", "both": "both.json"}


def test_a_growing_file_is_newer_than_a_finished_one_unless_it_is_empty(folder: Path) -> None:
    path = save(folder / "run.json", OLD)
    save(folder / "run.jsonl", NEW)
    assert store.read(path).run_id == NEW
    (folder / "run.jsonl").write_bytes(b"")
    assert store.read(path).run_id == OLD
    (folder / "gone.jsonl").symlink_to(folder / "gone")
    assert store.listing() == [path]


def test_only_regular_files_of_a_possible_size_are_read(folder: Path) -> None:
    (folder / "run.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    with open(folder / "huge.json", "wb") as sparse:
        sparse.truncate(store.LARGEST_BYTES + 1)
    for name in (folder / "run.json", folder / "pipe.json", "/dev/zero"):
        with pytest.raises(RunUnreadableError):
            store.read(store.find(name))
    with pytest.raises(RunUnreadableError, match="too large"):
        store.read(store.find(folder / "huge.json"))


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
@pytest.mark.parametrize("name", ["run.json.xz", "run.json.gz", "run.json", "anything"])
def test_a_compressed_run_is_read_whatever_its_name(name: str, compress: Compress, folder: Path) -> None:
    path = pack(folder / name, compress)
    assert store.read(store.find(path)) == store.read(save(folder / "plain.json"))
    assert store.is_packed(path)
    assert not store.is_packed(folder / "plain.json")
    assert not store.is_packed(folder / "nothing.json.xz")
    assert not store.is_packed(folder)


@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_a_growing_run_may_be_compressed_even_in_parts(compress: Compress, folder: Path) -> None:
    """Programs that compress on several cores write such parts."""
    grown = b"".join([schema.encode(EMPTY), *map(schema.encode_outcome, OUTCOMES)])
    (folder / "run.jsonl.xz").write_bytes(compress(grown[:100]) + compress(grown[100:]))
    assert len(store.read(store.find(folder / "run.jsonl.xz")).outcomes) == len(OUTCOMES)
    path = save(folder / "run.json", NEW)
    assert store.read(store.find(path)).run_id == NEW, "a compressed file next to a run is another run"
    assert store.listing() == [path]


@pytest.mark.parametrize("damage", [
    lambda data: data[: len(data) // 2], lambda data: data[:-1], lambda data: data[:5], lambda data: data[:2],
    lambda data: data + b"more", lambda data: data[:40] + bytes(40) + data[80:],
    lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], lambda data: data[:2] + b"\x07" + data[3:],
])  # fmt: skip
@pytest.mark.parametrize("compress", [lzma.compress, gzip.compress])
def test_a_damaged_compressed_run_is_an_error_of_one_line(compress: Compress, damage: Compress, folder: Path) -> None:
    path = pack(folder / "run.json.xz", compress)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunUnreadableError, match="is damaged") as caught:
        store.read(store.find(path))
    assert len(caught.value.cause.splitlines()) == 1


@pytest.mark.parametrize("compress", [lambda data: lzma.compress(data, preset=1), gzip.compress])
def test_a_small_file_that_unpacks_to_a_huge_one_is_not_unpacked(
    compress: Compress, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(store, "LARGEST_BYTES", 3 << 20)
    bomb = compress(bytes(64 << 20))
    (folder / "run.json.xz").write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(RunUnreadableError, match="too large"):
        store.read(store.find(folder / "run.json.xz"))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 20 << 20


def test_a_run_grows_and_is_finished(folder: Path) -> None:
    path = folder / "run.json"
    with closing(RunFile(path, grow=False)) as file:
        assert not path.exists()
        file.begin(EMPTY)
        for number, outcome in enumerate(OUTCOMES, start=1):
            file.append(outcome)
            assert len(store.read(store.find(path)).outcomes) == number
        assert not path.exists()
        file.finish(RUN)
    assert [one.name for one in folder.iterdir()] == ["run.json"]
    assert path.read_bytes() == schema.encode(RUN)


def test_a_run_that_is_not_finished_stays_readable_and_can_be_grown(folder: Path) -> None:
    path = folder / "run.json"
    with closing(RunFile(path, grow=False)) as file:
        file.begin(EMPTY)
        file.append(OUTCOMES[0])
    assert [one.name for one in folder.iterdir()] == ["run.jsonl"]
    assert len(store.read(store.find(path)).outcomes) == 1
    with closing(RunFile(path, grow=True)) as file:
        assert len(store.read(store.find(path)).outcomes) == 1
        file.begin(RUN)
        file.append(OUTCOMES[0])
        file.finish(RUN)
    finished = path.read_bytes()
    with closing(RunFile(path, grow=True)) as file:
        file.begin(RUN)
        file.append(OUTCOMES[0])
        assert path.read_bytes() == finished, "a finished run stays whole while it grows"
        assert len(store.read(store.find(path)).outcomes) == len(OUTCOMES) + 1
        file.finish(RUN)
    assert [one.name for one in folder.iterdir()] == ["run.json"]


def test_a_folder_that_became_read_only_is_no_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    file = RunFile(folder / "run.json", grow=False)
    monkeypatch.setattr(Path, "unlink", denied)
    file.close()


def test_a_reservation_that_was_not_used_leaves_no_trace(folder: Path) -> None:
    RunFile(folder / "run.json", grow=False).close()
    assert list(folder.iterdir()) == []
    path = save(folder / "run.json")
    RunFile(path, grow=True).close()
    assert list(folder.iterdir()) == [path]


def test_what_exists_is_not_overwritten(folder: Path) -> None:
    for name in ("run.json", "other.jsonl"):
        (folder / name).write_text("mine")
    (folder / "link.json").symlink_to(folder / "nowhere")
    for name in ("run.json", "other.json", "link.json"):
        with pytest.raises(ResultNotWrittenError, match="exists already") as caught:
            RunFile(folder / name, grow=False)
        assert caught.value.exit_code == ExitCode.USAGE
    assert (folder / "run.json").read_text() == (folder / "other.jsonl").read_text() == "mine"


def test_two_runs_cannot_grow_one_file(folder: Path) -> None:
    path = save(folder / "run.json")
    with closing(RunFile(path, grow=True)) as file:
        for _ in range(2):  # before and after the growing file was replaced
            with pytest.raises(ResultNotWrittenError, match="another microbench"):
                RunFile(path, grow=True)
            file.begin(RUN)


def test_a_file_replaced_before_it_was_locked_is_opened_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(folder / "run.json")
    lock, others = fcntl.flock, [RunFile(path, grow=True)]

    def late(descriptor: int, flags: int) -> None:
        """Another process finishes the run between opening the growing file and locking it."""
        while others:
            other = others.pop()
            other.begin(EMPTY)
            other.finish(RUN)
        lock(descriptor, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    with closing(RunFile(path, grow=True)) as file:
        assert file.growing.exists(), "the lock is on a file that has a name"
        with pytest.raises(ResultNotWrittenError, match="another microbench"):
            RunFile(path, grow=True)


def test_a_name_that_a_killed_process_only_reserved_is_free(folder: Path) -> None:
    store.growing_path(folder / "run.json").touch()
    with closing(RunFile(folder / "run.json", grow=False)) as file:
        with pytest.raises(ResultNotWrittenError, match="another microbench"):
            RunFile(folder / "run.json", grow=False)
        file.begin(EMPTY)
        file.finish(RUN)
    assert [one.name for one in folder.iterdir()] == ["run.json"]


def test_a_growing_file_that_is_no_file_of_ours_is_not_followed(folder: Path) -> None:
    (folder / "target").write_text("mine")
    (folder / "run.jsonl").symlink_to(folder / "target")
    os.mkfifo(folder / "pipe.jsonl")
    for name in ("run.json", "pipe.json"):
        with pytest.raises(ResultNotWrittenError):
            RunFile(folder / name, grow=False)
    assert (folder / "target").read_text() == "mine"
    assert len(list(folder.iterdir())) == 3


def test_a_growing_file_that_was_removed_does_not_spoil_the_run(folder: Path) -> None:
    path = folder / "run.json"
    with closing(RunFile(path, grow=False)) as file:
        file.begin(EMPTY)
        file.append(OUTCOMES[0])
        file.growing.unlink()
        file.finish(RUN)
    assert [one.name for one in folder.iterdir()] == ["run.json"]
    assert store.read(store.find(path)).outcomes == RUN.outcomes


def test_what_somebody_made_meanwhile_is_not_overwritten(folder: Path) -> None:
    path = folder / "run.json"
    with closing(RunFile(path, grow=False)) as file:
        file.begin(EMPTY)
        path.write_text("mine")
        with pytest.raises(ResultLostError, match="File exists") as caught:
            file.finish(RUN)
    assert path.read_text() == "mine"
    (other,) = (one for one in folder.iterdir() if one != path)
    assert str(other) in caught.value.next_step
    assert store.read(store.find(other)).outcomes == RUN.outcomes


def test_what_somebody_put_in_the_place_of_a_reservation_is_not_replaced(folder: Path) -> None:
    with closing(RunFile(folder / "run.json", grow=False)) as file:
        file.growing.unlink()
        file.growing.write_text("mine")
        with pytest.raises(ResultLostError, match="replaced meanwhile"):
            file.begin(EMPTY)
    assert [(one.name, one.read_text()) for one in folder.iterdir()] == [("run.jsonl", "mine")]


@pytest.mark.parametrize("what", ["file", "folder", "link", "pipe"])
def test_what_takes_the_place_of_the_growing_file_at_the_last_moment_stays(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes between the check whose file it is and the removal."""
    with closing(RunFile(folder / "run.json", grow=False)) as file:
        file.begin(EMPTY)
        file.growing.unlink()
        make = {"file": file.growing.touch, "folder": file.growing.mkdir, "pipe": lambda: os.mkfifo(file.growing)}
        make.get(what, lambda: file.growing.symlink_to("mine"))()
        made = file.growing.lstat()
        monkeypatch.setattr(file, "_has_its_name", lambda: True)
        file.finish(RUN)
    assert os.path.samestat(made, (folder / "run.jsonl").lstat())
    assert sorted(one.name for one in folder.iterdir()) == ["run.json", "run.jsonl"]


@pytest.mark.parametrize("both", [False, True], ids=["working folder", "temporary folder"])
def test_a_folder_that_was_deleted_costs_no_result(both: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``both``: the working folder is the one that is deleted."""
    runs, work, temporary = (tmp_path / name for name in ("runs", "work", "tmp"))
    for place in (runs, work, temporary):
        place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(runs if both else work)
    with closing(RunFile(runs / "run.json", grow=False)) as file:
        file.begin(EMPTY)
        shutil.rmtree(runs)
        file.append(OUTCOMES[0])
        with pytest.raises(ResultLostError) as caught:
            file.finish(RUN)
    (kept,) = (temporary if both else work).iterdir()
    assert str(kept) in caught.value.next_step
    assert kept.read_bytes() == schema.encode(RUN)


def test_what_could_not_be_appended_is_in_the_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full for a moment, and then the folder of the run refuses new files."""
    runs, work = tmp_path / "runs", tmp_path / "work"
    for place in (runs, work):
        place.mkdir()
    monkeypatch.chdir(work)
    write = files.replace

    def refusing(path: Path, data: bytes, *, new: bool = False) -> int:
        if path.parent == runs:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data, new=new)

    with closing(RunFile(runs / "run.json", grow=False)) as file:
        file.begin(EMPTY)
        with largest_file(file.growing.stat().st_size + 10), pytest.raises(ResultLostError):
            file.append(OUTCOMES[0])
        monkeypatch.setattr(files, "replace", refusing)
        with pytest.raises(ResultLostError) as caught:
            file.finish(RUN)
    (kept,) = work.iterdir()
    assert str(kept) in caught.value.next_step
    assert kept.read_bytes() == schema.encode(RUN)


def test_what_a_killed_process_left_is_removed_by_a_later_run(folder: Path) -> None:
    names = [f".run.json.{number}{files.ASIDE}" for number in range(3)]
    old, young, in_use = (folder / name for name in names)
    for path in (old, young, in_use):
        path.write_text("half a run")
    for path in (old, in_use):
        os.utime(path, (0, 0))
    with open(in_use) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        RunFile(folder / "other.json", grow=False).close()
    assert sorted(folder.iterdir()) == [young, in_use]


@pytest.mark.parametrize(("name", "why"), [
    ("no/such/folder/run.json", "no folder"),
    ("\0.json", "null"),
    ("x" * 300 + ".json", "too long"),
    ("", "is a folder"),
    ("/proc/run.json", "cannot be written"),  # /proc refuses new files to root too
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_at_once(name: str, why: str, folder: Path) -> None:
    with pytest.raises(ResultNotWrittenError, match=why):
        RunFile(folder / name if name else folder, grow=False)


def test_a_disk_that_fills_up_keeps_every_whole_outcome(folder: Path) -> None:
    path = folder / "run.json"
    with closing(RunFile(path, grow=False)) as file:
        file.begin(EMPTY)
        file.append(OUTCOMES[0])
        before = file.growing.read_bytes()
        with largest_file(len(before) + 10), pytest.raises(ResultLostError) as caught:
            file.append(OUTCOMES[1])
        assert file.growing.read_bytes() == before
        with largest_file(len(before)), pytest.raises(ResultLostError):
            file.finish(RUN)
    assert caught.value.exit_code == ExitCode.SOME_FAILED
    assert str(folder / "run.jsonl") in caught.value.next_step
    assert [one.name for one in folder.iterdir()] == ["run.jsonl"]
    assert len(store.read(store.find(path)).outcomes) == 1
    for each in folder.iterdir():
        each.unlink()
    with closing(RunFile(path, grow=False)) as file, largest_file(0), pytest.raises(ResultLostError):
        file.begin(EMPTY)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to_with_a_remark(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_locks(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    path = tmp_path / "run.json"
    file = RunFile(path, grow=False)
    assert file.no_lock_reason == os.strerror(number)
    file.begin(replace(RUN, outcomes=()))
    for outcome in RUN.outcomes:
        file.append(outcome)
    file.finish(RUN)
    assert len(store.read(store.find(path)).outcomes) == len(RUN.outcomes)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    result = call("run", "host_timer", "--quick", "--device", "fake", "--out", str(tmp_path / "other.json"))
    assert result.exit_code == 0
    assert f"other.json cannot be locked ({os.strerror(number)})" in " ".join(result.stderr.split())
    assert (tmp_path / "other.json").exists()


def test_a_pipe_or_device_is_never_replaced(tmp_path: Path) -> None:
    """Root could replace /dev/null for all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        files.replace(pipe, b"{}")
    assert pipe.is_fifo()
    assert [*tmp_path.iterdir()] == [pipe]

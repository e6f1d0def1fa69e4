"""Recorded runs are listed by the heads of their files, labelled beside them, and pruned only on request."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from make_run import make_run
from make_small_run import RUN
from msgspec.structs import replace
from recorded_runs import FIRST, recorded, save

from microbench.archive import history, remarks, schema, store
from microbench.cli import share
from microbench.core.errors import ExitCode, ResultNotWrittenError, RunUnreadableError
from microbench.core.model import Run

NOW = FIRST + timedelta(days=30)
STRANGER = "20260102T030405Z-00000001"
pytestmark = pytest.mark.usefixtures("folder")


def listed() -> list[history.Entry]:
    return history.entries(store.listing())


@pytest.fixture
def beginnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The lengths of the beginnings that were decoded; reading a whole file fails the test."""
    lengths: list[int] = []
    decode_head = schema.decode_head

    def counted(beginning: bytes) -> Run | None:
        lengths.append(len(beginning))
        return decode_head(beginning)

    monkeypatch.setattr(schema, "decode_head", counted)
    monkeypatch.setattr(store, "read", lambda path: pytest.fail(f"{path} was read as a whole"))
    return lengths


def test_only_the_beginning_of_a_large_file_is_read(folder: Path, beginnings: list[int]) -> None:
    path = save(folder, replace(RUN, outcomes=RUN.outcomes * 500))
    assert path.stat().st_size > 4 * store.HEAD_BYTES
    assert store.read_head(path) == replace(RUN, outcomes=())
    assert sum(beginnings) <= store.HEAD_BYTES


def test_a_long_head_is_read_to_its_end(folder: Path, beginnings: list[int]) -> None:
    path = save(folder, replace(RUN, sessions=RUN.sessions * 200, outcomes=RUN.outcomes * 1000))
    assert len(store.read_head(path).sessions) == 200
    assert max(beginnings) < path.stat().st_size / 2


def test_the_head_of_a_growing_run_is_read(folder: Path, beginnings: list[int]) -> None:
    path = folder / "growing.jsonl"
    empty = replace(RUN, outcomes=())
    path.write_bytes(schema.encode(empty) + schema.encode_outcome(RUN.outcomes[0]) + b'{"case"')
    assert store.read_head(path) == empty


@pytest.mark.parametrize("changed", [
    lambda document: json.dumps(document, indent=2),
    lambda document: json.dumps({"outcomes": document.pop("outcomes"), **document}),
    lambda document: json.dumps({"run": document}),
    lambda document: json.dumps({"outcomes_of": {"outcomes": [1]}, **document}),
    lambda document: json.dumps({**document, "run_id": '"outcomes":['}, separators=(",", ":")),
])  # fmt: skip
def test_a_file_with_another_layout_is_read_as_a_whole(changed: Callable[[Any], str], folder: Path) -> None:
    path = folder / "other.json"
    path.write_text(changed(json.loads(schema.encode(RUN))))
    head = store.read_head(path)
    assert (head.sessions, head.benchmarks, head.outcomes) == (RUN.sessions, RUN.benchmarks, ())


def test_an_axis_named_outcomes_is_not_taken_for_the_outcomes(folder: Path) -> None:
    settings = replace(RUN.sessions[0].settings, overrides={"outcomes": (1, 2)})
    run = replace(RUN, sessions=(replace(RUN.sessions[0], settings=settings), *RUN.sessions[1:]))
    assert store.read_head(save(folder, run)).sessions == run.sessions


CONTENTS = {
    "empty": b"", "cut": b'{"outcomes":[', "deep": b'{"x":' * 100_000, "binary": b"\xff\xfe", "null": b"null",
    "xz": b"\xfd7", "other": b"{}",
    "no session": json.dumps({**json.loads(schema.encode(recorded(0))), "sessions": []}).encode(),
}  # fmt: skip
ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "nowhere": lambda path: path.symlink_to(path.with_name("gone")),
    **{kind: lambda path, data=data: path.write_bytes(data) for kind, data in CONTENTS.items()},
}


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_is_one_line_and_takes_nothing_from_the_others(kind: str, folder: Path) -> None:
    save(folder, recorded(2))
    odd = folder / f"{STRANGER}.json"
    ODD_FILES[kind](odd)
    with pytest.raises(RunUnreadableError):
        store.read_head(odd)
    text = call("history").stdout
    assert sum("unreadable" in line for line in text.splitlines()) == 1
    assert "00000002" in text
    result = call("history", "prune", "--keep", "0", "--yes")
    assert result.stdout.splitlines()[0] == f"not deleted, because it is unreadable: {STRANGER}.json"
    assert result.stdout.splitlines()[-1] == "1 run deleted"
    assert os.path.lexists(odd)


def test_runs_are_listed_newest_first(folder: Path) -> None:
    runs = [recorded(number) for number in range(3)]
    for run in runs:
        save(folder, run)
    entries = listed()
    assert [entry.path.stem for entry in entries] == [run.run_id for run in reversed(runs)]
    assert entries[0].run == replace(runs[2], outcomes=())


def test_a_run_without_a_gpu_and_a_run_of_two_are_listed_as_such(folder: Path) -> None:
    run = recorded(0)
    gpu = replace(run.sessions[0].environment.gpus[0], simulated=False)
    two = (gpu, replace(gpu, uuid="GPU-2", index=1))
    where = replace(run.sessions[0].environment, gpus=two)
    everything = replace(run.sessions[0].settings, device="all")
    session = replace(run.sessions[0], environment=where, settings=everything)
    save(folder, replace(run, sessions=(session, *run.sessions[1:])))
    save(folder, replace(make_run(gpu=False), run_id="20250101T000000Z-00000000"))
    text = call("history").stdout
    assert all(words in text for words in ("2 × SIMULATED GPU", "no GPU"))


def test_many_runs_are_listed_without_reading_one_as_a_whole(folder: Path, beginnings: list[int]) -> None:
    first = save(folder, recorded(0))
    for number in range(1, 1000):
        (folder / f"20260201T000000Z-{number:08x}.json").hardlink_to(first)
    assert "970 older runs are not listed" in call("history").stdout
    assert len(beginnings) == 30
    assert len(call("history", "--all").stdout.splitlines()) > 1000


def test_hostile_names_and_notes_are_text(folder: Path) -> None:
    hostile = "[red]\x1b[2J\u202e<script>" + "x" * 100_000
    save(folder, recorded(0, gpu_name=hostile))
    call("history", "--note", "00000000", hostile)
    text = call("history").stdout
    assert not any(words in text for words in ("\x1b", "\u202e"))
    assert "[red]" in text.replace("\n", "")
    assert len(text) < 10_000


def test_a_label_is_shown_and_finds_its_run_and_the_file_stays_as_it_is(folder: Path) -> None:
    path = save(folder, recorded(0))
    save(folder, recorded(1))
    before = path.read_bytes()
    result = call("history", "--label", "00000000", "before the fix", "--note", "00000000", "a quiet machine")
    assert result.exit_code == 0
    assert "before the fix" in result.stdout
    assert "00000001" not in result.stdout
    assert path.read_bytes() == before
    assert store.find("before the fix") == path
    assert "a quiet machine" in call("history").stdout
    assert call("show", "before the fix").exit_code == 0


def test_an_empty_text_removes_label_and_note(folder: Path) -> None:
    path = save(folder, recorded(0))
    call("history", "--label", "00000000", "x", "--note", "00000000", "y")
    call("history", "--label", "00000000", "")
    assert remarks.read(path) == remarks.Remarks(note="y")
    call("history", "--note", "00000000", " ")
    assert not remarks.place(path).exists()


def test_only_existing_remarks_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(folder, recorded(number)) for number in range(3)]
    remarks.change(paths[1], label="x")
    opened: list[Path] = []
    read = remarks.read
    monkeypatch.setattr(remarks, "read", lambda path: opened.append(path) or read(path))
    nowhere = folder / "gone" / "run.json"
    labels = remarks.read_all([*paths, nowhere])
    assert [labels[path].label for path in (*paths, nowhere)] == ["", "x", "", ""]
    assert opened == [paths[1]]


def test_an_id_goes_before_a_label_and_a_label_of_two_runs_finds_neither(folder: Path) -> None:
    first, second = save(folder, recorded(0)), save(folder, recorded(1))
    remarks.change(second, label="00000000")
    assert store.find("00000000") == first
    for path in (first, second):
        remarks.change(path, label="same")
    with pytest.raises(RunUnreadableError, match="means 2 runs"):
        store.find("same")


@pytest.mark.parametrize("name", ["RUN.json", "RUN.jsonl", "RUN.json.xz"])
def test_remarks_are_next_to_the_run_whatever_its_file_is_called(name: str, tmp_path: Path) -> None:
    assert remarks.place(tmp_path / name) == tmp_path / "RUN.remarks"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"label":7}', b"\xff", b"[" * 200_000, b'{"label":"x"'])
def test_damaged_remarks_are_empty_and_keep_their_run(data: bytes, folder: Path) -> None:
    path = save(folder, recorded(0))
    remarks.place(path).write_bytes(data)
    assert remarks.read(path) == remarks.Remarks()
    assert going(keep=0) == []
    assert remarks.change(path, label="new").label == "new"


def test_remarks_that_cannot_be_written_are_an_error_and_leave_nothing(folder: Path) -> None:
    path = save(folder, recorded(0))
    remarks.place(path).mkdir()
    with pytest.raises(ResultNotWrittenError):
        remarks.change(path, label="x")
    assert sorted(file.name for file in folder.iterdir()) == [path.name, remarks.place(path).name]


def going(keep: int | None = None, days: float | None = None) -> list[str]:
    """The runs that prune would delete, by the last digits of their ids."""
    age = timedelta(days=days) if days is not None else None
    paths = history.prunable([(path, history.head(path)) for path in store.listing()], keep, age, NOW)
    return [path.stem.rpartition("-")[2].lstrip("0") or "0" for path in paths]


@pytest.mark.parametrize(
    ("keep", "days", "names"),
    [(4, None, "1 0"), (100, None, ""), (0, None, "5 4 3 2 1 0"), (None, 27.5, "2 1 0"), (4, 27.5, "1 0"),
     (1, 28.5, "1 0")],
)  # fmt: skip
def test_old_runs_beyond_the_newest_are_pruned(keep: int | None, days: float | None, names: str, folder: Path) -> None:
    for number in range(6):
        save(folder, recorded(number))
    assert going(keep, days) == names.split()


@pytest.mark.parametrize(
    ("started_at", "names"),
    [("2026-01-01T08:30:00", ["0"]), ((NOW - timedelta(hours=1)).isoformat(), []), ("", []), ("yesterday", []),
     ("0001-01-01T00:00:00+23:59", ["0"]), ("9999-12-31T23:59:59-23:59", [])],
)  # fmt: skip
def test_a_run_is_as_old_as_its_last_session_that_has_a_time(started_at: str, names: list[str], folder: Path) -> None:
    run = recorded(0)
    last = replace(run.sessions[0], started_at=started_at)
    save(folder, replace(run, sessions=(run.sessions[0], last)))
    assert call("history").exit_code == 0
    assert going(days=1) == names


def test_bundled_runs_and_files_that_cannot_be_deleted_stay(folder: Path) -> None:
    bundled = store.bundled()["nvidia-h200"]
    assert history.prunable([(bundled, history.head(bundled))], 0, None, datetime.now(UTC)) == []
    path = folder / "20260102T000000Z-0000000a.json"
    path.mkdir()
    with pytest.raises(ResultNotWrittenError, match="cannot be deleted"):
        history.delete({path: history.state(path)})


def test_labelled_annotated_growing_and_resumed_runs_stay(folder: Path) -> None:
    labelled, noted = save(folder, recorded(0)), save(folder, recorded(1))
    remarks.change(labelled, label="mine")
    remarks.change(noted, note="mine as well")
    growing = save(folder, recorded(2)).rename(folder / "20260102T000000Z-0000000b.jsonl")
    states = {growing: history.state(growing)}
    with growing.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert going(keep=0) == []
        assert history.delete(states) == ([], [growing])
    assert going(keep=0) == ["b"]
    assert history.delete(states) == ([growing], [])


def test_nothing_is_deleted_without_a_limit_and_a_confirmation(folder: Path) -> None:
    for number in range(3):
        save(folder, recorded(number))
    assert call("history", "prune").exit_code == ExitCode.USAGE
    refused = call("history", "prune", "--keep", "1")
    assert refused.exit_code == ExitCode.USAGE
    assert "add --yes" in refused.stderr
    assert "Runs to delete" in refused.stdout
    assert len(store.listing()) == 3
    assert "there is no run to delete" in call("history", "prune", "--keep", "3", "--yes").stdout


def test_a_run_is_deleted_with_its_remarks(folder: Path) -> None:
    newer, older = save(folder, recorded(1)), save(folder, recorded(0))
    remarks.place(older).write_bytes(b"{}")
    result = call("history", "prune", "--keep", "1", "--yes")
    assert result.exit_code == 0
    assert "1 run deleted" in result.stdout
    assert [path.name for path in folder.iterdir()] == [newer.name]


def test_a_run_that_changes_before_the_answer_stays_and_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, grown, added_to, labelled, gone = (save(folder, recorded(number)) for number in range(5))
    recorded_meanwhile: list[Path] = []
    draw = share._list

    def think(paths: list[Path], title: str, more: int = 0) -> None:
        draw(paths, title, more)
        recorded_meanwhile.append(save(folder, recorded(5)))
        grown.write_bytes(schema.encode(replace(recorded(1), outcomes=())))
        store.growing_path(added_to).write_bytes(schema.encode(recorded(2)))
        remarks.change(labelled, label="kept")
        gone.unlink()

    monkeypatch.setattr(share, "_list", think)
    result = call("history", "prune", "--keep", "0", "--yes")
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert last == f"1 run deleted; not deleted, because they changed: {labelled.stem}, {added_to.stem}, {grown.stem}"
    assert not old.exists()
    assert all(path.exists() for path in (*recorded_meanwhile, grown, added_to, labelled))

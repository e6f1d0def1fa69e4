"""Recorded runs: listed by what they need to be read for, labelled beside their files, pruned only when it is meant."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import call
from make_run import failed, make_run
from make_small_run import RUN
from recorded_runs import FIRST, recorded, save
from snapshots import same

from microbench.cli import share
from microbench.core.errors import ExitCode, ResultNotWrittenError, RunUnreadableError, UsageError
from microbench.core.model import Run
from microbench.explain.rules import findings
from microbench.runs import history, index, remarks, schema, store
from microbench.runs.index import opened

NOW = FIRST + timedelta(days=30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(index, "maker", lambda: "this one")  # the source tree may change while tests run
    return tmp_path


def listed() -> list[history.Entry]:
    with opened() as kept:
        return history.entries(kept, store.listing())


# -- the head of a file -----------------------------------------------------------------------------------------------


def with_outcomes(run: Run, copies: int) -> bytes:
    return schema.encode(msgspec.structs.replace(run, outcomes=run.outcomes * copies))


@pytest.fixture
def beginnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The lengths of what was decoded as a beginning; a file that is read as a whole fails the test."""
    lengths: list[int] = []
    whole = schema.decode_head

    def counted(beginning: bytes) -> Run | None:
        lengths.append(len(beginning))
        return whole(beginning)

    def never(path: Path) -> Run:
        raise AssertionError(f"{path} was read as a whole")

    monkeypatch.setattr(schema, "decode_head", counted)
    monkeypatch.setattr(store, "read", never)
    return lengths


def test_of_a_large_file_only_the_beginning_is_read(folder: Path, beginnings: list[int]) -> None:
    path = folder / "large.json"
    path.write_bytes(with_outcomes(RUN, 20_000))
    assert path.stat().st_size > 10e6
    head = store.read_head(path)
    assert head == msgspec.structs.replace(RUN, outcomes=())
    assert sum(beginnings) <= store.HEAD_BYTES


def test_a_long_beginning_is_read_to_its_end(folder: Path, beginnings: list[int]) -> None:
    path = folder / "grown.json"
    run = msgspec.structs.replace(RUN, sessions=RUN.sessions * 500)
    path.write_bytes(with_outcomes(run, 2000))
    assert len(store.read_head(path).sessions) == 500
    assert max(beginnings) < path.stat().st_size / 2


def test_the_head_of_a_growing_run_is_its_own(folder: Path, beginnings: list[int]) -> None:
    path = folder / "growing.jsonl"
    empty = msgspec.structs.replace(RUN, outcomes=())
    path.write_bytes(schema.encode(empty) + schema.encode_outcome(RUN.outcomes[0]) + b'{"case"')
    assert store.read_head(path) == empty


@pytest.mark.parametrize(
    "changed",
    [
        lambda document: json.dumps(document, indent=2),
        lambda document: json.dumps({"outcomes": document.pop("outcomes"), **document}),
        lambda document: json.dumps({"run": document}),
        lambda document: json.dumps({**document, "run_id": '"outcomes":['}, separators=(",", ":")),
    ],
)
def test_a_file_laid_out_otherwise_is_read_as_a_whole(changed: object, folder: Path) -> None:
    path = folder / "other.json"
    path.write_text(changed(json.loads(schema.encode(RUN))))  # type: ignore[operator]
    head = store.read_head(path)
    assert (head.sessions, head.benchmarks, head.outcomes) == (RUN.sessions, RUN.benchmarks, ())


def test_an_axis_called_outcomes_misleads_nobody(folder: Path) -> None:
    settings = msgspec.structs.replace(RUN.sessions[0].settings, overrides={"outcomes": (1, 2)})
    session = msgspec.structs.replace(RUN.sessions[0], settings=settings)
    path = save(folder, msgspec.structs.replace(RUN, sessions=(session,)))
    assert store.read_head(path).sessions == (session,)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"x":' * 100_000, b"\xff\xfe", b'{"outcomes":[', b"null", b"7z"])
def test_what_is_no_run_has_no_head(data: bytes, folder: Path) -> None:
    path = folder / "20260102T030405Z-00000001.json"
    path.write_bytes(data)
    with pytest.raises(RunUnreadableError):
        store.read_head(path)
    (entry,) = listed()
    assert entry.head.problem
    assert entry.counts is None
    assert "unreadable" in call("history").stdout


# -- the list ---------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_with_what_was_found(folder: Path) -> None:
    runs = [recorded(number) for number in range(3)]
    for run in runs:
        save(folder, run)
    found = listed()
    assert [entry.path.stem for entry in found] == [run.run_id for run in reversed(runs)]
    assert found[0].head.started_at == runs[2].sessions[0].started_at
    assert found[0].head.devices == {"SIMULATED GPU": 1}
    assert found[0].head.suites == ("launch",)
    told = [finding.severity for finding in findings(runs[2])]
    assert found[0].counts == {severity: told.count(severity) for severity in set(told)}
    assert list(found[0].counts) == sorted(set(told), key=lambda one: history.SEVERITIES.index(one), reverse=True)


def test_a_run_without_a_gpu_and_one_of_two_say_so(folder: Path) -> None:
    gpu = recorded(0).sessions[0].environment.gpus[0]
    two = msgspec.structs.replace(gpu, uuid="GPU-2", index=1, simulated=False)
    where = msgspec.structs.replace(
        recorded(0).sessions[0].environment, gpus=(msgspec.structs.replace(gpu, simulated=False), two)
    )
    session = msgspec.structs.replace(
        recorded(0).sessions[0],
        environment=where,
        settings=msgspec.structs.replace(recorded(0).sessions[0].settings, device="all"),
    )
    save(folder, msgspec.structs.replace(recorded(0), sessions=(session,)))
    save(folder, msgspec.structs.replace(make_run(gpu=False), run_id="20250101T000000Z-00000000"))
    text = call("history").stdout
    assert "2 × SIMULATED GPU" in text
    assert "no GPU" in text


def test_ten_thousand_runs_are_listed_by_reading_thirty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(folder, recorded(0))
    for number in range(1, 1000):
        (folder / f"20260201T000000Z-{number:08x}.json").hardlink_to(first)
    read: list[Path] = []
    whole = store.read

    def counted(path: Path) -> Run:
        read.append(path)
        return whole(path)

    monkeypatch.setattr(store, "read", counted)
    assert "970 older runs are not listed" in call("history").stdout
    assert len(read) == 30
    read.clear()
    call("history")
    assert read == []


def test_findings_of_large_runs_are_counted_bit_by_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        save(folder, recorded(number))
    monkeypatch.setattr(history, "MOST_READ_BYTES", 1)
    assert [entry.counts is None for entry in listed()] == [False, True, True]
    assert "1 not counted yet" in call("history").stdout
    assert [entry.counts is None for entry in listed()] == [False, False, False]


def test_of_many_runs_only_some_are_counted_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        save(folder, recorded(number))
    monkeypatch.setattr(history, "MOST_READ", 2)
    for uncounted in (3, 1, 0):
        assert sum(entry.counts is None for entry in listed()) == uncounted


def test_a_changed_run_is_counted_again(folder: Path) -> None:
    run = recorded(0)
    save(folder, run)
    before = listed()[0].counts
    save(folder, msgspec.structs.replace(run, outcomes=run.outcomes[:1]))
    assert listed()[0].counts != before


def test_a_run_of_impossible_figures_is_listed_and_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(gpu=False)
    broken = tuple(
        msgspec.structs.replace(
            one,
            measurements=tuple(
                msgspec.structs.replace(found, work=type(found.work)(), samples=msgspec.Raw(b"[1e999]"))
                for found in one.measurements
            ),
        )
        for one in run.outcomes
    )
    data = msgspec.json.encode(msgspec.structs.replace(run, outcomes=broken))
    (folder / "20260102T030405Z-00000001.json").write_bytes(data)
    assert listed()[0].counts is None
    monkeypatch.setattr(store, "read", lambda path: pytest.fail("read again"))
    assert listed()[0].counts is None


def test_no_run_yet_says_how_to_get_one() -> None:
    for command in (("history",), ("trend", "launch_cost.submit")):
        result = call(*command)
        assert result.exit_code == ExitCode.UNREADABLE_RUN
        assert result.stderr == "error: there is no run yet\nnext:  microbench run makes one\n"


def test_hostile_names_and_labels_are_text(folder: Path) -> None:
    hostile = "[red]\x1b[2J\u202e<script>" + "x" * 100_000
    save(folder, recorded(0, gpu_name=hostile))
    call("history", "--note", "00000000", hostile)
    text = call("history").stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]" in text.replace("\n", "")
    assert len(text) < 10_000


# -- labels and notes -------------------------------------------------------------------------------------------------


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


def test_an_empty_text_takes_label_and_note_away(folder: Path) -> None:
    path = save(folder, recorded(0))
    call("history", "--label", "00000000", "x", "--note", "00000000", "y")
    call("history", "--label", "00000000", "")
    assert remarks.read(path) == remarks.Remarks(note="y")
    call("history", "--note", "00000000", " ")
    assert not remarks.place(path).exists()


def test_a_label_of_two_runs_finds_neither(folder: Path) -> None:
    for number in range(2):
        remarks.change(save(folder, recorded(number)), label="same")
    with pytest.raises(RunUnreadableError, match="means 2 runs"):
        store.find("same")


def test_an_id_goes_before_a_label(folder: Path) -> None:
    first, second = save(folder, recorded(0)), save(folder, recorded(1))
    remarks.change(second, label="00000000")
    assert store.find("00000000") == first


def test_only_remarks_that_are_there_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(folder, recorded(number)) for number in range(3)]
    remarks.change(paths[1], label="x")
    opened_ones: list[Path] = []
    one = remarks.read
    monkeypatch.setattr(remarks, "read", lambda path: opened_ones.append(path) or one(path))
    nowhere = folder / "gone" / "run.json"
    said = remarks.read_all([*paths, nowhere])
    assert [said[path].label for path in (*paths, nowhere)] == ["", "x", "", ""]
    assert opened_ones == [paths[1]]


@pytest.mark.parametrize("name", ["RUN.json", "RUN.jsonl", "RUN.json.xz"])
def test_remarks_lie_beside_the_run_whatever_its_file_is_called(name: str, tmp_path: Path) -> None:
    assert remarks.place(tmp_path / name) == tmp_path / "RUN.remarks"


@pytest.mark.parametrize("data", [b"", b"[]", b'{"label":7}', b"\xff", b"[" * 200_000, b'{"label":"x"'])
def test_damaged_remarks_are_none(data: bytes, folder: Path) -> None:
    path = save(folder, recorded(0))
    remarks.place(path).write_bytes(data)
    assert remarks.read(path) == remarks.Remarks()
    assert remarks.change(path, label="new").label == "new"


def test_a_label_too_long_and_one_for_a_bundled_run_are_refused(folder: Path) -> None:
    path = save(folder, recorded(0))
    with pytest.raises(UsageError, match="61 characters"):
        remarks.change(path, label="x" * 61)
    result = call("history", "--label", "nvidia-h200", "mine")
    assert result.exit_code == ExitCode.USAGE
    assert "bundled" in result.stderr
    assert not remarks.place(store.bundled()["nvidia-h200"]).exists()


def test_remarks_that_cannot_be_written_say_so(folder: Path) -> None:
    path = save(folder, recorded(0))
    remarks.place(path).mkdir()
    with pytest.raises(ResultNotWrittenError):
        remarks.change(path, label="x")
    assert sorted(one.name for one in folder.iterdir()) == [path.name, remarks.place(path).name]


def test_a_run_can_be_labelled_as_it_is_made(folder: Path) -> None:
    result = call("run", "host_timer", "--device", "fake", "--quick", "--time-limit", "5", "--label", "first try")
    assert result.exit_code == 0
    assert "first try" in call("history").stdout
    assert "characters" in call("run", "host_timer", "--label", "x" * 61).stderr
    assert len(store.listing()) == 1


# -- pruning ----------------------------------------------------------------------------------------------------------


def going(keep: int | None = None, days: float | None = None) -> list[str]:
    age = timedelta(days=days) if days is not None else None
    with opened() as kept:
        found = history.prunable(history.heads(kept, store.listing()), keep, age, NOW)
    return [path.stem.rpartition("-")[2].lstrip("0") or "0" for path in found]


def test_what_goes_is_old_and_beyond_the_newest(folder: Path) -> None:
    for number in range(6):
        save(folder, recorded(number))
    assert going(keep=4) == ["1", "0"]
    assert going(keep=100) == []
    assert going(keep=0) == ["5", "4", "3", "2", "1", "0"]
    assert going(days=27.5) == ["2", "1", "0"]
    assert going(keep=4, days=27.5) == ["1", "0"]
    assert going(keep=1, days=28.5) == ["1", "0"]


def test_a_run_grown_lately_is_young(folder: Path) -> None:
    run = recorded(0)
    late = msgspec.structs.replace(run.sessions[0], started_at=(NOW - timedelta(hours=1)).isoformat())
    save(folder, msgspec.structs.replace(run, sessions=(run.sessions[0], late)))
    assert going(days=1) == []


def test_a_run_that_means_something_to_somebody_stays(folder: Path) -> None:
    paths = [save(folder, recorded(number)) for number in range(3)]
    remarks.change(paths[0], label="kept")
    remarks.change(paths[1], note="kept as well")
    assert going(keep=0) == ["2"]


@pytest.mark.parametrize("data", [b"", b"{", b'{"label": 1}', b'{"label": "of a later version, cut'])
def test_a_run_of_remarks_that_cannot_be_read_stays(data: bytes, folder: Path) -> None:
    remarks.place(save(folder, recorded(0))).write_bytes(data)
    assert going(keep=0) == []


@pytest.mark.parametrize("days", ["nan", "inf", "1e300"])
def test_what_is_no_number_of_days_is_said(days: str, folder: Path) -> None:
    save(folder, recorded(0))
    result = call("history", "prune", "--older-than", days, "--yes")
    assert result.exit_code == ExitCode.USAGE
    assert "is no number of days" in result.stderr
    assert len(store.listing()) == 1


def test_what_is_no_run_or_grows_stays(folder: Path) -> None:
    (folder / "20260102T000000Z-0000000a.json").write_text('{"somebody": "else\'s"}')
    growing = save(folder, recorded(1)).rename(folder / "20260102T000000Z-0000000b.jsonl")
    with growing.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert going(keep=0) == []
    assert going(keep=0) == ["b"]


def test_a_time_that_says_nothing_is_no_age(folder: Path) -> None:
    run = recorded(0)
    session = msgspec.structs.replace(run.sessions[0], started_at="yesterday")
    save(folder, msgspec.structs.replace(run, sessions=(session,)))
    assert going(days=0) == []
    naive = msgspec.structs.replace(run.sessions[0], started_at="2026-01-01T08:30:00")
    save(folder, msgspec.structs.replace(run, sessions=(naive,)))
    assert going(days=1) == ["0"]


def test_nothing_goes_unless_it_is_meant(folder: Path) -> None:
    for number in range(3):
        save(folder, recorded(number))
    assert call("history", "prune").exit_code == ExitCode.USAGE
    refused = call("history", "prune", "--keep", "1")
    assert refused.exit_code == ExitCode.USAGE
    assert "add --yes" in refused.stderr
    assert "These runs are to go" in refused.stdout
    assert len(store.listing()) == 3
    assert "no run is to go" in call("history", "prune", "--keep", "3", "--yes").stdout


def test_what_goes_goes_with_all_that_lies_beside_it(folder: Path) -> None:
    kept, gone = save(folder, recorded(1)), save(folder, recorded(0))
    remarks.place(gone).write_bytes(b"{}")
    result = call("history", "prune", "--keep", "1", "--yes")
    assert result.exit_code == 0
    assert "1 run deleted" in result.stdout
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == [kept.name]


def test_prune_leaves_bundled_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where somebody has made their folder the data folder."""
    path = store.bundled()["nvidia-h200"]
    assert (
        history.prunable([(path, history.Head(grown_at="2020-01-01T00:00:00+00:00"))], 0, None, datetime.now(UTC)) == []
    )


def test_a_run_that_will_not_go_says_so(folder: Path) -> None:
    path = folder / "20260102T000000Z-0000000a.json"
    path.mkdir()
    with pytest.raises(ResultNotWrittenError, match="cannot be deleted"):
        history.delete({path: history.state(path)})


def test_what_is_labelled_while_the_others_are_looked_at_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled, old = (save(folder, recorded(number)) for number in range(2))
    looked_through = history.prunable

    def and_labelled(*arguments: Any) -> list[Path]:
        going = looked_through(*arguments)
        remarks.change(labelled, label="precious")
        return going

    monkeypatch.setattr(history, "prunable", and_labelled)
    assert call("history", "prune", "--keep", "0", "--yes").exit_code == ExitCode.MEASURED
    assert labelled.exists()
    assert not old.exists()


def test_what_changes_while_a_person_thinks_stays_and_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the list and the answer minutes may go by: runs are recorded, grown, labelled, and deleted elsewhere."""
    old, grown, added_to, labelled, gone = (save(folder, recorded(number)) for number in range(5))
    recorded_meanwhile: list[Path] = []
    draw = share._list

    def think(paths: list[Path], title: str, more: int = 0) -> None:
        draw(paths, title, more)
        recorded_meanwhile.append(save(folder, recorded(5)))
        grown.write_bytes(schema.encode(msgspec.structs.replace(recorded(1), outcomes=())))
        store.growing_path(added_to).write_bytes(schema.encode(recorded(2)))
        remarks.change(labelled, label="kept")
        gone.unlink()

    monkeypatch.setattr(share, "_list", think)
    result = call("history", "prune", "--keep", "0", "--yes")
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert last == f"1 run deleted; left, as changed meanwhile: {labelled.stem}, {added_to.stem}, {grown.stem}"
    assert not old.exists()
    assert all(path.exists() for path in (*recorded_meanwhile, grown, added_to, labelled))


def test_a_run_that_is_taken_up_again_stays(folder: Path) -> None:
    """Its file is locked before anything in it changes."""
    unfinished = save(folder, recorded(0)).rename(folder / "20260102T000000Z-0000000b.jsonl")
    listed = {unfinished: history.state(unfinished)}
    with unfinished.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert history.delete(listed) == history.Deletion([], [unfinished])
    assert history.delete(listed) == history.Deletion([unfinished], [])


# -- how it looks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def several(folder: Path) -> None:
    for number in range(3):
        save(folder, recorded(number))
    save(folder, recorded(3, simulated=False, gpu_name="NVIDIA H200"))
    extra = msgspec.structs.replace(recorded(4), outcomes=(*recorded(4).outcomes, failed()))
    save(folder, extra).rename(folder / "20260105T083000Z-00000004.jsonl")
    (folder / "20260106T083000Z-0badbad0.json").write_text("{")
    remarks.change(folder / f"{recorded(1).run_id}.json", "before the fix", "driver 580, a quiet machine")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.usefixtures("several")
def test_history_looks_as_it_did(width: int) -> None:
    text = call("history", COLUMNS=str(width)).stdout
    assert all(len(line) <= width for line in text.splitlines())
    same(f"history-{width}", text)


@pytest.mark.usefixtures("several")
def test_colour_changes_nothing_but_colour() -> None:
    import re

    plain = call("history", COLUMNS="80").stdout
    coloured = call("history", COLUMNS="80", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    without = call("history", COLUMNS="80", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color").stdout
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", without)

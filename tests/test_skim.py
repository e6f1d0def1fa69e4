"""A large run is gone through once, its samples are not kept; what its file carries is believed of these bytes only."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_link_run import make_link_run
from make_run import failed, make_run
from make_small_run import OUTCOMES, RUN
from recorded_runs import recorded

from microbench.analysis.stats import Row, rows
from microbench.cli.runs import report_at, report_of
from microbench.core import model
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Measurement, Outcome, Run
from microbench.runs import carried, export, schema, skim, store
from microbench.runs.runfile import RunFile

APPENDED = schema.encode_outcome(OUTCOMES[0]).decode()
MISLEADING = 'it said },{"case":"x"}],"outcomes":[ and ],"carried":{"by":"me"}'


def several_sessions() -> Run:
    run = recorded(0)
    later = tuple(msgspec.structs.replace(one, session=1, round=1) for one in run.outcomes)
    return msgspec.structs.replace(run, sessions=run.sessions * 2, outcomes=(*run.outcomes, *later))


RUNS: dict[str, Callable[[], Run]] = {
    "every field": lambda: RUN,
    "launches": lambda: make_run(rounds=3, extra=[failed(MISLEADING)]),
    "links": make_link_run,
    "two sessions": several_sessions,
    "no outcome": lambda: msgspec.structs.replace(RUN, outcomes=()),
    "nvidia-h200-compute": lambda: store.load("nvidia-h200-compute"),
    "nvidia-h200-x2": lambda: store.load("nvidia-h200-x2"),
}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is a large one."""
    monkeypatch.setattr(schema, "LARGE_BYTES", 1)


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "run.json"
    path.write_bytes(data)
    return path


def skimmed(path: Path) -> skim.Skimmed:
    found = skim.skimmed(path)
    assert found is not None
    return found


def comparable(found: list[Row]) -> list[dict[str, Any]]:
    """Rows without what a skimmed run does not keep."""
    return [
        msgspec.structs.asdict(row)
        | {
            "measurement": {**msgspec.structs.asdict(row.measurement), "samples": None},
            "outcomes": [(one.case, one.session, one.round, one.status, one.facts, one.wall_s) for one in row.outcomes],
        }
        for row in found
    ]


def same(found: skim.Skimmed | None, run: Run) -> bool:
    """Whether what was skimmed is that run, as far as a report of it goes."""
    if found is None or report_of(found.run, rows=found.rows) != report_of(run):
        return False
    return comparable(found.rows) == comparable(rows(run)) and len(found.run.outcomes) == len(run.outcomes)


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [64, 1000, skim.PIECE_BYTES])
@pytest.mark.parametrize("carrying", [False, True])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("large")
def test_rows_and_report_are_those_of_the_whole_run(
    name: str, carrying: bool, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skim, "PIECE_BYTES", piece)
    run = RUNS[name]()
    path = saved(tmp_path, schema.encode(run, carrying=carrying))
    assert (carried.KEY in path.read_bytes()) == carrying
    assert same(skim.skimmed(path), run)
    assert report_at(path) == report_of(run, path)


def test_a_file_is_read_in_small_pieces_and_its_samples_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(rounds=5)
    path = saved(tmp_path, schema.encode(run))
    monkeypatch.setattr(skim, "PIECE_BYTES", 4096)
    lengths: list[int] = []
    decoded = skim._pieces

    def counted(own: Any, rest: bytes) -> Any:
        for piece in decoded(own, rest):
            lengths.append(len(piece))
            yield piece

    monkeypatch.setattr(skim, "_pieces", counted)
    found = skimmed(path)
    longest = max(len(msgspec.json.encode(one)) for one in run.outcomes)
    assert max(lengths) <= 4096 + longest + 2
    assert sum(lengths) < path.stat().st_size + 3 * len(lengths)
    with pytest.raises(TypeError):
        _ = [one for outcome in found.run.outcomes for one in outcome.measurements]
    with pytest.raises(TypeError):
        len(found.rows[0].measurement.values)


@pytest.mark.usefixtures("large")
def test_of_a_file_that_carries_its_rows_no_sample_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, schema.encode(make_run(rounds=3)))

    def never(*_: object) -> None:
        pytest.fail("a sample was looked at")

    monkeypatch.setattr(skim, "rows", never)
    monkeypatch.setattr(Measurement, "values", property(never))
    found = skimmed(path)
    assert found.rows
    monkeypatch.undo()
    with pytest.raises(RunUnreadableError):
        _ = found.rows[0].measurement.values


# -- who carries its rows ----------------------------------------------------------------------------------------------


def test_only_a_large_finished_file_carries_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    small = schema.encode(run)
    assert carried.KEY not in small
    monkeypatch.setattr(schema, "LARGE_BYTES", len(small))
    assert schema.encode(run).startswith(small.removesuffix(b"}\n") + carried.KEY)
    assert schema.encode(run, carrying=False) == small
    assert carried.KEY not in export.to_json(run)
    file = RunFile(tmp_path / "run.json", grow=False)
    file.begin(run)
    assert file.growing.read_bytes() == small
    file.finish(run)
    assert file.path.read_bytes() == schema.encode(run) != small


@pytest.mark.usefixtures("large")
def test_a_run_comes_back_without_what_its_file_carries(tmp_path: Path) -> None:
    path = saved(tmp_path, schema.encode(RUN))
    assert schema.encode(store.read(path), carrying=False) == schema.encode(RUN, carrying=False)
    assert store.read_head(path) == msgspec.structs.replace(RUN, outcomes=())


@pytest.mark.usefixtures("large")
def test_a_run_of_impossible_figures_carries_none() -> None:
    run = make_run()
    broken = msgspec.structs.replace(run.outcomes[0].measurements[0], samples=msgspec.Raw(b"[1e999]"))
    outcome = msgspec.structs.replace(run.outcomes[0], measurements=(broken,))
    assert carried.KEY not in schema.encode(msgspec.structs.replace(run, outcomes=(outcome,)))


# -- what is not believed ----------------------------------------------------------------------------------------------


def is_believed(path: Path) -> bool:
    """Whether the rows that the file carries are those shown."""
    return skim._by(skim._as_carried, path) is not None


@pytest.mark.usefixtures("large")
def test_rows_are_those_of_the_bytes_before_them(tmp_path: Path) -> None:
    """One digit of one sample changed, everything else in place."""
    data = schema.encode(make_run())
    path = saved(tmp_path, data)
    assert is_believed(path)
    at = data.index(b'"samples":[') + len(b'"samples":[')
    digit = re.compile(rb"[1-9]").search(data, at)
    assert digit is not None
    path.write_bytes(data[: digit.start()] + (b"9" if digit.group() != b"9" else b"1") + data[digit.end() :])
    assert not is_believed(path)
    assert same(skim.skimmed(path), store.read(path))


@pytest.mark.usefixtures("large")
def test_rows_that_were_changed_are_made_anew(tmp_path: Path) -> None:
    run = make_run()
    data = schema.encode(run)
    changed = re.sub(rb'"trust":"steady"', b'"trust":"stable"', data, count=1)
    assert changed != data
    path = saved(tmp_path, changed)
    assert not is_believed(path)
    assert same(skim.skimmed(path), run)


@pytest.mark.usefixtures("large")
def test_a_file_that_is_no_json_where_it_carries_its_rows_is_told_as_ever(tmp_path: Path) -> None:
    path = saved(tmp_path, schema.encode(RUN).replace(b'"crc32":', b'"crc32"'))
    assert skim.skimmed(path) is None
    with pytest.raises(RunUnreadableError):
        store.read(path)


@pytest.mark.usefixtures("large")
def test_rows_that_another_source_made_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, schema.encode(make_run()))
    monkeypatch.setattr(carried, "source", lambda: "0123456789abcdef")
    assert not is_believed(path)
    assert same(skim.skimmed(path), make_run())


def test_a_source_is_known_to_the_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = carried.source()
    assert before == carried.source()
    other = tmp_path / "model.py"
    other.write_bytes(Path(model.__file__).read_bytes() + b"#")
    monkeypatch.setattr(model, "__file__", str(other))
    assert carried.source() != before


@pytest.mark.parametrize("length", [0, 1, 10, 999_999_999_999])
@pytest.mark.usefixtures("large")
def test_a_length_that_is_wrong_misleads_nobody(length: int, tmp_path: Path) -> None:
    data = schema.encode(RUN)
    path = saved(tmp_path, data[: -len(carried.ENDING % 0)] + carried.ENDING % length)
    assert not is_believed(path)
    assert skim.skimmed(path) is None or same(skim.skimmed(path), RUN)


@pytest.mark.parametrize(
    ("old", "new"), [(b'"outcomes":[0', b'"outcomes":[99'), (b'"session":0,"device"', b'"session":9,"device"')]
)
@pytest.mark.usefixtures("large")
def test_rows_of_what_the_run_does_not_have_are_made_anew(old: bytes, new: bytes, tmp_path: Path) -> None:
    """Though every checksum is right."""
    import zlib

    body, _, rest = schema.encode(RUN).partition(carried.KEY)
    stored = rest[rest.index(b'"rows":') + len(b'"rows":') : -len(carried.ENDING % 0)]
    assert old in stored
    stored = stored.replace(old, new)
    beginning = carried.KEY + b'{"by":"%s","crc32":%d,"rows":' % (
        carried.source().encode(),
        zlib.crc32(stored, zlib.crc32(body)),
    )
    length = len(beginning) + len(stored) + len(carried.ENDING % 0)
    path = saved(tmp_path, b"".join((body, beginning, stored, carried.ENDING % length)))
    assert not is_believed(path)
    assert same(skim.skimmed(path), RUN)


# -- any other file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        lambda document: json.dumps(document, indent=2),
        lambda document: json.dumps({"outcomes": document.pop("outcomes"), **document}),
        lambda document: json.dumps({"run": document}),
        lambda document: json.dumps({**document, "later": 1}, separators=(",", ":")),
        lambda document: json.dumps(document, separators=(",", ":")) + "\n" + APPENDED,
    ],
)
def test_a_file_laid_out_otherwise_is_read_as_a_whole(changed: Callable[[Any], str], tmp_path: Path) -> None:
    path = saved(tmp_path, changed(json.loads(schema.encode(RUN))).encode())
    assert skim.skimmed(path) is None
    assert store.read(path).outcomes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"session":0', b'"session":7'),
        (b'"round":0', b'"round":-1'),
        (b'"samples":[', b'"samples":["1",'),
        (b'"samples":[', b'"samples":[[1],'),
        (b'"samples":[', b'"samples":[1e999,'),
        (b'"samples":[', b'"samples":null,"x":['),
        (b'"measurements":[', b'"measurements":null,"x":['),
        (b'"calls_per_sample":', b'"calls_per_sample":-'),
        (b'"wall_s":', b'"wall_s":1' + b"0" * 400 + b',"x":'),
        (b'"outcomes":[', b'"outcomes":[{},'),
    ],
)
@pytest.mark.parametrize("carrying", [False, True])
@pytest.mark.usefixtures("large")
def test_what_is_wrong_is_said_by_whoever_reads_it_all(old: bytes, new: bytes, carrying: bool, tmp_path: Path) -> None:
    data = schema.encode(RUN, carrying=carrying)
    assert old in data
    path = saved(tmp_path, data.replace(old, new, 1))
    assert skim.skimmed(path) is None
    with pytest.raises(RunUnreadableError):
        rows(store.read(path))


@pytest.mark.usefixtures("large")
def test_a_run_cut_short_anywhere_is_told_as_ever(tmp_path: Path) -> None:
    data = schema.encode(RUN)
    own = len(schema.encode(RUN, carrying=False))
    for length in (0, 1, 100, own // 2, own - 3, own - 2, own + 5, len(data) - 30, len(data) - 2):
        path = saved(tmp_path, data[:length])
        assert skim.skimmed(path) is None
        with pytest.raises(RunUnreadableError):
            store.read(path)


def test_what_cannot_be_opened_is_not_skimmed(tmp_path: Path) -> None:
    assert skim.skimmed(tmp_path / "none.json") is None
    assert skim.skimmed(tmp_path) is None
    assert not skim.is_large(tmp_path / "none.json")


def test_an_outcome_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skim, "PIECE_BYTES", 100)
    monkeypatch.setattr(skim, "LONGEST_BYTES", 20_000)
    long = msgspec.structs.replace(OUTCOMES[0], reason="x" * 50_000)
    path = saved(tmp_path, schema.encode(msgspec.structs.replace(RUN, outcomes=(long,))))
    assert skim.skimmed(path) is None


def test_a_run_that_grows_is_not_skimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcomes are lines of their own: what reads runs takes it at once."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(schema.encode(RUN, carrying=False))
    monkeypatch.setattr(Path, "open", None)
    assert skim.skimmed(path) is None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.usefixtures("large")
def test_a_damaged_file_is_what_reading_it_all_makes_of_it(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes taken out, put in or changed anywhere: the same run, or None."""
    whole = bytearray(schema.encode(RUN, carrying=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(begin, min(len(whole), begin + 20)))
        whole[begin:end] = data.draw(st.binary(max_size=10) | st.sampled_from([b"1", b'"', b"},{", b"]}", b"]"]))
    path = saved(tmp_path, bytes(whole))
    found = skim.skimmed(path)
    if found is not None:
        run = store.read(path)
        assert comparable(found.rows) == comparable(rows(run))
        assert [bare(one) for one in found.run.outcomes] == [bare(one) for one in run.outcomes]
        assert msgspec.structs.replace(found.run, outcomes=()) == msgspec.structs.replace(run, outcomes=())
    else:
        with contextlib.suppress(RunUnreadableError):
            store.read(path)


def bare(outcome: Outcome) -> dict[str, Any]:
    return {**msgspec.structs.asdict(outcome), "measurements": None}

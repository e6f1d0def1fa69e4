"""A large run is shown by what was made of it before, and never by what its file no longer says."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from make_run import failed, make_run
from recorded_runs import recorded, save
from typer.testing import CliRunner, Result

from microbench.analysis import stats
from microbench.analysis.evidence import Evidence, row_name
from microbench.analysis.limits import Ceiling
from microbench.cli.app import app
from microbench.cli.runs import report_of
from microbench.core.model import Measurement, Run
from microbench.report import document, tables
from microbench.runs import index, schema, skim, store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MICROBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(index, "maker", lambda: "this one")  # the source tree may change while tests run
    monkeypatch.setattr(schema, "LARGE_BYTES", 1000)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is gone through to its end."""
    found: list[Path] = []
    whole, skimmed = store.read, skim.skimmed

    def counted(path: Path) -> Run:
        found.append(path)
        return whole(path)

    def skimming(path: Path) -> skim.Skimmed | None:
        found.append(path)
        return skimmed(path)

    monkeypatch.setattr(store, "read", counted)
    monkeypatch.setattr(skim, "skimmed", skimming)
    return found


def test_a_large_run_is_read_once(folder: Path, reads: list[Path]) -> None:
    path = save(folder, recorded(0))
    first = call("show", str(path))
    assert reads == [path]
    assert call("show", str(path)).stdout == first.stdout
    assert call("show", str(path), "--brief").exit_code == 0
    assert reads == [path]


def test_a_large_run_that_changed_is_read_again(folder: Path, reads: list[Path]) -> None:
    path = save(folder, recorded(0))
    call("show", str(path))
    changed = msgspec.structs.replace(recorded(0), outcomes=(*recorded(0).outcomes, failed("it fell over")))
    path.write_bytes(schema.encode(changed))
    assert "it fell over" in call("show", str(path)).stdout
    assert len(reads) == 2


def test_a_small_run_is_read_each_time(folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "LARGE_BYTES", 10_000_000)
    path = save(folder, recorded(0))
    call("show", str(path))
    call("show", str(path))
    assert reads == [path, path]


def test_a_large_run_is_known_as_soon_as_it_is_measured(reads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "LARGE_BYTES", 100)
    assert call("run", "host_timer", "--device", "fake", "--quick", "--time-limit", "5").exit_code == 0
    reads.clear()
    text = call("show").stdout
    assert "host_timer" in text
    assert "saved:" not in text
    assert reads == []


def test_a_kept_report_comes_back_as_it_was() -> None:
    report = report_of(make_run(extra=[failed()]))
    assert len(report.sections) > 1
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=document.Report)
    assert again == report


def test_every_picture_can_be_told_from_the_others() -> None:
    """Else a report that was kept could not be read again."""
    pictures = typing.get_args(document.Picture)
    assert all(picture.__struct_config__.tag for picture in pictures)
    assert len({picture.__struct_config__.tag for picture in pictures}) == len(pictures)


# -- what a run of a hundred thousand measurements is made of ---------------------------------------------------------


def test_samples_are_decoded_once_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(rounds=3)
    decoded: list[str] = []
    whole = typing.cast(property, Measurement.__dict__["values"]).fget
    assert whole is not None

    def counted(measurement: Measurement) -> tuple[float, ...]:
        decoded.append(measurement.metric)
        return typing.cast("tuple[float, ...]", whole(measurement))

    monkeypatch.setattr(Measurement, "values", property(counted))
    stats.rows(run)
    assert len(decoded) == sum(len(one.measurements) for one in run.outcomes)
    data = schema.encode(run)
    decoded.clear()
    schema.decode(data)
    assert decoded == []


def test_a_file_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is not asked for first: that would be another pass over 200 MB."""
    data = schema.encode(make_run())
    passed: list[int] = []
    decode = msgspec.json.decode

    def counted(buffer: bytes, **options: typing.Any) -> typing.Any:
        passed.append(len(buffer))
        return decode(buffer, **options)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    schema.decode(data)
    assert sum(passed) <= len(data)


def test_outcomes_are_sorted_by_benchmark_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(extra=[failed()])
    device = next(one.device for one in run.outcomes if one.device)
    evidence = Evidence(run, stats.rows(run), device)
    assert evidence.outcomes("launch_queue") == [
        one for one in run.outcomes if one.case.benchmark == "launch_queue" and one.device in (device, None)
    ]
    assert evidence.outcomes("nothing") == []


def test_a_table_that_nobody_would_read_to_its_end_says_where_the_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    monkeypatch.setattr(tables, "MOST_CASES", 4)
    studies = {study.benchmark: study for section in report_of(run).sections for study in section.studies}
    durations = studies["launch_duration"].tables[-1]
    assert len(durations.rows) == 4
    assert durations.notes[0] == "6 more cases: microbench export lists them all"
    assert not any("more cases" in note for note in studies["launch_kind"].tables[-1].notes)


def test_limits_of_one_value_stand_in_the_order_of_their_rows() -> None:
    run = make_run()
    info = run.benchmark("launch_duration")
    assert info is not None
    found = [row for row in stats.rows(run) if row.benchmark == info.name][: tables.MOST_LIMITS]
    limits = {row_name(row): Ceiling(1e9, "B/s", "", f"of {row_name(row)}") for row in found}
    last = tables.benchmark_tables(info, found, lambda row: limits[row_name(row)])[-1]
    told = [note.partition("of ")[2] for note in last.notes if note.startswith("limit")]
    assert told == list(limits)
    assert len(told) > 4

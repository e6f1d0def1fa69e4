"""A run of a hundred thousand measurements is read, summed up and drawn without doing anything twice."""

import typing

import msgspec
import pytest
from make_run import failed, make_run
from msgspec.structs import replace

from microbench.analysis import stats
from microbench.analysis.evidence import Evidence, row_name
from microbench.analysis.limits import Ceiling
from microbench.analysis.stats import CONTROLS
from microbench.archive import schema
from microbench.core.model import Measurement
from microbench.library.runs import report_of
from microbench.report import tables


def test_samples_are_decoded_once_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(make_run(rounds=3), run_id="20250101T000000Z-0000dec0")  # other tests have decoded the usual run
    decoded: list[str] = []
    whole = typing.cast(property, Measurement.__dict__["values"]).fget
    assert whole is not None

    def counted(measurement: Measurement) -> tuple[float, ...]:
        decoded.append(measurement.metric)
        return typing.cast("tuple[float, ...]", whole(measurement))

    monkeypatch.setattr(Measurement, "values", property(counted))
    stats.rows(run)
    controls = sum(one.case.benchmark in CONTROLS for one in run.outcomes)  # once more, to tell busy rounds
    assert len(decoded) == sum(len(one.measurements) for one in run.outcomes) + controls
    data = schema.encode(run)
    decoded.clear()
    schema.decode(data)
    assert decoded == []


def test_a_file_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is not read first, because that would be another pass over 200 MB."""
    data = schema.encode(make_run())
    passed: list[int] = []
    decode = msgspec.json.decode

    def counted(buffer: bytes, **options: typing.Any) -> typing.Any:
        passed.append(len(buffer))
        return decode(buffer, **options)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    schema.decode(data)
    assert sum(passed) <= len(data)


def test_outcomes_of_a_benchmark_are_those_of_the_gpu_and_the_host() -> None:
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
    assert (len(durations.rows), durations.notes[0]) == (4, "6 more cases: microbench export lists them all")
    assert not any("more cases" in note for note in studies["launch_threads"].tables[-1].notes)


def test_limits_of_one_value_stand_in_the_order_of_their_rows() -> None:
    run = make_run()
    info = run.benchmark("launch_duration")
    found = [row for row in stats.rows(run) if row.benchmark == info.name][: tables.MOST_LIMITS]
    limits = {row_name(row): Ceiling(1e9, "B/s", "", f"of {row_name(row)}") for row in found}
    last = tables.benchmark_tables(info, found, lambda row: limits[row_name(row)])[-1]
    told = [note.partition("of ")[2] for note in last.notes if note.startswith("limit")]
    assert told == list(limits)
    assert len(told) > 4

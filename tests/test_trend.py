"""One metric over the recorded runs: which runs have it, in which order, with which interval."""

import re
from pathlib import Path

import pytest
from command_line import call
from make_link_run import make_link_run
from make_run import make_run
from msgspec.structs import replace
from recorded_runs import recorded, save

from microbench.analysis.stats import rows
from microbench.archive import remarks, schema, store, trend
from microbench.archive.trend import Point
from microbench.core.errors import UsageError
from microbench.report.document import Curve
from microbench.report.sheets import history as drawing

METRIC = "launch_cost.submit"
pytestmark = pytest.mark.usefixtures("folder")


def gather(metric: str = METRIC) -> list[Point]:
    return trend.gathered(store.listing(), metric)[0]


def curve(found: list[Point]) -> Curve:
    section = drawing.sheet(METRIC, found, {}, [], looked_at=len(found), table_rows=5).sections[0]
    assert isinstance(section.pictures[0], Curve)
    return section.pictures[0]


def test_points_are_the_rows_of_their_runs_oldest_first(folder: Path) -> None:
    runs = [recorded(number, factor=1 + number / 10) for number in range(4)]
    for run in reversed(runs):
        save(folder, run)
    found = gather()
    assert [point.run for point in found] == [run.run_id for run in runs]
    for point, run in zip(found, runs, strict=True):
        (row,) = (one for one in rows(run) if (one.benchmark, one.metric.name) == ("launch_cost", "submit"))
        assert (point.row.interval, point.row.trust) == (row.interval, row.trust)
        assert point.simulated
        assert point.device == "SIMULATED GPU"


def test_rounds_are_joined_and_sessions_are_not(folder: Path) -> None:
    run = recorded(0)
    again = tuple(replace(one, round=1) for one in run.outcomes)
    later = tuple(replace(one, session=1) for one in run.outcomes)
    second = replace(run.sessions[0], started_at="2026-02-01T00:00:00+00:00")
    save(folder, replace(run, sessions=(run.sessions[0], second), outcomes=(*run.outcomes, *again, *later)))
    assert [(len(point.row.outcomes), point.started_at[:7]) for point in gather()] == [(2, "2026-01"), (1, "2026-02")]


def test_only_runs_whose_head_has_the_metric_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(folder, recorded(0))
    save(folder, replace(make_run(gpu=False), run_id="20260103T000000Z-0000000b"))
    read: list[Path] = []
    whole = store.read
    monkeypatch.setattr(store, "read", lambda path: read.append(path) or whole(path))
    assert len(gather()) == 1
    assert read == [path]
    with pytest.raises(UsageError):
        gather("launch_cost.submitt")
    assert path not in read[1:]


def with_samples(samples: bytes) -> bytes:
    return re.sub(rb'"samples":\[[^]]*\],"n":16', b'"samples":' + samples + b',"n":1', schema.encode(recorded(1)))


@pytest.mark.parametrize("data", [
    b"{", b"", *map(with_samples, (b"[1e999]", b"[1e308,-1e308,1e308]", b"[1e-320]", b"[1e305]")),
], ids=["cut", "empty", "infinite", "overflow", "denormal", "huge"])  # fmt: skip
def test_a_damaged_run_is_one_line_and_takes_nothing_from_the_others(data: bytes, folder: Path) -> None:
    save(folder, recorded(0))
    (folder / "20260102T000000Z-0000000a.json").write_bytes(data)
    points, unreadable = trend.gathered(store.listing(), METRIC)
    assert (len(points), unreadable) == (1, ["20260102T000000Z-0000000a"])
    lines = [line for line in call("trend", METRIC).stdout.splitlines() if "unreadable" in line]
    assert [line.split()[2] for line in lines] == ["20260102T000000Z-0000000a"]
    for number in range(5):
        (folder / f"20260102T000000Z-0000000{number}.json").touch()
    assert "and 3 more" in call("trend", METRIC, COLUMNS="200").stdout


@pytest.fixture
def copies(folder: Path) -> list[Point]:
    save(folder, replace(make_link_run(), run_id="20260101T000000Z-00000000"))
    return gather("link_copy.bandwidth")


def test_a_few_cases_are_drawn_and_more_are_asked_about(copies: list[Point]) -> None:
    with pytest.raises(UsageError) as caught:
        trend.of_cases(copies, {}, None)
    assert caught.value.cause.endswith("cases have this metric")
    assert all(words in caught.value.next_step for words in ("direction (", "size_bytes ("))
    one = copies[0]
    wanted = {name: str(value) for name, value in one.row.params.items()}
    assert (trend.of_cases(copies, wanted, None), trend.of_cases(copies, {}, one.row.case_id)) == ([one], [one])


def test_an_unknown_case_is_an_error_that_lists_the_axes(copies: list[Point]) -> None:
    with pytest.raises(UsageError, match="no recorded case is direction=sideways") as caught:
        trend.of_cases(copies, {"direction": "sideways"}, None)
    assert "h2d" in caught.value.next_step


@pytest.mark.parametrize(("text", "parsed"), [
    ("direction=h2d, size_bytes=64", ({"direction": "h2d", "size_bytes": "64"}, None)),
    ("link_copy[size_bytes=64]", ({}, "link_copy[size_bytes=64]")), (None, ({}, None)),
    *((text, None) for text in ("direction", "=h2d", "direction=", "direction=h2d,", ",")),
])  # fmt: skip
def test_a_case_is_given_by_its_axes_or_its_id(text: str | None, parsed: object) -> None:
    if parsed is not None:
        assert trend.parsed_case(text) == parsed
    else:
        with pytest.raises(UsageError):
            trend.parsed_case(text)


def test_gpus_of_one_name_are_told_apart(folder: Path) -> None:
    save(folder, recorded(0))
    point = gather()[0]
    other = replace(point, row=replace(point.row, device="GPU-11111111-0000-0000-0000-000000000000"))
    assert [device for device, _ in trend.by_series([point, other])] == [
        "SIMULATED GPU GPU-00000000",
        "SIMULATED GPU GPU-11111111",
    ]
    assert [device for device, _ in trend.by_series([point])] == ["SIMULATED GPU"]


def points(*values: float, **changes: object) -> list[Point]:
    run = recorded(0)
    (first,) = trend.points(run, "launch_cost", "submit", Path("x.json"))
    made = []
    for number, value in enumerate(values):
        interval = replace(first.row.interval, median=value, low=value * 0.99, high=value * 1.01)
        at = {"run": f"run-{number}", "started_at": f"2026-01-{number + 1:02d}T00:00:00+00:00"}
        made.append(replace(first, row=replace(first.row, interval=interval), **at, **changes))
    return made


def test_a_curve_shows_each_run_with_its_interval() -> None:
    drawn = curve(points(1e-6, 2e-6, 3e-6))
    assert drawn.lines[0].points == ((0.0, 1e-6), (1.0, 2e-6), (2.0, 3e-6))
    assert [line.points for line in drawn.lines[1:]] == [
        ((x, y * 0.99), (x, y * 1.01)) for x, y in ((0.0, 1e-6), (1.0, 2e-6), (2.0, 3e-6))
    ]
    assert drawn.marks == ()
    calm = curve(points(1e-6, 1.001e-6))
    assert calm.y_ticks[-1].at - calm.y_ticks[0].at >= 0.05e-6, "a small change is not magnified"
    assert len({tick.text for tick in calm.y_ticks}) == len(calm.y_ticks)
    for value in (0.0, 1e-12, 1e15):
        assert curve(points(value)).y_ticks


def test_another_method_is_marked_and_a_figure_is_compared_only_with_those_of_its_own() -> None:
    before, after = points(1e-6, 1e-6), points(1e-6, 1e-6, 4e-6, 6e-6, version=3)
    assert [(mark.at, mark.text) for mark in curve([*before, after[2]]).marks] == [(2.0, "method 3")]
    report = drawing.sheet(METRIC, [*before, *after[2:]], {}, [], looked_at=4, table_rows=5)
    two = [run.rpartition("-")[2] for run in dict.fromkeys(point.run for point in [*before, *after[2:]])][-2:]
    assert report.footer == (f"whether the newest two differ: microbench compare {two[0]} {two[1]}",)
    against = [row[4].text for row in report.sections[0].studies[0].tables[0].rows]
    assert against == ["+20.0 %", "-20.0 %", "method 2", "method 2"]
    assert "newest of 2; in the median 5.00 µs, from 4.00 µs to 6.00 µs" in report.facts[0][1]


def test_simulated_figures_and_a_fourth_series_are_not_drawn() -> None:
    found = [*points(1e-6, simulated=False), *points(5e-6)]
    report = drawing.sheet(METRIC, found, {}, [], looked_at=2, table_rows=5)
    assert (report.mark, len(report.sections[0].studies[0].tables[0].rows)) == ("", 1)
    assert ("not drawn", "1 SIMULATED figures: they say nothing about a real GPU") in report.facts
    assert drawing.sheet(METRIC, points(1e-6), {}, [], looked_at=1, table_rows=5).mark == "SIMULATED"
    many = [point for name in "abcd" for point in points(1e-6, device=name)]
    report = drawing.sheet(METRIC, many, {}, [], looked_at=4, table_rows=50)
    assert sum(name == "not drawn" for name, _ in report.facts) == 1
    assert len(report.sections[0].studies[0].tables[0].rows) == 3


def test_a_trend_reads_the_newest_runs_only_and_draws_zeros(folder: Path, tmp_path: Path) -> None:
    for number in range(4):
        save(folder, recorded(number, factor=0.0 if number == 3 else 1.0))
    assert "2 of the 2 newest" in call("trend", METRIC, "--last", "2").stdout
    assert "4 of the 4 newest" in call("trend", METRIC, "--all").stdout
    assert call("trend", METRIC, "--svg", str(tmp_path / "trend.svg")).exit_code == 0
    assert "<svg" in (tmp_path / "trend.svg").read_text()


def test_the_newest_runs_are_listed_with_their_labels(folder: Path) -> None:
    for number in range(30):
        path = save(folder, recorded(number))
    remarks.change(path, label="the newest")
    lines = call("trend", METRIC, COLUMNS="120").stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if "date (UTC)" in line)
    assert all(words in lines[first + 2] for words in ("0000001d", "the newest"))
    assert any("10 older ones are not listed" in line for line in lines)

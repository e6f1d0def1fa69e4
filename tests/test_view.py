"""What a report says: marks, facts, sections, shapes of tables, what was not measured."""

import pytest
from changed_run import with_metrics, without
from make_run import DEVICE, benchmarks, failed, make_run, measurement, outcome, outcomes_of, skipped
from msgspec.structs import replace
from recorded_runs import real
from sections import cells, some, study

from microbench.analysis.evidence import evidence_by_device
from microbench.analysis.limits import ceiling
from microbench.analysis.stats import rows
from microbench.core.model import BenchmarkInfo, GpuInfo, LinkInfo, Metric, Run, Work
from microbench.report.curves import benchmark_curve, ticks
from microbench.report.sheets import view
from microbench.report.suites import launch
from microbench.report.tables import figure, problem_table


def test_runs_that_are_not_this_machines_or_not_finished_are_marked() -> None:
    run = make_run()
    simulated, reference = view.build(run, unfinished=True), view.build(real(run), reference=True)
    assert (simulated.mark, reference.mark) == ("SIMULATED", "REFERENCE")
    assert [banner.word for banner in simulated.banners] == ["SIMULATED", "UNFINISHED"]
    assert "not on this machine" in reference.banners[0].text


def test_a_run_without_a_gpu_says_why_and_what_to_do() -> None:
    report = view.build(make_run(gpu=False))
    banner = next(banner for banner in report.banners if banner.word == "NO GPU")
    assert (banner.text, banner.next_step) == ("no driver", "install one")
    assert [section.suite for section in report.sections] == ["host"]
    assert view.pictures("launch", evidence_by_device(make_run(gpu=False))[0]) == []
    assert view.build(Run(1, "empty", (), (), ())).sections == ()


def test_a_layer_that_was_measured_without_arguments_only_says_so_on_the_ladder() -> None:
    run = without(make_run(), "launch_layers", layer="triton", arguments=4)
    picture = some(launch.ladder(evidence_by_device(run)[0]))
    bar = next(bar for bar in picture.bars if bar.label.startswith("Triton"))
    assert (bar.label, bar.cells[0].text, bar.cells[1].text) == ("Triton, 0 args", "16.0 µs", "5.0×")


def test_single_calls_have_a_p99_only_where_there_are_enough() -> None:
    def marks(calls: int) -> list[str]:
        run = with_metrics(
            make_run(),
            "launch_cost",
            lambda old: replace(old, per_call=old.per_call and replace(old.per_call, n=calls)),
        )
        picture = some(launch.single_calls(evidence_by_device(run)[0]))
        assert picture.about.startswith(f"{calls} calls of one process")
        return [mark.text.split()[0] for mark in picture.marks]

    assert (marks(199), marks(200)) == (["p50", "p90", "worst"], ["p50", "p90", "p99", "worst"])


def test_a_figure_with_a_bound_shows_its_share_of_the_limit() -> None:
    copy = measurement("rate", 1e9 / 55e9, work=Work(bytes=10**9), bound="pcie_h2d")
    link = LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256)
    info = BenchmarkInfo("copy", "link", "Copy", "How fast?", 1, (), (Metric("rate", "rate", "B/s", "how fast"),))
    run = replace(make_run(), benchmarks=(info,), outcomes=(outcome("copy", [copy]),))
    cell = figure(rows(run)[0], ceiling("pcie_h2d", GpuInfo("SIMULATED GPU", DEVICE, link=link)))
    assert "94." in cell.note
    assert cell.note.endswith("of limit")


def test_problems_are_joined_by_reason_failures_first() -> None:
    assert problem_table(make_run().outcomes) is None
    run = make_run(extra=[skipped("warp"), skipped("triton"), skipped("x", "time budget"), failed()])
    table = problem_table(run.outcomes)
    assert cells(table, 0) == ["failed", "launch_queue[argument_bytes=2048]", "CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert cells(table, 1) == ["skipped", "launch_layers (2 cases)", "needs warp: pip install warp-lang"]
    assert cells(table, 2)[2] == "time budget"


def test_curves_need_points_and_leave_drawn_ones_to_their_picture() -> None:
    report = view.build(make_run())
    assert study(report, "launch_duration").curve is None
    assert study(report, "host_memory").curve is None  # two points
    curve = some(study(report, "launch_threads").curve)
    assert ([x for x, _ in curve.lines[0].points], curve.title) == ([1, 2, 4, 8], "rate over threads")


@pytest.mark.parametrize(("count", "title"), [(3, "submit over argument"), (6, ", 3 of 6 lines shown")])
def test_a_curve_has_a_line_for_each_combination_of_the_other_axes(count: int, title: str) -> None:
    cases = [
        outcome(
            "launch_arguments", [measurement("submit", 3e-6)], argument_bytes=size, grid_blocks=blocks, block_threads=1
        )
        for blocks in range(1, 1 + count)
        for size in (0, 8, 64, 256)
    ]
    run = replace(make_run(), outcomes=tuple(cases), benchmarks=benchmarks(cases))
    curve = some(benchmark_curve(run.benchmarks[0], rows(run)))
    assert [line.tone for line in curve.lines] == ["first", "second", "third"]
    names = [f"grid blocks {blocks}" for blocks in (1, 2, 3)]
    assert count > 3 or [(line.name, len(line.points)) for line in curve.lines] == [(name, 4) for name in names]
    assert title in curve.title
    assert (" lines shown" in curve.title) == (count > 3)


@pytest.mark.parametrize(("low", "high", "log"), [(0.0, 880e3, False), (1e-6, 1e-4, True), (5.0, 5.0, True)])
def test_ticks_are_round_and_inside(low: float, high: float, log: bool) -> None:
    marks = ticks(low, high, log, "1/s")
    assert 1 <= len(marks) <= 8
    assert all(low * 0.99 <= mark.at <= high * 1.01 for mark in marks)
    assert len({mark.text for mark in marks}) == len(marks)


def test_each_gpu_has_its_section_and_the_host_one() -> None:
    other = [replace(one, device="GPU-other") for one in outcomes_of("launch")]
    sections = view.build(make_run(extra=other)).sections
    assert [section.suite for section in sections] == ["host", "launch", "launch"]
    assert "GPU 0, SIMULATED GPU" in sections[1].title


def test_grades_seen_are_explained() -> None:
    assert view.build(make_run()).grades == ("steady", "noisy", "single")
    assert "stable" in view.build(make_run(rounds=3)).grades


def test_rows_without_their_parameters_are_no_error() -> None:
    run = make_run()
    bare = tuple(replace(one, case=replace(one.case, params={"benchmark": 1, "metric": "x"})) for one in run.outcomes)
    assert view.build(replace(run, outcomes=bare)).sections

"""What a report says: marks, facts, sections, shapes of tables, what was not measured."""

import pytest
from changed_run import with_metrics, without
from make_run import DEVICE, benchmarks, failed, make_run, measurement, outcome, outcomes_of, skipped
from msgspec.structs import replace
from sections import cells, headings, some, study

from microbench.analysis.evidence import evidence_by_device
from microbench.analysis.limits import ceiling
from microbench.analysis.stats import rows
from microbench.core.bench import discover
from microbench.core.model import BenchmarkInfo, GpuInfo, LinkInfo, Metric, Run, Work
from microbench.report.curves import benchmark_curve, ticks
from microbench.report.document import Bars, Curve, Histogram, Table, TimeLine
from microbench.report.sheets import view
from microbench.report.suites import launch
from microbench.report.tables import figure, problem_table


def test_runs_that_are_not_this_machines_or_not_finished_are_marked() -> None:
    run = make_run()
    real = tuple(replace(session, simulated=False) for session in run.sessions)
    bundled = replace(run, sessions=real)
    simulated, reference = view.build(run, unfinished=True), view.build(bundled, reference=True)
    assert (simulated.mark, reference.mark) == ("SIMULATED", "REFERENCE")
    assert [banner.word for banner in simulated.banners] == ["SIMULATED", "UNFINISHED"]
    assert "not on this machine" in reference.banners[0].text


def test_a_run_without_a_gpu_says_why_and_what_to_do() -> None:
    report = view.build(make_run(gpu=False))
    banner = next(banner for banner in report.banners if banner.word == "NO GPU")
    assert (banner.text, banner.next_step) == ("no driver", "install one")
    assert [section.suite for section in report.sections] == ["host"]
    assert launch.pictures(evidence_by_device(make_run(gpu=False))[0]) == []
    assert view.build(Run(1, "empty", (), (), ())).sections == ()


def test_facts_tell_the_machine_and_the_run() -> None:
    facts = dict(view.build(make_run(rounds=3)).facts)
    assert facts["GPU"] == "SIMULATED GPU · compute capability 9.0 · 132 SMs · 64.0 GiB · PCIe 5 x16"
    assert all(words in facts["run"] for words in ("3 rounds", "2025-01-02 03:04 UTC"))
    assert facts["run"].startswith(make_run().run_id.rpartition("-")[2])


def test_the_first_picture_is_the_ladder_and_families_are_apart() -> None:
    section = view.build(make_run()).sections[1]
    assert [type(picture) for picture in section.pictures] == [Bars, Bars, TimeLine, Curve, Histogram, Table, Table]
    same, one_op = (picture for picture in section.pictures if isinstance(picture, Bars))
    assert [bar.label for bar in same.bars][2:4] == ["cuda.core", "cuda.bindings"], "by the call with four arguments"
    assert [bar.label for bar in one_op.bars] == ["PyTorch out=", "PyTorch eager", "CuPy ufunc", "JAX jit"]
    assert not {bar.label for bar in same.bars} & {bar.label for bar in one_op.bars}
    assert (same.bars[2].cells[0].text, same.bars[2].cells[0].trust) == ("4.40 µs", "steady")
    assert (same.bars[2].cells[1].text, same.bars[2].cells[2].text) == ("1.36×", "3.80 µs")
    assert (same.bars[2].value, same.bars[2].beyond) == pytest.approx((3.8e-6, 4.4e-6), rel=0.02)


def test_a_layer_that_was_measured_without_arguments_only_says_so_on_the_ladder() -> None:
    run = without(make_run(), "launch_layers", layer="triton", arguments=4)
    picture = some(launch.ladder(evidence_by_device(run)[0]))
    bar = next(bar for bar in picture.bars if bar.label.startswith("Triton"))
    assert (bar.label, bar.cells[0].text, bar.cells[1].text) == ("Triton, 0 args", "16.0 µs", "5.0×")


def test_a_gap_that_is_not_above_zero_is_none_measurable() -> None:
    table = launch.idle_gaps(evidence_by_device(make_run())[0])
    assert headings(some(table))[1:] == ["stream", "stream, one stream", "graph", "graph, one stream"]
    assert cells(table, "empty, 1 block")[1:] == ["904 ns", "724 ns", "3.92 ns", "none measurable"]


def test_the_anatomy_is_to_scale() -> None:
    picture = some(launch.anatomy(evidence_by_device(make_run())[0]))
    start, complete = picture.lanes[2].spans
    assert start.end_s == complete.begin_s == pytest.approx(6.65e-6, rel=0.02)
    assert complete.end_s == picture.end_s == pytest.approx(8.79e-6, rel=0.02)
    assert picture.lanes[1].spans[1].begin_s == pytest.approx(6.08e-6, rel=0.02)


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


def test_the_duration_curve_marks_the_crossover() -> None:
    picture = some(launch.durations(evidence_by_device(make_run())[0]))
    assert [line.name.split()[0] for line in picture.lines] == ["in", "the", "the"]
    assert picture.marks[0].at == pytest.approx(2.3e-6 + 0.18e-6, rel=0.02)  # gaps of one stream are shorter


@pytest.mark.parametrize(("benchmark", "columns", "rows"), [
    ("launch_layers", "family, layer, arguments, submit, round_trip", 20),
    ("host_call", "how, call, p90, p99, worst", 4), ("host_memory", "threads, rate, p1, min", 2),
    ("launch_queue", "argument size, depth, p90, p99, max", 4), ("launch_cost", "metric, value, p90, p99, worst", 9),
    ("launch_sync", "metric by wait, spin, yield, blocking", 7),
])  # fmt: skip
def test_the_layout_of_a_table_follows_its_metrics_and_axes(benchmark: str, columns: str, rows: int) -> None:
    table = study(make_run(), benchmark).tables[0]
    assert (headings(table), len(table.rows)) == (columns.split(", "), rows)
    assert table.question == discover()[benchmark].about.partition("\n")[0]


def test_cases_with_other_metrics_get_a_table_of_their_own() -> None:
    first, second, third = study(make_run(), "launch_traffic").tables
    assert headings(first) == ["work", "idle_received", "idle_sent"]
    assert (headings(second), second.title) == (["work", "received_per_byte", "sent_per_byte"], "")
    assert headings(third) == ["work", "duration", "argument size", "received", "sent"]


def test_notes_tell_what_was_checked_and_found_out() -> None:
    assert "kernels per call: 1 (20 cases)" in study(make_run(), "launch_layers").tables[0].notes
    notes = study(make_run(), "launch_queue").tables[0].notes
    assert "checked: the gate opened by its own time-out" in notes


def test_a_figure_with_a_bound_shows_its_share_of_the_limit() -> None:
    copy = measurement("rate", 1e9 / 55e9, work=Work(bytes=10**9), bound="pcie_h2d")
    link = LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256)
    info = BenchmarkInfo("copy", "link", "Copy", "How fast?", 1, (), (Metric("rate", "rate", "B/s", "how fast"),))
    run = replace(make_run(), benchmarks=(info,), outcomes=(outcome("copy", [copy]),))
    cell = figure(rows(run)[0], ceiling("pcie_h2d", GpuInfo("SIMULATED GPU", DEVICE, link=link)))
    assert "94." in cell.note
    assert cell.note.endswith("of limit")


def test_single_samples_show_their_number_instead_of_a_width() -> None:
    cell = study(make_run(), "launch_cold").tables[0].rows[0][1]
    assert (cell.note, cell.trust) == ("n=1", "single")


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

"""The compute suite's section of the report: pictures, tables, and no line wider than the page."""

import compute_evidence
import make_compute_run as made
import pytest
from link_evidence import changed, with_gpu, without
from make_compute_run import PRODUCTS, make_compute_run
from make_memory_run import make_memory_run
from msgspec.structs import replace
from sections import cells, drawn, headings, lines_of, some, study, suite_report

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.core.model import Fact, Outcome, Run, Series, Work
from microbench.report.document import Curve, Line, Mark
from microbench.report.suites import compute
from microbench.report.suites.compute import alone, by_library, by_type, fastest, over_size
from microbench.report.suites.roofline import rates_over_time, rooflines, shapes, state_over_time
from microbench.report.terminal.plots import curve

# A board whose data sheet takes another clock than the highest.
WHOLE = make_compute_run(name="NVIDIA H200")
FULL = make_compute_run(preset="full", name="NVIDIA H200")


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def test_more_sizes_give_more_pictures() -> None:
    titles = [picture.title for picture in compute.pictures(evidence(FULL))]
    assert "Rate over the size of a square product" in titles
    assert [title for title in titles if "own roofs" in title] == [
        "Products of bf16 under this run's own roofs", "Products of fp8_e4m3_fast under this run's own roofs",
    ]  # fmt: skip


SHAPE = "rows x columns x depth: 8192x8192x8192"


def test_each_type_has_its_accumulator_and_its_share_at_each_clock() -> None:
    table = by_type(evidence())
    assert cells(table, "bf16") == ["bf16", "fp32", "692", "1.39 GHz 92.0 %", "64.6 %", "69.9 %"]
    assert cells(table, "fp64") == ["fp64", "fp64", "61.0", "1.90 GHz 95.0 %", "91.2 %", "91.2 %"]
    assert cells(table, "fp8_e4m3_fast") == [
        "fp8_e4m3_fast",
        "fast, ~14 bits",
        "1412",
        "1.45 GHz 90.1 %",
        "66.0 %",
        "71.4 %",
    ]
    assert not any(column.drop for column in some(table).columns), "all stay on a narrow page"
    assert cells(table, "int8")[:3] == ["int8", "int32", "1211"]
    assert some(table).notes == (SHAPE, "highest: 1.98 GHz, data sheet: 1.83 GHz, 1.98 GHz for fp64 and fp32")


def test_the_longest_work_is_drawn() -> None:
    points = {seconds: tuple(float(place * seconds) / 10 for place in range(1, 11)) for seconds in (4, 30)}
    outcomes = [
        compute_evidence.figures(
            "gemm_sustained", {"burst": 8e14, "sustained": 7e14, "turn": seconds / 3}, dtype="bf16", duration_s=seconds,
            series=(Series("rate", points[seconds], (7e14,) * 10),),
        )
        for seconds in (30, 4)
    ]  # fmt: skip
    picture = some(rates_over_time(evidence(compute_evidence.made(*outcomes))))
    assert picture.lines[0].points[-1][0] == 30


def test_types_of_other_sizes_are_named() -> None:
    halved = (Fact("shape", "4096x4096x4096", source="halved until it fitted the 1000 B free"),)
    product = compute_evidence.product
    run = compute_evidence.made(product(0.9), product(0.9, dtype="int8", facts=halved), product(0.8, dtype="fp16"))
    table = some(by_type(evidence(run)))
    assert table.notes[0] == "rows x columns x depth: 8192x8192x8192; int8 4096x4096x4096"


def test_shares_are_left_out_where_their_ceiling_is_unknown() -> None:
    no_data_sheet = by_type(evidence(make_compute_run()))
    assert cells(no_data_sheet, "bf16")[4:6] == ["64.6 %", "–"]
    assert some(no_data_sheet).notes == (SHAPE, "highest: 1.98 GHz")
    no_architecture = by_type(evidence(with_gpu(lambda gpu: replace(gpu, compute_capability=(3, 5)), WHOLE)))
    assert cells(no_architecture, "bf16")[2:6] == ["692", "1.39 GHz", "–", "–"]
    assert some(no_architecture).notes == (SHAPE,)


def test_a_rate_above_its_ceiling_stands_out() -> None:
    slow = with_gpu(lambda gpu: replace(gpu, sm_clock_max_hz=1.0e9), WHOLE)
    assert some(by_type(evidence(slow))).rows[0][2].tone == "problem"


def test_without_cublaslt_another_library_says_its_name() -> None:
    table = by_type(evidence(without("gemm_throughput", WHOLE, library="cublaslt")))
    assert cells(table, "fp64 by CuPy")[2] == "60.7"


def test_rate_over_size_has_a_line_for_each_type_and_says_from_where_on_it_is_fed() -> None:
    assert over_size(evidence()) is None
    picture = some(over_size(evidence(FULL)))
    assert [line.name.split()[0] for line in picture.lines] == ["bf16", "fp8_e4m3_fast", "tf32", "fp64"]
    assert [x for x, _ in picture.lines[0].points] == [256, 512, 1024, 2048, 4096, 8192, 16384]
    assert [(mark.at, mark.text) for mark in picture.marks] == [(4096.0, "90 % from 4096 on")]


def test_libraries_stand_beside_cublaslt_with_its_candidate() -> None:
    table = some(by_library(evidence()))
    assert headings(table) == [
        "type", "cuBLASLt", "CuPy", "PyTorch", "cuBLASLt's fastest candidate",
    ]  # fmt: skip
    candidate = f"{made.CANDIDATE} guess 3"
    assert cells(table, "bf16") == ["bf16", "692", "–", "671 97.0 %, 95.1 %", candidate]
    assert cells(table, "fp64") == ["fp64", "61.0", "60.7 99.5 %, 97.5 %", "60.4 99.0 %, 97.0 %", candidate]
    assert made.CANDIDATE in drawn(suite_report("compute"))
    alone_there = without("gemm_throughput", without("gemm_throughput", WHOLE, library="torch"), library="cupy")
    assert by_library(evidence(alone_there)) is None


def test_the_fastest_product_has_its_shape_clock_power_energy_and_candidate() -> None:
    table = fastest(evidence())
    assert cells(table, "bf16") == [
        "bf16", "fp32", "8448x8192x16384", "732", "1.43 GHz 94.6 %", "693 W", "0.946 pJ/FLOP",
    ]  # fmt: skip
    assert some(table).notes == (f"bf16, fp8_e4m3_fast: {made.CANDIDATE}",)


def test_rate_and_clocks_over_time_are_shares_of_what_they_could_be() -> None:
    picture = some(rates_over_time(evidence()))
    assert [line.name for line in picture.lines] == [
        "rate, 100 % is 844 TFLOP/s", "SM clock, 100 % is 1.98 GHz", "NVML's clock",
    ]  # fmt: skip
    rate, clock, nvml = (line.points for line in picture.lines)
    assert rate[0][1] == pytest.approx(1, abs=0.02)
    assert rate[-1][1] == pytest.approx(1 / made.BURST_GAIN, rel=0.01)
    assert clock[-1][1] == pytest.approx(PRODUCTS["bf16"].clock_hz / made.SM_CLOCK_HZ, rel=0.01)
    assert nvml[-1][1] > clock[-1][1]
    assert [mark.text for mark in picture.marks] == ["half of the loss after 70.1 ms"]
    assert "accumulator fp32" in picture.about
    assert picture.y_ticks[-1].at > max(share for line in picture.lines for _, share in line.points)


def test_power_and_temperature_have_a_panel_of_their_own() -> None:
    picture = some(state_over_time(evidence()))
    assert [line.name for line in picture.lines] == [
        "power, 100 % is the limit of 700 W", "temperature, 100 % is 100 °C",
    ]  # fmt: skip
    unlimited = with_gpu(lambda gpu: replace(gpu, power_limit_w=None), WHOLE)
    lonely = some(state_over_time(evidence(unlimited)))
    assert [line.name for line in lonely.lines] == ["temperature, 100 % is 100 °C"]


def test_without_series_there_is_no_picture_of_them() -> None:
    def bare(one: Outcome) -> Outcome:
        return replace(one, series=())

    found = evidence(changed(bare, WHOLE))
    assert rates_over_time(found) is None
    assert state_over_time(found) is None


def test_shapes_are_points_under_this_runs_own_roofs() -> None:
    (picture,) = rooflines(evidence())
    by_name = {line.name: line for line in picture.lines}
    names = ["square products", "bandwidth-bound", "compute-bound"]
    assert list(by_name)[:3] == names
    assert all(by_name[name].kind == "points" for name in names)
    slope, flat = (line for line in picture.lines if line.kind == "limit")
    assert slope.name == "memory clock 2500 MHz x 2 x 6400 bit 4.00 TB/s"
    assert flat.name == "tensor_ceiling wgmma, sustained 858 TFLOP/s"
    assert slope.points[-1] == flat.points[0]
    bandwidth = slope.points[0][1] / slope.points[0][0]
    for name in names:
        for intensity, rate in by_name[name].points:
            assert rate <= min(intensity * bandwidth, flat.points[0][1]) * 1.01
    # 2 x 8192 operations for three bytes pairs: 2 n / 6.
    assert by_name["square products"].points[-1][0] == pytest.approx(8192 / 3)


def test_reads_of_this_run_are_the_roof_where_they_were_measured() -> None:
    both = make_compute_run(base=make_memory_run())
    (picture,) = rooflines(evidence(both))
    assert next(line for line in picture.lines if line.kind == "limit").name == "memory_stream read 3.76 TB/s"


def test_no_roof_no_roofline() -> None:
    unknown = with_gpu(lambda gpu: replace(gpu, memory_bus_bits=None), WHOLE)
    assert (rooflines(evidence(unknown)), len(shapes(evidence(unknown)))) == ([], 2)


def test_the_limits_of_the_shapes_are_one_table_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "CALL_S", 20e-6)
    small, large = shapes(evidence(make_compute_run()))
    assert small.title == "What limits products of a model of 7 billion parameters, bf16"
    assert headings(small) == ["rows", "out", "up"]
    assert cells(small, "1") == ["1", "launch 1.64×", "bandwidth 89 %"]
    assert cells(small, "512")[2] == "compute 79 %"
    assert cells(large, "512") == ["512", "compute 79 %", "compute 80 %"]


def test_data_are_held_against_normal_numbers() -> None:
    table = some(compute.data(evidence()))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["bf16", "normal", "692 TFLOP/s", "100 %", "1.39 GHz", "693 W", "1.00 pJ/FLOP"],
        ["bf16", "zeros", "802 TFLOP/s", "116 %", "1.61 GHz", "499 W", "0.622 pJ/FLOP"],
    ]
    no_power = some(compute.data(evidence(with_metrics("gemm_data", "rate", "sm_clock"))))
    assert cells(no_power, 0)[-2:] == ["–", "–"]
    assert len({row[0].text for row in getattr(compute.data(evidence(FULL)), "rows", ())}) == 4


def with_metrics(benchmark: str, *kept: str) -> Run:

    def change(one: Outcome) -> Outcome:
        if one.case.benchmark != benchmark:
            return one
        return replace(one, measurements=tuple(m for m in one.measurements if m.metric in kept))

    return changed(change, WHOLE)


def test_both_paths_to_the_tensor_cores_stand_side_by_side() -> None:
    table = alone(evidence())
    assert cells(table, "bf16") == ["bf16", "4088 99.8 %", "2715 66.3 %", "858 1.59 GHz", "939 1.74 GHz"]
    assert (cells(table, "fp64")[1:3], cells(table, "int8")[1]) == (["–", "256 99.8 %"], "8172 99.8 %")
    assert "fp16_acc16 in fp16" in some(table).notes[0]


def test_a_rate_of_the_faster_path_that_is_missing_is_not_replaced_by_the_slower_ones() -> None:
    gone = {"dtype": "bf16", "path": "wgmma", "load": "sustained"}

    def unmeasured(one: Outcome) -> Outcome:
        found = one.case.benchmark == "tensor_ceiling" and gone.items() <= one.case.params.items()
        return replace(one, measurements=()) if found else one

    table = alone(evidence(changed(unmeasured, WHOLE)))
    assert cells(table, "bf16")[3:] == ["–", "939 1.74 GHz"]


def test_alus_say_what_must_be_in_flight() -> None:
    table = compute.alus(evidence())
    assert cells(table, "fma_fp32") == ["fma_fp32", "252 FLOP/clk/SM 98.4 %", "65.9 TFLOP/s", "4 cycles", "16"]
    assert cells(table, "exp2_fp32") == ["exp2_fp32", "15.9 OP/clk/SM 99.3 %", "4.16 TOP/s", "18 cycles", "9"]
    without_latency = compute.alus(evidence(with_metrics("alu_ceiling", "rate", "per_clock")))
    assert cells(without_latency, "fma_fp32")[-2:] == ["–", "–"]


def test_many_limits_are_counted() -> None:
    assert "limit: 16 different ones" in study(WHOLE, "alu_ceiling").tables[-1].notes
    notes = study(WHOLE, "gemm_search").tables[-1].notes
    assert any(note.startswith("limit: 1071 TFLOP/s, tensor cores 4096") for note in notes)


def test_points_stand_alone_over_lines_and_have_signs_of_their_own() -> None:
    lines = (
        Line("roof", ((1.0, 5.0), (10.0, 5.0))),
        Line("these", ((1.0, 5.0), (10.0, 1.0)), kind="points"),
        Line("those", ((5.0, 3.0),), "second", kind="points"),
    )
    one = Curve("", "", "x", lines, (), (Mark(1.0, "1"), Mark(5.0, "5")), x_log=False, y_log=False)
    found, ascii_lines = (lines_of(curve(one, 40, 5, fine=fine)) for fine in (True, False))
    assert found[0].count("●") == 1  # on the roof, not hidden by it
    assert (found[4].count("●"), sum(line.count("◆") for line in found[:5])) == (1, 1)
    assert all(words in found[-1] for words in ("⠤⠤ roof", "● these   ◆ those"))
    assert ascii_lines[0].count("o") == 1
    assert ascii_lines[0].count("*") > 10
    assert "** roof   o these   + those" in ascii_lines[-1]


def test_halved_products_stand_where_they_were_measured() -> None:
    run = compute_evidence.made(
        compute_evidence.figures(
            "gemm_throughput", {"rate": 5e14}, work=Work(flops=2 * 4096**3), bound="gemm:bf16", dtype="bf16", size=8192,
            library="cublaslt",
        ),
        *(compute_evidence.shape(rows, 9e-6, 9e-6, 9e-6) for rows in (1, 16, 128, 512)),
    )  # fmt: skip
    (picture,) = rooflines(evidence(run))
    squares = next(line for line in picture.lines if line.name == "square products")
    assert squares.points[0][0] == pytest.approx(2 * 4096 / 6)

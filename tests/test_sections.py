"""The sections of the graph, link, memory and compute suites: words, order, missing figures, verdicts, and width."""

import pytest
import snapshots
from changed_run import bundled, changed, in_one_round, scaled, with_gpu, without
from link_evidence import SEVERAL
from make_link_run import make_link_run, two_switches
from make_run import make_run
from msgspec.structs import replace
from read_findings import evidence
from sections import cells, drawn, section, some, suite_report, widest

from microbench.core.bench import discover
from microbench.core.model import Outcome, Run
from microbench.report.document import Bars, Curve, Histogram, Table, TimeLine, Way
from microbench.report.sheets import view
from microbench.report.suites import compute, graph, link, memory, roofline
from microbench.report.terminal import terminal

SUITES = {"graph": graph, "link": link, "memory": memory, "compute": compute}
HOST, MEMORY, COMPUTE = (in_one_round(bundled(suite)) for suite in ("host", "memory", "compute"))


@pytest.mark.parametrize("suite", SUITES)
def test_the_words_of_a_section(suite: str) -> None:
    snapshots.same(f"section-{suite}", drawn(suite_report(suite), brief=True))


MADE = {"host": make_run(), "launch": make_run(), "link": SEVERAL}


@pytest.mark.parametrize("suite", MADE)
def test_the_words_and_tables_of_a_made_run(suite: str) -> None:
    report = view.build(MADE[suite])
    snapshots.same(f"made-{suite}", drawn(replace(report, sections=(section(report, suite),))))


@pytest.mark.parametrize(("suite", "kinds", "curves"), [
    ("graph", [Curve, Table, TimeLine, Bars, Bars, Bars, Bars], {"graph_lifecycle", "graph_shape"}),
    ("link", [Way, Curve, Curve, *[Table] * 3], set()),
    ("memory", [Table, Curve, Curve, Curve, Histogram, Curve, Table, Table, Table],
     {"memory_bulk", "memory_cluster", "memory_copy", "memory_conflicts", "memory_writes"}),
    ("compute", [*[Table] * 3, Curve, Curve, Curve, *[Table] * 5], set()),
])  # fmt: skip
def test_pictures_come_first_and_every_benchmark_has_its_table(suite: str, kinds: list[type], curves: set[str]) -> None:
    shown = section(suite_report(suite), suite)
    assert [type(picture) for picture in shown.pictures] == kinds
    with_table = [study.benchmark for study in shown.studies]
    assert with_table == [name for name in SUITES[suite].ORDER if name in with_table]
    assert set(SUITES[suite].ORDER) <= {one.name for one in discover().values() if one.suite == suite}
    assert {study.benchmark for study in shown.studies if study.curve is not None} == curves


@pytest.mark.parametrize("suite", SUITES)
def test_pictures_without_their_figures_are_left_out(suite: str) -> None:
    assert view.pictures(suite, evidence(HOST)) == []


@pytest.mark.parametrize(("width", "encoding"), [(60, "ascii"), (80, "utf-8"), (120, "ascii"), (200, "utf-8")])
@pytest.mark.parametrize("suite", SUITES)
def test_no_line_is_wider_than_the_page(suite: str, width: int, encoding: str) -> None:
    assert widest(drawn(suite_report(suite), width, encoding)) <= min(width, terminal.WIDEST)


@pytest.mark.parametrize("width", [60, 120])
def test_matrices_of_eight_gpus_fit_the_page(width: int) -> None:
    report = make_link_run(gpus=8, nodes=2, facts=two_switches())
    assert widest(drawn(report, width, "ascii")) <= width


@pytest.mark.parametrize(
    ("suite", "first_picture"),
    [("link", "The path to the GPU"), ("memory", "Streaming kernels on"), ("compute", "Square products by type")],
)
def test_the_verdict_stands_above_all_pictures(suite: str, first_picture: str) -> None:
    shown, text = section(suite_report(suite), suite), drawn(suite_report(suite))
    verdict = some(shown.verdict)
    assert verdict is shown.findings[0]
    at = [text.index(words) for words in (f"{suite}: ", verdict.title, first_picture)]
    assert at == sorted(at)
    assert section(suite_report("graph"), "graph").verdict is None


def test_a_figure_above_its_ceiling_stands_out_and_an_unknown_ceiling_gives_no_share() -> None:
    slow = evidence(with_gpu(MEMORY, lambda gpu: replace(gpu, memory_clock_max_hz=2e9)))
    assert some(memory.by_implementation(slow)).rows[0][1].tone == "problem"
    unknown = evidence(with_gpu(MEMORY, lambda gpu: replace(gpu, memory_bus_bits=None)))
    table = some(memory.by_implementation(unknown))
    assert (cells(table)[1].count("%"), table.notes) == (0, ())
    slow = evidence(with_gpu(COMPUTE, lambda gpu: replace(gpu, sm_clock_max_hz=0.6e9)))
    assert some(compute.by_type(slow)).rows[0][2].tone == "problem"
    unknown = evidence(with_gpu(COMPUTE, lambda gpu: replace(gpu, compute_capability=(3, 5))))
    assert cells(compute.by_type(unknown), "bf16")[4:6] == ["–", "–"]


def test_a_knee_at_the_reported_size_is_marked_once() -> None:
    def marks(run: Run) -> list[str]:
        return [mark.text for mark in some(memory.hierarchy(evidence(run))).marks]

    (held,) = (text for text in marks(MEMORY) if text.startswith("L2 to "))
    size_bytes = int(held.split()[2]) << 20
    near = with_gpu(MEMORY, lambda gpu: replace(gpu, l2_bytes=size_bytes + (1 << 20)))
    assert any(text.startswith("L2 is ") for text in marks(MEMORY))
    assert not any(text.startswith("L2 is ") for text in marks(near))


def test_latency_under_load_needs_several_loads() -> None:
    dram = without(MEMORY, "memory_loaded", level="l2")
    xs, ys = zip(*some(memory.under_load(evidence(dram))).lines[0].points, strict=True)
    assert (xs[0], list(xs)) == (0.0, sorted(xs))
    assert ys[-1] > 1.5 * ys[0]
    few = changed(dram, lambda one: None if one.case.params.get("load_percent", 100) not in (80, 100) else one)
    assert memory.under_load(evidence(few)) is None


def test_the_shape_in_words_goes_at_80_columns() -> None:
    assert "columns not shown at this width: shape of CUDA C++" in drawn(suite_report("memory"), 80)


def test_without_cublaslt_another_library_says_its_name() -> None:
    table = compute.by_type(
        evidence(without(without(COMPUTE, "gemm_throughput", library="cublaslt"), "gemm_throughput", library="torch"))
    )
    assert any(row[0].text == "fp64 by CuPy" for row in some(table).rows)
    alone = without(without(COMPUTE, "gemm_throughput", library="torch"), "gemm_throughput", library="cupy")
    assert compute.by_library(evidence(alone)) is None


def test_without_series_or_a_limit_their_lines_are_left_out() -> None:
    unlimited = evidence(with_gpu(COMPUTE, lambda gpu: replace(gpu, power_limit_w=None)))
    assert [line.name.split(",")[0] for line in some(roofline.state_over_time(unlimited)).lines] == ["temperature"]
    bare = evidence(changed(COMPUTE, lambda one: replace(one, series=())))
    assert (roofline.rates_over_time(bare), roofline.state_over_time(bare)) == (None, None)


def test_points_lie_under_this_runs_own_roofs_and_without_a_roof_there_is_no_roofline() -> None:
    (picture,) = roofline.rooflines(evidence(COMPUTE))
    slope, flat = (line for line in picture.lines if line.kind == "limit")
    assert slope.points[-1] == flat.points[0]
    bandwidth = slope.points[0][1] / slope.points[0][0]
    for line in picture.lines:
        for intensity, rate in line.points if line.kind == "points" else ():
            assert rate <= min(intensity * bandwidth, flat.points[0][1]) * 1.05
    both = replace(COMPUTE, benchmarks=(*COMPUTE.benchmarks, *MEMORY.benchmarks))
    both = replace(both, outcomes=(*COMPUTE.outcomes, *MEMORY.outcomes))
    (picture,) = roofline.rooflines(evidence(both))
    assert next(line for line in picture.lines if line.kind == "limit").name.startswith("memory_stream read 4.5")
    unknown = evidence(with_gpu(COMPUTE, lambda gpu: replace(gpu, memory_bus_bits=None)))
    assert (roofline.rooflines(unknown), len(roofline.shapes(unknown))) == ([], 2)


def test_a_launch_bound_product_says_by_how_much_its_call_is_longer() -> None:
    small = roofline.shapes(evidence(scaled(COMPUTE, "gemm_shapes", "call", 3, rows=1)))[0]
    assert all(cell.startswith("launch ") for cell in cells(small, "1")[1:])


def test_a_rate_of_the_faster_path_that_is_missing_is_not_replaced_by_the_slower_ones() -> None:
    def unmeasured(one: Outcome) -> Outcome:
        gone = {"dtype": "bf16", "path": "wgmma", "load": "sustained"}.items() <= one.case.params.items()
        return replace(one, measurements=()) if one.case.benchmark == "tensor_ceiling" and gone else one

    whole = cells(compute.alone(evidence(COMPUTE)), "bf16")
    assert whole[3] != "–"
    assert cells(compute.alone(evidence(changed(COMPUTE, unmeasured))), "bf16")[3:] == ["–", whole[4]]

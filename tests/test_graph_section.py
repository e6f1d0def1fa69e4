"""The graph suite's section: its pictures, its surface, and that nothing leaves the page."""

import io

import pytest
from make_graph_run import make_graph_run
from sections import drawn, headings, lines_of, some, study, suite_report

from microbench.analysis.evidence import Evidence, evidence_by_device
from microbench.core.bench import discover
from microbench.core.model import Run
from microbench.report.document import Curve, Line, Mark
from microbench.report.sheets import listing
from microbench.report.suites import graph
from microbench.report.terminal import terminal
from microbench.report.terminal.plots import curve

WHOLE = make_graph_run()


def evidence(run: Run = WHOLE) -> Evidence:
    return evidence_by_device(run)[0]


def test_speed_up_has_a_line_for_each_submitter_and_the_loops_crossovers() -> None:
    picture = some(graph.gain(evidence()))
    assert [line.name for line in picture.lines] == [
        "compiled loop", "cuda.core", "CuPy RawKernel", "Numba (configured before)", "PyTorch eager",
    ]  # fmt: skip
    assert [mark.text for mark in picture.marks] == ["1.5× at 2.22 µs", "1.1× at 8.61 µs", "1.05× at 17.1 µs"]
    assert (picture.x_ticks[0].text, picture.lines[0].points[0][1]) == ("empty", pytest.approx(4.79, rel=0.01))
    assert len({line.tone for line in picture.lines}) == 5


def test_the_surface_has_kernels_down_and_durations_across() -> None:
    table = some(graph.surface(evidence()))
    assert headings(table)[:3] == ["kernels", "empty", "1.50 µs"]
    assert ([row[0].text for row in table.rows], table.rows[2][1].text) == (["1", "10", "100", "1000"], "4.8×")
    assert (table.rows[2][1].tone, table.rows[0][-1].tone) == ("good", "quiet")
    assert table.rows[3][-1].text == "–"
    assert [column.drop for column in table.columns[1:3]] == [0, 0], "a graph gains most for the shortest kernels"
    assert table.columns[-1].drop == 0


def test_a_life_shows_slope_constant_and_misfit() -> None:
    picture = some(graph.life(evidence()))
    bar = next(bar for bar in picture.bars if bar.label == "instantiate")
    assert bar.value == pytest.approx(1.27e-6, rel=0.01)
    assert [cell.text for cell in bar.cells] == ["1.27 µs", "5.01 µs", "0.09 %", "0.14 %"]


def test_kinds_have_their_stream_as_the_paler_end() -> None:
    picture = some(graph.kinds(evidence()))
    bars = {bar.label: bar for bar in picture.bars}
    assert bars["empty kernel"].beyond == pytest.approx(1.36e-6, rel=0.01)
    assert bars["child graph"].beyond is None
    assert picture.bars[-1].label == "host function, on the host"
    iterations = some(graph.deciders(evidence()))
    assert len(iterations.bars) == 4


@pytest.mark.slow
def test_a_full_grid_fits_a_narrow_page_by_its_columns() -> None:
    lines = drawn(suite_report("graph", "full"), 80).splitlines()
    heads = [line for line in lines if line.startswith(" kernels  empty")]
    assert len(heads) == 1
    assert "201 µs" in heads[0]
    assert "30.0 µs" not in heads[0]


def test_figures_leave_their_spread_where_a_page_is_too_narrow_and_no_cell_breaks() -> None:
    lines = drawn(suite_report("graph"), 80).splitlines()
    row = next(line for line in lines if line.startswith(" stream_released"))
    assert row.split()[:2] == ["stream_released", "4"]
    assert "±" not in row
    wide = next(line for line in drawn(suite_report("graph")).splitlines() if line.startswith(" stream_released"))
    assert "±" in wide


def test_many_nodes_stand_side_by_side() -> None:
    table = study(WHOLE, "graph_lifecycle").tables[0]
    assert headings(table) == ["metric by nodes", "1", "10", "100", "1000", "10000"]
    assert [column.drop for column in table.columns] == [0, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("places", "expected"),
    [((2.0, 2.2, 2.4), ["a mark at 2.0", "a mark at 2.2", "a mark at 2.4"]), ((2.0, 2.4), ["a mark at 2.0 ┊"])],
)
def test_marks_keep_their_words_and_do_not_cross_another_where_a_side_is_free(
    places: tuple[float, ...], expected: list[str]
) -> None:
    marks = tuple(Mark(at, f"a mark at {at}") for at in places)
    one = Curve("", "", "", (Line("", ((1.0, 1.0), (4.0, 4.0))),), (), (Mark(1.0, "1"),), marks=marks)
    text = "\n".join(lines_of(curve(one, 60, 10, fine=True)))
    assert all(words in text for words in expected)


def test_the_catalogue_lists_every_kind_of_node_whole() -> None:
    benchmark = discover()["graph_nodes"]
    stream = io.StringIO()
    terminal.draw_tables([listing.axes_table(benchmark)], terminal.open_console(stream, 80))
    words = stream.getvalue().replace(",", " ").split()
    assert set(map(str, benchmark.axes["kind"].full)) <= set(words)

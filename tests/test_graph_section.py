"""The graph suite's section: its pictures, its surface, and that nothing leaves the page."""

import io

import pytest
from changed_run import bundled, in_one_round
from make_fake_run import make_fake_run
from sections import drawn, headings, lines_of, study, suite_report

from microbench.core.bench import discover
from microbench.gpu.fake.costs import FakeCosts
from microbench.report.document import Curve, Line, Mark
from microbench.report.sheets import listing
from microbench.report.terminal import terminal
from microbench.report.terminal.plots import curve

WHOLE = in_one_round(bundled("graph"))


@pytest.mark.slow
def test_a_full_grid_fits_a_narrow_page_by_its_columns() -> None:
    cases = [(case.benchmark, case.params) for case in discover()["graph_gain"].cases("full")]
    lines = drawn(make_fake_run(FakeCosts(), cases), 80).splitlines()
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
    text = "\n".join(lines_of(curve(one, 60, 10)))
    assert all(words in text for words in expected)


def test_the_catalogue_lists_every_kind_of_node_whole() -> None:
    benchmark = discover()["graph_nodes"]
    stream = io.StringIO()
    terminal.draw_tables([listing.axes_table(benchmark)], terminal.open_console(stream, 80))
    words = stream.getvalue().replace(",", " ").split()
    assert set(map(str, benchmark.axes["kind"].full)) <= set(words)

"""The sections of the graph, link, memory and compute suites: order, missing figures, verdicts, and width."""

from typing import Any

import pytest
from make_compute_run import MADE as COMPUTE
from make_graph_run import MADE as GRAPH
from make_link_run import MADE as LINK
from make_link_run import make_link_run, two_switches
from make_memory_run import MADE as MEMORY
from make_run import make_run
from sections import drawn, section, suite_report, widest

from microbench.analysis.evidence import evidence_by_device
from microbench.report.document import Bars, Curve, Histogram, Table, TimeLine, Way
from microbench.report.suites import compute, graph, link, memory
from microbench.report.terminal import terminal

SUITES = {"graph": graph, "link": link, "memory": memory, "compute": compute}


@pytest.mark.parametrize(
    ("suite", "measured", "kinds", "curves"),
    [
        ("graph", GRAPH, [Curve, Table, TimeLine, Bars, Bars, Bars, Bars], {"graph_lifecycle", "graph_shape"}),
        ("link", (*LINK, "link_state"), [Way, Curve, Curve, *[Table] * 3], set()),
        (
            "memory", MEMORY, [Table, Curve, Curve, Curve, Histogram, Curve, Table, Table, Table],
            {"memory_bulk", "memory_cluster", "memory_copy", "memory_conflicts", "memory_writes"},
        ),
        ("compute", COMPUTE, [*[Table] * 3, Curve, Curve, Curve, *[Table] * 5], set()),
    ],
)  # fmt: skip
def test_pictures_come_first_and_every_benchmark_has_its_table(
    suite: str, measured: Any, kinds: list[type], curves: set[str]
) -> None:
    shown = section(suite_report(suite), suite)
    assert [type(picture) for picture in shown.pictures] == kinds
    with_table = [study.benchmark for study in shown.studies]
    assert with_table == [name for name in SUITES[suite].ORDER if name in with_table]
    assert set(SUITES[suite].ORDER) == set(measured)
    assert {study.benchmark for study in shown.studies if study.curve is not None} == curves


@pytest.mark.parametrize(
    ("suite", "kinds"),
    [("link", [Way, Curve, Curve, Table, Table]), ("memory", [Table, Histogram, Table]), ("compute", [Table] * 2)],
)
def test_pictures_without_their_figures_are_left_out(suite: str, kinds: list[type]) -> None:
    assert SUITES[suite].pictures(evidence_by_device(make_run())[0]) == []
    assert [type(picture) for picture in section(suite_report(suite, "quick"), suite).pictures] == kinds


@pytest.mark.parametrize(("width", "encoding"), [(60, "ascii"), (80, "utf-8"), (120, "ascii"), (200, "utf-8")])
@pytest.mark.parametrize(
    ("suite", "preset"),
    [
        *((suite, "default") for suite in SUITES), ("memory", "full"),
        *(pytest.param(suite, "full", marks=pytest.mark.slow) for suite in ("graph", "link", "compute")),
    ],
)  # fmt: skip
def test_no_line_is_wider_than_the_page(suite: str, preset: str, width: int, encoding: str) -> None:
    assert widest(drawn(suite_report(suite, preset), width, encoding)) <= min(width, terminal.WIDEST)


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
    assert shown.verdict is shown.findings[0]
    at = [text.index(words) for words in (f"{suite}: ", shown.verdict.title, first_picture)]
    assert at == sorted(at)
    assert "SIMULATED" in text[at[1] : at[2]]
    assert all(one.verdict is None for one in (section(suite_report("graph"), "graph"),))

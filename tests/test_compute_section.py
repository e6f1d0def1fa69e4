"""The compute suite's section of the report: pictures, tables, and no line wider than the page."""

import compute_evidence
import pytest
from read_findings import evidence
from sections import lines_of, some

from microbench.core.model import Fact, Series, Work
from microbench.report.document import Curve, Line, Mark
from microbench.report.suites.compute import by_type
from microbench.report.suites.roofline import rates_over_time, rooflines
from microbench.report.terminal.plots import curve


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


def test_points_stand_alone_over_lines_and_have_signs_of_their_own() -> None:
    lines = (
        Line("roof", ((1.0, 5.0), (10.0, 5.0))),
        Line("these", ((1.0, 5.0), (10.0, 1.0)), kind="points"),
        Line("those", ((5.0, 3.0),), "second", kind="points"),
    )
    one = Curve("", "", "x", lines, (), (Mark(1.0, "1"), Mark(5.0, "5")), x_log=False, y_log=False)
    found = lines_of(curve(one, 40, 5))
    assert found[0].count("●") == 1  # on the roof, not hidden by it
    assert (found[4].count("●"), sum(line.count("◆") for line in found[:5])) == (1, 1)
    assert all(words in found[-1] for words in ("⠤⠤ roof", "● these   ◆ those"))
    assert found[0].count("⠉") > 10


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

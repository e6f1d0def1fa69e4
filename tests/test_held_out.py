"""The model on a real H200: it predicts steps that its fit never saw within limits."""

import csv
import sys
from io import StringIO
from pathlib import Path

import held_out
import pytest

from microbench.core.units import percent
from microbench.explain.graph_rules import foresight
from microbench.model.fit import fit
from microbench.model.forecast import Check, check

RECORDED = Path(__file__).parent / "data" / "held-out.json.xz"
TABLE = Path(held_out.__file__).parent / "measurements" / "held-out.csv"
LAYERS, WITHIN = ("loop", "cupy_raw", "numba_configured", "cuda_core"), 0.10


@pytest.fixture(scope="module")
def found() -> Check:
    evidence = held_out.evidence_of(RECORDED)
    return check(evidence, fit(evidence))


@pytest.mark.slow
def test_steps_that_the_fit_never_saw_are_predicted(found: Check) -> None:
    assert len(found.points) >= 60
    assert found.median <= 0.03
    assert found.most <= 0.10


@pytest.mark.slow
def test_intervals_hold_what_they_promise(found: Check) -> None:
    assert found.coverage >= 0.95
    assert found.half_width <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", held_out.CLASSES)
def test_intervals_hold_each_kind_of_step(found: Check, kind: str) -> None:
    """The worst are streams that the host paces from Python: 28 of 32."""
    points = [point for point in found.points if held_out.CLASSES[kind](point)]
    assert len(points) >= 8
    assert sum(point.covered for point in points) >= 0.85 * len(points)


@pytest.mark.slow
def test_every_point_is_of_a_kind(found: Check) -> None:
    kinds = [kind for kind in held_out.CLASSES if kind == "graphs" or kind.startswith("streams")]
    for point in found.points:
        assert [held_out.CLASSES[kind](point) for kind in kinds].count(True) == 1


@pytest.mark.slow
def test_the_fit_knows_no_length_of_the_grid_nor_size_of_a_copy(found: Check) -> None:
    for fitted, asked in (("duration_ns", "duration_ns"), ("size_bytes", "copy_bytes")):
        known = {int(value) for _, values in held_out.FITTED for value in values.get(fitted, ())}
        assert known
        assert not known & {point.row.params[asked] for point in found.points}
    evidence = held_out.evidence_of(RECORDED)
    assert not [row for one in fit(evidence).constants.values() for row in one.rests_on if row.startswith("step_time")]


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("way", ["stream", "graph"])
def test_a_step_of_1100_small_kernels_from_python(found: Check, layer: str, way: str) -> None:
    """Of rows that are not noisy: nobody knows how long the others take."""
    errors = [
        abs(point.error)
        for point in found.points
        if point.way == way and point.row.params["layer"] == layer and point.row.params["kernels"] == 1100
        and point.row.trust != "noisy"
    ]  # fmt: skip
    assert 1 <= len(errors) <= 2
    assert max(errors) <= WITHIN


@pytest.mark.slow
def test_the_finding_is_good_and_has_these_figures(found: Check) -> None:
    finding = foresight(held_out.evidence_of(RECORDED))
    assert (finding.rule, finding.severity) == ("graph.model", "good")
    for share in (found.median, found.most):
        assert percent(share) in finding.title + finding.text
    assert f"{sum(point.covered for point in found.points)} of {len(found.points)} lie" in finding.text


@pytest.mark.slow
def test_the_table_of_points_is_that_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    held_out.table(RECORDED)
    made = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    written = list(csv.DictReader(StringIO(TABLE.read_text())))
    assert len(made) == len(written)
    for new, old in zip(made, written, strict=True):
        assert [new[name] for name in held_out.AXES] == [old[name] for name in held_out.AXES]
        assert (new["way"], new["trust"], new["measured_s"]) == (old["way"], old["trust"], old["measured_s"])
        for name in ("predicted_s", "low_s", "high_s"):
            assert float(new[name]) == pytest.approx(float(old[name]), rel=0.01), (name, sys.version)
        assert float(new["error"]) == pytest.approx(float(old["error"]), abs=0.01), sys.version

"""Explains step_time: how far the model's predictions lie from measured steps that it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from microbench.analysis.evidence import Evidence, Finding, rests_on, whole
from microbench.analysis.stats import Row
from microbench.core.errors import UsageError
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import percent
from microbench.predict.constants import Fit, own_s
from microbench.predict.fit import fit, with_calls
from microbench.predict.forecast import Prediction, predict
from microbench.predict.model import WAYS, Way
from microbench.predict.workload import Copies, Kernels, Part, Wait, Workload

# What a prediction is good enough for: the median error, and what 95 % of the points are within.
GOOD_MEDIAN, GOOD_MOST = 0.03, 0.10


class Point(msgspec.Struct, frozen=True):
    """A measured step and what the model says of one of its pieces: they are alike, and each ends in a wait."""

    row: Row
    way: Way
    predicted: Prediction

    @property
    def pieces(self) -> int:
        """How many of them make the step."""
        return whole(self.row, "waits")

    @property
    def step_s(self) -> float:
        """What the model says of the whole step."""
        return self.pieces * self.predicted.step_s

    @property
    def error(self) -> float:
        """Predicted less measured, as a share of the measured."""
        return self.step_s / self.row.value - 1

    @property
    def covered(self) -> bool:
        """Whether the measured median lies within the prediction's interval."""
        return self.predicted.low_s <= self.row.value / self.pieces <= self.predicted.high_s


class Check(msgspec.Struct, frozen=True):
    """All points together, as shares: median and 95th percentile of the absolute errors, covered points, and the median
    of the intervals' half widths."""

    points: tuple[Point, ...]
    median: float
    most: float
    coverage: float
    half_width: float


def piece_of(evidence: Evidence, row: Row) -> Workload:
    """A piece of the step that a row of step_time measured. A spin kernel is told its length: one argument, an empty
    one none."""
    kernels, waits, copy_bytes = (whole(row, name) for name in ("kernels", "waits", "copy_bytes"))
    duration_ns = whole(row, "duration_ns")
    alike = Kernels(kernels // waits, (own_s(evidence, duration_ns),), arguments=1 if duration_ns else 0)
    piece: list[Part] = [alike]
    if copy_bytes:
        piece = [Copies("h2d", copy_bytes), *piece, Copies("d2h", copy_bytes)]
    return Workload((*piece, Wait()), layer=str(row.params.get("layer", LOOP_LAYER)))


def check(measured: Evidence, fitted: Fit) -> Check | None:
    """Every measured step of a run against the predictions of a fit, of this run or another's; None without steps."""
    points = tuple(_points(measured, fitted))
    if not points:
        return None
    errors = np.abs([point.error for point in points])
    return Check(
        points,
        float(np.median(errors)),
        float(np.percentile(errors, 95)),
        float(np.mean([point.covered for point in points])),
        float(np.median([point.predicted.half_width for point in points])),
    )


def _points(evidence: Evidence, fitted: Fit) -> Iterator[Point]:
    for way in WAYS:
        for row in (
            one
            for one in evidence.rows("step_time", way)
            if one.value > 0 and 0 < whole(one, "waits") <= whole(one, "kernels")
        ):
            workload = piece_of(evidence, row)
            try:
                yield Point(row, way, predict(workload, with_calls(fitted, workload), way))
            except UsageError:  # the fit lacks what this step needs
                continue


def foresight(evidence: Evidence) -> list[Finding]:
    """How far the model is off, over all steps of step_time."""
    if not evidence.rows("step_time"):
        return []
    found = check(evidence, fit(evidence))
    if found is None:
        return []
    good = found.median <= GOOD_MEDIAN and found.most <= GOOD_MOST
    return [
        Finding(
            rule="graph.model",
            severity="good" if good else "note",
            title=f"The model foresees {len(found.points)} measured steps within {percent(found.median)} in the median",
            text=(
                f"95 % of them within {percent(found.most)}; {percent(found.coverage)} lie in the predicted intervals, "
                f"whose median half width is {percent(found.half_width)}. Worst: {_worst(found.points)}."
            ),
            threshold=f"good: median within {percent(GOOD_MEDIAN)}, 95 % of the steps within {percent(GOOD_MOST)}",
            rests_on=rests_on(*(point.row for point in found.points)),
            suite="graph",
        )
    ]


def worst(points: Sequence[Point], count: int = 5) -> list[Point]:
    """The points that are furthest off, the worst first."""
    return sorted(points, key=lambda point: -abs(point.error))[:count]


def _worst(points: Sequence[Point]) -> str:
    (point,) = worst(points, 1)
    return f"{point.row.case_id} {point.way}, off by {percent(abs(point.error))}"

"""Checks the model: how far its predictions lie from the steps of step_time, which it was not fitted to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.core.errors import UsageError
from microbench.core.ops import LOOP_LAYER
from microbench.model.constants import Fit, by_layer, own_s
from microbench.model.fit import with_calls
from microbench.model.forecast import Prediction, predict
from microbench.model.model import WAYS, Way
from microbench.model.workload import Copies, Kernels, Part, Wait, Workload

# A good model keeps these limits: the median error, and the error that 95 % of the points stay within.
GOOD_MEDIAN, GOOD_MOST = 0.03, 0.10


class Point(msgspec.Struct, frozen=True):
    """A measured step and the prediction of one of its pieces, which are alike and each end in a wait."""

    row: Row
    way: Way
    predicted: Prediction

    @property
    def pieces(self) -> int:
        """How many pieces make the step."""
        return whole(self.row, "waits")

    @property
    def step_s(self) -> float:
        """The prediction for the whole step."""
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
        for row in itertools.chain.from_iterable(
            rows for _, rows in by_layer(evidence.rows("step_time", way), "layer")
        ):
            if row.value <= 0 or not 0 < whole(row, "waits") <= whole(row, "kernels"):
                continue
            # A piece of the step that a row of step_time measured. A spin kernel has its length as argument, an empty
            # one none.
            kernels, waits, copy_bytes = (whole(row, name) for name in ("kernels", "waits", "copy_bytes"))
            duration_ns = whole(row, "duration_ns")
            duration_s, arguments = own_s(evidence, duration_ns), 1 if duration_ns else 0
            piece: list[Part] = [Kernels(kernels // waits, (duration_s,), writes=False, arguments=arguments)]
            if copy_bytes:
                piece = [Copies("h2d", copy_bytes), *piece, Copies("d2h", copy_bytes)]
            workload = Workload((*piece, Wait()), layer=str(row.params.get("layer", LOOP_LAYER)), second_stream=True)
            try:
                yield Point(row, way, predict(workload, with_calls(fitted, workload), way))
            except UsageError:  # the fit lacks what this step needs
                continue

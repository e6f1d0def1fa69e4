"""The copies of a run, for all rules of the link: curves over size, the fit T = a + V / b, times at a size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from microbench.explain.evidence import Evidence
from microbench.fits import Line, line
from microbench.stats import Row

DIRECTIONS = {"h2d": "to the GPU", "d2h": "from the GPU"}
MEMORIES = {
    "pinned": "pinned",
    "pageable": "pageable",
    "write_combined": "write-combined",
    "registered": "registered",
}
DEVICE, HOST = "bandwidth", "bandwidth_host"

# Bytes of a copy, its rate.
Point = tuple[int, Row]


class CopyFit(NamedTuple):
    """T = a + V / b through the copies of one direction and kind of memory."""

    line: Line
    points: tuple[Point, ...]

    @property
    def fixed_s(self) -> float:
        """a: what a copy takes however small it is."""
        return self.line.constant

    @property
    def bandwidth(self) -> float:
        """b, in bytes a second."""
        return 1 / self.line.slope

    def size_for(self, share: float) -> float:
        """Bytes at which a copy reaches that share of b: half of it at a * b, 90 % at 9 * a * b."""
        return self.fixed_s * self.bandwidth * share / (1 - share)


def copies(evidence: Evidence, metric: str, direction: str, memory: str) -> list[Point]:
    """The rates over size, ascending."""
    found = evidence.curve("link_copy", metric, "size_bytes", direction=direction, memory=memory)
    return [(size, row) for size, row in found if size > 0 and row.value > 0]


def copy_fit(evidence: Evidence, metric: str, direction: str, memory: str) -> CopyFit | None:
    """The fit by relative least squares; None with too few sizes, or where time does not grow with size."""
    points = tuple(copies(evidence, metric, direction, memory))
    found = line((size, size / row.value) for size, row in points)
    return CopyFit(found, points) if found is not None and found.slope > 0 else None


def fastest(evidence: Evidence, direction: str, memory: str = "pinned", metric: str = DEVICE) -> Point | None:
    """The size with the highest rate."""
    return max(copies(evidence, metric, direction, memory), key=lambda point: point[1].value, default=None)


def seconds_at(points: Sequence[Point], size: int) -> float | None:
    """What a copy of that size takes: straight over the size between two measured ones, None outside of them.

    T = a + V / b is straight there; a curve that bends in between is met only roughly.
    """
    for (below, first), (above, second) in itertools.pairwise(points):
        if below <= size <= above:
            begin_s, end_s = below / first.value, above / second.value
            return begin_s + (end_s - begin_s) * (size - below) / (above - below)
    return next((size / row.value for measured, row in points if measured == size), None)

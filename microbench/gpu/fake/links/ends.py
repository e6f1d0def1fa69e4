"""The two ends of a simulated movement: a pattern at the source, poison at the destination, and what arrives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from microbench.errors import MeasurementError, Skip
from microbench.gpu.fake.costs import FakeCosts
from microbench.units import size

CHECKED = "SIMULATED: every byte that is kept compared"
KEPT_BYTES = 64
Bytes = npt.NDArray[np.uint8]


class Ends:
    """Source and destination of ``size_bytes``, of which the first KEPT_BYTES stand for all."""

    def __init__(self, costs: FakeCosts, size_bytes: int) -> None:
        self._arrives = costs.links.arrives
        self._seed = 0
        self.size_bytes = size_bytes
        self.source: Bytes = np.zeros(min(size_bytes, KEPT_BYTES), dtype=np.uint8)
        self.target: Bytes = self.source.copy()

    def fresh(self) -> None:
        """A new pattern at the source; every byte of the destination differs from it."""
        self._seed += 1
        self.source = np.random.default_rng(self._seed).integers(0, 256, len(self.source), dtype=np.uint8)
        self.target = ~self.source

    def move(self) -> None:
        """What one movement does to the destination."""
        if self._arrives == "lost":
            return
        self.target = self.source.copy()
        if self._arrives == "damaged":
            self.target[-1] ^= 0xFF

    def check(self) -> str:
        """See Transfer."""
        wrong = np.flatnonzero(self.target != self.source)
        if wrong.size:
            raise MeasurementError(f"SIMULATED: byte {wrong[0]} of {self.size_bytes} is not the one that was sent")
        return CHECKED


def require_host_memory(costs: FakeCosts, memory: str, size_bytes: int) -> None:
    """Raise Skip where so much host memory may not be taken."""
    limit_bytes = costs.links.host_memory_limit_bytes
    if size_bytes > limit_bytes:
        raise Skip(f"{size(size_bytes)} of {memory} memory asked, {size(limit_bytes)} may be taken (SIMULATED limit)")

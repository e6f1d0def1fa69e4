"""From values to pixels and back, as Vega does it: whoever places words has to know where lines run."""

from __future__ import annotations

import math
from typing import NamedTuple

FLAT = 1e-12
# Stands for 0 on a logarithmic scale, which has none.
LEAST = 1e-300


class Scale(NamedTuple):
    """Values from ``low`` to ``high`` over so many ``pixels``, evenly or by logarithm; 0 pixels is at ``low``."""

    low: float
    high: float
    pixels: float
    log: bool

    def to_pixels(self, value: float) -> float:
        """Where a value lies."""
        return (self._of(value) - self._of(self.low)) / self._length * self.pixels

    def to_value(self, pixels: float) -> float:
        """What lies there."""
        found = self._of(self.low) + self._length * pixels / self.pixels
        return 10.0**found if self.log else found

    @property
    def _length(self) -> float:
        return max(self._of(self.high) - self._of(self.low), FLAT)

    def _of(self, value: float) -> float:
        return math.log10(max(value, LEAST)) if self.log else value

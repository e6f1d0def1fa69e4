"""The energy counter of the simulated GPU: what idling draws, and what ended work took, shown in steps of time."""

from __future__ import annotations

import math

import numpy as np

from microbench.gpu.fake.memory_costs import MemoryCosts
from microbench.gpu.fake.stream import Batch

MOST_OPEN = 256


class EnergyCounter:
    """Joules since the simulated machine started. An item's energy counts from its end on."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._idle_power_w = costs.idle_power_w
        self._step_ns = costs.energy_step_s * 1e9
        self._work_j = 0.0
        self._open: list[Batch] = []

    def add(self, batch: Batch, now_ns: float) -> None:
        """Count a batch's items as they end."""
        self._open.append(batch)
        if len(self._open) > MOST_OPEN:
            self.shown_j(now_ns)

    def shown_j(self, now_ns: float) -> float:
        """What the counter shows: the energy up to its last step. Time must not run backwards between two looks."""
        until_ns = math.floor(now_ns / self._step_ns) * self._step_ns
        shown_j = self._work_j + self._idle_power_w * until_ns * 1e-9
        still_open: list[Batch] = []
        for batch in self._open:
            ended = 0 if batch.ends_ns is None else int(np.searchsorted(batch.ends_ns, until_ns, side="right"))
            shown_j += ended * batch.item.energy_j
            if ended == len(batch.arrivals_ns):
                self._work_j += ended * batch.item.energy_j
            else:
                still_open.append(batch)
        self._open = still_open
        return shown_j

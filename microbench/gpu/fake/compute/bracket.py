"""Kernels that read the simulated SMs' clock before and behind a region of stream 0."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Batch, Item


class FakeBracket:
    """See ClockBracket."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._first: Batch | None = None
        self._last: Batch | None = None

    def begin(self) -> None:
        """See ClockBracket."""
        self._first = self._put()

    def end(self) -> None:
        """See ClockBracket."""
        self._last = self._put()

    def hz(self) -> float:
        """See ClockBracket."""
        if self._first is None or self._last is None or self._first.ends_ns is None or self._last.ends_ns is None:
            raise MeasurementError("both kernels must have ended before the clock between them is asked for")
        machine = self._machine
        mean_hz = machine.device.governor.mean_hz(float(self._first.ends_ns[0]), float(self._last.ends_ns[0]))
        return float(np.median(machine.noise.device(mean_hz, machine.costs.sm_count)))

    def _put(self) -> Batch:
        machine, costs = self._machine, self._machine.costs
        machine.check(self._scope)
        item = Item(gap_ns=costs.gap_stream_ns, duration_ns=costs.empty_kernel_ns, traffic=costs.traffic["launch"])
        return machine.make(Call(costs.submit_ns, item), 1).batches[0]

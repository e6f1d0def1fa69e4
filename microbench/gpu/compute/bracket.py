"""The mean SM clock of what runs between two tiny kernels, each SM reading its own counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.errors import MeasurementError
from microbench.gpu.graphs.base import Case
from microbench.gpu.stamps import NANOSECOND_S, alone_on_its_sm
from microbench.gpu.submit import DriverSubmit, Parameters, launch
from microbench.ops import Launch

# Tick of kernels/clock_bracket.cu.
TICKS = np.dtype([("clock", "u8"), ("time_ns", "u8"), ("sm", "u4"), ("unused", "u4")])
Ticks = npt.NDArray[Any]


class Bracket:
    """See ClockBracket of compute_api.py. After one call of each, ``begin`` and ``end`` only launch."""

    def __init__(self, case: Case, sm_count: int) -> None:
        self._context, self._blocks = case.context, sm_count
        function = case.modules.function("clock_bracket", "tick")
        shared_bytes = alone_on_its_sm(case, function)
        self._ticks = [case.context.device_memory(TICKS.itemsize * sm_count) for _ in range(2)]
        # One warp an SM; the shared memory keeps further ones off.
        shape = Launch(grid_blocks=sm_count, block_threads=32)
        self._begin, self._end = (self._launch(case, function, shape, ticks, shared_bytes) for ticks in self._ticks)

    @staticmethod
    def _launch(case: Case, function: int, shape: Launch, ticks: int, shared_bytes: int) -> DriverSubmit:
        return launch(function, shape, case.stream(0), Parameters([(ticks,)]), shared_bytes=shared_bytes)

    def begin(self) -> None:
        """See ClockBracket."""
        self._begin(1)

    def end(self) -> None:
        """See ClockBracket."""
        self._end(1)

    def hz(self) -> float:
        """See ClockBracket. SMs that only one of the kernels saw do not count."""
        first, last = (self._context.read(ticks, self._blocks, TICKS) for ticks in self._ticks)
        return clock_hz(first, last)


def clock_hz(first: Ticks, last: Ticks) -> float:
    """Median over the SMs in both of clock cycles over time. Raises MeasurementError where no time passed on any."""
    _, here, there = np.intersect1d(first["sm"], last["sm"], return_indices=True)
    elapsed_ns = last["time_ns"][there].astype(np.int64) - first["time_ns"][here].astype(np.int64)
    cycles = last["clock"][there].astype(np.int64) - first["clock"][here].astype(np.int64)
    ran = elapsed_ns > 0
    if not ran.any():
        raise MeasurementError("the clock kernels before and after the work have no SM and no time in common")
    return float(np.median(cycles[ran] / elapsed_ns[ran])) / NANOSECOND_S

"""Power under a load that lasts, from the GPU's own energy counter: joules a second, a byte, an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from microbench.errors import MeasurementError
from microbench.gpu.api import SAFE_QUEUE_SLOTS, Gpu, Submit
from microbench.model import Measurement
from microbench.sampling import now_s
from microbench.timing import Meter

# The counter moves every 100 ms: over 2 s between two of its steps the readings are off by less than a percent.
WINDOW_S = 2.0
BATCH_S = 0.05
POLL_S = 5e-3
WAIT_FOR_STEP_S = 1.0
SETTLING_S = 0.2


class Reading(NamedTuple):
    """The energy counter right after one of its steps, and when that was on the host's clock."""

    energy_j: float
    at_s: float


class _Load:
    """Keeps the GPU at work, or idle where nothing is submitted; ``calls`` made so far."""

    def __init__(self, gpu: Gpu, submit: Submit | None, one_s: float) -> None:
        self._gpu = gpu
        self._submit = submit
        self._one_s = one_s
        self._slots = (submit.queue_slots if submit else None) or SAFE_QUEUE_SLOTS
        self.calls = 0

    def step(self, seconds: float) -> None:
        """About so long of it, to its end."""
        if self._submit is None:
            self._gpu.pause(seconds)
            return
        batch = min(max(round(seconds / self._one_s), 1), self._slots)
        self._submit(batch)
        self.calls += batch
        self._gpu.synchronize_stream()


def power(meter: Meter, submit: Submit | None, one_s: float, work_per_call: int) -> Iterator[Measurement]:
    """Metric ``power`` over WINDOW_S of back-to-back calls, or of nothing where ``submit`` is None; ``energy`` for
    each byte or operation of ``work_per_call``.

    Energy is power over the rate of the same window. Raises Skip where the GPU counts no energy.
    """
    gpu, load = meter.gpu, _Load(meter.gpu, submit, one_s)
    _run(meter, load, SETTLING_S)
    first = _after_step(meter, load)
    begun_s, begun_calls = now_s(meter.clock), load.calls
    _run(meter, load, WINDOW_S)
    rate = (load.calls - begun_calls) / (now_s(meter.clock) - begun_s)
    last = _after_step(meter, load)
    gpu.synchronize()
    power_w = (last.energy_j - first.energy_j) / (last.at_s - first.at_s)
    yield meter.counted("power", (power_w,))
    if submit is not None:
        yield meter.counted("energy", (power_w / (rate * work_per_call),))


def _run(meter: Meter, load: _Load, seconds: float) -> None:
    until_s = now_s(meter.clock) + seconds
    while now_s(meter.clock) < until_s:
        load.step(BATCH_S)


def _after_step(meter: Meter, load: _Load) -> Reading:
    """Work on until the counter has moved. Raises MeasurementError where it does not."""
    before = meter.gpu.energy_j()
    given_up_s = now_s(meter.clock) + WAIT_FOR_STEP_S
    while now_s(meter.clock) < given_up_s:
        load.step(POLL_S)
        now = meter.gpu.energy_j()
        if now > before:
            return Reading(now, now_s(meter.clock))
    raise MeasurementError(f"the energy counter did not move in {WAIT_FOR_STEP_S:g} s")

"""Power under a load that lasts, from the GPU's own energy counter: joules a second, a byte, an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import MeasurementError
from microbench.core.model import Measurement
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Gpu
from microbench.gpu.protocol.submit import Submit
from microbench.measure.sampling import NANOSECOND_S, kept, now_s
from microbench.measure.timer import Meter

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


# PCIe traffic of submitted work, by the GPU's own byte counters.


IDLE_S = 0.05
OWN_READINGS = 10


def idle_traffic(meter: Meter, received: str, sent: str) -> list[Measurement]:
    """PCIe bytes per second while nothing is submitted, to and from the GPU, less the reading's own."""
    return _counted(meter, {received: 1, sent: 0}, lambda: meter.gpu.pause(IDLE_S), 1, per_second=True)


def traffic(
    meter: Meter, received: str, sent: str, submit: Submit, count: int, calls: int | None = None
) -> list[Measurement]:
    """PCIe bytes to and from the GPU for each of ``count`` calls (or ``calls``, such as the payload's bytes), less
    what flows when idle and less the reading's own."""

    def work() -> None:
        submit(count)
        meter.gpu.synchronize()

    work()
    return _counted(meter, {received: 1, sent: 0}, work, calls or count)


def _counted(
    meter: Meter, metrics: Mapping[str, int], work: Callable[[], None], calls: int, *, per_second: bool = False
) -> list[Measurement]:
    own, idle = _overhead(meter)
    coarse = meter.gpu.pcie_bytes().coarse

    def take() -> FloatArray:
        before, begin_ns = meter.gpu.pcie_bytes(), meter.clock.now_ns()
        work()
        elapsed_s = (meter.clock.now_ns() - begin_ns) * NANOSECOND_S
        after = meter.gpu.pcie_bytes()
        moved = np.array([after.sent - before.sent, after.received - before.received], dtype=np.float64) - own
        return moved / elapsed_s if per_second else moved - idle * elapsed_s

    def column(index: int) -> Callable[[FloatArray], Sequence[float]]:
        return lambda moved: (float(moved[index]),)

    samples, stopped = meter.sampler.sample({name: column(index) for name, index in metrics.items()}, take, calls, None)
    verified = None if coarse else "32-bit counters of the GPU, differences modulo wrap"
    return [
        Measurement(
            metric=name,
            clock="counter",
            samples=kept(values),
            n=len(values),
            calls_per_sample=calls,
            verified=verified,
            needs_verification=True,
            stopped=stopped,
        )
        for name, values in samples.items()
    ]


def _overhead(meter: Meter) -> tuple[FloatArray, FloatArray]:
    """What one reading moves by itself, in bytes, and what flows when idle, in bytes a second: (sent, received)."""
    readings = [meter.gpu.pcie_bytes() for _ in range(OWN_READINGS + 1)]
    counts = np.array([(one.sent, one.received) for one in readings], dtype=np.float64)
    own = np.median(np.diff(counts, axis=0), axis=0)
    before, begin_ns = meter.gpu.pcie_bytes(), meter.clock.now_ns()
    meter.gpu.pause(IDLE_S)
    elapsed_s = (meter.clock.now_ns() - begin_ns) * NANOSECOND_S
    after = meter.gpu.pcie_bytes()
    moved = np.array([after.sent - before.sent, after.received - before.received], dtype=np.float64)
    return own, np.maximum(moved - own, 0.0) / elapsed_s

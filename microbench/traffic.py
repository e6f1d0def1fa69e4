"""PCIe traffic of submitted work, by the GPU's own byte counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microbench.gpu.api import Submit
from microbench.model import Measurement
from microbench.sampling import NANOSECOND_S, kept
from microbench.stats import FloatArray
from microbench.timing import Meter

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

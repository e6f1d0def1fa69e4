"""Measures power and energy with the GPU's energy counter, and PCIe traffic with its byte counters."""

from collections.abc import Callable, Iterator

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import MeasurementError
from microbench.core.model import Measurement
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Submit
from microbench.meter.sampling import NANOSECOND_S, Sample, now_s
from microbench.meter.timer import Meter

# The energy counter moves every 100 ms: two readings 2 s apart, each taken at a step, are off by less than a percent.
WINDOW_S = 2.0
BATCH_S = 0.05
POLL_S = 5e-3
WAIT_FOR_STEP_S = 1.0
SETTLING_S = 0.2

IDLE_S = 0.05
OWN_READINGS = 10


def power(meter: Meter, submit: Submit | None, one_s: float, work_per_call: int) -> Iterator[Measurement]:
    """Metric ``power`` over WINDOW_S of back-to-back calls (of an idle GPU if ``submit`` is None) and metric ``energy``
    of each byte or operation of ``work_per_call``; ``one_s`` is the time of a call.

    Energy is power divided by the rate of the same window. Raises Skip if the GPU has no energy counter.
    """
    gpu, calls = meter.gpu, 0
    most = (submit.queue_slots if submit else None) or SAFE_QUEUE_SLOTS

    def work(seconds: float) -> None:
        nonlocal calls
        if submit is None:
            gpu.pause(seconds)
            return
        batch = min(max(round(seconds / one_s), 1), most)
        submit(batch)
        calls += batch
        gpu.synchronize_stream()

    def work_for(seconds: float) -> None:
        until_s = now_s(meter.clock) + seconds
        while now_s(meter.clock) < until_s:
            work(BATCH_S)

    def next_step() -> tuple[float, float]:
        """Joules right after the counter's next step, and the time of it on the host's clock."""
        before_j = gpu.energy_j()
        until_s = now_s(meter.clock) + WAIT_FOR_STEP_S
        while now_s(meter.clock) < until_s:
            work(POLL_S)
            energy_j = gpu.energy_j()
            if energy_j > before_j:
                return energy_j, now_s(meter.clock)
        raise MeasurementError(f"the energy counter did not move in {WAIT_FOR_STEP_S:g} s")

    work_for(SETTLING_S)
    first_j, first_s = next_step()
    begin_s, begin_calls = now_s(meter.clock), calls
    work_for(WINDOW_S)
    rate = (calls - begin_calls) / (now_s(meter.clock) - begin_s)
    last_j, last_s = next_step()
    gpu.synchronize()
    power_w = (last_j - first_j) / (last_s - first_s)
    yield meter.counted("power", (power_w,))
    if submit is not None:
        yield meter.counted("energy", (power_w / (rate * work_per_call),))


def idle_traffic(meter: Meter, received: str, sent: str) -> list[Measurement]:
    """PCIe bytes a second to and from the idle GPU, without those of the readings."""
    return _traffic(meter, received, sent, lambda: meter.gpu.pause(IDLE_S), 1, per_second=True)


def traffic(
    meter: Meter, received: str, sent: str, submit: Submit, count: int, calls: int | None = None
) -> list[Measurement]:
    """PCIe bytes to and from the GPU for each of ``count`` calls (or of ``calls``, such as the payload's bytes).

    Idle traffic and the traffic of the readings are subtracted.
    """

    def work() -> None:
        submit(count)
        meter.gpu.synchronize()

    work()
    return _traffic(meter, received, sent, work, calls or count)


def _traffic(
    meter: Meter, received: str, sent: str, work: Callable[[], None], calls: int, *, per_second: bool = False
) -> list[Measurement]:
    gpu = meter.gpu

    def timed(work: Callable[[], None]) -> tuple[FloatArray, float]:
        """Bytes sent and received during ``work``, and its seconds."""
        before, begin_ns = gpu.pcie_bytes(), meter.clock.now_ns()
        work()
        elapsed_s = (meter.clock.now_ns() - begin_ns) * NANOSECOND_S
        after = gpu.pcie_bytes()
        return np.array([after.sent - before.sent, after.received - before.received], dtype=np.float64), elapsed_s

    readings = [gpu.pcie_bytes() for _ in range(OWN_READINGS + 1)]
    totals = np.array([(reading.sent, reading.received) for reading in readings], dtype=np.float64)
    own = np.median(np.diff(totals, axis=0), axis=0)
    moved, idle_s = timed(lambda: gpu.pause(IDLE_S))
    idle = np.maximum(moved - own, 0.0) / idle_s
    coarse = gpu.pcie_bytes().coarse

    def take() -> Sample:
        moved, elapsed_s = timed(work)
        taken = (moved - own) / elapsed_s if per_second else moved - own - idle * elapsed_s
        return {received: float(taken[1]), sent: float(taken[0])}

    return meter.collect_each(
        (received, sent),
        take,
        clock="counter",
        calls=calls,
        verified=None if coarse else "32-bit counters of the GPU, differences modulo wrap",
        needs_verification=True,
    )

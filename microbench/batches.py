"""Batches of a product's calls: until the clock has settled, and behind a gate with the SM clock around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from microbench.gpu.api import SAFE_QUEUE_SLOTS
from microbench.gpu.compute_api import ClockBracket, Gemm
from microbench.model import Measurement
from microbench.sampling import now_s
from microbench.timing import Meter
from microbench.transfers import warm_s

SAMPLE_S = 5e-3
MOST_CALLS = 100
# Random data pull an H200's clock down within 70 to 120 ms of steady work: a shorter warm-up would measure the fall.
WARM_S = 0.15
# A product takes some of the launch queue's slots: splits of the depth are added up by kernels of their own.
SLOTS_PER_CALL = 4


def most_queued(gemm: Gemm) -> int:
    """Calls that may stand behind a gate."""
    return min(MOST_CALLS, (gemm.submit.queue_slots or SAFE_QUEUE_SLOTS) // SLOTS_PER_CALL)


def tell(meter: Meter, calls: int) -> None:
    """A sign of life, which no metric is shown for: what comes before the first sample may take a minute."""
    meter.sampler.tick("trial", calls, 0.0)


def warm(meter: Meter, gemm: Gemm, seconds: float = WARM_S) -> float:
    """Work until the clock has settled; seconds of one call then."""
    one_s = warm_s(gemm)
    began_s = now_s(meter.clock)
    while now_s(meter.clock) - began_s < seconds:
        gemm.submit(min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm)))
        meter.gpu.synchronize_stream()
        tell(meter, 1)
    one_s = warm_s(gemm)
    tell(meter, 2)
    return one_s


def as_clock(measured: Measurement) -> Measurement:
    """A clock beside a time: counted by the SMs, of a whole sample."""
    return msgspec.structs.replace(measured, clock="counter", calls_per_sample=1, floor_s=None, resolution=None)


def bracketed(
    meter: Meter, gemm: Gemm, bracket: ClockBracket, count: int, name: str
) -> Callable[[], Mapping[str, float]]:
    """What times ``count`` calls behind a gate and the SM clock meanwhile; nothing where the gate was late."""
    gpu, gate, events = meter.gpu, meter.gpu.gate(), meter.gpu.events()
    bracket.begin()  # loads its code, which a shut gate would wait for
    bracket.end()
    gpu.synchronize()

    def take() -> Mapping[str, float]:
        gate.shut()
        bracket.begin()
        events.start()
        gemm.submit(count)
        events.stop()
        bracket.end()
        gate.open()
        gpu.synchronize()
        return {} if gate.was_late() else {name: events.elapsed_s(), "sm_clock": bracket.hz()}

    return take

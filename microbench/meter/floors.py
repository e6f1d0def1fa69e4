"""Measures the floors of a session: the shortest time that each way of timing can resolve."""

import statistics
from itertools import pairwise

import msgspec
import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import Floors
from microbench.core.ops import Launch, SynchronizeIdle
from microbench.gpu.protocol.gpu import Gpu, Host
from microbench.meter.sampling import NANOSECOND_S, clock_step_ns

STAMPS = 10_000
REPEATS = 30
CALLS = 100


def host_floors(host: Host) -> Floors:
    """Step and cost of the host's clock, from readings with nothing between them.

    The cost is the median time of a reading, or the mean if the clock's step is longer than a reading.
    """
    host.clock_stamps(STAMPS)  # compiles the loop, warms the cache
    stamps_ns = host.clock_stamps(STAMPS)
    between_ns = np.diff(stamps_ns)
    step_ns = clock_step_ns(stamps_ns)
    call_ns = float(np.median(between_ns)) or float(stamps_ns[-1] - stamps_ns[0]) / len(between_ns)
    return Floors(
        timer_step_s=step_ns * NANOSECOND_S if step_ns else None,
        timer_call_s=call_ns * NANOSECOND_S if call_ns > 0 else None,
    )


def measure_floors(host: Host, gpu: Gpu | None = None) -> Floors:
    """The host's floors and, with a GPU, those of its ways of timing, as medians of REPEATS; None if unknown."""
    floors = host_floors(host)
    if gpu is None:
        return floors
    with gpu.case():
        readings_s = _event_readings_s(gpu)
        distinct_s = sorted({round(reading_s, 9) for reading_s in readings_s})  # a reading is a float of milliseconds
        return msgspec.structs.replace(
            floors,
            empty_submit_s=_call_s(gpu, Launch()),
            event_pair_s=round(statistics.median(readings_s), 12) if readings_s else None,
            event_step_s=min((round(after - before, 9) for before, after in pairwise(distinct_s)), default=None),
            idle_sync_s=_call_s(gpu, SynchronizeIdle("stream")),
        )


def _call_s(gpu: Gpu, op: Launch | SynchronizeIdle) -> float | None:
    """Host time of one call, from bursts with the GPU idle before each; None if the GPU does not support the call."""
    try:
        submit = gpu.bind(op)
    except Skip:
        return None
    bursts_ns = []
    for _ in range(REPEATS + 1):
        gpu.synchronize()
        bursts_ns.append(submit.burst_ns(CALLS))
    gpu.synchronize()
    return statistics.median(bursts_ns[1:]) / CALLS * NANOSECOND_S  # the first one loads the kernel


def _event_readings_s(gpu: Gpu) -> list[float]:
    """Times between two events with nothing between them, queued behind a gate; REPEATS readings."""
    gate, events = gpu.gate(), gpu.events()
    readings_s = []
    for _ in range(REPEATS):
        gate.shut()
        events.start()
        events.stop()
        gate.open()
        gpu.synchronize()
        if not gate.was_late():
            readings_s.append(events.elapsed_s())
    return readings_s

"""Measures instructions without memory traffic: rates of tensor cores and ALUs by the SMs' own clocks, and latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from microbench.core.model import Measurement, Work
from microbench.gpu.protocol.compute import Chain, Resident
from microbench.meter.sampling import NANOSECOND_S, now_s
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified
from microbench.meter.tuning import as_clock

BURST_S = 1e-3
# The GPU rests before each burst, so that a burst runs at the clock of an idle GPU.
REST_S = 0.05
LASTING_S = 0.02
# Tensor work pulls an H200's clock down within 70 to 120 ms.
SETTLING_S = 0.4
FIRST_REPEATS = 64
CHAIN_S = 2e-4
CHAIN_REPEATS = 16


def instruction_rate(
    meter: Meter, unit: Resident, integer: bool, bound: str, load: Literal["plain", "burst", "sustained"] = "plain"
) -> Iterator[Measurement]:
    """Rate, rate of a clock cycle and SM, and SM clock.

    ``plain``: launches of BURST_S back to back; ``burst``: each of them after REST_S of rest; ``sustained``: launches
    of LASTING_S back to back, after SETTLING_S of them.
    """
    unit.take(FIRST_REPEATS)  # the first launch loads the code
    wanted_s = LASTING_S if load == "sustained" else BURST_S
    repeats = max(round(FIRST_REPEATS * wanted_s / max(unit.take(FIRST_REPEATS).seconds, NANOSECOND_S)), 1)
    if load == "sustained":
        until_s = now_s(meter.clock) + SETTLING_S
        while now_s(meter.clock) < until_s:
            unit.take(repeats)
    names = ("integer_rate", "integer_per_clock") if integer else ("rate", "per_clock")

    def take() -> Mapping[str, float]:
        if load == "burst":
            meter.gpu.pause(REST_S)
        taken = unit.take(repeats)
        return {names[0]: taken.seconds, names[1]: taken.cycles, "sm_clock": taken.clock_hz}

    def work(operations: int) -> Work:
        return Work(operations=operations) if integer else Work(flops=operations)

    measured = meter.collect_each((*names, "sm_clock"), take, clock="device", calls=repeats)
    rate, per_clock, clock = verified(measured, unit.check())
    yield msgspec.structs.replace(rate, work=work(unit.operations * unit.sms), bound=bound)
    yield msgspec.structs.replace(per_clock, work=work(unit.operations), bound=f"{bound}_per_clock", resolution=1.0)
    yield as_clock(clock)


def chain_latency(meter: Meter, chain: Chain) -> Measurement:
    """Metric ``latency``: SM clock cycles from an instruction to the next one, which needs its result."""
    first = chain.take(CHAIN_REPEATS)
    repeats = max(round(CHAIN_REPEATS * CHAIN_S / max(first.seconds, NANOSECOND_S)), CHAIN_REPEATS)
    return meter.collect(
        "latency",
        lambda: (chain.take(repeats).cycles,),
        clock="device",
        calls=repeats * chain.instructions,
        resolution=1.0,
    )

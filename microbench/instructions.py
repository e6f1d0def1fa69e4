"""Instructions without traffic: rates of tensor cores and ALUs by the SMs' own clocks, latency of one instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from microbench.batches import as_clock
from microbench.gpu.api import Gpu
from microbench.gpu.compute_api import Chain, Resident, UnitPass
from microbench.model import Measurement, Work
from microbench.sampling import NANOSECOND_S
from microbench.timing import Meter
from microbench.transfers import verified

BURST_S = 1e-3
# Between bursts the GPU rests: what a burst finds is the clock of a GPU that was not at work.
REST_S = 0.05
LASTING_S = 0.02
# Tensor work pulls an H200's clock down within 70 to 120 ms.
SETTLING_S = 0.4
FIRST_REPEATS = 64
CHAIN_S = 2e-4
CHAIN_REPEATS = 16


def burst_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """Rate, rate a clock cycle and SM, and clock of launches of BURST_S after REST_S of rest each."""
    repeats = _repeats(unit, BURST_S)

    def rest_and_run() -> UnitPass:
        meter.gpu.pause(REST_S)
        return unit.take(repeats)

    yield from _rates(meter, unit, rest_and_run, repeats, integer, bound)


def lasting_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """The same of launches of LASTING_S back to back, after SETTLING_S of them."""
    repeats = _repeats(unit, LASTING_S)
    _settle(meter.gpu, unit, repeats)
    yield from _rates(meter, unit, lambda: unit.take(repeats), repeats, integer, bound)


def plain_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """The same of launches of BURST_S, one after the other."""
    repeats = _repeats(unit, BURST_S)
    yield from _rates(meter, unit, lambda: unit.take(repeats), repeats, integer, bound)


def chain_latency(meter: Meter, chain: Chain) -> Measurement:
    """Metric ``latency``: SM clock cycles from an instruction to the one that waits for its result."""
    first = chain.take(CHAIN_REPEATS)
    repeats = max(round(CHAIN_REPEATS * CHAIN_S / max(first.seconds, NANOSECOND_S)), CHAIN_REPEATS)

    def take() -> tuple[float, ...]:
        return (chain.take(repeats).cycles,)

    return meter.collect("latency", take, clock="device", calls=repeats * chain.instructions, resolution=1.0)


def _repeats(unit: Resident, seconds: float) -> int:
    """How many repetitions take so long."""
    unit.take(FIRST_REPEATS)  # the first launch loads the code
    return max(round(FIRST_REPEATS * seconds / max(unit.take(FIRST_REPEATS).seconds, NANOSECOND_S)), 1)


def _settle(gpu: Gpu, unit: Resident, repeats: int) -> None:
    began_ns = gpu.clock.now_ns()
    while (gpu.clock.now_ns() - began_ns) * NANOSECOND_S < SETTLING_S:
        unit.take(repeats)


def _rates(
    meter: Meter, unit: Resident, run: Callable[[], UnitPass], repeats: int, integer: bool, bound: str
) -> Iterator[Measurement]:
    names = ("integer_rate", "integer_per_clock") if integer else ("rate", "per_clock")

    def take() -> Mapping[str, float]:
        taken = run()
        return {names[0]: taken.seconds, names[1]: taken.cycles, "sm_clock": taken.clock_hz}

    found = meter.collect_each((*names, "sm_clock"), take, clock="device", calls=repeats)
    total, one, clocked = verified(found, unit.check())
    yield msgspec.structs.replace(total, work=_work(integer, unit.operations * unit.sms), bound=bound)
    yield msgspec.structs.replace(one, work=_work(integer, unit.operations), bound=f"{bound}_per_clock", resolution=1.0)
    yield as_clock(clocked)


def _work(integer: bool, operations: int) -> Work:
    return Work(operations=operations) if integer else Work(flops=operations)

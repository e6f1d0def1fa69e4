"""Judges whether the SM clock changed while a case ran, so that its figures cannot be trusted."""

from collections.abc import Iterable
from typing import NamedTuple

from microbench.core.model import Measurement, Telemetry

CLOCK_LOSS = 0.03
# NVML's reasons that lower the clock because of power, heat or the board's own brake contain one of these words.
THROTTLE_WORDS = ("power", "thermal", "brake")
# Boards do arithmetic at their power limit by design, so only heat and the brake make arithmetic untrustworthy.
HEAT_WORDS = ("thermal", "brake")
ARITHMETIC_BOUNDS = ("gemm:", "tensor:", "sparse:", "alu:")


class ClockState(NamedTuple):
    """``throttled``: the clock fell, and NVML gives a reason. ``waking``: the clock was still rising."""

    throttled: bool
    waking: bool


def is_arithmetic(measurements: Iterable[Measurement]) -> bool:
    """True if one of a case's measurements is bound by tensor cores or ALUs."""
    return any(measurement.bound and measurement.bound.startswith(ARITHMETIC_BOUNDS) for measurement in measurements)


def clock_state(telemetry: Telemetry | None, *, arithmetic: bool) -> ClockState:
    """Whether the SM clock fell or rose by more than CLOCK_LOSS from the start of a case to its end.

    A rising clock does not count in an ``arithmetic`` case: it follows work that lowered the clock, and waits for it to
    settle.
    """
    if telemetry is None or not telemetry.sm_clock_begin_hz or not telemetry.sm_clock_end_hz:
        return ClockState(False, False)
    change = telemetry.sm_clock_end_hz / telemetry.sm_clock_begin_hz
    words = HEAT_WORDS if arithmetic else THROTTLE_WORDS
    lowered = any(word in reason for reason in telemetry.throttle_reasons for word in words)
    return ClockState(change < 1 - CLOCK_LOSS and lowered, change > 1 + CLOCK_LOSS and not arithmetic)

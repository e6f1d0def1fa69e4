"""Judges whether the SM clock changed while a case ran, and whether that makes its figures untrustworthy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from microbench.core.model import Measurement, Telemetry

CLOCK_LOSS = 0.03
# NVML's reasons that lower the clock because of power, heat or the board's own brake contain one of these words.
THROTTLE_WORDS = ("power", "thermal", "brake")
# Boards are built to do arithmetic at their power limit, so power is no reason to distrust it; heat and the brake are.
HEAT_WORDS = ("thermal", "brake")
ARITHMETIC_BOUNDS = ("gemm:", "tensor:", "alu:")


class ClockState(NamedTuple):
    """``throttled``: the clock fell, for a reason that lowers it. ``waking``: it was still rising."""

    throttled: bool
    waking: bool


def is_arithmetic(measurements: Iterable[Measurement]) -> bool:
    """True for the measurements of a case that keeps tensor cores or ALUs busy: one of them has such a bound."""
    return any(measurement.bound and measurement.bound.startswith(ARITHMETIC_BOUNDS) for measurement in measurements)


def clock_state(telemetry: Telemetry | None, *, arithmetic: bool) -> ClockState:
    """Whether the SM clock fell or rose by more than CLOCK_LOSS from the begin of a case to its end.

    The clock of ``arithmetic`` may rise: such a case lets it settle first, and follows work that held it down.
    """
    if telemetry is None or not telemetry.sm_clock_begin_hz or not telemetry.sm_clock_end_hz:
        return ClockState(False, False)
    change = telemetry.sm_clock_end_hz / telemetry.sm_clock_begin_hz
    words = HEAT_WORDS if arithmetic else THROTTLE_WORDS
    lowered = any(word in reason for reason in telemetry.throttle_reasons for word in words)
    return ClockState(change < 1 - CLOCK_LOSS and lowered, change > 1 + CLOCK_LOSS and not arithmetic)

"""Did the GPU slow down while a case ran, and why: what is a fault of the machine, and what is its power limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microbench.model import Measurement, Telemetry

CLOCK_LOSS = 0.03
# Reasons of NVML that lower the clock because of power, heat or the board's own brake.
THROTTLE_WORDS = ("power", "thermal", "brake")
# Arithmetic at the power limit is what a board is built for: a state that is shown, and no reason to distrust a figure.
# Heat and the brake still are. A case is arithmetic if one of its measurements has such a bound.
ARITHMETIC_BOUNDS = ("gemm:", "tensor:", "alu:")
HEAT_WORDS = ("thermal", "brake")


def clock_change(telemetry: Telemetry | None) -> float:
    """The SM clock at the case's end over that at its beginning; 1 if unknown."""
    if telemetry is None or not telemetry.sm_clock_begin_hz or not telemetry.sm_clock_end_hz:
        return 1.0
    return telemetry.sm_clock_end_hz / telemetry.sm_clock_begin_hz


def is_arithmetic(measurements: Sequence[Measurement]) -> bool:
    """True for the measurements of a case that keeps tensor cores or ALUs at work."""
    return any(one.bound is not None and one.bound.startswith(ARITHMETIC_BOUNDS) for one in measurements)


def throttled(telemetry: Telemetry | None, *, arithmetic: bool = False) -> bool:
    """True if the SM clock fell by more than CLOCK_LOSS over the case and a power, thermal or brake reason is set; of
    ``arithmetic`` a thermal or brake reason."""
    fell = clock_change(telemetry) < 1 - CLOCK_LOSS
    reasons = telemetry.throttle_reasons if telemetry else ()
    words = HEAT_WORDS if arithmetic else THROTTLE_WORDS
    return fell and any(word in reason for reason in reasons for word in words)


class ClockState(NamedTuple):
    """What the clocks say against all that a case measured: they were ``throttled``, or still ``waking``."""

    throttled: bool
    waking: bool


def clock_state(telemetry: Telemetry | None, *, arithmetic: bool) -> ClockState:
    """Arithmetic waits for its own clock to settle, and is measured right behind what may have held it down: its clock
    may rise."""
    change = clock_change(telemetry)
    if change < 1 - CLOCK_LOSS:
        return ClockState(throttled(telemetry, arithmetic=arithmetic), False)
    return ClockState(False, not arithmetic and change > 1 + CLOCK_LOSS)

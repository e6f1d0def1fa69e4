"""Work that lasts over time: rate and clocks as shares of what they could be, power and temperature below."""

from __future__ import annotations

import math

from microbench.explain.compute_power import lasting
from microbench.explain.compute_units import accumulator, beside, dtype_of, figure
from microbench.explain.evidence import Evidence
from microbench.model import Series
from microbench.report.document import Curve, Line, Mark, Tone
from microbench.stats import Row
from microbench.units import as_time, quantity, round_percent

FEWEST_DRAWN = 5
TICKS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
REACH = 0.3
STEPS, MOST_STEPS = (0.1, 0.2), 6
HOT_C = 100.0
ON_A_LOGARITHM = "time runs on a logarithmic scale"


def rates_over_time(evidence: Evidence) -> Curve | None:
    """Rate as a share of the burst, the SMs' clock and NVML's as shares of the highest."""
    row = _shown(evidence)
    if row is None:
        return None
    burst, highest_hz = beside(evidence, row, "burst"), _highest_hz(evidence)
    lines = [
        _line(row, "rate", f"rate, 100 % is {figure(burst)}", burst.value if burst is not None else None, "first")
        if burst is not None else None,
        _line(row, "sm_clock", f"SM clock, 100 % is {quantity(highest_hz, 'Hz')}", highest_hz, "second"),
        _line(row, "nvml_sm_clock", "NVML's clock", highest_hz, "third"),
    ]  # fmt: skip
    turn = beside(evidence, row, "turn")
    marks = (Mark(turn.value, f"half of the loss after {as_time(turn.value)}"),) if turn is not None else ()
    title = f"{dtype_of(row)} products that last: rate and clock"
    return _panel(title, f"from rest{accumulator(row)}; {ON_A_LOGARITHM}", lines, marks)


def state_over_time(evidence: Evidence) -> Curve | None:
    """Power as a share of its limit, temperature as one of HOT_C."""
    row = _shown(evidence)
    if row is None:
        return None
    limit_w = evidence.gpu.power_limit_w if evidence.gpu is not None else None
    lines = [
        _line(row, "power", f"power, 100 % is the limit of {quantity(limit_w, 'W')}", limit_w, "first"),
        _line(row, "temperature", f"temperature, 100 % is {HOT_C:.0f} °C", HOT_C, "fourth"),
    ]
    about = "NVML beside every batch; its power is the mean of the last second on some boards"
    return _panel(f"{dtype_of(row)} products that last: power and temperature", about, lines, ())


def _shown(evidence: Evidence) -> Row | None:
    """What the findings speak of: the longest measured of the main type, else of another."""
    return next(iter(lasting(evidence)), None)


def _highest_hz(evidence: Evidence) -> float | None:
    return evidence.gpu.sm_clock_max_hz if evidence.gpu is not None else None


def _line(row: Row, name: str, title: str, whole: float | None, tone: Tone) -> Line | None:
    """A series over time in shares of ``whole``; None where either is missing."""
    series = _series(row, name)
    if series is None or not whole:
        return None
    points = [(t_s, value / whole) for t_s, value in zip(series.t_s, series.values, strict=False) if t_s > 0]
    return Line(title, tuple(points), tone) if len(points) >= FEWEST_DRAWN else None


def _series(row: Row, name: str) -> Series | None:
    found = [series for outcome in row.outcomes for series in outcome.series if series.metric == name]
    return found[-1] if found else None


def _panel(title: str, about: str, lines: list[Line | None], marks: tuple[Mark, ...]) -> Curve | None:
    drawn = tuple(line for line in lines if line is not None)
    if not drawn:
        return None
    shares = [share for line in drawn for _, share in line.points]
    begin_s = min(line.points[0][0] for line in drawn)
    end_s = max(line.points[-1][0] for line in drawn)
    return Curve(
        title=title,
        about=about,
        x_title="since the work began",
        lines=drawn,
        x_ticks=tuple(Mark(one, _tick(one)) for one in TICKS_S if begin_s <= one <= end_s),
        y_ticks=_share_ticks(min(shares), max(shares), room=bool(marks)),
        y_log=False,
        marks=tuple(mark for mark in marks if begin_s < mark.at < end_s),
    )


def _share_ticks(least: float, most: float, *, room: bool) -> tuple[Mark, ...]:
    """Whole steps around the lines; with ``room`` for marks one above, into which a line may reach a little."""
    for step in STEPS:
        low, high = math.floor(least / step + 1e-9), math.ceil(most / step - (REACH if room else 1e-9)) + room
        if high - low <= MOST_STEPS:
            break
    return tuple(Mark(one * step, round_percent(one * step)) for one in range(low, high + 1))


def _tick(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"

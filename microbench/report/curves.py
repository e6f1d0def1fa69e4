"""Turns the rows of a benchmark into a curve, picks round numbers for axes, and scales values to lengths."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from microbench.analysis.stats import Row
from microbench.core.model import BenchmarkInfo, Param
from microbench.core.units import axis_title, axis_value, quantity, size
from microbench.report.document import SERIES_TONES, Curve, Line, Mark

FEWEST_POINTS = 4
MOST_LINES = 3
# Values further apart than this factor get a logarithmic axis.
LOG_RATIO = 20.0
# A logarithmic axis over more than this factor has ticks at powers of ten only.
FEW_DECADES = 30.0
# Replaces 0 on a logarithmic scale.
LEAST = 1e-300
FLAT = 1e-12


class Scale(NamedTuple):
    """Maps values from ``low`` to ``high`` to lengths from 0 to ``length``, linearly or by logarithm."""

    low: float
    high: float
    length: float
    log: bool

    def __call__(self, value: float) -> float:
        """The length at which ``value`` lies; 0 for every value if low and high are the same."""
        low, high, at = (math.log10(max(one, LEAST)) if self.log else one for one in (self.low, self.high, value))
        return (at - low) * (self.length / (high - low)) if high - low > FLAT * abs(high) else 0.0


def benchmark_curve(info: BenchmarkInfo, rows: Sequence[Row]) -> Curve | None:
    """The first metric over the first numeric axis, a line for each combination of the other axes.

    Of more than MOST_LINES combinations the first ones are drawn, and the title says so. None if no line has
    FEWEST_POINTS points.
    """
    axis = next((axis.name for axis in info.axes if all(isinstance(value, int) for value in axis.values)), None)
    if axis is None or not rows:
        return None
    metric = rows[0].metric
    found = [row for row in rows if row.metric.name == metric.name]
    varying = [name for name in found[0].params if len({row.params.get(name) for row in found}) > 1 and name != axis]
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        value = row.params.get(axis)
        if isinstance(value, int) and row.value > 0:
            others = ", ".join(param_words(name, row.params[name]) for name in varying if name in row.params)
            groups.setdefault(others, []).append((float(value), row.value))
    every = [(name, sorted(points)) for name, points in groups.items() if len(points) >= FEWEST_POINTS]
    if not every:
        return None
    lines = [
        Line(name if len(every) > 1 else "", tuple(points), tone)
        for (name, points), tone in zip(every[:MOST_LINES], SERIES_TONES, strict=False)
    ]
    shown = f", {len(lines)} of {len(every)} lines shown" if len(lines) < len(every) else ""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_log, y_log = logarithmic(xs), logarithmic(ys)
    title, below = f"{metric.name} over {axis_title(axis)}{shown}", axis_title(axis)
    x_ticks = tuple(Mark(x, axis_value(axis, round(x))) for x in sorted(set(xs)))
    y_ticks = ticks(min(ys) if y_log else 0.0, max(ys), y_log, metric.unit)
    return Curve(title, "", below, tuple(lines), x_ticks, y_ticks, x_log, y_log)


def param_words(name: str, value: Param) -> str:
    """A parameter in words: a string alone, a number after the name of its axis."""
    return value if isinstance(value, str) else f"{axis_title(name)} {axis_value(name, value)}"


def logarithmic(values: Sequence[float]) -> bool:
    """True if the values need a logarithmic axis: all above 0, and more than LOG_RATIO apart."""
    return min(values) > 0 and max(values) / min(values) > LOG_RATIO


def ticks(low: float, high: float, log: bool, unit: str) -> tuple[Mark, ...]:
    """Round numbers from ``low`` to ``high``: 1, 2, 5 times powers of ten on a logarithmic axis, else equal steps."""
    if high <= low:
        return (Mark(low, quantity(low, unit)),)
    if not log:
        step = nice_step((high - low) / 5)
        count = math.floor((high - low) / step + 1e-9)
        return tuple(Mark(low + index * step, short(low + index * step, unit)) for index in range(count + 1))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < FEW_DECADES else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return tuple(Mark(value, short(value, unit)) for value in values if low * 0.999 <= value <= high * 1.001)


def size_ticks(low: float, high: float, every: int = 1, first: int = 0) -> tuple[Mark, ...]:
    """Sizes from ``low`` to ``high`` that are every n-th power of two from 2**first on."""
    return tuple(Mark(1 << power, size(1 << power)) for power in range(first, 41, every) if low <= 1 << power <= high)


def ticks_beyond(most: float, unit: str) -> tuple[Mark, ...]:
    """Equal steps from 0 to the first one above ``most`` (positive), so that marks have room above the lines."""
    step = nice_step(most / 5)
    return ticks(0.0, (math.floor(most / step) + 1) * step, False, unit)


def nice_step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) at or above ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def short(value: float, unit: str) -> str:
    """A round number without empty decimals: "10 µs", "2.5 GB/s"."""
    number, _, rest = quantity(value, unit).partition(" ")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {rest}".strip()

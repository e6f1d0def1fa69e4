"""Pairs of rows as arrays for the decision: logarithms of the rounds' medians, as measured and at one SM clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from microbench.compare_decision import Figures
from microbench.compare_pairs import Pair
from microbench.compare_spread import FloatArray, IntArray
from microbench.model import GpuInfo, Outcome
from microbench.rates import PER_CLOCK
from microbench.stats import Row
from microbench.throttling import ARITHMETIC_BOUNDS, is_arithmetic

CLOCK_METRIC = "sm_clock"
CACHE_BOUNDS = ("shared", "l1", "l2")
PER_CLOCK_UNIT = "/clk"
# Nothing has no logarithm: a count of nothing is taken for half the least that was counted beside it.
NOTHING = 0.5
Binding = Literal["free", "partly", "bound"]
Sides = tuple[list[float], list[float]]


def clock_binding(row: Row) -> Binding:
    """Whether the SM clock sets a row's figure.

    ``bound``: tensor cores, ALUs and caches give so much a cycle; or it is that clock. ``free``: the host times it, its
    limit has another clock (memory, links), or it is per cycle at any clock. ``partly``: timed on the device with no
    limit that says, or with several, so that only what holds both ways is a change.
    """
    bound = row.measurement.bound or ""
    if row.metric.name == CLOCK_METRIC:
        return "bound"
    if row.metric.kind == "count" or row.measurement.clock != "device" or bound.endswith(PER_CLOCK):
        return "free"
    ways = {one.bound.partition(":")[0] for one in row.outcomes[0].measurements if one.bound}
    if is_arithmetic(row.outcomes[0].measurements) and len(ways) > 1:
        return "partly"
    if bound.startswith(ARITHMETIC_BOUNDS) or bound in CACHE_BOUNDS:
        return "bound"
    return "free" if bound else "partly"


def clock_of(row: Row, outcome: Outcome) -> float | None:
    """The SM clock while a round of a row ran, in Hz: as its case measured it, else as read around it."""
    for one in outcome.measurements:
        if one.metric == CLOCK_METRIC and one.n:
            return float(np.median(one.values)) / one.calls_per_sample
    found = outcome.telemetry.get(row.device or "")
    clocks = [hertz for hertz in (found.sm_clock_begin_hz, found.sm_clock_end_hz) if hertz] if found else []
    return sum(clocks) / len(clocks) if clocks else None


def has_ratio(pair: Pair) -> bool:
    """Whether every round is above 0 and finite; a count may be 0."""
    values = [one.interval.median for row in (pair.base, pair.new) for one in row.summaries]
    if not all(map(math.isfinite, values)):
        return False
    return min(values) > 0 or (pair.new.metric.kind == "count" and min(values) == 0)


def figures(pairs: Sequence[Pair], gpus: dict[str, GpuInfo]) -> Figures:
    """The arrays of these pairs, all of which have a ratio. ``gpus`` are those of both runs, by UUID."""
    plain = [_logs(pair) for pair in pairs]
    at_clock = [_logs_at_clock(pair, gpus) or own for pair, own in zip(pairs, plain, strict=True)]
    return Figures(
        base=_padded([base for base, _ in plain]),
        new=_padded([new for _, new in plain]),
        base_at_clock=_padded([base for base, _ in at_clock]),
        new_at_clock=_padded([new for _, new in at_clock]),
        partly=np.array([clock_binding(pair.new) == "partly" for pair in pairs], dtype=np.bool_),
        within=np.array([_within(pair) for pair in pairs]),
        suite=_numbered([(pair.new.device, pair.new.suite) for pair in pairs]),
        family=_numbered([(pair.new.device, pair.new.benchmark, pair.new.metric.name) for pair in pairs]),
        host=np.array([is_host_timed(pair.new) and not pair.in_turn for pair in pairs], dtype=np.bool_),
    )


def is_host_timed(row: Row) -> bool:
    """Whether the host's own speed is in the figure."""
    return row.measurement.clock == "host" and row.metric.kind != "count"


def at_one_clock(pair: Pair, gpus: dict[str, GpuInfo]) -> bool:
    """Whether a pair is compared at one SM clock, too: it may depend on it, and every round says what it was."""
    return _logs_at_clock(pair, gpus) is not None


def _logs(pair: Pair) -> Sides:
    """Logarithms of what both runs' rounds cost: of the figure, or of its share of the ceiling; a rate costs its
    inverse."""
    limits = [limit.value for limit in pair.ceilings] if pair.ceilings else [1.0, 1.0]
    values = [[one.interval.median for one in row.summaries] for row in (pair.base, pair.new)]
    nothing = NOTHING * min((value for side in values for value in side if value > 0), default=1.0)
    sign = cost_sign(pair)
    base, new = (
        [sign * math.log((value or nothing) / limit) for value in side]
        for side, limit in zip(values, limits, strict=True)
    )
    return base, new


def cost_sign(pair: Pair) -> int:
    """1 for a figure that costs more the higher it is, and for a count; -1 for a rate."""
    return -1 if pair.new.metric.kind == "rate" else 1


def _logs_at_clock(pair: Pair, gpus: dict[str, GpuInfo]) -> Sides | None:
    """The same at the GPUs' highest SM clock; None where that does not matter, or is not known of every round."""
    if clock_binding(pair.new) == "free":
        return None
    base, new = _clocks(pair.base, gpus), _clocks(pair.new, gpus)
    if base is None or new is None:
        return None
    # At a higher clock seconds cost less; what is counted in cycles turns into seconds by it, the clock into nothing.
    unit = pair.new.metric.unit
    per_cycle = unit in ("cycle", "Hz") or PER_CLOCK_UNIT in unit
    sign = -1 if per_cycle else 1
    logs = _logs(pair)
    return (
        [log + sign * clock for log, clock in zip(logs[0], base, strict=True)],
        [log + sign * clock for log, clock in zip(logs[1], new, strict=True)],
    )


def _clocks(row: Row, gpus: dict[str, GpuInfo]) -> list[float] | None:
    """The SM clock of each round over the GPU's highest, as logarithms; None if one is not known."""
    gpu = gpus.get(row.device or "")
    highest_hz = gpu.sm_clock_max_hz if gpu is not None else None
    clocks = [clock_of(row, outcome) for outcome in row.outcomes]
    if not highest_hz or not all(clocks):
        return None
    return [math.log(hertz / highest_hz) for hertz in clocks if hertz]


def _within(pair: Pair) -> float:
    """The half width of a usual round's own interval, as a share of it."""
    widths = [one.interval.half_width for row in (pair.base, pair.new) for one in row.summaries]
    return float(np.median([width for width in widths if math.isfinite(width)] or [0.0]))


def _padded(rounds: Sequence[Sequence[float]]) -> FloatArray:
    most = max((len(one) for one in rounds), default=0)
    result = np.full((len(rounds), most), np.nan)
    for index, one in enumerate(rounds):
        result[index, : len(one)] = one
    return result


def _numbered(names: Sequence[object]) -> IntArray:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)

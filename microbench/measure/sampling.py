"""Sampling: when a measurement has enough samples, which are kept, and how single calls are distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.analysis.stats import median_interval
from microbench.core.errors import MeasurementError
from microbench.core.model import SAMPLES_KEPT, PerCall, Stopped
from microbench.core.ops import IntArray
from microbench.gpu.protocol.gpu import HostClock

Tick = Callable[[str, int, float], None]
Batch = TypeVar("Batch")

NANOSECOND_S = 1e-9
VOID_SAMPLES = 20
SIGNIFICANT_DIGITS = 7  # no interval here is as narrow as a millionth, and files stay small
HISTOGRAM_RATIO = 1.05
# Who watches takes a minute's silence for a hang: samples that take seconds are told one by one.
LONG_SAMPLE_S = 1.0


@dataclass(frozen=True)
class SamplingLimits:
    """When a measurement ends: after ``seconds``, or once the median's interval is within ``half_width`` of it.

    Not before a ``least_share`` of the time: neighbouring samples resemble each other, and a few of them look narrower
    than they are. Never more samples than are kept, so that the interval stored is the one that was seen.
    """

    seconds: float = 0.3
    half_width: float = 0.01
    least_share: float = 0.25
    minimum: int = 10
    maximum: int = SAMPLES_KEPT


def now_s(clock: HostClock) -> float:
    """The time on that clock in seconds."""
    return clock.now_ns() * NANOSECOND_S


def no_tick(metric: str, n: int, value: float) -> None:
    """Nobody is watching."""


def per_call_distribution(calls_s: FloatArray, ratio: float = HISTOGRAM_RATIO) -> PerCall:
    """Quantiles and a logarithmic histogram of single calls, in seconds; what is not positive falls in its first bin.

    Each bin's end is ``ratio`` times its begin.
    Raises ValueError for an empty array.
    """
    if calls_s.size == 0:
        raise ValueError("no calls")
    positive = np.maximum(calls_s, NANOSECOND_S)
    first_edge = float(positive.min())
    bins = np.floor(np.log(positive / first_edge) / np.log(ratio) + 1e-9).astype(np.int64)
    p1, p50, p90, p99 = (float(value) for value in np.percentile(calls_s, (1, 50, 90, 99)))
    low, high = float(calls_s.min()), float(calls_s.max())
    return PerCall(
        n=int(calls_s.size),
        p1=shortened(p1),
        p50=shortened(p50),
        p90=shortened(p90),
        p99=shortened(p99),
        min=shortened(low),
        max=shortened(high),
        first_edge=shortened(first_edge),
        ratio=ratio,
        counts=tuple(int(count) for count in np.bincount(bins)),
    )


def shortened(value: float) -> float:
    """A reading without the digits that nobody measured; what was counted is whole, and stays as it is."""
    return value if value.is_integer() else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def kept(samples: Sequence[float]) -> msgspec.Raw:
    """At most SAMPLES_KEPT of the samples, evenly spread over time, as JSON."""
    if len(samples) > SAMPLES_KEPT:
        picked = np.linspace(0, len(samples) - 1, SAMPLES_KEPT).round().astype(np.int64)
        samples = [samples[index] for index in picked]
    return msgspec.Raw(msgspec.json.encode([shortened(float(sample)) for sample in samples]))


class Between:
    """Seconds from one column of start stamps (see Gpu.start_stamps) to another, less a constant; rounds whose flag was
    missed are left out."""

    def __init__(self, first: int, second: int, less_s: float = 0.0) -> None:
        self._columns = (first, second)
        self._less_s = less_s

    def __call__(self, stamps: IntArray) -> FloatArray:
        seen = stamps[stamps[:, 2] > 0]
        first, second = self._columns
        elapsed: FloatArray = (seen[:, second] - seen[:, first]) * NANOSECOND_S - self._less_s
        return elapsed


def clock_step_ns(stamps: IntArray) -> int | None:
    """The step that a clock runs in, from readings with nothing between them; None if it never moved.

    A clock that shows the same time twice moves by its least difference. One that is finer than a reading takes does
    not: its step is what all differences are multiples of.
    """
    between = np.diff(stamps)
    moved = between[between > 0]
    if not moved.size:
        return None
    return int(moved.min()) if moved.size < between.size else int(np.gcd.reduce(moved))


def seconds(stamps: IntArray) -> FloatArray:
    """Nanoseconds as seconds."""
    result: FloatArray = stamps * NANOSECOND_S
    return result


class Sampler:
    """The loop that every measurement shares: take, look, stop when narrow or when time is up."""

    def __init__(self, clock: HostClock, limits: SamplingLimits, tick: Tick) -> None:
        self._clock = clock
        self.limits = limits
        self.tick = tick

    def sample(
        self,
        metrics: Mapping[str, Callable[[Batch], Sequence[float] | FloatArray]],
        take: Callable[[], Batch],
        calls: int,
        minimum: int | None,
        step: float = 0.0,
    ) -> tuple[dict[str, list[float]], Stopped]:
        """Samples of each of ``metrics`` (functions of one batch) and why sampling stopped.

        The first metric is the one that is shown and counted; all must be narrow to stop early, ``step`` (of the clock)
        being the least width. Raises MeasurementError
        after VOID_SAMPLES batches without a sample in a row.
        """
        samples: dict[str, list[float]] = {name: [] for name in metrics}
        first = next(iter(metrics))
        least = self.limits.minimum if minimum is None else minimum
        began_ns, taken, checked, void, told_s = self._clock.now_ns(), 0, 0, 0, 0.0
        while True:
            batch, before = take(), taken
            for name, values_of_batch in metrics.items():
                samples[name].extend(float(value) for value in values_of_batch(batch))
            taken = len(samples[first])
            void = void + 1 if taken == before else 0
            if void >= VOID_SAMPLES:
                raise MeasurementError(
                    f"{first}: {VOID_SAMPLES} samples in a row were void (a gate timed out, flags were missed)"
                )
            elapsed_s = (self._clock.now_ns() - began_ns) * NANOSECOND_S
            if taken >= least and elapsed_s >= self.limits.seconds:
                return samples, "time"
            if taken and elapsed_s - told_s > LONG_SAMPLE_S:
                told_s = elapsed_s
                self.tick(first, taken, float(np.median(samples[first])) / calls)
            if taken >= max(least, checked * 1.2) and taken > checked:
                checked = taken
                self.tick(first, taken, float(np.median(samples[first])) / calls)
                long_enough = elapsed_s >= self.limits.least_share * self.limits.seconds
                if long_enough and all(self._narrow(values, step) for values in samples.values()):
                    return samples, "narrow"
            if taken >= self.limits.maximum:
                return samples, "count"

    def _narrow(self, values: list[float], step: float) -> bool:
        if len(values) < self.limits.minimum:
            return False
        return median_interval(values, step).half_width <= self.limits.half_width

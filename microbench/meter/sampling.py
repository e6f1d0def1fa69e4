"""When a measurement has enough samples, which samples are stored, and how single calls are distributed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.model import SAMPLES_KEPT, PerCall
from microbench.core.ops import IntArray
from microbench.gpu.protocol.gpu import HostClock

NANOSECOND_S = 1e-9
Sample = Mapping[str, float]  # a value of each metric; empty for a sample that does not count
SIGNIFICANT_DIGITS = 7  # no interval here is as narrow as a millionth, and files stay small
HISTOGRAM_RATIO = 1.05


@dataclass(frozen=True)
class SamplingLimits:
    """A measurement ends after ``seconds``, or once the median's interval is within ``half_width`` of the median.

    The interval counts the effective number of samples, because neighbouring ones resemble each other. A few samples do
    not show this resemblance, so it does not end before ``least_share`` of the time. It never takes more samples than
    are stored, so that a reader sees the same interval.
    """

    seconds: float = 0.3
    half_width: float = 0.01
    least_share: float = 0.25
    minimum: int = 10
    maximum: int = SAMPLES_KEPT


def now_s(clock: HostClock) -> float:
    """The time on that clock in seconds."""
    return clock.now_ns() * NANOSECOND_S


def per_call_distribution(calls_s: FloatArray, ratio: float = HISTOGRAM_RATIO) -> PerCall:
    """Quantiles and a logarithmic histogram of single calls, in seconds. Calls that are not positive fall in bin 0.

    Each bin ends at ``ratio`` times its begin. Raises ValueError for an empty array.
    """
    if calls_s.size == 0:
        raise ValueError("no calls")
    positive = np.maximum(calls_s, NANOSECOND_S)
    first_edge = float(positive.min())
    bins = np.floor(np.log(positive / first_edge) / np.log(ratio) + 1e-9).astype(np.int64)
    quantiles = {"min": 0, "p1": 1, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    values = map(float, np.percentile(calls_s, list(quantiles.values())))
    named = {name: shortened(value) for name, value in zip(quantiles, values, strict=True)}
    counts = tuple(map(int, np.bincount(bins)))
    return PerCall(n=int(calls_s.size), **named, first_edge=shortened(first_edge), ratio=ratio, counts=counts)


def shortened(value: float) -> float:
    """A reading with SIGNIFICANT_DIGITS digits; counts are whole numbers and stay as they are."""
    return value if value.is_integer() else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def stored(samples: Sequence[float]) -> msgspec.Raw:
    """The samples as a Measurement stores them: JSON, and at most SAMPLES_KEPT of them, evenly spread over time.

    They stay in the order taken, which their autocorrelation is computed from."""
    if len(samples) > SAMPLES_KEPT:
        picked = np.linspace(0, len(samples) - 1, SAMPLES_KEPT).round().astype(np.int64)
        samples = [samples[index] for index in picked]
    return msgspec.Raw(msgspec.json.encode([shortened(float(sample)) for sample in samples]))


@dataclass(frozen=True)
class Between:
    """Seconds from one column of stamps (of launch_stamps, graph_lives, …) to another.

    Rounds whose flag was missed are left out.
    """

    first: int
    second: int

    def __call__(self, stamps: IntArray) -> FloatArray:
        seen = stamps[stamps[:, 2] > 0]
        return seconds(seen[:, self.second] - seen[:, self.first])


def clock_step_ns(stamps: IntArray) -> int | None:
    """The step of a clock, from readings with nothing between them; None if it never moved.

    If some readings are equal, the step is the least difference. If the clock is finer than a reading takes, all
    readings differ, and the step is the greatest common divisor of the differences.
    """
    between = np.diff(stamps)
    moved = between[between > 0]
    if not moved.size:
        return None
    return int(moved.min()) if moved.size < between.size else int(np.gcd.reduce(moved))


def seconds(stamps: IntArray) -> FloatArray:
    """Nanoseconds as seconds."""
    return stamps * NANOSECOND_S

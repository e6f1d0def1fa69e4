"""What kernels record of themselves: the gaps between them and their durations, queued behind a gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microbench.model import Measurement, PerCall, Work
from microbench.ops import Launch
from microbench.sampling import NANOSECOND_S, per_call_distribution
from microbench.stats import FloatArray
from microbench.timing import Meter

GAP_STEPS = 5  # fewer steps of the timer than this in a gap, and its percentiles are the timer's


def duration(meter: Meter, metric: str, launch: Launch, count: int) -> Measurement:
    """What kernels record of themselves, from first to last act: a sample is the sum over ``count`` of them."""
    step_s = meter.gpu.record(launch, count, graph=False, gated=True).step_ns * NANOSECOND_S

    def take() -> Sequence[float]:
        recorded = meter.gpu.record(launch, count, graph=False, gated=True)
        return (float((recorded.end_ns - recorded.start_ns).sum()) * NANOSECOND_S,)

    return meter.collect(metric, take, clock="device", calls=count, floor_s=step_s, resolution=step_s)


def gap(meter: Meter, metric: str, launch: Launch, count: int = 200, *, graph: bool = False) -> Measurement:
    """Period of gated kernels less the duration that each recorded of itself: what the GPU needs between two.

    A sample is the sum over a batch of ``count`` kernels; %globaltimer's step is its floor.
    """
    gaps_s: list[FloatArray] = []
    step_s = meter.gpu.record(launch, count, graph=graph, gated=True).step_ns * NANOSECOND_S

    def take() -> Sequence[float]:
        recorded = meter.gpu.record(launch, count, graph=graph, gated=True)
        gaps_s.append((recorded.start_ns[1:] - recorded.end_ns[:-1]) * NANOSECOND_S)
        return (float(gaps_s[-1].sum()),)

    return meter.collect(
        metric,
        take,
        clock="device",
        calls=count - 1,
        work=Work(launches=1),
        floor_s=step_s,
        resolution=step_s,
        verified="every kernel stamped its own start and end",
        per_call=lambda: _distribution(np.concatenate(gaps_s), step_s),
    )


def _distribution(gaps_s: FloatArray, step_s: float) -> PerCall | None:
    """The distribution of single gaps, where the timer's step does not decide it."""
    fine = step_s * GAP_STEPS <= abs(float(np.median(gaps_s)))
    return per_call_distribution(gaps_s) if fine else None

"""Things timed in turn, so that drift is nobody's: steps of several ways, and a long chain less a short one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microbench.gated import gated
from microbench.gpu.api import Submit
from microbench.model import Measurement, Work
from microbench.sampling import NANOSECOND_S
from microbench.timing import BURST_S, Meter

LONGEST_BATCH = 50


def steps(
    meter: Meter, metrics: Mapping[str, tuple[Submit, int]], *, parts: int = 1, verified: str | None = None
) -> list[Measurement]:
    """Steps of each of ``metrics`` in turn: (submit, how many calls of it make a step), on the host's clock.

    A step is its calls and one synchronise. A sample is the median of a batch of steps that takes about BURST_S; the
    figure is that of one of the ``parts`` (kernels) of a step.
    """
    batches = {name: np.zeros(_batch(submit, calls), dtype=np.int64) for name, (submit, calls) in metrics.items()}
    turn = list(metrics.items())

    def take() -> Mapping[str, float]:
        turn.reverse()
        taken = {}
        for name, (submit, calls) in turn:
            submit.round_trips(batches[name], calls)
            taken[name] = float(np.median(batches[name])) * NANOSECOND_S
        return taken

    return meter.collect_each(tuple(metrics), take, calls=parts, work=Work(launches=1), verified=verified)


def _batch(submit: Submit, calls: int) -> int:
    """How many steps make a sample, judged by the second one: the first loads code and uploads graphs."""
    warm = np.zeros(2, dtype=np.int64)
    submit.round_trips(warm, calls)
    return min(max(round(BURST_S / max(int(warm[-1]) * NANOSECOND_S, NANOSECOND_S)), 1), LONGEST_BATCH)


def device_difference(meter: Meter, metric: str, long: Submit, short: Submit, parts: int) -> Measurement:
    """Device time of one call of ``long`` less one of ``short``, which has ``parts`` nodes fewer: of one such node.

    Both are queued behind a gate and timed by events, in turn. What begins and ends a replay is in neither.
    """
    take_long, take_short = gated(meter.gpu, long, 1), gated(meter.gpu, short, 1)

    def take() -> Sequence[float]:
        return [more - fewer for more, fewer in zip(take_long(), take_short(), strict=False)]

    return meter.collect(
        metric, take, clock="device", calls=parts, work=Work(launches=1), floor_s=meter.floors.event_pair_s
    )

"""Things timed in turn, so that drift is nobody's: steps of several ways, and a long chain less a short one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from microbench.core.model import Measurement, Work
from microbench.core.ops import IntArray
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.submit import Submit
from microbench.measure.sampling import NANOSECOND_S
from microbench.measure.timer import BURST_S, Meter, gated

LONGEST_BATCH = 50


class RoundTrips(Protocol):
    """What steps are made of: calls and a synchronise, timed."""

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None: ...


class InOrder:
    """Calls of several kinds as one step: (submit, how many), compiled loops one after the other, Python between."""

    def __init__(self, gpu: Gpu, parts: Sequence[tuple[Submit, int]]) -> None:
        self._gpu = gpu
        self._parts = parts

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """``len(out_ns)`` times: ``calls`` times all parts, and a synchronise; each time in ns."""
        clock = self._gpu.clock
        for index in range(len(out_ns)):
            began_ns = clock.now_ns()
            for _ in range(calls):
                for submit, count in self._parts:
                    submit(count)
            self._gpu.synchronize_stream()
            out_ns[index] = clock.now_ns() - began_ns


def steps(
    meter: Meter,
    metrics: Mapping[str, tuple[RoundTrips, int]],
    *,
    parts: int = 1,
    waits: int = 1,
    verified: str | None = None,
) -> list[Measurement]:
    """Steps of each of ``metrics`` in turn: (submit, how many calls of it make a piece), on the host's clock.

    A piece is its calls and one synchronise, a step ``waits`` pieces. A sample is the median of a batch of steps that
    takes about BURST_S; the figure is that of one of the ``parts`` (kernels) of a step.
    """
    batches = {name: _batch(submit, calls, waits) for name, (submit, calls) in metrics.items()}
    turn = list(metrics.items())

    def take() -> Mapping[str, float]:
        turn.reverse()
        taken = {}
        for name, (submit, calls) in turn:
            pieces_ns = batches[name]
            submit.round_trips(pieces_ns.reshape(-1), calls)
            taken[name] = float(np.median(pieces_ns.sum(axis=1))) * NANOSECOND_S
        return taken

    return meter.collect_each(tuple(metrics), take, calls=parts, work=Work(launches=1), verified=verified)


def _batch(submit: RoundTrips, calls: int, waits: int) -> IntArray:
    """Room for the pieces of a sample, a row a step; how many is judged by the second piece: the first loads code and
    uploads graphs."""
    warm = np.zeros(2, dtype=np.int64)
    submit.round_trips(warm, calls)
    step_s = max(int(warm[-1]) * waits * NANOSECOND_S, NANOSECOND_S)
    return np.zeros((min(max(round(BURST_S / step_s), 1), LONGEST_BATCH), waits), dtype=np.int64)


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

"""Times several things in turn, so that drift affects all equally: steps submitted in several ways, long and short
chains."""

from collections.abc import Mapping, Sequence

import numpy as np

from microbench.core.model import Measurement, Work
from microbench.core.ops import IntArray
from microbench.gpu.protocol.gpu import Gpu, Submit
from microbench.meter.sampling import NANOSECOND_S, Sample
from microbench.meter.timer import BURST_S, Meter, gated

LONGEST_BATCH = 50


class InOrder:
    """Calls of several kinds as one step; each part is (submit, number of calls), with Python between the parts."""

    def __init__(self, gpu: Gpu, parts: Sequence[tuple[Submit, int]]) -> None:
        self._gpu = gpu
        self._parts = parts

    def round_trips(self, out_ns: IntArray, calls: int = 1) -> None:
        """Time ``calls`` times all parts and a synchronise, ``len(out_ns)`` times, in ns."""
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
    metrics: Mapping[str, tuple[Submit | InOrder, int]],
    *,
    parts: int = 1,
    waits: int = 1,
    verified: str | None = None,
) -> list[Measurement]:
    """Host time of a step of each of ``metrics`` (submit, number of calls in a piece), in turn.

    A piece is its calls and one synchronise; a step is ``waits`` pieces. A sample is the median of a batch of steps
    that takes about BURST_S; the value is that of one of the ``parts`` (kernels) of a step.
    """

    def batch(submit: Submit | InOrder, calls: int) -> IntArray:
        """An array for the pieces of a sample, one row a step. The time of the second piece decides its length, because
        the first one loads code.
        """
        warm = np.zeros(2, dtype=np.int64)
        submit.round_trips(warm, calls)
        step_s = max(int(warm[-1]) * waits * NANOSECOND_S, NANOSECOND_S)
        return np.zeros((min(max(round(BURST_S / step_s), 1), LONGEST_BATCH), waits), dtype=np.int64)

    batches = {name: batch(submit, calls) for name, (submit, calls) in metrics.items()}
    turn = list(metrics.items())

    def take() -> Sample:
        turn.reverse()
        taken = {}
        for name, (submit, calls) in turn:
            pieces_ns = batches[name]
            submit.round_trips(pieces_ns.reshape(-1), calls)
            taken[name] = float(np.median(pieces_ns.sum(axis=1))) * NANOSECOND_S
        return taken

    return meter.collect_each(tuple(metrics), take, calls=parts, work=Work(launches=1), verified=verified)


def device_difference(meter: Meter, metric: str, long: Submit, short: Submit, parts: int) -> Measurement:
    """Device time of one node: a call of ``long`` less a call of ``short``, which has ``parts`` nodes fewer.

    Both are timed behind a gate, in turn. The cost of beginning and ending a replay cancels out.
    """
    take_long, take_short = gated(meter.gpu, long, 1), gated(meter.gpu, short, 1)

    def take() -> Sequence[float]:
        return [more - fewer for more, fewer in zip(take_long(), take_short(), strict=False)]

    return meter.collect(
        metric, take, clock="device", calls=parts, work=Work(launches=1), floor_s=meter.floors.event_pair_s
    )

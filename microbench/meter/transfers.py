"""Times data movement on the device behind a gate, or on the host with a synchronise, and then checks the data."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from microbench.core.model import Fact, Measurement, Work
from microbench.gpu.protocol.gpu import Operations, Submit, Transfer
from microbench.meter.sampling import NANOSECOND_S
from microbench.meter.timer import Meter, gated

SAMPLE_S = 2e-3
MOST_QUEUED = 200
HOST_BATCH = 20


def moved(
    meter: Meter, transfer: Transfer, *, device: str, host: str | None = None, bound: str | None = None
) -> Iterator[Measurement]:
    """Metric ``device``: the rate on the device alone (left out if the transfer blocks the host). Metric ``host``, if
    named: the rate of a call and its synchronise.

    Bytes count once. For each metric the destination is poisoned after the warm-up and compared with the source after
    the samples. Raises MeasurementError for data that did not arrive.
    """
    one_s = warm_s(transfer.submit)
    work = Work(bytes=transfer.size_bytes)
    if not transfer.blocks:
        yield from verified([_gated(meter, transfer, device, one_s, work, bound)], transfer.check())
    if host is not None:
        transfer.fresh()
        out_ns = np.zeros(min(max(round(SAMPLE_S / one_s), 1), HOST_BATCH), dtype=np.int64)

        def take() -> Sequence[float]:
            transfer.submit.round_trips(out_ns)
            return (float(np.median(out_ns)) * NANOSECOND_S,)

        measured = meter.collect(host, take, clock="host", work=work, bound=bound)
        yield from verified([measured], transfer.check())


def operated(meter: Meter, operations: Operations, metric: str) -> list[Measurement]:
    """Operations a second on the device alone; their result is poisoned and compared as in ``moved``."""
    work = Work(operations=operations.operations)
    return verified([_gated(meter, operations, metric, warm_s(operations.submit), work, None)], operations.check())


def rates(timed: Measurement, over: str, work: Work) -> Iterator[Measurement | Fact]:
    """Metrics ``bandwidth`` and ``throughput``: the bytes and operations of a call, as a user counts them, over a time
    of the GPU, which ``over`` names. What is not counted is left out."""
    for metric, part in (("bandwidth", Work(bytes=work.bytes)), ("throughput", Work(flops=work.flops))):
        if part != Work():
            yield msgspec.structs.replace(timed, metric=metric, work=part)
    if work != Work():
        yield Fact("rates_over", over, source="bytes and operations as given")


def verified(measurements: Sequence[Measurement], how: str) -> list[Measurement]:
    """The measurements with a note of how their results were checked."""
    return [msgspec.structs.replace(each, verified=how, needs_verification=True) for each in measurements]


def warm_s(submit: Submit) -> float:
    """Seconds of the second of two calls, each with a synchronise."""
    out_ns = np.zeros(2, dtype=np.int64)
    submit.round_trips(out_ns)
    return max(int(out_ns[-1]), 1) * NANOSECOND_S


def _gated(
    meter: Meter, transfer: Transfer | Operations, metric: str, one_s: float, work: Work, bound: str | None
) -> Measurement:
    """Poisons the destination after ``gated`` was called, because its warm-up moves the data once more."""
    count = min(max(round(SAMPLE_S / one_s), 1), MOST_QUEUED)
    take, floor_s = gated(meter.gpu, transfer.submit, count), meter.floors.event_pair_s
    transfer.fresh()
    return meter.collect(metric, take, clock="device", calls=count, work=work, bound=bound, floor_s=floor_s)

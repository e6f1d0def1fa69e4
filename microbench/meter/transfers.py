"""Times data movement on the device behind a gate, or on the host with a synchronise, and then checks the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.model import Fact, Measurement, Work
from microbench.core.ops import IntArray
from microbench.gpu.protocol.compute import Gemm
from microbench.gpu.protocol.links import (
    Chase,
    Collective,
    CollectiveName,
    Concurrent,
    Duplex,
    Peer,
    Pipeline,
    bus_factor,
)
from microbench.gpu.protocol.memory import Operations
from microbench.gpu.protocol.transfer import Transfer
from microbench.meter.sampling import NANOSECOND_S, per_call_distribution, seconds
from microbench.meter.timer import Meter, gated

SAMPLE_S = 2e-3
MOST_QUEUED = 200
HOST_BATCH = 20
BATCH_OF_CALLS = 20  # nccl-tests' default
FEWEST_BOTH_WAYS = 4
SINGLE_READS = 2000
# Whether the other copies outlasted the measured ones in every sample; twice as many may not suffice.
BUSY_FACT, BUSY_SOURCE = "others_busy_throughout", "the ends of both, by device events, in every sample"


def moved(
    meter: Meter, transfer: Transfer, *, device: str, host: str | None = None, bound: str | None = None
) -> Iterator[Measurement]:
    """Metric ``device``: the rate on the device alone (left out if the transfer blocks the host). Metric ``host``, if
    named: the rate of a call and its synchronise.

    Bytes count once. For each metric the destination is poisoned after the warm-up and compared with the source after
    the samples. Raises MeasurementError for data that did not arrive.
    """
    one_s = warm_s(transfer)
    work = Work(bytes=transfer.size_bytes)
    if not transfer.blocks:
        yield from verified([_gated(meter, transfer, device, one_s, work, bound)], transfer.check())
    if host is not None:
        transfer.fresh()
        yield from verified([_synchronized(meter, transfer, host, one_s, work, bound)], transfer.check())


def operated(meter: Meter, operations: Operations, metric: str) -> list[Measurement]:
    """Operations a second on the device alone; their result is poisoned and compared as in ``moved``."""
    work = Work(operations=operations.operations)
    return verified([_gated(meter, operations, metric, warm_s(operations), work, None)], operations.check())


def small_copy(meter: Meter, transfer: Transfer) -> list[Measurement]:
    """Seconds of one copy and its synchronise, with percentiles: metric ``latency``."""
    out_ns = np.zeros(HOST_BATCH, dtype=np.int64)
    transfer.submit.round_trips(out_ns)
    transfer.fresh()

    def take() -> IntArray:
        transfer.submit.round_trips(out_ns)
        return out_ns

    return verified(meter.collect_stamps(take, {"latency": seconds}), transfer.check())


def verified(measurements: Sequence[Measurement], how: str) -> list[Measurement]:
    """The measurements with a note of how their results were checked."""
    return [msgspec.structs.replace(each, verified=how, needs_verification=True) for each in measurements]


def warm_s(transfer: Transfer | Operations | Gemm) -> float:
    """Seconds of the second of two calls, each with a synchronise."""
    out_ns = np.zeros(2, dtype=np.int64)
    transfer.submit.round_trips(out_ns)
    return max(int(out_ns[-1]), 1) * NANOSECOND_S


def _gated(
    meter: Meter, transfer: Transfer | Operations, metric: str, one_s: float, work: Work, bound: str | None
) -> Measurement:
    """Poisons the destination after ``gated`` was called, because its warm-up moves the data once more."""
    count = min(max(round(SAMPLE_S / one_s), 1), MOST_QUEUED)
    take, floor_s = gated(meter.gpu, transfer.submit, count), meter.floors.event_pair_s
    transfer.fresh()
    return meter.collect(metric, take, clock="device", calls=count, work=work, bound=bound, floor_s=floor_s)


def _synchronized(
    meter: Meter, transfer: Transfer, metric: str, one_s: float, work: Work, bound: str | None
) -> Measurement:
    out_ns = np.zeros(min(max(round(SAMPLE_S / one_s), 1), HOST_BATCH), dtype=np.int64)

    def take() -> Sequence[float]:
        transfer.submit.round_trips(out_ns)
        return (float(np.median(out_ns)) * NANOSECOND_S,)

    return meter.collect(metric, take, clock="host", work=work, bound=bound, floor_s=meter.floors.timer_call_s)


def both_ways(
    meter: Meter, duplex: Duplex, direction: str, size_bytes: int, *, own: str, total: str
) -> Iterator[Measurement | Fact]:
    """Metric ``own``: one direction's rate while the other moves twice as much. Metric ``total``: the rate of both.

    The total counts the copies until the first direction ends, because both are busy until then. A sample of it is
    the time that ``count`` copies of ``2 * size_bytes`` take at that rate.
    """
    ends = None
    for _ in range(3):
        ends = duplex.ends_s(1, 2) or ends
    one_s = float(ends[0][-1]) if ends else SAMPLE_S
    count = min(max(round(SAMPLE_S / max(one_s, NANOSECOND_S)), FEWEST_BOTH_WAYS), MOST_QUEUED // 4)
    measured_h2d = direction == "h2d"
    counts = (count, 2 * count) if measured_h2d else (2 * count, count)
    busy: list[bool] = []

    def take() -> Mapping[str, float]:
        ends = duplex.ends_s(*counts)
        if ends is None:
            return {}
        mine, others = ends if measured_h2d else ends[::-1]
        busy.append(bool(others[-1] >= mine[-1]))
        window_s = min(float(mine[-1]), float(others[-1]))
        copies = _copies_until(mine, window_s) + _copies_until(others, window_s)
        return {own: float(mine[-1]), total: window_s * 2 * count / copies}

    duplex.fresh()
    floor_s = meter.floors.event_pair_s
    first, second = meter.collect_each((own, total), take, clock="device", calls=count, floor_s=floor_s)
    first = msgspec.structs.replace(first, work=Work(bytes=size_bytes), bound=f"pcie_{direction}")
    second = msgspec.structs.replace(second, work=Work(bytes=2 * size_bytes), bound="pcie_both")
    yield from verified([first, second], duplex.check())
    yield Fact(BUSY_FACT, all(busy), source=BUSY_SOURCE)


def _copies_until(ends_s: FloatArray, moment_s: float) -> float:
    """How many copies had ended by a moment; the copy in progress counts by its share."""
    return float(np.interp(moment_s, np.concatenate(([0.0], ends_s)), np.arange(len(ends_s) + 1)))


def read_latency(meter: Meter, metric: str, chase: Chase, reads: int) -> Measurement:
    """Seconds of one dependent read. A sample is the mean over walks from every SM; percentiles are of single reads."""
    chase.walks_ns(reads)

    def take() -> Sequence[float]:
        return (float(chase.walks_ns(reads).sum()) * NANOSECOND_S,)

    return meter.collect(
        metric,
        take,
        clock="device",
        calls=chase.blocks * reads,
        verified="every walk ended at its line",
        needs_verification=True,
        per_call=lambda: per_call_distribution(chase.each_ns(SINGLE_READS) * NANOSECOND_S),
    )


def pieces(meter: Meter, pipeline: Pipeline, metric: str, size_bytes: int) -> list[Measurement]:
    """The rate of a whole step on the host's clock: all pieces and a synchronise of all streams."""
    out_ns = np.zeros(2, dtype=np.int64)
    pipeline.submit.round_trips(out_ns)
    pipeline.fresh()
    one_ns = out_ns[:1]

    def take() -> Sequence[float]:
        pipeline.submit.round_trips(one_ns)
        return (int(one_ns[0]) * NANOSECOND_S,)

    work, floor_s = Work(bytes=size_bytes), meter.floors.timer_call_s
    measured = meter.collect(metric, take, clock="host", work=work, bound="pcie_h2d", floor_s=floor_s)
    return verified([measured], pipeline.check())


def between_gpus(meter: Meter, peer: Peer, metric: str, size_bytes: int, bound: str | None) -> list[Measurement]:
    """The rate from one GPU to another, by device events behind a gate."""
    peer.take_s(1)
    warm_s = peer.take_s(1) or SAMPLE_S
    count = min(max(round(SAMPLE_S / warm_s), 1), MOST_QUEUED)
    peer.fresh()

    def take() -> Sequence[float]:
        taken_s = peer.take_s(count)
        return () if taken_s is None else (taken_s,)

    work, floor_s = Work(bytes=size_bytes), meter.floors.event_pair_s
    measured = meter.collect(metric, take, clock="device", calls=count, work=work, bound=bound, floor_s=floor_s)
    return verified([measured], peer.check())


def alone_and_together(
    meter: Meter, alone: Concurrent, together: Concurrent, size_bytes: int, bound: str
) -> Iterator[Measurement | Fact]:
    """Metrics ``alone`` and ``together``: the first GPU's rate by itself and with the others, in turn."""
    alone.take_s(1)
    warm = alone.take_s(1)
    one_s = float(warm[0]) if warm is not None else SAMPLE_S
    count = min(max(round(SAMPLE_S / one_s), 1), MOST_QUEUED // 2)
    together.take_s(1)
    alone.fresh()
    together.fresh()
    busy: list[bool] = []

    def take() -> Mapping[str, float]:
        alone_s, together_s = alone.take_s(count), together.take_s(count)
        if alone_s is None or together_s is None:
            return {}
        busy.append(bool(together_s.min() >= together_s[0]))
        return {"alone": float(alone_s[0]), "together": float(together_s[0])}

    floor_s, work = meter.floors.event_pair_s, Work(bytes=size_bytes)
    both = meter.collect_each(("alone", "together"), take, clock="device", calls=count, work=work, floor_s=floor_s)
    checked = "; ".join(dict.fromkeys((alone.check(), together.check())))
    yield from verified([msgspec.structs.replace(each, bound=bound) for each in both], checked)
    yield Fact(BUSY_FACT, all(busy), source=BUSY_SOURCE)


def collective_calls(
    meter: Meter, collective: Collective, name: CollectiveName, *, small: bool, bound: str | None
) -> Iterator[Measurement | Fact]:
    """Metric ``call``: the time of one call in a batch of BATCH_OF_CALLS, until all GPUs are done, on the host's clock.

    That is how nccl-tests times. Small messages get metric ``round_trip`` besides: one call and the wait for it. Others
    get the same samples as metric ``algorithm_bandwidth`` and, with several GPUs, as ``bus_bandwidth``.
    """
    collective.take_ns(BATCH_OF_CALLS)
    collective.fresh()
    floor_s = meter.floors.timer_call_s

    def take(count: int) -> Sequence[float]:
        return (collective.take_ns(count) * NANOSECOND_S,)

    call = meter.collect("call", partial(take, BATCH_OF_CALLS), clock="host", calls=BATCH_OF_CALLS, floor_s=floor_s)
    measured = [call]
    if small:
        measured.append(meter.collect("round_trip", partial(take, 1), clock="host", floor_s=floor_s))
    else:
        work = Work(bytes=collective.size_bytes)
        measured.append(msgspec.structs.replace(call, metric="algorithm_bandwidth", work=work))
        if factor := bus_factor(name, collective.ranks):
            work = Work(bytes=round(factor * collective.size_bytes))
            measured.append(msgspec.structs.replace(call, metric="bus_bandwidth", work=work, bound=bound))
    yield from verified(measured, collective.check())
    yield from collective.facts()

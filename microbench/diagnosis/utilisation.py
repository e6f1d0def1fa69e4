"""Compares what NVML said about a GPU with what a recording of the same time shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.readings import MOST_APART_S, GpuReadings, Share
from microbench.core.units import as_time, percent
from microbench.diagnosis.idle import gaps_of
from microbench.traces.trace import WORK, WORK_KINDS, Table, Trace

KERNELS = [WORK_KINDS.index(kind) for kind in ("kernel", "graph")]
# Two samples a period: what is shorter than twice the time between them cannot be seen (Nyquist).
SAMPLES_TO_SEE = 2
Times = npt.NDArray[np.int64]


class Compared(NamedTuple):
    """Shares of the same ``span_s`` s: ``said`` by NVML, in which kernels ``ran``, and of the SMs by GPM (None: not
    given). ``apart_s`` is the time between two values of NVML."""

    span_s: float
    said: float
    ran: float
    sms: float | None
    apart_s: float


def lines(readings: Sequence[GpuReadings], traces: Sequence[Trace], reason: str) -> list[str]:
    """NVML's utilisation next to that of the recorded kernels; ``reason`` says why NVML gave none, "" if it did."""
    told = [line for gpu in readings for line in _of_gpu(gpu, traces, alone=len(readings) == 1)]
    shown = [gpu for gpu in readings if gpu.busy.values]
    if told and shown:
        told.append(limits(min(apart_s(gpu) for gpu in shown), known=all(gpu.apart_s is not None for gpu in shown)))
    why = reason or next(filter(None, (gpu.why_not.get("busy", "") for gpu in readings)), "")
    if not told:
        told = [f"no utilisation: {why or 'NVML gave no figure while the command used a GPU'}"]
    elif reason:
        told.append(f"no utilisation any more: {reason}")
    return told


def apart_s(gpu: GpuReadings) -> float:
    """The time between two values of NVML, at most."""
    return gpu.apart_s if gpu.apart_s is not None else MOST_APART_S


def limits(between_s: float, *, known: bool) -> str:
    """What samples that lie so far apart cannot show."""
    apart = f"{as_time(between_s)} apart" if known else f"at most {as_time(between_s)} apart"
    return (
        f"NVML's samples are {apart}: nothing shorter than {as_time(SAMPLES_TO_SEE * between_s)} can be seen in them, "
        "and a GPU counts as busy while any kernel runs, however small"
    )


def _of_gpu(gpu: GpuReadings, traces: Sequence[Trace], *, alone: bool) -> Iterator[str]:
    """The line of a GPU; none of one that was idle and has no recording."""
    own = [(trace, device) for trace in traces for device in _devices(trace, gpu, alone=alone)]
    found = compare(gpu, own)
    if found is not None:
        sms = f"; GPM said {percent(found.sms)} of the SMs were busy" if found.sms is not None else ""
        yield (
            f"NVML said {percent(found.said)} busy, kernels ran {percent(found.ran)} of the time "
            f"(GPU {gpu.number}, {as_time(found.span_s)}){sms}"
        )
    elif own:
        yield f"GPU {gpu.number} worked for less than two samples of NVML, so there is nothing to compare"
    elif said := mean(gpu.busy.values):
        whose = "its number is not in the recording" if traces else "nothing was recorded"
        yield f"NVML said {percent(said)} busy (GPU {gpu.number}); {whose}, so the kernels' time is not known"


def _devices(trace: Trace, gpu: GpuReadings, *, alone: bool) -> list[int]:
    """The numbers that this GPU has in a trace which can be lined up with Unix time."""
    if trace.epoch_ns is None:
        return []
    used = np.unique(trace.work["device"]).tolist()
    if alone and not trace.bus_ids:
        return used if len(used) == 1 else []
    return [device for device in used if trace.bus_ids.get(device) == gpu.bus_id]


def compare(gpu: GpuReadings, own: Sequence[tuple[Trace, int]]) -> Compared | None:
    """Compare a GPU's readings with the work that traces have on it, each given with the GPU's number there.

    Only samples count whose whole time lies within a recording. None for fewer than two of them.
    """
    apart_ns = round(apart_s(gpu) * 1e9)
    parts = [_work(trace, device) for trace, device in own]
    spans = _joined([span for (trace, _), part in zip(own, parts, strict=True) for span in _recorded(trace, part)])
    work = np.concatenate([np.empty(0, WORK), *parts])
    kernels = np.sort(work[np.isin(work["kind"], KERNELS)], order="begin_ns")
    said: list[Share] = []
    sms: list[Share] = []
    span_ns = ran_ns = 0
    for begin_ns, end_ns in spans:
        inside = [one for one in gpu.busy.values if begin_ns + apart_ns <= one.at_ns <= end_ns]
        if inside:
            first_ns, last_ns = inside[0].at_ns - apart_ns, inside[-1].at_ns
            said += inside
            sms += [one for one in gpu.sms.values if first_ns < one.at_ns <= last_ns]
            span_ns += last_ns - first_ns
            gaps = gaps_of(kernels, 0, first_ns, last_ns)
            ran_ns += last_ns - first_ns - int((gaps.end_ns - gaps.begin_ns).sum())
    if len(said) < SAMPLES_TO_SEE:
        return None
    return Compared(span_ns * 1e-9, mean(said) or 0.0, ran_ns / span_ns, mean(sms), apart_ns * 1e-9)


def mean(shares: Sequence[Share]) -> float | None:
    """The mean of shares; None for none."""
    return sum(one.share for one in shares) / len(shares) if shares else None


def _work(trace: Trace, device: int) -> Table:
    """A trace's work on a GPU in Unix time, as if of GPU 0."""
    work: Table = trace.work[trace.work["device"] == device].copy()
    for column in ("begin_ns", "end_ns"):
        work[column] += trace.epoch_ns or 0
    work["device"] = 0
    return work


def _recorded(trace: Trace, work: Table) -> Iterator[tuple[int, int]]:
    """The spans of Unix time in which a trace has all work, from the first piece to the last."""
    first_ns, last_ns = int(work["begin_ns"].min()), int(work["end_ns"].max())
    windows = [(begin + (trace.epoch_ns or 0), end + (trace.epoch_ns or 0)) for begin, end in trace.windows]
    for begin_ns, end_ns in windows or [(first_ns, last_ns)]:
        if begin_ns < last_ns and end_ns > first_ns:
            yield max(begin_ns, first_ns), min(end_ns, last_ns)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of time, those that touch joined."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined

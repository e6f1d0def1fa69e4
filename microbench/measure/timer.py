"""Time on the device alone: calls queued behind a gate, so that submission is over before the first may run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.core.errors import MeasurementError
from microbench.core.model import Clock, Floors, Measurement, PerCall, Work
from microbench.core.ops import IntArray, Launch
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Gpu, HostClock
from microbench.gpu.protocol.submit import Submit
from microbench.measure.sampling import (
    NANOSECOND_S,
    Sampler,
    SamplingLimits,
    Tick,
    kept,
    no_tick,
    per_call_distribution,
)

WARM_UP_CALLS = 20


def gated(gpu: Gpu, submit: Submit, count: int) -> Callable[[], Sequence[float]]:
    """What times ``count`` calls of an op of stream 0 between two events, in seconds; nothing where the gate was late.

    As many calls must fit the launch queue.
    """
    gate, events = gpu.gate(), gpu.events()
    submit(min(count, WARM_UP_CALLS))  # first launches load code, which would block behind a shut gate
    gpu.synchronize()

    def take() -> Sequence[float]:
        gate.shut()
        events.start()
        submit(count)
        events.stop()
        gate.open()
        gpu.synchronize()
        return () if gate.was_late() else (events.elapsed_s(),)

    return take


# THE TIMER: Meter: warm up, calibrate the burst, sample until the interval is narrow or time is up.


CLOCK_STEPS_PER_SAMPLE = 100
BURST_S = 1e-3
WORK_S = 5e-3
LONGEST_BURST = 300
SHORTEST_BURST = 10
STAMPED_BURSTS = 20


def _one_of(name: str, taken: Mapping[str, float]) -> Sequence[float]:
    return (taken[name],) if taken else ()


def _batch_median(name: str, batch: Mapping[str, FloatArray]) -> Sequence[float]:
    return (float(np.median(batch[name])),) if batch else ()


class Meter:
    """Samples for one case. Time is read from the GPU's (or host's) clock only, so the fake's virtual one serves too.

    ``gpu`` is None in the host suite. ``tick`` is told the metric, the samples so far and their median.
    """

    def __init__(
        self,
        clock: HostClock,
        gpu: Gpu | None = None,
        floors: Floors | None = None,
        limits: SamplingLimits | None = None,
        tick: Tick = no_tick,
    ) -> None:
        self.clock = clock
        self._gpu = gpu
        self.floors = floors or Floors()
        self.limits = limits or SamplingLimits()
        self.sampler = Sampler(clock, self.limits, tick)

    @property
    def gpu(self) -> Gpu:
        """The GPU under test. Raises MeasurementError in a host benchmark."""
        if self._gpu is None:
            raise MeasurementError("a host benchmark has no GPU")
        return self._gpu

    def collect(
        self,
        metric: str,
        take: Callable[[], Sequence[float]],
        *,
        clock: Clock,
        calls: int = 1,
        work: Work | None = None,
        bound: str | None = None,
        verified: str | None = None,
        needs_verification: bool = False,
        floor_s: float | None = None,
        resolution: float | None = None,
        minimum: int | None = None,
        per_call: Callable[[], PerCall | None] | None = None,
    ) -> Measurement:
        """Call ``take`` until its samples are enough; each returns raw readings covering ``calls`` calls each.

        ``resolution`` is the step of the clock where it is not that of the floors. An empty return is a void sample (a
        gate that timed out). Raises MeasurementError after VOID_SAMPLES of them.
        """
        step = resolution if resolution is not None else self._resolution(clock)
        samples, stopped = self.sampler.sample({metric: lambda batch: batch}, take, calls, minimum, step or 0.0)
        return Measurement(
            metric=metric,
            clock=clock,
            samples=kept(samples[metric]),
            n=len(samples[metric]),
            calls_per_sample=calls,
            work=work or Work(),
            bound=bound,
            verified=verified,
            needs_verification=needs_verification,
            per_call=per_call() if per_call else None,
            floor_s=floor_s,
            resolution=step,
            stopped=stopped,
        )

    def collect_stamps(
        self,
        take: Callable[[], IntArray],
        metrics: Mapping[str, Callable[[IntArray], FloatArray]],
        clock: Clock = "host",
        resolution: float | None = None,
        verified: str | None = None,
    ) -> list[Measurement]:
        """Several metrics of the same stamps: each of ``metrics`` turns a batch of stamps (ns) into calls in seconds.

        A sample is the median of a batch, as neighbouring calls resemble each other; all calls give the percentiles. A
        batch that leaves a metric without calls is void.
        """
        step = resolution if resolution is not None else self._resolution(clock)
        calls: dict[str, list[FloatArray]] = {name: [] for name in metrics}

        def batch() -> dict[str, FloatArray]:
            stamps = take()
            found = {name: calls_of(stamps) for name, calls_of in metrics.items()}
            if not all(one.size for one in found.values()):
                return {}
            for name, one in found.items():
                calls[name].append(one)
            return found

        samples, stopped = self.sampler.sample(
            {name: partial(_batch_median, name) for name in metrics}, batch, 1, None, step or 0.0
        )
        return [
            Measurement(
                metric=name,
                clock=clock,
                samples=kept(values),
                n=len(values),
                verified=verified,
                per_call=per_call_distribution(np.concatenate(calls[name])) if clock == "host" else None,
                floor_s=self.floors.timer_call_s if clock == "host" else None,
                resolution=step,
                stopped=stopped,
            )
            for name, values in samples.items()
        ]

    def collect_each(
        self,
        names: Sequence[str],
        take: Callable[[], Mapping[str, float]],
        *,
        clock: Clock = "host",
        calls: int = 1,
        work: Work | None = None,
        verified: str | None = None,
        floor_s: float | None = None,
    ) -> list[Measurement]:
        """Several metrics of which ``take`` gives one sample each at a time, in seconds; none is a void sample."""
        step = self._resolution(clock)
        samples, stopped = self.sampler.sample(
            {name: partial(_one_of, name) for name in names}, take, calls, None, step or 0.0
        )
        floor = floor_s if floor_s is not None or clock != "host" else self.floors.timer_call_s
        return [
            Measurement(
                metric=name,
                clock=clock,
                samples=kept(values),
                n=len(values),
                calls_per_sample=calls,
                work=work or Work(),
                verified=verified,
                floor_s=floor,
                resolution=step,
                stopped=stopped,
            )
            for name, values in samples.items()
        ]

    def _resolution(self, clock: Clock) -> float | None:
        return {"host": self.floors.timer_step_s, "device": self.floors.event_step_s}.get(clock)

    def once(self, metric: str, elapsed_s: float) -> Measurement:
        """What can be seen once a process only: a single sample of the host's clock."""
        floors = self.floors
        return Measurement(
            metric, "host", kept((elapsed_s,)), 1, floor_s=floors.timer_call_s, resolution=floors.timer_step_s
        )

    def counted(self, metric: str, counts: Sequence[float]) -> Measurement:
        """What was counted rather than timed: one sample for each time that it was counted."""
        return Measurement(metric=metric, clock="counter", samples=kept(counts), n=len(counts))

    # -- ways of timing ----------------------------------------------------------------------------------------

    def burst(self, submit: Submit) -> int:
        """Warm up and find how many calls make one sample: about BURST_S long, at least CLOCK_STEPS_PER_SAMPLE of the
        clock's steps, at most what may stand in the launch queue, and WORK_S of the GPU's time."""
        submit(WARM_UP_CALLS)
        self.gpu.synchronize()
        began_ns = self.clock.now_ns()
        call_s = max(submit.burst_ns(WARM_UP_CALLS) * NANOSECOND_S / WARM_UP_CALLS, NANOSECOND_S)
        self.gpu.synchronize()
        done_s = (self.clock.now_ns() - began_ns) * NANOSECOND_S / WARM_UP_CALLS
        count = min(round(BURST_S / call_s), round(WORK_S / done_s), LONGEST_BURST)
        long_s = CLOCK_STEPS_PER_SAMPLE * (self.floors.timer_step_s or 0.0)
        count = max(count, SHORTEST_BURST, round(long_s / call_s))
        return min(count, submit.queue_slots) if submit.queue_slots else count

    def submit_time(self, metric: str, submit: Submit, *, per_call: bool = True) -> Measurement:
        """Host time of a call, t1 - t0: bursts well under the queue depth, the GPU idle before each."""
        count = self.burst(submit)

        def take() -> Sequence[float]:
            self.gpu.synchronize()
            return (submit.burst_ns(count) * NANOSECOND_S,)

        result = self.collect(
            metric,
            take,
            clock="host",
            calls=count,
            work=Work(launches=1),
            floor_s=self.floors.timer_call_s,
            per_call=(lambda: self._stamped(submit, count)) if per_call else None,
        )
        self.gpu.synchronize()
        return result

    def _stamped(self, submit: Submit, count: int) -> PerCall:
        """Every call of some more bursts stamped; a stamp's own cost (floors.timer_call_s) is in each figure."""
        stamps = np.zeros(count + 1, dtype=np.int64)
        calls = []
        began_ns = self.clock.now_ns()
        for _ in range(STAMPED_BURSTS):
            self.gpu.synchronize()
            submit.stamps(stamps)
            calls.append(np.diff(stamps) * NANOSECOND_S)
            if (self.clock.now_ns() - began_ns) * NANOSECOND_S > self.limits.seconds / 2:
                break
        return per_call_distribution(np.concatenate(calls))

    def round_trip(self, metric: str, submit: Submit, batch: int = 20) -> Measurement:
        """One call and a synchronise; a sample is the median of ``batch`` of them."""
        out_ns = np.zeros(batch, dtype=np.int64)
        submit.round_trips(out_ns)

        def take() -> IntArray:
            submit.round_trips(out_ns)
            return out_ns

        return self.collect_stamps(take, {metric: lambda stamps: stamps.astype(np.float64) * NANOSECOND_S})[0]

    def throughput(self, metric: str, submit: Submit, count: int, *, work: Work | None = None) -> Measurement:
        """``count`` calls of an op of stream 0 and one synchronise, on the host's clock."""

        def take() -> Sequence[float]:
            begin_ns = self.clock.now_ns()
            submit(count)
            self.gpu.synchronize_stream()
            return ((self.clock.now_ns() - begin_ns) * NANOSECOND_S,)

        submit(min(count, WARM_UP_CALLS))
        self.gpu.synchronize()
        return self.collect(
            metric, take, clock="host", calls=count, work=work or Work(launches=1), floor_s=self.floors.timer_call_s
        )

    def device_time(
        self,
        metric: str,
        submit: Submit,
        count: int,
        *,
        parts: int = 1,
        work: Work | None = None,
        bound: str | None = None,
    ) -> Measurement:
        """Time of ``count`` calls of an op of stream 0 on the device alone: all queued behind a gate before the first
        may run, between two events. The figure is that of one of the ``parts`` (nodes) of a call.

        Raises MeasurementError when the calls would not fit the launch queue.
        """
        slots = submit.queue_slots or SAFE_QUEUE_SLOTS
        if count + 2 > slots:
            raise MeasurementError(f"{metric}: {count} calls do not fit behind a gate ({slots} may)")
        take = gated(self.gpu, submit, count)
        return self.collect(
            metric,
            take,
            clock="device",
            calls=count * parts,
            work=work or Work(launches=1),
            bound=bound,
            floor_s=self.floors.event_pair_s,
        )


# What kernels record of themselves: the gaps between them and their durations, queued behind a gate.


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

"""The Meter: warms up, sizes a burst, samples until the median is certain or time is up, and returns a Measurement.

The path of a sample: a benchmark's ``measure`` calls a method such as ``submit_time``. This defines ``take``, which
times one burst of calls, and passes it to ``collect``. ``collect`` calls ``sample``, the one loop that all measurements
share.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, Unpack

import msgspec
import numpy as np

from microbench.analysis.quantiles import FloatArray
from microbench.analysis.stats import median_interval
from microbench.core.errors import MeasurementError
from microbench.core.model import Clock, Floors, Measurement, PerCall, Stopped, Work
from microbench.core.ops import IntArray, Launch, Memset
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Gpu, HostClock, Submit
from microbench.meter.sampling import NANOSECOND_S, Sample, SamplingLimits, per_call_distribution, seconds, stored

WARM_UP_CALLS = 20
CLOCK_STEPS_PER_SAMPLE = 100
BURST_S = 1e-3
WORK_S = 5e-3
LONGEST_BURST = 300
SHORTEST_BURST = 10
STAMPED_BURSTS = 20
GAP_STEPS = 5
VOID_SAMPLES = 20
# A memset of this many times the L2's size replaces everything in it; this size is assumed if the driver does not
# report one.
L2S_TO_CLEAR, ASSUMED_L2_BYTES = 2, 128 << 20
# The display takes a minute's silence for a hang, so samples that take seconds are reported one by one.
LONG_SAMPLE_S = 1.0

Tick = Callable[[str, int, float], None]


class Fields(TypedDict, total=False):
    """Fields of a Measurement that are passed on to it. ``resolution`` defaults to the clock's step in the floors; no
    interval is taken as narrower. ``floor_s`` of the host's clock defaults to the cost of a reading."""

    work: Work
    bound: str | None
    verified: str | None
    needs_verification: bool
    floor_s: float | None
    resolution: float | None


class Meter:
    """Takes the samples of one case. It reads time only from the GPU's or host's clock, so a virtual clock works too.

    ``gpu`` is None in the host suite. ``tick`` gets the metric, the number of samples so far and their median.
    """

    def __init__(
        self,
        clock: HostClock,
        gpu: Gpu | None = None,
        floors: Floors | None = None,
        limits: SamplingLimits | None = None,
        tick: Tick = lambda metric, n, value: None,
    ) -> None:
        self.clock = clock
        self._gpu = gpu
        self.floors = floors or Floors()
        self.limits = limits or SamplingLimits()
        self.tick = tick

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
        per_call: Callable[[], PerCall | None] | None = None,
        **fields: Unpack[Fields],
    ) -> Measurement:
        """One metric of which ``take`` returns raw samples, or nothing. ``per_call`` is called after sampling."""
        (measurement,) = self.sample((metric,), lambda: {metric: take()}, clock=clock, calls=calls, **fields)
        return msgspec.structs.replace(measurement, per_call=per_call()) if per_call else measurement

    def host_ns(
        self, metric: str, take_ns: Callable[[], int], *, calls: int = 1, **fields: Unpack[Fields]
    ) -> Measurement:
        """One metric of which ``take_ns`` returns one sample, in ns of the host's clock."""
        return self.collect(metric, lambda: (take_ns() * NANOSECOND_S,), calls=calls, clock="host", **fields)

    def collect_each(
        self,
        names: Sequence[str],
        take: Callable[[], Sample],
        *,
        clock: Clock = "host",
        calls: int = 1,
        **fields: Unpack[Fields],
    ) -> list[Measurement]:
        """Several metrics of which ``take`` returns one sample each, in seconds, or nothing."""

        def batch() -> Mapping[str, Sequence[float]]:
            return {name: (value,) for name, value in take().items()}

        return self.sample(names, batch, clock=clock, calls=calls, **fields)

    def collect_stamps(
        self,
        take: Callable[[], IntArray],
        metrics: Mapping[str, Callable[[IntArray], FloatArray]],
        clock: Clock = "host",
        resolution: float | None = None,
        verified: str | None = None,
    ) -> list[Measurement]:
        """Several metrics of the same stamps: each of ``metrics`` turns a batch of stamps (ns) into calls in seconds.

        A sample is the median of a batch, because neighbouring calls resemble each other; all calls give the
        percentiles. A batch without calls for one of the metrics is void.
        """
        calls: dict[str, list[FloatArray]] = {name: [] for name in metrics}

        def medians() -> Sample:
            stamps = take()
            calls_s = {name: calls_of(stamps) for name, calls_of in metrics.items()}
            if not all(values.size for values in calls_s.values()):
                return {}
            for name, values in calls_s.items():
                calls[name].append(values)
            return {name: float(np.median(values)) for name, values in calls_s.items()}

        names = tuple(metrics)
        measurements = self.collect_each(names, medians, clock=clock, verified=verified, resolution=resolution)
        if clock != "host":
            return measurements
        return [
            msgspec.structs.replace(each, per_call=per_call_distribution(np.concatenate(calls[each.metric])))
            for each in measurements
        ]

    def sample(
        self,
        names: Sequence[str],
        take: Callable[[], Mapping[str, Sequence[float]]],
        *,
        clock: Clock,
        calls: int = 1,
        **fields: Unpack[Fields],
    ) -> list[Measurement]:
        """Call ``take`` until every metric has enough samples. It returns a batch of them for each metric, or nothing.

        A sample covers ``calls`` calls. Sampling ends when all medians are narrow, when time is up or when no more
        samples are stored, but not before the minimum of the limits. The first metric is shown and counted. A batch
        without samples is void: a gate timed out. Raises MeasurementError after VOID_SAMPLES of them in a row.
        """
        step = fields.get("resolution")
        if step is None:
            step = {"host": self.floors.timer_step_s, "device": self.floors.event_step_s}.get(clock)
        fields["resolution"] = step
        if clock == "host":
            fields.setdefault("floor_s", self.floors.timer_call_s)
        limits, first = self.limits, names[0]
        samples: dict[str, list[float]] = {name: [] for name in names}
        began_ns, taken, checked, void, ticked_s = self.clock.now_ns(), 0, 0, 0, 0.0
        stopped: Stopped
        while True:
            batch, before = take(), taken
            for name, values in samples.items() if batch else ():
                values.extend(map(float, batch[name]))
            taken = len(samples[first])
            void = void + 1 if taken == before else 0
            if void >= VOID_SAMPLES:
                raise MeasurementError(
                    f"{first}: {VOID_SAMPLES} samples in a row were void (a gate timed out, flags were missed)"
                )
            elapsed_s = (self.clock.now_ns() - began_ns) * NANOSECOND_S
            if taken >= limits.minimum and elapsed_s >= limits.seconds:
                stopped = "time"
                break
            if taken and elapsed_s - ticked_s > LONG_SAMPLE_S:
                ticked_s = elapsed_s
                self.tick(first, taken, float(np.median(samples[first])) / calls)
            if taken >= max(limits.minimum, checked * 1.2) and taken > checked:
                checked = taken
                self.tick(first, taken, float(np.median(samples[first])) / calls)
                if elapsed_s >= limits.least_share * limits.seconds and all(
                    len(values) >= limits.minimum
                    and median_interval(values, step or 0.0).half_width <= limits.half_width
                    for values in samples.values()
                ):
                    stopped = "narrow"
                    break
            if taken >= limits.maximum:
                stopped = "count"
                break
        return [
            Measurement(name, clock, stored(values), len(values), calls_per_sample=calls, stopped=stopped, **fields)
            for name, values in samples.items()
        ]

    def once(self, metric: str, elapsed_s: float) -> Measurement:
        """A single sample of the host's clock, for what happens only once a process."""
        floors = self.floors
        return Measurement(
            metric, "host", stored((elapsed_s,)), 1, floor_s=floors.timer_call_s, resolution=floors.timer_step_s
        )

    def counted(self, metric: str, counts: Sequence[float]) -> Measurement:
        return Measurement(metric, "counter", stored(counts), len(counts))

    def burst(self, submit: Submit) -> int:
        """Warm up and find how many calls make one sample.

        A sample is about BURST_S long, at least CLOCK_STEPS_PER_SAMPLE of the clock's steps and at most WORK_S of the
        GPU's time, and its calls fit the launch queue.
        """
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

    def submit_time(
        self, metric: str, submit: Submit, *, per_call: bool = True, calls: int | None = None
    ) -> Measurement:
        """Host time of a call (t1 - t0) in bursts well under the queue depth, with the GPU idle before each.

        ``calls`` is the length of a burst where the caller knows it, which spares the calls that find it out.
        """
        count = calls or self.burst(submit)

        def take() -> Sequence[float]:
            self.gpu.synchronize()
            return (submit.burst_ns(count) * NANOSECOND_S,)

        result = self.collect(
            metric,
            take,
            clock="host",
            calls=count,
            work=Work(launches=1),
            per_call=(lambda: self._stamped(submit, count)) if per_call else None,
        )
        self.gpu.synchronize()
        return result

    def _stamped(self, submit: Submit, count: int) -> PerCall:
        """Single calls of more bursts; each includes the cost of a stamp (floors.timer_call_s)."""
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
        """Host time of one call and a synchronise; a sample is the median of ``batch`` of them."""
        out_ns = np.zeros(batch, dtype=np.int64)
        submit.round_trips(out_ns)

        def take() -> IntArray:
            submit.round_trips(out_ns)
            return out_ns

        return self.collect_stamps(take, {metric: seconds})[0]

    def throughput(self, metric: str, submit: Submit, count: int, *, parts: int = 1) -> Measurement:
        """Host time of ``count`` calls of an op of stream 0 and one synchronise.

        The value is that of one of the ``parts`` of a call.
        """

        def take() -> Sequence[float]:
            begin_ns = self.clock.now_ns()
            submit(count)
            self.gpu.synchronize_stream()
            return ((self.clock.now_ns() - begin_ns) * NANOSECOND_S,)

        submit(min(count, WARM_UP_CALLS))
        self.gpu.synchronize()
        return self.collect(metric, take, clock="host", calls=count * parts, work=Work(launches=1))

    def device_time(self, metric: str, submit: Submit, count: int, *, parts: int = 1) -> Measurement:
        """Device time of ``count`` calls of an op of stream 0, as ``gated`` takes it.

        The value is that of one of the ``parts`` (nodes) of a call. Raises MeasurementError if the calls do not fit the
        launch queue.
        """
        slots = submit.queue_slots or SAFE_QUEUE_SLOTS
        if count + 2 > slots:
            raise MeasurementError(f"{metric}: {count} calls do not fit behind a gate ({slots} may)")
        take, floor_s = gated(self.gpu, submit, count), self.floors.event_pair_s
        return self.collect(metric, take, clock="device", calls=count * parts, work=Work(launches=1), floor_s=floor_s)


def gated(
    gpu: Gpu, submit: Submit, count: int, *, stream: int = 0, before: Submit | None = None
) -> Callable[[], Sequence[float]]:
    """A function that times ``count`` calls of an op of that stream on the device alone, in seconds.

    A shut gate holds the stream until all calls are queued, so the two events around them see no submission. The result
    is empty if the gate timed out before that. The calls must fit the launch queue. ``before`` is submitted ahead of
    the gate, so it has ended before the calls begin.
    """
    gate, events = gpu.gate(), gpu.events(stream)
    submit(min(count, WARM_UP_CALLS))  # first launches load code, which would block behind a shut gate
    gpu.synchronize()

    def take() -> Sequence[float]:
        if before is not None:
            before(1)
        gate.shut((stream,))
        events.start()
        submit(count)
        events.stop()
        gate.open()
        gpu.synchronize()
        return () if gate.was_late() else (events.elapsed_s(),)

    return take


def cold(gpu: Gpu, submit: Submit, stream: int = 0) -> Callable[[], Sequence[float]]:
    """A function that times one call as ``gated`` does, with other data in the L2.

    As in nvbench, the L2 is overwritten first and the stream is held then.
    """
    clear = gpu.bind(Memset(L2S_TO_CLEAR * (gpu.info.l2_bytes or ASSUMED_L2_BYTES), stream))
    return gated(gpu, submit, 1, stream=stream, before=clear)


def duration(meter: Meter, metric: str, launch: Launch, count: int) -> Measurement:
    """Kernel duration as gated kernels stamp it themselves; a sample is the sum over ``count`` of them."""
    step_s = meter.gpu.record(launch, count, graph=False, gated=True).step_ns * NANOSECOND_S

    def take() -> Sequence[float]:
        recorded = meter.gpu.record(launch, count, graph=False, gated=True)
        return (float((recorded.end_ns - recorded.start_ns).sum()) * NANOSECOND_S,)

    return meter.collect(metric, take, clock="device", calls=count, floor_s=step_s, resolution=step_s)


def gap(meter: Meter, metric: str, launch: Launch, count: int = 200, *, graph: bool = False) -> Measurement:
    """GPU idle time between gated kernels, from the start and end that each stamps itself.

    A sample is the sum over a batch of ``count`` kernels; %globaltimer's step is its floor. Percentiles are left out if
    a gap has fewer than GAP_STEPS of these steps, because they would be the timer's.
    """
    gaps_s: list[FloatArray] = []
    step_s = meter.gpu.record(launch, count, graph=graph, gated=True).step_ns * NANOSECOND_S

    def take() -> Sequence[float]:
        recorded = meter.gpu.record(launch, count, graph=graph, gated=True)
        gaps_s.append((recorded.start_ns[1:] - recorded.end_ns[:-1]) * NANOSECOND_S)
        return (float(gaps_s[-1].sum()),)

    def distribution() -> PerCall | None:
        gaps = np.concatenate(gaps_s)
        return per_call_distribution(gaps) if step_s * GAP_STEPS <= abs(float(np.median(gaps))) else None

    verified = "every kernel stamped its own start and end"
    return meter.collect(
        metric, take, clock="device", calls=count - 1, work=Work(launches=1), floor_s=step_s, resolution=step_s,
        verified=verified, per_call=distribution,
    )  # fmt: skip

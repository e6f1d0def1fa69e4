"""How slow are the slowest launches of a million, and what do they share?

Question
    How long are p99.9, p99.99 and the longest of many launch calls? Is the launch itself slow then, or does something
    stop the core? Do slow calls repeat in time, as timer interrupts do, or after a number of calls?
Method
    Bursts of stamped launches of an empty kernel, with the GPU idle before each; the first calls after a wait are not
    counted. After each burst the same core queries an event that has happened, which submits nothing, for about as
    long. A stop is a call that takes 3 us longer than the median of its kind. The system counts how often the thread
    left its core during the bursts, and how many interrupts the core served. beside: during a burst another stream
    copies from pinned memory (copy) or runs a kernel on every SM (kernel); the calls go into a stream of the highest
    priority beside that kernel (priority); or a second process on a core of its own launches kernels on every SM
    (process).
Reading
    If launches and queries are stopped equally often, the machine stops the core, and no launch is slow by itself.
    Percentiles and rates of stops are taken over each tenth of the calls. A call is slow if it takes twice the median
    or longer.
"""

import numpy as np
import numpy.typing as npt

from microbench.core.bench import Axis, Benchmark, always
from microbench.core.ops import HIGH_PRIORITY_STREAM, Copy, IntArray, Launch, Query
from microbench.experiments.launch.second_process import core_interrupts, second_process, thread_state
from microbench.meter import tails
from microbench.meter.benchmark import Fact, Gpu, Measurement, Meter, Metric, Results, Skip, Submit
from microbench.meter.sampling import NANOSECOND_S, stored

# All calls of a burst, including the LEAD_IN calls that are not counted, fit into the launch queue.
LEAD_IN, BURST, QUERIES = 50, 400, 1500
PARTS = 10
TICK_BURSTS = 250  # bursts between two lines of progress
STOP_NS = 3000
BESIDE_BYTES, BESIDE_NS = 64 << 20, 2_000_000
QUANTILES = {"p999": 0.999, "p9999": 0.9999, "worst": 1.0}
BESIDE = {
    "nothing": "nothing", "copy": "a copy", "kernel": "a kernel", "priority": "a kernel of lower priority",
    "process": "a second process",
}  # fmt: skip
# Why the thread left its core: a fact and its source for each column of ``left``.
LEAVING = {
    "waits": "voluntary context switches in bursts",
    "preemptions": "involuntary context switches in bursts",
}


def other_work(gpu: Gpu, beside: str) -> Submit | None:
    """What runs in another stream of this process during a burst, for about as long as the burst."""
    if beside == "copy":
        return gpu.bind(Copy("h2d", BESIDE_BYTES, stream=1))
    if beside in ("kernel", "priority"):
        return gpu.bind(Launch(BESIDE_NS, grid_blocks=gpu.info.sm_count or 1, stream=1))
    return None


def interrupts(gpu: Gpu) -> int | str:
    """How many interrupts the core has served so far, or why they are not known."""
    try:
        return core_interrupts(gpu)
    except Skip as skip:
        return str(skip)


def stops(durations_ns: IntArray) -> int:
    """How many calls were stopped."""
    return int((durations_ns >= np.median(durations_ns) + STOP_NS).sum())


def measure(gpu: Gpu, meter: Meter, launches: int, beside: str) -> Results:
    if beside == "process":
        yield second_process(gpu)
    submit = gpu.bind(Launch(stream=HIGH_PRIORITY_STREAM if beside == "priority" else 0))
    query, other = gpu.bind(Query()), other_work(gpu, beside)
    bursts = max(launches // BURST, PARTS)
    stamps: IntArray = np.zeros((bursts, BURST + 1), dtype=np.int64)
    readings: IntArray = np.zeros(QUERIES + 1, dtype=np.int64)
    idle_stops, idle_ns = np.zeros(bursts), np.zeros(bursts)
    left: IntArray = np.zeros((bursts, len(LEAVING)), dtype=np.int64)
    began_ns, served = gpu.clock.now_ns(), interrupts(gpu)
    for number, burst in enumerate(stamps):
        gpu.synchronize()
        if other is not None:
            other(1)
        before = thread_state(gpu)
        submit(LEAD_IN)
        submit.stamps(burst)
        after = thread_state(gpu)
        left[number] = after.waits - before.waits, after.preemptions - before.preemptions
        query.stamps(readings)
        idle_stops[number], idle_ns[number] = stops(np.diff(readings)), readings[-1] - readings[0]
        if number % TICK_BURSTS == TICK_BURSTS - 1:
            meter.tick("p9999", number + 1, float(np.quantile(np.diff(stamps[: number + 1]), 0.9999)) * NANOSECOND_S)
    yield interrupt_rate(served, interrupts(gpu), (gpu.clock.now_ns() - began_ns) * NANOSECOND_S)
    gpu.synchronize()
    durations_ns = np.diff(stamps)
    parts = np.array_split(durations_ns, PARTS)
    for name, share in QUANTILES.items():
        values = [float(np.quantile(part, share)) * NANOSECOND_S for part in parts]
        yield Measurement(
            name, "host", stored(values), len(values), floor_s=meter.floors.timer_call_s,
            resolution=meter.floors.timer_step_s, stopped="count",
        )  # fmt: skip
    yield meter.counted("stops", [stops(part) / (part.sum() * NANOSECOND_S) for part in parts])
    idle = zip(np.array_split(idle_stops, PARTS), np.array_split(idle_ns, PARTS), strict=True)
    yield meter.counted("idle_stops", [float(stopped.sum() / (ns.sum() * NANOSECOND_S)) for stopped, ns in idle])
    yield from shared(stamps, durations_ns)
    yield from off_core(left, tails.slow(durations_ns))


def interrupt_rate(before: int | str, after: int | str, seconds: float) -> Fact:
    """How many interrupts the core served in a second, from two readings of ``interrupts``."""
    for reading in (before, after):
        if isinstance(reading, str):
            return Fact("interrupts", None, source="/proc/interrupts", reason=reading)
    return Fact("interrupts", round((int(after) - int(before)) / seconds, 1), source="/proc/interrupts", unit="1/s")


def off_core(left: IntArray, slow: npt.NDArray[np.bool_]) -> Results:
    """How often the thread left its core, and how many of the slow calls are in bursts in which it did."""
    for (name, source), count in zip(LEAVING.items(), left.sum(axis=0), strict=True):
        yield Fact(name, int(count), source=source)
    off = left.any(axis=1)
    if off.any() and slow.any():
        yield Fact(
            "off_core_bursts", round(float(off.mean()), 4), source="bursts in which the thread left its core", unit="1"
        )
        yield Fact(
            "off_core_slow", round(float(slow[off].sum() / slow.sum()), 4), source="slow calls in such bursts", unit="1"
        )


def shared(stamps: IntArray, durations_ns: IntArray) -> Results:
    """What the slow calls have in common."""
    slow = tails.slow(durations_ns)
    yield Fact("slow_calls", int(slow.sum()), source=f"{tails.SLOW_TIMES:g} times the median and more")
    begins_ns = stamps[:, :-1]
    tick = tails.tick(begins_ns[slow].astype(np.float64), begins_ns.ravel().astype(np.float64))
    period = tails.every([np.flatnonzero(row) for row in slow if row.any()])
    for name, unit, found in (("slow_tick", "s", tick), ("slow_every", "launch", period)):
        if found is None:
            yield Fact(name, "none", source="stamps of calls")
        else:
            value = found.period * NANOSECOND_S if unit == "s" else int(found.period)
            yield Fact(name, value, source="stamps of calls", unit=unit)
            yield Fact(f"{name}_share", round(found.share, 4), source="stamps of calls", unit="1")


BENCHMARK = Benchmark(
    title="The slowest launches",
    metrics=(
        Metric("p999", "time", "s/launch", "999 of 1000 calls take less"),
        Metric("p9999", "time", "s/launch", "9999 of 10 000 calls take less"),
        Metric("worst", "time", "s/launch", "the longest call"),
        Metric("stops", "count", "1/s", "launch calls that take 3 µs longer than their median, per second of calls"),
        Metric("idle_stops", "count", "1/s", "the same for queries of an event, which submit nothing"),
    ),
    axes={
        "launches": Axis.same("launch calls", (1_000_000,), minimum=100_000, maximum=10_000_000),
        "beside": Axis("what runs beside", ("nothing",), ("nothing",), tuple(BESIDE), labels=BESIDE),
    },
    late=always,  # a million calls take seconds
)

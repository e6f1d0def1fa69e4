"""Measures matrix products: rate and SM clock of the fastest way, bandwidth, energy, and the course over seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import SAMPLES_KEPT, Fact, Measurement, Series, Telemetry, Work
from microbench.gpu.protocol.compute import ACCUMULATORS, INTEGER_TYPES, ClockBracket, Gemm, GemmType, Library, Problem
from microbench.gpu.protocol.gpu import EventPair, Gate, Gpu
from microbench.meter.counters import power
from microbench.meter.sampling import NANOSECOND_S, now_s, shortened, stored
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified
from microbench.meter.tuning import REST_S, SAMPLE_S, as_clock, bracketed, fastest, most_queued, settled_s, warm

SMALLEST = 256
SHORTEST_THROUGHPUT = 10
GRAPH_CALLS = 20
MOST_REPLAYS = 20
# A board's slower power control averages over about a second (see REST_S), so ratios of sustained rates need blocks as
# long. In half of a short block the clock at least falls to the level that the product allows at first.
BLOCK_S, SHORT_BLOCK_S = 1.0, 0.2
BATCHES_PER_BLOCK = 20
# Slow products and gates that time out may lengthen a block up to this factor.
LONGEST_BLOCKS, VOID_BLOCK_S = 10, 20.0


class Shape(NamedTuple):
    """Rows, columns and depth of a product."""

    rows: int
    columns: int
    depth: int


def problem_that_fits(gpu: Gpu, dtype: GemmType, shape: Shape) -> tuple[Problem, Fact]:
    """The product of a shape, halved until it fits the free memory; the fact ``shape`` says which shape it is.

    Raises Skip if not even SMALLEST fits.
    """
    fitting, free_bytes = shape, gpu.compute.free_bytes()
    while gpu.compute.needed_bytes(dtype, *fitting) > free_bytes and min(fitting) // 2 >= SMALLEST:
        fitting = Shape(*(size // 2 for size in fitting))
    source = "as asked" if fitting == shape else f"halved until it fitted the {free_bytes} B free"
    return gpu.compute.problem(dtype, *fitting), Fact("shape", "x".join(map(str, fitting)), source=source)


def rate_name(dtype: GemmType) -> str:
    """The metric's name: rates of floating-point and of integer operations are different metrics."""
    return "integer_rate" if dtype in INTEGER_TYPES else "rate"


def work_of(dtype: GemmType, operations: int) -> Work:
    """The work of one call; floating-point operations are flops."""
    return Work(operations=operations) if dtype in INTEGER_TYPES else Work(flops=operations)


def product(meter: Meter, problem: Problem, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """Rate and SM clock of cuBLASLt's fastest way, on the device alone and at a steady clock."""
    best, candidate = fastest(meter, problem, "cublaslt")
    yield candidate
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from rate(meter, best, dtype, problem.operations)


def against_cublaslt(meter: Meter, problem: Problem, dtype: GemmType, library: Library) -> Iterator[Measurement | Fact]:
    """The same as ``product`` for another library, and its rate divided by that of cuBLASLt.

    The other library, cuBLASLt and the other library again run in a block each, on operands of the same kind, and the
    second half of a block counts: at the power limit each product has a clock of its own, which batches of milliseconds
    in turn would share. Metric ``against_per_clock`` is the ratio for each cycle of the SMs' clock. Metric ``against``,
    that of the sustained rates, needs blocks of BLOCK_S; in a run with less time a fact says so.
    """
    theirs, candidate = fastest(meter, problem, library)
    yield candidate
    yield Fact("accumulator", ACCUMULATORS[dtype], source="what the library says of itself")
    try:
        ours, _ = fastest(meter, problem, "cublaslt")
    except Skip as skip:
        yield Fact("against", None, reason=str(skip))
        yield from rate(meter, theirs, dtype, problem.operations)
        return
    lasting_s, name = meter.limits.seconds, rate_name(dtype)
    block_s = BLOCK_S if lasting_s >= BLOCK_S else min(lasting_s, SHORT_BLOCK_S)
    batch_s = max(block_s / BATCHES_PER_BLOCK, SAMPLE_S)
    (their_calls, their_batch), (our_calls, our_batch) = (
        _batches(meter, gemm, dtype, batch_s) for gemm in (theirs, ours)
    )
    first = _settled(meter, their_batch, block_s)
    our = _settled(meter, our_batch, block_s)
    theirs.fresh()  # the last block, so that the result that is checked is this library's
    last = _settled(meter, their_batch, block_s)
    checked = theirs.check()
    their, pairs = [*first, *last], [pair for block in (first, last) for pair in zip(block, our, strict=False)]
    ratios = np.array([our[name] / our_calls / (their[name] / their_calls) for their, our in pairs])
    clocks = np.array([our["sm_clock"] / their["sm_clock"] for their, our in pairs])
    yield from verified(
        [
            Measurement(
                name, "device", stored([batch[name] for batch in their]), len(their), their_calls,
                work=work_of(dtype, problem.operations), bound=f"gemm:{dtype}", floor_s=meter.floors.event_pair_s,
                resolution=meter.floors.event_step_s,
            )
        ],
        checked,
    )  # fmt: skip
    counted = {"sm_clock": [batch["sm_clock"] for batch in their], "against_per_clock": (ratios * clocks).tolist()}
    if block_s >= BLOCK_S:
        counted["against"] = ratios.tolist()
    else:
        reason = f"a sustained ratio needs blocks of {BLOCK_S:g} s: --full takes them"
        yield Fact("against", None, reason=reason)
    for metric, values in counted.items():
        yield Measurement(metric, "counter", stored(values), len(values))


def _settled(meter: Meter, batch: Callable[[], Mapping[str, float]], seconds: float) -> list[Mapping[str, float]]:
    """The batches of one product in the second half of ``seconds``, at least as many as a sample needs."""
    began_s, batches = now_s(meter.clock), list[Mapping[str, float]]()
    while (at_s := now_s(meter.clock) - began_s) < seconds or len(batches) < meter.limits.minimum:
        if at_s > LONGEST_BLOCKS * seconds + VOID_BLOCK_S:
            raise MeasurementError("a block of products could not be timed: the gate timed out again and again")
        taken = batch()
        meter.tick("block", len(batches), at_s)
        if taken and at_s >= seconds / 2:
            batches.append(taken)
    return batches


def rate(meter: Meter, gemm: Gemm, dtype: GemmType, operations: int) -> list[Measurement]:
    """Metrics ``rate`` or ``integer_rate`` by device events behind a gate, and ``sm_clock`` by kernels around them.

    Operands are new and D is poisoned before; D is compared after the samples.
    """
    calls, batch = _batches(meter, gemm, dtype)
    gemm.fresh()
    warm(meter, gemm)
    timed, clock = meter.collect_each(
        (rate_name(dtype), "sm_clock"), batch, clock="device", calls=calls, floor_s=meter.floors.event_pair_s
    )
    timed = msgspec.structs.replace(timed, work=work_of(dtype, operations), bound=f"gemm:{dtype}")
    return [*verified([timed], gemm.check()), as_clock(clock)]


def _batches(
    meter: Meter, gemm: Gemm, dtype: GemmType, seconds: float = SAMPLE_S
) -> tuple[int, Callable[[], Mapping[str, float]]]:
    """The calls of a gated batch of about ``seconds``, and the function that times one."""
    calls = min(max(round(seconds / warm(meter, gemm, 0.0)), 1), most_queued(gemm))
    return calls, bracketed(meter, gemm, meter.gpu.compute.bracket(), calls, rate_name(dtype))


def searched(meter: Meter, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """The fastest way of the fastest of several large shapes, measured as by ``powered``."""
    best: tuple[float, Problem, str] | None = None
    for shape in shapes(meter.gpu.info.sm_count or 1):
        # All operands stay allocated until the case ends, so shapes that do not fit beside the others are left out.
        if best is not None and meter.gpu.compute.needed_bytes(dtype, *shape) > meter.gpu.compute.free_bytes():
            continue
        problem, _ = problem_that_fits(meter.gpu, dtype, shape)
        gemm, candidate = fastest(meter, problem, "cublaslt")
        reached = problem.operations / settled_s(meter, gemm)
        if best is None or reached > best[0]:
            best = (reached, problem, str(candidate.value))
    assert best is not None  # the first shape is never left out
    _, problem, way = best
    shape_name = f"{problem.rows}x{problem.columns}x{problem.depth}"
    yield Fact("shape", shape_name, source="the fastest of the shapes tried")
    yield Fact("candidate", way, source="the fastest of this shape")
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    meter.gpu.pause(REST_S)
    yield from powered(meter, problem.gemm("cublaslt", way), dtype, problem.operations)


def shapes(sm_count: int) -> tuple[Shape, ...]:
    """Large products: squares, deep ones, and ones whose tiles of 128 x 256 fill whole waves of the SMs."""
    wave = 64 * sm_count
    return (
        Shape(4096, 4096, 4096), Shape(8192, 8192, 8192), Shape(8192, 8192, 16384), Shape(16384, 8192, 8192),
        Shape(wave, 8192, 8192), Shape(wave, 8192, 16384),
    )  # fmt: skip


def powered(meter: Meter, gemm: Gemm, dtype: GemmType, operations: int) -> Iterator[Measurement | Fact]:
    """The metrics of ``rate``, then ``power`` and ``energy`` of an operation over seconds of the same work.

    If the GPU has no energy counter, a fact ``power`` says why.
    """
    yield from rate(meter, gemm, dtype, operations)
    try:
        meter.gpu.energy_j()
    except Skip as skip:  # a MIG instance, or no NVML: the rate is still valid
        yield Fact("power", None, reason=str(skip))
        return
    gemm.fresh()
    one_s = warm(meter, gemm, 0.0)
    drawn = list(power(meter, gemm.submit, one_s, operations))
    if dtype in INTEGER_TYPES:
        drawn[-1] = msgspec.structs.replace(drawn[-1], metric="integer_energy")
    yield from verified(drawn, gemm.check())


def shaped(meter: Meter, problem: Problem, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """The metrics of ``rate`` for cuBLASLt's fastest way, ``bandwidth`` of the same samples, ``call`` (one of many
    calls submitted from Python back to back) and ``graph`` (one of GRAPH_CALLS calls in a graph)."""
    best, candidate = fastest(meter, problem, "cublaslt")
    yield candidate
    timed, clock = rate(meter, best, dtype, problem.operations)
    yield from (timed, clock)
    yield msgspec.structs.replace(timed, metric="bandwidth", work=Work(bytes=problem.size_bytes), bound="dram")
    best.fresh()
    one_s = warm(meter, best, 0.0)
    count = min(max(round(SAMPLE_S / one_s), SHORTEST_THROUGHPUT), most_queued(best))
    yield from verified([meter.throughput("call", best.submit, count)], best.check())
    best.fresh()
    replay = best.graph(GRAPH_CALLS)
    replays = min(max(round(SAMPLE_S / (one_s * GRAPH_CALLS)), 1), MOST_REPLAYS)
    yield from verified([meter.device_time("graph", replay, replays, parts=GRAPH_CALLS)], best.check())


def small(
    meter: Meter, dtype: GemmType, products: int, alone: Problem, together: Problem
) -> Iterator[Measurement | Fact]:
    """Independent products of one shape: ``alone`` computes the next one in each call, ``together`` all of them.

    Metrics of one product by the host's clock, of calls from Python back to back and one wait: ``one_by_one``,
    ``graph`` (replays of all products) and ``batch``. On the device alone: ``stream`` (the same calls as one_by_one)
    and the metrics of ``rate`` for the batch. Each way uses cuBLASLt's fastest candidate for it.
    """
    one, candidate = fastest(meter, alone, "cublaslt")
    yield candidate
    one_s = warm(meter, one, 0.0)
    one.fresh()
    yield from verified([meter.throughput("one_by_one", one.submit, products)], one.check())
    one.fresh()
    yield from verified([meter.device_time("stream", one.submit, products)], one.check())
    one.fresh()
    replay = one.graph(products)
    replays = min(max(round(SAMPLE_S / (one_s * products)), 1), MOST_REPLAYS)
    yield from verified([meter.throughput("graph", replay, replays, parts=products)], one.check())
    batch, candidate = fastest(meter, together, "cublaslt")
    yield msgspec.structs.replace(candidate, name="batch_candidate")
    batch.fresh()
    calls = min(max(round(SAMPLE_S / warm(meter, batch, 0.0)), SHORTEST_THROUGHPUT), most_queued(batch))
    yield from verified([meter.throughput("batch", batch.submit, calls, parts=products)], batch.check())
    yield from rate(meter, batch, dtype, together.operations)


# How long the GPU rests before the work begins.
COLD_S = 2.0
# Batches grow (until, length): the clock falls within tenths of a second, the temperature rises over tens of seconds.
BATCHES_S = ((0.2, 0.005), (1.0, 0.02), (float("inf"), 0.1))
# NVML is asked this long after the gate opens, when the work runs.
BEGUN_S = 1e-3
FEWEST_BATCHES = 8


@dataclass
class _Course:
    """One value for each batch: its middle since the work began, seconds of a call, SM clock, and NVML's state."""

    t_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    clock_hz: list[float] = field(default_factory=list)
    states: list[Telemetry] = field(default_factory=list)


def lasting(meter: Meter, problem: Problem, dtype: GemmType, seconds: float) -> Iterator[Measurement | Fact | Series]:
    """``seconds`` of back-to-back calls of cuBLASLt's fastest way after COLD_S of rest.

    Metrics ``burst`` (the first batch), ``sustained`` (the batches of the second half), ``sm_clock`` and ``turn`` (when
    the rate had fallen half of the way from burst to sustained); series of rate, SM clock, power and temperature.
    """
    gemm, candidate = fastest(meter, problem, "cublaslt")
    yield candidate
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    course = _run(meter, gemm, seconds)
    checked = gemm.check()
    call_s, t_s = np.array(course.call_s), np.array(course.t_s)
    late = t_s >= seconds / 2
    if len(t_s) < FEWEST_BATCHES or not late.any():
        raise Skip(f"{seconds:g} s hold {len(t_s)} batches of {dtype} only: ask for a longer duration_s")
    work, bound = work_of(dtype, problem.operations), f"gemm:{dtype}"
    for name, batches in (("burst", call_s[:1]), ("sustained", call_s[late])):
        samples = stored(batches.tolist())
        yield from verified([Measurement(name, "device", samples, len(batches), work=work, bound=bound)], checked)
    clocks = np.array(course.clock_hz)[late].tolist()
    yield as_clock(Measurement("sm_clock", "counter", stored(clocks), len(clocks)))
    turned = turn_s(t_s, call_s, float(np.median(call_s[late])))
    if turned is not None:
        yield Measurement("turn", "device", stored((turned,)), 1)
    yield from _series(course, problem.operations)
    yield _reasons(course)


def turn_s(t_s: np.ndarray, call_s: np.ndarray, late_s: float) -> float | None:
    """When the rate had first fallen half of the way from the first batch to the late ones; None if it fell by no more
    than the batches scatter."""
    first, rates = 1 / call_s[0], 1 / call_s
    last, scatter = 1 / late_s, float(np.percentile(rates, 84) - np.percentile(rates, 16)) / 2
    if first - last <= max(min(scatter, 0.05 * first), 0.01 * first):
        return None
    return float(t_s[np.argmax(rates <= (first + last) / 2)])


def _run(meter: Meter, gemm: Gemm, seconds: float) -> _Course:
    gpu, course = meter.gpu, _Course()
    bracket, events, gate = gpu.compute.bracket(), gpu.events(), gpu.gate()
    for _ in range(2):  # the first batch loads everything
        _batch(meter, gemm, bracket, events, 2)
    one_s = max(events.elapsed_s() / 2, NANOSECOND_S)
    gemm.fresh()
    gpu.pause(COLD_S)
    began_s = now_s(meter.clock)
    while (at_s := now_s(meter.clock) - began_s) < seconds:
        batch_s = next(length for until, length in BATCHES_S if at_s < until)
        count = min(max(round(batch_s / one_s), 1), most_queued(gemm))
        # The first batch takes milliseconds, so a gate holds it until all is submitted. Later ones need none, and the
        # GPU would rest behind it.
        state = _batch(meter, gemm, bracket, events, count, None if course.t_s else gate)
        course.t_s.append((at_s + now_s(meter.clock) - began_s) / 2)
        course.call_s.append(events.elapsed_s() / count)
        course.clock_hz.append(bracket.hz())
        course.states.append(state)
        meter.tick("sustained", len(course.t_s), course.call_s[-1])
    return course


def _batch(
    meter: Meter, gemm: Gemm, bracket: ClockBracket, events: EventPair, count: int, gate: Gate | None = None
) -> Telemetry:
    """``count`` calls to their end; returns NVML's state after all were submitted (and the gate, if any, opened)."""
    if gate is not None:
        gate.shut()
    bracket.begin()
    events.start()
    gemm.submit(count)
    events.stop()
    bracket.end()
    if gate is not None:
        gate.open()
        meter.gpu.pause(BEGUN_S)
    state = meter.gpu.compute.state()
    meter.gpu.synchronize()
    return state


def _series(course: _Course, operations: int) -> Iterator[Series]:
    values: dict[str, list[float | None]] = {
        "rate": [operations / call_s for call_s in course.call_s],
        "sm_clock": list(course.clock_hz),
        "power": [state.power_w for state in course.states],
        "temperature": [state.temperature_c for state in course.states],
        "nvml_sm_clock": [state.nvml_sm_clock_hz for state in course.states],
    }
    for name, column in values.items():
        known = [(t, value) for t, value in zip(course.t_s, column, strict=True) if value is not None]
        if known:
            places = np.linspace(0, len(known) - 1, min(len(known), SAMPLES_KEPT)).round().astype(int)
            times, shown = zip(*(known[place] for place in places), strict=True)
            yield Series(name, tuple(map(shortened, times)), tuple(map(shortened, shown)))


def _reasons(course: _Course) -> Fact:
    """NVML's reasons for a held-down clock, each with the second when it was first seen."""
    first: dict[str, float] = {}
    for t_s, state in zip(course.t_s, course.states, strict=True):
        for reason in state.throttle_reasons:
            first.setdefault(reason, t_s)
    words = ", ".join(f"{reason} from {t_s:.2f} s on" for reason, t_s in first.items())
    return Fact("throttle_reasons", words or "none", source="NVML, during every batch")

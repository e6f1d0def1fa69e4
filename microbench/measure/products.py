"""Matrix products: rate and clock of the fastest way, its bandwidth, its energy, the fastest shape of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import SAMPLES_KEPT, Fact, Measurement, Series, Telemetry, Work
from microbench.gpu.protocol.compute import (
    ACCUMULATORS,
    INTEGER_TYPES,
    Chain,
    ClockBracket,
    Gemm,
    GemmType,
    Library,
    Problem,
    Resident,
    UnitPass,
)
from microbench.gpu.protocol.gpu import EventPair, Gate, Gpu
from microbench.measure.counters import power
from microbench.measure.sampling import NANOSECOND_S, kept, now_s, shortened
from microbench.measure.timer import Meter
from microbench.measure.transfers import verified
from microbench.measure.tuning import REST_S, SAMPLE_S, as_clock, bracketed, fastest, most_queued, settled_s, warm

SMALLEST = 256
SHORTEST_THROUGHPUT = 10
GRAPH_CALLS = 20
MOST_REPLAYS = 20


class Shape(NamedTuple):
    """Rows, columns and depth of a product."""

    rows: int
    columns: int
    depth: int


def problem_that_fits(gpu: Gpu, dtype: GemmType, shape: Shape) -> tuple[Problem, Fact]:
    """The product of that shape, halved until it fits the free memory; fact ``shape`` says which it is.

    Raises Skip where not even SMALLEST fits.
    """
    fitting, free_bytes = shape, gpu.compute.free_bytes()
    while gpu.compute.needed_bytes(dtype, *fitting) > free_bytes and min(fitting) // 2 >= SMALLEST:
        fitting = Shape(*(one // 2 for one in fitting))
    source = "as asked" if fitting == shape else f"halved until it fitted the {free_bytes} B free"
    return gpu.compute.problem(dtype, *fitting), Fact("shape", "x".join(str(one) for one in fitting), source=source)


def rate_name(dtype: GemmType) -> str:
    """Floating operations and integer ones are different metrics."""
    return "integer_rate" if dtype in INTEGER_TYPES else "rate"


def work_of(dtype: GemmType, operations: int) -> Work:
    """Operations as the work of one call: floating ones as flops."""
    return Work(operations=operations) if dtype in INTEGER_TYPES else Work(flops=operations)


def product(meter: Meter, problem: Problem, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """Rate and SM clock of cuBLASLt's fastest way, on the device alone and at a steady clock; facts ``candidate`` and
    ``accumulator``."""
    best, found = fastest(meter, problem, "cublaslt")
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from rate(meter, best, dtype, problem.operations)


def beside(meter: Meter, problem: Problem, dtype: GemmType, library: Library) -> Iterator[Measurement | Fact]:
    """What ``product`` gives, of another library; and metric ``against``, its rate over that of cuBLASLt's fastest way,
    in turn on the same operands: at its power limit a GPU is faster or slower by what came before."""
    theirs, found = fastest(meter, problem, library)
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="what the library says of itself")
    try:
        ours, _ = fastest(meter, problem, "cublaslt")
    except Skip as skip:
        yield Fact("against", None, reason=str(skip))
        yield from rate(meter, theirs, dtype, problem.operations)
        return
    take, mine = _batches(meter, theirs, dtype), _batches(meter, ours, dtype)
    name = rate_name(dtype)

    def pair() -> Mapping[str, float]:
        other, own = mine.take(), take.take()
        if not other or not own:
            return {}
        return {**own, "against": other[name] / mine.calls / (own[name] / take.calls)}

    warm(meter, theirs)
    timed, clocked, against = meter.collect_each(
        (name, "sm_clock", "against"), pair, clock="device", calls=take.calls, floor_s=meter.floors.event_pair_s
    )
    theirs.fresh()
    take.take()  # on new operands, and nothing of cuBLASLt's behind it
    timed = msgspec.structs.replace(timed, work=work_of(dtype, problem.operations), bound=f"gemm:{dtype}")
    yield from verified([timed], theirs.check())
    yield from (as_clock(clocked), as_clock(against))


class _Batches(NamedTuple):
    """Gated batches of so many ``calls``, timed, with the SM clock meanwhile."""

    calls: int
    take: Callable[[], Mapping[str, float]]


def _batches(meter: Meter, gemm: Gemm, dtype: GemmType) -> _Batches:
    count = min(max(round(SAMPLE_S / warm(meter, gemm, 0.0)), 1), most_queued(gemm))
    return _Batches(count, bracketed(meter, gemm, meter.gpu.compute.bracket(), count, rate_name(dtype)))


def rate(meter: Meter, gemm: Gemm, dtype: GemmType, operations: int) -> list[Measurement]:
    """Metrics ``rate`` or ``integer_rate`` by device events behind a gate, and ``sm_clock`` by kernels around them.

    Operands are new and D is poisoned before; D is compared when the samples are taken.
    """
    batches = _batches(meter, gemm, dtype)
    gemm.fresh()
    warm(meter, gemm)
    timed, clocked = meter.collect_each(
        (rate_name(dtype), "sm_clock"),
        batches.take,
        clock="device",
        calls=batches.calls,
        floor_s=meter.floors.event_pair_s,
    )
    timed = msgspec.structs.replace(timed, work=work_of(dtype, operations), bound=f"gemm:{dtype}")
    return [*verified([timed], gemm.check()), as_clock(clocked)]


def searched(meter: Meter, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """The fastest of all candidates of some large shapes, measured as in ``powered``; facts ``shape`` and
    ``candidate``."""
    best: tuple[float, Problem, str] | None = None
    for shape in shapes(meter.gpu.info.sm_count or 1):
        # All operands stay until the case ends: shapes that find no room beside the first one are left out.
        if best is not None and meter.gpu.compute.needed_bytes(dtype, *shape) > meter.gpu.compute.free_bytes():
            continue
        problem, _ = problem_that_fits(meter.gpu, dtype, shape)
        gemm, found = fastest(meter, problem, "cublaslt")
        reached = problem.operations / settled_s(meter, gemm)
        if best is None or reached > best[0]:
            best = (reached, problem, str(found.value))
    assert best is not None  # there is always a shape
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
    """What ``rate`` gives, then metrics ``power`` and ``energy`` of an operation over seconds of the same work; a fact
    ``power`` with the reason where the GPU counts no energy."""
    yield from rate(meter, gemm, dtype, operations)
    try:
        meter.gpu.energy_j()
    except Skip as skip:  # a MIG instance, or no NVML: the rate stands all the same
        yield Fact("power", None, reason=str(skip))
        return
    gemm.fresh()
    one_s = warm(meter, gemm, 0.0)
    drawn = list(power(meter, gemm.submit, one_s, operations))
    if dtype in INTEGER_TYPES:
        drawn[-1] = msgspec.structs.replace(drawn[-1], metric="integer_energy")
    yield from verified(drawn, gemm.check())


def shaped(meter: Meter, problem: Problem, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """Of the fastest way of cuBLASLt: what ``rate`` gives, metric ``bandwidth`` of the same samples, ``call`` for a
    call of many submitted from Python one after the other, ``graph`` for one of GRAPH_CALLS in a graph."""
    best, found = fastest(meter, problem, "cublaslt")
    yield found
    timed, clocked = rate(meter, best, dtype, problem.operations)
    yield from (timed, clocked)
    yield msgspec.structs.replace(timed, metric="bandwidth", work=Work(bytes=problem.size_bytes), bound="dram")
    best.fresh()
    one_s = warm(meter, best, 0.0)
    count = min(max(round(SAMPLE_S / one_s), SHORTEST_THROUGHPUT), most_queued(best))
    yield from verified([meter.throughput("call", best.submit, count)], best.check())
    best.fresh()
    replay = best.graph(GRAPH_CALLS)
    replays = min(max(round(SAMPLE_S / (one_s * GRAPH_CALLS)), 1), MOST_REPLAYS)
    yield from verified([meter.device_time("graph", replay, replays, parts=GRAPH_CALLS)], best.check())


# Instructions without traffic: rates of tensor cores and ALUs by the SMs' own clocks, latency of one instruction.


BURST_S = 1e-3
# Between bursts the GPU rests: what a burst finds is the clock of a GPU that was not at work.
UNIT_REST_S = 0.05
LASTING_S = 0.02
# Tensor work pulls an H200's clock down within 70 to 120 ms.
SETTLING_S = 0.4
FIRST_REPEATS = 64
CHAIN_S = 2e-4
CHAIN_REPEATS = 16


def burst_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """Rate, rate a clock cycle and SM, and clock of launches of BURST_S after REST_S of rest each."""
    repeats = _repeats(unit, BURST_S)

    def rest_and_run() -> UnitPass:
        meter.gpu.pause(UNIT_REST_S)
        return unit.take(repeats)

    yield from _rates(meter, unit, rest_and_run, repeats, integer, bound)


def lasting_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """The same of launches of LASTING_S back to back, after SETTLING_S of them."""
    repeats = _repeats(unit, LASTING_S)
    _settle(meter.gpu, unit, repeats)
    yield from _rates(meter, unit, lambda: unit.take(repeats), repeats, integer, bound)


def plain_rate(meter: Meter, unit: Resident, integer: bool, bound: str) -> Iterator[Measurement]:
    """The same of launches of BURST_S, one after the other."""
    repeats = _repeats(unit, BURST_S)
    yield from _rates(meter, unit, lambda: unit.take(repeats), repeats, integer, bound)


def chain_latency(meter: Meter, chain: Chain) -> Measurement:
    """Metric ``latency``: SM clock cycles from an instruction to the one that waits for its result."""
    first = chain.take(CHAIN_REPEATS)
    repeats = max(round(CHAIN_REPEATS * CHAIN_S / max(first.seconds, NANOSECOND_S)), CHAIN_REPEATS)

    def take() -> tuple[float, ...]:
        return (chain.take(repeats).cycles,)

    return meter.collect("latency", take, clock="device", calls=repeats * chain.instructions, resolution=1.0)


def _repeats(unit: Resident, seconds: float) -> int:
    """How many repetitions take so long."""
    unit.take(FIRST_REPEATS)  # the first launch loads the code
    return max(round(FIRST_REPEATS * seconds / max(unit.take(FIRST_REPEATS).seconds, NANOSECOND_S)), 1)


def _settle(gpu: Gpu, unit: Resident, repeats: int) -> None:
    began_ns = gpu.clock.now_ns()
    while (gpu.clock.now_ns() - began_ns) * NANOSECOND_S < SETTLING_S:
        unit.take(repeats)


def _rates(
    meter: Meter, unit: Resident, run: Callable[[], UnitPass], repeats: int, integer: bool, bound: str
) -> Iterator[Measurement]:
    names = ("integer_rate", "integer_per_clock") if integer else ("rate", "per_clock")

    def take() -> Mapping[str, float]:
        taken = run()
        return {names[0]: taken.seconds, names[1]: taken.cycles, "sm_clock": taken.clock_hz}

    found = meter.collect_each((*names, "sm_clock"), take, clock="device", calls=repeats)
    total, one, clocked = verified(found, unit.check())
    yield msgspec.structs.replace(total, work=_work(integer, unit.operations * unit.sms), bound=bound)
    yield msgspec.structs.replace(one, work=_work(integer, unit.operations), bound=f"{bound}_per_clock", resolution=1.0)
    yield as_clock(clocked)


def _work(integer: bool, operations: int) -> Work:
    return Work(operations=operations) if integer else Work(flops=operations)


# Work that lasts: a product again and again from a cold start, its rate, clock, power and temperature over time.


# How long the GPU rests before the work begins.
COLD_S = 2.0
# Batches grow: the clock falls within tenths of a second, the temperature rises over tens of seconds.
BATCHES_S = ((0.2, 0.005), (1.0, 0.02), (float("inf"), 0.1))
# After a gate was opened: work runs then, and is what NVML sees.
BEGUN_S = 1e-3
FEWEST_BATCHES = 8


@dataclass
class _Course:
    """What was seen of each batch: its middle since the work began, seconds of a call, clock, and NVML's words."""

    t_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)
    clock_hz: list[float] = field(default_factory=list)
    states: list[Telemetry] = field(default_factory=list)


def lasting(meter: Meter, problem: Problem, dtype: GemmType, seconds: float) -> Iterator[Measurement | Fact | Series]:
    """``seconds`` of back-to-back work of cuBLASLt's fastest way after COLD_S of rest.

    Metrics ``burst`` (the first batch), ``sustained`` (the batches of the second half), ``sm_clock`` and ``turn`` (when
    half of the way from burst to sustained was fallen); series of rate, SM clock, power and temperature.
    """
    gemm, found = fastest(meter, problem, "cublaslt")
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    course = _run(meter, gemm, seconds)
    checked = gemm.check()
    call_s, t_s = np.array(course.call_s), np.array(course.t_s)
    late = t_s >= seconds / 2
    if len(t_s) < FEWEST_BATCHES or not late.any():
        raise Skip(f"{seconds:g} s hold {len(t_s)} batches of {dtype} only: ask for a longer duration_s")
    work = work_of(dtype, problem.operations)
    bound = f"gemm:{dtype}"
    for name, taken in (("burst", call_s[:1]), ("sustained", call_s[late])):
        one = Measurement(name, "device", kept([float(value) for value in taken]), len(taken), work=work, bound=bound)
        yield from verified([one], checked)
    clocks = [value for value, is_late in zip(course.clock_hz, late, strict=True) if is_late]
    yield as_clock(Measurement("sm_clock", "counter", kept(clocks), len(clocks)))
    turned = turn_s(t_s, call_s, float(np.median(call_s[late])))
    if turned is not None:
        yield Measurement("turn", "device", kept((turned,)), 1)
    yield from _series(course, problem.operations)
    yield _reasons(course)


def turn_s(t_s: np.ndarray, call_s: np.ndarray, late_s: float) -> float | None:
    """When the rate had first fallen half of the way from the first batch to the later ones; None if it did not fall
    by more than the batches scatter."""
    first, rates = 1 / call_s[0], 1 / call_s
    last, scatter = 1 / late_s, float(np.percentile(rates, 84) - np.percentile(rates, 16)) / 2
    if first - last <= max(min(scatter, 0.05 * first), 0.01 * first):
        return None
    return float(t_s[np.argmax(rates <= (first + last) / 2)])


def _run(meter: Meter, gemm: Gemm, seconds: float) -> _Course:
    gpu, course = meter.gpu, _Course()
    bracket, events, gate = gpu.compute.bracket(), gpu.events(), gpu.gate()
    one_s = _one_s(meter, gemm, bracket, events)
    gemm.fresh()
    gpu.pause(COLD_S)
    began_s = now_s(meter.clock)
    while (at_s := now_s(meter.clock) - began_s) < seconds:
        batch_s = next(length for until, length in BATCHES_S if at_s < until)
        count = min(max(round(batch_s / one_s), 1), most_queued(gemm))
        # The burst is milliseconds long: it waits until it is submitted. Later ones do not, as the GPU would rest.
        state = _batch(meter, gemm, bracket, events, count, None if course.t_s else gate)
        course.t_s.append((at_s + now_s(meter.clock) - began_s) / 2)
        course.call_s.append(events.elapsed_s() / count)
        course.clock_hz.append(bracket.hz())
        course.states.append(state)
        meter.sampler.tick("sustained", len(course.t_s), course.call_s[-1])
    return course


def _one_s(meter: Meter, gemm: Gemm, bracket: ClockBracket, events: EventPair) -> float:
    """Seconds of a call, everything loaded."""
    for _ in range(2):
        _batch(meter, gemm, bracket, events, 2)
    return max(events.elapsed_s() / 2, NANOSECOND_S)


def _batch(
    meter: Meter, gemm: Gemm, bracket: ClockBracket, events: EventPair, count: int, gate: Gate | None = None
) -> Telemetry:
    """``count`` calls to their end, and what NVML said while they ran: asked once they are all submitted, behind a gate
    where there is one."""
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
        "rate": [operations / one for one in course.call_s],
        "sm_clock": list(course.clock_hz),
        "power": [state.power_w for state in course.states],
        "temperature": [state.temperature_c for state in course.states],
        "nvml_sm_clock": [state.nvml_sm_clock_hz for state in course.states],
    }
    for name, seen in values.items():
        known = [(t, value) for t, value in zip(course.t_s, seen, strict=True) if value is not None]
        if known:
            shown = np.linspace(0, len(known) - 1, min(len(known), SAMPLES_KEPT)).round().astype(int)
            times, found = zip(*(known[place] for place in shown), strict=True)
            yield Series(name, tuple(shortened(one) for one in times), tuple(shortened(one) for one in found))


def _reasons(course: _Course) -> Fact:
    """Why the clock was held down, in the words of NVML, each with the second when it was first seen."""
    first: dict[str, float] = {}
    for t_s, state in zip(course.t_s, course.states, strict=True):
        for reason in state.throttle_reasons:
            first.setdefault(reason, t_s)
    said = ", ".join(f"{reason} from {at:.2f} s on" for reason, at in first.items())
    return Fact("throttle_reasons", said or "none", source="NVML, beside every batch")

"""Matrix products: the fastest of a library's ways at a steady temperature, its rate, its clock, its energy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from microbench.energy import power
from microbench.errors import MeasurementError
from microbench.gpu.api import SAFE_QUEUE_SLOTS, Gpu
from microbench.gpu.compute_api import ACCUMULATORS, INTEGER_TYPES, ClockBracket, Gemm, GemmType, Library, Problem
from microbench.model import Fact, Measurement, Work
from microbench.sampling import NANOSECOND_S
from microbench.timing import Meter
from microbench.transfers import verified

TRIALS = 3
TRIAL_S = 3e-3
VOID_TRIALS = 3
# Tensor work alone takes an H200's clock to 0.92 of its highest; below HELD_BACK it is power that does. Candidates less
# than NEAR apart may then change places: an H200's fp64 products did, by 12 %.
HELD_BACK = 0.88
NEAR = 1.08
MOST_SETTLED = 4
SETTLED_S = 0.02
SAMPLE_S = 5e-3
MOST_CALLS = 100
# Random data pull an H200's clock down within 70 to 120 ms of steady work: a shorter warm-up would measure the fall.
WARM_S = 0.15
# A product takes some of the launch queue's slots: splits of the depth are added up by kernels of their own.
SLOTS_PER_CALL = 4
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


def product(meter: Meter, problem: Problem, dtype: GemmType, library: Library) -> Iterator[Measurement | Fact]:
    """Rate and SM clock of the fastest way, on the device alone and at a steady clock; facts ``candidate`` and
    ``accumulator``."""
    best, found = fastest(meter, problem, library)
    yield found
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from rate(meter, best, dtype, problem.operations)


def fastest(meter: Meter, problem: Problem, library: Library) -> tuple[Gemm, Fact]:
    """The fastest way of a library: TRIALS samples of each, in turn, so that a clock that falls falls on all alike.

    Where power holds the clock back, the way that takes least of it wins in the end: of the nearest ones each then
    works until its own clock has settled.
    """
    ways = problem.ways(library)
    gemms = {way: problem.gemm(library, way) for way in ways}
    if len(ways) == 1:
        return gemms[ways[0]], Fact("candidate", ways[0], source="the only one")
    first = gemms[ways[0]]
    first.fresh()
    trials = _Trials(meter, gemms, warm(meter, first))
    best = trials.best()
    place = ways.index(best) + 1
    return gemms[best], Fact("candidate", best, source=f"the fastest of {len(ways)}, guess {place} of the heuristics")


class _Trials:
    """The candidates of a product, tried. Raises MeasurementError where every gate was late."""

    def __init__(self, meter: Meter, gemms: Mapping[str, Gemm], one_s: float) -> None:
        self._meter, self._gemms, self._one_s = meter, gemms, one_s
        self._bracket = meter.gpu.compute.bracket()

    def best(self) -> str:
        """The fastest one's name."""
        takes = {way: self._taker(gemm, TRIAL_S) for way, gemm in self._gemms.items()}
        tried = [{way: _one(take) for way, take in takes.items()} for _ in range(TRIALS)]
        taken = {way: statistics.median(one[way].call_s for one in tried) for way in takes}
        ranked = sorted(takes, key=lambda way: taken[way])
        highest_hz = self._meter.gpu.info.sm_clock_max_hz
        if not highest_hz or tried[-1][ranked[0]].clock_hz > HELD_BACK * highest_hz:
            return ranked[0]
        near = [way for way in ranked if taken[way] <= NEAR * taken[ranked[0]]][:MOST_SETTLED]
        return min(near, key=self.settled_s) if len(near) > 1 else ranked[0]

    def settled_s(self, way: str) -> float:
        """Seconds of a call once the candidate's own clock has settled."""
        gemm = self._gemms[way]
        take = self._taker(gemm, SETTLED_S)
        warm(self._meter, gemm)
        return _one(take).call_s

    def _taker(self, gemm: Gemm, seconds: float) -> Callable[[], _Trial | None]:
        count = min(max(round(seconds / self._one_s), 1), most_queued(gemm))
        take = bracketed(self._meter, gemm, self._bracket, count, "batch")

        def trial() -> _Trial | None:
            taken = take()
            return _Trial(taken["batch"] / count, taken["sm_clock"]) if taken else None

        return trial


class _Trial(NamedTuple):
    call_s: float
    clock_hz: float


def _one(take: Callable[[], _Trial | None]) -> _Trial:
    for _ in range(VOID_TRIALS):
        if (taken := take()) is not None:
            return taken
    raise MeasurementError("a candidate could not be tried: the gate timed out each time")


def most_queued(gemm: Gemm) -> int:
    """Calls that may stand behind a gate."""
    return min(MOST_CALLS, (gemm.submit.queue_slots or SAFE_QUEUE_SLOTS) // SLOTS_PER_CALL)


def warm(meter: Meter, gemm: Gemm, seconds: float = WARM_S) -> float:
    """Work until the clock has settled; seconds of one call then."""
    out_ns = np.zeros(2, dtype=np.int64)
    gemm.submit.round_trips(out_ns)
    one_s = max(int(out_ns[-1]), 1) * NANOSECOND_S
    began_s = _now_s(meter)
    while _now_s(meter) - began_s < seconds:
        gemm.submit(min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm)))
        meter.gpu.synchronize_stream()
    gemm.submit.round_trips(out_ns)
    return max(int(out_ns[-1]), 1) * NANOSECOND_S


def rate(meter: Meter, gemm: Gemm, dtype: GemmType, operations: int) -> list[Measurement]:
    """Metrics ``rate`` or ``integer_rate`` by device events behind a gate, and ``sm_clock`` by kernels around them.

    Operands are new and D is poisoned before; D is compared when the samples are taken.
    """
    bracket = meter.gpu.compute.bracket()
    one_s = warm(meter, gemm, 0.0)
    count = min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm))
    take = bracketed(meter, gemm, bracket, count, rate_name(dtype))
    gemm.fresh()
    warm(meter, gemm)
    timed, clocked = meter.collect_each(
        (rate_name(dtype), "sm_clock"), take, clock="device", calls=count, floor_s=meter.floors.event_pair_s
    )
    timed = msgspec.structs.replace(timed, work=work_of(dtype, operations), bound=f"gemm:{dtype}")
    return [*verified([timed], gemm.check()), as_clock(clocked)]


def as_clock(measured: Measurement) -> Measurement:
    """A clock beside a time: counted by the SMs, of a whole sample."""
    return msgspec.structs.replace(measured, clock="counter", calls_per_sample=1, floor_s=None, resolution=None)


def bracketed(
    meter: Meter, gemm: Gemm, bracket: ClockBracket, count: int, name: str
) -> Callable[[], Mapping[str, float]]:
    """What times ``count`` calls behind a gate and the SM clock meanwhile; nothing where the gate was late."""
    gpu, gate, events = meter.gpu, meter.gpu.gate(), meter.gpu.events()
    bracket.begin()  # loads its code, which a shut gate would wait for
    bracket.end()
    gpu.synchronize()

    def take() -> Mapping[str, float]:
        gate.shut()
        bracket.begin()
        events.start()
        gemm.submit(count)
        events.stop()
        bracket.end()
        gate.open()
        gpu.synchronize()
        return {} if gate.was_late() else {name: events.elapsed_s(), "sm_clock": bracket.hz()}

    return take


def searched(meter: Meter, dtype: GemmType) -> Iterator[Measurement | Fact]:
    """The fastest of all candidates of some large shapes, measured as in ``powered``; facts ``shape`` and
    ``candidate``."""
    best: tuple[float, Shape, str] | None = None
    for shape in shapes(meter.gpu.info.sm_count or 1):
        problem, _ = problem_that_fits(meter.gpu, dtype, shape)
        gemm, found = fastest(meter, problem, "cublaslt")
        reached = problem.operations / _Trials(meter, {"best": gemm}, warm(meter, gemm)).settled_s("best")
        if best is None or reached > best[0]:
            best = (reached, Shape(problem.rows, problem.columns, problem.depth), str(found.value))
    assert best is not None  # there is always a shape
    _, shape, way = best
    problem = meter.gpu.compute.problem(dtype, *shape)
    yield Fact("shape", "x".join(str(one) for one in shape), source="the fastest of the shapes tried")
    yield Fact("candidate", way, source="the fastest of this shape")
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    yield from powered(meter, problem.gemm("cublaslt", way), dtype, problem.operations)


def shapes(sm_count: int) -> tuple[Shape, ...]:
    """Large products: squares, deep ones, and ones whose tiles of 128 x 256 fill whole waves of the SMs."""
    wave = 64 * sm_count
    return (
        Shape(4096, 4096, 4096), Shape(8192, 8192, 8192), Shape(8192, 8192, 16384), Shape(16384, 8192, 8192),
        Shape(wave, 8192, 8192), Shape(wave, 8192, 16384),
    )  # fmt: skip


def powered(meter: Meter, gemm: Gemm, dtype: GemmType, operations: int) -> Iterator[Measurement]:
    """What ``rate`` gives, then metrics ``power`` and ``energy`` of an operation over seconds of the same work."""
    yield from rate(meter, gemm, dtype, operations)
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


def _now_s(meter: Meter) -> float:
    return meter.clock.now_ns() * NANOSECOND_S

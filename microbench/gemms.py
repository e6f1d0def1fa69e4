"""Matrix products: rate and clock of the fastest way, its bandwidth, its energy, the fastest shape of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from microbench.batches import SAMPLE_S, as_clock, bracketed, most_queued, warm
from microbench.candidates import REST_S, fastest, settled_s
from microbench.energy import power
from microbench.errors import Skip
from microbench.gpu.api import Gpu
from microbench.gpu.compute_api import ACCUMULATORS, INTEGER_TYPES, Gemm, GemmType, Library, Problem
from microbench.model import Fact, Measurement, Work
from microbench.timing import Meter
from microbench.transfers import verified

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

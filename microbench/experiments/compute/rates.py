"""Finds the fastest way to compute a matrix product, and measures its rate, the SM clock around it, and its energy."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact, Measurement, Work
from microbench.experiments.compute.instructions import ClockBracket, as_clock, clock_bracket
from microbench.experiments.compute.products import Gemm, Library, Problem, free_bytes, needed_bytes
from microbench.experiments.compute.products import problem as problem_of
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS, Gpu
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.counters import power
from microbench.meter.sampling import Sample, now_s
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified, warm_s

# How each type is accumulated, in words. The tensor cores keep 14 bits of fp8 sums; without _fast these partial sums
# are added in fp32 every 128 products. Source: DeepSeek-V3 technical report (2024), section 3.3.2, on the H800.
ACCUMULATORS: dict[GemmType, str] = {
    "fp64": "fp64", "fp32": "fp32", "tf32": "fp32", "fp16": "fp32", "fp16_acc16": "fp16", "bf16": "fp32",
    "fp8_e4m3": "fp32, promoted", "fp8_e4m3_fast": "fast, about 14 bits", "fp8_e5m2": "fp32, promoted",
    "fp8_e5m2_fast": "fast, about 14 bits", "int8": "int32", "mxfp8": "fp32", "nvfp4": "fp32",
}  # fmt: skip
# A shape that does not fit the memory is halved, but no side of it below this.
SMALLEST = 256
SAMPLE_S = 5e-3
MOST_CALLS = 100
# With random data an H200's clock falls within the first 70 to 120 ms of steady work; a shorter warm-up would measure
# that fall.
WARM_S = 0.15
# A product may take several slots of the launch queue, because separate kernels add up the splits of its depth.
SLOTS_PER_CALL = 4

# The fewest calls of a sample that the host submits back to back, and the most replays of a graph.
SHORTEST_THROUGHPUT = 10
MOST_REPLAYS = 20

# Trials may last a minute. Without ticks, which have no metric, the worker would count as hung.
TRIALS = 3
TRIAL_S = 3e-3
VOID_TRIALS = 3
# Tensor work alone takes an H200's clock to 0.92 of its maximum; fp64 and fp32 (ALU) work leave it there. Below these
# shares of the maximum, power holds the clock back. Ways within a factor NEAR of the fastest may then change places:
# those of fp64 did, by 12 %.
HELD_BACK = 0.88
HELD_BACK_ALONE = 0.985
LEFT_ALONE = ("fp64", "fp32")
NEAR = 1.08
MOST_SETTLED, FEWEST_SETTLED = 4, 2
# A quick run (--quick) samples each metric for less than this.
HURRY_S = 0.1
SETTLED_S = 0.02
# A board's slower power control averages over about a second: right after seconds of trials an H200's fp64 was measured
# at a clock that still rose from 1.45 to 1.65 GHz.
REST_S = 0.5


def fastest(meter: Meter, problem: Problem, library: Library) -> tuple[Gemm, Fact]:
    """The fastest way of a library, by TRIALS samples of each in turn, so that a falling clock affects all alike.

    If power holds the clock back, the way that draws least wins in the end: each of the nearest ways then runs until
    its own clock has settled, and the GPU rests afterwards. Raises MeasurementError if every gate was late.
    """
    ways = problem.ways(library)
    gemms = _working(meter, problem, library, ways)
    first_way, first = next(iter(gemms.items()))
    first.fresh()  # also for a single way: memory comes zeroed, and zeros multiply faster
    if len(gemms) == 1:
        return first, Fact("candidate", first_way, source="the only one")
    one_s = warm(meter, first)
    bracket = clock_bracket(meter.gpu)
    trials = {way: _trial(meter, bracket, gemm, TRIAL_S, one_s) for way, gemm in gemms.items()}
    rounds = [{way: trial() for way, trial in trials.items()} for _ in range(TRIALS)]
    call_s = {way: statistics.median(results[way][0] for results in rounds) for way in trials}
    ranked = sorted(trials, key=lambda way: call_s[way])
    best, highest_hz = ranked[0], meter.gpu.info.sm_clock_max_hz
    last_hz = rounds[-1][best][1]
    held_back = HELD_BACK_ALONE if problem.matrices.dtype in LEFT_ALONE else HELD_BACK
    if highest_hz and last_hz <= held_back * highest_hz:
        hurry = meter.limits.seconds <= HURRY_S
        most = FEWEST_SETTLED if hurry else MOST_SETTLED
        near = [way for way in ranked if call_s[way] <= NEAR * call_s[best]][:most]
        if len(near) > 1:
            best = min(near, key=lambda way: settled_s(meter, gemms[way]))
        if not hurry:
            meter.gpu.pause(REST_S)
    place = ways.index(best) + 1
    return gemms[best], Fact("candidate", best, source=f"the fastest of {len(gemms)}, guess {place} of the heuristics")


def _working(meter: Meter, problem: Problem, library: Library, ways: Sequence[str]) -> dict[str, Gemm]:
    """The ways that work; a guess of the heuristics may fail when called. Raises the last error if none works."""
    gemms: dict[str, Gemm] = {}
    for way in ways:
        try:
            gemms[way] = problem.gemm(library, way)  # this calls it, which may take seconds
        except MeasurementError:
            if way == ways[-1] and not gemms:
                raise
        meter.tick("trial", len(gemms), 0.0)
    return gemms


def _trial(
    meter: Meter, bracket: ClockBracket, gemm: Gemm, seconds: float, one_s: float
) -> Callable[[], tuple[float, float]]:
    """A function that runs a batch of about ``seconds`` and returns the seconds of a call and the SM clock in Hz."""
    count = min(max(round(seconds / one_s), 1), most_queued(gemm))
    take = bracketed(meter, gemm, bracket, count, "batch")

    def trial() -> tuple[float, float]:
        for _ in range(VOID_TRIALS):
            batch = take()
            meter.tick("trial", count, 0.0)
            if batch:
                return batch["batch"] / count, batch["sm_clock"]
        raise MeasurementError("a candidate could not be tried: the gate timed out each time")

    return trial


def settled_s(meter: Meter, gemm: Gemm) -> float:
    """Seconds of a call once the clock has settled under this product alone."""
    one_s = warm(meter, gemm)
    return _trial(meter, clock_bracket(meter.gpu), gemm, SETTLED_S, one_s)()[0]


def warm(meter: Meter, gemm: Gemm, seconds: float = WARM_S) -> float:
    """Run until the clock has settled; returns the seconds of one call then."""
    one_s = warm_s(gemm.submit)
    began_s = now_s(meter.clock)
    while now_s(meter.clock) - began_s < seconds:
        gemm.submit(min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm)))
        meter.gpu.synchronize_stream()
        meter.tick("trial", 1, 0.0)
    one_s = warm_s(gemm.submit)
    meter.tick("trial", 2, 0.0)
    return one_s


def calls_in_a_row(gemm: Gemm, one_s: float) -> int:
    """How many calls of ``one_s`` each the host submits back to back in a sample."""
    return min(max(round(SAMPLE_S / one_s), SHORTEST_THROUGHPUT), most_queued(gemm))


def replays(graph_s: float) -> int:
    """How many replays of a graph that takes ``graph_s`` make a sample."""
    return min(max(round(SAMPLE_S / graph_s), 1), MOST_REPLAYS)


def most_queued(gemm: Gemm) -> int:
    """How many calls may stand behind a gate."""
    return min(MOST_CALLS, (gemm.submit.queue_slots or SAFE_QUEUE_SLOTS) // SLOTS_PER_CALL)


def bracketed(meter: Meter, gemm: Gemm, bracket: ClockBracket, count: int, name: str) -> Callable[[], Sample]:
    """A function that times ``count`` calls behind a gate as ``name`` and takes the mean SM clock as ``sm_clock``.

    Its result is empty if the gate timed out.
    """
    gpu, gate, events = meter.gpu, meter.gpu.gate(), meter.gpu.events()
    bracket.begin()  # loads its code, which a shut gate would wait for
    bracket.end()
    gpu.synchronize()

    def take() -> Sample:
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


class Shape(NamedTuple):
    """Rows, columns and depth of a product."""

    rows: int
    columns: int
    depth: int


def problem_that_fits(gpu: Gpu, dtype: GemmType, shape: Shape) -> tuple[Problem, Fact]:
    """The product of a shape, halved until it fits the free memory; the fact ``shape`` says which shape it is.

    Raises Skip if not even SMALLEST fits.
    """
    fitting, free = shape, free_bytes(gpu)
    while needed_bytes(gpu, dtype, *fitting) > free and min(fitting) // 2 >= SMALLEST:
        fitting = Shape(*(size // 2 for size in fitting))
    source = "as asked" if fitting == shape else f"halved until it fitted the {free} B free"
    return problem_of(gpu, dtype, *fitting), Fact("shape", "x".join(map(str, fitting)), source=source)


def rate_name(problem: Problem) -> str:
    """The metric's name: rates of floating-point and of integer operations are different metrics."""
    return "integer_rate" if problem.matrices.dtype == "int8" else "rate"


def work_of(problem: Problem) -> Work:
    """The work of one call; floating-point operations are flops."""
    integer = problem.matrices.dtype == "int8"
    return Work(operations=problem.operations) if integer else Work(flops=problem.operations)


def rate(meter: Meter, gemm: Gemm) -> list[Measurement]:
    """Metrics ``rate`` or ``integer_rate`` by device events behind a gate, and ``sm_clock`` by kernels around them.

    Operands are new and D is poisoned before; D is compared after the samples.
    """
    calls, batch = batches(meter, gemm)
    gemm.fresh()
    warm(meter, gemm)
    names, floor_s = (rate_name(gemm.problem), "sm_clock"), meter.floors.event_pair_s
    timed, clock = meter.collect_each(names, batch, clock="device", calls=calls, floor_s=floor_s)
    timed = msgspec.structs.replace(timed, work=work_of(gemm.problem), bound=f"gemm:{gemm.problem.matrices.dtype}")
    return [*verified([timed], gemm.check()), as_clock(clock)]


def batches(meter: Meter, gemm: Gemm, seconds: float = SAMPLE_S) -> tuple[int, Callable[[], Sample]]:
    """The calls of a gated batch of about ``seconds``, and the function that times one."""
    calls = min(max(round(seconds / warm(meter, gemm, 0.0)), 1), most_queued(gemm))
    return calls, bracketed(meter, gemm, clock_bracket(meter.gpu), calls, rate_name(gemm.problem))


def powered(meter: Meter, gemm: Gemm) -> Iterator[Measurement | Fact]:
    """The metrics of ``rate``, then ``power`` and ``energy`` of an operation over seconds of the same work.

    If the GPU has no energy counter, a fact ``power`` says why.
    """
    yield from rate(meter, gemm)
    try:
        meter.gpu.energy_j()
    except Skip as skip:  # a MIG instance, or no NVML: the rate is still valid
        yield Fact("power", None, reason=str(skip))
        return
    gemm.fresh()
    one_s = warm(meter, gemm, 0.0)
    drawn = list(power(meter, gemm.submit, one_s, gemm.problem.operations))
    if gemm.problem.matrices.dtype == "int8":
        drawn[-1] = msgspec.structs.replace(drawn[-1], metric="integer_energy")
    yield from verified(drawn, gemm.check())

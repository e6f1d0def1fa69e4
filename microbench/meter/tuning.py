"""Finds the fastest way to compute a matrix product, and times batches of its calls with the SM clock around them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Measurement
from microbench.gpu.protocol.compute import ClockBracket, Gemm, Library, Problem
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.meter.sampling import now_s
from microbench.meter.timer import Meter
from microbench.meter.transfers import warm_s

SAMPLE_S = 5e-3
MOST_CALLS = 100
# With random data an H200's clock falls within the first 70 to 120 ms of steady work; a shorter warm-up would measure
# that fall.
WARM_S = 0.15
# A product may take several slots of the launch queue, because separate kernels add up the splits of its depth.
SLOTS_PER_CALL = 4

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
    bracket = meter.gpu.compute.bracket()
    trials = {way: _trial(meter, bracket, gemm, TRIAL_S, one_s) for way, gemm in gemms.items()}
    rounds = [{way: trial() for way, trial in trials.items()} for _ in range(TRIALS)]
    call_s = {way: statistics.median(results[way][0] for results in rounds) for way in trials}
    ranked = sorted(trials, key=lambda way: call_s[way])
    best, highest_hz = ranked[0], meter.gpu.info.sm_clock_max_hz
    last_hz = rounds[-1][best][1]
    held_back = HELD_BACK_ALONE if problem.dtype in LEFT_ALONE else HELD_BACK
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
        _report_life(meter, len(gemms))
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
            _report_life(meter, count)
            if batch:
                return batch["batch"] / count, batch["sm_clock"]
        raise MeasurementError("a candidate could not be tried: the gate timed out each time")

    return trial


def settled_s(meter: Meter, gemm: Gemm) -> float:
    """Seconds of a call once the clock has settled under this product alone."""
    one_s = warm(meter, gemm)
    return _trial(meter, meter.gpu.compute.bracket(), gemm, SETTLED_S, one_s)()[0]


def warm(meter: Meter, gemm: Gemm, seconds: float = WARM_S) -> float:
    """Run until the clock has settled; returns the seconds of one call then."""
    one_s = warm_s(gemm)
    began_s = now_s(meter.clock)
    while now_s(meter.clock) - began_s < seconds:
        gemm.submit(min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm)))
        meter.gpu.synchronize_stream()
        _report_life(meter, 1)
    one_s = warm_s(gemm)
    _report_life(meter, 2)
    return one_s


def most_queued(gemm: Gemm) -> int:
    """How many calls may stand behind a gate."""
    return min(MOST_CALLS, (gemm.submit.queue_slots or SAFE_QUEUE_SLOTS) // SLOTS_PER_CALL)


def bracketed(
    meter: Meter, gemm: Gemm, bracket: ClockBracket, count: int, name: str
) -> Callable[[], Mapping[str, float]]:
    """A function that times ``count`` calls behind a gate as ``name`` and takes the mean SM clock as ``sm_clock``.

    Its result is empty if the gate timed out.
    """
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


def as_clock(measured: Measurement) -> Measurement:
    """A metric that the SMs' counters gave along with a time: it covers a whole sample, not a call."""
    return msgspec.structs.replace(measured, clock="counter", calls_per_sample=1, floor_s=None, resolution=None)


def _report_life(meter: Meter, calls: int) -> None:
    """A tick without a metric. Without it the worker would count as hung, because trials may last a minute."""
    meter.tick("trial", calls, 0.0)

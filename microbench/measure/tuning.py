"""Batches of a product's calls: until the clock has settled, and behind a gate with the SM clock around them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from microbench.core.errors import MeasurementError
from microbench.core.model import Fact, Measurement
from microbench.gpu.protocol.compute import ClockBracket, Gemm, GemmType, Library, Problem
from microbench.gpu.protocol.gpu import SAFE_QUEUE_SLOTS
from microbench.measure.sampling import now_s
from microbench.measure.timer import Meter
from microbench.measure.transfers import warm_s

SAMPLE_S = 5e-3
MOST_CALLS = 100
# Random data pull an H200's clock down within 70 to 120 ms of steady work: a shorter warm-up would measure the fall.
WARM_S = 0.15
# A product takes some of the launch queue's slots: splits of the depth are added up by kernels of their own.
SLOTS_PER_CALL = 4


def most_queued(gemm: Gemm) -> int:
    """Calls that may stand behind a gate."""
    return min(MOST_CALLS, (gemm.submit.queue_slots or SAFE_QUEUE_SLOTS) // SLOTS_PER_CALL)


def tell(meter: Meter, calls: int) -> None:
    """A sign of life, which no metric is shown for: what comes before the first sample may take a minute."""
    meter.sampler.tick("trial", calls, 0.0)


def warm(meter: Meter, gemm: Gemm, seconds: float = WARM_S) -> float:
    """Work until the clock has settled; seconds of one call then."""
    one_s = warm_s(gemm)
    began_s = now_s(meter.clock)
    while now_s(meter.clock) - began_s < seconds:
        gemm.submit(min(max(round(SAMPLE_S / one_s), 1), most_queued(gemm)))
        meter.gpu.synchronize_stream()
        tell(meter, 1)
    one_s = warm_s(gemm)
    tell(meter, 2)
    return one_s


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


# Candidates of a product: which is the fastest, at one clock for all and at the clock that each ends up with.


TRIALS = 3
TRIAL_S = 3e-3
VOID_TRIALS = 3
# Tensor work alone takes an H200's clock to 0.92 of its highest (fp64 and what the ALUs do leave it alone); below
# HELD_BACK it is power that does. Candidates less than NEAR apart may then change places: fp64 products did, by 12 %.
HELD_BACK = 0.88
HELD_BACK_ALONE = 0.985
LEFT_ALONE = ("fp64", "fp32")
NEAR = 1.08
MOST_SETTLED, FEWEST_SETTLED = 4, 2
# A run in a hurry (--quick) gives a metric less than so long.
HURRY_S = 0.1
SETTLED_S = 0.02
# A board's slower power control looks at the last second: behind seconds of trials an H200's fp64 was measured at a
# clock that still rose from 1.45 to 1.65 GHz.
REST_S = 0.5


def fastest(meter: Meter, problem: Problem, library: Library) -> tuple[Gemm, Fact]:
    """The fastest way of a library: TRIALS samples of each, in turn, so that a clock that falls falls on all alike.

    Where power holds the clock back, the way that takes least of it wins in the end: of the nearest ones each then
    works until its own clock has settled, and the GPU rests before what comes next.
    """
    ways = problem.ways(library)
    gemms = _made(meter, problem, library, ways)
    first_way, first = next(iter(gemms.items()))
    first.fresh()  # also for a single way: memory comes zeroed, and zeros multiply faster
    if len(gemms) == 1:
        return first, Fact("candidate", first_way, source="the only one")
    trials = _Trials(meter, problem.dtype, gemms, warm(meter, first))
    best = trials.best()
    place = ways.index(best) + 1
    if trials.settled and not in_a_hurry(meter):
        meter.gpu.pause(REST_S)
    return gemms[best], Fact("candidate", best, source=f"the fastest of {len(gemms)}, guess {place} of the heuristics")


def _made(meter: Meter, problem: Problem, library: Library, ways: Sequence[str]) -> dict[str, Gemm]:
    """The ways that work: a guess of the heuristics may refuse when it is called. Raises what the last one did where
    none is left."""
    gemms: dict[str, Gemm] = {}
    for way in ways:
        try:
            gemms[way] = problem.gemm(library, way)  # calls it, which may take seconds
        except MeasurementError:
            if way == ways[-1] and not gemms:
                raise
        tell(meter, len(gemms))
    return gemms


def in_a_hurry(meter: Meter) -> bool:
    """True in a run that is to end soon."""
    return meter.limits.seconds <= HURRY_S


class _Trials:
    """The candidates of a product, tried. Raises MeasurementError where every gate was late."""

    def __init__(self, meter: Meter, dtype: GemmType, gemms: Mapping[str, Gemm], one_s: float) -> None:
        self._meter, self._gemms, self._one_s = meter, gemms, one_s
        self._held_back = HELD_BACK_ALONE if dtype in LEFT_ALONE else HELD_BACK
        self._bracket = meter.gpu.compute.bracket()
        self.settled = False

    def best(self) -> str:
        """The fastest one's name."""
        takes = {
            way: _taker(self._meter, self._bracket, gemm, TRIAL_S, self._one_s) for way, gemm in self._gemms.items()
        }
        tried = [{way: _one(take) for way, take in takes.items()} for _ in range(TRIALS)]
        taken = {way: statistics.median(one[way].call_s for one in tried) for way in takes}
        ranked = sorted(takes, key=lambda way: taken[way])
        highest_hz = self._meter.gpu.info.sm_clock_max_hz
        if not highest_hz or tried[-1][ranked[0]].clock_hz > self._held_back * highest_hz:
            return ranked[0]
        most = FEWEST_SETTLED if in_a_hurry(self._meter) else MOST_SETTLED
        self.settled = True
        near = [way for way in ranked if taken[way] <= NEAR * taken[ranked[0]]][:most]
        return min(near, key=lambda way: settled_s(self._meter, self._gemms[way])) if len(near) > 1 else ranked[0]


def settled_s(meter: Meter, gemm: Gemm) -> float:
    """Seconds of a call once the candidate's own clock has settled."""
    one_s = warm(meter, gemm)
    return _one(_taker(meter, meter.gpu.compute.bracket(), gemm, SETTLED_S, one_s)).call_s


def _taker(
    meter: Meter, bracket: ClockBracket, gemm: Gemm, seconds: float, one_s: float
) -> Callable[[], _Trial | None]:
    """What makes a batch of about so long; None where its gate was late."""
    count = min(max(round(seconds / one_s), 1), most_queued(gemm))
    take = bracketed(meter, gemm, bracket, count, "batch")

    def trial() -> _Trial | None:
        taken = take()
        tell(meter, count)
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

"""Work that lasts: a product again and again from a cold start, its rate, clock, power and temperature over time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from microbench.batches import as_clock, most_queued
from microbench.candidates import fastest
from microbench.errors import Skip
from microbench.gemms import work_of
from microbench.gpu.api import EventPair, Gate
from microbench.gpu.compute_api import ACCUMULATORS, ClockBracket, Gemm, GemmType, Problem
from microbench.model import SAMPLES_KEPT, Fact, Measurement, Series, Telemetry
from microbench.sampling import NANOSECOND_S, kept, now_s, shortened
from microbench.timing import Meter
from microbench.transfers import verified

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

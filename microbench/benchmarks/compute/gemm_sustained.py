"""How long does the burst rate last?

Question
    Which rate does an idle GPU reach in its first milliseconds of work, which rate remains after seconds of the same
    work, and what caused the loss?
Method
    After two idle seconds one product repeats without a pause, first in short batches, then in longer ones. Kernels
    before and after each batch read the SMs' clock, and NVML is queried during the batch.
Reading
    burst is the rate of the first batch, sustained that of the second half of the time, and turn the moment when half
    of the difference was lost. The rate is the clock times the rate per cycle: if it falls with the clock, power or
    temperature is the cause.
"""

from dataclasses import dataclass, field

import numpy as np

from microbench.core.model import SAMPLES_KEPT, Fact, Measurement, Metric, Series, Telemetry
from microbench.experiments.compute.instructions import ClockBracket, as_clock, clock_bracket, state
from microbench.experiments.compute.products import Gemm, problem
from microbench.experiments.compute.rates import ACCUMULATORS, fastest, most_queued, work_of
from microbench.gpu.protocol.gpu import EventPair, Gate, Gpu
from microbench.gpu.protocol.matrices import GemmType
from microbench.meter.benchmark import Axis, Benchmark, Meter, Results, Skip, verified
from microbench.meter.sampling import NANOSECOND_S, now_s, shortened, stored

SIZE = 8192
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


def measure(gpu: Gpu, meter: Meter, dtype: GemmType, duration_s: int) -> Results:
    product = problem(gpu, dtype, SIZE, SIZE, SIZE)
    gemm, candidate = fastest(meter, product, "cublaslt")
    yield candidate
    yield Fact("accumulator", ACCUMULATORS[dtype], source="the compute type asked for")
    course = _run(meter, gemm, duration_s)
    checked = gemm.check()
    call_s, t_s = np.array(course.call_s), np.array(course.t_s)
    late = t_s >= duration_s / 2
    if len(t_s) < FEWEST_BATCHES or not late.any():
        raise Skip(f"{duration_s} s hold {len(t_s)} batches of {dtype} only: ask for a longer duration_s")
    work, bound = work_of(product), f"gemm:{dtype}"
    for name, batches in (("burst", call_s[:1]), ("sustained", call_s[late])):
        samples = stored(batches.tolist())
        yield from verified([Measurement(name, "device", samples, len(batches), work=work, bound=bound)], checked)
    clocks = np.array(course.clock_hz)[late].tolist()
    yield as_clock(Measurement("sm_clock", "counter", stored(clocks), len(clocks)))
    turned = turn_s(t_s, call_s, float(np.median(call_s[late])))
    if turned is not None:
        yield Measurement("turn", "device", stored((turned,)), 1)
    yield from _series(course, product.operations)
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
    bracket, events, gate = clock_bracket(gpu), gpu.events(), gpu.gate()
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
        seen = _batch(meter, gemm, bracket, events, count, None if course.t_s else gate)
        course.t_s.append((at_s + now_s(meter.clock) - began_s) / 2)
        course.call_s.append(events.elapsed_s() / count)
        course.clock_hz.append(bracket.hz())
        course.states.append(seen)
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
    seen = state(meter.gpu)
    meter.gpu.synchronize()
    return seen


def _series(course: _Course, operations: int) -> Results:
    values: dict[str, list[float | None]] = {
        "rate": [operations / call_s for call_s in course.call_s],
        "sm_clock": list(course.clock_hz),
        "power": [seen.power_w for seen in course.states],
        "temperature": [seen.temperature_c for seen in course.states],
        "nvml_sm_clock": [seen.nvml_sm_clock_hz for seen in course.states],
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
    for t_s, seen in zip(course.t_s, course.states, strict=True):
        for reason in seen.throttle_reasons:
            first.setdefault(reason, t_s)
    words = ", ".join(f"{reason} from {t_s:.2f} s on" for reason, t_s in first.items())
    return Fact("throttle_reasons", words or "none", source="NVML, during every batch")


BENCHMARK = Benchmark(
    title="Burst and sustained rate",
    metrics=(
        Metric("burst", "rate", "FLOP/s", "rate of the first batch after two seconds of rest"),
        Metric("sustained", "rate", "FLOP/s", "rate of the batches in the second half"),
        Metric("sm_clock", "count", "Hz", "SM clock of the batches in the second half, counted by the SMs"),
        Metric("turn", "time", "s", "when half of the drop from burst to sustained had happened"),
    ),
    axes={
        "dtype": Axis("type of the operands", ("bf16",), ("bf16",), ("bf16", "fp8_e4m3_fast", "fp16", "tf32", "fp64")),
        "duration_s": Axis("seconds of work", (), (4,), (4, 30), minimum=1, maximum=600),
    },
)

"""Takes impossible numbers out of a decoded run, so that nothing derived from it fails or misleads.

An outcome with an impossible number becomes a failed one without measurements. An impossible number of the machine
becomes unknown. Both get a reason that begins with DAMAGED, which reports show.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from microbench.core.errors import RunUnreadableError
from microbench.core.model import NO_WORK, Fact, Measurement, MemoryErrors, Metric, Outcome, Run, Session

DAMAGED = "damaged: "
# No reading is below 1e-99 or at least 1e100: figures derived from such numbers overflow.
LEAST, MOST = 1e-99, 1e100
LARGE_EXPONENT = re.compile(rb"[eE][-+]?0*[1-9][0-9][0-9]")
# Samples with all digits replaced by 9, which finds long and negative numbers faster than a pattern does.
BLANKS, SHAPE, LONG = b"+ \t\r\n", bytes.maketrans(b"012345678E[]", b"999999999e,,"), b"9" * 40
# Samples without the characters that a zero consists of.
PARTS_OF_ZERO, BRACKETS = b"0.-+ \t\r\n", bytes.maketrans(b"E[]", b"e,,")
# Counts with these units are never below zero, and neither are times.
NEVER_NEGATIVE = frozenset({"Hz", "W"})
# Numbers above these are impossible, and so are numbers below 1; 0 means that there is none.
MOST_OF_A_GPU = {
    "sm_count": 1e5, "l2_bytes": 1e15, "memory_bytes": 1e18, "sm_clock_max_hz": 1e12, "memory_clock_max_hz": 1e12,
    "memory_bus_bits": 1e6, "numa_node": 1e5, "power_limit_w": 1e6,
}  # fmt: skip
MOST_OF_A_LINK = {
    "generation_now": 15, "generation_max": 15, "lanes_now": 64, "lanes_max": 64, "max_payload_bytes": 1e5,
    "max_read_request_bytes": 1e5, "nvlinks": 1e4, "nvlink_bytes_per_s": 1e15,
}  # fmt: skip
MOST_ERRORS = dict.fromkeys(MemoryErrors.__struct_fields__, 1e15)
MOST_OF_A_CLOCK = dict.fromkeys(("sm_clock_begin_hz", "sm_clock_end_hz", "nvml_sm_clock_hz", "memory_clock_hz"), 1e12)
LEAST_FLOOR_S, LONGEST_FLOOR_S = 1e-15, 1e3
LEAST_FACT, MOST_FACT = 1e-15, 1e20
MOST_CALLS = 1e12
# Parameters that count what a case does at least once.
NEVER_ZERO = frozenset({"nodes"})

Part = TypeVar("Part", bound=msgspec.Struct)
Metrics = Mapping[tuple[str, str], Metric]


def without_damage(run: Run) -> Run:
    """The run with failed outcomes and unknown facts in the place of those with impossible numbers."""
    metrics = {(info.name, metric.name): metric for info in run.benchmarks for metric in info.metrics}
    outcomes = tuple(_outcome(outcome, metrics) for outcome in run.outcomes)
    return replace(run, sessions=tuple(map(_session, run.sessions)), outcomes=outcomes)


def _session(session: Session) -> Session:
    """The session with impossible numbers set to unknown; a new fact names each that is not a fact itself."""
    environment, gpus, damage = session.environment, [], list[Fact]()
    for number, gpu in enumerate(environment.gpus):
        impossible = _beyond(gpu, MOST_OF_A_GPU)
        if any(not 0 <= part <= 99 for part in gpu.compute_capability or ()):
            impossible.append("compute_capability")
        own = _without(gpu, impossible, f"gpu{number}_", damage)
        link = _without(gpu.link, _beyond(gpu.link, MOST_OF_A_LINK), f"gpu{number}_link_", damage)
        if (errors := gpu.memory_errors) is not None:
            errors = _without(errors, _beyond(errors, MOST_ERRORS), f"gpu{number}_errors_", damage)
        gpus.append(replace(own, link=link, memory_errors=errors))
    floors = session.floors
    seconds = ((name, getattr(floors, name)) for name in floors.__struct_fields__)
    impossible = [name for name, each in seconds if each and not LEAST_FLOOR_S <= each <= LONGEST_FLOOR_S]
    floors = _without(floors, impossible, "floor_", damage)
    facts = (*map(_fact, environment.facts), *damage)
    return replace(session, floors=floors, environment=replace(environment, gpus=tuple(gpus), facts=facts))


def _beyond(part: msgspec.Struct, most: Mapping[str, float]) -> list[str]:
    return [name for name in most if (value := getattr(part, name)) and not 1 <= value <= most[name]]


def _without(part: Part, names: Iterable[str], prefix: str, damage: list[Fact]) -> Part:
    """The part with these fields set to unknown (unchanged without any); a fact about each is added to ``damage``."""
    unknown = dict.fromkeys(names)
    damage += [_unknown(Fact(prefix + name, getattr(part, name))) for name in unknown]
    return replace(part, **unknown) if unknown else part


def _fact(fact: Fact) -> Fact:
    return fact if _is_sound(fact.value) else _unknown(fact)


def _unknown(fact: Fact) -> Fact:
    return replace(fact, value=None, reason=f"{DAMAGED}{fact.value} is an impossible number")


def _is_sound(value: object) -> bool:
    return not isinstance(value, int | float) or value == 0 or LEAST_FACT <= value <= MOST_FACT


def _outcome(outcome: Outcome, metrics: Metrics) -> Outcome:
    """The outcome, or, if a number in it is impossible, a failed outcome that names the number, without figures."""
    if not all(_is_sound(fact.value) for fact in outcome.facts):
        outcome = replace(outcome, facts=tuple(map(_fact, outcome.facts)))
    damage = next(_damage(outcome, metrics), None)
    if damage is None:
        return outcome
    reason = f"{DAMAGED}{damage} is an impossible number"
    return replace(outcome, status="failed", reason=reason, measurements=(), series=(), telemetry={}, wall_s=0.0)


def _damage(outcome: Outcome, metrics: Metrics) -> Iterator[str]:
    for each in outcome.measurements:
        metric = metrics.get((outcome.case.benchmark, each.metric))
        if _is_impossible(each, metric):
            yield each.metric
        if metric is not None and metric.kind == "rate" and each.work == NO_WORK:
            yield f"{each.metric} without its work"
    for series in outcome.series:
        if any(value and not LEAST <= abs(value) < MOST for value in (*series.t_s, *series.values)):
            yield series.metric
    for state in outcome.telemetry.values():
        yield from (f"its {name}" for name in _beyond(state, MOST_OF_A_CLOCK))
        yield from (f"its {name}" for name in ("temperature_c", "power_w") if not _is_sound(getattr(state, name)))
    for axis, value in outcome.case.params.items():
        if isinstance(value, int) and not (axis in NEVER_ZERO) <= value <= 1e15:
            yield f"{axis}={value}"
    if not 0 <= outcome.wall_s <= 1e9:
        yield "its wall time"


def _is_impossible(measurement: Measurement, metric: Metric | None) -> bool:
    samples, calls = bytes(measurement.samples), measurement.per_call
    shape = samples.translate(SHAPE, BLANKS)
    if measurement.calls_per_sample > MOST_CALLS:
        return True
    # Most samples have none of these two bytes, and one byte is found quickly. Of several, rfind looks for the first.
    large, signs = b"e" in shape and max(shape.rfind(b"e-999"), shape.rfind(b"e999")) >= 0, b"-" in shape
    if LONG in shape or (large and LARGE_EXPONENT.search(samples)):
        return True
    if signs and b",-" in shape and metric is not None and (metric.kind != "count" or metric.unit in NEVER_NEGATIVE):
        # Noise makes some samples of a difference of two times negative, and most samples of a difference below the
        # clock's resolution.
        mostly = 2 * shape.count(b",-") >= shape.count(b",")
        if metric.kind == "rate" or (mostly and _median(measurement) < -(measurement.floor_s or 0)):
            return True
    if metric is not None and metric.kind == "rate" and measurement.n:  # its time is above zero
        left = samples.translate(BRACKETS, PARTS_OF_ZERO)
        if b",," in left or b",e" in left:
            return True
    if not (LEAST <= (measurement.floor_s or 1) < MOST and LEAST <= (measurement.resolution or 1) < MOST):
        return True
    if calls is None:
        return False
    figures = calls.p1, calls.p50, calls.p90, calls.p99, calls.min, calls.max
    last_edge = math.log10(calls.first_edge) + math.log10(calls.ratio) * len(calls.counts)
    return last_edge > 99 or any(figure and not LEAST <= abs(figure) < MOST for figure in figures)


def _median(measurement: Measurement) -> float:
    try:
        return median(measurement.values)
    except RunUnreadableError:  # there are no numbers
        return -math.inf

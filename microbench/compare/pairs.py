"""Pairs of rows as arrays for the decision: logarithms of the rounds' medians, as measured and at one SM clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.clocks import ARITHMETIC_BOUNDS, is_arithmetic
from microbench.analysis.evidence import Evidence
from microbench.analysis.limits import Ceiling
from microbench.analysis.rates import PER_CLOCK
from microbench.analysis.stats import Row, combined_trust, rounds_interval, rows
from microbench.compare.decision import Figures, FloatArray, IntArray
from microbench.core.model import BenchmarkInfo, GpuInfo, Outcome, Run, Session

# Which figures of two runs belong together, with all rounds of each; which cannot be compared, and why.


MINIMUM_ROUNDS = 5
Incomparable = Literal["simulated", "method", "model"]
Key = tuple[str | None, str, str]


class Pair(NamedTuple):
    """A figure of BASE and the same of NEW. ``reason`` says why they cannot be compared; where the GPUs are of two
    models, each has the ``ceilings`` that its share is taken of. ``in_turn``: their rounds were, so that the scatter of
    these shows what the host did from one to the next."""

    base: Row
    new: Row
    reason: Incomparable | None = None
    ceilings: tuple[Ceiling, Ceiling] | None = None
    in_turn: bool = False


class Paired(NamedTuple):
    """Every pair, in NEW's order, and the rows that only one of the runs has. ``devices`` are BASE's GPUs by NEW's;
    ``other_models`` those of them that are of another model."""

    pairs: tuple[Pair, ...]
    only_base: tuple[Row, ...]
    only_new: tuple[Row, ...]
    devices: tuple[tuple[GpuInfo, GpuInfo], ...]
    other_models: tuple[tuple[GpuInfo, GpuInfo], ...]


def paired(base: Run, new: Run) -> Paired:
    """Figures matched by case, metric and GPU: the same board, else the only one of each run, else the same index."""
    before, after = newest(base), newest(new)
    matched = _devices(base, new, before, after)
    sides = _Side(base), _Side(new)
    pairs = []
    for (device, case_id, metric), row in after.items():
        own = matched.get(device) if device is not None else None
        other = before.pop((own, case_id, metric), None) if device is None or own is not None else None
        if other is not None:
            pairs.append(_pair(other, row, *sides))
    taken = {id(one.new) for one in pairs}
    gpus = [(sides[0].gpus[own], sides[1].gpus[device]) for device, own in matched.items()]
    return Paired(
        pairs=tuple(pairs),
        only_base=tuple(before.values()),
        only_new=tuple(row for row in after.values() if id(row) not in taken),
        devices=tuple(gpus),
        other_models=tuple(one for one in gpus if not same_model(*one)),
    )


def newest(run: Run) -> dict[Key, Row]:
    """The newest row of each case and metric on each GPU, with the rounds of older sessions where it has too few.

    So five sessions of one round each, taken in turn with those of another run, are five rounds. Older sessions count
    only if the driver was the same: a run is grown on one machine, and a method cannot change within a run.
    """
    found: dict[Key, list[Row]] = {}
    for row in rows(run):
        found.setdefault((row.device, row.case_id, row.metric.name), []).append(row)
    return {key: _joined(run, several) for key, several in found.items()}


def _joined(run: Run, several: list[Row]) -> Row:
    newest_row = several[-1]
    driver = _driver(run.sessions[newest_row.session])
    taken = [newest_row]
    for row in reversed(several[:-1]):
        if sum(len(one.outcomes) for one in taken) >= MINIMUM_ROUNDS:
            break
        if _driver(run.sessions[row.session]) == driver:
            taken.insert(0, row)
    if len(taken) == 1:
        return newest_row
    summaries = tuple(summary for row in taken for summary in row.summaries)
    interval = rounds_interval([summary.interval for summary in summaries])
    return msgspec.structs.replace(
        newest_row,
        summaries=summaries,
        outcomes=tuple(outcome for row in taken for outcome in row.outcomes),
        interval=interval,
        trust=combined_trust(summaries, interval),
    )


def _driver(session: Session) -> str | None:
    return session.environment.driver_version


class _Side:
    """What a pair needs to know of one of the runs: its methods, its GPUs by UUID, and what holds for a session."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.methods: Mapping[str, BenchmarkInfo] = {info.name: info for info in run.benchmarks}
        self.gpus = _gpus(run)
        self.evidence = {uuid: Evidence(run, (), uuid) for uuid in self.gpus}

    def simulated(self, row: Row) -> bool:
        return self.run.sessions[row.session].simulated

    def starts(self, row: Row) -> list[str]:
        """When the sessions of a row's rounds began."""
        return [self.run.sessions[number].started_at for number in {one.session for one in row.outcomes}]

    def ceiling(self, row: Row) -> Ceiling | None:
        """The limit of a row in its own unit."""
        limit = self.evidence[row.device].ceiling(row) if row.device in self.evidence else None
        return limit if limit is not None and limit.unit == row.metric.unit and limit.value > 0 else None


def _gpus(run: Run) -> dict[str, GpuInfo]:
    """Each GPU as the newest session that had it saw it."""
    return {gpu.uuid: gpu for session in run.sessions for gpu in session.environment.gpus}


def _devices(base: Run, new: Run, before: Iterable[Key], after: Iterable[Key]) -> dict[str, str]:
    """The GPU of BASE that each GPU of NEW is held against: UUIDs by UUIDs, of those that gave rows."""
    gpus, others = _gpus(new), _gpus(base)
    ours = [uuid for uuid in dict.fromkeys(device for device, _, _ in after) if uuid in gpus]
    theirs = [uuid for uuid in dict.fromkeys(device for device, _, _ in before) if uuid in others]
    result = {str(uuid): str(uuid) for uuid in ours if uuid in theirs}
    if not result and len(ours) == len(theirs) == 1:
        return {str(ours[0]): str(theirs[0])}
    free = {others[str(uuid)].index: str(uuid) for uuid in theirs if uuid not in result.values()}
    for uuid in ours:
        index = gpus[str(uuid)].index
        if uuid not in result and index in free:
            result[str(uuid)] = free[index]
    return result


def same_model(one: GpuInfo, other: GpuInfo) -> bool:
    """Whether two GPUs can be expected to give the same figures: their name, and as many SMs (MIG shares them out)."""
    return (one.name, one.sm_count) == (other.name, other.sm_count)


def _pair(base: Row, new: Row, before: _Side, after: _Side) -> Pair:
    if before.simulated(base) != after.simulated(new):
        return Pair(base, new, "simulated")
    methods = before.methods[base.benchmark], after.methods[new.benchmark]
    if methods[0].version != methods[1].version or (base.metric.kind, base.metric.unit) != _measured_as(new):
        return Pair(base, new, "method")
    in_turn = _in_turn(before.starts(base), after.starts(new))
    if base.device is None or new.device is None or same_model(before.gpus[base.device], after.gpus[new.device]):
        return Pair(base, new, in_turn=in_turn)
    limits = before.ceiling(base), after.ceiling(new)
    if limits[0] is None or limits[1] is None:
        return Pair(base, new, "model")
    return Pair(base, new, ceilings=(limits[0], limits[1]), in_turn=in_turn)


def _in_turn(base: Sequence[str], new: Sequence[str]) -> bool:
    """Whether sessions enough were run in turn: of each two that follow one another, one is of either run (A B A B, or
    A B B A). Those that began in the same moment are not known to be."""
    if len(base) != len(new) or len(base) < MINIMUM_ROUNDS:
        return False
    sides = [side for _, side in sorted([*((start, 0) for start in base), *((start, 1) for start in new)])]
    return all(one != other for one, other in zip(sides[::2], sides[1::2], strict=True))


def _measured_as(row: Row) -> tuple[str, str]:
    return row.metric.kind, row.metric.unit


CLOCK_METRIC = "sm_clock"
CACHE_BOUNDS = ("shared", "l1", "l2")
PER_CLOCK_UNIT = "/clk"
# Nothing has no logarithm: a count of nothing is taken for half the least that was counted beside it.
NOTHING = 0.5
Binding = Literal["free", "partly", "bound"]
Sides = tuple[list[float], list[float]]


def clock_binding(row: Row) -> Binding:
    """Whether the SM clock sets a row's figure.

    ``bound``: tensor cores, ALUs and caches give so much a cycle; or it is that clock. ``free``: the host times it, its
    limit has another clock (memory, links), or it is per cycle at any clock. ``partly``: timed on the device with no
    limit that says, or with several, so that only what holds both ways is a change.
    """
    bound = row.measurement.bound or ""
    if row.metric.name == CLOCK_METRIC:
        return "bound"
    if row.metric.kind == "count" or row.measurement.clock != "device" or bound.endswith(PER_CLOCK):
        return "free"
    ways = {one.bound.partition(":")[0] for one in row.outcomes[0].measurements if one.bound}
    if is_arithmetic(row.outcomes[0].measurements) and len(ways) > 1:
        return "partly"
    if bound.startswith(ARITHMETIC_BOUNDS) or bound in CACHE_BOUNDS:
        return "bound"
    return "free" if bound else "partly"


def clock_of(row: Row, outcome: Outcome) -> float | None:
    """The SM clock while a round of a row ran, in Hz: as its case measured it, else as read around it."""
    for one in outcome.measurements:
        if one.metric == CLOCK_METRIC and one.n:
            return float(np.median(one.values)) / one.calls_per_sample
    found = outcome.telemetry.get(row.device or "")
    clocks = [hertz for hertz in (found.sm_clock_begin_hz, found.sm_clock_end_hz) if hertz] if found else []
    return sum(clocks) / len(clocks) if clocks else None


def has_ratio(pair: Pair) -> bool:
    """Whether every round is above 0 and finite; a count may be 0."""
    values = [one.interval.median for row in (pair.base, pair.new) for one in row.summaries]
    if not all(map(math.isfinite, values)):
        return False
    return min(values) > 0 or (pair.new.metric.kind == "count" and min(values) == 0)


def figures(pairs: Sequence[Pair], gpus: dict[str, GpuInfo]) -> Figures:
    """The arrays of these pairs, all of which have a ratio. ``gpus`` are those of both runs, by UUID."""
    plain = [_logs(pair) for pair in pairs]
    at_clock = [_logs_at_clock(pair, gpus) or own for pair, own in zip(pairs, plain, strict=True)]
    return Figures(
        base=_padded([base for base, _ in plain]),
        new=_padded([new for _, new in plain]),
        base_at_clock=_padded([base for base, _ in at_clock]),
        new_at_clock=_padded([new for _, new in at_clock]),
        partly=np.array([clock_binding(pair.new) == "partly" for pair in pairs], dtype=np.bool_),
        within=np.array([_within(pair) for pair in pairs]),
        suite=_numbered([(pair.new.device, pair.new.suite) for pair in pairs]),
        family=_numbered([(pair.new.device, pair.new.benchmark, pair.new.metric.name) for pair in pairs]),
        host=np.array([is_host_timed(pair.new) and not pair.in_turn for pair in pairs], dtype=np.bool_),
    )


def is_host_timed(row: Row) -> bool:
    """Whether the host's own speed is in the figure."""
    return row.measurement.clock == "host" and row.metric.kind != "count"


def at_one_clock(pair: Pair, gpus: dict[str, GpuInfo]) -> bool:
    """Whether a pair is compared at one SM clock, too: it may depend on it, and every round says what it was."""
    return _logs_at_clock(pair, gpus) is not None


def _logs(pair: Pair) -> Sides:
    """Logarithms of what both runs' rounds cost: of the figure, or of its share of the ceiling; a rate costs its
    inverse."""
    limits = [limit.value for limit in pair.ceilings] if pair.ceilings else [1.0, 1.0]
    values = [[one.interval.median for one in row.summaries] for row in (pair.base, pair.new)]
    nothing = NOTHING * min((value for side in values for value in side if value > 0), default=1.0)
    sign = cost_sign(pair)
    base, new = (
        [sign * math.log((value or nothing) / limit) for value in side]
        for side, limit in zip(values, limits, strict=True)
    )
    return base, new


def cost_sign(pair: Pair) -> int:
    """1 for a figure that costs more the higher it is, and for a count; -1 for a rate."""
    return -1 if pair.new.metric.kind == "rate" else 1


def _logs_at_clock(pair: Pair, gpus: dict[str, GpuInfo]) -> Sides | None:
    """The same at the GPUs' highest SM clock; None where that does not matter, or is not known of every round."""
    if clock_binding(pair.new) == "free":
        return None
    base, new = _clocks(pair.base, gpus), _clocks(pair.new, gpus)
    if base is None or new is None:
        return None
    # At a higher clock seconds cost less; what is counted in cycles turns into seconds by it, the clock into nothing.
    unit = pair.new.metric.unit
    per_cycle = unit in ("cycle", "Hz") or PER_CLOCK_UNIT in unit
    sign = -1 if per_cycle else 1
    logs = _logs(pair)
    return (
        [log + sign * clock for log, clock in zip(logs[0], base, strict=True)],
        [log + sign * clock for log, clock in zip(logs[1], new, strict=True)],
    )


def _clocks(row: Row, gpus: dict[str, GpuInfo]) -> list[float] | None:
    """The SM clock of each round over the GPU's highest, as logarithms; None if one is not known."""
    gpu = gpus.get(row.device or "")
    highest_hz = gpu.sm_clock_max_hz if gpu is not None else None
    clocks = [clock_of(row, outcome) for outcome in row.outcomes]
    if not highest_hz or not all(clocks):
        return None
    return [math.log(hertz / highest_hz) for hertz in clocks if hertz]


def _within(pair: Pair) -> float:
    """The half width of a usual round's own interval, as a share of it."""
    widths = [one.interval.half_width for row in (pair.base, pair.new) for one in row.summaries]
    return float(np.median([width for width in widths if math.isfinite(width)] or [0.0]))


def _padded(rounds: Sequence[Sequence[float]]) -> FloatArray:
    most = max((len(one) for one in rounds), default=0)
    result = np.full((len(rounds), most), np.nan)
    for index, one in enumerate(rounds):
        result[index, : len(one)] = one
    return result


def _numbered(names: Sequence[object]) -> IntArray:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)

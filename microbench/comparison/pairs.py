"""Matches the figures of two runs, rejects those that cannot be judged, and turns the rest into arrays."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from microbench.analysis.clocks import ARITHMETIC_BOUNDS, is_arithmetic
from microbench.analysis.limits import Ceiling, ceiling, mover
from microbench.analysis.quantiles import FloatArray
from microbench.analysis.rates import PER_CLOCK
from microbench.analysis.stats import Row, Trust, combined_trust, rounds_interval, rows
from microbench.comparison.decision import Figures, IntArray
from microbench.core.model import GpuInfo, Outcome, Run

MINIMUM_ROUNDS = 5
# More rounds narrow no verdict, and every round of one run is compared with every round of the other.
MOST_ROUNDS = 256
# Host-timed work that no driver takes part in, so that it shows what the host did: the host suite, and of the link
# suite what the host's own pages and copies cost. Large copies take their time in the host's copy, not in the call.
CONTROL_COPY_BYTES = 1 << 20
# Grades that forbid a verdict.
UNFIT: tuple[Trust, ...] = ("unverified", "below floor", "throttled")
CLOCK_METRIC = "sm_clock"
# A count of 0 has no logarithm, so it is replaced by this share of the smallest count above 0.
NOTHING = 0.5

# Why two figures are incomparable: one is simulated; the benchmark's version or unit differs; the GPU models differ and
# a ceiling is missing.
Incomparable = Literal["simulated", "method", "model"]
# Why two figures are unclear before any statistics: a value of 0 or less; too few rounds; a grade in UNFIT.
Unready = Literal["no ratio", "rounds", "grade"]
Binding = Literal["free", "partly", "bound"]
Key = tuple[str | None, str, str]
Sides = tuple[list[float], list[float]]
TwoGpus = tuple[GpuInfo, GpuInfo]  # BASE's first


class Pair(NamedTuple):
    """A figure of BASE and the same figure of NEW. ``reason`` says why they cannot be judged, None if they can.

    If the GPUs are of two models, each side is compared as a share of its own one of ``ceilings``. ``in_turn``: the
    rounds of the two runs alternated, so their scatter shows how the host drifted.
    """

    base: Row
    new: Row
    reason: Incomparable | Unready | None = None
    ceilings: tuple[Ceiling, Ceiling] | None = None
    in_turn: bool = False


class _Side(NamedTuple):
    """One of the two runs, and each of its GPUs as the newest session that had it saw it."""

    run: Run
    gpus: Mapping[str, GpuInfo]


class Matched(NamedTuple):
    """Every pair in NEW's order, the rows that only BASE and that only NEW has, and the pairs of GPUs."""

    pairs: list[Pair]
    only_base: tuple[Row, ...]
    only_new: tuple[Row, ...]
    gpus: tuple[TwoGpus, ...]


def paired(base: Run, new: Run) -> Matched:
    """Match figures by case, metric and GPU: the same board, else the only GPU of each run, else the same index."""
    before, after = _newest_rows(base), _newest_rows(new)
    base_side, new_side = (
        _Side(run, {gpu.uuid: gpu for session in run.sessions for gpu in session.environment.gpus})
        for run in (base, new)
    )
    matched = _matched_gpus(base_side, new_side, before, after)
    pairs, only_new = [], []
    for (device, case_id, metric), row in after.items():
        other = None
        if device is None or device in matched:
            other = before.pop((matched[device] if device is not None else None, case_id, metric), None)
        if other is None:
            only_new.append(row)
        else:
            pairs.append(_pair(other, row, base_side, new_side))
    devices = tuple((base_side.gpus[own], new_side.gpus[device]) for device, own in matched.items())
    return Matched(pairs, tuple(before.values()), tuple(only_new), devices)


def _newest_rows(run: Run) -> dict[Key, Row]:
    """The newest row of each case and metric on each GPU, with rounds of older sessions if it has too few.

    So five sessions of one round each, taken in turn with those of another run, count as five rounds. Older sessions
    count only under the same driver. A run grows on one machine only, and a method cannot change within a run.
    """
    by_key: dict[Key, list[Row]] = {}
    for row in rows(run):
        by_key.setdefault((row.device, row.case_id, row.metric.name), []).append(row)
    return {key: _joined(run, several) for key, several in by_key.items()}


def _joined(run: Run, several: list[Row]) -> Row:
    drivers = [session.environment.driver_version for session in run.sessions]
    newest = several[-1]
    taken = [newest]
    for row in reversed(several[:-1]):
        if sum(len(part.outcomes) for part in taken) >= MINIMUM_ROUNDS:
            break
        if drivers[row.session] == drivers[newest.session]:
            taken.insert(0, row)
    if len(taken) == 1:
        return newest
    summaries = tuple(summary for row in taken for summary in row.summaries)
    busy = tuple(flag for row in taken for flag in row.busy or (False,) * len(row.summaries))
    busy = busy if any(busy) else ()
    interval = rounds_interval([summary.interval for summary in summaries], busy=busy)
    return msgspec.structs.replace(
        newest,
        summaries=summaries,
        outcomes=tuple(outcome for row in taken for outcome in row.outcomes),
        interval=interval,
        trust=combined_trust(summaries, interval),
        busy=busy,
    )


def _matched_gpus(base: _Side, new: _Side, before: Iterable[Key], after: Iterable[Key]) -> dict[str, str]:
    """The GPU of BASE for each GPU of NEW, as UUIDs, among the GPUs that have rows."""
    base_devices, new_devices = ({device for device, _, _ in keys} for keys in (before, after))
    theirs = [uuid for uuid in base.gpus if uuid in base_devices]
    ours = [uuid for uuid in new.gpus if uuid in new_devices]
    result = {uuid: uuid for uuid in ours if uuid in theirs}
    if not result and len(ours) == len(theirs) == 1:
        return {ours[0]: theirs[0]}
    free = {base.gpus[uuid].index: uuid for uuid in theirs if uuid not in result.values()}
    for uuid in ours:
        index = new.gpus[uuid].index
        if uuid not in result and index in free:
            result[uuid] = free[index]
    return result


def same_model(base: GpuInfo, new: GpuInfo) -> bool:
    """True if two GPUs should give the same figures: one name, and as many SMs (MIG divides them)."""
    return (base.name, base.sm_count) == (new.name, new.sm_count)


def _pair(base: Row, new: Row, before: _Side, after: _Side) -> Pair:
    """A pair with the reason, if any, why it cannot be judged."""
    if before.run.sessions[base.session].simulated != after.run.sessions[new.session].simulated:
        return Pair(base, new, "simulated")
    methods = [info.version for side in (before, after) if (info := side.run.benchmark(new.benchmark)) is not None]
    if len(set(methods)) > 1 or (base.metric.kind, base.metric.unit) != (new.metric.kind, new.metric.unit):
        return Pair(base, new, "method")
    ceilings = None
    if (
        base.device is not None
        and new.device is not None
        and not same_model(before.gpus[base.device], after.gpus[new.device])
    ):
        limits = _ceiling(base, before), _ceiling(new, after)
        if limits[0] is None or limits[1] is None:
            return Pair(base, new, "model")
        ceilings = limits[0], limits[1]
    reason: Unready | None = None
    if not has_ratio(base, new):
        reason = "no ratio"
    elif min(len(base.outcomes), len(new.outcomes)) < MINIMUM_ROUNDS:
        reason = "rounds"
    elif base.trust in UNFIT or new.trust in UNFIT:
        reason = "grade"
    starts = (
        [side.run.sessions[number].started_at for number in {outcome.session for outcome in row.outcomes}]
        for row, side in ((base, before), (new, after))
    )
    return Pair(base, new, reason, ceilings, _in_turn(*starts))


def _ceiling(row: Row, side: _Side) -> Ceiling | None:
    """The physical limit of a row, in its own unit."""
    gpus = side.run.sessions[row.session].environment.gpus
    limit = ceiling(row.measurement.bound, mover(row.params, side.gpus.get(row.device or ""), gpus))
    return limit if limit is not None and limit.unit == row.metric.unit and limit.value > 0 else None


def has_ratio(base: Row, new: Row) -> bool:
    """True if every round of both is above 0 and finite; a count may be 0."""
    values = [summary.interval.median for row in (base, new) for summary in row.summaries]
    if not all(map(math.isfinite, values)):
        return False
    return min(values) > 0 or (new.metric.kind == "count" and min(values) == 0)


def _in_turn(base: Sequence[str], new: Sequence[str]) -> bool:
    """True if at least MINIMUM_ROUNDS sessions of each run alternated (A B A B, or A B B A): each two in a row are of
    both runs. The order of sessions that began in the same moment is unknown, so these do not alternate."""
    if len(base) != len(new) or len(base) < MINIMUM_ROUNDS:
        return False
    sides = [side for _, side in sorted([*((start, 0) for start in base), *((start, 1) for start in new)])]
    return all(first != second for first, second in zip(sides[::2], sides[1::2], strict=True))


def figures(pairs: Sequence[Pair], gpus: Mapping[str, GpuInfo]) -> Figures:
    """The arrays of pairs that can be judged. ``gpus`` are those of both runs, by UUID."""
    logs = [_logs(pair) for pair in pairs]
    at_clock = [_at_one_clock(pair, own, gpus) for pair, own in zip(pairs, logs, strict=True)]
    return Figures(
        base=_padded([base for base, _ in logs]),
        new=_padded([new for _, new in logs]),
        base_at_clock=_padded([base for base, _ in at_clock]),
        new_at_clock=_padded([new for _, new in at_clock]),
        partly=np.array([clock_binding(pair.new) == "partly" for pair in pairs], dtype=np.bool_),
        within=np.array([_within(pair) for pair in pairs]),
        suite=_numbered([(pair.new.device, pair.new.suite) for pair in pairs]),
        family=_numbered([(pair.new.device, pair.new.benchmark, pair.new.metric.name) for pair in pairs]),
        session=_numbered([(pair.base.session, pair.new.session) for pair in pairs]),
        host=np.array([_timed_by_host(pair.new) for pair in pairs], dtype=np.bool_),
        control=np.array([is_control(pair.new) for pair in pairs], dtype=np.bool_),
        counted=np.array([pair.new.metric.kind == "count" for pair in pairs], dtype=np.bool_),
        in_turn=np.array([pair.in_turn for pair in pairs], dtype=np.bool_),
    )


def _timed_by_host(row: Row) -> bool:
    return row.measurement.clock == "host" and row.metric.kind != "count"


def is_control(row: Row) -> bool:
    """True if a row shows how fast the host is and no driver can change it."""
    if not _timed_by_host(row):
        return False
    params = row.params
    pageable = params.get("memory") == "pageable" and int(params["size_bytes"]) >= CONTROL_COPY_BYTES
    return (
        row.suite == "host"
        or (row.benchmark == "link_pinning" and params.get("way") == "touch")
        or (row.benchmark == "link_copy" and pageable)
    )


def cost_sign(pair: Pair) -> int:
    """1 for a time or a count, which cost more the higher they are; -1 for a rate."""
    return -1 if pair.new.metric.kind == "rate" else 1


def _logs(pair: Pair) -> Sides:
    """Logarithms of the cost in each round of both runs: of the figure, or of its share of the ceiling."""
    limits = [limit.value for limit in pair.ceilings] if pair.ceilings else [1.0, 1.0]
    values = [[summary.interval.median for summary in row.summaries] for row in (pair.base, pair.new)]
    nothing = NOTHING * min((value for side in values for value in side if value > 0), default=1.0)
    sign = cost_sign(pair)
    base, new = (
        [sign * math.log((value or nothing) / limit) for value in side]
        for side, limit in zip(values, limits, strict=True)
    )
    return base, new


def _at_one_clock(pair: Pair, logs: Sides, gpus: Mapping[str, GpuInfo]) -> Sides:
    """``logs`` at the GPUs' highest SM clock; unchanged if that does not matter, or is unknown for some round."""
    if clock_binding(pair.new) == "free":
        return logs
    base, new = _clocks(pair.base, gpus), _clocks(pair.new, gpus)
    if base is None or new is None:
        return logs
    # A higher clock makes seconds cheaper. It turns cycles into seconds, and the clock itself into a constant.
    unit = pair.new.metric.unit
    sign = -1 if unit in ("cycle", "Hz") or "/clk" in unit else 1
    return (
        [log + sign * clock for log, clock in zip(logs[0], base, strict=True)],
        [log + sign * clock for log, clock in zip(logs[1], new, strict=True)],
    )


def clock_binding(row: Row) -> Binding:
    """Whether the SM clock sets a row's figure.

    ``bound``: tensor cores, ALUs and caches do a fixed amount a cycle; or the figure is that clock. ``free``: the host
    times it, its limit has another clock (memory, links), or it is per cycle. ``partly``: the device times it, and it
    has no limit that tells, or several; then only a change with and without the clock is one.
    """
    bound = row.measurement.bound or ""
    if row.metric.name == CLOCK_METRIC:
        return "bound"
    if row.metric.kind == "count" or row.measurement.clock != "device" or bound.endswith(PER_CLOCK):
        return "free"
    measurements = row.outcomes[0].measurements
    kinds = {measurement.bound.partition(":")[0] for measurement in measurements if measurement.bound}
    if is_arithmetic(measurements) and len(kinds) > 1:
        return "partly"
    if bound.startswith(ARITHMETIC_BOUNDS) or bound in ("shared", "l1", "l2"):
        return "bound"
    return "free" if bound else "partly"


def _clocks(row: Row, gpus: Mapping[str, GpuInfo]) -> list[float] | None:
    """Logarithms of each round's SM clock over the GPU's highest; None if one is unknown."""
    gpu = gpus.get(row.device or "")
    highest_hz = gpu.sm_clock_max_hz if gpu is not None else None
    clocks = [_clock_of(row, outcome) for outcome in row.outcomes]
    if not highest_hz or not all(clocks):
        return None
    return [math.log(hertz / highest_hz) for hertz in clocks if hertz]


def _clock_of(row: Row, outcome: Outcome) -> float | None:
    """The SM clock of a round in Hz: as its case measured it, else the mean of the readings before and after."""
    for measurement in outcome.measurements:
        if measurement.metric == CLOCK_METRIC and measurement.n:
            return float(np.median(measurement.values)) / measurement.calls_per_sample
    read = outcome.telemetry.get(row.device or "")
    clocks = [hertz for hertz in (read.sm_clock_begin_hz, read.sm_clock_end_hz) if hertz] if read else []
    return sum(clocks) / len(clocks) if clocks else None


def _within(pair: Pair) -> float:
    """The median half width of a round's own interval, as a share of its value."""
    widths = [summary.interval.half_width for row in (pair.base, pair.new) for summary in row.summaries]
    return float(np.median([width for width in widths if math.isfinite(width)] or [0.0]))


def _padded(rounds: Sequence[Sequence[float]]) -> FloatArray:
    """A row for each figure; of more than MOST_ROUNDS rounds, evenly spaced ones."""
    used = [values[:: math.ceil(len(values) / MOST_ROUNDS) or 1] for values in rounds]
    result = np.full((len(used), max(map(len, used), default=0)), np.nan)
    for index, values in enumerate(used):
        result[index, : len(values)] = values
    return result


def _numbered(names: Sequence[object]) -> IntArray:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)

"""Which figures of two runs belong together, with all rounds of each; which cannot be compared, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from microbench.explain.evidence import Evidence
from microbench.limits import Ceiling
from microbench.model import BenchmarkInfo, GpuInfo, Run, Session
from microbench.stats import Row, combined_trust, rounds_interval, rows

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

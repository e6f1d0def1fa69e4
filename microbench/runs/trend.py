"""One figure over the recorded runs: what a metric of a case was in each, with its interval."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from microbench.analysis.stats import Interval, Row, Trust, rows
from microbench.core.errors import RunUnreadableError, UsageError
from microbench.core.model import GpuInfo, Param, Run, Session
from microbench.core.units import plain
from microbench.runs import store
from microbench.runs.index import Index

HEADS_LOOKED_AT = 20
MOST_CASES = 3
VALUES_NAMED = 6
EXAMPLE = "for example launch_cost.submit"
# A UUID's beginning, as long as it is to tell GPUs of one name apart.
UUID_SHOWN = 12


class Point(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure of one session of a run, over its rounds. ``device`` names what it was measured on, ``uuid`` is that
    of a GPU; ``started_at`` is the session's begin, UTC in ISO 8601. ``version`` is that of the benchmark's method,
    ``kind`` and ``unit`` are the metric's."""

    run: str
    started_at: str
    version: int
    case_id: str
    params: dict[str, Param]
    kind: str
    unit: str
    interval: Interval
    trust: Trust
    rounds: int
    device: str
    uuid: str | None = None
    simulated: bool = False


def split_metric(text: str) -> tuple[str, str]:
    """``benchmark.metric`` apart. Raises UsageError for anything else."""
    benchmark, dot, metric = text.partition(".")
    if not (benchmark and dot and metric):
        raise UsageError(f"{plain(text, 100)} is no benchmark.metric", EXAMPLE)
    return benchmark, metric


def gathered(index: Index, paths: Sequence[Path], metric: str) -> list[Point]:
    """The points of ``benchmark.metric`` in the runs of ``paths``, oldest first; runs that cannot be read have none.

    Raises UsageError, naming the nearest there is, if no run has it.
    """
    benchmark, name = split_metric(metric)

    def make(path: Path) -> bytes:
        try:
            return msgspec.json.encode(points(store.read(path), benchmark, name, path))
        except (RunUnreadableError, ArithmeticError, ValueError, msgspec.DecodeError):
            return b"[]"

    decoder = msgspec.json.Decoder(list[Point])
    found = [one for _, data in index.each(f"points {metric}", paths, make) for one in decoder.decode(data or b"[]")]
    if not found:
        raise _nowhere(metric, paths)
    return sorted(found, key=lambda point: (point.started_at, point.run))


def points(run: Run, benchmark: str, metric: str, path: Path) -> list[Point]:
    """What one run has of that metric: a point for each case, device and session."""
    info = run.benchmark(benchmark)
    if info is None:
        return []
    own = [one for one in run.outcomes if one.case.benchmark == benchmark]
    found = rows(run, own, only=metric)
    return [_point(run.sessions[row.session], row, info.version, name_of(path)) for row in found]


def name_of(path: Path) -> str:
    """What a run is called by its file."""
    return path.name.partition(".")[0]


def _point(session: Session, row: Row, version: int, run: str) -> Point:
    gpu = next((one for one in session.environment.gpus if one.uuid == row.device), None)
    return Point(
        run=run,
        started_at=session.started_at,
        version=version,
        case_id=row.case_id,
        params=row.params,
        kind=row.metric.kind,
        unit=row.metric.unit,
        interval=row.interval,
        trust=row.trust,
        rounds=len(row.outcomes),
        device=_device(session, gpu),
        uuid=gpu.uuid if gpu else None,
        simulated=session.simulated,
    )


def _device(session: Session, gpu: GpuInfo | None) -> str:
    return gpu.name if gpu else str(session.environment.fact("cpu_model") or "host")


def _nowhere(metric: str, paths: Sequence[Path]) -> UsageError:
    known: dict[str, None] = {}
    for path in (*paths[:HEADS_LOOKED_AT], *store.bundled().values()):
        try:
            infos = store.read_head(path).benchmarks
        except RunUnreadableError:
            continue
        known |= {f"{info.name}.{one.name}": None for info in infos for one in info.metrics}
    near = difflib.get_close_matches(metric, known, n=1)
    next_step = f"did you mean {near[0]}?" if near and near[0] != metric else EXAMPLE
    if metric in known:
        next_step = f"microbench run {metric.partition('.')[0]} measures it"
    return UsageError(f"none of {len(paths)} recorded runs has {plain(metric, 100)}", next_step)


def of_cases(found: Sequence[Point], wanted: Mapping[str, str], case_id: str | None) -> list[Point]:
    """Points of the cases with these parameter values, or of that very case, MOST_CASES at most.

    Raises UsageError, naming axes and their values, where none or more cases are meant.
    """
    chosen = [
        point
        for point in found
        if (case_id is None or point.case_id == case_id)
        and all(str(point.params.get(name)) == value for name, value in wanted.items())
    ]
    cases = dict.fromkeys(point.case_id for point in chosen)
    if not cases:
        raise UsageError(f"no recorded case is {_given(wanted, case_id)}", _axes(found))
    if len(cases) > MOST_CASES:
        raise UsageError(f"{len(cases)} cases have this metric", f"choose by --case AXIS=VALUE[,…]: {_axes(chosen)}")
    return chosen


def _given(wanted: Mapping[str, str], case_id: str | None) -> str:
    return plain(case_id or ",".join(f"{name}={value}" for name, value in wanted.items()), 100)


def _axes(found: Iterable[Point]) -> str:
    """Axes whose values differ, with some of them."""
    values: dict[str, dict[Param, None]] = {}
    for point in found:
        for name, value in point.params.items():
            values.setdefault(name, {})[value] = None
    several = {name: list(seen) for name, seen in values.items() if len(seen) > 1}
    words = (
        f"{name} ({', '.join(map(str, seen[:VALUES_NAMED]))}{', …' if len(seen) > VALUES_NAMED else ''})"
        for name, seen in several.items()
    )
    return plain("; ".join(words)) or "it has no axis"


def parsed_case(text: str | None) -> tuple[dict[str, str], str | None]:
    """``axis=value[,axis=value]`` as parameters, or a whole case id. Raises UsageError for anything else."""
    if not text:
        return {}, None
    if "[" in text:
        return {}, text
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if not all(name and equals and value for name, equals, value in pairs):
        raise UsageError(f"--case {plain(text, 100)} is not axis=value[,axis=value]", "or give a case's whole id")
    return {name: value for name, _, value in pairs}, None


def by_series(found: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    """Points by device and case, each series in their order. GPUs of one name are told apart by UUID."""
    names: dict[str, set[str | None]] = {}
    for point in found:
        names.setdefault(point.device, set()).add(point.uuid)
    series: dict[tuple[str, str], list[Point]] = {}
    for point in found:
        device = point.device
        if len(names[device]) > 1 and point.uuid:
            device += f" {point.uuid[:UUID_SHOWN]}"
        series.setdefault((device, point.case_id), []).append(point)
    return series

"""Collects one metric over the recorded runs: its value and interval in each session of each run."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from microbench.analysis.stats import Row, rows
from microbench.archive import store
from microbench.archive.damage import DAMAGED
from microbench.core.errors import RunUnreadableError, UsageError, nearest
from microbench.core.model import Param, Run
from microbench.core.units import plain

MOST_CASES = 3
VALUES_NAMED = 6
EXAMPLE = "give one such as launch_cost.submit"
# Only a damaged file has values outside of these, and axes cannot be drawn for them.
SMALLEST, LARGEST = 1e-300, 1e300


class Point(msgspec.Struct, frozen=True):
    """One case in one session of a run. ``device`` names the GPU or CPU; ``started_at`` is the session's start, UTC in
    ISO 8601. ``version`` is the benchmark's."""

    run: str
    started_at: str
    version: int
    row: Row
    device: str
    simulated: bool = False


def gathered(paths: Sequence[Path], metric: str) -> tuple[list[Point], list[str]]:
    """The points of ``benchmark.metric`` in the runs of ``paths``, oldest first, and the names of unreadable runs.

    Runs whose head lacks the metric are not read.

    Raises UsageError, naming the most similar metric, if no run has it.
    """
    benchmark, dot, name = metric.partition(".")
    if not (benchmark and dot and name):
        raise UsageError(f"{plain(metric, 100)} does not have the form BENCHMARK.METRIC", EXAMPLE)
    result: list[Point] = []
    unreadable: list[str] = []
    for path in paths:
        try:
            info = store.read_head(path).benchmark(benchmark)
            if info is not None and info.metric(name) is not None:
                result += points(store.read(path), benchmark, name, path)
        except (RunUnreadableError, ArithmeticError, ValueError, msgspec.DecodeError):
            unreadable.append(name_of(path))
    if not result:
        known: set[str] = set()
        for path in (*paths[:20], *store.bundled().values()):
            try:
                infos = store.read_head(path).benchmarks
            except RunUnreadableError:
                continue
            known |= {f"{info.name}.{declared.name}" for info in infos for declared in info.metrics}
        next_step = nearest(metric, sorted(known)) or EXAMPLE
        if metric in known:
            next_step = f"microbench run {metric.partition('.')[0]} measures it"
        raise UsageError(f"none of {len(paths)} recorded runs has {plain(metric, 100)}", next_step)
    return sorted(result, key=lambda point: (point.started_at, point.run)), unreadable


def points(run: Run, benchmark: str, metric: str, path: Path) -> list[Point]:
    """The points of one run, one for each case, device and session. Raises ValueError for an impossible figure."""
    if (info := run.benchmark(benchmark)) is None:
        return []
    outcomes = [outcome for outcome in run.outcomes if outcome.case.benchmark == benchmark]
    found: list[Point] = []
    for row in rows(run, outcomes, only=metric):
        session = run.sessions[row.session]
        gpu = next((gpu for gpu in session.environment.gpus if gpu.uuid == row.device), None)
        largest = max(map(abs, (row.value, row.interval.low, row.interval.high)))
        if not largest < LARGEST or 0 < abs(row.value) < SMALLEST:
            raise ValueError(f"{row.case_id} {row.metric.name} is {row.value}")
        device = gpu.name if gpu else str(session.environment.fact("cpu_model") or "host")
        found.append(Point(name_of(path), session.started_at, info.version, row, device, session.simulated))
    if not found and any((outcome.reason or "").startswith(DAMAGED) for outcome in outcomes):
        raise ValueError("every case is damaged")
    return found


def name_of(path: Path) -> str:
    """The name of a run by its file."""
    return path.name.partition(".")[0]


def parsed_case(text: str | None) -> tuple[dict[str, str], str | None]:
    """Parse ``axis=value[,axis=value]`` into parameters, or take a whole case id. Raises UsageError."""
    if not text:
        return {}, None
    if "[" in text:
        return {}, text
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if not all(name and equals and value for name, equals, value in pairs):
        cause = f"--case {plain(text, 100)} is not axis=value[,axis=value]"
        raise UsageError(cause, "give it like size_bytes=64, or a case's whole id")
    return {name: value for name, _, value in pairs}, None


def of_cases(known: Sequence[Point], wanted: Mapping[str, str], case_id: str | None) -> list[Point]:
    """The points of the cases with these parameter values, or of that case.

    Raises UsageError, which lists axes and values, if no case matches or more than MOST_CASES do.
    """
    chosen = [
        point
        for point in known
        if (case_id is None or point.row.case_id == case_id)
        and all(str(point.row.params.get(name)) == value for name, value in wanted.items())
    ]
    cases = {point.row.case_id for point in chosen}
    if not cases:
        given = case_id or ",".join(f"{name}={value}" for name, value in wanted.items())
        raise UsageError(f"no recorded case is {plain(given, 100)}", f"its axes: {_axes(known)}")
    if len(cases) > MOST_CASES:
        raise UsageError(f"{len(cases)} cases have this metric", f"choose with --case AXIS=VALUE[,…]: {_axes(chosen)}")
    return chosen


def _axes(points: Iterable[Point]) -> str:
    """The axes that have several values, with the first of these."""
    values: dict[str, dict[Param, None]] = {}
    for point in points:
        for name, value in point.row.params.items():
            values.setdefault(name, {})[value] = None
    words = (
        f"{name} ({', '.join(map(str, list(seen)[:VALUES_NAMED]))}{', …' if len(seen) > VALUES_NAMED else ''})"
        for name, seen in values.items()
        if len(seen) > 1
    )
    return plain("; ".join(words)) or "none"


def by_series(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    """The points by device and case, each series in their order. GPUs of one name are told apart by UUID."""
    names: dict[str, set[str | None]] = {}
    for point in points:
        names.setdefault(point.device, set()).add(point.row.device)
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        device = point.device
        if len(names[device]) > 1 and point.row.device:
            device += f" {point.row.device[:12]}"
        series.setdefault((device, point.row.case_id), []).append(point)
    return series

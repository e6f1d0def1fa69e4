"""Small recorded runs with invented figures, for tests of history, trend and exports."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from make_run import make_run, outcomes_of
from msgspec.structs import replace

from microbench.archive import schema
from microbench.core.model import Measurement, Run

FIRST = datetime(2026, 1, 1, 8, 30, tzinfo=UTC)
BENCHMARKS = ("launch_cost", "launch_kind")


def recorded(number: int, *, factor: float = 1.0, simulated: bool = True, gpu_name: str = "SIMULATED GPU") -> Run:
    """The run of that number: each a day after the other, its launch costs ``factor`` times the usual."""
    base = make_run(gpu_name=gpu_name)

    def scaled(measurement: Measurement) -> Measurement:
        samples = msgspec.json.encode([value * factor for value in measurement.values[:16]])
        return replace(measurement, samples=msgspec.Raw(samples), n=16, per_call=None)

    outcomes = tuple(
        replace(outcome, measurements=tuple(map(scaled, outcome.measurements)))
        for outcome in outcomes_of("launch")
        if outcome.case.benchmark in BENCHMARKS
    )
    begun = FIRST + timedelta(days=number)
    session = replace(base.sessions[0], started_at=begun.isoformat(), simulated=simulated)
    infos = tuple(info for info in base.benchmarks if info.name in BENCHMARKS)
    return replace(
        base, run_id=f"{begun:%Y%m%dT%H%M%SZ}-{number:08x}", sessions=(session,), benchmarks=infos, outcomes=outcomes
    )


def real(run: Run) -> Run:
    """The run as if a real GPU had given it."""
    return replace(run, sessions=tuple(replace(one, simulated=False) for one in run.sessions))


def write(path: Path, run: Run) -> Path:
    path.write_bytes(schema.encode(run))
    return path


def save(folder: Path, run: Run) -> Path:
    """The run as a file of that folder, named as `run` would."""
    return write(folder / f"{run.run_id}.json", run)

"""A data folder with small recorded runs, every figure invented: for tests of history, trend and exports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from make_run import launch_outcomes, make_run

from microbench.core.model import Run
from microbench.runs import schema

FIRST = datetime(2026, 1, 1, 8, 30, tzinfo=UTC)
BENCHMARKS = ("launch_cost", "launch_kind")


def recorded(number: int, *, factor: float = 1.0, simulated: bool = True, gpu_name: str = "SIMULATED GPU") -> Run:
    """The run of that number: each a day after the other, its launch costs ``factor`` times the usual."""
    base = make_run(gpu_name=gpu_name)
    outcomes = [one for one in launch_outcomes() if one.case.benchmark in BENCHMARKS]
    scaled = tuple(
        msgspec.structs.replace(
            one,
            measurements=tuple(
                msgspec.structs.replace(
                    found,
                    samples=msgspec.Raw(msgspec.json.encode([value * factor for value in found.values[:16]])),
                    n=16,
                    per_call=None,
                )
                for found in one.measurements
            ),
        )
        for one in outcomes
    )
    begun = FIRST + timedelta(days=number)
    session = msgspec.structs.replace(base.sessions[0], started_at=begun.isoformat(), simulated=simulated)
    infos = tuple(info for info in base.benchmarks if info.name in BENCHMARKS)
    return msgspec.structs.replace(
        base, run_id=f"{begun:%Y%m%dT%H%M%SZ}-{number:08x}", sessions=(session,), benchmarks=infos, outcomes=scaled
    )


def save(folder: Path, run: Run) -> Path:
    """The run as a file of that folder, named as `run` would."""
    path = folder / f"{run.run_id}.json"
    path.write_bytes(schema.encode(run))
    return path

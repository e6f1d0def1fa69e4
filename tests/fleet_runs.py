"""Writes the runs of a fleet of simulated GPUs that differ by a known factor in what is bound by a ceiling."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
import recorded_runs
from make_fake_run import make_fake_run

from microbench.core.model import GpuInfo, LinkInfo, Run
from microbench.gpu.fake.costs import FakeCosts

BIG = 1 << 26


@cache
def one_run() -> Run:
    """A run with copies both ways, four DRAM kernels, and a launch."""
    cases: list[tuple[str, dict[str, int | str]]] = [
        ("link_copy", {"direction": direction, "memory": "pinned", "size_bytes": BIG}) for direction in ("h2d", "d2h")
    ]
    stream = {"dtype": "fp64", "implementation": "cuda", "size_bytes": 1 << 30}
    cases += [("memory_stream", {**stream, "kernel": kernel}) for kernel in ("read", "write", "copy", "triad")]
    return make_fake_run(FakeCosts(), [*cases, ("launch_cost", {})])


def slowed(run: Run, factors: Mapping[str, float], jitter: random.Random) -> Run:
    """The run with every sample of a measurement bound by a ceiling of that name longer by its factor."""
    outcomes = []
    for outcome in run.outcomes:
        measurements = []
        for one in outcome.measurements:
            factor = factors.get(one.bound or "", 1.0) * jitter.uniform(0.999, 1.001)
            samples = msgspec.Raw(json.dumps([value * factor for value in one.values]).encode())
            measurements.append(msgspec.structs.replace(one, samples=samples))
        outcomes.append(msgspec.structs.replace(outcome, measurements=tuple(measurements)))
    return msgspec.structs.replace(run, outcomes=tuple(outcomes))


def with_gpu(run: Run, **fields: object) -> Run:
    """The run with other facts of its GPU; those of its link begin with ``link_``."""

    def changed(gpu: GpuInfo) -> GpuInfo:
        link: LinkInfo = msgspec.structs.replace(
            gpu.link, **{name[5:]: value for name, value in fields.items() if name.startswith("link_")}
        )
        own = {name: value for name, value in fields.items() if not name.startswith("link_")}
        return msgspec.structs.replace(gpu, link=link, **own)

    sessions = []
    for session in run.sessions:
        gpus = tuple(map(changed, session.environment.gpus))
        environment = msgspec.structs.replace(session.environment, gpus=gpus)
        sessions.append(msgspec.structs.replace(session, environment=environment))
    return msgspec.structs.replace(run, sessions=tuple(sessions))


def at(run: Run, began: str, **fields: object) -> Run:
    """The run as if it had begun at that time, with other ``fields`` of its session's environment."""
    sessions = []
    for session in run.sessions:
        environment = msgspec.structs.replace(session.environment, **fields)
        sessions.append(msgspec.structs.replace(session, started_at=began, environment=environment))
    return msgspec.structs.replace(run, sessions=tuple(sessions))


def write(path: Path, run: Run) -> Path:
    return recorded_runs.write(path, msgspec.structs.replace(run, run_id=path.stem))

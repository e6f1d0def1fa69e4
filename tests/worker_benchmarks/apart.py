"""Needs a GPU, and a process of its own for each value of one axis, with a variable and a scratch folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from microbench.core.bench import Axis, Benchmark, Measured
from microbench.core.model import Case, Fact, Metric
from microbench.meter.timer import Meter


def variables(case: Case) -> dict[str, str]:
    return {"TINY_MODE": str(case.params["mode"]), "TINY_CACHE": "{scratch}/cache"}


def measure(gpu: object, meter: Meter, mode: str, size: int) -> Iterator[Measured]:
    yield meter.collect("seconds", lambda: [1e-6], clock="host")
    yield Fact("mode", os.environ["TINY_MODE"])
    yield Fact("scratch", os.environ["TINY_CACHE"])
    yield Fact("scratch_is_there", Path(os.environ["TINY_CACHE"]).parent.is_dir())
    yield Fact("process", os.getpid())


BENCHMARK = Benchmark(
    suite="launch",
    title="Apart",
    metrics=(Metric("seconds", "time", "s", "made up"),),
    axes={"size": Axis.same("how much", (1, 2)), "mode": Axis.same("in which way", ("spin", "yield"))},
    own_process=lambda params: str(params["mode"]),
    process_environment=variables,
)

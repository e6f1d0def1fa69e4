"""Runs one case of a benchmark on the simulated machine, as a worker would."""

import numpy as np
import pytest

from microbench.analysis.stats import values_of
from microbench.core.bench import Benchmark, Measured, discover
from microbench.core.errors import Skip
from microbench.core.model import Case, Fact, Floors, Measurement
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.gpu import FakeHost, open_fake, open_fake_cold
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.sampling import SamplingLimits
from microbench.meter.timer import Meter

QUICK = SamplingLimits(seconds=0.05)
EQUAL = SamplingLimits(seconds=0.001, minimum=3)  # without noise more samples say nothing new


def exact(costs: FakeCosts | None = None) -> Gpu:
    return open_fake(costs or FakeCosts(), spread=0)


def run_case(
    benchmark: Benchmark,
    case: Case,
    costs: FakeCosts | None = None,
    spread: float = 0.005,
    limits: SamplingLimits = QUICK,
) -> list[Measured]:
    """All that a case yields, with the environment variables of its process. Raises Skip where the case does."""
    costs = costs or FakeCosts()
    floors = Floors(timer_step_s=costs.timer_step_ns * 1e-9, timer_call_s=costs.timer_call_ns * 1e-9)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in benchmark.process_environment(case).items():
            environment.setenv(name, value)
        if benchmark.gpus == 0:
            host = FakeHost(costs, spread=spread)
            return list(benchmark.measure(host, Meter(host.clock, floors=floors, limits=limits), **case.params))
        gpu = open_fake(costs, spread=spread)
        meter = Meter(gpu.clock, gpu, floors, limits)
        if benchmark.cold:
            return list(benchmark.measure(open_fake_cold(costs, spread=spread), meter, **case.params))
        with gpu.case():
            return list(benchmark.measure(gpu, meter, **case.params))


def exactly(name: str, costs: FakeCosts | None, params: dict[str, int | str]) -> list[Measured]:
    return run_case(discover()[name], Case(name, dict(sorted(params.items()))), costs, spread=0, limits=EQUAL)


def medians(name: str, costs: FakeCosts | None = None, /, **params: int | str) -> dict[str, float]:
    """The figure of each metric of one case, without noise, in the metric's unit."""
    return medians_of(name, exactly(name, costs, params))


def medians_of(name: str, rows: list[Measured]) -> dict[str, float]:
    declared = {metric.name: metric for metric in discover()[name].metrics}
    measured = [row for row in rows if isinstance(row, Measurement)]
    return {row.metric: float(np.median(values_of(declared[row.metric], row))) for row in measured}


def facts(name: str, costs: FakeCosts | None = None, /, **params: int | str) -> dict[str, Fact]:
    return {row.name: row for row in exactly(name, costs, params) if isinstance(row, Fact)}


def told(name: str, costs: FakeCosts, params: dict[str, int | str]) -> str:
    """All that a case yields on a simulated machine, in a line; or why it does not run there."""
    try:
        rows = exactly(name, costs, params)
    except Skip as skip:
        return f"skipped: {skip}"
    figures = [f"{metric} {value:.4g}" for metric, value in medians_of(name, rows).items()]
    figures += [f"{row.name}={row.reason if row.value is None else row.value}" for row in rows if isinstance(row, Fact)]
    return ", ".join(figures)

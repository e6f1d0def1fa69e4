"""A run whose cases the benchmarks measured on the simulated machine, for fits to its constants."""

from collections.abc import Iterable
from functools import cache

from fake_session import run_case
from make_run import DEVICE, environment

from microbench.archive.schema import SCHEMA_VERSION
from microbench.core.bench import discover
from microbench.core.errors import Skip
from microbench.core.model import Case, Fact, Measurement, Outcome, Param, Run, Session, Settings
from microbench.gpu.fake.costs import FakeCosts
from microbench.meter.sampling import SamplingLimits

# Without noise three samples are as good as a thousand.
FEW = SamplingLimits(seconds=0.0001, minimum=3)

Cases = Iterable[tuple[str, dict[str, Param]]]


def make_fake_run(
    costs: FakeCosts, cases: Cases, *, spread: float = 0.0, limits: SamplingLimits = FEW, rounds: int = 1
) -> Run:
    benchmarks = discover()
    planned = [Case(name, dict(sorted(params.items()))) for name, params in cases]
    outcomes = []
    for round in range(rounds):
        for case in planned:
            try:
                measured = run_case(benchmarks[case.benchmark], case, costs, spread, limits)
            except Skip:
                continue
            outcomes.append(
                Outcome(
                    case, 0, round, "ok", device=DEVICE,
                    measurements=tuple(row for row in measured if isinstance(row, Measurement)),
                    facts=tuple(row for row in measured if isinstance(row, Fact)),
                )
            )  # fmt: skip
    names = dict.fromkeys(case.benchmark for case in planned)
    infos = [benchmarks[name].info([case for case in planned if case.benchmark == name]) for name in names]
    session = Session(environment(), Settings(rounds=rounds), "0.0", "2025-01-02T03:04:05Z", simulated=True)
    return Run(SCHEMA_VERSION, "simulated-run", (session,), tuple(infos), tuple(outcomes))


@cache
def for_a_fit() -> Run:
    """A run with what a fit to launches and graphs needs, with little noise."""
    names = ("cost", "layers", "duration", "gap", "queue", "sync")
    chosen = [discover()[name] for name in (*(f"launch_{name}" for name in names), "graph_gain", "graph_lifecycle")]
    cases = [(one.name, case.params) for one in chosen for case in one.cases("default")]
    return make_fake_run(FakeCosts(), cases, spread=0.002)

"""A run of the simulated machine, and measurements and outcomes by hand, all of them marked SIMULATED."""

import random
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

import changed_run
import msgspec
from fake_session import run_case
from msgspec.structs import replace

from microbench.core import model
from microbench.core.bench import Preset, discover
from microbench.core.errors import Skip
from microbench.meter.sampling import SamplingLimits

DEVICE = "GPU-00000000-0000-0000-0000-0000000051d0"
MEASURED = {
    "host": ("timer", "call", "memory", "wakeup"),
    "launch": (
        "cost", "layers", "duration", "traffic", "gap", "queue", "threads", "streams", "sync", "kind", "cold",
        "arguments",
    ),
}  # fmt: skip
LIMITS = SamplingLimits(seconds=0.001, minimum=40)


@cache
def measurement(name: str, value: float, *, spread: float = 0.01, n: int = 40, **more: object) -> model.Measurement:
    """Samples around ``value``; with ``calls`` the samples cover that many calls."""
    noise = random.Random(f"{name}{value}")
    calls = int(more.pop("calls", 1))
    samples = [value * calls * (1 + noise.uniform(-spread, spread) * 2) for _ in range(n)]
    fields = {"metric": name, "clock": "host", "n": n, "calls_per_sample": calls, **more}
    return model.Measurement(samples=msgspec.Raw(msgspec.json.encode(samples)), **fields)


def outcome(
    benchmark: str, measurements: Iterable[model.Measurement] = (), *, round: int = 0, **params: model.Param
) -> model.Outcome:
    case = model.Case(benchmark, {name: params[name] for name in sorted(params)})
    device = None if benchmark.startswith("host_") else DEVICE
    return model.Outcome(case, 0, round, "ok", measurements=tuple(measurements), device=device, wall_s=0.2)


@cache
def outcomes_of(suite: str, round: int = 0) -> list[model.Outcome]:
    """What the simulated machine measures in a suite; each round takes 0.4 % longer than the one before it."""
    if round:
        return [
            replace(one, round=round, measurements=tuple(changed_run.times(old, 1 + 0.004 * round) for old in rows))
            for one in outcomes_of(suite)
            if (rows := one.measurements)
        ]
    made = []
    for benchmark in (discover()[f"{suite}_{name}"] for name in MEASURED[suite]):
        for case in benchmark.cases("quick" if benchmark.name == "launch_streams" else "default"):
            with suppress(Skip):
                rows = run_case(benchmark, case, limits=LIMITS)
                figures = [one for one in rows if isinstance(one, model.Measurement)]
                facts = tuple(one for one in rows if isinstance(one, model.Fact))
                made.append(replace(outcome(benchmark.name, figures, **case.params), facts=facts))
    return made


def benchmarks(outcomes: Iterable[model.Outcome]) -> tuple[model.BenchmarkInfo, ...]:
    """Infos of the benchmarks that occur, with the axis values that occur."""
    cases: dict[str, list[model.Case]] = {}
    for each in outcomes:
        cases.setdefault(each.case.benchmark, []).append(each.case)
    return tuple(discover()[name].info(several) for name, several in cases.items())


def environment(gpu_name: str = "SIMULATED GPU") -> model.Environment:
    link = model.LinkInfo(generation_now=5, generation_max=5, lanes_now=16, lanes_max=16, max_payload_bytes=256)
    gpu = model.GpuInfo(
        gpu_name, DEVICE, simulated=True, compute_capability=(9, 0), sm_count=132, link=link, memory_bytes=1 << 36
    )
    facts = (model.Fact("cpu_model", "SIMULATED CPU", "made up"), model.Fact("cpu_cores", 16, "made up"))
    return model.Environment((gpu,), "0.0", "13.0", "13.0", {"cupy": "0.0"}, facts)


def make_run(
    *, rounds: int = 1, gpu: bool = True, extra: Iterable[model.Outcome] = (), gpu_name: str = "SIMULATED GPU"
) -> model.Run:
    """A whole run of both suites, or of the host suite alone; the same object for the same arguments without extra."""
    whole, more = _whole_run(rounds, gpu, gpu_name), tuple(extra)
    if not more:
        return whole
    outcomes = (*whole.outcomes, *more)
    return replace(whole, benchmarks=benchmarks(outcomes), outcomes=outcomes)


@cache
def _whole_run(rounds: int, gpu: bool, gpu_name: str) -> model.Run:
    suites = ("host", "launch") if gpu else ("host",)
    outcomes = [made for suite in suites for round in range(rounds) for made in outcomes_of(suite, round)]
    none = model.Environment(no_gpu_reason="no driver", no_gpu_next_step="install one")
    where = environment(gpu_name) if gpu else none
    session = model.Session(where, model.Settings(rounds=rounds), "0.0", "2025-01-02T03:04:05Z", simulated=True)
    return model.Run(1, "simulated-run", (session,), benchmarks(outcomes), tuple(outcomes))


def with_suite(
    run: model.Run,
    names: Iterable[str],
    preset: Preset,
    outcomes: Iterable[model.Outcome],
    machine: model.Environment | None = None,
) -> model.Run:
    """The run with these benchmarks and outcomes behind its own, on another machine where one is given."""
    infos = [discover()[name].info(discover()[name].cases(preset)) for name in names]
    sessions = run.sessions
    if machine is not None:
        sessions = tuple(replace(one, environment=machine) for one in sessions)
    return replace(run, sessions=sessions, benchmarks=(*run.benchmarks, *infos), outcomes=(*run.outcomes, *outcomes))


def skipped(layer: str = "warp", reason: str = "needs warp: pip install warp-lang") -> model.Outcome:
    made = outcome("launch_layers", family="same_kernel", layer=layer, arguments=0)
    return replace(made, status="skipped", reason=reason)


def failed(reason: str = "CUDA_ERROR_ILLEGAL_ADDRESS", status: str = "failed") -> model.Outcome:
    return replace(outcome("launch_queue", argument_bytes=2048), status=status, reason=reason)

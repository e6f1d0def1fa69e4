"""Runs for tests of the comparison: a few dozen figures over some rounds, every one of them invented."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from microbench.core import model

UUID = "GPU-00000000-0000-0000-0000-0000000051d0"
HIGHEST_HZ = 1.98e9
GPU = model.GpuInfo(
    name="SIMULATED GPU", uuid=UUID, compute_capability=(9, 0), sm_count=132, sm_clock_max_hz=HIGHEST_HZ,
    memory_clock_max_hz=3.201e9, memory_bus_bits=6016,
    link=model.LinkInfo(generation_max=5, lanes_max=16, max_payload_bytes=256),
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure and the scatter of its rounds (deviation of the logarithm). ``on_clock``: it follows the SM clock."""

    benchmark: str
    suite: str
    metric: str
    value: float
    kind: str = "time"
    unit: str = "s"
    params: Mapping[str, model.Param] = field(default_factory=dict)
    clock: str = "device"
    bound: str | None = None
    deviation: float = 0.003
    on_clock: bool = False

    @property
    def case_id(self) -> str:
        return model.Case(self.benchmark, dict(self.params)).id


def usual() -> list[Figure]:
    """What a small run has: host-timed calls, copies, memory, tensor cores with their clock, and counts."""
    layers = {f"layer_{index}": (3 + index) * 1e-6 for index in range(24)}
    found = [
        Figure("launch_layers", "launch", "submit", submit_s, params={"layer": layer}, clock="host")
        for layer, submit_s in layers.items()
    ]
    found += [
        Figure("link_copy", "link", "bandwidth", 5e10, "rate", "B/s", {"size_bytes": 1 << index}, bound="pcie_h2d")
        for index in range(10, 26)
    ]
    found += [
        Figure("memory_stream", "memory", "bandwidth", 4e12, "rate", "B/s", {"kernel": name}, bound="dram")
        for name in ("copy", "read", "triad", "write")
    ]
    found += [
        Figure("launch_queue", "launch", "depth", 1021 - index, "count", "launch", {"streams": index}, clock="counter")
        for index in range(1, 5)
    ]
    found += [
        Figure("tensor_ceiling", "compute", "rate", 9e14, "rate", "FLOP/s", {"dtype": name}, bound=f"tensor:{name}",
               on_clock=True)
        for name in ("bf16", "fp16", "fp8_e4m3", "tf32")
    ]  # fmt: skip
    return found


Change = Callable[[Figure], float]


def changed(factor: float, **of: object) -> Change:
    """A change that multiplies figures with these fields (benchmark, metric, kind, …) and leaves the others."""
    return lambda one: factor if all(getattr(one, name) == value for name, value in of.items()) else 1.0


def made(
    seed: int,
    *changes: Change,
    figures: Sequence[Figure] | None = None,
    rounds: int = 5,
    clocks_hz: Sequence[float] = (HIGHEST_HZ,) * 5,
    gpu: model.GpuInfo = GPU,
    run_id: str = "20260101T000000Z-0000000",
    versions: Mapping[str, int] | None = None,
    simulated: bool = False,
    driver: str = "570.1",
    facts: tuple[model.Fact, ...] = (),
    by_round: Callable[[Figure, int], float] | None = None,
) -> model.Run:
    """A run of these figures; ``clocks_hz`` are the SM clocks of the rounds, ``versions`` benchmarks' methods,
    ``by_round`` multiplies a figure in one round alone."""
    noise = random.Random(seed)
    chosen = usual() if figures is None else list(figures)
    outcomes = []
    for turn in range(rounds):
        hertz = clocks_hz[turn % len(clocks_hz)]
        for one in chosen:
            factor = math.prod(change(one) for change in changes) * math.exp(noise.gauss(0, one.deviation))
            factor *= by_round(one, turn) if by_round is not None else 1.0
            outcomes.append(outcome(one, one.value * factor, turn, hertz, gpu))
    session = model.Session(
        environment=model.Environment(gpus=(gpu,), driver_version=driver, packages={"numpy": "2.4.0"}, facts=facts),
        settings=model.Settings("quick", tuple(dict.fromkeys(one.suite for one in chosen)), {}, None, rounds),
        tool_version="0.1.0", started_at="2026-01-01T00:00:00+00:00", simulated=simulated,
    )  # fmt: skip
    return model.Run(1, f"{run_id}{seed}", (session,), infos(chosen, versions or {}), tuple(outcomes))


def infos(figures: Sequence[Figure], versions: Mapping[str, int]) -> tuple[model.BenchmarkInfo, ...]:
    """The benchmarks of these figures as a run keeps them."""
    metrics: dict[tuple[str, str], dict[str, model.Metric]] = {}
    for one in figures:
        own = metrics.setdefault((one.benchmark, one.suite), {})
        own[one.metric] = model.Metric(one.metric, one.kind, one.unit, "invented")
    return tuple(
        model.BenchmarkInfo(name, suite, name, "How much?", versions.get(name, 1), (), tuple(own.values()))
        for (name, suite), own in metrics.items()
    )


def outcome(one: Figure, value: float, turn: int, hertz: float, gpu: model.GpuInfo) -> model.Outcome:
    """A round of a case with one figure, sampled sixteen times."""
    slowed = hertz / HIGHEST_HZ if one.on_clock else 1.0
    if one.kind == "rate":
        sample, work = 1.0, value * slowed
    else:
        sample, work = value if value == 0 else value / slowed, 0.0
    samples = [sample * (1 + 1e-4 * (index - 7.5)) for index in range(16)]
    measurement = model.Measurement(
        metric=one.metric, clock=one.clock, samples=msgspec.Raw(msgspec.json.encode(samples)), n=16, bound=one.bound,
        work=model.Work(bytes=round(work), flops=round(work), operations=round(work)),
    )  # fmt: skip
    return model.Outcome(
        case=model.Case(one.benchmark, dict(one.params)),
        session=0, round=turn, status="ok", measurements=(measurement,),
        telemetry={gpu.uuid: model.Telemetry(sm_clock_begin_hz=hertz, sm_clock_end_hz=hertz)},
        wall_s=0.1, device=gpu.uuid,
    )  # fmt: skip


def grown(*runs: model.Run) -> model.Run:
    """One run with the sessions of several, as run --into adds them."""
    outcomes = [msgspec.structs.replace(one, session=number) for number, run in enumerate(runs) for one in run.outcomes]
    sessions = tuple(run.sessions[0] for run in runs)
    return msgspec.structs.replace(runs[0], sessions=sessions, outcomes=tuple(outcomes))


def quiet(figures: Sequence[Figure], deviation: float) -> list[Figure]:
    return [replace(one, deviation=deviation) for one in figures]

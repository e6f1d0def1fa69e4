"""Makes a plausible run by hand, every figure invented and marked SIMULATED, and changes runs and reads findings."""

import random
from collections.abc import Iterable
from functools import cache

import msgspec
from msgspec.structs import replace

from microbench.core import model
from microbench.core.bench import Preset, discover
from microbench.gpu.layers.base import layer_titles

DEVICE = "GPU-00000000-0000-0000-0000-0000000051d0"
LAYERS = {
    "loop": (3.3e-6, 8.7e-6, 0.1e-6), "cuda_bindings": (4.0e-6, 9.2e-6, 2.1e-6), "cuda_core": (3.8e-6, 9.1e-6, 0.4e-6),
    "cupy_raw": (5.5e-6, 10.6e-6, 2.2e-6), "numba_configured": (11.8e-6, 17e-6, 15e-6),
    "numba_each_call": (12.4e-6, 17.7e-6, 15.3e-6), "triton": (15.9e-6, 21e-6, 3.1e-6),
}  # fmt: skip
ONE_OP = {"cupy_ufunc": 9.8e-6, "torch_eager": 8.6e-6, "torch_out": 8.1e-6, "jax_jit": 38e-6}
DURATIONS_NS = (0, 500, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 100_000)

TIME, RATE, COUNT = "time", "rate", "count"
LAUNCH_COST = {
    "submit": 3.3e-6, "start": 6.4e-6, "to_kernel": 5.1e-6, "from_kernel": 3.2e-6, "complete": 2.0e-6,
    "round_trip": 8.4e-6, "throughput": 3.4e-6, "flag_round_trip": 1.7e-6, "host_read": 1.1e-6,
}  # fmt: skip
# Periods of launch_gap in a stream and as a graph, and the duration as profilers report it, by kernel and blocks, of
# a process that has launched into two streams; in one of one stream both are ONE_STREAM shorter.
PROFILED_LONGER, ONE_STREAM = 0.5e-6, 0.18e-6
CHAINS = {
    ("empty", "one"): (1.46e-6, 0.63e-6, 0.6e-6), ("spin", "one"): (3.42e-6, 2.59e-6, 2.56e-6),
    ("add", "one"): (1.76e-6, 0.93e-6, 0.8e-6), ("add", "an_sm"): (1.96e-6, 1.13e-6, 1.0e-6),
    ("add", "eight_an_sm"): (2.46e-6, 1.63e-6, 1.5e-6),
}  # fmt: skip


def metric(name: str, kind: str = TIME, unit: str = "s") -> model.Metric:
    return model.Metric(name, kind, unit, f"what {name} is")


def per_call(median_s: float, n: int = 6000) -> model.PerCall:
    """A body of single calls around the median and a thin tail to forty times it."""
    counts = [0] * 90
    for index in range(24):
        counts[index] = max(1, int(n * 0.2 * 2.0 ** (-abs(index - 5))))
    counts[40] = counts[61] = counts[80] = 1
    first_edge = median_s / 1.05**5
    return model.PerCall(
        n=sum(counts), p1=first_edge, p50=median_s, p90=median_s * 1.15, p99=median_s * 1.6, min=first_edge,
        max=first_edge * 1.05**80.5, first_edge=first_edge, ratio=1.05, counts=tuple(counts),
    )  # fmt: skip


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


def launch_outcomes(round: int = 0) -> list[model.Outcome]:
    drift = 1 + round * 0.004
    cost = [
        measurement(name, value * drift, per_call=per_call(value) if name in ("submit", "round_trip") else None)
        for name, value in LAUNCH_COST.items()
    ]
    made = [outcome("launch_cost", cost, round=round)]
    for layer, (submit_s, trip_s, added_s) in LAYERS.items():
        for arguments, more_s in ((0, 0.0), (4, added_s)):
            submit = measurement("submit", (submit_s + more_s) * drift, calls=100, verified="one kernel node captured")
            both = [submit, measurement("round_trip", (trip_s + more_s) * drift)]
            params = {"family": "same_kernel", "layer": layer, "arguments": arguments}
            made.append(outcome("launch_layers", both, round=round, **params))
    for layer, submit_s in ONE_OP.items():
        both = [measurement("submit", submit_s, calls=100), measurement("round_trip", submit_s + 6e-6)]
        operation = outcome("launch_layers", both, round=round, family="one_op", layer=layer, arguments=1)
        made.append(replace(operation, facts=(model.Fact("kernels_per_call", 1, "captured"),)))
    return made + sweep_outcomes(round) + way_outcomes(round)


def sweep_outcomes(round: int = 0) -> list[model.Outcome]:
    made = []
    for duration_ns in DURATIONS_NS:
        own_s = duration_ns * 1e-9
        period = [
            measurement("period", max(3.4e-6, own_s + 1.36e-6)),
            measurement("gated", own_s + 1.36e-6, clock="device"),
            measurement("duration", max(own_s, 1e-7), clock="device"),
        ]
        made.append(outcome("launch_duration", period, round=round, duration_ns=duration_ns))
        traffic = [
            measurement("received", 1769.0, spread=0.001, clock="counter"),
            measurement("sent", 285.0, spread=0.001, clock="counter"),
        ]
        made.append(
            outcome("launch_traffic", traffic, round=round, work="launch", duration_ns=duration_ns, argument_bytes=0)
        )
    copies = ("pinned_h2d", "_per_byte", 1.078, 0.094), ("pinned_d2h", "_per_byte", 0.1, 1.094)
    for work, kind, received, sent in (*copies, ("graph_100", "", 340.0, 160.0)):
        values = (f"received{kind}", received), (f"sent{kind}", sent)
        traffic = [measurement(name, value, clock="counter") for name, value in values]
        made.append(outcome("launch_traffic", traffic, round=round, work=work, duration_ns=0, argument_bytes=0))
    return made


def gap_outcomes(round: int = 0) -> list[model.Outcome]:
    made = []
    for (kernel, blocks), (stream_s, graph_s, duration_s) in CHAINS.items():
        for streams, shorter_s in (("two", 0.0), ("one", ONE_STREAM)):
            rows = {"stream": stream_s - shorter_s, "graph": graph_s - shorter_s}
            if streams == "two":
                rows["duration"] = duration_s
                if kernel == "spin":
                    rows["stamped"] = duration_s - PROFILED_LONGER
            chains = [measurement(name, value, clock="device", spread=0.001) for name, value in rows.items()]
            params = {"kernel": kernel, "blocks": blocks, "functions": "same", "launch_streams": streams}
            made.append(outcome("launch_gap", chains, round=round, **params))
    return made


def way_outcomes(round: int = 0) -> list[model.Outcome]:
    made = gap_outcomes(round)
    for size, depth in ((0, 1021), (1024, 1021), (4000, 717)):
        depths = [measurement("depth", depth, spread=0.0, n=3, clock="counter")]
        made.append(outcome("launch_queue", depths, round=round, argument_bytes=size))
    for count, rate in ((1, 300e3), (2, 510e3), (4, 720e3), (8, 880e3)):
        rates = measurement("rate", 1 / rate, work=model.Work(launches=1))
        made.append(outcome("launch_threads", [rates, measurement("submit", count / rate)], round=round, threads=count))
        resident = measurement("resident", count, spread=0)
        made.append(outcome("launch_streams", [rates, resident], round=round, streams=count))
    for wait, complete_s in (("spin", 2.0e-6), ("yield", 2.1e-6), ("blocking", 34e-6)):
        calls = {"idle_stream": 0.27e-6, "idle_event": 0.2e-6, "record": 0.16e-6, "query": 0.1e-6, "wait_event": 0.4e-6}
        waits = [measurement("complete", complete_s), *(measurement(name, value) for name, value in calls.items())]
        made.append(outcome("launch_sync", waits, round=round, wait=wait))
    for kind, submit_s, gap_s in (
        ("own_stream", 3.3e-6, 1.76e-6),
        ("cooperative", 4.9e-6, 1.8e-6),
        ("pdl", 3.6e-6, 0.56e-6),
    ):
        both = [measurement("submit", submit_s), measurement("gap", gap_s)]
        made.append(outcome("launch_kind", both, round=round, kind=kind))
    for what, seconds in (("context", 0.21), ("nvrtc", 0.031), ("first_launch_lazy", 4e-4)):
        made.append(outcome("launch_cold", [measurement("seconds", seconds, n=1)], round=round, what=what))
    for size, submit_s in ((0, 3.3e-6), (1024, 3.4e-6), (4000, 4.1e-6)):
        params = {"argument_bytes": size, "grid_blocks": 1, "block_threads": 32}
        made.append(outcome("launch_arguments", [measurement("submit", submit_s)], round=round, **params))
    return made


def host_outcomes(round: int = 0) -> list[model.Outcome]:
    made = [outcome("host_timer", [measurement("call", 22e-9), measurement("step", 1e-9, spread=0)], round=round)]
    for how, call_s in (("compiled", 2e-9), ("compiled_from_python", 260e-9), ("ctypes", 200e-9), ("python", 45e-9)):
        made.append(outcome("host_call", [measurement("call", call_s, calls=1000)], round=round, how=how))
    for threads, rate in (("one", 11e9), ("all", 41e9)):
        for size in (1 << 20, 1 << 26):
            copied = measurement("rate", size / rate, work=model.Work(bytes=size), verified="pattern read back")
            made.append(outcome("host_memory", [copied], round=round, threads=threads, size_bytes=size))
    for how, trip_s in (("spin", 0.2e-6), ("event", 14e-6), ("pipe", 11e-6)):
        made.append(outcome("host_wakeup", [measurement("round_trip", trip_s)], round=round, how=how))
    return made


METRICS: dict[str, tuple[model.Metric, ...]] = {
    "host_timer": (metric("call"), metric("step")), "host_call": (metric("call"),),
    "host_memory": (metric("rate", RATE, "B/s"),), "host_wakeup": (metric("round_trip"),),
    "launch_cost": tuple(
        metric(name, unit="s/launch" if name in ("submit", "throughput") else "s") for name in LAUNCH_COST
    ),
    "launch_gap": tuple(metric(name, unit="s/launch") for name in ("stream", "graph", "duration", "stamped")),
    "launch_layers": (metric("submit", unit="s/launch"), metric("round_trip")),
    "launch_duration": (metric("period", unit="s/launch"), metric("gated", unit="s/launch"), metric("duration")),
    "launch_traffic": (metric("received", COUNT, "B/launch"), metric("sent", COUNT, "B/launch"),
        metric("received_per_byte", COUNT, "1"), metric("sent_per_byte", COUNT, "1")),
    "launch_queue": (metric("depth", COUNT, "launch"),),
    "launch_threads": (metric("rate", RATE, "1/s"), metric("submit", unit="s/launch")),
    "launch_streams": (metric("rate", RATE, "1/s"), metric("resident", COUNT, "launch")),
    "launch_sync": tuple(
        metric(name)
        for name in (
            "complete", "from_kernel", "idle_stream", "idle_event", "record", "record_untimed", "query", "wait_event",
        )
    ),
    "launch_kind": (metric("submit", unit="s/launch"), metric("gap")),
    "launch_cold": (metric("seconds"),), "launch_arguments": (metric("submit", unit="s/launch"),),
}  # fmt: skip


def benchmarks(outcomes: Iterable[model.Outcome]) -> tuple[model.BenchmarkInfo, ...]:
    """Infos of the benchmarks that occur, with the axis values that occur."""
    axes: dict[str, dict[str, dict[model.Param, None]]] = {}
    for each in outcomes:
        mine = axes.setdefault(each.case.benchmark, {})
        for name, value in each.case.params.items():
            mine.setdefault(name, {})[value] = None
    return tuple(
        model.BenchmarkInfo(
            name, name.split("_")[0], f"Title of {name}", f"What does {name} answer?\n\nMethod", 1,
            tuple(
                model.AxisInfo(axis, f"the {axis}", tuple(values), layer_titles() if axis == "layer" else {})
                for axis, values in mine.items()
            ),
            METRICS[name],
        )
        for name, mine in axes.items()
    )  # fmt: skip


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
    outcomes = [made for round in range(rounds) for made in host_outcomes(round)]
    if gpu:
        outcomes += [made for round in range(rounds) for made in launch_outcomes(round)]
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

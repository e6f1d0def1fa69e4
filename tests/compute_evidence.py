"""Small made runs of the compute suite, case by case, and the findings of its rules on them."""

import msgspec
from msgspec.structs import replace

from microbench.core import model
from microbench.core.bench import discover

DEVICE = "GPU-00000000-0000-0000-0000-0000000051d0"
SMS, HIGHEST_HZ = 100, 2e9
# An architecture of compute capability 9.0: 4096 FLOP a cycle and SM in bf16 are 819.2 TFLOP/s.
GPU = model.GpuInfo(
    "SIMULATED GPU", DEVICE, simulated=True, compute_capability=(9, 0), sm_count=SMS, sm_clock_max_hz=HIGHEST_HZ,
    memory_clock_max_hz=2.5e9, memory_bus_bits=6400, power_limit_w=700.0, l2_bytes=48 << 20,
)  # fmt: skip
PEAK = {"bf16": 819.2e12, "fp16": 819.2e12, "fp16_acc16": 819.2e12, "fp8_e4m3_fast": 1638.4e12, "int8": 1638.4e12}
POWER_CAP, HEAT = "software power cap", "software thermal slowdown"
SAMPLES = 20


def figures(
    benchmark: str,
    values: dict[str, float],
    *,
    facts: tuple[model.Fact, ...] = (),
    reasons: tuple[str, ...] = (),
    series: tuple[model.Series, ...] = (),
    work: model.Work | None = None,
    bound: str | None = None,
    **params: model.Param,
) -> model.Outcome:
    """An outcome with these values by metric; ``work`` is that of one call."""
    info = discover()[benchmark].info([])
    found = []
    for name, value in values.items():
        metric = info.metric(name)
        assert metric is not None, name
        own = work or model.Work(flops=10**12, operations=10**12, bytes=10**9)
        amount = own.bytes if metric.unit.startswith("B/") else own.operations if "OP" in metric.unit[:2] else own.flops
        sample = (amount or 0) / value if metric.kind == "rate" else value
        per_clock = name.endswith("per_clock")
        one = model.Measurement(
            name, "device", msgspec.Raw(msgspec.json.encode([sample] * SAMPLES)), SAMPLES,
            work=own if metric.kind == "rate" else model.Work(),
            bound=f"{bound}_per_clock" if bound and per_clock else bound if metric.kind == "rate" else None,
        )  # fmt: skip
        found.append(one)
    case = model.Case(benchmark, {name: params[name] for name in sorted(params)})
    telemetry = {DEVICE: model.Telemetry(throttle_reasons=reasons, nvml_sm_clock_hz=1.9e9)}
    return model.Outcome(case, 0, 0, "ok", None, tuple(found), facts, series, telemetry, device=DEVICE)


def product(
    share: float = 0.9, clock_hz: float = 1.5e9, dtype: str = "bf16", size: int = 8192, library: str = "cublaslt",
    *, facts: tuple[model.Fact, ...] = (), reasons: tuple[str, ...] = (POWER_CAP,), against: float | None = None,
    per_clock: float | None = None,
) -> model.Outcome:  # fmt: skip
    """A square product that uses ``share`` of its units at that clock, and its ratios to cuBLASLt: ``against`` is the
    sustained one if there is one ``per_clock`` too, else that of version 2, measured in turn."""
    name = "integer_rate" if dtype == "int8" else "rate"
    value = share * PEAK[dtype] * clock_hz / HIGHEST_HZ
    ratios = {"against": against, "against_per_clock": per_clock}
    in_turn = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    return figures(
        "gemm_throughput", {name: value, "sm_clock": clock_hz, **in_turn}, facts=facts, reasons=reasons,
        bound=f"gemm:{dtype}", dtype=dtype, size=size, library=library,
    )  # fmt: skip


def instructions(
    path: str, per_clock: float, dtype: str = "bf16", load: str = "sustained", *, sparse: bool = False
) -> model.Outcome:
    """Tensor instructions alone at 1.6 GHz (burst: 1.8 GHz; sparse: 1.2 GHz)."""
    clock_hz = 1.2e9 if sparse else 1.6e9 if load == "sustained" else 1.8e9
    values = {"rate": per_clock * SMS * clock_hz, "per_clock": per_clock, "sm_clock": clock_hz}
    name, bound = ("tensor_sparse", "sparse") if sparse else ("tensor_ceiling", "tensor")
    return figures(name, values, bound=f"{bound}:{dtype}", load=load, path=path, dtype=dtype)


def shape(rows: int, device_s: float, call_s: float, graph_s: float, projection: str = "7b_out") -> model.Outcome:
    """A model's product of 4096 x 4096 weights in bf16."""
    flops, moved = 2 * rows * 4096 * 4096, 2 * (4096 * 4096 + 2 * rows * 4096)
    values = {
        "rate": flops / device_s, "bandwidth": moved / device_s, "sm_clock": 1.9e9, "call": call_s, "graph": graph_s,
    }  # fmt: skip
    return figures(
        "gemm_shapes", values, work=model.Work(flops=flops, bytes=moved), dtype="bf16", projection=projection, rows=rows
    )


def made(*outcomes: model.Outcome, **gpu: object) -> model.Run:
    """A run of these outcomes alone; ``gpu`` replaces properties of the GPU."""
    where = model.Environment(gpus=(replace(GPU, **gpu),))
    session = model.Session(where, model.Settings(), "0.0", "2025-01-02T03:04:05Z", simulated=True)
    infos = [discover()[name].info([]) for name in dict.fromkeys(one.case.benchmark for one in outcomes)]
    return model.Run(1, "simulated-run", (session,), tuple(infos), outcomes)

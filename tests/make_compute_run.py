"""Makes runs of the compute suite by hand: every figure is invented, Hopper-like and marked SIMULATED.

Cases and metrics are those of the benchmarks themselves, so that findings are tested on what is measured.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from make_memory_run import SM_CLOCK_HZ, SMS, machine
from make_run import DEVICE, make_run, measurement, outcome, with_suite
from msgspec.structs import replace

from microbench.benchmarks.compute.gemm_shapes import PROJECTIONS
from microbench.core.bench import Preset, discover
from microbench.core.model import Fact, Measurement, Outcome, Param, Run, Series, Telemetry, Work
from microbench.experiments.compute.rates import ACCUMULATORS, rate_name, work_of

POWER_LIMIT_W, IDLE_W = 700.0, 120.0
POWER_CAP = "software power cap"


class Product(NamedTuple):
    """Products of a type: the rate of its units a clock cycle and SM, the share that is fed, the clock, and joules an
    operation."""

    per_clock: float
    fed: float
    clock_hz: float
    joules: float

    @property
    def rate(self) -> float:
        return self.per_clock * SMS * self.clock_hz * self.fed

    def faster(self, factor: float) -> float:
        """The factor, limited by the highest clock."""
        return min(factor, SM_CLOCK_HZ / self.clock_hz)


PRODUCTS = {
    "bf16": Product(4096, 0.92, 1.39e9, 0.95e-12),
    "fp16": Product(4096, 0.91, 1.36e9, 0.99e-12),
    "fp16_acc16": Product(4096, 0.91, 1.42e9, 0.95e-12),
    "tf32": Product(2048, 0.88, 1.50e9, 1.9e-12),
    "fp64": Product(256, 0.95, 1.90e9, 11e-12),
    "fp32": Product(256, 0.76, 1.98e9, 12e-12),
    "int8": Product(8192, 0.70, 1.60e9, 0.6e-12),
    "fp8_e4m3_fast": Product(8192, 0.90, 1.45e9, 0.48e-12),
    "fp8_e4m3": Product(8192, 0.86, 1.44e9, 0.50e-12),
    "fp8_e5m2_fast": Product(8192, 0.90, 1.46e9, 0.47e-12),
    "fp8_e5m2": Product(8192, 0.86, 1.45e9, 0.49e-12),
}
NOT_HERE = ("mxfp8", "nvfp4")
# The types that a library multiplies, and its rate over cuBLASLt's.
OTHERS: dict[str, dict[str, float]] = {
    "cublaslt": dict.fromkeys(PRODUCTS, 1.0),
    "cupy": {"fp64": 0.995, "fp32": 0.99, "fp16": 0.985},
    "torch": {
        "bf16": 0.97, "fp16": 0.99, "tf32": 0.98, "fp64": 0.99, "fp32": 1.0, "int8": 0.93, "fp8_e4m3_fast": 0.96,
        "fp8_e4m3": 0.98,
    },
}  # fmt: skip
# Share of a large product's rate by size.
BY_SIZE = {256: 0.004, 512: 0.03, 1024: 0.2, 2048: 0.68, 4096: 0.93, 8192: 1.0, 16384: 0.98}
BUSY_FROM = 2048
CANDIDATE = "algo66_tile248_stages35_cluster5_custom7_splitk1"
BEST_SHAPE, SEARCH_GAIN = (8448, 8192, 16384), 1.06
# Clock (and rate) and power against those of normal numbers.
BY_DATA = {
    "normal": (1.0, 1.0), "zeros": (1.16, 0.72), "uniform": (1.01, 1.0), "constant": (1.13, 0.8), "ones": (1.14, 0.78),
    "sparse": (1.04, 0.98),
}  # fmt: skip
BURST_GAIN, TURN_S = 1.22, 0.07
DRAM_READ, FIXED_S, CALL_S, GRAPH_GAP_S = 3.76e12, 2.5e-6, 12e-6, 0.7e-6
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "int8": 1, "fp8_e4m3_fast": 1}
TENSOR_PER_CLOCK = {
    "bf16": 4096.0, "fp16": 4096.0, "fp16_acc16": 4096.0, "tf32": 2048.0, "int8": 8192.0, "fp8_e4m3": 8192.0,
    "fp8_e5m2": 8192.0, "fp64": 256.0,
}  # fmt: skip
# Clocks of instructions alone by path: sustained and in a burst.
TENSOR_CLOCK_HZ = {"wgmma": (1.59e9, 1.74e9), "mma": (1.76e9, 1.80e9)}
MMA_SHARE = 0.663
# Operations a clock cycle and SM, and cycles until a result can be used.
ALUS = {
    "fma_fp64": (127.0, 8.1), "fma_fp32": (252.0, 4.0), "fma_fp16x2": (508.0, 5.0), "fma_bf16x2": (508.0, 5.0),
    "mad_int32": (63.5, 4.0), "add_int32": (63.6, 4.0), "exp2_fp32": (15.9, 18.0), "rsqrt_fp32": (15.8, 34.0),
}  # fmt: skip

Figures = tuple[list[Measurement], tuple[Fact, ...], tuple[Series, ...]]


class Skipped(Exception):
    """Raised by a case that this GPU cannot run, with the reason."""


def checked(one: Measurement) -> Measurement:
    return replace(one, verified="projected on random signs", needs_verification=True)


def clock(value: float) -> Measurement:
    return checked(measurement("sm_clock", value, spread=0.001, clock="counter"))


def rated(dtype: str, value: float, operations: int, name: str | None = None, n: int = 20) -> Measurement:
    """Samples of a rate: seconds of one product."""
    work, bound = work_of(dtype, operations), f"gemm:{dtype}"
    name = name or rate_name(dtype)
    return checked(
        measurement(name, operations / value, spread=0.001, n=n, clock="device", calls=10, work=work, bound=bound)
    )


def facts(dtype: str, shape: tuple[int, int, int] | None = None, guess: int = 3) -> tuple[Fact, ...]:
    found = (
        Fact("candidate", CANDIDATE, f"the fastest of 8, guess {guess} of the heuristics"),
        Fact("accumulator", ACCUMULATORS[dtype], "the compute type asked for"),
    )
    if shape is None:
        return found
    return (Fact("shape", "x".join(str(one) for one in shape), "as asked"), *found)


def throughput(params: dict[str, Param]) -> Figures:
    dtype, size, library = str(params["dtype"]), int(params["size"]), str(params["library"])
    if dtype in NOT_HERE:
        raise Skipped(f"{dtype} needs compute capability 10.0 or newer")
    if dtype not in OTHERS[library]:
        raise Skipped(f"{library} does not multiply {dtype}")
    one = PRODUCTS[dtype]
    clock_hz = one.clock_hz if size >= BUSY_FROM else SM_CLOCK_HZ
    value = one.rate * BY_SIZE[size] * OTHERS[library][dtype]
    known = facts(dtype, (size, size, size))
    if library != "cublaslt":
        known = (known[0], Fact("candidate", f"{library}.matmul", "the only one"), known[2])
    found = [rated(dtype, value, 2 * size**3), clock(clock_hz)]
    if library != "cublaslt":
        for name, ratio in (("against_per_clock", 0.98), ("against", 1.0)):
            found.append(measurement(name, ratio * OTHERS[library][dtype], spread=0, clock="counter"))
    return found, known, ()


def drawn(dtype: str, value: float, power_w: float) -> list[Measurement]:
    name = "integer_energy" if dtype == "int8" else "energy"
    power = measurement("power", power_w, spread=0, n=1, clock="counter")
    return [checked(power), checked(measurement(name, power_w / value, spread=0, n=1, clock="counter"))]


def power_of(one: Product) -> float:
    return min(IDLE_W + one.rate * one.joules, POWER_LIMIT_W * 0.99)


def searched(params: dict[str, Param]) -> Figures:
    dtype = str(params["dtype"])
    one, (rows, columns, depth) = PRODUCTS[dtype], BEST_SHAPE
    value = one.rate * SEARCH_GAIN
    found = [rated(dtype, value, 2 * rows * columns * depth), clock(one.clock_hz * 1.03)]
    shape = Fact("shape", "x".join(str(side) for side in BEST_SHAPE), "the fastest of the shapes tried")
    return [*found, *drawn(dtype, value, power_of(one))], (shape, *facts(dtype)), ()


def data(params: dict[str, Param]) -> Figures:
    dtype, size = str(params["dtype"]), int(params["size"])
    one, (factor, draws) = PRODUCTS[dtype], BY_DATA[str(params["data"])]
    faster = one.faster(factor)
    value = one.rate * faster
    found = [rated(dtype, value, 2 * size**3), clock(one.clock_hz * faster)]
    return [*found, *drawn(dtype, value, power_of(one) * draws)], facts(dtype)[:1], ()


def batches(duration_s: float) -> list[float]:
    """Middles of batches: of 5 ms first, then of 20, then of 100."""
    found, at_s = [], 0.0
    while at_s < duration_s:
        length_s = 0.005 if at_s < 0.2 else 0.02 if at_s < 1 else 0.1
        found.append(at_s + length_s / 2)
        at_s += length_s
    return found


def sustained(params: dict[str, Param]) -> Figures:
    dtype, duration_s = str(params["dtype"]), int(params["duration_s"])
    one, operations = PRODUCTS[dtype], 2 * 8192**3
    times, gain = batches(duration_s), one.faster(BURST_GAIN)
    falling = [(gain - 1) * math.exp(-t_s * math.log(2) / TURN_S) for t_s in times]
    warmer = [1 - math.exp(-t_s / 12) for t_s in times]
    values = {
        "rate": [one.rate * (1 + fell) for fell in falling],
        "sm_clock": [one.clock_hz * (1 + fell) for fell in falling],
        "power": [IDLE_W + (power_of(one) - IDLE_W) * (1 - math.exp(-t_s / 0.3)) for t_s in times],
        "temperature": [34.0 + 30.0 * warm for warm in warmer],
        "nvml_sm_clock": [1.11 * one.clock_hz * (1 + fell) for fell in falling],
    }
    late = sum(t_s >= duration_s / 2 for t_s in times)
    found = [
        rated(dtype, one.rate * gain, operations, "burst", n=1),
        rated(dtype, one.rate, operations, "sustained", late),
        clock(one.clock_hz),
        measurement("turn", TURN_S, n=1, clock="device"),
    ]
    reasons = Fact("throttle_reasons", f"{POWER_CAP} from 0.31 s on", "NVML, during every batch")
    series = tuple(Series(name, tuple(times), tuple(seen)) for name, seen in values.items())
    return found, (*facts(dtype), reasons), series


def shaped(params: dict[str, Param]) -> Figures:
    dtype, rows = str(params["dtype"]), int(params["rows"])
    columns, depth = PROJECTIONS[str(params["projection"])]
    operations = 2 * rows * columns * depth
    moved = ELEMENT_BYTES[dtype] * (rows * depth + columns * depth) + 2 * rows * columns
    device_s = max(operations / PRODUCTS[dtype].rate, moved / DRAM_READ) + FIXED_S
    timed = rated(dtype, operations / device_s, operations)
    found = [
        timed, clock(PRODUCTS[dtype].clock_hz if rows >= 128 else SM_CLOCK_HZ),
        replace(timed, metric="bandwidth", work=Work(bytes=moved), bound="dram"),
        checked(measurement("call", max(device_s, CALL_S), calls=20)),
        checked(measurement("graph", device_s + GRAPH_GAP_S, clock="device", calls=20)),
    ]  # fmt: skip
    return found, facts(dtype)[:1], ()


def units(per_clock: float, clock_hz: float, integer: bool, bound: str) -> list[Measurement]:
    """Rate, rate a clock cycle and SM, and clock of instructions alone."""
    operations = 1 << 24
    names = ("integer_rate", "integer_per_clock") if integer else ("rate", "per_clock")
    found = []
    for name, count, each, suffix in (
        (names[0], operations * SMS, operations / (per_clock * clock_hz), ""),
        (names[1], operations, operations / per_clock, "_per_clock"),
    ):
        work = Work(operations=count) if integer else Work(flops=count)
        one = measurement(name, each, spread=0.001, clock="device", calls=10, work=work, bound=bound + suffix)
        found.append(checked(one))
    return [*found, clock(clock_hz)]


def tensor(params: dict[str, Param]) -> Figures:
    dtype, path = str(params["dtype"]), str(params["path"])
    if (path, dtype) == ("wgmma", "fp64"):
        raise Skipped("wgmma does not multiply fp64")
    whole = path == "wgmma" or dtype == "fp64"
    clock_hz = 1.95e9 if dtype == "fp64" else TENSOR_CLOCK_HZ[path][params["load"] == "burst"]
    per_clock = TENSOR_PER_CLOCK[dtype] * (0.998 if whole else MMA_SHARE)
    return units(per_clock, clock_hz, dtype == "int8", f"tensor:{dtype}"), (), ()


def sparse(params: dict[str, Param]) -> Figures:
    per_clock = 1.95 * TENSOR_PER_CLOCK[str(params["dtype"])] * (1.0 if params["path"] == "wgmma" else MMA_SHARE)
    clock_hz = 0.9 * TENSOR_CLOCK_HZ[str(params["path"])][params["load"] == "burst"]
    return units(per_clock, clock_hz, False, f"sparse:{params['dtype']}"), (), ()


def alu(params: dict[str, Param]) -> Figures:
    operation = str(params["operation"])
    per_clock, cycles = ALUS[operation]
    latency = measurement("latency", cycles, spread=0.0, clock="device", calls=4096)
    found = units(per_clock, SM_CLOCK_HZ, not operation.startswith("fma"), f"alu:{operation}")
    return [*found, latency], (), ()


def grouped(params: dict[str, Param]) -> Figures:
    dtype, products = str(params["dtype"]), int(params["products"])
    operations = 2 * int(params["size"]) ** 3
    # A product alone fills few SMs, a batch of them all.
    device_s, batch_s = FIXED_S + operations / 2e12, FIXED_S + products * operations / (0.5 * PRODUCTS[dtype].rate)
    times = {
        "one_by_one": max(CALL_S, device_s), "graph": device_s + GRAPH_GAP_S, "batch": max(CALL_S, batch_s) / products,
    }  # fmt: skip
    found = [checked(measurement(name, seconds, calls=products)) for name, seconds in times.items()]
    found.append(checked(measurement("stream", device_s + 2 * GRAPH_GAP_S, clock="device", calls=products)))
    found += [rated(dtype, products * operations / batch_s, products * operations), clock(SM_CLOCK_HZ)]
    return found, facts(dtype)[:1], ()


MADE: dict[str, Callable[[dict[str, Param]], Figures]] = {
    "gemm_throughput": throughput, "gemm_search": searched, "gemm_shapes": shaped, "gemm_grouped": grouped,
    "gemm_data": data, "gemm_sustained": sustained, "tensor_ceiling": tensor, "tensor_sparse": sparse,
    "alu_ceiling": alu,
}  # fmt: skip
BUSY = Telemetry(
    sm_clock_begin_hz=1.98e9, sm_clock_end_hz=1.4e9, nvml_sm_clock_hz=1.55e9, temperature_c=62.0, power_w=690.0,
    throttle_reasons=(POWER_CAP,),
)  # fmt: skip
COOL = Telemetry(sm_clock_begin_hz=1.98e9, sm_clock_end_hz=1.98e9, nvml_sm_clock_hz=1.98e9, power_w=390.0)


def compute_outcomes(preset: Preset = "default", round: int = 0) -> list[Outcome]:
    """An outcome for each case of the suite's grid."""
    found = []
    for name, figures in MADE.items():
        telemetry = {DEVICE: COOL if name == "alu_ceiling" else BUSY}
        for case in discover()[name].cases(preset):
            try:
                measured, known, series = figures(dict(case.params))
            except Skipped as skip:
                one = outcome(name, (), round=round, **case.params)
                found.append(replace(one, status="skipped", reason=str(skip)))
                continue
            one = outcome(name, measured, round=round, **case.params)
            found.append(replace(one, facts=known, series=series, telemetry=telemetry))
    return found


def make_compute_run(*, preset: Preset = "default", rounds: int = 1, base: Run | None = None, **gpu: object) -> Run:
    """The hand-made run, or ``base``, with the compute suite after the others; ``gpu`` replaces properties."""
    run = base or make_run(rounds=rounds)
    environment = machine(run.sessions[-1].environment, **{"power_limit_w": POWER_LIMIT_W, **gpu})
    outcomes = [one for round in range(rounds) for one in compute_outcomes(preset, round)]
    return with_suite(run, MADE, preset, outcomes, environment)

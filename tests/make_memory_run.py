"""Makes runs of the memory suite by hand: every figure is invented, HBM3-like and marked SIMULATED.

Cases and metrics are those of the benchmarks themselves, so that findings are tested on what is measured.
"""

import math
from collections.abc import Callable

from make_run import DEVICE, make_run, measurement, outcome, per_call, with_suite
from msgspec.structs import replace

from microbench.core.bench import Preset, discover
from microbench.core.model import Environment, Fact, GpuInfo, Measurement, Outcome, Param, PerCall, Run, Telemetry, Work

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMS, SM_CLOCK_HZ = 132, 1.98e9
# The size of an SM's own cache, and the set size from which SMs are so far apart that the L2 answers each of them.
CACHE_BYTES, APART_BYTES = 228 * KIB, 16 * MIB
L2_BYTES = 48 * MIB
# 2500 MHz x 2 x 6400 bit are 4 TB/s.
MEMORY_CLOCK_HZ, BUS_BITS, DRAM_PEAK = 2.5e9, 6400, 4e12
DRAM_SHARE = {
    "read": 0.94, "write": 0.95, "copy": 0.90, "scale": 0.90, "add": 0.91, "triad": 0.91, "dot": 0.93,
}  # fmt: skip
KEPT_BY = {"cuda": 1.0, "cupy": 0.96, "numba": 0.85}
SHAPES = {"read": "bulk_16384B_x2_t128_b4", "dot": "grid_16B_x4_t256"}
USUAL_SHAPE = "grid_16B_x1_t128"
# Bytes a clock and SM of each level.
RATES = {"l1": 122.0, "l2": 42.0, "dram": 14.4}
SHARED_RATE = 127.0
# Bytes a clock and SM, and cycles, of the shared memory of other blocks of a cluster, by its blocks.
CLUSTERS = {1: (SHARED_RATE, 29.0), 2: (58.0, 185.0), 4: (44.0, 195.0), 8: (35.0, 205.0), 16: (30.0, 220.0)}
# The share of a level's rate that each way of filling shared memory reaches, and cycles of a bulk copy however small.
FILLED, BULK_CYCLES = {"bulk": 0.99, "async": 0.97, "load": 0.9}, 60.0
# Cycles of a dependent read: from shared memory, then up to each working set.
SHARED_CYCLES = 29.0
CYCLES = ((192 * KIB, 33.0), (24 * MIB, 262.0), (32 * MIB, 300.0), (48 * MIB, 480.0), (2 * GIB, 560.0))
BEYOND_REACH_CYCLES = 850.0
DRAM_LATENCY_S = 560 / SM_CLOCK_HZ
# Bytes that a strided word moves; operations a second of random and atomic accesses.
SECTOR_BYTES = 32
ACCESSES = {"gather": 90e9, "scatter": 70e9, "update": 40e9}
BEYOND_L2_ACCESSES = {"gather": 32e9, "scatter": 25e9, "update": 12e9}
ADDITIONS = {"same": 2.4e9, "warp": 130e9, "thread": 2600e9}
IN_SHARED = {"same": 240e9, "warp": 250e9, "thread": 2400e9}
ENGINE = {"copy": (2e-6, 3.5e12), "copy_2d": (3e-6, 3.3e12), "memset": (1.8e-6, 3.7e12)}
L2_GAIN = 2  # of the driver's copies that stay in the L2
# The first block, a later one, and freeing it: seconds, and seconds for each MiB.
ALLOCATED = {
    "malloc": ((90e-6, 1e-6), (80e-6, 0.9e-6), (100e-6, 0.8e-6)),
    "pool": ((110e-6, 1e-6), (0.6e-6, 0.0), (0.4e-6, 0.0)),
    "cupy_pool": ((95e-6, 1e-6), (1.1e-6, 0.0), (0.7e-6, 0.0)),
    "host_pinned": ((300e-6, 200e-6), (290e-6, 190e-6), (150e-6, 60e-6)),
}
POWER_W = {"idle": 120.0, "read": 420.0, "write": 440.0, "copy": 450.0, "triad": 455.0}
CAPACITY = {
    "total_bytes": 80 * GIB, "free_bytes": 79 * GIB, "largest_block_bytes": 78 * GIB,
    "obtainable_bytes": 79 * GIB - MIB, "context_bytes": 450 * MIB,
}  # fmt: skip
VERIFIED = "every word compared with its pattern"
GRIDS: dict[str, dict[str, tuple[Param, ...]]] = {
    "memory_stream": {"size_bytes": (4 * MIB, 256 * MIB, GIB)},
    "memory_levels": {
        "footprint_bytes": (
            16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 24 * MIB,
            32 * MIB, 48 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 256 * MIB, GIB,
        ),
    },
    "memory_latency": {
        "footprint_bytes": (
            16 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 8 * MIB, 16 * MIB, 24 * MIB,
            32 * MIB, 48 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, GIB, 4 * GIB, 16 * GIB,
        ),
    },
    "memory_occupancy": {
        "loads": (1, 4), "block_threads": (128, 1024), "blocks_per_sm": (1, 2, 4, 8), "size_bytes": (GIB,),
    },
    "memory_stride": {"stride_bytes": (4, 8, 16, 32, 64, 128, 256), "access": ("read", "write"), "size_bytes": (GIB,)},
    "memory_random": {"footprint_bytes": (16 * MIB, GIB)},
    "memory_copy": {"size_bytes": (4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB, GIB)},
    "memory_allocate": {"size_bytes": (4 * KIB, MIB, 64 * MIB)},
    "memory_energy": {"load": tuple(POWER_W), "size_bytes": (GIB,)},
}  # fmt: skip

Figures = tuple[list[Measurement], tuple[Fact, ...]]


def level_of(footprint_bytes: int) -> str:
    """The level that answers for a working set of that size."""
    return "l1" if footprint_bytes <= 192 * KIB else "l2" if footprint_bytes <= 32 * MIB else "dram"


def bound_of(footprint_bytes: int) -> str | None:
    """The bound that the benchmarks name for it."""
    if footprint_bytes >= 4 * L2_BYTES:
        return "dram"
    return "l2" if footprint_bytes <= L2_BYTES // 2 else None


def checked(one: Measurement) -> Measurement:
    return replace(one, verified=VERIFIED, needs_verification=True)


def rate(name: str, value: float, size_bytes: int, bound: str | None = None, **more: object) -> Measurement:
    """Samples of a rate: seconds (cycles for a rate by the clock) of one call that moves ``size_bytes``."""
    work = Work(bytes=size_bytes)
    return checked(measurement(name, size_bytes / value, spread=0.001, clock="device", work=work, bound=bound, **more))


def operations(name: str, value: float) -> Measurement:
    count = 1 << 20
    return checked(measurement(name, count / value, spread=0.001, clock="device", work=Work(operations=count)))


def stream(params: dict[str, Param]) -> Figures:
    kernel, implementation, size_bytes = str(params["kernel"]), str(params["implementation"]), int(params["size_bytes"])
    arrays = {"read": 1, "write": 1, "add": 3, "triad": 3}.get(kernel, 2)
    in_l2 = arrays * size_bytes <= L2_BYTES // 2
    value = DRAM_SHARE[kernel] * KEPT_BY[implementation] * DRAM_PEAK * (1.6 if in_l2 else 1.0)
    shape = SHAPES.get(kernel, USUAL_SHAPE) if implementation == "cuda" else implementation
    bound = bound_of(arrays * size_bytes)
    return [rate("bandwidth", value, arrays * size_bytes, bound)], (Fact("shape", shape, "the fastest of 7"),)


def levels(params: dict[str, Param]) -> Figures:
    footprint, shared = int(params["footprint_bytes"]), params["space"] == "shared"
    per_clock = SHARED_RATE if shared else RATES[level_of(footprint)]
    if footprint == 256 * KIB and not shared:
        per_clock = 70.0
    if footprint == 48 * MIB:
        per_clock = 20.0
    bound = "shared" if shared else "l1" if footprint <= CACHE_BYTES else bound_of(footprint)
    if bound == "l2" and footprint < APART_BYTES:
        bound = None
    each = 1 << 22
    total = rate("bandwidth", per_clock * SMS * SM_CLOCK_HZ, each * SMS, bound)
    one = rate("per_clock", per_clock, each, f"{bound}_per_clock" if bound in ("shared", "l1", "l2") else None)
    return [total, one], ()


def writes(params: dict[str, Param]) -> Figures:
    """The L2 takes 80 % of what it sends, and in updates 90 %; DRAM takes as much as it sends."""
    footprint = int(params["footprint_bytes"])
    taken = {"write": 0.8, "update": 0.9}[str(params["access"])] if level_of(footprint) == "l2" else 1.0
    per_clock, each = taken * RATES[level_of(footprint)], 1 << 22
    total = rate("bandwidth", per_clock * SMS * SM_CLOCK_HZ, each * SMS, bound_of(footprint))
    return [total, rate("per_clock", per_clock, each)], ()


def cycles_of(params: dict[str, Param]) -> float:
    footprint = int(params["footprint_bytes"])
    if params["space"] == "shared":
        return SHARED_CYCLES
    return next((cycles for reach, cycles in CYCLES if footprint <= reach), BEYOND_REACH_CYCLES)


def near_and_far() -> PerCall:
    """Half of the lines at 262 cycles, half at 421."""
    hump = (1, 20, 180, 400, 180, 20, 1)
    counts = (*hump, 0, 0, 0, *hump, 0, 0)
    return PerCall(
        n=sum(counts), p1=240.0, p50=300.0, p90=430.0, p99=450.0, min=230.0, max=470.0, first_edge=226.0, ratio=1.05,
        counts=counts,
    )  # fmt: skip


def latency(params: dict[str, Param]) -> Figures:
    footprint, cycles = int(params["footprint_bytes"]), cycles_of(params)
    seconds = cycles / SM_CLOCK_HZ
    found = [
        checked(measurement("latency", seconds, clock="device", calls=4000, per_call=per_call(seconds))),
        checked(measurement("cycles", cycles, clock="device", calls=4000)),
    ]
    if params["space"] != "global" or not 4 * MIB <= footprint <= 16 * MIB:
        return found, ()
    found.append(checked(measurement("line_cycles", 300.0, clock="device", per_call=near_and_far())))
    facts = (
        Fact("l2_modes", 2, "made up"), Fact("l2_near", 262.0, "made up", unit="cycle"),
        Fact("l2_far", 421.0, "made up", unit="cycle"), Fact("l2_near_share", 0.51, "made up", unit="1"),
    )  # fmt: skip
    return found, facts


def loaded(params: dict[str, Param]) -> Figures:
    """The wait grows by 5 % times load / (1 - load), as shares of the limit; all SMs together reach 95 % of it."""
    dram, load = params["level"] == "dram", 0.95 * int(params["load_percent"]) / 100
    idle_s = (560.0 if dram else 262.0) / SM_CLOCK_HZ
    most = 0.95 * DRAM_PEAK if dram else RATES["l2"] * (SMS - 1) * SM_CLOCK_HZ
    seconds = idle_s * (1 + 0.05 * load / (1 - load))
    found = [checked(measurement(name, one, clock="device")) for name, one in (("latency", seconds), ("idle", idle_s))]
    size_bytes = GIB if dram else 18 * MIB
    found.append(rate("bandwidth", load * most, size_bytes, str(params["level"])))
    cycles = Fact("latency_cycles", round(seconds * SM_CLOCK_HZ, 1), "made up", unit="cycle")
    return found, (cycles, Fact("load_bytes", size_bytes, "made up", unit="B"))


def occupancy(params: dict[str, Param]) -> Figures:
    blocks, threads, loads = (int(params[name]) for name in ("blocks_per_sm", "block_threads", "loads"))
    under_way = blocks * threads * loads * 16
    # 32 KiB in flight saturate it; with fewer, the bandwidth is proportional to them.
    value = DRAM_SHARE["read"] * DRAM_PEAK * min(under_way / (32 * KIB), 1.0)
    fact = Fact("under_way_per_sm", under_way, "made up", unit="B")
    return [rate("bandwidth", value, int(params["size_bytes"]), "dram")], (fact,)


def stride(params: dict[str, Param]) -> Figures:
    apart, written = int(params["stride_bytes"]), params["access"] == "write"
    fetched = min(max(apart, 4), SECTOR_BYTES if not written or apart < 64 else 2 * SECTOR_BYTES)
    return [rate("bandwidth", 0.9 * DRAM_PEAK * 4 / fetched, int(params["size_bytes"]) // apart * 4)], ()


def random_accesses(params: dict[str, Param]) -> Figures:
    beyond = int(params["footprint_bytes"]) > L2_BYTES
    return [operations("accesses", (BEYOND_L2_ACCESSES if beyond else ACCESSES)[str(params["access"])])], ()


def atomic(params: dict[str, Param]) -> Figures:
    rates = IN_SHARED if params["space"] == "shared" else ADDITIONS
    slower = 0.25 if params["space"] == "shared" and params["dtype"] == "fp32" else 1.0
    return [operations("additions", rates[str(params["spread"])] * slower)], ()


def conflicts(params: dict[str, Param]) -> Figures:
    stride_bytes = int(params["stride_bytes"])
    ways = math.gcd(stride_bytes // 4, 32) if stride_bytes else 1
    found = [
        checked(measurement("cycles", 1.0 * ways, clock="device")),
        checked(measurement("latency_cycles", SHARED_CYCLES + 2 * (ways - 1), clock="device")),
    ]
    return found, (Fact("ways", ways, "made up"),)


def copy(params: dict[str, Param]) -> Figures:
    way, size_bytes = str(params["way"]), int(params["size_bytes"])
    moved = size_bytes * (1 if way == "memset" else 2)
    fixed_s, bandwidth = ENGINE[way]
    bandwidth *= L2_GAIN if moved <= L2_BYTES else 1.0
    return [rate("bandwidth", moved / (fixed_s + moved / bandwidth), moved, bound_of(moved))], ()


def allocate(params: dict[str, Param]) -> Figures:
    mebibytes = int(params["size_bytes"]) / MIB
    seconds = [fixed_s + each_s * mebibytes for fixed_s, each_s in ALLOCATED[str(params["way"])]]
    first, later, freed = seconds
    return [measurement("first", first, n=1), measurement("allocate", later), measurement("free", freed)], ()


def energy(params: dict[str, Param]) -> Figures:
    load = str(params["load"])
    found = [measurement("power", POWER_W[load], spread=0, n=1, clock="counter")]
    if load != "idle":
        joules = POWER_W[load] / (DRAM_SHARE[load] * DRAM_PEAK)
        found.append(measurement("energy", joules, spread=0, n=1, clock="counter"))
    return found, ()


def capacity(params: dict[str, Param]) -> Figures:
    facts = [Fact(name, value, "made up", unit="B") for name, value in CAPACITY.items()]
    return [], (*facts, Fact("memory_holders", "nobody else", "made up"))


def cluster(params: dict[str, Param]) -> Figures:
    per_clock, cycles = CLUSTERS[int(params["cluster_blocks"])]
    each = 1 << 22
    found = [
        rate("bandwidth", per_clock * SMS * SM_CLOCK_HZ, each * SMS, "shared"),
        rate("per_clock", per_clock, each, "shared_per_clock"),
        checked(measurement("latency", cycles / SM_CLOCK_HZ, clock="device", calls=4000)),
        checked(measurement("cycles", cycles, clock="device", calls=4000)),
    ]
    return found, (Fact("sms", SMS, "in whole clusters at the same time, by the driver"),)


def bulk(params: dict[str, Param]) -> Figures:
    footprint, way = int(params["footprint_bytes"]), str(params["way"])
    per_clock = RATES[level_of(footprint)] * FILLED[way]
    if way == "bulk":
        per_clock = min(per_clock, int(params["piece_bytes"]) / BULK_CYCLES)
    bound, each = bound_of(footprint), 1 << 22
    total = rate("bandwidth", per_clock * SMS * SM_CLOCK_HZ, each * SMS, bound)
    return [total, rate("per_clock", per_clock, each, "l2_per_clock" if bound == "l2" else None)], ()


MADE: dict[str, Callable[[dict[str, Param]], Figures]] = {
    "memory_allocate": allocate, "memory_atomic": atomic, "memory_capacity": capacity, "memory_conflicts": conflicts,
    "memory_copy": copy, "memory_energy": energy, "memory_latency": latency, "memory_levels": levels,
    "memory_loaded": loaded, "memory_occupancy": occupancy, "memory_random": random_accesses, "memory_stream": stream,
    "memory_stride": stride, "memory_writes": writes, "memory_bulk": bulk,
    "memory_cluster": cluster,
}  # fmt: skip


def made_gpu(gpu: GpuInfo, **other: object) -> GpuInfo:
    """The hand-made GPU with what it reports of its memory; ``other`` replaces some of that."""
    known: dict[str, object] = {
        "l2_bytes": L2_BYTES, "sm_count": SMS, "sm_clock_max_hz": SM_CLOCK_HZ, "memory_clock_max_hz": MEMORY_CLOCK_HZ,
        "memory_bus_bits": BUS_BITS, "memory_bytes": 80 * GIB, "ecc": True,
    }  # fmt: skip
    return replace(gpu, **{**known, **other})


def machine(environment: Environment, **other: object) -> Environment:
    """The hand-made machine with that GPU."""
    return replace(environment, gpus=tuple(made_gpu(gpu, **other) for gpu in environment.gpus))


def memory_outcomes(
    preset: Preset = "default", round: int = 0, memory_clock_hz: float = MEMORY_CLOCK_HZ
) -> list[Outcome]:
    """An outcome for each case of the suite's grid."""
    telemetry = {DEVICE: Telemetry(memory_clock_hz=memory_clock_hz)}
    found = []
    for name, figures in MADE.items():
        for case in discover()[name].cases(preset, GRIDS.get(name) if preset == "default" else None):
            measured, facts = figures(dict(case.params))
            one = outcome(name, measured, round=round, **case.params)
            found.append(replace(one, facts=facts, telemetry=telemetry))
    return found


def make_memory_run(
    *, preset: Preset = "default", rounds: int = 1, memory_clock_hz: float = MEMORY_CLOCK_HZ, **gpu: object
) -> Run:
    """The hand-made run with the memory suite after the others; ``gpu`` replaces properties of the GPU."""
    run = make_run(rounds=rounds)
    outcomes = [one for round in range(rounds) for one in memory_outcomes(preset, round, memory_clock_hz)]
    return with_suite(run, MADE, preset, outcomes, machine(run.sessions[-1].environment, **gpu))

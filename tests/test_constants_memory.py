"""Every benchmark of the memory suite gives back the constants of the simulated machine."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fake_session import exactly, facts, medians, medians_of

from microbench.analysis import fits
from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.experiments.memory.stream_arrays import ROLES
from microbench.gpu.fake.costs import FakeCosts, MemoryCosts, Rates, ShapeCosts

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COSTS = FakeCosts()
OTHER = FakeCosts(
    sm_count=80,
    sm_clock_hz=1.5e9,
    memory=MemoryCosts(
        dram_bytes_per_s=Rates(1.5e12, 1.3e12, 1.4e12),
        shapes={
            "narrow": ShapeCosts(1 << 10, Rates(1.0, 1.0, 1.0)),
            "wide": ShapeCosts(64 << 10, Rates(1.0, 1.0, 1.0)),
            "wasteful": ShapeCosts(64 << 10, Rates(0.9, 0.9, 0.9)),
        },
        shared_bytes_per_clock=100.0, l1_bytes=112 << 10, l1_bytes_per_clock=60.0, l2_bytes=24 << 20,
        l2_bytes_per_clock=30.0, l1_cycles=28.0, l2_near_cycles=190.0, l2_far_cycles=330.0, l2_near_share=0.25,
        dram_cycles=700.0, shared_cycles=22.0, joules_per_byte=90e-12, idle_power_w=50.0,
    ),
)  # fmt: skip
Row = tuple[str, dict[str, Any], dict[str, float], float]


def on_each_machine(costs: FakeCosts) -> Iterator[Row]:
    """A benchmark, its parameters, and its figures and facts, which lie within a share of what is given."""
    memory, clocks, clock_hz = costs.memory, costs.sm_count * costs.sm_clock_hz, costs.sm_clock_hz
    dram, l2 = memory.dram_bytes_per_s, memory.l2_bytes_per_clock
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    # Large streams get the rate of DRAM, and libraries their share of it.
    for kernel, roles in ROLES.items():
        for implementation in ("cuda", *memory.libraries):
            rate = dram.of(roles.read, roles.written)
            if implementation != "cuda":
                rate *= memory.libraries[implementation].share.of(roles.read, roles.written)
            params = {"kernel": kernel, "dtype": "fp64", "implementation": implementation, "size_bytes": 4 * GIB}
            yield "memory_stream", params, {"bandwidth": rate}, 0.01
    # Plateaus are the rates of the levels; writes have rates of their own.
    both = 2 / (1 / l2 + 1 / memory.l2_written_per_clock)
    for name, way, footprint_bytes, per_clock in (
        ("memory_levels", {"space": "shared"}, 16 * KIB, memory.shared_bytes_per_clock),
        ("memory_levels", {"space": "global"}, 64 * KIB, memory.l1_bytes_per_clock),
        ("memory_levels", {"space": "global"}, 8 * MIB, l2),
        ("memory_levels", {"space": "global"}, GIB, dram.read / clocks),
        ("memory_writes", {"access": "write"}, 8 * MIB, memory.l2_written_per_clock),
        ("memory_writes", {"access": "update"}, 8 * MIB, both),
        ("memory_writes", {"access": "write"}, GIB, dram.write / clocks),
        ("memory_writes", {"access": "update"}, GIB, dram.mixed / clocks),
    ):
        figures = {"per_clock": per_clock, "bandwidth": per_clock * clocks}
        yield name, {**way, "footprint_bytes": footprint_bytes}, figures, 0.02
    for space, footprint_bytes, cycles in (
        ("shared", 16 * KIB, memory.shared_cycles),
        ("global", 64 * KIB, memory.l1_cycles),
        ("global", 8 * MIB, l2_cycles),
        ("global", 4 * GIB, memory.dram_cycles),
    ):
        params = {"space": space, "footprint_bytes": footprint_bytes}
        yield "memory_latency", params, {"cycles": cycles, "latency": cycles / clock_hz}, 0.01
    lines = {"l2_modes": 2, "l2_near": memory.l2_near_cycles, "l2_far": memory.l2_far_cycles, "l2_near_share": near}
    yield "memory_latency", {"space": "global", "footprint_bytes": 8 * MIB}, lines, 0.004
    # A read waits longer the closer a level comes to its limit.
    for level, cycles, limit in (
        ("dram", memory.dram_cycles, dram.read),
        ("l2", l2_cycles, l2 * clock_hz * (costs.sm_count - 1)),
    ):
        for percent in (20, 80, 100):
            share = memory.most_load * percent / 100
            waiting = cycles * (1 + memory.queue_share * share / (1 - share))
            figures = {"bandwidth": share * limit, "idle": cycles / clock_hz, "latency": waiting / clock_hz}
            params = {"level": level, "load_percent": percent}
            yield "memory_loaded", params, {**figures, "latency_cycles": waiting}, 0.01
    # Little's law: bandwidth follows what is in flight until the memory is full.
    for block_threads, blocks, loads in ((32, 1, 1), (128, 1, 4), (128, 4, 1), (1024, 2, 8)):
        by_latency = clocks * blocks * block_threads * loads * 16 / memory.dram_cycles
        params = {"block_threads": block_threads, "blocks_per_sm": blocks, "loads": loads, "size_bytes": GIB}
        within = 0.02 if by_latency > 2 * dram.read else 0.05
        yield "memory_occupancy", params, {"bandwidth": min(by_latency, dram.read)}, within


def on_the_default_machine() -> Iterator[Row]:
    costs, memory = COSTS, COSTS.memory
    clocks, dram, l2 = costs.sm_count * costs.sm_clock_hz, memory.dram_bytes_per_s, memory.l2_bytes_per_clock
    # Other blocks of a cluster have a rate and a latency of their own.
    for blocks in (1, *memory.cluster_cycles):
        per_clock, sms = memory.cluster_bytes_per_clock.get(blocks, memory.shared_bytes_per_clock), costs.sm_count
        cycles, sms = memory.cluster_cycles.get(blocks, memory.shared_cycles), sms // blocks * blocks
        yield "memory_cluster", {"cluster_blocks": blocks}, {"per_clock": per_clock, "cycles": cycles, "sms": sms}, 0.01
        yield "memory_cluster", {"cluster_blocks": blocks}, {"bandwidth": per_clock * sms * costs.sm_clock_hz}, 0.02
    # Shared memory is filled at the level's rate or at that of requests.
    for way, share in memory.fill_share.items():
        for footprint_bytes, level in ((16 * MIB, l2), (GIB, dram.read / clocks)):
            for piece_bytes in (512, 4 * KIB, 32 * KIB):
                per_clock = min(share * level, piece_bytes / memory.bulk_cycles if way == "bulk" else float("inf"))
                params = {"way": way, "piece_bytes": piece_bytes, "footprint_bytes": footprint_bytes}
                yield "memory_bulk", params, {"per_clock": per_clock}, 0.01
                yield "memory_bulk", params, {"bandwidth": per_clock * clocks}, 0.03
    # A word costs the least that is moved at once.
    for access, rate in (("read", dram.read), ("write", dram.write)):
        for stride_bytes, useful in ((4, 1.0), (8, 0.5), (32, 4 / 32), (64, 4 / 64), (256, 4 / 64)):
            params = {"access": access, "stride_bytes": stride_bytes, "size_bytes": 16 * GIB}
            yield "memory_stride", params, {"bandwidth": useful * rate}, 0.02
    # Random accesses cost a fetch beyond the L2 and a sector within; updates go both ways.
    for access, rate, times in (("gather", dram.read, 1), ("scatter", dram.write, 1), ("update", dram.mixed, 2)):
        beyond, within = rate / (times * memory.dram_fetch_bytes), l2 * clocks / (times * memory.sector_bytes)
        yield "memory_random", {"access": access, "footprint_bytes": 4 * GIB}, {"accesses": beyond}, 0.03
        yield "memory_random", {"access": access, "footprint_bytes": 32 * MIB}, {"accesses": within}, 0.2
    # Additions to one word wait for one unit, of the L2 or of the SM, unless a warp's are merged.
    unit, of_sms = costs.sm_clock_hz / memory.atomic_cycles, clocks / memory.shared_atomic_cycles
    for space, dtype, spread, rate, within in (
        ("global", "int32", "same", 32 * unit, 0.01),
        ("global", "fp32", "same", 4 * unit, 0.01),
        ("global", "int32", "warp", 32 * unit * 96, 0.1),
        ("global", "fp32", "warp", 4 * unit * 96, 0.1),
        ("global", "int32", "thread", 8 * unit * 96, 0.1),
        ("global", "fp32", "thread", 8 * unit * 96, 0.1),
        ("shared", "int32", "same", 32 * of_sms, 0.2),
        ("shared", "fp32", "same", of_sms, 0.2),
        ("shared", "int32", "thread", 32 * of_sms, 0.2),
        ("shared", "fp32", "thread", 32 * of_sms, 0.2),
    ):
        yield "memory_atomic", {"space": space, "dtype": dtype, "spread": spread}, {"additions": rate}, within
    # Conflicts take a turn for each word of a bank.
    for stride_bytes, ways in (
        (0, 1), (4, 1), (8, 2), (12, 1), (24, 2), (48, 4), (64, 16), (96, 8), (128, 32), (132, 1), (256, 32)
    ):  # fmt: skip
        waited = memory.shared_cycles + (ways - 1) * memory.conflict_cycles
        figures = {"cycles": ways * memory.bank_cycles, "latency_cycles": waited, "ways": ways}
        yield "memory_conflicts", {"stride_bytes": stride_bytes}, figures, 1e-3
    # A pool pays once; later calls take so little that a reading of the clock shows.
    for way, own in memory.blocks.items():
        later_ns, taken_ns, released_ns = own.pooled_take_ns, own.take.at(32), own.release.at(32)
        params = {"way": way, "size_bytes": 64 * MIB}
        yield "memory_allocate", params, {"first": (taken_ns + (later_ns or 0)) * 1e-9}, 1e-3
        if later_ns is None:
            yield "memory_allocate", params, {"allocate": taken_ns * 1e-9, "free": released_ns * 1e-9}, 1e-3
        else:
            figures = {"allocate": later_ns * 1e-9, "free": own.pooled_release_ns * 1e-9}
            yield "memory_allocate", params, figures, 0.06
    # All memory that nobody holds can be allocated.
    free_bytes = memory.total_bytes - memory.context_bytes
    figures = {"free_bytes": free_bytes, "context_bytes": memory.context_bytes, "obtainable_bytes": free_bytes}
    figures["largest_block_bytes"] = memory.largest_share * free_bytes
    yield "memory_capacity", {}, figures, 3e-5


ROWS = [
    *((COSTS, *row) for row in on_each_machine(COSTS)),
    *((OTHER, *row) for row in on_each_machine(OTHER)),
    *((COSTS, *row) for row in on_the_default_machine()),
]


@pytest.mark.parametrize(
    ("costs", "name", "params", "figures", "within"), ROWS, ids=[f"{row[1]}-{row[2]}-{[*row[3]]}" for row in ROWS]
)
def test_figures_are_those_of_the_constants(
    costs: FakeCosts, name: str, params: dict[str, Any], figures: dict[str, float], within: float
) -> None:
    rows = exactly(name, costs, params)
    found = {**medians_of(name, rows), **{row.name: row.value for row in rows if isinstance(row, Fact)}}
    assert {figure: found[figure] for figure in figures} == pytest.approx(figures, rel=within)


@pytest.mark.parametrize(("costs", "kernel", "shape"), [
    (COSTS, "read", "bulk_16384B_x4_b2_t256"),
    (COSTS, "write", "grid_16B_x4_t256"),
    (FakeCosts(compute_capability=(8, 0)), "read", "steps_16B_x4_b4_t512"),  # has no bulk copies
    (OTHER, "triad", "wide"),  # too little in flight loses against a lower rate
])  # fmt: skip
def test_the_search_finds_the_best_shape_of_each_kernel(costs: FakeCosts, kernel: str, shape: str) -> None:
    figures = facts("memory_stream", costs, kernel=kernel, dtype="fp64", implementation="cuda", size_bytes=GIB)
    assert figures["shape"].value == shape


def test_arrays_in_the_l2_are_as_fast_as_the_l2() -> None:
    params: dict[str, int | str] = {"kernel": "read", "dtype": "fp64", "implementation": "cuda", "size_bytes": 16 * MIB}
    seconds = 16 * MIB / medians("memory_stream", COSTS, **params)["bandwidth"]
    around_s = (COSTS.gap_stream_ns + COSTS.empty_kernel_ns) * 1e-9
    l2_rate = COSTS.memory.l2_bytes_per_clock * COSTS.sm_count * COSTS.sm_clock_hz
    assert 16 * MIB / (seconds - around_s) == pytest.approx(l2_rate, rel=0.12), "the first answer takes its latency"


def test_an_l2_of_one_part_has_one_mode() -> None:
    costs = FakeCosts(memory=MemoryCosts(l2_far_cycles=230.0))
    assert facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)["l2_modes"].value == 1


def test_beyond_the_reach_of_translations_each_read_looks_its_page_up() -> None:
    memory = COSTS.memory
    within, beyond = (
        medians("memory_latency", COSTS, space="global", footprint_bytes=size_bytes)["cycles"]
        for size_bytes in (memory.translation_reach_bytes, 8 * memory.translation_reach_bytes)
    )
    assert beyond - within == pytest.approx(7 / 8 * memory.translation_miss_cycles, rel=0.1)


def test_nobody_else_holds_memory() -> None:
    assert facts("memory_capacity", COSTS)["memory_holders"].value == "nobody else"


def test_older_gpus_have_no_clusters() -> None:
    older = msgspec.structs.replace(COSTS, compute_capability=(8, 9))
    with pytest.raises(Skip, match="no clusters of 2 blocks"):
        medians("memory_cluster", older, cluster_blocks=2)


@pytest.mark.parametrize("way", ["copy", "copy_2d", "memset"])
def test_a_line_through_copies_has_the_fixed_cost_and_the_bandwidth(way: str) -> None:
    times = 1 if way == "memset" else 2
    points = [
        (times * size, times * size / medians("memory_copy", COSTS, way=way, size_bytes=size)["bandwidth"])
        for size in (64, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 4 * GIB)
    ]
    fit = fits.line(points)
    own = COSTS.memory.engines.get(way)
    fixed_ns, rate = (own.duration_ns, own.bytes_per_s) if own else (COSTS.empty_kernel_ns, COSTS.memset_bytes_per_s)
    assert fit is not None
    assert fit.constant == pytest.approx((COSTS.gap_stream_ns + fixed_ns) * 1e-9, rel=0.02)
    assert 1 / fit.slope == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])
def test_a_byte_takes_its_joules_above_idle(costs: FakeCosts) -> None:
    memory = costs.memory
    idle_w = medians("memory_energy", costs, load="idle", size_bytes=GIB)["power"]
    assert idle_w == pytest.approx(memory.idle_power_w, rel=0.06)
    figures = medians("memory_energy", costs, load="read", size_bytes=GIB)
    bytes_per_s = figures["power"] / figures["energy"]
    assert (figures["power"] - idle_w) / bytes_per_s == pytest.approx(memory.joules_per_byte, rel=0.08)

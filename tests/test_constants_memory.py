"""Every benchmark of the memory suite gives back the constants of the simulated machine."""

import msgspec
import pytest
from fake_session import facts, medians

from microbench.analysis import fits
from microbench.core.errors import Skip
from microbench.gpu.fake.costs import FakeCosts, MemoryCosts, Rates, ShapeCosts
from microbench.gpu.protocol.memory import (
    READ_ARRAYS,
    WRITTEN_ARRAYS,
    AllocationWay,
    AtomicType,
    EngineWay,
    Filling,
    Spread,
)

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
        shared_bytes_per_clock=100.0,
        l1_bytes=112 << 10,
        l1_bytes_per_clock=60.0,
        l2_bytes=24 << 20,
        l2_bytes_per_clock=30.0,
        l1_cycles=28.0,
        l2_near_cycles=190.0,
        l2_far_cycles=330.0,
        l2_near_share=0.25,
        dram_cycles=700.0,
        shared_cycles=22.0,
        joules_per_byte=90e-12,
        idle_power_w=50.0,
    ),
)
each_machine = pytest.mark.parametrize("costs", [COSTS, OTHER], ids=["default", "other"])


def stream(costs: FakeCosts, kernel: str, size_bytes: int = 4 * GIB, implementation: str = "cuda") -> dict[str, float]:
    params: dict[str, int | str] = {"kernel": kernel, "size_bytes": size_bytes, "implementation": implementation}
    return medians("memory_stream", costs, dtype="fp64", **params)


@each_machine
@pytest.mark.parametrize("kernel", ["read", "write", "copy", "scale", "add", "triad", "dot"])
def test_large_streams_get_the_rate_of_the_dram_and_libraries_their_share(costs: FakeCosts, kernel: str) -> None:
    for implementation in ("cuda", *costs.memory.libraries):
        rate = costs.memory.dram_bytes_per_s.of(READ_ARRAYS[kernel], WRITTEN_ARRAYS[kernel])
        if implementation != "cuda":
            rate *= costs.memory.libraries[implementation].share.of(READ_ARRAYS[kernel], WRITTEN_ARRAYS[kernel])
        figures = stream(costs, kernel, implementation=implementation)
        assert figures["bandwidth"] == pytest.approx(rate, rel=0.01), implementation


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
    l2_rate = COSTS.memory.l2_bytes_per_clock * COSTS.sm_count * COSTS.sm_clock_hz
    size_bytes = 16 * MIB
    seconds = size_bytes / stream(COSTS, "read", size_bytes)["bandwidth"]
    around_s = (COSTS.gap_stream_ns + COSTS.empty_kernel_ns) * 1e-9
    assert size_bytes / (seconds - around_s) == pytest.approx(l2_rate, rel=0.12), "the first answer takes its latency"


@each_machine
def test_plateaus_are_the_rates_of_the_levels(costs: FakeCosts) -> None:
    memory = costs.memory
    dram_per_clock = memory.dram_bytes_per_s.read / costs.sm_count / costs.sm_clock_hz
    for space, footprint_bytes, expected in (
        ("shared", 16 * KIB, memory.shared_bytes_per_clock),
        ("global", 64 * KIB, memory.l1_bytes_per_clock),
        ("global", 8 * MIB, memory.l2_bytes_per_clock),
        ("global", GIB, dram_per_clock),
    ):
        figures = medians("memory_levels", costs, space=space, footprint_bytes=footprint_bytes)
        assert figures["per_clock"] == pytest.approx(expected, rel=0.02), (space, footprint_bytes)
        total = expected * costs.sm_count * costs.sm_clock_hz
        assert figures["bandwidth"] == pytest.approx(total, rel=0.02), (space, footprint_bytes)


@each_machine
def test_writes_have_rates_of_their_own(costs: FakeCosts) -> None:
    memory, clocks = costs.memory, costs.sm_count * costs.sm_clock_hz
    both = 2 / (1 / memory.l2_bytes_per_clock + 1 / memory.l2_written_per_clock)
    for access, footprint_bytes, expected in (
        ("write", 8 * MIB, memory.l2_written_per_clock),
        ("update", 8 * MIB, both),
        ("write", GIB, memory.dram_bytes_per_s.write / clocks),
        ("update", GIB, memory.dram_bytes_per_s.mixed / clocks),
    ):
        figures = medians("memory_writes", costs, access=access, footprint_bytes=footprint_bytes)
        assert figures["per_clock"] == pytest.approx(expected, rel=0.02), (access, footprint_bytes)
        assert figures["bandwidth"] == pytest.approx(expected * clocks, rel=0.02), (access, footprint_bytes)


@each_machine
def test_latencies_are_those_of_the_levels(costs: FakeCosts) -> None:
    memory = costs.memory
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    for space, footprint_bytes, expected in (
        ("shared", 16 * KIB, memory.shared_cycles),
        ("global", 64 * KIB, memory.l1_cycles),
        ("global", 8 * MIB, l2_cycles),
        ("global", 4 * GIB, memory.dram_cycles),
    ):
        figures = medians("memory_latency", costs, space=space, footprint_bytes=footprint_bytes)
        assert figures["cycles"] == pytest.approx(expected, rel=0.06 if expected == memory.dram_cycles else 0.02)
        assert figures["latency"] == pytest.approx(figures["cycles"] / costs.sm_clock_hz, rel=0.01)


@each_machine
@pytest.mark.parametrize("level", ["dram", "l2"])
def test_a_read_waits_longer_the_closer_a_level_comes_to_its_limit(costs: FakeCosts, level: str) -> None:
    memory = costs.memory
    near = memory.l2_near_share
    cycles, limit = memory.dram_cycles, memory.dram_bytes_per_s.read
    if level == "l2":
        cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
        limit = memory.l2_bytes_per_clock * costs.sm_clock_hz * (costs.sm_count - 1)
    for percent in (20, 80, 100):
        figures = medians("memory_loaded", costs, level=level, load_percent=percent)
        share = memory.most_load * percent / 100
        expected = cycles * (1 + memory.queue_share * share / (1 - share))
        assert figures["bandwidth"] == pytest.approx(share * limit, rel=0.01)
        assert figures["idle"] == pytest.approx(cycles / costs.sm_clock_hz, rel=0.01)
        assert figures["latency"] == pytest.approx(expected / costs.sm_clock_hz, rel=0.01)
        fact = facts("memory_loaded", costs, level=level, load_percent=percent)["latency_cycles"]
        assert fact.value == pytest.approx(expected, rel=0.01)


@each_machine
def test_lines_are_near_or_far(costs: FakeCosts) -> None:
    memory = costs.memory
    figures = facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)
    assert figures["l2_modes"].value == 2
    for name, expected in (("l2_near", memory.l2_near_cycles), ("l2_far", memory.l2_far_cycles)):
        assert figures[name].value == pytest.approx(expected, abs=1)
    assert figures["l2_near_share"].value == pytest.approx(memory.l2_near_share, abs=0.01)


def test_an_l2_of_one_part_has_one_mode() -> None:
    costs = FakeCosts(memory=MemoryCosts(l2_far_cycles=230.0))
    assert facts("memory_latency", costs, space="global", footprint_bytes=8 * MIB)["l2_modes"].value == 1


def test_beyond_the_reach_of_translations_each_read_looks_its_page_up() -> None:
    memory = COSTS.memory
    within, beyond = (
        medians("memory_latency", COSTS, space="global", footprint_bytes=size_bytes)["cycles"]
        for size_bytes in (memory.translation_reach_bytes, 8 * memory.translation_reach_bytes)
    )
    misses = 7 / 8
    assert beyond - within == pytest.approx(misses * memory.translation_miss_cycles, rel=0.1)


@each_machine
def test_bandwidth_follows_what_is_in_flight_until_the_memory_is_full(costs: FakeCosts) -> None:
    """Little's law."""
    latency_s = costs.memory.dram_cycles / costs.sm_clock_hz
    full = costs.memory.dram_bytes_per_s.read
    for block_threads, blocks, loads in ((32, 1, 1), (128, 1, 4), (128, 4, 1), (1024, 2, 8)):
        figures = medians(
            "memory_occupancy", costs, block_threads=block_threads, blocks_per_sm=blocks, loads=loads, size_bytes=GIB
        )["bandwidth"]
        by_latency = costs.sm_count * blocks * block_threads * loads * 16 / latency_s
        if by_latency > 2 * full:
            assert figures == pytest.approx(full, rel=0.02)
        else:
            assert figures == pytest.approx(min(by_latency, full), rel=0.05)


def test_other_blocks_of_a_cluster_have_their_rate_and_their_latency() -> None:
    memory = COSTS.memory
    for blocks in (1, *memory.cluster_cycles):
        figures = medians("memory_cluster", COSTS, cluster_blocks=blocks)
        per_clock = memory.cluster_bytes_per_clock.get(blocks, memory.shared_bytes_per_clock)
        assert figures["per_clock"] == pytest.approx(per_clock, rel=0.01)
        sms = COSTS.sm_count // blocks * blocks
        assert figures["bandwidth"] == pytest.approx(per_clock * sms * COSTS.sm_clock_hz, rel=0.02)
        assert figures["cycles"] == pytest.approx(memory.cluster_cycles.get(blocks, memory.shared_cycles), rel=0.01)
        assert facts("memory_cluster", COSTS, cluster_blocks=blocks)["sms"].value == sms
    older = msgspec.structs.replace(COSTS, compute_capability=(8, 9))
    with pytest.raises(Skip, match="no clusters of 2 blocks"):
        medians("memory_cluster", older, cluster_blocks=2)


@pytest.mark.parametrize("way", ["load", "async", "bulk"])
def test_shared_memory_is_filled_at_the_levels_rate_or_at_that_of_requests(way: Filling) -> None:
    memory = COSTS.memory
    dram = memory.dram_bytes_per_s.read / COSTS.sm_count / COSTS.sm_clock_hz
    for footprint_bytes, level in ((16 * MIB, memory.l2_bytes_per_clock), (GIB, dram)):
        for piece_bytes in (512, 4 * KIB, 32 * KIB):
            wanted = memory.fill_share[way] * level
            if way == "bulk":
                wanted = min(wanted, piece_bytes / memory.bulk_cycles)
            figures = medians(
                "memory_bulk", COSTS, way=way, piece_bytes=piece_bytes, footprint_bytes=footprint_bytes
            )  # fmt: skip
            assert figures["per_clock"] == pytest.approx(wanted, rel=0.01)
            assert figures["bandwidth"] == pytest.approx(wanted * COSTS.sm_count * COSTS.sm_clock_hz, rel=0.03)


@pytest.mark.parametrize("access", ["read", "write"])
def test_a_word_costs_the_least_that_is_moved_at_once(access: str) -> None:
    rates = COSTS.memory.dram_bytes_per_s
    rate = rates.read if access == "read" else rates.write
    for stride_bytes, useful in ((4, 1.0), (8, 0.5), (32, 4 / 32), (64, 4 / 64), (256, 4 / 64)):
        figures = medians("memory_stride", COSTS, access=access, stride_bytes=stride_bytes, size_bytes=16 * GIB)
        assert figures["bandwidth"] == pytest.approx(useful * rate, rel=0.02), stride_bytes


@pytest.mark.parametrize("access", ["gather", "scatter", "update"])
def test_random_accesses_cost_a_fetch_beyond_the_l2_and_a_sector_within(access: str) -> None:
    memory, times = COSTS.memory, 2 if access == "update" else 1
    rates = memory.dram_bytes_per_s
    rate = {"gather": rates.read, "scatter": rates.write, "update": rates.mixed}[access]
    figures = medians("memory_random", COSTS, access=access, footprint_bytes=4 * GIB)["accesses"]
    assert figures == pytest.approx(rate / (times * memory.dram_fetch_bytes), rel=0.03)
    within = medians("memory_random", COSTS, access=access, footprint_bytes=32 * MIB)["accesses"]
    l2_rate = memory.l2_bytes_per_clock * COSTS.sm_count * COSTS.sm_clock_hz
    assert within == pytest.approx(l2_rate / (times * memory.sector_bytes), rel=0.2)


@pytest.mark.parametrize(("dtype", "merged"), [("int32", 32), ("fp32", 4)])
def test_additions_to_one_word_wait_for_one_unit(dtype: AtomicType, merged: int) -> None:
    memory = COSTS.memory
    one_unit = merged / memory.atomic_cycles * COSTS.sm_clock_hz
    rates = {spread: atomic(COSTS, "global", dtype, spread) for spread in ("same", "warp", "thread")}
    assert rates["same"] == pytest.approx(one_unit, rel=0.01)
    assert rates["warp"] == pytest.approx(one_unit * memory.atomic_units, rel=0.1)
    assert rates["thread"] == pytest.approx(8 / memory.atomic_cycles * COSTS.sm_clock_hz * 96, rel=0.1)


@pytest.mark.parametrize(("dtype", "merged"), [("int32", 32), ("fp32", 1)])
def test_additions_in_shared_memory_are_those_of_every_sm(dtype: AtomicType, merged: int) -> None:
    an_sm = COSTS.sm_clock_hz / COSTS.memory.shared_atomic_cycles
    assert atomic(COSTS, "shared", dtype, "thread") == pytest.approx(32 * an_sm * COSTS.sm_count, rel=0.2)
    assert atomic(COSTS, "shared", dtype, "same") == pytest.approx(merged * an_sm * COSTS.sm_count, rel=0.2)


@pytest.mark.parametrize(("stride_bytes", "ways"), [
    (0, 1), (4, 1), (8, 2), (12, 1), (24, 2), (48, 4), (64, 16), (96, 8), (128, 32), (132, 1), (256, 32),
])  # fmt: skip
def test_conflicts_take_a_turn_for_each_word_of_a_bank(stride_bytes: int, ways: int) -> None:
    memory = COSTS.memory
    figures = medians("memory_conflicts", COSTS, stride_bytes=stride_bytes)
    assert figures["cycles"] == pytest.approx(ways * memory.bank_cycles, rel=1e-3)
    expected = memory.shared_cycles + (ways - 1) * memory.conflict_cycles
    assert figures["latency_cycles"] == pytest.approx(expected, rel=1e-3)
    assert facts("memory_conflicts", COSTS, stride_bytes=stride_bytes)["ways"].value == ways


def atomic(costs: FakeCosts, space: str, dtype: AtomicType, spread: Spread) -> float:
    return medians("memory_atomic", costs, space=space, dtype=dtype, spread=spread)["additions"]


@pytest.mark.parametrize("way", ["copy", "copy_2d", "memset"])
def test_a_line_through_copies_has_the_fixed_cost_and_the_bandwidth(way: EngineWay) -> None:
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


@pytest.mark.parametrize("way", ["malloc", "pool", "cupy_pool", "host_pinned"])
def test_a_pool_pays_once(way: AllocationWay) -> None:
    own, steps = COSTS.memory.blocks[way], 32
    figures = medians("memory_allocate", COSTS, way=way, size_bytes=64 * MIB)
    pooled_ns, taken_ns = own.pooled_take_ns, own.take.at(steps)
    released_ns = own.release.at(steps) if pooled_ns is None else own.pooled_release_ns
    assert figures["first"] == pytest.approx((taken_ns + (pooled_ns or 0)) * 1e-9, abs=1e-7)
    assert figures["allocate"] == pytest.approx((pooled_ns or taken_ns) * 1e-9, abs=1e-7)
    assert figures["free"] == pytest.approx(released_ns * 1e-9, abs=1e-7)


def test_all_memory_that_nobody_holds_can_be_allocated() -> None:
    memory = COSTS.memory
    figures = facts("memory_capacity", COSTS)
    free_bytes = memory.total_bytes - memory.context_bytes
    assert figures["free_bytes"].value == free_bytes
    assert figures["context_bytes"].value == memory.context_bytes
    assert figures["obtainable_bytes"].value == free_bytes
    assert figures["largest_block_bytes"].value == pytest.approx(memory.largest_share * free_bytes, abs=2 * MIB)
    assert figures["memory_holders"].value == "nobody else"


@each_machine
def test_a_byte_takes_its_joules_above_idle(costs: FakeCosts) -> None:
    memory = costs.memory
    idle_w = medians("memory_energy", costs, load="idle", size_bytes=GIB)["power"]
    assert idle_w == pytest.approx(memory.idle_power_w, rel=0.06)
    figures = medians("memory_energy", costs, load="read", size_bytes=GIB)
    bytes_per_s = figures["power"] / figures["energy"]
    assert (figures["power"] - idle_w) / bytes_per_s == pytest.approx(memory.joules_per_byte, rel=0.08)

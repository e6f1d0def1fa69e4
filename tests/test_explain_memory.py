"""What the memory suite's findings say, with the run's own numbers."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import CAPACITY, GIB, L2_BYTES, MIB, make_memory_run
from make_run import make_run
from memory_evidence import FULL, WHOLE, evidence, only, silent, told, with_facts

from microbench.explain import findings, of_suite
from microbench.explain.memory_access import apart, contention
from microbench.explain.memory_copy import engine
from microbench.explain.memory_energy import draws
from microbench.explain.memory_latency import l2_modes, latency_levels, steps
from microbench.explain.memory_levels import bandwidth_levels, crossing, footprints, knees
from microbench.explain.memory_occupancy import flights, little_bytes, needed, ways
from microbench.explain.memory_shapes import shape_words
from microbench.explain.memory_stream import losses
from microbench.model import Fact, Run

# -- the whole ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [WHOLE, FULL, make_memory_run(preset="quick", rounds=3)])
def test_every_finding_has_words_and_what_it_rests_on(run: Run) -> None:
    found = [one for one in findings(run) if one.suite == "memory" and one.rule != "memory.rounds"]
    assert len(found) >= 8
    for one in found:
        assert one.title
        assert one.text.endswith(".")
        assert one.text[0].isupper() or not one.text[0].isalpha() or one.text.startswith("cuMemcpy")
        assert one.threshold
        assert one.rests_on
        assert "nan" not in one.text.split()


def test_nothing_measured_nothing_found() -> None:
    assert [one for one in findings(make_run()) if one.suite == "memory"] == []


@pytest.mark.parametrize("name", [info.name for info in WHOLE.benchmarks if info.suite == "memory"])
def test_each_benchmark_alone_is_explained_without_the_others(name: str) -> None:
    found = of_suite(evidence(only(name)), "memory")
    assert found
    assert all(one.title and one.text for one in found)


@pytest.mark.parametrize("name", [info.name for info in WHOLE.benchmarks if info.suite == "memory"])
def test_no_rule_fails_where_a_benchmark_is_missing(name: str) -> None:
    assert of_suite(evidence(without(name, WHOLE)), "memory")


def test_a_gpu_that_says_nothing_of_itself_is_explained_as_well() -> None:
    unknown = make_memory_run(
        l2_bytes=None, sm_count=None, sm_clock_max_hz=None, memory_clock_max_hz=None, memory_bus_bits=None, ecc=None
    )
    found = of_suite(evidence(unknown), "memory")
    assert found[0].title.startswith("No verdict: memory clock or bus width are not known")
    assert not any(one.rule == "memory.over_limit" for one in found)


# -- levels -------------------------------------------------------------------------------------------------------


def test_levels_are_found_and_named() -> None:
    found = bandwidth_levels(evidence(), "per_clock")
    assert [one.name for one in found] == ["L1", "L2", "DRAM"]
    assert [one.value for one in found] == pytest.approx([122.0, 42.0, 14.4], rel=0.01)
    assert [one.last_bytes for one in found[:2]] == [192 << 10, 32 * MIB]
    assert found[2].first_bytes == 256 * MIB


def test_knees_lie_between_their_levels() -> None:
    points = footprints(evidence(), "memory_levels", "bandwidth")
    first, second = knees(points, bandwidth_levels(evidence()))
    assert (first.before, first.after, second.before, second.after) == ("L1", "L2", "L2", "DRAM")
    assert 192 << 10 < first.at_bytes < 512 << 10
    assert 32 * MIB < second.at_bytes < 64 * MIB


def test_a_knee_that_nobody_looked_for_is_none() -> None:
    quick = evidence(make_memory_run(preset="quick"))
    assert [one.name for one in bandwidth_levels(quick)] == ["L1", "L2", "DRAM"]
    assert knees(footprints(quick, "memory_levels", "bandwidth"), bandwidth_levels(quick)) == []
    assert "takes over" not in told("memory.levels", make_memory_run(preset="quick")).text


def test_one_odd_point_does_not_end_a_level() -> None:
    odd = scaled("memory_levels", "bandwidth", 0.5, WHOLE, footprint_bytes=MIB)
    by_name = {one.name: one for one in bandwidth_levels(evidence(odd))}
    assert by_name["L2"].value == pytest.approx(42.0 * 132 * 1.98e9, rel=0.01)
    assert by_name["L2"].first_bytes == 4 * MIB


def test_without_the_size_of_the_l2_only_the_ends_are_named() -> None:
    unknown = with_gpu(lambda gpu: msgspec.structs.replace(gpu, l2_bytes=None), WHOLE)
    assert [one.name for one in bandwidth_levels(evidence(unknown))] == ["L1", "DRAM"]


def test_what_levels_give_is_told_with_shares_of_ceilings() -> None:
    finding = told("memory.levels")
    assert finding.title == "Bandwidth by level: L1 31.9 TB/s, L2 11.0 TB/s, DRAM 3.76 TB/s"
    assert "Shared memory 33.2 TB/s, 127 B/clk/SM (99.2 % of 128 B/clk/SM)" in finding.text.replace("99.3", "99.2")
    assert "42.0 B/clk/SM (65.6 % of 64.0 B/clk/SM), sets up to 32 MiB." in finding.text
    assert (
        "The next level takes over: L2 near 253 KiB and DRAM near 42.9 MiB (the L2 is reported as 48 MiB)"
        in finding.text
    )


def test_a_crossing_is_straight_in_logarithms() -> None:
    row = evidence().rows("memory_levels", "bandwidth")[0]

    def at(value: float) -> object:
        return dataclasses.make_dataclass("At", ["value"])(value)

    points = [(100, at(16.0)), (400, at(4.0))]
    assert crossing(points, 8.0) == pytest.approx(200.0)  # type: ignore[arg-type]
    assert crossing(points, 2.0) is None  # type: ignore[arg-type]
    assert crossing([(100, at(16.0)), (401, at(4.0))], 8.0) is None  # type: ignore[arg-type]
    assert crossing([(1, row)], row.value) is None


# -- latency ------------------------------------------------------------------------------------------------------


def test_latency_by_level_in_both_units() -> None:
    assert [one.name for one in latency_levels(evidence())] == ["L1", "L2", "DRAM"]
    cycles = [one.value for one in latency_levels(evidence(), "cycles")]
    assert cycles == pytest.approx([33, 262, 560], rel=0.01)
    finding = told("memory.latency")
    assert finding.title == "A dependent read takes: L1 16.6 ns, L2 132 ns, DRAM 282 ns"
    assert "shared memory 14.6 ns (29" in finding.text


def test_a_rise_within_dram_is_the_reach_of_a_tlb() -> None:
    (step,) = steps(evidence())
    assert GIB < step.reach_bytes < 4 * GIB
    assert (step.before, step.after) == pytest.approx((560, 850), rel=0.01)
    assert told("memory.tlb").title == "TLB reach about 2.00 GiB"
    flat = scaled("memory_latency", "cycles", 850 / 560, WHOLE, footprint_bytes=4 * GIB)
    flat = scaled("memory_latency", "cycles", 850 / 560, flat, footprint_bytes=16 * GIB)
    assert silent("memory.tlb", flat)


def test_the_l2_has_a_near_and_a_far_part() -> None:
    modes = l2_modes(evidence())
    assert modes is not None
    assert (modes.near, modes.far, modes.near_share) == (262.0, 421.0, 0.51)
    assert modes.row.params["footprint_bytes"] == 4 * MIB
    finding = told("memory.l2_modes")
    assert finding.title == "The L2 has a near and a far part: 262 cycles and 421 cycles"
    assert "51.0 % of the lines" in finding.text
    alike = with_facts("memory_latency", l2_modes=1, l2_near=None, l2_far=None)
    assert told("memory.l2_modes", alike).title.startswith("All lines of the L2 answer alike")


# -- streams ------------------------------------------------------------------------------------------------------


def test_what_python_loses() -> None:
    assert [one.share for one in losses(evidence(), "numba")] == pytest.approx([0.15] * 7, abs=0.01)
    finding = told("memory.python")
    assert finding.severity == "advice"
    assert "CuPy loses 4.0 %" in finding.title
    assert "Numba loses 15" in finding.title
    light = without("memory_stream", WHOLE, implementation="numba")
    assert told("memory.python", light).severity == "note"
    assert silent("memory.python", without("memory_stream", light, implementation="cupy"))


def test_arrays_that_stay_in_the_l2_are_called_so() -> None:
    finding = told("memory.resident")
    assert finding.title == "Arrays up to 4 MiB stay in the L2: their rates are not the memory's"
    assert "6.08 TB/s" in finding.text
    assert "3.80 TB/s" in finding.text
    assert silent("memory.resident", without("memory_stream", WHOLE, size_bytes=4 * MIB))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grid_16B_x1_t128", "16-byte accesses, 1 under way, one tile a block, 128 threads"),
        ("steps_16B_x4_b4", "16-byte accesses, 4 under way, blocks that step through it, 4 blocks an SM"),
        ("grid_32B_x4_t256", "32-byte accesses, 4 under way, one tile a block, 256 threads"),
        ("bulk_16384B_x2_t128_b4", "bulk copies of 16 KiB, 2 stages, 128 threads, 4 blocks an SM"),
        ("bulk_16384B_x4_b2_t256", "bulk copies of 16 KiB, 4 stages, 256 threads, 2 blocks an SM"),
        ("bulk_4096B_x1", "bulk copies of 4 KiB, 1 stage"),
        ("cupy", "cupy"),
        ("wave_16B_x1", "wave_16B_x1"),
        ("grid_16B_x1_q9", "grid_16B_x1_q9"),
        ("", ""),
    ],
)  # fmt: skip
def test_shapes_in_words(name: str, words: str) -> None:
    assert shape_words(name) == words


def test_the_shape_that_won_is_told_by_kernel() -> None:
    finding = told("memory.shape")
    assert "read: bulk copies of 16 KiB, 2 stages" in finding.text
    assert "write, copy, scale, add and triad: 16-byte accesses, 1 under way" in finding.text


# -- what is under way --------------------------------------------------------------------------------------------


def test_how_many_bytes_must_be_under_way() -> None:
    found = flights(evidence())
    least = needed(found)
    assert least is not None
    assert least.under_way_bytes == 32 << 10
    assert ways(found, least) == [
        "2048 threads with 1 load of 16 bytes each", "512 threads with 4 loads of 16 bytes each",
    ]  # fmt: skip
    assert little_bytes(evidence(), 3.76e12) == pytest.approx(560 / 1.98e9 * 3.76e12 / 132, rel=0.01)
    finding = told("memory.under_way")
    assert finding.title == "90 % of the bandwidth needs 32.0 KiB under way on each SM"
    assert "Little's law asks for 7.8" in finding.text
    assert "Little" not in told("memory.under_way", without("memory_latency", WHOLE)).text


def test_where_the_least_is_enough_nothing_is_told() -> None:
    few = without("memory_occupancy", WHOLE, loads=1)
    few = without("memory_occupancy", few, block_threads=128)
    assert silent("memory.under_way", few)


# -- other accesses -----------------------------------------------------------------------------------------------


def test_the_sector_shows_in_strides() -> None:
    read, write = apart(evidence(), "read"), apart(evidence(), "write")
    assert read is not None
    assert write is not None
    assert (read.flat_from_bytes, write.flat_from_bytes) == (32, 64)
    finding = told("memory.stride")
    assert finding.title == "Words 32 B or more apart keep 12.5 % of the useful bandwidth"
    assert "each costs as much as 32 bytes in a row" in finding.text
    assert "each costs as much as 64 bytes in a row" in finding.text
    assert silent("memory.stride", without("memory_stride", WHOLE, stride_bytes=4))


def test_random_accesses_are_held_against_the_stream() -> None:
    finding = told("memory.random")
    assert finding.title.startswith("Random 8-byte accesses over 1 GiB: gather 32.0 GOP/s")
    assert "each as dear as 118 bytes in a row; in 16 MiB 2.8× as many" in finding.text
    assert "dear" not in told("memory.random", only("memory_random")).text


def test_contention_is_a_factor() -> None:
    factors = {(one.space, one.dtype): one.factor for one in contention(evidence())}
    assert factors["global", "int32"] == pytest.approx(2600 / 2.4, rel=0.01)
    assert told("memory.atomic").severity == "advice"
    mild = changed(
        lambda one: None if one.case.params.get("space") == "global" and one.case.benchmark == "memory_atomic" else one,
        scaled("memory_atomic", "additions", 5.0, WHOLE, spread="same"),
    )
    assert told("memory.atomic", mild).severity == "note"
    assert silent("memory.atomic", without("memory_atomic", WHOLE, spread="same"))


# -- the driver ---------------------------------------------------------------------------------------------------


def test_a_fit_of_the_drivers_copies_gives_back_its_constants() -> None:
    one = engine(evidence(), "copy")
    assert one is not None
    assert one.fixed_s == pytest.approx(2e-6, rel=0.01)
    assert one.bandwidth == pytest.approx(3.5e12, rel=0.01)
    assert one.half_bytes == pytest.approx(7e6, rel=0.02)
    finding = told("memory.copy")
    assert finding.title == "cuMemcpyDtoD within the GPU: 2.00 µs + V / 3.50 TB/s, half at 6.68 MiB"
    assert finding.severity == "note"
    slow = scaled("memory_copy", "bandwidth", 0.5, WHOLE, way="copy")
    assert told("memory.copy", slow).severity == "advice"


def test_a_pool_against_malloc() -> None:
    finding = told("memory.allocate")
    assert finding.title == "cudaMalloc and cudaFree of 64 MiB take 288 µs, a pool 999 ns (288×)"
    assert "stream-ordered pool 601 ns" in finding.text
    assert "Take memory from a pool" in finding.text
    cupy = without("memory_allocate", WHOLE, way="pool")
    assert "CuPy's pool 1.81 µs" in told("memory.allocate", cupy).title
    assert silent("memory.allocate", without("memory_allocate", WHOLE, way="malloc"))


def test_capacity_says_who_has_the_rest() -> None:
    finding = told("memory.capacity")
    assert finding.title == "79.0 GiB of 80.0 GiB can be had (98.7 %)"
    assert "Who else has memory of it: nobody else." in finding.text
    assert "split the largest arrays" not in told("memory.capacity", with_facts("memory_capacity")).text
    holes = with_facts("memory_capacity", largest_block_bytes=CAPACITY["obtainable_bytes"] // 2)
    assert "split the largest arrays" in told("memory.capacity", holes).text
    hidden = with_facts("memory_capacity", obtainable_bytes=None, largest_block_bytes=None)
    assert told("memory.capacity", hidden).title == "80.0 GiB of memory"
    assert "Not tried: others are there." in told("memory.capacity", hidden).text


def test_energy_of_a_byte_and_what_is_above_idle() -> None:
    by_load = {one.load: one for one in draws(evidence())}
    assert by_load["read"].energy.value == pytest.approx(420 / (0.94 * 4e12), rel=0.01)
    above = by_load["read"].above_idle
    assert above is not None
    assert above == pytest.approx(300 / (0.94 * 4e12), rel=0.01)
    assert told("memory.energy").title == "A byte costs 125 pJ/B (copy, 450 W)"
    without_idle = without("memory_energy", WHOLE, load="idle")
    assert "idle" not in told("memory.energy", without_idle).text
    limited = with_gpu(lambda gpu: msgspec.structs.replace(gpu, power_limit_w=700.0), WHOLE)
    assert "up to 65.0 % of the board's 700 W" in told("memory.energy", limited).text


def test_made_rows_are_of_the_shape_that_benchmarks_give() -> None:
    """A stand-in that drifts from the benchmarks would test words that nobody reads."""
    for info in (one for one in WHOLE.benchmarks if one.suite == "memory"):
        named = {metric.name for metric in info.metrics}
        given = {one.metric for outcome in WHOLE.outcomes if outcome.case.benchmark == info.name
                 for one in outcome.measurements}  # fmt: skip
        assert given == named
    assert any(fact == Fact("memory_holders", "nobody else", "made up") for one in WHOLE.outcomes for fact in one.facts)
    assert L2_BYTES == 48 * MIB

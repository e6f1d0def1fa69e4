"""What the memory suite's findings say, with the run's own numbers."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import CAPACITY, GIB, L2_BYTES, MIB, make_memory_run
from make_run import make_run
from memory_evidence import FULL, WHOLE, evidence, only, silent, told, with_facts

from microbench.core.model import Fact, Run
from microbench.explain.memory_access import apart, contention, engine, flights, little_bytes, needed, ways
from microbench.explain.memory_allocation import draws
from microbench.explain.memory_stream import largest_bytes, losses, shape_words
from microbench.explain.rules import findings, of_suite

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


# -- streams ------------------------------------------------------------------------------------------------------


def test_what_python_loses() -> None:
    assert [one.share for one in losses(evidence(), "numba")] == pytest.approx([0.15] * 7, abs=0.01)
    finding = told("memory.python")
    assert finding.severity == "advice"
    assert "CuPy loses up to 4.0 %" in finding.title
    assert "Numba loses up to 15" in finding.title
    assert finding.title.count("as fast in 0 of 7") == 2
    light = without("memory_stream", WHOLE, implementation="numba")
    assert told("memory.python", light).severity == "note"
    assert silent("memory.python", without("memory_stream", light, implementation="cupy"))


def test_python_that_is_as_fast_is_named_and_so_is_python_that_is_faster() -> None:
    run = scaled("memory_stream", "bandwidth", 1 / 0.96, WHOLE, implementation="cupy")
    run = scaled("memory_stream", "bandwidth", 1.05, run, implementation="cupy", kernel="triad")
    run = scaled("memory_stream", "bandwidth", 0.36, run, implementation="cupy", kernel="write")
    run = scaled("memory_stream", "bandwidth", 0.5, run, implementation="cupy", kernel="dot")
    finding = told("memory.python", run)
    assert "CuPy loses up to 64.0 % (write), as fast in 5 of 7" in finding.title
    assert (
        "CuPy: write 1.37 TB/s of 3.80 TB/s (36.0 %), dot 1.86 TB/s of 3.72 TB/s (50.0 %); equal in read, copy, scale "
        "and add; FASTER than CUDA C++ in triad by 5.0 % (3.82 TB/s)." in finding.text
    )
    assert "`cupy.cuda.runtime.memset`" in finding.text
    assert "ReductionKernel" in finding.text
    assert "CuPy's multiply" not in finding.text
    equal = scaled("memory_stream", "bandwidth", 1 / 0.96, WHOLE, implementation="cupy")
    assert "CuPy is as fast" in told("memory.python", equal).title


def test_sizes_that_few_kernels_fit_are_not_the_ones_that_are_shown() -> None:
    large = changed(
        lambda one: (
            None
            if one.case.params.get("size_bytes") == GIB
            and one.case.benchmark == "memory_stream"
            and one.case.params["kernel"] != "read"
            else one
        ),
        WHOLE,
    )
    assert largest_bytes(evidence(large)) == 256 * MIB
    assert largest_bytes(evidence()) == GIB


def test_arrays_that_stay_in_the_l2_are_called_so() -> None:
    finding = told("memory.resident")
    assert finding.title == "Arrays up to 4 MiB stay in the L2: their rates are not the memory's"
    assert "6.08 TB/s" in finding.text
    assert "3.80 TB/s" in finding.text
    assert silent("memory.resident", without("memory_stream", WHOLE, size_bytes=4 * MIB))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grid_16B_x1_t128", "16-byte accesses, 1 a thread, no loop, blocks of 128"),
        ("steps_16B_x4_b4", "16-byte accesses, 4 a thread, grid-stride loop, 4 blocks an SM"),
        ("grid_32B_x4_t256", "32-byte accesses, 4 a thread, no loop, blocks of 256"),
        ("bulk_16384B_x2_t128_b4", "bulk copies of 16 KiB, 2 stages, blocks of 128, 4 blocks an SM"),
        ("bulk_16384B_x4_b2_t256", "bulk copies of 16 KiB, 4 stages, blocks of 256, 2 blocks an SM"),
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
    assert "write, copy, scale, add and triad: 16-byte accesses, 1 a thread" in finding.text


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
    assert "With 16.0 KiB, the next less that was tried, 1.88 TB/s." in finding.text
    assert "Little" not in told("memory.under_way", without("memory_latency", WHOLE)).text


def test_only_what_reaches_enough_is_recommended() -> None:
    """As many bytes under way by fewer threads need not be as fast."""
    run = scaled("memory_occupancy", "bandwidth", 0.7, WHOLE, loads=4, block_threads=128, blocks_per_sm=4)
    least = needed(flights(evidence(run)))
    assert least is not None
    assert ways(flights(evidence(run)), least) == ["2048 threads with 1 load of 16 bytes each"]


def test_where_the_least_is_enough_nothing_is_told() -> None:
    few = without("memory_occupancy", WHOLE, loads=1)
    few = without("memory_occupancy", few, block_threads=128)
    assert silent("memory.under_way", few)


# -- other accesses -----------------------------------------------------------------------------------------------


def test_the_sector_shows_in_strides() -> None:
    read, write = apart(evidence(), "read"), apart(evidence(), "write")
    assert read is not None
    assert write is not None
    assert (read.whole_bytes, write.whole_bytes) == (32, 64)
    finding = told("memory.stride")
    assert finding.title == "Words 32 B apart keep 12.5 % of the useful bandwidth (read)"
    assert "Read up to 32 B apart, a word costs as much as all bytes from it to the next" in finding.text
    assert "Written up to 64 B apart" in finding.text
    assert "a word costs 32 bytes in a row" in finding.text
    assert "a word costs 64 bytes in a row" in finding.text
    assert silent("memory.stride", without("memory_stride", WHOLE, stride_bytes=4))


def test_random_accesses_are_held_against_the_stream() -> None:
    finding = told("memory.random")
    assert finding.title == "Random 8-byte words a second over 1 GiB: gather 32.0 G, scatter 25.0 G, update 12.0 G"
    assert (
        "Over 1 GiB 32.0 G words/s are read, one in the time of 118 bytes of the streaming read; over 16 MiB 2.8× as "
        "many." in finding.text
    )
    assert "streaming" not in told("memory.random", only("memory_random")).text


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
    assert finding.title == "cuMemcpyDtoD within the GPU: 2.00 µs at 4 KiB, 3.49 TB/s at 1 GiB"
    assert "takes 2.00 µs + V / 3.50 TB/s, half of that rate at V = 6.68 MiB" in finding.text
    assert finding.severity == "note"
    assert "Rows that lie apart" not in finding.text
    quick = told("memory.copy", make_memory_run(preset="quick"))
    assert quick.title == "cuMemcpyDtoD within the GPU reaches 96.9 % of a kernel's copy"
    rowwise = told("memory.copy", scaled("memory_copy", "bandwidth", 0.4, WHOLE, way="copy_2d"))
    assert rowwise.severity == "advice"
    assert "at 1 GiB the 2D copy reaches 37.6 % of the plain one" in rowwise.text
    slow = scaled("memory_copy", "bandwidth", 0.5, WHOLE, way="copy")
    assert told("memory.copy", slow).severity == "advice"


def test_a_pool_against_malloc() -> None:
    finding = told("memory.allocate")
    assert finding.title == "cudaMalloc and cudaFree of 64 MiB take 288 µs, a pool 999 ns (288×)"
    assert "stream-ordered pool 601 ns" in finding.text
    assert "Take memory from a pool" in finding.text
    assert finding.text.endswith("Pin host memory once and keep it.")
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
    assert told("memory.energy").title == "Moving data costs 125 pJ/B (copy, 450 W)"
    assert "a cache" not in told("memory.energy").text
    assert "a cache" not in told("memory.energy", FULL).text
    cheaper = scaled("memory_energy", "energy", 2.5, FULL, size_bytes=16 * MIB, load="read")
    assert (
        "On arrays of 16 MiB read takes 44.7 pJ/B: what a cache holds saves energy"
        in told("memory.energy", cheaper).text
    )
    without_idle = without("memory_energy", WHOLE, load="idle")
    assert "idle" not in told("memory.energy", without_idle).text
    limited = with_gpu(lambda gpu: msgspec.structs.replace(gpu, power_limit_w=700.0), WHOLE)
    assert "Power reaches 65.0 % of the board's 700 W" in told("memory.energy", limited).text


def test_made_rows_are_of_the_shape_that_benchmarks_give() -> None:
    """A stand-in that drifts from the benchmarks would test words that nobody reads."""
    for info in (one for one in WHOLE.benchmarks if one.suite == "memory"):
        named = {metric.name for metric in info.metrics}
        given = {one.metric for outcome in WHOLE.outcomes if outcome.case.benchmark == info.name
                 for one in outcome.measurements}  # fmt: skip
        assert given == named
    assert any(fact == Fact("memory_holders", "nobody else", "made up") for one in WHOLE.outcomes for fact in one.facts)
    assert L2_BYTES == 48 * MIB

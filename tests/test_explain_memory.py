"""Findings of the memory suite: streams, accesses, copies, allocation, capacity and energy."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import CAPACITY, GIB, MIB, make_memory_run
from make_run import make_run
from memory_evidence import FULL, WHOLE, check_shape, evidence, findings, only, with_facts

from microbench.core.model import Run
from microbench.explain.memory_access import apart, contention, engine, flights, little_bytes, needed, ways
from microbench.explain.memory_allocation import draws
from microbench.explain.memory_stream import largest_bytes, losses, shape_words
from microbench.explain.rules import of_suite

MEMORY = [info.name for info in WHOLE.benchmarks if info.suite == "memory"]

# -- the whole ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [WHOLE, FULL, make_memory_run(preset="quick", rounds=3)])
def test_findings_are_short(run: Run) -> None:
    by_rule = findings(run)
    by_rule.pop("memory.rounds", None)
    assert len(by_rule) >= 7
    for finding in by_rule.values():
        check_shape(finding)


@pytest.mark.parametrize(
    ("rule", "severity", "figures"),
    [
        ("memory.verdict", "good", ("94.0 %", "4.00 TB/s", "91.0 %")),
        ("memory.python", "advice", ("CuPy up to 4.0 %", "Numba up to 15")),
        ("memory.resident", "note", ("4 MiB", "6.08 TB/s", "3.80 TB/s")),
        ("memory.levels", "note", ("L1 31.9 TB/s", "L2 11.0 TB/s", "DRAM 3.76 TB/s")),
        ("memory.latency", "note", ("L1 16.6 ns", "L2 132 ns", "DRAM 282 ns")),
        ("memory.l2_modes", "note", ("262 and 421 cycles", "51.0 %")),
        ("memory.tlb", "note", ("2.00 GiB", "559 cycles", "849 cycles")),
        ("memory.in_flight", "note", ("90 %", "32.0 KiB", "7.8")),
        ("memory.stride", "note", ("32 B", "12.5 %")),
        ("memory.random", "note", ("32.0 G words/s", "118 bytes", "2.8×")),
        ("memory.atomic", "advice", ("1083×", "2.40 GOP/s", "2.60 TOP/s")),
        ("memory.copy", "note", ("96.9 %", "2.00 µs + V / 3.50 TB/s")),
        ("memory.allocate", "advice", ("64 MiB", "288 µs", "999 ns", "288×")),
        ("memory.capacity", "note", ("79.0 GiB", "80.0 GiB", "98.7 %", "nobody else")),
        ("memory.energy", "note", ("125 pJ/B (copy, 450 W)",)),
    ],
)
def test_the_made_run_gives_these_findings(rule: str, severity: str, figures: tuple[str, ...]) -> None:
    finding = findings()[rule]
    assert finding.severity == severity
    assert [figure for figure in figures if figure not in f"{finding.title} {finding.text}"] == []


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("memory.resident", without("memory_stream", WHOLE, size_bytes=4 * MIB)),
        (
            "memory.in_flight",
            without("memory_occupancy", without("memory_occupancy", WHOLE, loads=1), block_threads=128),
        ),
        ("memory.stride", without("memory_stride", WHOLE, stride_bytes=4)),
        ("memory.atomic", without("memory_atomic", WHOLE, spread="same")),
        ("memory.allocate", without("memory_allocate", WHOLE, way="malloc")),
        ("memory.l2_modes", with_facts("memory_latency", l2_modes=1, l2_near=None, l2_far=None)),
    ],
)
def test_a_rule_without_its_rows_is_silent(rule: str, run: Run) -> None:
    assert rule not in findings(run)


def test_without_memory_rows_there_are_no_findings() -> None:
    assert of_suite(evidence(make_run()), "memory") == []


@pytest.mark.parametrize("name", MEMORY)
def test_each_benchmark_is_explained_alone_and_may_be_missing(name: str) -> None:
    assert findings(only(name))
    assert findings(without(name, WHOLE))


def test_a_gpu_without_any_properties_is_explained() -> None:
    unknown = make_memory_run(
        l2_bytes=None, sm_count=None, sm_clock_max_hz=None, memory_clock_max_hz=None, memory_bus_bits=None, ecc=None
    )
    assert findings(unknown)["memory.verdict"].severity == "note"
    assert "memory.over_limit" not in findings(unknown)


def test_made_rows_have_the_metrics_of_the_benchmarks() -> None:
    """A stand-in that drifts from the benchmarks would test words that nobody reads."""
    for info in (info for info in WHOLE.benchmarks if info.suite == "memory"):
        outcomes = [outcome for outcome in WHOLE.outcomes if outcome.case.benchmark == info.name]
        given = {measurement.metric for outcome in outcomes for measurement in outcome.measurements}
        assert given == {metric.name for metric in info.metrics}, f"make_memory_run.py: make the metrics of {info.name}"


# -- streams ------------------------------------------------------------------------------------------------------


def faster(factor: float, run: Run, **params: str) -> Run:
    return scaled("memory_stream", "bandwidth", factor, run, **params)


def test_what_python_loses() -> None:
    assert [loss.share for loss in losses(evidence(), "numba")] == pytest.approx([0.15] * 7, abs=0.01)
    light = without("memory_stream", WHOLE, implementation="numba")
    assert findings(light)["memory.python"].severity == "note"
    assert "memory.python" not in findings(without("memory_stream", light, implementation="cupy"))


def test_kernels_in_which_python_is_equal_or_faster_are_named() -> None:
    equal = faster(1 / 0.96, WHOLE, implementation="cupy")
    assert "CuPy none" in findings(equal)["memory.python"].title
    run = faster(1.05, equal, implementation="cupy", kernel="triad")
    run = faster(0.36, run, implementation="cupy", kernel="write")
    run = faster(0.5, run, implementation="cupy", kernel="dot")
    finding = findings(run)["memory.python"]
    assert "64.0 % (write)" in finding.title
    assert "as fast in read, copy, scale and add and faster in triad" in finding.text
    assert "fill" in finding.advice
    assert "cupy.cublas.dot" in finding.advice
    assert "multiply" not in finding.advice


def test_sizes_that_few_kernels_fit_are_not_shown() -> None:
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


# -- bytes in flight ----------------------------------------------------------------------------------------------


def test_how_many_bytes_must_be_in_flight() -> None:
    every = flights(evidence())
    least = needed(every)
    assert least is not None
    assert least.in_flight_bytes == 32 << 10
    assert ways(every, least) == ["2048 threads with 1 load of 16 bytes", "512 threads with 4 loads of 16 bytes"]
    assert little_bytes(evidence(), 3.76e12) == pytest.approx(560 / 1.98e9 * 3.76e12 / 132, rel=0.01)
    assert findings(without("memory_latency", WHOLE))["memory.in_flight"].text == ""


def test_only_what_reaches_enough_is_recommended() -> None:
    """As many bytes in flight by fewer threads need not be as fast."""
    run = scaled("memory_occupancy", "bandwidth", 0.7, WHOLE, loads=4, block_threads=128, blocks_per_sm=4)
    least = needed(flights(evidence(run)))
    assert least is not None
    assert ways(flights(evidence(run)), least) == ["2048 threads with 1 load of 16 bytes"]


# -- other accesses -----------------------------------------------------------------------------------------------


def test_the_sector_shows_in_strides() -> None:
    read, write = apart(evidence(), "read"), apart(evidence(), "write")
    assert read is not None
    assert write is not None
    assert (read.whole_bytes, write.whole_bytes) == (32, 64)
    assert "6.2 %" in findings(without("memory_stride", WHOLE, access="read"))["memory.stride"].title


def test_random_accesses_are_compared_with_streaming_and_with_a_small_set() -> None:
    assert "streaming" not in findings(only("memory_random"))["memory.random"].text
    scatter = without("memory_random", WHOLE, access="gather")
    assert "25.0 G words/s" in findings(scatter)["memory.random"].title
    assert "152 bytes of a streaming write" in findings(scatter)["memory.random"].text


def test_contention_is_a_factor() -> None:
    factors = {(pair.space, pair.dtype): pair.factor for pair in contention(evidence())}
    assert factors["global", "int32"] == pytest.approx(2600 / 2.4, rel=0.01)
    mild = changed(
        lambda one: None if one.case.params.get("space") == "global" and one.case.benchmark == "memory_atomic" else one,
        scaled("memory_atomic", "additions", 5.0, WHOLE, spread="same"),
    )
    assert findings(mild)["memory.atomic"].severity == "note"
    assert findings(mild)["memory.atomic"].advice == ""


# -- the driver ---------------------------------------------------------------------------------------------------


def test_a_fit_of_the_drivers_copies_gives_back_its_constants() -> None:
    fit = engine(evidence(), "copy")
    assert fit is not None
    assert fit.fixed_s == pytest.approx(2e-6, rel=0.01)
    assert fit.bandwidth == pytest.approx(3.5e12, rel=0.01)
    alone = findings(only("memory_copy"))["memory.copy"]
    assert "2.00 µs + V / 3.50 TB/s" in alone.title


def test_the_drivers_copy_against_a_kernels() -> None:
    assert findings(make_memory_run(preset="quick"))["memory.copy"].text == ""
    slow = findings(scaled("memory_copy", "bandwidth", 0.5, WHOLE, way="copy"))["memory.copy"]
    assert slow.severity == "advice"
    assert "48.5 %" in slow.title


def test_a_slow_2d_copy_is_a_finding_of_its_own() -> None:
    assert "memory.copy_2d" not in findings()
    finding = findings(scaled("memory_copy", "bandwidth", 0.4, WHOLE, way="copy_2d"))["memory.copy_2d"]
    assert finding.severity == "advice"
    assert "37.6 %" in finding.title


def test_a_pool_against_malloc() -> None:
    cupy = without("memory_allocate", WHOLE, way="pool")
    assert "CuPy's pool 1.81 µs" in findings(cupy)["memory.allocate"].title
    slow = scaled("memory_allocate", "allocate", 0.001, WHOLE, way="pool")
    assert findings(slow)["memory.allocate"].severity == "note"


def test_how_much_memory_can_be_allocated() -> None:
    holes = findings(with_facts("memory_capacity", largest_block_bytes=CAPACITY["obtainable_bytes"] // 2))
    assert holes["memory.capacity"].severity == "advice"
    hidden = findings(with_facts("memory_capacity", obtainable_bytes=None, largest_block_bytes=None))
    assert "others are there" in hidden["memory.capacity"].text
    assert hidden["memory.capacity"].severity == "note"


def test_energy_of_a_byte_and_what_is_above_idle() -> None:
    by_load = {draw.load: draw for draw in draws(evidence())}
    assert by_load["read"].energy.value == pytest.approx(420 / (0.94 * 4e12), rel=0.01)
    assert by_load["read"].above_idle == pytest.approx(300 / (0.94 * 4e12), rel=0.01)
    without_idle = without("memory_energy", WHOLE, load="idle")
    assert {draw.above_idle for draw in draws(evidence(without_idle))} == {None}
    limited = with_gpu(lambda gpu: msgspec.structs.replace(gpu, power_limit_w=700.0), WHOLE)
    assert "64.3 %" in findings(limited)["memory.energy"].text


def test_energy_of_a_byte_in_small_arrays() -> None:
    assert findings(FULL)["memory.energy"].advice == ""
    cheaper = scaled("memory_energy", "energy", 2.5, FULL, size_bytes=16 * MIB, load="copy")
    finding = findings(cheaper)["memory.energy"]
    assert "16 MiB" in finding.text
    assert "50.0 pJ/B" in finding.text
    assert finding.advice != ""

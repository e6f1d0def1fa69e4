"""The rules of the memory suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import CAPACITY, GIB, MIB, make_memory_run
from memory_evidence import FULL, WHOLE, evidence, findings, only, with_facts
from msgspec.structs import replace
from read_findings import check

from microbench.core.model import Outcome, Run
from microbench.explain.memory_access import apart, contention, engine, flights, little_bytes, needed, ways
from microbench.explain.memory_allocation import draws
from microbench.explain.memory_stream import largest_bytes, losses, shape_words
from microbench.explain.memory_verdict import causes


def faster(factor: float, run: Run = WHOLE, **params: str) -> Run:
    """The run with other rates of streams."""
    return scaled("memory_stream", "bandwidth", factor, run, **params)


def gpu(run: Run = WHOLE, **other: object) -> Run:
    return with_gpu(lambda one: replace(one, **other), run)


def of_size(size_bytes: int, run: Run) -> Run:
    """The run with streams of that size alone."""

    def asked(one: Outcome) -> Outcome | None:
        other = one.case.benchmark == "memory_stream" and one.case.params["size_bytes"] != size_bytes
        return None if other else one

    return changed(asked, run)


def in_dram(one: Outcome) -> Outcome:
    return replace(one, measurements=tuple(replace(old, bound="dram") for old in one.measurements))


SLOW = faster(0.8)
QUICK = make_memory_run(preset="quick")
# The same bandwidth on a bus as narrow as GDDR's, at a clock that nobody lowered.
NARROW = make_memory_run(memory_clock_hz=41.7e9, memory_clock_max_hz=41.7e9, memory_bus_bits=384)
FEW_BYTES = changed(lambda one: one if one.case.params["footprint_bytes"] <= MIB else None, only("memory_levels"))
REPORTED = ("l2_bytes", "sm_count", "sm_clock_max_hz", "memory_clock_max_hz", "memory_bus_bits", "ecc")
UNKNOWN = make_memory_run(**dict.fromkeys(REPORTED))
CUPY = faster(1 / 0.96, implementation="cupy")
SOME_SLOW = faster(
    0.5,
    faster(0.36, faster(1.05, CUPY, implementation="cupy", kernel="triad"), implementation="cupy", kernel="write"),
    implementation="cupy",
    kernel="dot",
)
SCATTER = without("memory_random", WHOLE, access="gather")
LIGHT = without("memory_stream", WHOLE, implementation="numba")
ALONE = without("memory_atomic", scaled("memory_atomic", "additions", 5.0, WHOLE, spread="same"), space="global")
CHEAPER = scaled("memory_energy", "energy", 2.5, FULL, size_bytes=16 * MIB, load="copy")

CASES: list[tuple[str, Run, str, tuple[str, ...]]] = [
    ("memory.verdict", WHOLE, "good", ("DRAM at 94.0 % of its ceiling of 4.00 TB/s (read)", "91.0 %")),
    ("memory.verdict", faster(0.95), "good", ("DRAM at 89.3 % of its ceiling of 4.00 TB/s",)),
    ("memory.verdict", faster(0.9), "warning", ("DRAM at 81.9 % of its ceiling of 4.00 TB/s",)),
    ("memory.verdict", faster(0.5), "problem", ("DRAM at 45.5 % of its ceiling of 4.00 TB/s",)),
    ("memory.verdict", faster(0.8, kernel="triad"), "warning", ("72.8 % of its ceiling of 4.00 TB/s (triad)",)),
    ("memory.verdict", without("memory_occupancy", SLOW), "warning", (": no cause seen", "Compare with another")),
    ("memory.verdict", without("memory_stream", WHOLE), "good", ("94.1 %",)),
    ("memory.verdict", faster(1.2), "warning", ("113 %",)),
    ("memory.verdict", faster(1.06, implementation="cupy", kernel="read"), "good", ("(read by CuPy)",)),
    ("memory.verdict", FEW_BYTES, "note", ("memory_stream",)),
    ("memory.verdict", UNKNOWN, "note", ("not known",)),
    ("memory.over_limit", faster(1.2), "warning", ("114 %", "4.56 TB/s of 4.00 TB/s")),
    (
        "memory.cluster", WHOLE, "note",
        (
            "gives 58.0 B/clk/SM at 185 cycles (clusters of 2)", "45.7 % of the own one's bandwidth",
            "The L2 gives less and answers later", "Keep data that blocks share",
        ),
    ),
    ("memory.cluster", only("memory_cluster"), "note", ("!The L2", "!Keep")),
    (
        "memory.bulk", only("memory_bulk"), "note",
        ("at 3.73 TB/s from 1 GiB, 110 % of what loads reach", "Pieces of 512 B give 59.9 %", "at least 2 KiB"),
    ),
    (
        "memory.over_limit", scaled("memory_levels", "per_clock", 2.0, WHOLE, space="shared"), "warning",
        ("254 B/clk/SM of 128 B/clk/SM",),
    ),
    ("memory.clock", make_memory_run(memory_clock_hz=2.4e9), "warning", ("2.40 GHz", "2.50 GHz", "4.0 %")),
    ("memory.python", WHOLE, "advice", ("CuPy up to 4.0 %", "Numba up to 15")),
    ("memory.python", LIGHT, "note", ("CuPy up to 4.0 %", "!Numba")),
    ("memory.python", CUPY, "advice", ("CuPy none",)),
    (
        "memory.python", SOME_SLOW, "advice",
        (
            "64.0 % (write)", "as fast in read, copy, scale and add and faster in triad", "fill", "cupy.cublas.dot",
            "!multiply",
        ),
    ),
    ("memory.resident", WHOLE, "note", ("4 MiB", "6.08 TB/s", "3.80 TB/s")),
    (
        "memory.levels", WHOLE, "note",
        ("L1 31.9 TB/s", "L2 11.0 TB/s", "DRAM 3.76 TB/s", "192 KiB (L1) or 32 MiB (L2)", "!up to"),
    ),
    ("memory.levels", QUICK, "note", ("!Keep",)),
    ("memory.writes", WHOLE, "note", ("8.7", "TB/s, 80.", "of the rate of its reads", "move 9.8")),
    ("memory.writes", only("memory_writes"), "note", ("8.7", "!of its reads")),
    ("memory.writes", without("memory_writes", WHOLE, access="update"), "note", ("8.7", "!Updates")),
    ("memory.latency", WHOLE, "note", ("L1 16.6 ns", "L2 132 ns", "DRAM 282 ns")),
    ("memory.loaded", WHOLE, "note", ("At 80 % of the bandwidth a read from DRAM takes 1.16×", "full load 1.95×")),
    (
        "memory.loaded", without("memory_loaded", WHOLE, level="dram"), "note", ("a read from the L2 takes 1.1",),
    ),
    ("memory.loaded", without("memory_loaded", WHOLE, load_percent=80), "note", ("At 90 % of the bandwidth", "1.30×")),
    ("memory.l2_modes", WHOLE, "note", ("262 and 421 cycles", "51.0 %")),
    ("memory.tlb", WHOLE, "note", ("2.00 GiB", "559 cycles", "849 cycles")),
    ("memory.in_flight", WHOLE, "note", ("90 %", "32.0 KiB", "7.8")),
    ("memory.in_flight", without("memory_latency", WHOLE), "note", ("!Little",)),
    ("memory.stride", WHOLE, "note", ("32 B", "12.5 %")),
    ("memory.stride", without("memory_stride", WHOLE, access="read"), "note", ("6.2 %",)),
    ("memory.random", WHOLE, "note", ("32.0 G words/s", "118 bytes", "2.8×")),
    ("memory.random", only("memory_random"), "note", ("!streaming",)),
    ("memory.random", SCATTER, "note", ("25.0 G words/s", "152 bytes of a streaming write")),
    ("memory.atomic", WHOLE, "advice", ("1083×", "2.40 GOP/s", "2.60 TOP/s", "Add up")),
    ("memory.atomic", ALONE, "note", ("!Add up",)),
    ("memory.conflicts", WHOLE, "note", ("32-way", "32× slower", "takes 1.00 cycles", "[32][33]")),
    (
        "memory.conflicts", without("memory_conflicts", WHOLE, stride_bytes=128), "note",
        ("16-way", "16× slower"),
    ),
    ("memory.copy", WHOLE, "note", ("96.9 %", "Up to 4 MiB, which stay in the L2", "2.00 µs + V / 6.99 TB/s")),
    ("memory.copy", only("memory_copy"), "note", ("2.00 µs + V / 6.99 TB/s for V bytes read and written, up to 4",)),
    ("memory.copy", gpu(l2_bytes=None), "note", ("96.9 %", "!V / ")),
    ("memory.copy", QUICK, "note", ("!V / ",)),
    ("memory.copy", scaled("memory_copy", "bandwidth", 0.5, WHOLE, way="copy"), "advice", ("48.5 %",)),
    ("memory.copy_2d", scaled("memory_copy", "bandwidth", 0.4, WHOLE, way="copy_2d"), "advice", ("37.6 %",)),
    ("memory.allocate", WHOLE, "advice", ("64 MiB", "288 µs", "999 ns", "288×")),
    ("memory.allocate", without("memory_allocate", WHOLE, way="pool"), "advice", ("CuPy's pool 1.81 µs",)),
    ("memory.allocate", scaled("memory_allocate", "allocate", 0.001, WHOLE, way="pool"), "note", ("!In anything",)),
    ("memory.capacity", WHOLE, "note", ("79.0 GiB", "80.0 GiB", "98.7 %", "nobody else")),
    (
        "memory.capacity", with_facts("memory_capacity", largest_block_bytes=CAPACITY["obtainable_bytes"] // 2),
        "advice", ("Split",),
    ),
    (
        "memory.capacity", with_facts("memory_capacity", obtainable_bytes=None, largest_block_bytes=None), "note",
        ("others are there",),
    ),
    ("memory.energy", WHOLE, "note", ("125 pJ/B (copy, 450 W)", "!limit")),
    ("memory.energy", gpu(power_limit_w=700.0), "note", ("64.3 %",)),
    ("memory.energy", FULL, "note", ("!Keep",)),
    ("memory.energy", CHEAPER, "note", ("16 MiB", "50.0 pJ/B", "Keep data")),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "run", "severity", "words"), CASES)
def test_a_rule_has_its_severity_and_figures(rule: str, run: Run, severity: str, words: tuple[str, ...]) -> None:
    check(findings(run)[rule], severity, *words)


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("memory.verdict", only("memory_allocate")),
        ("memory.over_limit", WHOLE),
        ("memory.over_limit", UNKNOWN),
        ("memory.clock", make_memory_run(memory_clock_hz=2.49e9)),
        ("memory.clock", make_memory_run(memory_clock_hz=2e9, memory_clock_max_hz=None)),
        ("memory.python", without("memory_stream", LIGHT, implementation="cupy")),
        ("memory.resident", without("memory_stream", WHOLE, size_bytes=4 * MIB)),
        (
            "memory.in_flight",
            without("memory_occupancy", without("memory_occupancy", WHOLE, loads=1), block_threads=128),
        ),
        ("memory.stride", without("memory_stride", WHOLE, stride_bytes=4)),
        ("memory.atomic", without("memory_atomic", WHOLE, spread="same")),
        (
            "memory.conflicts",
            without("memory_conflicts", without("memory_conflicts", WHOLE, stride_bytes=4), stride_bytes=132),
        ),
        ("memory.copy_2d", WHOLE),
        ("memory.writes", without("memory_writes", WHOLE, access="write")),
        ("memory.loaded", without("memory_loaded", WHOLE, load_percent=100)),
        ("memory.allocate", without("memory_allocate", WHOLE, way="malloc")),
        ("memory.l2_modes", with_facts("memory_latency", l2_modes=1, l2_near=None, l2_far=None)),
    ],
)
def test_a_rule_without_cause_is_silent(rule: str, run: Run) -> None:
    assert rule not in findings(run)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (gpu(SLOW, other_processes=("python (pid 12)",)), "other processes use this GPU"),
        (gpu(SLOW, mig=True), "a MIG instance"),
        (faster(0.8, NARROW), "ECC takes a part of it"),
        (faster(0.8, make_memory_run(memory_clock_hz=2e9)), "the memory clock is lowered"),
        (SLOW, "too few bytes are in flight"),
    ],
)
def test_causes_of_slow_memory_are_named(run: Run, words: str) -> None:
    assert causes(evidence(run))[0].short == words
    check(findings(run)["memory.verdict"], findings(run)["memory.verdict"].severity, f": {words}")
    assert findings(run)["memory.verdict"].severity in ("warning", "problem")


def test_programs_that_only_draw_and_large_arrays_are_no_cause() -> None:
    slow = without("memory_occupancy", SLOW)
    assert causes(evidence(gpu(slow, other_processes=("Xorg (graphics, pid 3)",)))) == []
    assert causes(evidence(of_size(256 * MIB, slow))) == []
    small = changed(in_dram, of_size(64 * MIB, without("memory_occupancy", FULL)))
    assert [cause.short for cause in causes(evidence(small))] == ["the arrays are small"]


def test_made_rows_have_the_metrics_of_the_benchmarks() -> None:
    """A stand-in that drifts from the benchmarks would test words that nobody reads."""
    for info in (info for info in WHOLE.benchmarks if info.suite == "memory"):
        outcomes = [outcome for outcome in WHOLE.outcomes if outcome.case.benchmark == info.name]
        given = {measurement.metric for outcome in outcomes for measurement in outcome.measurements}
        assert given == {metric.name for metric in info.metrics}, f"make_memory_run.py: make the metrics of {info.name}"


def test_python_loses_a_share_of_the_rate_on_the_largest_arrays() -> None:
    assert [loss.share for loss in losses(evidence(), "numba")] == pytest.approx([0.15] * 7, abs=0.01)
    some = without("memory_stream", WHOLE, size_bytes=GIB)
    read = {"size_bytes": GIB, "kernel": "read"}.items()
    run = replace(some, outcomes=(*some.outcomes, *(one for one in WHOLE.outcomes if read <= one.case.params.items())))
    assert largest_bytes(evidence(run)) == 256 * MIB, "few kernels fit the largest size"
    assert largest_bytes(evidence()) == GIB


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grid_16B_x1_t128", "16-byte accesses, 1 a thread, no loop, blocks of 128"),
        ("steps_16B_x4_b4", "16-byte accesses, 4 a thread, grid-stride loop, 4 blocks an SM"),
        ("bulk_16384B_x4_b2_t256", "bulk copies of 16 KiB, 4 stages, blocks of 256, 2 blocks an SM"),
        ("bulk_4096B_x1", "bulk copies of 4 KiB, 1 stage"),
        ("cupy", "cupy"),
        ("wave_16B_x1", "wave_16B_x1"),
        ("grid_16B_x1_q9", "grid_16B_x1_q9"),
        ("", ""),
    ],
)
def test_shapes_in_words(name: str, words: str) -> None:
    assert shape_words(name) == words


def test_how_many_bytes_must_be_in_flight() -> None:
    every = flights(evidence())
    least = needed(every)
    assert least.in_flight_bytes == 32 << 10
    assert ways(every, least) == ["2048 threads with 1 load of 16 bytes", "512 threads with 4 loads of 16 bytes"]
    assert little_bytes(evidence(), 3.76e12) == pytest.approx(560 / 1.98e9 * 3.76e12 / 132, rel=0.01)
    # As many bytes in flight by fewer threads need not be as fast.
    run = scaled("memory_occupancy", "bandwidth", 0.7, WHOLE, loads=4, block_threads=128, blocks_per_sm=4)
    least = needed(flights(evidence(run)))
    assert ways(flights(evidence(run)), least) == ["2048 threads with 1 load of 16 bytes"]


def test_the_sector_shows_in_strides_and_contention_in_additions() -> None:
    read, write = apart(evidence(), "read"), apart(evidence(), "write")
    assert [curve.whole_bytes for curve in (read, write) if curve is not None] == [32, 64]
    factors = {(pair.space, pair.dtype): pair.factor for pair in contention(evidence())}
    assert factors["global", "int32"] == pytest.approx(2600 / 2.4, rel=0.01)


def test_a_fit_of_the_drivers_copies_gives_back_its_constants() -> None:
    fit = engine(evidence(), "copy")
    assert fit is not None
    assert fit.fixed_s == pytest.approx(2e-6, rel=0.01)
    assert fit.bandwidth == pytest.approx(7e12, rel=0.01), "that of the L2: larger copies run at another pace"
    assert [size for size, _ in fit.points] == [4 << 10, 256 << 10, 4 << 20]


def test_energy_of_a_byte_and_what_is_above_idle() -> None:
    by_load = {draw.load: draw for draw in draws(evidence())}
    assert by_load["read"].energy.value == pytest.approx(420 / (0.94 * 4e12), rel=0.01)
    assert by_load["read"].above_idle == pytest.approx(300 / (0.94 * 4e12), rel=0.01)
    without_idle = without("memory_energy", WHOLE, load="idle")
    assert {draw.above_idle for draw in draws(evidence(without_idle))} == {None}

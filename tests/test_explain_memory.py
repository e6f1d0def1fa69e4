"""The rules of the memory suite: severity and figures on made runs, silence without cause, and their facts."""

import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import GIB, MIB, make_memory_run
from memory_evidence import FULL, WHOLE, evidence, findings
from msgspec.structs import replace
from read_findings import check

from microbench.core.model import Outcome, Run
from microbench.explain.memory_access import contention, engine, flights, little_bytes, needed
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
# The same bandwidth on a bus as narrow as GDDR's, at a clock that nobody lowered.
NARROW = make_memory_run(memory_clock_hz=41.7e9, memory_clock_max_hz=41.7e9, memory_bus_bits=384)


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
    assert little_bytes(evidence(), 3.76e12) == pytest.approx(560 / 1.98e9 * 3.76e12 / 132, rel=0.01)


def test_contention_shows_in_additions() -> None:
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

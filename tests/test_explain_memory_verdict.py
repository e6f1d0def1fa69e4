"""The verdict on memory, its causes, and figures above their ceiling."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import MIB, make_memory_run
from memory_evidence import WHOLE, only, silent, told

from microbench.core.model import GpuInfo, Run


def slower(factor: float, run: Run = WHOLE) -> Run:
    return scaled("memory_stream", "bandwidth", factor, run)


def gpu(**other: object) -> Run:
    def change(one: GpuInfo) -> GpuInfo:
        return msgspec.structs.replace(one, **other)

    return slower(0.8, with_gpu(change, WHOLE))


def narrow() -> Run:
    """The same bandwidth on a bus as narrow as GDDR's, at a clock that nobody lowered."""
    return make_memory_run(memory_clock_hz=41.7e9, memory_clock_max_hz=41.7e9, memory_bus_bits=384)


def test_sound_memory_has_one_line() -> None:
    finding = told("memory.verdict")
    assert finding.severity == "good"
    assert finding.title == (
        "DRAM at 94.0 % of 4.00 TB/s (HBM, 2500 MHz x 2 x 6400 bit); L2 42.0 B/clk/SM, L1 122; read latency L1 16.6, "
        "L2 132, DRAM 282 ns"
    )
    assert "triad 3.64 TB/s (91.0 %)" in finding.text


def test_gddr_is_not_called_hbm() -> None:
    title = told("memory.verdict", narrow()).title
    assert "(41700 MHz x 2 x 384 bit)" in title


@pytest.mark.parametrize(("factor", "severity"), [(1.0, "good"), (0.95, "good"), (0.9, "warning"), (0.5, "problem")])
def test_how_far_from_the_ceiling_decides(factor: float, severity: str) -> None:
    assert told("memory.verdict", slower(factor)).severity == severity


def test_a_triad_that_is_too_slow_is_shown_though_reads_are_sound() -> None:
    finding = told("memory.verdict", scaled("memory_stream", "bandwidth", 0.8, WHOLE, kernel="triad"))
    assert finding.severity == "warning"
    assert finding.title.startswith("DRAM at 72.8 % of 4.00 TB/s")


def test_nothing_seen_is_said() -> None:
    slow = without("memory_occupancy", slower(0.8))
    finding = told("memory.verdict", slow)
    assert ": no cause seen" in finding.title
    assert "compare with another board" in finding.text


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (gpu(other_processes=("python (pid 12)",)), "other processes use this GPU"),
        (gpu(mig=True), "a MIG instance"),
        (slower(0.8, narrow()), "ECC takes a part of it"),
        (slower(0.8, make_memory_run(memory_clock_hz=2e9)), "the memory clock is lowered"),
        (slower(0.8), "too little is under way"),
    ],
)
def test_causes_are_named(run: Run, words: str) -> None:
    assert f": {words};" in told("memory.verdict", run).title


def test_programs_that_only_draw_are_no_cause() -> None:
    drawing = without("memory_occupancy", gpu(other_processes=("Xorg (graphics, pid 3)",)))
    assert ": no cause seen" in told("memory.verdict", drawing).title


def test_small_arrays_are_a_cause() -> None:
    small = changed(
        lambda one: (
            None if one.case.benchmark == "memory_stream" and one.case.params["size_bytes"] != 256 * MIB else one
        ),
        without("memory_occupancy", slower(0.8)),
    )
    assert ": no cause seen" in told("memory.verdict", small).title
    run = make_memory_run(preset="full")
    run = changed(
        lambda one: (
            one if one.case.benchmark == "memory_stream" and one.case.params["size_bytes"] == 64 * MIB else None
        ),
        run,
    )
    tiny = with_gpu(lambda one: msgspec.structs.replace(one, l2_bytes=16 * MIB), run)
    bounded = changed(
        lambda one: msgspec.structs.replace(
            one, measurements=tuple(msgspec.structs.replace(old, bound="dram") for old in one.measurements)
        ),
        tiny,
    )
    assert ": the arrays are small" in told("memory.verdict", slower(0.5, bounded)).title


def test_a_lowered_memory_clock_is_a_finding() -> None:
    finding = told("memory.clock", make_memory_run(memory_clock_hz=2.4e9))
    assert finding.severity == "warning"
    assert finding.title == "The memory ran at 2.40 GHz of 2.50 GHz: 4.0 % below its maximum"
    assert silent("memory.clock", make_memory_run(memory_clock_hz=2.49e9))
    assert silent("memory.clock", make_memory_run(memory_clock_hz=2e9, memory_clock_max_hz=None))


def test_without_streams_the_levels_are_judged() -> None:
    finding = told("memory.verdict", without("memory_stream", WHOLE))
    assert finding.severity == "good"
    assert finding.title.startswith("DRAM at 94.1 % of 4.00 TB/s")


def test_without_any_figure_of_dram_there_is_no_verdict() -> None:
    finding = told("memory.verdict", only("memory_latency"))
    assert finding.severity == "note"
    assert finding.title.startswith("No verdict: no streaming kernel on arrays beyond the L2; read latency L1 16.6")
    assert silent("memory.verdict", only("memory_allocate"))


def test_no_figure_above_its_ceiling_without_saying_so() -> None:
    assert silent("memory.over_limit", WHOLE)
    over = slower(1.2)
    finding = told("memory.over_limit", over)
    assert finding.severity == "warning"
    assert "memory clock 2500 MHz x 2 x 6400 bit" in finding.text
    verdict = told("memory.verdict", over)
    assert verdict.severity == "warning"
    assert "more than this ceiling allows" in verdict.title


def test_rates_by_the_clock_have_their_own_unit() -> None:
    over = scaled("memory_levels", "per_clock", 2.0, WHOLE, space="shared")
    finding = told("memory.over_limit", over)
    assert "254 B/clk/SM" in finding.text
    assert "128 B/clk/SM" in finding.text


def test_figures_above_different_ceilings_are_not_mixed() -> None:
    """What is named beside a ceiling is held against that one."""
    over = scaled("memory_levels", "per_clock", 1.5, WHOLE, space="shared")
    over = scaled("memory_levels", "per_clock", 2.0, over, footprint_bytes=16 * MIB, space="global")
    finding = told("memory.over_limit", over)
    assert "footprint_bytes=16384,space=shared] 191 B/clk/SM" in finding.text
    assert "space=global" not in finding.text.split(". The ceiling")[0]
    assert "and 1 more. The ceiling of 128 B/clk/SM" in finding.text


def test_a_figure_by_a_library_says_so() -> None:
    faster = scaled("memory_stream", "bandwidth", 1.06, WHOLE, implementation="cupy", kernel="triad")
    assert "triad 3.71 TB/s (92.6 %, CuPy)" in told("memory.verdict", faster).text
    assert "CuPy" not in told("memory.verdict").text

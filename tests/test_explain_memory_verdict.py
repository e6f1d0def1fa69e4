"""The verdict on memory, its causes, and figures above their ceiling."""

from __future__ import annotations

import msgspec
import pytest
from link_evidence import changed, scaled, with_gpu, without
from make_memory_run import MIB, make_memory_run
from memory_evidence import WHOLE, check_shape, evidence, findings, only

from microbench.analysis.evidence import Finding
from microbench.core.model import Run
from microbench.explain.memory_verdict import causes


def verdict(run: Run = WHOLE) -> Finding:
    return findings(run)["memory.verdict"]


def slower(factor: float, run: Run = WHOLE) -> Run:
    return scaled("memory_stream", "bandwidth", factor, run)


def gpu(**other: object) -> Run:
    return slower(0.8, with_gpu(lambda one: msgspec.structs.replace(one, **other), WHOLE))


def narrow() -> Run:
    """The same bandwidth on a bus as narrow as GDDR's, at a clock that nobody lowered."""
    return make_memory_run(memory_clock_hz=41.7e9, memory_clock_max_hz=41.7e9, memory_bus_bits=384)


@pytest.mark.parametrize(
    ("factor", "severity", "share"),
    [(1.0, "good", "94.0 %"), (0.95, "good", "89.3 %"), (0.9, "warning", "81.9 %"), (0.5, "problem", "45.5 %")],
)
def test_the_share_of_the_ceiling_decides(factor: float, severity: str, share: str) -> None:
    finding = verdict(slower(factor))
    assert finding.severity == severity
    assert f"DRAM at {share} of its ceiling of 4.00 TB/s" in finding.title


def test_sound_memory_shows_reads_and_triad() -> None:
    assert "(read)" in verdict().title
    assert "91.0 %" in verdict().text
    assert verdict().advice == ""


def test_a_slow_triad_is_shown_though_reads_are_sound() -> None:
    finding = verdict(scaled("memory_stream", "bandwidth", 0.8, WHOLE, kernel="triad"))
    assert finding.severity == "warning"
    assert "72.8 % of its ceiling of 4.00 TB/s (triad)" in finding.title


def test_slow_memory_without_a_cause_says_so() -> None:
    finding = verdict(without("memory_occupancy", slower(0.8)))
    assert ": no cause seen" in finding.title
    assert finding.advice != ""


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (gpu(other_processes=("python (pid 12)",)), "other processes use this GPU"),
        (gpu(mig=True), "a MIG instance"),
        (slower(0.8, narrow()), "ECC takes a part of it"),
        (slower(0.8, make_memory_run(memory_clock_hz=2e9)), "the memory clock is lowered"),
        (slower(0.8), "too few bytes are in flight"),
    ],
)
def test_causes_are_named(run: Run, words: str) -> None:
    assert causes(evidence(run))[0].short == words
    finding = verdict(run)
    assert finding.severity in ("warning", "problem")
    assert finding.title.endswith(f": {words}")
    check_shape(finding)


def test_programs_that_only_draw_are_no_cause() -> None:
    drawing = without("memory_occupancy", gpu(other_processes=("Xorg (graphics, pid 3)",)))
    assert causes(evidence(drawing)) == []


def test_small_arrays_are_a_cause() -> None:
    def of_size(size_bytes: int, run: Run) -> Run:
        return changed(
            lambda one: (
                one if one.case.benchmark != "memory_stream" or one.case.params["size_bytes"] == size_bytes else None
            ),
            run,
        )

    assert causes(evidence(of_size(256 * MIB, without("memory_occupancy", slower(0.8))))) == []
    full = without("memory_occupancy", make_memory_run(preset="full"))
    bounded = changed(
        lambda one: msgspec.structs.replace(
            one, measurements=tuple(msgspec.structs.replace(old, bound="dram") for old in one.measurements)
        ),
        of_size(64 * MIB, full),
    )
    assert [cause.short for cause in causes(evidence(bounded))] == ["the arrays are small"]


def test_a_lowered_memory_clock_is_a_finding() -> None:
    finding = findings(make_memory_run(memory_clock_hz=2.4e9))["memory.clock"]
    assert finding.severity == "warning"
    assert [figure in finding.title for figure in ("2.40 GHz", "2.50 GHz", "4.0 %")] == [True] * 3
    assert "memory.clock" not in findings(make_memory_run(memory_clock_hz=2.49e9))
    assert "memory.clock" not in findings(make_memory_run(memory_clock_hz=2e9, memory_clock_max_hz=None))


def test_without_streams_the_levels_are_judged() -> None:
    finding = verdict(without("memory_stream", WHOLE))
    assert finding.severity == "good"
    assert "94.1 %" in finding.title


def test_without_any_figure_of_dram_there_is_no_verdict() -> None:
    small = changed(
        lambda one: one if one.case.params.get("footprint_bytes", 0) <= MIB else None, only("memory_levels")
    )
    assert verdict(small).severity == "note"
    assert "memory_stream" in verdict(small).advice
    assert "memory.verdict" not in findings(only("memory_allocate"))


def test_a_figure_above_its_ceiling_is_a_warning() -> None:
    assert "memory.over_limit" not in findings()
    over = findings(slower(1.2))
    assert over["memory.over_limit"].severity == "warning"
    assert "memory clock 2500 MHz x 2 x 6400 bit" in over["memory.over_limit"].text
    assert over["memory.verdict"].severity == "warning"
    assert "113 %" in over["memory.verdict"].title


def test_rates_by_the_clock_have_their_own_unit() -> None:
    finding = findings(scaled("memory_levels", "per_clock", 2.0, WHOLE, space="shared"))["memory.over_limit"]
    assert "254 B/clk/SM" in finding.text
    assert "128 B/clk/SM" in finding.text


def test_a_figure_by_a_library_names_it() -> None:
    faster = scaled("memory_stream", "bandwidth", 1.06, WHOLE, implementation="cupy", kernel="read")
    assert "(read by CuPy)" in verdict(faster).title

"""Findings on the levels of memory: bandwidth and latency of each, where it ends, and what the L2 itself gives."""

import dataclasses

import pytest
from changed_run import scaled, with_gpu
from compute_evidence import figures, made
from msgspec.structs import replace
from read_findings import by_rule, evidence

from microbench.core.model import Fact, Run, Work
from microbench.explain import memory_levels as levels

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CLOCK_HZ, SMS, L2 = 1.98e9, 132, 48 * MIB
# Bytes a clock and SM, and cycles of a dependent read, up to each working set.
RATES = ((192 * KIB, 122.0), (256 * KIB, 70.0), (32 * MIB, 42.0), (48 * MIB, 20.0), (16 * GIB, 14.4))
CYCLES = (
    (192 * KIB, 33.0), (24 * MIB, 262.0), (32 * MIB, 300.0), (48 * MIB, 480.0), (2 * GIB, 560.0), (16 * GIB, 850.0),
)  # fmt: skip
SETS = (
    *(count * KIB for count in (16, 64, 128, 192, 256, 512)),
    *(count * MIB for count in (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)), GIB, 4 * GIB, 16 * GIB,
)  # fmt: skip
FEW_SETS = (128 * KIB, 4 * MIB, 24 * MIB, 256 * MIB)


def made_levels(sets: tuple[int, ...] = SETS) -> Run:
    """A run of an invented GPU with these sets, whose levels are known."""
    outcomes = []
    for footprint in sets:
        per_clock, cycles = (next(value for reach, value in table if footprint <= reach) for table in (RATES, CYCLES))
        bound = "dram" if footprint >= 4 * L2 else "l2" if 16 * MIB <= footprint <= L2 // 2 else None
        place = {"space": "global", "footprint_bytes": footprint}
        rates = {"bandwidth": per_clock * SMS * CLOCK_HZ, "per_clock": per_clock}
        outcomes.append(figures("memory_levels", rates, bound=bound, work=Work(bytes=1 << 22), **place))
        two = footprint == 4 * MIB
        known = {"l2_near": 262.0, "l2_far": 421.0, "l2_near_share": 0.51} if two else {}
        times = {"latency": cycles / CLOCK_HZ, "cycles": cycles, **({"line_cycles": 300.0} if two else {})}
        facts = tuple(Fact(name, value, "made up") for name, value in known.items())
        outcomes.append(figures("memory_latency", times, facts=facts, **place))
    return made(*outcomes, l2_bytes=L2, sm_count=SMS)


WHOLE = made_levels()


def test_levels_are_found_and_named() -> None:
    found = levels.bandwidth_levels(evidence(WHOLE), "per_clock")
    assert [one.name for one in found] == ["L1", "L2", "DRAM"]
    assert [one.value for one in found] == pytest.approx([122.0, 42.0, 14.4], rel=0.01)
    assert [one.last_bytes for one in found[:2]] == [192 << 10, 32 * MIB]
    assert found[2].first_bytes == 256 * MIB


def test_levels_end_with_the_last_set_that_they_hold() -> None:
    points = levels.footprints(evidence(WHOLE), "memory_levels", "bandwidth")
    found = levels.ends(points, levels.bandwidth_levels(evidence(WHOLE)))
    assert [(level.name, level.last_bytes) for level in found] == [("L1", 192 << 10), ("L2", 32 * MIB)]


def test_levels_measured_far_apart_have_no_known_end() -> None:
    run = made_levels(FEW_SETS)
    quick = evidence(run)
    assert [level.name for level in levels.bandwidth_levels(quick)] == ["L1", "L2", "DRAM"]
    assert levels.ends(levels.footprints(quick, "memory_levels", "bandwidth"), levels.bandwidth_levels(quick)) == []


def test_the_figure_of_the_l2_is_what_it_sends() -> None:
    """On an H200 sets of a few MiB give up to 68 B/clk/SM, while its L2 sends 37."""
    run = WHOLE
    for footprint in (MIB // 2, MIB, 4 * MIB, 8 * MIB):
        for metric in ("bandwidth", "per_clock"):
            run = scaled(run, "memory_levels", metric, 1.6, footprint_bytes=footprint, space="global")
    measured = levels.bandwidth_levels(evidence(run), "per_clock")
    l2 = next(level for level in measured if level.name == "L2")
    assert l2.value == pytest.approx(42.0, rel=0.01)
    assert (l2.first_bytes, l2.last_bytes, l2.together) == (16 * MIB, 32 * MIB, False)
    together = levels.answered_together(levels.footprints(evidence(run), "memory_levels", "per_clock"), measured)
    assert [footprint for footprint, _ in together] == [MIB // 2, MIB, 4 * MIB, 8 * MIB]
    assert by_rule(run, "memory")["memory.levels"].text != by_rule(WHOLE, "memory")["memory.levels"].text


def test_an_l2_that_only_shared_answers_show_has_an_upper_bound() -> None:
    """Where the L2 is small or few sets were measured, none is known to be answered by it alone."""
    run = made_levels(FEW_SETS)
    kept = [one for one in run.outcomes if one.case.params.get("footprint_bytes") != 24 * MIB]
    run = replace(run, outcomes=tuple(kept))
    assert "L2 up to 11.0 TB/s" in by_rule(run, "memory")["memory.levels"].title


def test_a_small_l1_is_not_mistaken_for_the_l2_behind_it() -> None:
    """A T4 has an L1 of 32 or 64 KiB: most of the sets up to 256 KiB are answered by its L2."""
    run = WHOLE
    for footprint in (64, 128, 192):
        run = scaled(run, "memory_levels", "bandwidth", 42 / 122, footprint_bytes=footprint << 10, space="global")
    run = scaled(run, "memory_levels", "bandwidth", 42 / 70, footprint_bytes=256 << 10)
    first = levels.bandwidth_levels(evidence(run))[0]
    assert (first.name, first.last_bytes) == ("L1", 16 << 10)
    assert first.value == pytest.approx(122.0 * 132 * 1.98e9, rel=0.01)


def test_one_odd_point_does_not_end_a_level() -> None:
    odd = scaled(WHOLE, "memory_levels", "bandwidth", 0.5, footprint_bytes=MIB)
    by_name = {one.name: one for one in levels.bandwidth_levels(evidence(odd))}
    assert by_name["L2"].value == pytest.approx(42.0 * 132 * 1.98e9, rel=0.01)
    assert (by_name["L2"].first_bytes, by_name["L2"].last_bytes) == (16 * MIB, 32 * MIB)


def test_without_the_size_of_the_l2_only_the_ends_are_named() -> None:
    unknown = with_gpu(WHOLE, lambda gpu: replace(gpu, l2_bytes=None))
    assert [one.name for one in levels.bandwidth_levels(evidence(unknown))] == ["L1", "DRAM"]


def test_a_crossing_is_straight_in_logarithms() -> None:
    row = evidence(WHOLE).rows("memory_levels", "bandwidth")[0]

    def at(value: float) -> object:
        return dataclasses.make_dataclass("At", ["value"])(value)

    points = [(100, at(16.0)), (400, at(4.0))]
    assert levels.crossing(points, 8.0) == pytest.approx(200.0)
    assert levels.crossing(points, 2.0) is None
    assert levels.crossing([(100, at(16.0)), (401, at(4.0))], 8.0) is None
    assert levels.crossing([(1, row)], row.value) is None


def test_a_rise_within_dram_is_the_reach_of_a_tlb() -> None:
    (reach_bytes,) = levels.steps(evidence(WHOLE))
    assert GIB < reach_bytes < 4 * GIB
    flat = scaled(WHOLE, "memory_latency", "cycles", 560 / 850, footprint_bytes=4 * GIB)
    flat = scaled(flat, "memory_latency", "cycles", 560 / 850, footprint_bytes=16 * GIB)
    assert levels.steps(evidence(flat)) == []

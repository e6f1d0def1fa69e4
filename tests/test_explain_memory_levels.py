"""Findings on the levels of memory: bandwidth and latency of each, where it ends, and what the L2 itself gives."""

import dataclasses

import pytest
from link_evidence import scaled, with_gpu
from make_memory_run import GIB, MIB, make_memory_run
from memory_evidence import WHOLE, evidence, findings
from msgspec.structs import replace

from microbench.core.model import Run
from microbench.explain import memory_levels as levels


def test_levels_are_found_and_named() -> None:
    found = levels.bandwidth_levels(evidence(), "per_clock")
    assert [one.name for one in found] == ["L1", "L2", "DRAM"]
    assert [one.value for one in found] == pytest.approx([122.0, 42.0, 14.4], rel=0.01)
    assert [one.last_bytes for one in found[:2]] == [192 << 10, 32 * MIB]
    assert found[2].first_bytes == 256 * MIB


def test_levels_end_with_the_last_set_that_they_hold() -> None:
    points = levels.footprints(evidence(), "memory_levels", "bandwidth")
    assert levels.ends(points, levels.bandwidth_levels(evidence())) == [
        ("L1", 192 << 10, 256 << 10), ("L2", 32 * MIB, 48 * MIB),
    ]  # fmt: skip


def test_levels_measured_far_apart_have_no_known_end() -> None:
    run = make_memory_run(preset="quick")
    quick = evidence(run)
    assert [level.name for level in levels.bandwidth_levels(quick)] == ["L1", "L2", "DRAM"]
    assert levels.ends(levels.footprints(quick, "memory_levels", "bandwidth"), levels.bandwidth_levels(quick)) == []


def shared_answers(run: Run = WHOLE) -> Run:
    """Sets up to 8 MiB that neighbouring SMs ask for together: more arrives than the L2 sends."""
    for footprint in (MIB // 2, MIB, 4 * MIB, 8 * MIB):
        for metric in ("bandwidth", "per_clock"):
            run = scaled("memory_levels", metric, 1.6, run, footprint_bytes=footprint, space="global")
    return run


def test_the_figure_of_the_l2_is_what_it_sends() -> None:
    """On an H200 sets of a few MiB give up to 68 B/clk/SM, while its L2 sends 37."""
    run = shared_answers()
    measured = levels.bandwidth_levels(evidence(run), "per_clock")
    l2 = next(level for level in measured if level.name == "L2")
    assert l2.value == pytest.approx(42.0, rel=0.01)
    assert (l2.first_bytes, l2.last_bytes, l2.together) == (16 * MIB, 32 * MIB, False)
    together = levels.answered_together(levels.footprints(evidence(run), "memory_levels", "per_clock"), measured)
    assert [footprint for footprint, _ in together] == [MIB // 2, MIB, 4 * MIB, 8 * MIB]
    assert findings(run)["memory.levels"].text != findings()["memory.levels"].text


def test_an_l2_that_only_shared_answers_show_has_an_upper_bound() -> None:
    """Where the L2 is small or few sets were measured, none is known to be answered by it alone."""
    run = make_memory_run(preset="quick")
    kept = [one for one in run.outcomes if one.case.params.get("footprint_bytes") != 24 * MIB]
    run = replace(run, outcomes=tuple(kept))
    assert "L2 up to 11.0 TB/s" in findings(run)["memory.levels"].title


def test_a_small_l1_is_not_mistaken_for_the_l2_behind_it() -> None:
    """A T4 has an L1 of 32 or 64 KiB: most of the sets up to 256 KiB are answered by its L2."""
    run = WHOLE
    for footprint in (64, 128, 192):
        run = scaled("memory_levels", "bandwidth", 42 / 122, run, footprint_bytes=footprint << 10, space="global")
    run = scaled("memory_levels", "bandwidth", 42 / 70, run, footprint_bytes=256 << 10)
    first = levels.bandwidth_levels(evidence(run))[0]
    assert (first.name, first.last_bytes) == ("L1", 16 << 10)
    assert first.value == pytest.approx(122.0 * 132 * 1.98e9, rel=0.01)


def test_one_odd_point_does_not_end_a_level() -> None:
    odd = scaled("memory_levels", "bandwidth", 0.5, WHOLE, footprint_bytes=MIB)
    by_name = {one.name: one for one in levels.bandwidth_levels(evidence(odd))}
    assert by_name["L2"].value == pytest.approx(42.0 * 132 * 1.98e9, rel=0.01)
    assert (by_name["L2"].first_bytes, by_name["L2"].last_bytes) == (16 * MIB, 32 * MIB)


def test_without_the_size_of_the_l2_only_the_ends_are_named() -> None:
    unknown = with_gpu(lambda gpu: replace(gpu, l2_bytes=None), WHOLE)
    assert [one.name for one in levels.bandwidth_levels(evidence(unknown))] == ["L1", "DRAM"]


def test_a_crossing_is_straight_in_logarithms() -> None:
    row = evidence().rows("memory_levels", "bandwidth")[0]

    def at(value: float) -> object:
        return dataclasses.make_dataclass("At", ["value"])(value)

    points = [(100, at(16.0)), (400, at(4.0))]
    assert levels.crossing(points, 8.0) == pytest.approx(200.0)
    assert levels.crossing(points, 2.0) is None
    assert levels.crossing([(100, at(16.0)), (401, at(4.0))], 8.0) is None
    assert levels.crossing([(1, row)], row.value) is None


def test_latency_by_level_in_both_units() -> None:
    assert [one.name for one in levels.latency_levels(evidence())] == ["L1", "L2", "DRAM"]
    cycles = [one.value for one in levels.latency_levels(evidence(), "cycles")]
    assert cycles == pytest.approx([33, 262, 560], rel=0.01)


def test_a_rise_within_dram_is_the_reach_of_a_tlb() -> None:
    (step,) = levels.steps(evidence())
    assert GIB < step.reach_bytes < 4 * GIB
    assert (step.before, step.after) == pytest.approx((560, 850), rel=0.01)
    flat = scaled("memory_latency", "cycles", 850 / 560, WHOLE, footprint_bytes=4 * GIB)
    flat = scaled("memory_latency", "cycles", 850 / 560, flat, footprint_bytes=16 * GIB)
    assert levels.steps(evidence(flat)) == []


def test_the_l2_has_a_near_and_a_far_part() -> None:
    modes = levels.l2_modes(evidence())
    assert (modes.near, modes.far, modes.near_share) == (262.0, 421.0, 0.51)
    assert modes.row.params["footprint_bytes"] == 4 * MIB

"""Findings on the levels of memory: bandwidth and latency of each, where it ends, and what the L2 itself gives."""

import dataclasses
from collections.abc import Iterator

import pytest
import snapshots
from changed_run import scaled, with_gpu
from compute_evidence import figures, made
from msgspec.structs import replace
from read_findings import by_rule, drawn, evidence

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


def changed(metric: str, factor: float, *footprints: int, run: Run = WHOLE, benchmark: str = "memory_levels") -> Run:
    """The run with a figure of these sets multiplied."""
    for footprint in footprints:
        run = scaled(run, benchmark, metric, factor, footprint_bytes=footprint, space="global")
    return run


SOME = (MIB // 2, MIB, 4 * MIB, 8 * MIB)
FEW = made_levels(FEW_SETS)
LATE = (4 * GIB, 16 * GIB)
RUNS: dict[str, Run] = {
    "each level is found, and ends with the last set that it holds": WHOLE,
    "levels measured far apart have no known end": FEW,
    # On an H200 sets of a few MiB give up to 68 B/clk/SM, while its L2 sends 37.
    "the figure of the L2 is what it sends": changed("per_clock", 1.6, *SOME, run=changed("bandwidth", 1.6, *SOME)),
    # Where the L2 is small or few sets were measured, none is known to be answered by it alone.
    "an L2 that only shared answers show has an upper bound": replace(
        FEW, outcomes=tuple(one for one in FEW.outcomes if one.case.params.get("footprint_bytes") != 24 * MIB)
    ),
    # A T4 has an L1 of 32 or 64 KiB: most of the sets up to 256 KiB are answered by its L2.
    "a small L1 is not mistaken for the L2 behind it": changed(
        "bandwidth", 42 / 70, 256 * KIB, run=changed("bandwidth", 42 / 122, 64 * KIB, 128 * KIB, 192 * KIB)
    ),
    "one odd point does not end a level": changed("bandwidth", 0.5, MIB),
    "without the size of the L2 only the ends are named": with_gpu(WHOLE, lambda gpu: replace(gpu, l2_bytes=None)),
    "a rise within DRAM is the reach of a TLB, and flat there is none": changed(
        "cycles", 560 / 850, *LATE, benchmark="memory_latency"
    ),
}


def told(run: Run) -> Iterator[str]:
    """Sets in KiB."""
    known = evidence(run)
    for metric in ("bandwidth", "per_clock"):
        found, points = levels.bandwidth_levels(known, metric), levels.footprints(known, "memory_levels", metric)
        for one in found:
            sets = f"{one.first_bytes >> 10} to {one.last_bytes >> 10}"
            yield f"{metric} of {one.name}: {one.value:.4g} from {sets}, together: {one.together}"
        yield f"ends are known of {[level.name for level in levels.ends(points, found)]}"
        yield f"answered together: {[footprint >> 10 for footprint, _ in levels.answered_together(points, found)]}"
    yield f"reaches of TLBs: {[f'{reach / 1024:.4g}' for reach in levels.steps(known)]}"
    yield drawn(by_rule(run, "memory")["memory.levels"])


def test_what_is_said_of_levels() -> None:
    snapshots.same("levels", snapshots.in_turn({name: told(run) for name, run in RUNS.items()}))


def test_a_crossing_is_straight_in_logarithms() -> None:
    row = evidence(WHOLE).rows("memory_levels", "bandwidth")[0]

    def at(value: float) -> object:
        return dataclasses.make_dataclass("At", ["value"])(value)

    points = [(100, at(16.0)), (400, at(4.0))]
    assert levels.crossing(points, 8.0) == pytest.approx(200.0)
    assert levels.crossing(points, 2.0) is None
    assert levels.crossing([(100, at(16.0)), (401, at(4.0))], 8.0) is None
    assert levels.crossing([(1, row)], row.value) is None

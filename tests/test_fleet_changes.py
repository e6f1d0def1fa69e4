"""Changes of GPUs over campaigns: false alarms and what is found, by simulation with the scatter of recorded runs."""

import math
from functools import cache

import numpy as np
import pytest
from fleet_scatter import Draw, Floats, apart, groups, recorded, together

from microbench.fleet.changes import (
    ANY_TOLD,
    LEAST_CAMPAIGNS,
    LEAST_SIDE,
    Change,
    bar,
    changes,
    levels,
    places,
    scatters,
    smallest,
)
from microbench.fleet.outliers import FREEDOM, LEAST_LOSS, tail

# A rate of 97 %, and of a half.
SLOWER, HALF = -math.log(0.97), math.log(2)
GROUPED = np.array([groups().index(one.group) for one in recorded()])
# Groups in which 3 % is found three campaigns after it, among 16 GPUs and 16 campaigns; see docs/fleet-store.md.
QUIET = (
    "DRAM bandwidth", "L1 bandwidth", "memory_levels bandwidth", "memory_stream bandwidth", "memory_random accesses",
    "memory_stride bandwidth", "link_zero_copy bandwidth", "memory_latency latency", "arithmetic units",
    "tensor cores",
)  # fmt: skip


@cache
def repeated() -> list[float]:
    """How far repeated measurements of a GPU lie apart in each group."""
    shares = np.array([one.share for one in recorded()])
    return [float(np.median(shares[number == GROUPED])) for number in range(len(groups()))]


def series(
    draw: Draw, random: np.random.Generator, campaigns: int, moved: dict[str, tuple[int, float]]
) -> list[Floats]:
    """The series of a GPU in each group; from a place on a group is slower by a size in all of its figures."""
    drawn = draw(random, campaigns)
    for group, (place, size) in moved.items():
        drawn[groups().index(group) == GROUPED, place:] += size
    return [levels(drawn[number == GROUPED]) for number in range(len(groups()))]


Told = tuple[int, str, Change]


def told(draw: Draw, seed: int, gpus: int, campaigns: int, **moved: tuple[int, float]) -> list[Told]:
    """What a report tells of equal GPUs, of which the first has changed in ``moved``: GPU, group and change."""
    random = np.random.default_rng(seed)
    every = [series(draw, random, campaigns, moved if gpu == 0 else {}) for gpu in range(gpus)]
    least_times = bar(gpus * len(groups()) * places(campaigns))
    found = []
    for number, group in enumerate(groups()):
        several = [one[number] for one in every]
        for gpu, scatter in enumerate(scatters(several, [repeated()[number]] * gpus)):
            found += [(gpu, group, change) for change in changes(several[gpu], scatter, least_times)]
    return found


@pytest.mark.parametrize("draw", [together, apart])
def test_nothing_is_told_of_gpus_that_did_not_change(draw: Draw) -> None:
    assert [told(draw, seed, 4, 12) for seed in range(2)] == [[], []]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("gpus", "campaigns"), [(1, LEAST_CAMPAIGNS), (4, 12), (16, 30)])
@pytest.mark.parametrize("draw", [together, apart])
def test_at_most_one_report_of_a_hundred_tells_a_change_without_one(draw: Draw, gpus: int, campaigns: int) -> None:
    assert sum(bool(told(draw, seed, gpus, campaigns)) for seed in range(100)) <= 1


def alarms(reports: int, gpus: int, campaigns: int, larger: float, wild: float) -> int:
    """Reports that tell a change of 40 normal series a GPU, which scatter more than is known and have wild values."""
    random, repeated_s, found = np.random.default_rng(1), 0.004, 0
    least_times = bar(gpus * 40 * places(campaigns))
    for _ in range(reports):
        values = random.normal(0, larger * repeated_s, (40, gpus, campaigns))
        values += (random.random(values.shape) < wild) * random.normal(0, 30 * repeated_s, values.shape)
        found += any(
            changes(several[gpu], scatter, least_times)
            for several in values
            for gpu, scatter in enumerate(scatters(several, [repeated_s] * gpus))
        )
    return found


@pytest.mark.parametrize(("larger", "wild"), [(3, 0), (10, 0), (1, 0.01)])
def test_more_scatter_than_is_known_and_wild_campaigns_are_no_changes(larger: float, wild: float) -> None:
    assert alarms(5, 2, 10, larger, wild) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("larger", "wild"), [(3, 0), (10, 0), (1, 0.02)])
@pytest.mark.parametrize(("gpus", "campaigns"), [(1, LEAST_CAMPAIGNS), (1, 12), (8, 12)])
def test_at_most_one_of_100_reports_has_a_false_alarm(gpus: int, campaigns: int, larger: float, wild: float) -> None:
    assert alarms(200, gpus, campaigns, larger, wild) <= 2


@pytest.mark.parametrize("draw", [together, apart])
def test_a_halved_link_and_a_slightly_slow_memory_are_found_three_campaigns_later(draw: Draw) -> None:
    for before, after in ((LEAST_SIDE, LEAST_SIDE), (12, LEAST_SIDE), (6, 9)):
        moved = {"copies to the GPU": (before, HALF), "DRAM bandwidth": (before, SLOWER)}
        found = {group: (gpu, change) for gpu, group, change in told(draw, 7, 3, before + after, **moved)}
        assert set(found) == set(moved)
        assert {(gpu, change.place) for gpu, change in found.values()} == {(0, before)}
        assert found["copies to the GPU"][1].size == pytest.approx(HALF, rel=0.05)
        assert found["DRAM bandwidth"][1].size == pytest.approx(SLOWER, rel=0.1)
        fewer = before + LEAST_SIDE - 1
        assert told(draw, 7, 3, fewer, **moved) == []  # two campaigns say nothing, whatever they are


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("draw", [together, apart])
def test_changes_are_found_in_95_of_100_campaigns(draw: Draw) -> None:
    for group, size in (("copies to the GPU", HALF), *((group, SLOWER) for group in QUIET)):
        hits = 0
        for seed in range(20):
            found = told(draw, seed, 1, 13 + LEAST_SIDE, **{group: (13, size)})
            hits += [(one, change.place) for _, one, change in found] == [(group, 13)]
        assert hits >= 19, group


def test_a_group_that_scatters_needs_a_larger_change_or_more_campaigns() -> None:
    number = groups().index("matrix products")
    least_times = bar(16 * len(groups()) * places(30))
    early, later = (smallest(repeated()[number], before, 30 - before, least_times) for before in (27, 15))
    assert early > later > 1.5 * SLOWER
    found = told(together, 3, 2, 30, **{"matrix products": (15, 1.5 * later)})
    assert [(gpu, group, change.place) for gpu, group, change in found] == [(0, "matrix products", 15)]
    assert told(together, 3, 2, 30, **{"matrix products": (15, SLOWER)}) == []


def found_in(values: list[float], scatter: float = 0.001) -> list[tuple[int, float]]:
    series = np.array(values)
    return [(one.place, round(one.size, 3)) for one in changes(series, scatter, bar(places(len(series))))]


def test_a_change_lasts_three_campaigns_on_both_sides() -> None:
    assert found_in([0] * 3 + [0.02] * 3) == [(3, 0.02)]
    assert found_in([0] * 3 + [-0.02] * 3) == [(3, -0.02)]  # faster
    assert found_in([0] * 20 + [0.5] * 2) == []
    assert found_in([0] * 2 + [0.5] * 20) == []
    assert found_in([0] * 8 + [0.5] * 2 + [0] * 8) == []
    assert found_in([0] * 5 + [0.5, 0, 0.5, 0, 0.5] + [0] * 4) == []
    assert found_in([0] * 5) == []
    assert found_in([0] * 9 + [LEAST_LOSS - 1e-4] * 9) == []  # not worth acting on
    assert found_in([0] * 9 + [0.02] * 9, scatter=0.01) == []
    assert found_in([0, 0.9, 0, 0, 0, 0, 0.02, 0.02, 0.9, 0.02]) == [(6, 0.02)]  # wild campaigns on both sides


def test_the_scatter_is_the_largest_of_three() -> None:
    quiet, loud = np.zeros(6), np.array([0.0, 0.1, 0.0, 0.1, 0.0, 0.1])
    known = 1.4826 * 0.1 / math.sqrt(2)
    assert scatters([quiet] * 3, [0.01, 0.02, 0]) == [0.01, 0.02, 0]
    assert scatters([quiet, quiet, loud], [0.01] * 3) == pytest.approx([0.01, 0.01, known])
    # That of the class counts for all of it, and for more the fewer campaigns there are.
    alone, several = scatters([loud], [0.01])[0], scatters([loud] * 20 + [quiet], [0.01] * 21)
    assert alone == pytest.approx(known * math.exp(2.4 / math.sqrt(5)))
    assert known < several[0] == several[-1] < 1.3 * known < alone


def test_all_changes_of_a_series_are_found_the_newest_first() -> None:
    assert found_in([0] * 10 + [0.03] * 20 + [0.7] * 3) == [(30, 0.67), (10, 0.03)]
    assert found_in([0] * 10 + [0.5] * 10 + [0] * 10) == [(20, -0.5), (10, 0.5)]
    assert found_in([0] * 100 + [0.5] * 40 + [0.52] * 60) == [(140, 0.02), (100, 0.5)]


def test_a_figure_that_comes_or_goes_is_no_change() -> None:
    nan = math.nan
    steady = [[0.0] * 12, [5.0] * 6 + [nan] * 6, [nan] * 6 + [-7.0] * 6, [nan] * 8 + [3.0] * 4, [nan] * 12]
    assert np.ptp(levels(np.array(steady))) == pytest.approx(0)
    # The newest version of a benchmark begins anew.
    other = levels(np.array([[1.0] * 6 + [nan] * 6, [nan] * 6 + [2.0] * 6]))
    assert np.isnan(other[:6]).all()
    assert np.ptp(other[6:]) == 0
    assert np.isnan(levels(np.array([[1.0] * 6 + [nan] * 3]))).all()
    # The figures that were there before and after say by how much it changed.
    moved = [[0.0] * 6 + [0.1] * 6, [1.0] * 6 + [1.1] * 6, *([nan] * 9 + [value] * 3 for value in (2.0, 3.0, 4.0))]
    level = levels(np.array(moved))
    assert level[6:] - level[:6] == pytest.approx(np.full(6, 0.1))


def test_the_chance_of_any_alarm_is_shared_among_all_places() -> None:
    assert [places(campaigns) for campaigns in (0, 5, 6, 7, 12, 30)] == [0, 0, 1, 1 + 2, 1 + 7, 1 + 7 + 19 + 25]
    for tests in (1, 1000, 10**6):
        assert ANY_TOLD / tests * 0.9 < 2 * tail(bar(tests), FREEDOM) <= ANY_TOLD / tests

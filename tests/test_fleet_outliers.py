"""Outliers among equal GPUs: false alarms and what is found, by simulation with the scatter of recorded runs."""

import math

import numpy as np
import pytest
from fleet_scatter import Draw, apart, campaign, groups, together

from microbench.fleet.outliers import (
    ANY_NAMED,
    LEAST_GPUS,
    LEAST_LOSS,
    Figures,
    Outlier,
    freedom,
    losses,
    outliers,
    scores,
    smallest,
    spread,
    tail,
    times_of,
)

GPUS = 100
# A rate of 97 %, and of a half.
SLOWER, HALF = -math.log(0.97), math.log(2)
LINK = {"copies to the GPU": HALF, "copies from the GPU": HALF, "link_copy bandwidth": HALF}
# Groups in which 3 % is found: their scatter between processes is below 0.4 %.
QUIET = (
    "DRAM bandwidth", "L1 bandwidth", "memory_levels bandwidth", "memory_stream bandwidth", "memory_random accesses",
    "memory_stride bandwidth", "link_zero_copy bandwidth", "memory_latency latency", "arithmetic units",
)  # fmt: skip
# Groups that scatter by more, between 0.5 % and 2 %, so that 3 % may be chance.
NOISY = ("matrix products", "memory_copy bandwidth", "calls on the host")


def named(
    draw: Draw, seed: int, gpus: int = GPUS, slow: dict[str, float] | None = None, boards: float = 0.0
) -> list[Outlier]:
    figures = campaign(draw, np.random.default_rng(seed), gpus, slow, boards)
    return outliers([scores(figures, len(groups()))])[0]


def false_alarms(draw: Draw, campaigns: int, gpus: int, boards: float = 0.0) -> int:
    return sum(bool(named(draw, seed, gpus, None, boards)) for seed in range(campaigns))


@pytest.mark.parametrize("draw", [together, apart])
def test_equal_gpus_are_not_named(draw: Draw) -> None:
    assert false_alarms(draw, 4, GPUS) == 0


@pytest.mark.parametrize("boards", [0.005, 0.015])
def test_sound_boards_may_lie_apart(boards: float) -> None:
    """With a spread of 1.5 % between boards one of five was named in 59 of 100 campaigns."""
    assert false_alarms(together, 30, 5, boards) == false_alarms(apart, 10, 16, boards) == 0


def test_a_class_that_lies_apart_still_shows_a_bad_gpu() -> None:
    slow = {"DRAM bandwidth": -math.log(0.9)}
    assert [len(named(together, seed, 16, slow, 0.005)) for seed in range(4)] == [1] * 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gpus", [LEAST_GPUS, 8, 20, GPUS])
@pytest.mark.parametrize("boards", [0.0, 0.005, 0.015])
@pytest.mark.parametrize("draw", [together, apart])
def test_at_most_one_campaign_of_a_hundred_names_an_equal_gpu(draw: Draw, gpus: int, boards: float) -> None:
    assert false_alarms(draw, 200, gpus, boards) <= 2


@pytest.mark.parametrize("gpus", [5, 8, 11, 16, 64])
def test_the_chance_of_a_loss_is_at_most_what_is_said(gpus: int) -> None:
    """Losses of normal classes over their spread: the share beyond a bar is the tail's, or less."""
    random = np.random.default_rng(gpus)
    classes = random.standard_normal((20_000, gpus))
    classes -= np.median(classes, axis=1)[:, None]
    times = np.concatenate([one / spread(one) for one in classes])
    for chance in (1e-2, 1e-3):
        beyond = float((times > times_of(chance, freedom(gpus))).mean())
        assert chance / 3 < beyond < 1.1 * chance


def test_several_bad_gpus_do_not_hide_each_other() -> None:
    loss = np.random.default_rng(1).normal(0, 0.002, (1, 12))
    loss[0, :3] += 0.5
    figures = Figures(np.zeros(1), loss, np.zeros((1, 12)), np.full((1, 12), 0.002))
    assert {one.gpu for one in outliers([scores(figures, 1)])[0]} == {0, 1, 2}


def found(draw: Draw, campaigns: int, slow: dict[str, float], group: str) -> float:
    """The share of campaigns that name the slow GPU in that group, and no other GPU in any."""
    number, hits = groups().index(group), 0
    for seed in range(campaigns):
        several = named(draw, 1000 + seed, slow=slow)
        assert {one.gpu for one in several} <= {0}
        hits += any(one.group == number for one in several)
    return hits / campaigns


@pytest.mark.parametrize("draw", [together, apart])
def test_a_halved_link_and_a_slightly_slow_memory_are_found(draw: Draw) -> None:
    slow = {**LINK, "DRAM bandwidth": SLOWER}
    assert found(draw, 2, slow, "copies to the GPU") == found(draw, 2, slow, "DRAM bandwidth") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("draw", [together, apart])
def test_slow_gpus_are_found_in_95_of_100_campaigns(draw: Draw) -> None:
    assert found(draw, 100, LINK, "copies from the GPU") >= 0.95
    for group in QUIET:
        assert found(draw, 40, {group: SLOWER}, group) >= 0.95, group


@pytest.mark.parametrize("group", NOISY)
def test_three_percent_of_a_noisy_group_is_not_claimed(group: str) -> None:
    assert found(together, 2, {group: SLOWER}, group) == 0
    figures = campaign(together, np.random.default_rng(1), GPUS)
    one = scores(figures, len(groups()))
    least = dict(zip(groups(), smallest(one, GPUS * len(groups())), strict=True))
    assert least[group] > SLOWER > least["DRAM bandwidth"] >= LEAST_LOSS
    enough = {group: 1.5 * least[group]}
    assert found(together, 2, enough, group) == 1


def equal(gpus: int, slow: float, doubt: float = 0.0, deviation: float = 0.0) -> list[Outlier]:
    """GPUs with one figure each in one group; the first is slower."""
    loss = np.zeros((1, gpus))
    loss[0, 0] = slow
    figures = Figures(np.zeros(1), loss, np.full((1, gpus), doubt), np.full((1, gpus), deviation))
    return outliers([scores(figures, 1)])[0]


def test_a_loss_must_be_worth_acting_on_and_beyond_repeated_measurement() -> None:
    assert [one.gpu for one in equal(10, 0.03)] == [0]
    assert equal(10, LEAST_LOSS - 1e-6) == []
    assert equal(10, 0.03, doubt=0.031) == []  # within the interval of its own figure
    assert equal(10, 0.03, deviation=0.01) == []  # three deviations between repeated measurements
    assert equal(10, -0.5) == []  # faster
    assert equal(LEAST_GPUS - 1, 0.5) == []  # with so few GPUs it is unknown which of them are outliers
    assert equal(5, math.nan) == []


def test_rates_that_fall_and_times_that_rise_are_losses() -> None:
    values = np.array([[1.0, 1.0, 2.0], [4.0, 4.0, 2.0], [1.0, 0.0, np.nan]])
    found = losses(values, np.array([False, True, True]))
    assert found[:2, 2] == pytest.approx([math.log(2), math.log(2)])
    assert np.isnan(found[2]).tolist() == [False, True, True]


def test_the_tail_is_that_of_student_t() -> None:
    # Abramowitz and Stegun, table 26.10, 20 degrees of freedom: t(0.9), t(0.99), t(0.9995).
    assert tail(np.array([0.0, 1.325, 2.528, 3.850]), 20) == pytest.approx([0.5, 0.1, 0.01, 0.0005], rel=2e-3)
    assert tail(np.array([-5.0, 5.0, 1e6]), 1) == pytest.approx(0.5 - np.arctan([-5.0, 5.0, 1e6]) / math.pi, rel=1e-4)
    assert 0 < tail(50, 20) < tail(8, 20) < 1e-6
    assert [float(tail(times_of(1e-6, n), n)) for n in (3, 4.8, 20)] == pytest.approx([1e-6] * 3, rel=0.03)
    assert ANY_NAMED == 0.01

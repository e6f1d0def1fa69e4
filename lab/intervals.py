"""Simulates how often the interval over rounds holds the truth: python lab/intervals.py [TRIALS]. SIMULATED throughout.

It prints lab/measurements/intervals.csv: how many of 100 intervals hold the truth, and their median width over the
truth, by the rule before and by the present one. With controls the rounds of a busy host are known, without them not.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
from collections.abc import Callable
from statistics import median, stdev
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import Interval, follows, rounds_interval, student_factor

Values = npt.NDArray[np.float64]
SEED = 40
# Rounds of a quiet host scatter by 1 %; a busy one takes 1.4 times as long, in two of five rounds, and scatters by 3 %.
QUIET, BUSY, SLOWER, BUSY_SHARE = 0.01, 0.03, math.log(1.4), 0.4
# A drift that lasts: a round resembles the one before. A trend over the run: from so much less to so much more.
DRIFT, MEMORY, TREND = 0.03, 0.5, 0.02


class Host(NamedTuple):
    """Logarithms of the rounds over the truth, trials x rounds, and which of them were busy."""

    rounds: Values
    busy: npt.NDArray[np.bool_]


def quiet(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """One state. The truth is what all rounds scatter about."""
    return Host(random.normal(0, QUIET, (trials, rounds)), np.zeros((trials, rounds), dtype=bool))


def two_states(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """Some rounds are busy. The truth is the figure of the host while it is quiet, which is named as the value."""
    busy = random.random((trials, rounds)) < BUSY_SHARE
    noise = random.normal(0, 1, (trials, rounds)) * np.where(busy, BUSY, QUIET)
    return Host(noise + SLOWER * busy, busy)


def loud(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """A figure that scatters by half of itself, so that plain values reach below zero."""
    return Host(random.normal(0, 0.5, (trials, rounds)), np.zeros((trials, rounds), dtype=bool))


def drift(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """A state that lasts from round to round. The truth is its middle over a long time."""
    values = random.normal(0, DRIFT, (trials, rounds))
    for number in range(1, rounds):
        values[:, number] = MEMORY * values[:, number - 1] + math.sqrt(1 - MEMORY**2) * values[:, number]
    return quiet(random, trials, rounds)._replace(rounds=values + random.normal(0, QUIET, values.shape))


def trend(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """A steady change over the run. The truth is the middle of the run."""
    return quiet(random, trials, rounds)._replace(
        rounds=random.normal(0, QUIET, (trials, rounds)) + np.linspace(-TREND, TREND, rounds)
    )


HOSTS = {"quiet": quiet, "loud": loud, "two states": two_states, "drift": drift, "trend": trend}


Rule = Callable[[list[Interval], tuple[bool, ...]], Interval]


def before(rounds: list[Interval], busy: tuple[bool, ...]) -> Interval:
    """The rule of commit f0505c1: Student's t about the median, on plain values."""
    medians = [one.median for one in rounds]
    half = student_factor(len(rounds)) * stdev(medians) / math.sqrt(len(rounds))
    return Interval(median(medians), median(medians) - half, median(medians) + half)


def without_controls(rounds: list[Interval], busy: tuple[bool, ...]) -> Interval:
    return rounds_interval(rounds)


def with_controls(rounds: list[Interval], busy: tuple[bool, ...]) -> Interval:
    return rounds_interval(rounds, busy=busy if follows([one.median for one in rounds], busy) else ())


class Coverage(NamedTuple):
    """The shares of intervals that hold the truth and that reach below zero, and their median width over the truth."""

    held: float
    below_zero: float
    width: float


def coverage(host: str, rule: Rule, trials: int, rounds: int = 5) -> Coverage:
    drawn = HOSTS[host](np.random.default_rng(SEED), trials, rounds)
    found = [
        rule([Interval(value, value, value) for value in np.exp(row).tolist()], tuple(busy.tolist()))
        for row, busy in zip(drawn.rounds, drawn.busy, strict=True)
    ]
    held = sum(one.low <= 1 <= one.high for one in found) / trials
    return Coverage(held, sum(one.low < 0 for one in found) / trials, median(one.high - one.low for one in found))


def main(trials: int) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("host", "rounds", "controls", "before", "now", "width_before", "width", "below_zero_before"))
    for host, rounds in itertools.product(HOSTS, (3, 5, 10)):
        old = coverage(host, before, trials, rounds)
        for controls, rule in (("no", without_controls), ("yes", with_controls))[: 2 if host == "two states" else 1]:
            new = coverage(host, rule, trials, rounds)
            shares = [f"{100 * share:.1f}" for share in (old.held, new.held)]
            widths = [f"{100 * width:.1f}" for width in (old.width, new.width)]
            table.writerow((host, rounds, controls, *shares, *widths, f"{100 * old.below_zero:.1f}"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20_000)

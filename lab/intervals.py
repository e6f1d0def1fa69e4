"""Simulates how often the interval over rounds holds the truth: python lab/intervals.py [TRIALS]. SIMULATED throughout.

``python lab/intervals.py memory`` says how much a round of recorded runs resembles the one before.
It prints lab/measurements/intervals.csv: how many of 100 intervals hold the truth, and their median width over the
truth, by the rule before and by the present one. With controls the rounds of a busy host are known, without them not.
"""

from __future__ import annotations

import csv
import itertools
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, stdev
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import Interval, follows, rounds_interval, rows, student_factor
from microbench.archive import store

Values = npt.NDArray[np.float64]
SEED = 40
# Rounds of a quiet host scatter by 1 %; a busy one takes 1.4 times as long, in two of five rounds, and scatters by 3 %.
QUIET, BUSY, SLOWER, BUSY_SHARE = 0.01, 0.03, math.log(1.4), 0.4
# A drift that lasts: a round resembles the one before, by as much as in recorded runs, or strongly. A trend over the
# run: from so much less to so much more.
DRIFT, MEMORY, STRONG, TREND = 0.03, 0.14, 0.5, 0.02
RECORDED = (
    "microbench/archive/reference/nvidia-h200.json.gz", "tests/data/quiet-h200.json.xz", "tests/data/busy-h200.json.xz"
)  # fmt: skip


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


def drift(random: np.random.Generator, trials: int, rounds: int, memory: float = MEMORY) -> Host:
    """A state that lasts from round to round. The truth is its middle over a long time."""
    values = random.normal(0, DRIFT, (trials, rounds))
    for number in range(1, rounds):
        values[:, number] = memory * values[:, number - 1] + math.sqrt(1 - memory**2) * values[:, number]
    return quiet(random, trials, rounds)._replace(rounds=values + random.normal(0, QUIET, values.shape))


def trend(random: np.random.Generator, trials: int, rounds: int) -> Host:
    """A steady change over the run. The truth is the middle of the run."""
    return quiet(random, trials, rounds)._replace(
        rounds=random.normal(0, QUIET, (trials, rounds)) + np.linspace(-TREND, TREND, rounds)
    )


HOSTS: dict[str, Callable[[np.random.Generator, int, int], Host]] = {
    "quiet": quiet, "loud": loud, "two states": two_states, "drift": drift,
    "strong drift": partial(drift, memory=STRONG), "trend": trend,
}  # fmt: skip


def alike(rounds: Values) -> Values:
    """The correlation of neighbouring rounds of each row; -0.2 for five independent ones."""
    own = rounds - rounds.mean(1, keepdims=True)
    correlation: Values = (own[:, 1:] * own[:, :-1]).sum(1) / (own**2).sum(1)
    return correlation


def memory() -> tuple[float, float, float]:
    """How much a round of recorded runs resembles the one before, with one standard error less and more. What
    the figures of a benchmark have in common is one series, held against simulated drifts of the same length."""
    found = []
    for name in RECORDED:
        by_benchmark: dict[str, list[list[float]]] = {}
        for row in rows(store.read(Path(__file__).parent.parent / name)):
            medians = [one.interval.median for one in row.summaries]
            if len(medians) == 5 and min(medians) > 0 and row.measurement.clock == "host":
                by_benchmark.setdefault(row.benchmark, []).append(medians)
        logs = [np.log(np.array(own)) for own in by_benchmark.values()]
        found += [np.median(own - own.mean(1, keepdims=True), 0) for own in logs]
    series = alike(np.array(found))
    tried = np.linspace(0, STRONG, 26)
    simulated = [alike(drift(np.random.default_rng(SEED), 50_000, 5, one).rounds).mean() for one in tried]
    error = series.std(ddof=1) / math.sqrt(len(series))
    low, value, high = np.interp(series.mean() + error * np.array([-1, 0, 1]), simulated, tried).tolist()
    return value, low, high


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
    if sys.argv[1:] == ["memory"]:
        print("{:.2f} ({:.2f} to {:.2f})".format(*memory()))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 20_000)

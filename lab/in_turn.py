"""How often `microbench ab` finds a change, and how often it names one between equals: python lab/in_turn.py [TIMES].

SIMULATED from a recorded run of a quiet host. For some seconds at a time all figures of a benchmark are as slow
as in one of the recorded rounds, on a busy host half of the time by 1.5 on top; beside that each figure scatters from
process to process as recorded. A process takes 1.5 s.
It prints lab/measurements/in_turn.csv: of 100 measurements how many name the change, and of a false one; of 100 figures
how many are found; and the pairs until it stops.
"""

from __future__ import annotations

import csv
import math
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.comparison.in_turn import judge, looks

SEED, ROUNDS, MEASURED, PROCESS_S, SLOWER = 40, 10, 5, 1.5, math.log(1.5)
QUIET = Path(__file__).resolve().parent.parent / "tests" / "data" / "quiet-h200.json.xz"
# For how long a host keeps its state, on average, in seconds, and whether it is busy.
HOSTS = {"quiet": (20.0, False), "busy": (20.0, True), "restless": (6.0, True)}
CHANGES = {"launch_cost": (0.0, 0.03, 0.05, 0.1), "graph_lifecycle": (0.0, 0.02, 0.03, 0.05)}
Values = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """What came of ``times`` simulated measurements, as shares; ``pairs`` is a mean."""

    found: float
    figures: float
    alarms: float
    pairs: float


@cache
def recorded(benchmark: str) -> tuple[Values, Values]:
    """How the rounds of a benchmark's host-timed figures scatter, as logarithms: what all did in each round, and the
    rest of each figure (figures x rounds)."""
    own = [row for row in rows(store.read(QUIET)) if row.benchmark == benchmark and row.measurement.clock == "host"]
    logs = np.log([[one.interval.median for one in row.summaries] for row in own if len(row.summaries) == MEASURED])
    logs -= np.median(logs, axis=1, keepdims=True)
    state = np.median(logs, axis=0)
    return state, logs - state


def processes(benchmark: str, keeps_s: float, busy: bool, random: np.random.Generator) -> Values:
    """The figures (rows) in each process of a measurement, in the order of time."""
    state, rest = recorded(benchmark)
    count, place = 2 * ROUNDS, 0
    host = np.empty(count)
    for number in range(count):
        if not number or random.random() < 1 - math.exp(-PROCESS_S / keeps_s):
            place, slow = random.integers(MEASURED), busy and random.random() < 0.5
        host[number] = state[place] + SLOWER * slow
    own = np.take_along_axis(rest, random.integers(0, MEASURED, (len(rest), count)), axis=1)
    return host + own + random.normal(size=own.shape) * rest.std(axis=1, keepdims=True) / 2


def played(benchmark: str, host: str, change: float, times: int) -> Outcome:
    """That many measurements with a ``change`` of all figures of a benchmark, as a share."""
    random = np.random.default_rng(SEED)
    order = np.array([place ^ (pair % 2) for pair in range(ROUNDS) for place in (0, 1)])
    found = figures = alarms = stopped = 0
    for _ in range(times):
        values = processes(benchmark, *HOSTS[host], random)
        shifts = values[:, order == 1] - values[:, order == 0] + math.log1p(change)
        for pairs, allowed in looks(ROUNDS).items():
            judged = judge(shifts[:, :pairs], allowed, ROUNDS)
            if not judged.open.any():
                break
        right = judged.changed & (judged.shift > 0) & (change > 0)
        found += bool(right.any())
        figures += int(right.sum())
        alarms += bool((judged.changed & ~right).any())
        stopped += pairs
    return Outcome(found / times, figures / times / len(shifts), alarms / times, stopped / times)


def main(times: int) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("benchmark", "host", "change", "found", "figures_found", "false_alarms", "pairs"))
    for benchmark, changes in CHANGES.items():
        for host in HOSTS:
            for change in changes:
                one = played(benchmark, host, change, times)
                shares = (f"{100 * share:.1f}" for share in one[:3])
                table.writerow((benchmark, host, f"{100 * change:g}", *shares, f"{one.pairs:.1f}"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1000)

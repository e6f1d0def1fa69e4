"""The smallest shift of a suite that compare finds in 95 of 100 pairs of runs: python lab/shifts.py [PAIRS [DECISION]].

SIMULATED from recorded runs. A simulated round has the common state of a recorded round in all suites and controls at
once, and beside that each benchmark's figures scatter as much, and as much together, as recorded. DECISION is another
decision.py, that of an older commit. It prints lab/measurements/shifts.csv: the smallest shift of all host-timed
figures of a suite that is found, in percent, and in how many of 100 pairs without a shift one is found, too.
"""

from __future__ import annotations

import bisect
import csv
import importlib.util
import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from microbench.analysis.stats import rows
from microbench.archive import store
from microbench.comparison import decision as present
from microbench.comparison.pairs import Pair, figures, has_ratio

SEED, ROUNDS, FOUND = 40, 5, 0.95
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
RUNS = {"quiet": str(DATA / "quiet-h200.json.xz"), "busy": str(DATA / "busy-h200.json.xz"), "bundled": "nvidia-h200"}
SHIFTS = (0, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 50)
Values = npt.NDArray[np.float64]


@dataclass
class Machine:
    """A recorded run as figures: each row's rounds are its group's common state (groups x rounds) and a rest."""

    figures: present.Figures
    names: dict[int, str]
    group: npt.NDArray[np.int64]
    states: Values
    rest: Values


def machine(name: str) -> Machine:
    run = store.read(store.find(RUNS[name]))
    gpus = {gpu.uuid: gpu for session in run.sessions for gpu in session.environment.gpus}
    pairs = [Pair(row, row) for row in rows(run) if len(row.outcomes) == ROUNDS and row.metric.kind != "count"]
    pairs = [pair for pair in pairs if has_ratio(*pair[:2])]
    whole = figures(pairs, gpus)
    # Simulated rounds are those of one session, as `microbench run` measures them.
    whole.session[:] = 0
    kinds = list(zip(whole.suite.tolist(), whole.host.tolist(), whole.control.tolist(), strict=True))
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    group = np.array([numbers[kind] for kind in kinds])
    centred = whole.base - whole.base.mean(axis=1, keepdims=True)
    states = np.array([np.median(centred[group == number], axis=0) for number in numbers.values()])
    names = {number: pair.new.suite for number, pair in zip(whole.suite.tolist(), pairs, strict=True)}
    return Machine(whole, names, group, states, centred - states[group])


def drawn(recorded: Machine, random: np.random.Generator) -> tuple[Values, Values]:
    """Two runs of one machine, between which nothing changed."""
    sides = []
    _, member = np.unique(recorded.figures.family, return_inverse=True)
    for _ in range(2):
        # Rounds drawn from five, and weights of their deviations from the mean of five, vary too little by 4/5.
        state = recorded.states[:, random.integers(0, ROUNDS, ROUNDS)] * np.sqrt(ROUNDS / (ROUNDS - 1))
        weights = random.normal(size=(member.max() + 1, ROUNDS, ROUNDS)) / np.sqrt(ROUNDS - 1)
        sides.append(state[recorded.group] + np.einsum("rk,rkj->rj", recorded.rest, weights[member]))
    return sides[0], sides[1]


def found(name: str, pairs: int, decision: ModuleType = present) -> dict[str, list[float]]:
    """The share of pairs in which a suite's host-timed figures, moved by each of SHIFTS, are said to have changed."""
    recorded, random = machine(name), np.random.default_rng(SEED)
    counts: dict[str, list[int]] = {}
    for _ in range(pairs):
        two = drawn(recorded, random)
        for number, suite in recorded.names.items():
            judge = partial(judged, recorded, two, decision, number)
            if suite != "host" and (alarm := judge(0)) is not None:
                # A larger shift is found wherever a smaller one is.
                least = bisect.bisect_left(range(1, len(SHIFTS)), True, key=judge) + 1
                for place in (*([0] if alarm else []), *range(least, len(SHIFTS))):
                    counts.setdefault(suite, [0] * len(SHIFTS))[place] += 1
    return {suite: [count / pairs for count in several] for suite, several in counts.items()}


def judged(recorded: Machine, two: tuple[Values, Values], decision: ModuleType, suite: int, place: int) -> bool | None:
    """Whether a suite is said to have changed if it moves by SHIFTS[place] from one run to the other; None if it has
    too few figures."""
    whole = recorded.figures
    moved = whole.host & ~whole.control & (whole.suite == suite)
    base, new = two[0], two[1] + moved[:, None] * np.log1p(SHIFTS[place] / 100)
    known = {field.name: getattr(whole, field.name) for field in fields(decision.Figures)}
    pair = decision.Figures(**{**known, "base": base, "new": new})
    one = decision.shifts(pair, base, new).together.get((suite, True))
    return bool(one.changed) if one is not None and one.seen else None


def smallest(shares: list[float]) -> str:
    """The smallest of SHIFTS from which on 95 of 100 pairs are found."""
    enough = [all(share >= FOUND for share in shares[place:]) for place in range(len(SHIFTS))]
    return str(SHIFTS[enough.index(True)]) if any(enough) else f"over {SHIFTS[-1]}"


def main(pairs: int, path: str = "") -> None:
    decisions = {"now": present}
    if path and (spec := importlib.util.spec_from_file_location("other_decision", path)) and spec.loader:
        decisions["before"] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(decisions["before"])
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("run", "suite", *(f"{what}_{when}" for when in decisions for what in ("smallest", "false_alarms"))))
    for name in RUNS:
        results = [found(name, pairs, decision) for decision in decisions.values()]
        for suite in results[0]:
            figures_of = [(smallest(one[suite]), f"{100 * one[suite][0]:.1f}") for one in results]
            table.writerow((name, suite, *(text for two in figures_of for text in two)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 200, *sys.argv[2:3])

"""Recognises the rounds of a run in which the host was busy, by work that no driver and no GPU takes part in."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from microbench.analysis import levels
from microbench.core.model import Run

# Calls from Python and of compiled code, a reading of the clock, a thread that wakes another: times of every round.
CONTROLS = ("host_call", "host_timer", "host_wakeup")
# With a single quiet round nobody knows how far quiet rounds lie apart.
LEAST_QUIET = 2
# A quiet host drifts by 12 % within a minute. Calls of Python layers lie within 5 % of their fastest round there.
QUIET_WITHIN = 0.15


def busy_rounds(run: Run) -> dict[int, frozenset[int]]:
    """The rounds of each session in which the controls lie on the slower of two levels. Other sessions have none.

    The state of a round is the median over the controls of how much slower each is than in its fastest round.
    """
    measured: dict[int, dict[str, dict[int, float]]] = {}
    for outcome in run.outcomes:
        if outcome.case.benchmark in CONTROLS and outcome.measurements and outcome.measurements[0].n:
            first = outcome.measurements[0]
            rounds = measured.setdefault(outcome.session, {}).setdefault(outcome.case.id, {})
            rounds[outcome.round] = float(np.median(first.values)) / first.calls_per_sample
    found = {session: _busy(list(cases.values())) for session, cases in measured.items()}
    return {session: rounds for session, rounds in found.items() if rounds}


def _busy(controls: Sequence[Mapping[int, float]]) -> frozenset[int]:
    """The rounds that all of these controls have, and in which most of them were on the slower level."""
    rounds = sorted(set.intersection(*map(set, controls)))
    costs = np.array([[control[number] for number in rounds] for control in controls])
    if len(rounds) <= LEAST_QUIET or not (np.isfinite(costs).all() and costs.min() > 0):
        return frozenset()
    slowed = np.median(costs / costs.min(axis=1, keepdims=True), axis=0).tolist()
    two = levels.of_rounds(slowed, 0.0)
    between = math.sqrt(math.prod(two)) if two is not None else math.inf
    return frozenset(number for number, slow in zip(rounds, slowed, strict=True) if slow > between)


def follows(costs: Sequence[float], busy: Sequence[bool]) -> bool:
    """Whether a figure is worse in every busy round than in every quiet one, by as much as levels lie apart."""
    quiet, slowed = ([cost for cost, flag in zip(costs, busy, strict=True) if flag == state] for state in (False, True))
    if len(quiet) < LEAST_QUIET or not slowed or max(quiet) >= min(slowed):
        return False
    return levels.middle(sorted(slowed)) > (1 + levels.LEAST_DISTANCE) * levels.middle(sorted(quiet))


def busy_for_calls(costs: Sequence[Sequence[float]]) -> tuple[bool, ...]:
    """The rounds in which a layer's own calls show that the host was busy; nothing if they show no quiet ones beside.

    Each layer of Python has processes of its own, minutes after the controls. ``costs`` are the rounds of its figures,
    of which at least a quarter feels the host.
    """
    values = np.array(costs)
    if values.shape[1] <= LEAST_QUIET or not (np.isfinite(values).all() and values.min() > 0):
        return ()
    slowed = np.quantile(values / values.min(axis=1, keepdims=True), 0.75, axis=0)
    busy = tuple((slowed > 1 + QUIET_WITHIN).tolist())
    return busy if any(busy) and busy.count(False) >= LEAST_QUIET else ()

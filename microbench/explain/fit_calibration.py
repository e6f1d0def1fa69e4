"""Calibrates the model's constants by whole steps: robust least squares in turn with the pace of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from microbench.explain.fit_constant import half_width
from microbench.explain.fit_steps import NORMAL, Step
from microbench.fitted import Constant
from microbench.stats import FloatArray

# A constant measured by itself is known no better than this, as a share of it, when it is held against whole steps.
LEAST_PRIOR = 0.02
# Steps off by more deviations than this weigh less the further they are off.
HUBER = 1.5
ROUNDS = 50
SETTLED = 1e-6
# Singular values under this share of the largest are directions that no equation holds.
NOTHING = 1e-9
# Of a constant that is 0 without an interval.
LEAST_SIGMA_S = 1e-15


class Calibrated(msgspec.Struct, frozen=True):
    """The constants that fit steps and their own measurements best.

    ``half_widths`` are those of the 95 % intervals that steps and priors leave. ``pace`` says of each step whether the
    GPU sets it, ``off`` how far off it the law would be, as a share of the measured, had it not been fitted to.
    """

    values: Mapping[str, float] = {}
    half_widths: Mapping[str, float] = {}
    pace: tuple[bool, ...] = ()
    off: tuple[float, ...] = ()


def calibrated(found: Sequence[Step], priors: Mapping[str, Constant]) -> Calibrated:
    """Constants by whole steps, each held by what it was measured to be by itself.

    Once the pace of every step is known the law is linear in the constants, so the two are found in turn until the
    pace rests. What steps and priors leave open is not in the result.
    """
    if not found:
        return Calibrated()
    values = _begun(found, priors)
    pace = tuple(step.gpu_paced(values) for step in found)
    seen = {pace}
    while True:
        system = _System(found, pace, priors)
        solution = system.solved()
        values |= dict(zip(system.names, solution.tolist(), strict=True))
        again = tuple(step.gpu_paced(values) for step in found)
        if again in seen:
            return system.result(solution, pace)
        pace = again
        seen.add(pace)


def _begun(found: Sequence[Step], priors: Mapping[str, Constant]) -> dict[str, float]:
    """Where the search begins: what was measured by itself, else the shortest time a kernel that steps show."""
    values = {name: one.value for name, one in priors.items()}
    streams = [step for step in found if step.way == "stream"]
    least_s = min((step.seconds / step.kernels - step.own_s for step in streams), default=0.0)
    values.setdefault("gap_stream", max(least_s, 0.0))
    for call in {step.call for step in found}:
        shortest_s = min((step.seconds / step.kernels for step in streams if step.call == call), default=0.0)
        values.setdefault(call, shortest_s)
    return values


class _System:
    """An equation for each step and each prior, a column for each constant; both sides over the standard deviation."""

    def __init__(self, found: Sequence[Step], pace: tuple[bool, ...], priors: Mapping[str, Constant]) -> None:
        terms = [step.terms(fast) for step, fast in zip(found, pace, strict=True)]
        self.names = sorted({name for one in terms for name in one})
        terms += [{name: 1.0} for name in self.names if name in priors]
        known = [priors[name] for name in self.names if name in priors]
        self._seconds = np.array([step.seconds for step in found])
        calls_s = [step.seconds - step.kernels_s(fast) for step, fast in zip(found, pace, strict=True)]
        sigmas = np.array([step.sigma_s for step in found] + [_sigma(one) for one in known])
        matrix = np.array([[one.get(name, 0.0) for name in self.names] for one in terms])
        self._sigmas: FloatArray = sigmas
        self._matrix: FloatArray = matrix / sigmas[:, None]
        self._wanted: FloatArray = np.array(calls_s + [one.value for one in known]) / sigmas
        self._weights: FloatArray = np.ones(len(sigmas))

    def solved(self) -> FloatArray:
        """The constants, none below 0: weights and solution in turn (iteratively reweighted least squares with
        Huber's weights: Huber and Ronchetti, Robust Statistics, chapter 7)."""
        solution = self._solution()
        for _ in range(ROUNDS):
            off = np.abs(self._matrix @ solution - self._wanted)
            self._weights = np.minimum(1.0, HUBER / np.maximum(off, HUBER))
            before, solution = solution, self._solution()
            if np.allclose(solution, before, rtol=SETTLED, atol=0.0):
                break
        return solution

    def _solution(self) -> FloatArray:
        """Least squares without the columns whose best value is negative: a cost is at least 0."""
        scale = np.sqrt(self._weights)
        solution: FloatArray = np.zeros(len(self.names))
        columns = list(range(len(self.names)))
        while columns:
            matrix = self._matrix[:, columns] * scale[:, None]
            size = np.linalg.norm(matrix, axis=0)
            best = np.linalg.lstsq(matrix / size, self._wanted * scale, rcond=NOTHING)[0] / size
            solution[:] = 0.0
            solution[columns] = np.maximum(best, 0.0)
            kept = [column for column, one in zip(columns, best, strict=True) if one >= 0]
            if len(kept) == len(columns):
                break
            columns = kept
        return solution

    def result(self, solution: FloatArray, pace: tuple[bool, ...]) -> Calibrated:
        """What is determined, how well, and how far off each step is without its own pull on the solution."""
        matrix = self._matrix * np.sqrt(self._weights)[:, None]
        size = np.linalg.norm(matrix, axis=0)
        left, singular, right = np.linalg.svd(matrix / size, full_matrices=False)
        held = singular > singular[0] * NOTHING
        loose = 1 - np.sum(right[held] ** 2, axis=0) > NOTHING
        sigmas = np.sqrt(np.sum((right[held] / singular[held, None]) ** 2, axis=0)) / size
        known = [(at, name) for at, name in enumerate(self.names) if not loose[at]]
        steps = len(pace)
        pull = np.minimum(np.sum(left[:steps, held] ** 2, axis=1), 0.9)
        off = (self._matrix @ solution - self._wanted)[:steps] * self._sigma_shares(steps)
        return Calibrated(
            values={name: float(solution[at]) for at, name in known},
            half_widths={name: NORMAL * float(sigmas[at]) for at, name in known},
            pace=pace,
            off=tuple((off / (1 - pull)).tolist()),
        )

    def _sigma_shares(self, steps: int) -> FloatArray:
        """Each step's standard deviation as a share of it."""
        shares: FloatArray = self._sigmas[:steps] / self._seconds
        return shares


def _sigma(constant: Constant) -> float:
    """Its interval as a standard deviation."""
    return max(half_width(constant) / NORMAL, LEAST_PRIOR * constant.value, LEAST_SIGMA_S)

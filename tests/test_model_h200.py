"""The model on runs of an H200 with a quiet and with a busy host: its error on fitted steps and on steps left out."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from read_findings import evidence as evidence_of

from microbench.analysis.evidence import whole
from microbench.archive import store
from microbench.core.model import Outcome, Run
from microbench.model.constants import Fit, by_layer, own_s
from microbench.model.fit import fit, with_calls
from microbench.model.forecast import predict, step_time
from microbench.model.model import WAYS, Way
from microbench.model.workload import Event, Kernels, Part, Wait, Workload

# A play of a thousand kernels for each constant would take too long for a test.
MOST_KERNELS = 100


# The share by which the busy host's steps may miss more: its rounds differ by up to 30 % themselves (Numba's calls).
BUSY = {"quiet": 1.0, "busy": 2.6}
# The steps that intervals hold: Python's have two quiet rounds of five on the busy host.
COVERED = {"quiet": 0.90, "busy": 0.88}


@pytest.fixture(params=["quiet", "busy"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def recorded(name: str) -> Run:
    return store.read(Path(__file__).parent / "data" / f"{name}-h200.json.xz")


class Held(NamedTuple):
    """A measured step and its prediction, as shares of the measured time."""

    way: Way
    layer: str
    error: float
    half_width: float
    kernels_share: float

    @property
    def covered(self) -> bool:
        return abs(self.error) <= self.half_width * (1 + self.error)


def held(name: str, found: Fit, keep: Callable[[str], bool]) -> Iterator[Held]:
    """Each step of the run's graph_gain for which ``keep`` is true, in the quiet rounds that constants are fitted to,
    with what the fit predicts for it."""
    evidence = evidence_of(recorded(name))
    for way in WAYS:
        measured = by_layer(evidence.rows("graph_gain", way), "submitter")
        for layer, row in ((layer, row) for layer, rows in measured for row in rows):
            kernels, duration_ns = whole(row, "kernels"), whole(row, "duration_ns")
            if kernels > MOST_KERNELS or not keep(row.case_id):
                continue
            part = Kernels(kernels, (own_s(evidence, duration_ns),), arguments=1 if duration_ns else 0)
            workload = Workload((part, Wait()), layer=layer)
            predicted = predict(workload, with_calls(found, workload), way)
            measured_s = row.value * kernels
            share = part.durations_s[0] * kernels / measured_s
            yield Held(way, layer, predicted.step_s / measured_s - 1, predicted.half_width, share)


def split(run: Run, keep: Callable[[str], bool]) -> Run:
    """The run with only those cases of graph_gain that are kept; everything else is in it."""

    def kept(one: Outcome) -> bool:
        return one.case.benchmark != "graph_gain" or keep(one.case.id)

    return msgspec.structs.replace(run, outcomes=tuple(one for one in run.outcomes if kept(one)))


def errors(points: list[Held]) -> list[float]:
    return [abs(point.error) for point in points]


def test_the_fit_is_near_the_steps_that_it_was_made_of(name: str) -> None:
    points = list(held(name, fit(evidence_of(recorded(name))), lambda _: True))
    assert len(points) > 150
    assert np.median(errors(points)) < 0.007 * BUSY[name]
    assert np.percentile(errors(points), 95) < 0.07 * BUSY[name]
    assert max(errors(points)) < 0.14 * BUSY[name]


@pytest.mark.parametrize(("every", "offset"), [(2, 0), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_steps_left_out_are_predicted(every: int, offset: int, name: str) -> None:
    """One case in ``every`` is fitted to, and the others stay within the limits; so do those of them whose kernels are
    not nearly all of the step, which any model would predict."""
    cases = tuple(dict.fromkeys(row.case_id for row in evidence_of(recorded(name)).rows("graph_gain")))
    fitted = set(cases[offset::every])
    found = fit(evidence_of(split(recorded(name), fitted.__contains__)))
    points = list(held(name, found, lambda case_id: case_id not in fitted))
    telling = [point for point in points if point.kernels_share < 0.9]
    for several in (points, telling):
        assert len(several) >= 40
        assert np.median(errors(several)) <= 0.02 * BUSY[name]
        assert np.percentile(errors(several), 95) <= 0.10 * BUSY[name]
        assert np.mean([point.covered for point in several]) >= COVERED[name]
        assert np.median([point.half_width for point in several]) <= 0.085 * BUSY[name]


OTHERS = (pytest.param(f"submitter={layer}", marks=pytest.mark.slow) for layer in ("cupy_raw", "numba_configured"))


@pytest.mark.parametrize("unmeasured", ["", "submitter=cuda_core", *OTHERS])
def test_steps_that_were_not_measured_are_predicted_by_their_calls(unmeasured: str, name: str) -> None:
    """All steps, and those of one layer."""
    found = fit(evidence_of(split(recorded(name), lambda case_id: unmeasured not in case_id)))
    assert bool(unmeasured) == any(one.steps for one in found.misfit.values())
    points = list(held(name, found, lambda case_id: unmeasured in case_id))
    assert np.median(errors(points)) <= 0.01 * BUSY[name]
    assert np.percentile(errors(points), 95) <= 0.12 * BUSY[name]
    assert np.mean([point.covered for point in points]) >= (0.85 if unmeasured else COVERED[name])


def test_constants_are_those_that_one_h200_gave_by_other_means(name: str) -> None:
    """A native launch took 2.4 us (on a busy host a third more), gaps 0.86 and 0.1 us; the queue held 1021 launches."""
    values = fit(evidence_of(recorded(name))).values
    assert values["call.loop.0"] == pytest.approx(2.35e-6 if name == "quiet" else 3.2e-6, rel=0.05)
    assert values["gap_stream"] == pytest.approx(0.9e-6, rel=0.15)
    assert values["gap_graph"] == pytest.approx(0.08e-6, abs=0.06e-6)
    assert values["queue"] == 1021
    if name == "busy":  # the other run has no such grids
        assert values["wide_graph"] == pytest.approx(0.24e-6, rel=0.1)
    assert values["memory"] == pytest.approx(4.6e12, rel=0.05)
    assert values["h2d_rate"] == pytest.approx(55e9, rel=0.05)


def test_events_are_the_edges_of_a_graph(name: str) -> None:
    """Branches between a first and a last kernel, 64 kernels in them, as the H200 replayed them."""
    evidence = evidence_of(recorded(name))
    found = fit(evidence)
    errors_of: dict[int, list[float]] = {}
    for row in evidence.rows("graph_shape", "graph"):
        branches, duration_ns = whole(row, "branches"), whole(row, "duration_ns")
        if row.params["shape"] != "fork_join" or duration_ns != 5000:
            continue
        kernel = Kernels(1, (own_s(evidence, duration_ns),), arguments=1, stream=0, blocks=1)
        own = [msgspec.structs.replace(kernel, count=64 // branches, stream=branch) for branch in range(branches)]
        forks = [Event(0, branch, awaited=True) for branch in range(1, branches)]
        joins = [event for branch in range(1, branches) for event in (Event(branch, branch), Event(branch, 0, True))]
        parts: tuple[Part, ...] = (kernel, Event(0, 0), *forks, *own, *joins, kernel, Wait())
        for some in (parts, tuple(part for part in parts if not isinstance(part, Event))):
            workload = Workload(some, streams=branches)
            predicted_s = step_time(workload, with_calls(found, workload), "graph")
            errors_of.setdefault(branches, []).append(predicted_s / row.value - 1)
    assert 64 in errors_of
    assert all(abs(error) < 0.15 for error, _ in errors_of.values()), errors_of
    assert errors_of[64][1] > 0.5, "without the events all 64 branches would be roots"

"""Which GPU of a run a workload is predicted on: the first one whose measurements suffice for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from microbench.analysis.evidence import Evidence, evidence_by_device, rests_on, whole
from microbench.analysis.quantiles import FloatArray
from microbench.analysis.stats import STUDENT_T
from microbench.compare.words import measuring
from microbench.core.errors import RunUnreadableError
from microbench.core.model import Run
from microbench.core.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.predict import constants as measured_constants
from microbench.predict.constants import Constant, Fit, Misfit, Reach, around, half_width, own_s, scattering_s, stand_in
from microbench.predict.model import WAYS, Way, call_name, needed, replay_name
from microbench.predict.workload import Kernels, Workload

# Whole steps of a run, and what the law says of each: how often it counts every constant, and who sets the pace.


# A step is known no better than this, as a share of it: processes differ, and the samples of one say nothing of that.
LEAST_SIGMA = 0.01
# Half a 95 % interval in standard deviations.
NORMAL = 1.96


class Step(msgspec.Struct, frozen=True):
    """``kernels`` alike, launched one by one or replayed, and a synchronise.

    ``seconds`` is what it was measured to take, ``sigma_s`` the standard deviation of that, ``own_s`` how long each
    kernel runs by its own record. ``row`` names the row.
    """

    way: Way
    layer: str
    arguments: int
    kernels: int
    own_s: float
    seconds: float
    sigma_s: float
    row: str

    @property
    def call(self) -> str:
        """The constant of its launch call."""
        return call_name(self.layer, self.arguments)

    def gpu_paced(self, values: Mapping[str, float]) -> bool:
        """True if kernels and their gaps take longer than their calls."""
        return self.way == "graph" or self.own_s + values["gap_stream"] >= values[self.call]

    def terms(self, gpu_paced: bool) -> dict[str, float]:
        """How often the law counts each constant at that pace; the kernels' own time comes on top.

        It is what ``costmodel.play`` makes of ``submission.acts`` for such a step.
        """
        after_first = float(self.kernels - 1)
        if self.way == "graph":
            counted = {replay_name(self.layer): 1.0, "replay_node": float(self.kernels), "replay_way": 1.0}
            counted["gap_graph"] = after_first
        elif gpu_paced:
            counted = {self.call: 1.0, "way": 1.0, "gap_stream": after_first}
        else:
            counted = {self.call: 1.0 + after_first, "way": 1.0}
        return {name: factor for name, factor in counted.items() if factor} | {"complete": 1.0}

    def kernels_s(self, gpu_paced: bool) -> float:
        """How much of the kernels' own time the law counts: all of it, or that of the last one."""
        return self.own_s * (self.kernels if gpu_paced else 1)

    def law_s(self, values: Mapping[str, float], gpu_paced: bool) -> float:
        """What the step takes by the law."""
        terms = self.terms(gpu_paced).items()
        return self.kernels_s(gpu_paced) + sum(factor * values[name] for name, factor in terms)


def steps(evidence: Evidence) -> list[Step]:
    """graph_gain's steps, both ways. An empty kernel has no argument, one that spins has its length."""
    found = []
    for way in WAYS:
        for row in evidence.rows("graph_gain", way):
            kernels, duration_ns = whole(row, "kernels"), whole(row, "duration_ns")
            if row.value <= 0 or kernels < 1:
                continue
            seconds = row.value * kernels
            found.append(
                Step(
                    way=way,
                    layer=str(row.params.get("submitter", LOOP_LAYER)),
                    arguments=1 if duration_ns else 0,
                    kernels=kernels,
                    own_s=own_s(evidence, duration_ns),
                    seconds=seconds,
                    sigma_s=max(row.interval.half_width / NORMAL, LEAST_SIGMA) * seconds,
                    row=rests_on(row)[0],
                )
            )
    return found


# Calibrates the model's constants by whole steps: robust least squares in turn with the pace of each step.


# A constant measured by itself is known no better than this, as a share of it, when it is held against whole steps.
LEAST_PRIOR = 0.02
# Steps off by more deviations than this weigh less the further they are off.
HUBER = 1.5
ROUNDS = 50
CALIBRATION_SETTLED = 1e-6
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
            if np.allclose(solution, before, rtol=CALIBRATION_SETTLED, atol=0.0):
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


# How far measured steps lie from the fitted model, by way and by what sets the pace.


# What is taken for a misfit where no step was measured, and what no number of steps promises to stay under: shares of
# what scatters in a step.
ASSUMED = Misfit(0.05, 0.10)
LEAST = 0.01
WITHIN = 0.95
# So many steps make a group of their own; fewer are judged together with the others of their way.
FEWEST = 8
# Steps of which kernels are more than this share are no test of the law: what they are off is their kernels'.
MOSTLY = 0.9
REGIMES = ("host", "gpu")


def misfits(
    measured: Sequence[Step], found: Calibrated, constants: Mapping[str, Constant]
) -> dict[tuple[Way, str], Misfit]:
    """By way and regime: of its own steps, else of all steps of the way, else what is assumed."""
    values = {name: one.value for name, one in constants.items()}
    groups: dict[tuple[Way, str], list[float]] = {}
    for step, fast, off in zip(measured, found.pace, found.off, strict=True):
        kernels_s = step.kernels_s(fast)
        if kernels_s <= MOSTLY * step.seconds and all(name in values for name in step.terms(fast)):
            share = abs(off) * step.seconds / scattering_s(step.seconds, kernels_s)
            groups.setdefault((step.way, regime(step, fast, values)), []).append(share)
    chosen = {}
    for way in WAYS:
        alike = [off for (other, _), several in groups.items() for off in several if other == way]
        for kind in REGIMES:
            own = groups.get((way, kind), [])
            chosen[way, kind] = misfit(own if len(own) >= FEWEST else alike)
    return chosen


def regime(step: Step, gpu_paced: bool, values: Mapping[str, float]) -> str:
    """ "host" if the host's calls are the largest share of the critical path, else "gpu"."""
    terms = {name: factor * values[name] for name, factor in step.terms(gpu_paced).items()}
    calls = (step.call, f"replay.{step.layer}", "replay_node")
    host_s = sum(seconds for name, seconds in terms.items() if name in calls)
    sync_s = terms.get("complete", 0.0)
    others_s = (sum(terms.values()) - host_s - sync_s, sync_s, step.kernels_s(gpu_paced))
    return "host" if host_s > max(others_s) else "gpu"


def misfit(off: Iterable[float]) -> Misfit:
    """Median of residuals, as shares of what scatters, and what the next one stays within at 95 %.

    The order statistic of rank ceil((n + 1) * 0.95) holds a further one for any distribution (split conformal
    prediction, Lei et al. 2018; of residuals each over a scale of its own: their section 5.2). Under 19 there is none:
    then Student's t on their root mean square, and at least the largest.
    """
    ordered = sorted(off)
    n = len(ordered)
    if n == 0:
        return ASSUMED
    rank = math.ceil((n + 1) * WITHIN)
    if rank <= n:
        most = ordered[rank - 1]
    else:
        spread = math.sqrt(sum(one**2 for one in ordered) / n)
        most = max(ordered[-1], STUDENT_T[n - 1] * spread * math.sqrt(1 + 1 / n))
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Misfit(median, max(most, LEAST), n)


# Fits the model to one GPU of a run: each constant by the benchmark that shows it, then all by the run's own steps.


__all__ = ["call_constant", "fit", "missing", "own_s", "with_calls"]

CALL, REPLAY = "call.", "replay."
# Which benchmark shows a constant. Calls and replays have one for all layers; the others are link_copy's.
SHOWN_BY = {
    "way": "launch_cost", "empty": "launch_cost", "complete": "launch_cost", "sync": "launch_sync",
    "gap_stream": "launch_duration", "queue": "launch_queue", "gap_graph": "graph_lifecycle",
    "replay_node": "graph_lifecycle", "replay_way": "graph_gain", "make": "graph_lifecycle",
    "make_node": "graph_lifecycle", "front_end": "graph_shape", "memory": "memory_stream",
    "h2d_call": "link_latency", "d2h_call": "link_latency", "h2d_way": "link_latency", "d2h_way": "link_latency",
}  # fmt: skip
# A call with a count of arguments of which nothing near was measured is known no better than this.
UNLIKE = 0.1
# Steps settle a constant that something else stood in for when they narrow it to this share.
SETTLED = 0.5
# By so much a stand-in's interval is widened before it is held against steps: they decide, where there are any.
LOOSELY = 100.0


def fit(evidence: Evidence) -> Fit:
    """Every constant of ``submission.CONSTANTS`` that the run shows, and its launch and replay calls by layer.

    What was not measured is absent; what stands in for a measurement says so (``Constant.assumed``).
    """
    direct = dict(
        itertools.chain(
            measured_constants.calls(evidence),
            measured_constants.around_a_kernel(evidence),
            measured_constants.waiting(evidence),
            measured_constants.gaps(evidence),
            measured_constants.queue(evidence),
            measured_constants.lives(evidence),
        )
    )
    measured = steps(evidence)
    direct |= _calls_between(direct, measured)
    others = _stand_ins(direct, measured)
    found = calibrated(measured, direct | {name: _loosely(one) for name, one in others.items()})
    constants = direct | others
    constants |= _settled(constants, measured, found)
    constants |= dict(measured_constants.front_end(evidence, constants))
    constants |= dict(measured_constants.copies(evidence, constants)) | dict(measured_constants.memory(evidence))
    return Fit(
        constants=constants,
        layers=tuple(dict.fromkeys(layer for layer, _ in map(_called, constants) if layer)),
        misfit=misfits(measured, found, constants),
        reach=_reach(evidence, measured, constants),
        device=evidence.device,
        run_id=evidence.run.run_id,
    )


def missing(found: Fit, workload: Workload, ways: Iterable[Way]) -> list[str]:
    """Benchmarks that would give the constants that this workload needs and the fit lacks, each once."""
    known = with_calls(found, workload).constants
    names = dict.fromkeys(name for way in ways for name in needed(workload, way))
    return list(dict.fromkeys(_shown_by(name) for name in names if name not in known))


def _shown_by(name: str) -> str:
    if name.startswith(CALL):
        return "launch_layers"
    return "graph_lifecycle" if name.startswith(REPLAY) else SHOWN_BY.get(name, "link_copy")


def with_calls(found: Fit, workload: Workload) -> Fit:
    """The fit with the calls of this workload's kernels, those with a count of arguments not measured among them."""
    wanted = [(part.layer or workload.layer, part.arguments) for part in workload.parts if isinstance(part, Kernels)]
    more = {call_name(*one): call_constant(found, *one) for one in wanted}
    replay = replay_name(workload.layer)
    if replay not in found.constants and (loop := found.constants.get(replay_name(LOOP_LAYER))) is not None:
        more[replay] = _as_the_loop_replays(loop, workload.layer)
    added = {name: one for name, one in more.items() if one is not None and name not in found.constants}
    return msgspec.structs.replace(found, constants={**found.constants, **added}) if added else found


def call_constant(found: Fit, layer: str, arguments: int) -> Constant | None:
    """The launch call of a layer with so many arguments: measured, or on the straight line through those that were.

    None for a layer that was not measured at all.
    """
    return _call(found.constants, layer, arguments)


def _call(constants: Mapping[str, Constant], layer: str, arguments: int) -> Constant | None:
    known = {count: one for name, one in constants.items() for who, count in [_called(name)] if who == layer}
    if layer in ARRAY_LAYERS and known:
        return next(iter(known.values()))
    if not known or arguments in known:
        return known.get(arguments)
    counts = sorted(known)
    near = [max((one for one in counts if one < arguments), default=counts[0])]
    near += [min((one for one in counts if one > arguments), default=counts[-1])]
    if near[0] == near[1]:  # beyond all of them
        near = counts[:2] if arguments < counts[0] else counts[-2:]
    if len(set(near)) < 2:
        words = f"a call with {_arguments(arguments)} takes as long as one with {near[0]}"
        return stand_in(known[near[0]], words, UNLIKE)
    (low, first), (high, second) = ((count, known[count]) for count in near)
    share = (arguments - low) / (high - low)
    value = first.value + share * (second.value - first.value)
    bent = min(abs(share), abs(1 - share)) * abs(second.value - first.value)
    words = f"a call with {_arguments(arguments)} lies on the line through those with {low} and {high}"
    half = max(half_width(first), half_width(second)) + bent
    return around(value, half, (*first.rests_on, *second.rests_on), words)


def _arguments(count: int) -> str:
    return f"{count} argument{'' if count == 1 else 's'}"


def _called(name: str) -> tuple[str, int]:
    """Layer and arguments of a launch call's constant; ("", 0) for another one."""
    kind, _, rest = name.partition(".")
    layer, _, arguments = rest.rpartition(".")
    return (layer, int(arguments)) if kind == "call" else ("", 0)


def _as_the_loop_replays(loop: Constant, layer: str) -> Constant:
    """A layer's replay call before steps show it: Python adds up to as much again."""
    return stand_in(loop, f"the replay call of {layer} is that of the compiled loop", 1.0)


def _calls_between(direct: Mapping[str, Constant], measured: Iterable[Step]) -> dict[str, Constant]:
    """Launch calls of steps, with a count of arguments that nothing measured by itself."""
    found = {step.call: _call(direct, step.layer, step.arguments) for step in measured if step.way == "stream"}
    return {name: one for name, one in found.items() if one is not None and name not in direct}


def _stand_ins(direct: Mapping[str, Constant], measured: Iterable[Step]) -> dict[str, Constant]:
    """What stands in for constants that only steps show: a launch's way, the compiled loop's replay call."""
    found = {}
    if "way" in direct:
        found["replay_way"] = stand_in(direct["way"], "a replay's way to the GPU is a launch's")
    if (loop := direct.get(replay_name(LOOP_LAYER))) is not None:
        replays = {replay_name(step.layer): step.layer for step in measured}
        found |= {name: _as_the_loop_replays(loop, layer) for name, layer in replays.items() if name not in direct}
    return found


def _loosely(constant: Constant) -> Constant:
    """A stand-in that holds only what steps leave open."""
    return around(constant.value, LOOSELY * half_width(constant), constant.rests_on, constant.assumed)


def _settled(priors: Mapping[str, Constant], measured: list[Step], found: Calibrated) -> dict[str, Constant]:
    """Constants as the steps leave them, each with the wider of two intervals: its own rows', and what steps leave.

    One that something else stood in for is measured by the steps if they narrow it enough.
    """
    rows: dict[str, list[str]] = {}
    for step, fast in zip(measured, found.pace, strict=True):
        for name in step.terms(fast):
            rows.setdefault(name, []).append(step.row)
    settled = {}
    for name, value in found.values.items():
        half, prior = found.half_widths[name], priors.get(name)
        if prior is None:
            settled[name] = around(value, half, rows[name])
        elif not prior.assumed:
            settled[name] = around(value, max(half, half_width(prior)), (*prior.rests_on, *rows[name]))
        elif half < SETTLED * half_width(prior):
            settled[name] = around(value, half, rows[name])
        else:
            half = min(half, half_width(prior))
            settled[name] = around(value, half, (*prior.rests_on, *rows[name]), prior.assumed)
    return settled


def _reach(evidence: Evidence, measured: list[Step], constants: Mapping[str, Constant]) -> Reach:
    """The largest of what was measured."""
    copies = [whole(row, "size_bytes") for row in evidence.rows("link_copy")]
    forks = [whole(row, "branches") for row in evidence.rows("graph_shape", "graph")]
    streams = [*evidence.rows("launch_cost", "throughput"), *evidence.rows("launch_duration", "period")]
    launches = [row.measurement.calls_per_sample for row in streams]
    return Reach(
        kernels=max([step.kernels for step in measured] + launches, default=1),
        copy_bytes=max(copies, default=0),
        streams=max(forks, default=1) if "front_end" in constants else 1,
    )


def fit_for(run: Run, workload: Workload, adding: Sequence[str] = ()) -> tuple[Evidence, Fit]:
    """The evidence and the fit of that GPU, with every launch call that the workload makes.

    Raises RunUnreadableError that names the benchmarks to run; ``adding`` are the options that add to this run.
    """
    lacking: list[str] = []
    for evidence in evidence_by_device(run):
        found = fit(evidence)
        absent = missing(found, workload, WAYS)
        if not absent:
            return evidence, with_calls(found, workload)
        lacking = lacking or absent
    raise RunUnreadableError(
        f"run {run.run_id} has no figures of {', '.join(lacking)}, which the prediction rests on",
        f"{measuring(lacking, adding)} measures them",
    )


def suits(run: Run, workload: Workload) -> bool:
    """Whether the run is of a real GPU and has what the workload's prediction rests on."""
    if run.simulated:
        return False
    return any(not missing(fit(evidence), workload, WAYS) for evidence in evidence_by_device(run))

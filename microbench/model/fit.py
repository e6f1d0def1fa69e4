"""Fits the model's constants to a run: each from its own benchmark first, then all together to the run's own steps."""

import itertools
import math
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from microbench.analysis.evidence import Evidence, evidence_by_device, rests_on, whole
from microbench.analysis.graph_steps import layer_titles
from microbench.analysis.quantiles import FloatArray
from microbench.analysis.stats import STUDENT_T
from microbench.core.errors import RunUnreadableError, UsageError, run_command
from microbench.core.model import GpuInfo, Run
from microbench.core.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.core.units import about_size
from microbench.model import constants as costs
from microbench.model.constants import Constant, Fit, Misfit, around, half_width, stand_in
from microbench.model.model import CONSTANTS, WAYS, Way, call_name, graphs, needed, replay_name
from microbench.model.unknowns import MEASURED, model_code
from microbench.model.workload import Copies, Kernels, Workload

# A step is known no better than this share of it: processes differ, and the samples of one process do not show that.
LEAST_SIGMA = 0.01
# Half a 95 % interval in standard deviations.
NORMAL = 1.96


class TimedStep(msgspec.Struct, frozen=True):
    """Equal kernels, launched one by one or replayed, and a synchronise.

    ``seconds`` is its measured time, ``own_s`` how long each kernel runs by its own record, ``sigma_s`` the standard
    deviation of the first less that of all kernels. ``row`` names the row.
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
        return call_name(self.layer, self.arguments)

    def gpu_paced(self, values: Mapping[str, float]) -> bool:
        """True if kernels and their gaps take longer than their calls."""
        return self.way == "graph" or self.own_s + values["gap_stream"] >= values[self.call]

    def terms(self, gpu_paced: bool) -> dict[str, float]:
        """How often the law counts each constant at that pace, without the kernels' own time.

        The sum is what ``model.play`` makes of ``model.acts`` for such a step.
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
        """The kernels' own time that the law counts: that of all kernels, or of the last one."""
        return self.own_s * (self.kernels if gpu_paced else 1)


def steps(evidence: Evidence) -> list[TimedStep]:
    """graph_gain's steps, both ways.

    An empty kernel has no argument, a spinning one has its length as argument, and an operation always has one. An
    operation's kernel writes memory, also the shortest one, which takes as long as launch_gap's.
    """
    result, known, shortest = [], dict(costs.gaps(evidence)), evidence.row("launch_gap", "duration", **costs.WRITING)
    operations = {str(row.params.get("layer")) for row in evidence.rows("launch_layers", "submit", family="one_op")}
    lengths_ns = {whole(row, "duration_ns") for way in WAYS for row in evidence.rows("graph_gain", way)}
    own_s = {duration_ns: costs.own_s(evidence, duration_ns) for duration_ns in lengths_ns}
    for way in WAYS:
        measured = costs.by_layer(evidence.rows("graph_gain", way), "submitter")
        for layer, row in ((layer, row) for layer, rows in measured for row in rows):
            kernels, duration_ns = whole(row, "kernels"), whole(row, "duration_ns")
            if row.value <= 0 or kernels < 1:
                continue
            seconds = row.value * kernels
            kernel_s, unknown_s = own_s[duration_ns], 0.0
            if layer in operations and f"write_{way}" in known:
                shortest_s = shortest.value if shortest is not None and duration_ns == 0 else 0.0
                longer = known[f"write_{way}"]
                kernel_s, unknown_s = max(kernel_s, shortest_s) + longer.value, half_width(longer) / NORMAL
            arguments = 1 if duration_ns or layer in operations else 0
            sigma_s = math.hypot(max(row.interval.half_width / NORMAL, LEAST_SIGMA) * seconds, kernels * unknown_s)
            result.append(TimedStep(way, layer, arguments, kernels, kernel_s, seconds, sigma_s, rests_on(row)[0]))
    return result


# When a constant's own measurement is weighed against whole steps, it is known no better than this share of its value.
LEAST_PRIOR = 0.02
# Constants that may be negative: kernels' durations as profilers report them may overlap.
GAPS = ("gap_stream", "gap_graph")
# Steps off by more standard deviations than this get less weight, the less the further they are off.
HUBER = 1.5
ROUNDS = 50
CALIBRATION_SETTLED = 1e-6
# Singular values under this share of the largest are directions that no equation determines.
NOTHING = 1e-9
# The standard deviation of a constant that is 0 without an interval.
LEAST_SIGMA_S = 1e-15


class Calibrated(msgspec.Struct, frozen=True):
    """The constants that fit steps and their own measurements best.

    ``half_widths`` are those of the 95 % intervals. ``pace`` says for each step whether the GPU sets it, ``off`` how
    far the law would be off, as a share of the measured time, if it had not been fitted to that step.
    """

    values: Mapping[str, float] = {}
    half_widths: Mapping[str, float] = {}
    pace: tuple[bool, ...] = ()
    off: tuple[float, ...] = ()


def calibrated(measured: Sequence[TimedStep], priors: Mapping[str, Constant]) -> Calibrated:
    """The constants by whole steps and every launch call, each held near its own measurement.

    Once the pace of every step is known the law is linear in the constants, so pace and constants are determined in
    turn until the pace stays. Constants that steps and priors do not determine are left out.
    """
    if not measured and not any(_called(name)[0] for name in priors):
        return Calibrated()
    values = _begun(measured, priors)
    pace = tuple(step.gpu_paced(values) for step in measured)
    seen = {pace}
    while True:
        system = _System(measured, pace, priors)
        solution = system.solved()
        values |= dict(zip(system.names, system.constants(solution), strict=True))
        again = tuple(step.gpu_paced(values) for step in measured)
        if again in seen:
            return system.result(solution, pace)
        pace = again
        seen.add(pace)


def _begun(measured: Sequence[TimedStep], priors: Mapping[str, Constant]) -> dict[str, float]:
    """Where the search begins: a constant's own measurement, else the shortest time per kernel of the steps."""
    values = {name: prior.value for name, prior in priors.items()}
    streams = [step for step in measured if step.way == "stream"]
    least_s = min((step.seconds / step.kernels - step.own_s for step in streams), default=0.0)
    values.setdefault("gap_stream", max(least_s, 0.0))
    for call in {step.call for step in measured}:
        shortest_s = min((step.seconds / step.kernels for step in streams if step.call == call), default=0.0)
        values.setdefault(call, shortest_s)
    return values


class _System:
    """A linear equation for each step and each prior, both sides over the standard deviation.

    A column is a constant, or what a layer's call takes longer than that with fewer arguments: that is at least 0.
    """

    def __init__(self, measured: Sequence[TimedStep], pace: tuple[bool, ...], priors: Mapping[str, Constant]) -> None:
        terms = [step.terms(fast) for step, fast in zip(measured, pace, strict=True)]
        calls = [name for name in priors if _called(name)[0]]
        self.names = sorted({name for counted in terms for name in counted} | set(calls))
        terms += [{name: 1.0} for name in self.names if name in priors]
        known = [priors[name] for name in self.names if name in priors]
        self._seconds = np.array([step.seconds for step in measured])
        calls_s = [step.seconds - step.kernels_s(fast) for step, fast in zip(measured, pace, strict=True)]
        loose = [max(half_width(prior) / NORMAL, LEAST_PRIOR * prior.value, LEAST_SIGMA_S) for prior in known]
        sigmas = np.array([step.sigma_s for step in measured] + loose)
        matrix = np.array([[counted.get(name, 0.0) for name in self.names] for counted in terms])
        called = [_called(name) for name in self.names]
        self._sums: FloatArray = np.eye(len(self.names))
        for (row, (layer, arguments)), (column, (other, fewer)) in itertools.product(enumerate(called), repeat=2):
            if layer and layer == other and fewer < arguments:
                self._sums[row, column] = 1.0
        self._sigmas: FloatArray = sigmas
        self._matrix: FloatArray = matrix @ self._sums / sigmas[:, None]
        self._wanted: FloatArray = np.array(calls_s + [prior.value for prior in known]) / sigmas
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
        """Least squares without the columns whose best value is negative: a cost is at least 0, a gap may be less."""
        scale = np.sqrt(self._weights)
        solution: FloatArray = np.zeros(len(self.names))
        columns = list(range(len(self.names)))
        while columns:
            matrix = self._matrix[:, columns] * scale[:, None]
            size = np.linalg.norm(matrix, axis=0)
            best = np.linalg.lstsq(matrix / size, self._wanted * scale, rcond=NOTHING)[0] / size
            solution[:] = 0.0
            allowed = (best >= 0) | np.array([self.names[column] in GAPS for column in columns])
            solution[columns] = np.where(allowed, best, 0.0)
            if allowed.all():
                break
            columns = [column for column, may in zip(columns, allowed, strict=True) if may]
        return solution

    def constants(self, solution: FloatArray) -> list[float]:
        """The constants of a solution, in the order of ``names``."""
        return [float(value) for value in self._sums @ solution]

    def result(self, solution: FloatArray, pace: tuple[bool, ...]) -> Calibrated:
        """The constants that are determined, how well, and each step's residual without its own pull on the fit."""
        matrix = self._matrix * np.sqrt(self._weights)[:, None]
        size = np.linalg.norm(matrix, axis=0)
        left, singular, right = np.linalg.svd(matrix / size, full_matrices=False)
        held = singular > singular[0] * NOTHING
        loose = self._sums @ (1 - np.sum(right[held] ** 2, axis=0) > NOTHING) > 0
        sigmas = np.sqrt(np.sum((self._sums @ (right[held] / singular[held, None] / size).T) ** 2, axis=1))
        known = [(at, name) for at, name in enumerate(self.names) if not loose[at]]
        steps = len(pace)
        pull = np.minimum(np.sum(left[:steps, held] ** 2, axis=1), 0.9)
        off = (self._matrix @ solution - self._wanted)[:steps] * (self._sigmas[:steps] / self._seconds)
        return Calibrated(
            values={name: self.constants(solution)[at] for at, name in known},
            half_widths={name: NORMAL * float(sigmas[at]) for at, name in known},
            pace=pace,
            off=tuple((off / (1 - pull)).tolist()),
        )


# The misfit where no step was measured, and the smallest misfit that is ever claimed; shares of what scatters.
ASSUMED = Misfit(0.05, 0.10)
LEAST = 0.01
WITHIN = 0.95
# A group with fewer steps than this uses all steps of its way.
FEWEST = 8
# Steps with a larger share of kernels do not test the law: their residual comes from their kernels.
MOSTLY = 0.9
REGIMES = ("host", "gpu")


def misfits(
    measured: Sequence[TimedStep], calibration: Calibrated, constants: Mapping[str, Constant]
) -> dict[tuple[Way, str], Misfit]:
    """The misfit by way and regime: of its own steps, else of all steps of the way, else the assumed one."""
    values = {name: constant.value for name, constant in constants.items()}
    groups: dict[tuple[Way, str], list[float]] = {}
    for step, fast, off in zip(measured, calibration.pace, calibration.off, strict=True):
        kernels_s = step.kernels_s(fast)
        if kernels_s <= MOSTLY * step.seconds and all(name in values for name in step.terms(fast)):
            share = abs(off) * step.seconds / costs.scattering_s(step.seconds, kernels_s)
            groups.setdefault((step.way, regime(step, fast, values)), []).append(share)
    chosen = {}
    for way in WAYS:
        alike = [off for (other, _), several in groups.items() for off in several if other == way]
        for kind in REGIMES:
            own = groups.get((way, kind), [])
            chosen[way, kind] = misfit(own if len(own) >= FEWEST else alike)
    return chosen


def regime(step: TimedStep, gpu_paced: bool, values: Mapping[str, float]) -> str:
    """ "host" if the host's calls are the largest share of the critical path, else "gpu"."""
    terms = {name: factor * values[name] for name, factor in step.terms(gpu_paced).items()}
    calls = (step.call, f"replay.{step.layer}", "replay_node")
    host_s = sum(seconds for name, seconds in terms.items() if name in calls)
    sync_s = terms.get("complete", 0.0)
    others_s = (sum(terms.values()) - host_s - sync_s, sync_s, step.kernels_s(gpu_paced))
    return "host" if host_s > max(others_s) else "gpu"


def misfit(off: Iterable[float]) -> Misfit:
    """The median of residuals, as shares of what scatters, and the share that the next one stays within at 95 %.

    The residual of rank ceil((n + 1) * 0.95) bounds the next one for any distribution (split conformal prediction, Lei
    et al. 2018; section 5.2 for residuals that each have their own scale). Fewer than 19 residuals have no such rank,
    so the bound is Student's t on their root mean square, and at least the largest residual.
    """
    ordered = sorted(off)
    n = len(ordered)
    if n == 0:
        return ASSUMED
    rank = math.ceil((n + 1) * WITHIN)
    if rank <= n:
        most = ordered[rank - 1]
    else:
        spread = math.sqrt(sum(residual**2 for residual in ordered) / n)
        most = max(ordered[-1], STUDENT_T[n - 1] * spread * math.sqrt(1 + 1 / n))
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Misfit(median, max(most, LEAST), n)


# A call is known no better than this share if only one other count of arguments was measured.
UNLIKE = 0.1
# Steps settle a constant that something else stood in for when they narrow its interval to this share.
SETTLED = 0.5
# A stand-in's interval is widened by this factor before it is compared with steps. Steps that determine the constant
# well then decide. Steps of many kernels, whose gaps are hardly better known than the constant, leave it near the
# stand-in.
LOOSELY = 10.0


def fit(evidence: Evidence) -> Fit:
    """Every constant of ``model.CONSTANTS`` that the run shows, and its launch and replay calls by layer.

    A constant that was not measured is absent; one that stands in for a measurement says so (``Constant.assumed``).
    """
    return evidence.once(_fit)


def _fit(evidence: Evidence) -> Fit:
    known, measured = costs.direct(evidence), steps(evidence)
    # Launch calls of steps with a count of arguments that no benchmark measured by itself.
    calls = {step.call: (step.layer, step.arguments) for step in measured if step.way == "stream"}
    between = {name: call_constant(known, *call) for name, call in calls.items() if name not in known}
    known |= {name: constant for name, constant in between.items() if constant is not None}
    others = {}  # stand-ins for what only steps show: a replay's way, the replay calls of layers
    if "way" in known:
        others["replay_way"] = stand_in(known["way"], "a replay's launch latency is that of a kernel")
    if (loop := known.get(replay_name(LOOP_LAYER))) is not None:
        replays = {replay_name(step.layer): step.layer for step in measured}
        others |= {name: _as_the_loop_replays(loop, layer) for name, layer in replays.items() if name not in known}
    loosely = {
        name: around(constant.value, LOOSELY * half_width(constant), constant.rests_on, constant.assumed)
        for name, constant in others.items()
    }
    calibration = calibrated(measured, known | loosely)
    constants = known | others
    constants = costs.with_others(evidence, constants | _settled(constants, measured, calibration))
    # The largest values that were measured.
    sizes = [whole(row, "size_bytes") for row in evidence.rows("link_copy")]
    forks = [whole(row, "branches") for row in evidence.rows("graph_shape", "graph")]
    streams = [*evidence.rows("launch_cost", "throughput"), *evidence.rows("launch_duration", "period")]
    launches = [row.measurement.calls_per_sample for row in streams]
    return Fit(
        constants=constants,
        layers=tuple(dict.fromkeys(layer for layer, _ in map(_called, constants) if layer)),
        misfit=misfits(measured, calibration, constants),
        reach=costs.Reach(
            kernels=max([step.kernels for step in measured] + launches, default=1),
            copy_bytes=max(sizes, default=0),
            streams=max(forks, default=1) if "front_end" in constants else 1,
        ),
        device=evidence.device,
        run_id=evidence.run.run_id,
        titles=layer_titles(evidence.run),
        model_code=model_code(evidence, constants.get(call_name(MEASURED, 1))),
        sms=evidence.gpu.sm_count if evidence.gpu is not None else None,
        made=costs.made(evidence),
        batches=costs.batches(evidence),
    )


def with_model_code_of(fitted: Fit, run: Run) -> Fit:
    """The fit with the examples of model code of another run, where that has any; words then name its GPU."""
    for evidence in evidence_by_device(run):
        examples = fit(evidence).model_code
        if examples and evidence.gpu is not None:
            return msgspec.structs.replace(fitted, model_code=examples, model_code_of=evidence.gpu.name)
    return fitted


def missing(fitted: Fit, workload: Workload, ways: Iterable[Way]) -> list[str]:
    """Benchmarks that would give the constants that this workload needs and the fit lacks, each once."""
    known = with_calls(fitted, workload).constants
    names = dict.fromkeys(name for way in ways for name in needed(workload, way))
    shown_by = {name: benchmark for name, (_, _, benchmark) in CONSTANTS.items()}
    of_layers = {"call": "launch_layers", "replay": "graph_lifecycle"}
    lacking = (name for name in names if name not in known)
    return list(dict.fromkeys(shown_by.get(name) or of_layers[name.partition(".")[0]] for name in lacking))


def with_calls(fitted: Fit, workload: Workload) -> Fit:
    """The fit with the calls of this workload's kernels added, also those with counts of arguments not measured, and
    with what making its graphs takes."""
    wanted = {
        (part.layer or workload.layer, part.arguments): None for part in workload.parts if isinstance(part, Kernels)
    }
    known = fitted.constants
    more = {call_name(*call): call_constant(known, *call) for call in wanted}
    replay = replay_name(workload.layer)
    if replay not in known and (loop := known.get(replay_name(LOOP_LAYER))) is not None:
        more[replay] = _as_the_loop_replays(loop, workload.layer)
    added = {name: constant for name, constant in more.items() if constant is not None and name not in known}
    if (make := costs.making_of(graphs(workload), fitted.made)) is not None:
        added["make"] = make
    return msgspec.structs.replace(fitted, constants={**known, **added}) if added else fitted


def call_constant(constants: Mapping[str, Constant], layer: str, arguments: int) -> Constant | None:
    """A layer's launch call with that number of arguments: measured, or on the straight line through measured counts.

    An array library's call is the same for any count. None for a layer that was not measured at all.
    """
    known = {count: constant for name, constant in constants.items() for who, count in [_called(name)] if who == layer}
    if layer in ARRAY_LAYERS and known:
        return next(iter(known.values()))
    if not known or arguments in known:
        return known.get(arguments)
    counts = sorted(known)
    at = min(max(bisect(counts, arguments) - 1, 0), max(len(counts) - 2, 0))
    near = counts[at : at + 2]  # around it, or the two nearest beyond all of them
    with_them = f"a call with {arguments} argument{'' if arguments == 1 else 's'}"
    if len(near) < 2:
        return stand_in(known[near[0]], f"{with_them} takes as long as one with {near[0]}", UNLIKE)
    (low, first), (high, second) = ((count, known[count]) for count in near)
    if second.value <= first.value:
        return stand_in(first, f"{with_them} takes as long as one with {low}", UNLIKE)
    share = (arguments - low) / (high - low)
    value = first.value + share * (second.value - first.value)
    bent = min(abs(share), abs(1 - share)) * (second.value - first.value)
    half = max(half_width(first), half_width(second)) + bent
    words = f"{with_them} lies on the line through those with {low} and {high}"
    found = around(value, half, (*first.rests_on, *second.rests_on), words)
    least_s = min(constant.value for constant in known.values())
    low_s = min(constant.low for constant in known.values())
    return msgspec.structs.replace(found, value=max(found.value, least_s), low=max(found.low, low_s))


def measured_arguments(fitted: Fit, layer: str) -> list[int]:
    """The counts of arguments with which a layer's call was measured."""
    called = ((*_called(name), constant) for name, constant in fitted.constants.items())
    return [count for who, count, constant in called if who == layer and not constant.assumed]


def _called(name: str) -> tuple[str, int]:
    """Layer and arguments of a launch call's constant; ("", 0) for another constant."""
    kind, _, rest = name.partition(".")
    layer, _, arguments = rest.rpartition(".")
    return (layer, int(arguments)) if kind == "call" else ("", 0)


def _as_the_loop_replays(loop: Constant, layer: str) -> Constant:
    """A layer's replay call where no step shows it; Python was measured to add up to twice as much."""
    return stand_in(loop, f"the replay call of {layer} is that of the compiled loop", 2.0)


def _settled(priors: Mapping[str, Constant], measured: list[TimedStep], calibration: Calibrated) -> dict[str, Constant]:
    """The constants that steps determine, each with the wider of its own rows' interval and the steps' interval.

    A stand-in counts as measured by the steps if they narrow its interval enough.
    """
    rows: dict[str, list[str]] = {}
    for step, fast in zip(measured, calibration.pace, strict=True):
        for name in step.terms(fast):
            rows.setdefault(name, []).append(step.row)
    settled = {}
    for name, value in calibration.values.items():
        half, prior = calibration.half_widths[name], priors.get(name)
        if name in GAPS and prior is not None and any(row.startswith("launch_gap[") for row in prior.rests_on):
            continue  # one value everywhere: what launch_gap measured
        rests_on, assumed = rows.get(name, []), ""
        if prior is not None and not prior.assumed:
            steps_s = half if rests_on else abs(value - prior.value)  # without steps only other calls moved it
            half, rests_on = max(steps_s, half_width(prior)), [*prior.rests_on, *rests_on]
        elif prior is not None and half >= SETTLED * half_width(prior):
            half, rests_on, assumed = min(half, half_width(prior)), [*prior.rests_on, *rests_on], prior.assumed
        settled[name] = around(value, half, rests_on, assumed, least=-math.inf if name in GAPS else 0.0)
    return settled


def fit_for(run: Run, workload: Workload, adding: Sequence[str] = ()) -> tuple[Evidence, Fit]:
    """The run's first GPU whose measurements suffice for the workload, and its fit with the workload's calls.

    Raises RunUnreadableError that names the benchmarks to run; ``adding`` are the options that add to this run. Raises
    UsageError for a kernel or copy larger than that GPU's memory.
    """
    lacking: list[str] = []
    for evidence in evidence_by_device(run):
        fitted = fit(evidence)
        absent = missing(fitted, workload, WAYS)
        if not absent:
            if evidence.gpu is not None:
                check_sizes(workload, evidence.gpu)
            return evidence, with_calls(fitted, workload)
        lacking = lacking or absent
    cause = f"run {run.run_id} has no figures of {', '.join(lacking)}, which the prediction rests on"
    raise RunUnreadableError(cause, f"{run_command(lacking, adding)} measures them")


def check_sizes(workload: Workload, gpu: GpuInfo) -> None:
    """Raise UsageError if a kernel or a copy of the workload moves more than the GPU's memory holds."""
    most = gpu.memory_bytes
    for part in workload.parts:
        size = part.bytes if isinstance(part, Kernels) else part.size_bytes if isinstance(part, Copies) else 0
        if most and size > most:
            what = "a kernel moves" if isinstance(part, Kernels) else "a copy moves"
            cause = f"{what} {about_size(size)}, and the memory of the {gpu.name} holds {about_size(most)}"
            raise UsageError(cause, "split it into several kernels or copies that each fit")


def suits(run: Run, workload: Workload) -> bool:
    """Whether the run is of a real GPU and has the rows that the workload's prediction needs."""
    if run.simulated:
        return False
    return any(not missing(fit(evidence), workload, WAYS) for evidence in evidence_by_device(run))

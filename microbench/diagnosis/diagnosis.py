"""Diagnoses a trace: whether the GPU waits, for what, and what a graph or another remedy would give."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np

from microbench.analysis.limits import pcie_rate
from microbench.core.errors import UsageError, run_command
from microbench.core.ops import LOOP_LAYER
from microbench.core.units import as_time, counted, percent, plain, quantity, round_percent, size
from microbench.diagnosis import owners
from microbench.diagnosis.communication import Exchanged, exchanged
from microbench.diagnosis.given import LEAST_GIVEN, MOST_GIVEN, Given, meant
from microbench.diagnosis.health import CALLS_LOST, TIMELESS, Check, checks, forbidden, realigned
from microbench.diagnosis.host_time import BETWEEN, MANAGED, ON_MANAGED
from microbench.diagnosis.idle import SUBMISSION, Cause, Idle, busiest, idle
from microbench.diagnosis.latencies import recorded_latencies
from microbench.diagnosis.pauses import Paused, usual_steps
from microbench.diagnosis.recorded import Change, Recorded, SmallCopies, layer_of, recorded
from microbench.diagnosis.steps import Source, Steps, find_steps, found_elsewhere
from microbench.diagnosis.unwatched import Known, between_windows, beyond_calls, recorder_costs, scaled, unwatched
from microbench.diagnosis.window import middle, of_one_gpu, one_window, other_parts
from microbench.model.constants import BATCHED, Constant, Fit, around, batched_rate
from microbench.model.fit import missing, with_calls
from microbench.model.forecast import making, predict, step_time
from microbench.model.model import WAYS, Way, call_name, copy_name, graphs, needed
from microbench.model.unknowns import End, filled
from microbench.model.workload import Copies, Event, HostWork, Kernels, Part, Wait, Workload
from microbench.traces.trace import FAILED, MEMORIES, UNRECORDED, WORK_KINDS, Trace, name_of

# Where host and GPU time are this close, neither alone is the limit.
BUSY = 0.9
# The recorder's likely costs are no reason to call a GPU busy that was recorded as less busy than this. Where no step
# repeats, nobody knows these costs, and what happens once is in that time: then less is enough.
NEARLY_BUSY, ENOUGH = 0.85, 0.75
# A step is GPU-bound, and not communication-bound, where communication that nothing hides is less than the first share
# and other work more than the second.
LITTLE, MOSTLY = 0.2, 2 / 3
FEW_STEPS, PART = 3, 0.25  # so few repetitions within less of the time are no steps
ONCE = 0.1  # of a single region is what happens once: then it is no step
WAITING: tuple[Cause, ...] = ("waits", "another stream's event", "another stream")
# The played step must last as long as the recorded one, within this share, or nothing is predicted from it. Intervals
# include by how much it does not.
PLAYED = 0.05
NO_CALLS = "the trace has no CUDA calls, from which steps are found"
REPLAYS = "the step replays graphs already"
# A remedy is advised if it saves this share of the step.
WORTH = 0.03
CHANGES: Mapping[Change, str] = {
    "waits": "do not wait for the GPU inside the step",
    "pinned": "copy from and to pinned memory",
    "pauses": "take the program's own work between launches off this thread",
    "allocation": "keep memory in a pool instead of allocating it in each step",
}
FASTER_COPIES = ("pinned", *BATCHED)
# Bisection steps in the search for the share of the host time at which the played step takes the given time.
HALVINGS = 16
# The host makes a step long if the step would take less than this share of its time without the host's.
ON_GPU = 0.9
LOOP_CALL = call_name(LOOP_LAYER, 0)
# A step that was timed in another run may be shorter by this share than the GPU's work in this one.
OTHER_RUN = 0.1
# Longer steps are not played: 100 000 kernels take seconds, and a diagnosis plays some forty of them.
MOST_PLAYED = 30_000
# What the step would take is played without so many owners, which have at least this share of it.
LEAST_OWNED, MOST_OWNERS = 0.02, 4
# Nineteen samplings in twenty lie within so many standard deviations.
LIKELY = 2.0
# The host time of a program differs by about this share between two processes on one machine: nineteen programs on two
# H200 machines with busy hosts.
PROCESSES = 0.25
# How much farther a graph's interval reaches, as a share of its step, where the costs are another machine's. With the
# costs of the bundled reference, the true graphs of three programs on another H200 lay up to 3.5 % of the step above it
# (lab/measurements/diagnosis.csv).
ELSEWHERE = 0.04


Bound = Literal[
    "launch-bound", "host-bound", "wait-bound", "copy-bound", "communication-bound", "GPU-bound", "allocation-bound",
    "start-up", "mixed",
]  # fmt: skip


class Step(msgspec.Struct, frozen=True):
    """The typical step: its time as recorded, and its time without the recorder with an interval; times in s.

    ``kernels`` and ``work`` count its kernels and its pieces of work of all kinds. ``costs`` is what the recorder is
    assumed to add to each "call", "operator" and "function" of the step. They are not used if the time without the
    recorder is ``given``, or ``measured`` between the windows of a recording. The time may have been given for a part
    of this step, which ``holds`` several of them, for one that has so many ``parts`` like this step, or for the mean of
    all steps, those that pause included, which is so many times as long (``mean``).
    """

    count: int
    found: Source
    name: str
    kernels: float
    work: float
    likeness: float
    every: int
    watched_s: float
    unwatched_s: float
    low_s: float
    high_s: float
    given: bool = False
    measured: bool = False
    costs: Mapping[str, Constant] = {}
    holds: int = 1
    parts: int = 1
    mean: float = 1.0


class Remedy(msgspec.Struct, frozen=True):
    """A change, the time of a step with it in s, and by how many times the step becomes faster."""

    name: str
    what: str
    step_s: float
    speedup: float

    def saves(self, step: Step) -> float:
        """The share of the step's time that the change saves."""
        return 1 - self.step_s / step.unwatched_s if step.unwatched_s > 0 else 0.0


class Graph(msgspec.Struct, frozen=True):
    """The step with everything that can be captured replayed as ``graphs`` graphs: its time with an interval in s.

    The interval of ``speedup`` also holds that of the step without the recorder. ``making_s`` is what making the graphs
    takes: the calls of the step, capture, instantiation and upload.
    """

    step_s: float
    low_s: float
    high_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    graphs: int
    making_s: float
    break_even: int

    @property
    def doubtful(self) -> bool:
        """Whether the step may as well become slower."""
        return self.speedup_low < 1


class Without(msgspec.Struct, frozen=True):
    """The step without an owner's host time between calls: its time in s, and how many times faster it is, with an
    interval: the step's own time, how well it is played, and how few samples found the owner. The GPU may limit it."""

    step_s: float
    speedup: float
    speedup_low: float
    speedup_high: float


class Diagnosis(msgspec.Struct, frozen=True):
    """What a trace shows.

    ``idle`` covers the whole steps, or the whole trace if it has no steps. It is None if the trace is not good enough,
    and then ``why_no_idle`` says why. Likewise ``graph`` and ``why_no_graph``. ``run_id`` is the run that measured the
    costs, and ``costs_of`` the name of its GPU. ``without`` has what the step would take without each of its largest
    owners of host time, if it can be played. ``unwatched`` describes ``recorded.steps`` steps without the recorder's
    costs as a workload; None if the step cannot be played, and then ``why_no_graph`` says why. ``asked`` is the
    function whose calls were to be the steps. ``exchanged`` are the kernels of all windows, if some communicate.
    ``batched`` are the rates of the step's small copies without a call for each, where the run shows that to be faster.
    ``paused`` are a few steps with most of the idle time, which the others are described without. If all steps pause
    for most of the time, ``bound`` is that of the longest pause.
    """

    trace: Trace
    health: tuple[Check, ...]
    steps: Steps | None
    step: Step | None
    idle: Idle | None
    why_no_idle: str
    bound: Bound | None
    recorded: Recorded | None
    graph: Graph | None
    why_no_graph: str
    remedies: tuple[Remedy, ...]
    run_id: str
    costs_of: str = ""
    unwatched: Workload | None = None
    launch_costs: Mapping[str, float] = {}
    asked: str = ""
    exchanged: Exchanged | None = None
    without: Mapping[str, Without] = {}
    batched: Mapping[str, Constant] = {}
    paused: Paused | None = None

    def share(self, *causes: Cause) -> float:
        """The share of the time in which the GPU idles for these causes."""
        if self.idle is None or self.idle.span_s <= 0:
            return 0.0
        return sum(self.idle.causes[cause] for cause in causes) / self.idle.span_s


# GPUs whose link is an older generation of PCIe, with 16 lanes; the bytes of its packets, and what share of its highest
# rate pinned copies reach, as on an H200.
LINKS = (
    (re.compile(r"V100|P100|P40|T4\b|TITAN|RTX 20\d0\b|Quadro RTX|GTX"), 3),
    (re.compile(r"A100|A10G?\b|A30\b|A40\b|RTX A?[2-6][05]00|RTX [34]0\d0|L4\b|L40"), 4),
)
LANES, PACKET_BYTES, REACHED = 16, 256, 0.93


def _on_its_link(fit: Fit, trace: Trace, costs_of: str) -> Fit:
    """Costs of another GPU, with pinned copies as fast as the link of the trace's own GPU at the most."""
    names = " ".join(trace.gpus.values())
    generation = next((generation for pattern, generation in LINKS if pattern.search(names)), None)
    if generation is None or not another_gpu(trace, costs_of):
        return fit
    found = {}
    for direction in ("h2d", "d2h"):
        most, known = pcie_rate(generation, LANES, direction, PACKET_BYTES), fit.constants.get(f"{direction}_rate")
        if most is not None and known is not None and known.value > REACHED * most:
            found[f"{direction}_rate"] = REACHED * most
    return _with_values(fit, found)


def another_gpu(trace: Trace, costs_of: str) -> bool:
    """True if the trace names another GPU than the one whose costs are used."""
    return bool(costs_of and trace.gpus) and costs_of not in trace.gpus.values()


def diagnose(
    trace: Trace,
    fit: Fit,
    step_s: float | None = None,
    costs_of: str = "",
    *,
    elsewhere: bool = False,
    asked: str = "",
) -> Diagnosis:
    """Everything about a trace. ``step_s`` is the time of a step without the recorder, in s, where it is known;
    ``costs_of`` the name of the GPU whose costs the fit has, and ``elsewhere`` says that it is another machine's. Each
    call of the function ``asked`` for, like "train.py:step", is a step, if the trace tells them.

    Raises UsageError for a trace without work of a GPU.
    """
    if not len(trace.work):
        raise _without_work(trace)
    trace, moved = realigned(of_one_gpu(trace))
    fit = _on_its_link(fit, trace, costs_of)
    whole = trace
    trace = middle(one_window(trace))
    device = busiest(trace)
    steps = find_steps(trace, asked)
    if steps is not None and steps.found == "repetition":
        parts = other_parts(whole, trace, int(steps.calls[0]), int(steps.calls[-1]))
        steps = found_elsewhere(steps, parts)
    health, stopped, found = _idle(trace, steps, device, moved)
    if steps is not None and found is not None and _is_start(trace, steps, found):
        steps = None
        health, stopped, found = _idle(trace, None, device, moved)
    paused = None
    if steps is not None and found is not None:
        steps, paused = usual_steps(trace, steps, device)
    if paused is not None:
        health, stopped, found = _idle(trace, steps, device, moved)
    typical = _typical(trace, steps, device, found) if steps is not None else None
    costs = recorder_costs(typical, fit, trace.format) if typical is not None else {}
    known, given = None, None
    if step_s is not None and steps is not None and typical is not None:
        mean_s = paused.mean_s if paused is not None else steps.step_s
        given = _given(trace, steps, typical, costs, found, step_s, mean_s)
        known = Known(given.step_s, given.step_s, given.step_s)
    elif steps is not None:
        works_s = _works_s(trace, steps, found) if found is not None else 0.0
        known = between_windows(whole, trace, steps, works_s, paused is not None)
    beyond = ELSEWHERE if elsewhere or another_gpu(trace, costs_of) else 0.0
    pauses_s, free = 0.0, None
    if steps is not None and typical is not None:
        latencies = recorded_latencies(trace, device)
        others_s = (found.exposed_s + found.copies_s) / steps.count if found is not None else 0.0
        foreseen = _foreseen(steps, typical, fit, health, costs, known, latencies, beyond, others_s)
        pauses_s, free = typical.pauses_s * steps.count, foreseen.workload
        if known is None and found is not None:
            foreseen = _without_profiler(foreseen, found.causes["profiler"] / steps.count)
            foreseen = _on_gpu(foreseen, _works_s(trace, steps, found), found.copies_s / steps.count)
        if given is not None and foreseen.step is not None:
            told = msgspec.structs.replace(foreseen.step, holds=given.holds, parts=given.parts, mean=given.mean)
            foreseen = foreseen._replace(step=told)
        if free is not None:
            about = f"recorded by {trace.format}, {steps.count} steps; without the recorder's costs"
            free = msgspec.structs.replace(free, about=about, per_step=float(typical.steps))
    else:
        foreseen = Foreseen(None, "no step repeats in this trace" if len(trace.calls) else NO_CALLS)
    step, remedies = foreseen.step, foreseen.remedies
    # The verdict is the one with the likely cost of the recorder taken off. If no cause then has half of the idle time,
    # the least cost is taken off instead.
    ends_s = (step.unwatched_s, step.high_s) if step is not None else ()
    took_s = [max(step.watched_s - end_s, 0.0) * step.count for end_s in ends_s if step is not None]
    waited = _launched(trace, found)
    bounds = [_bound(waited, pauses_s, one_s, next(iter(remedies), None), step) for one_s in took_s or (0.0,)]
    if paused is not None and paused.most:
        bounds = [_bound(paused.longest, paused.longest.pauses_s, 0.0, None, step)]
    return Diagnosis(
        trace=trace,
        health=health,
        steps=steps,
        step=step,
        idle=found,
        why_no_idle="" if stopped is None else stopped.why,
        bound=next((bound for bound in bounds if bound != "mixed"), "mixed"),
        recorded=typical,
        graph=foreseen.graph,
        why_no_graph=foreseen.why_no_graph,
        remedies=remedies,
        run_id=fit.run_id,
        costs_of=costs_of,
        unwatched=free,
        launch_costs={name: cost.value for name, cost in fit.constants.items() if name.startswith("call.")},
        asked=asked,
        exchanged=exchanged(whole, device),
        without=foreseen.without,
        batched=batched(typical, fit) if typical is not None else {},
        paused=paused,
    )


def _typical(trace: Trace, steps: Steps, device: int, found: Idle | None) -> Recorded | None:
    """The step as it was recorded, as far as the idle time allows what it says of the host."""
    typical = recorded(trace, steps, layer_of(trace), device)
    if typical is None or found is None:
        return typical
    pauses_s = found.pauses_s / steps.count
    if not steps.recur or pauses_s > 2 * typical.pauses_s:  # it does not stand for the others
        typical = msgspec.structs.replace(typical, pauses_s=pauses_s)
    beyond = typical.paced_s is not None and typical.paced_s > (1 + PLAYED) * steps.step_s
    if beyond or found.idle_s < (1 - BUSY) * found.span_s:  # it waits for the GPU
        typical = msgspec.structs.replace(typical, paced_s=None)
    return typical


def _without_work(trace: Trace) -> UsageError:
    """Why a trace has no work of a GPU."""
    timeless = sum(count for kind, count in trace.unread.items() if any(words in kind for words in TIMELESS))
    launches = [name for at in trace.calls["name"].tolist() if "Launch" in (name := name_of(trace, at))]
    if timeless > len(launches) / 2:
        cause = f"{trace.source} does not say when a GPU worked: {counted(timeless, 'record')} of it cannot be read"
        return UsageError(f"{cause}, such as a time that is no number", "record again")
    if launches:
        return UsageError(
            f"{trace.source} has {counted(len(launches), 'launch', 'launches')}, but the profiler got no record of "
            "what the GPU did",
            f"let the program check its errors: {plain(launches[0])}"
            if FAILED in launches[0]
            else "let one profiler alone record, with the right to read the GPU's counters, and not under WSL",
        )
    why = next((what.removeprefix(UNRECORDED) for what in trace.lost if what.startswith(UNRECORDED)), "")
    again = "record CUDA activities (torch.profiler), or by nsys profile -t cuda the process that uses the GPU"
    if trace.format == "Nsight Systems":
        again = "see that the program itself ends well; then nsys profile -t cuda the process that uses the GPU"
    elif trace.format == "XLA profiler":
        again = "see that the program uses the GPU (nvidia-smi), and trace it again"
    return UsageError(f"{trace.source} has no work of a GPU{why}", again)


def _idle(
    trace: Trace, steps: Steps | None, device: int, known: tuple[Check, ...]
) -> tuple[tuple[Check, ...], Check | None, Idle | None]:
    """The checks of a trace behind those ``known``, the one that forbids to say its idle time, and that time. Lost
    calls forbid it only where the GPU idles much: a busy GPU is busy whoever submitted its work."""
    health = (*known, *checks(trace, steps))
    stopped = forbidden(health, "idle time")
    found = idle(trace, *window_of(trace, steps), device) if stopped is None or stopped.name == CALLS_LOST else None
    if stopped is None or found is None or found.idle_s > (1 - NEARLY_BUSY) * found.span_s:
        return health, stopped, found if stopped is None else None
    alone = msgspec.structs.replace(stopped, forbids=("prediction",))
    health = tuple(alone if one is stopped else one for one in health)
    stopped = forbidden(health, "idle time")
    return health, stopped, found if stopped is None else None


def window_of(trace: Trace, steps: Steps | None) -> tuple[int, int]:
    """When the diagnosed time begins and ends, in ns: the whole steps. Without steps it is from the first work to the
    last of the GPU that works longest."""
    if steps is not None:
        return int(steps.begins_ns[0]), int(steps.begins_ns[-1])
    work = trace.work
    if work["device"].min() < work["device"].max():
        work = work[work["device"] == busiest(trace)]
    return int(work["begin_ns"][0]), int(work["end_ns"].max())


def _launched(trace: Trace, found: Idle | None) -> Idle | None:
    """The idle time by cause, where calls that copy launch if all copies stay in the GPU's memory."""
    inside = MEMORIES.index("device")
    copies = trace.work[trace.work["kind"] == WORK_KINDS.index("copy")]
    if found is None or ((copies["source"] != inside) | (copies["target"] != inside)).any():
        return found
    causes = {**found.causes, "launch calls": found.causes["launch calls"] + found.causes["copies"], "copies": 0.0}
    return msgspec.structs.replace(found, causes=causes)


def _works_s(trace: Trace, steps: Steps, found: Idle) -> float:
    """The least time in s of a step in which the GPU works: kernels of several streams may run side by side for longer
    than they did, unless they hardly did while the GPU was busy all the time."""
    begin_ns, end_ns = window_of(trace, steps)
    work = trace.work[(trace.work["begin_ns"] < end_ns) & (trace.work["end_ns"] > begin_ns)]
    work = work[(work["device"] == found.device) & (work["kind"] != WORK_KINDS.index("copy"))]
    if not len(work):
        return found.busy_s / steps.count
    lasts_ns = np.minimum(work["end_ns"], end_ns) - np.maximum(work["begin_ns"], begin_ns)
    ends_ns = np.maximum.accumulate(work["end_ns"][np.argsort(work["begin_ns"], kind="stable")])
    begins_ns = np.sort(work["begin_ns"])
    beside_ns = np.maximum(ends_ns[:-1] - begins_ns[1:], 0).sum()
    if found.busy_s >= BUSY * found.span_s and beside_ns <= (1 - BUSY) * lasts_ns.sum():
        return found.busy_s / steps.count
    longest_s = float(np.bincount(np.unique(work["stream"], return_inverse=True)[1], lasts_ns).max()) * 1e-9
    return min(longest_s + found.exposed_s + found.copies_s, found.busy_s) / steps.count


def _no_shorter(step: Step, works_s: float) -> Step:
    """The step with times of at least ``works_s``, which the GPU works in it. Where all its times were less, it takes
    at most as long as recorded."""
    high_s = step.high_s if step.high_s > works_s else step.watched_s
    low_s, step_s = max(step.low_s, works_s), max(step.unwatched_s, works_s)
    return msgspec.structs.replace(step, unwatched_s=step_s, low_s=low_s, high_s=high_s)


def _given(
    trace: Trace, steps: Steps, typical: Recorded, costs: Mapping[str, Constant], found: Idle | None, given_s: float,
    mean_s: float,
) -> Given:  # fmt: skip
    """The step whose time was given, which lasts at least as long as the GPU works, and as the recorder's costs leave
    of it.

    Raises UsageError if there is none.
    """
    free, watched_s = unwatched(typical, costs), steps.step_s
    works_s = (found.busy_s - found.exposed_s) / steps.count / (1 + OTHER_RUN) if found is not None else 0.0
    least_s, likely_s = (max(watched_s - cost_s, works_s) for cost_s in (free.high_s, free.cost_s))
    return meant(trace, steps, typical.kernels, given_s, works_s, least_s, likely_s, mean_s)


def _bound(
    found: Idle | None, pauses_s: float, recorder_s: float, best: Remedy | None, step: Step | None
) -> Bound | None:
    """The cause of most of the idle time without the recorder; ``best`` is the remedy that saves most of ``step``.

    ``pauses_s`` is the program's own work in the window, ``recorder_s`` what the recorder took of the time between
    calls. Late launches count as wait-bound if removing waits saves most, and as far as the host had waited for a busy
    GPU before, which its own work behind the wait explains first.
    If faster copies save most, time in which only copies run counts as idle. Communication that no other work hides is
    no work: the step is communication-bound if no cause of idle time takes more, nor all that the host causes together.
    So are copies where no step tells what faster ones would save. Without steps, calls that do something for the first
    time are the program's start, long pauses are the program's own, and launches and pauses count together for the
    larger one. If the GPU itself pauses between queued kernels for that long, the step is GPU-bound.
    """
    if found is None or found.span_s <= 0:
        return None
    recorder_s = max(recorder_s - found.causes["profiler"], 0.0)
    recorder_s = min(recorder_s, sum(found.causes[cause] for cause in SUBMISSION))
    works_s = found.busy_s - found.exposed_s
    least = ENOUGH if step is None else NEARLY_BUSY
    span_s = found.span_s - found.causes["profiler"]
    if works_s >= least * span_s and (step is None or works_s >= BUSY * (span_s - recorder_s)):
        if found.copies_s > found.busy_s / 2:
            return "copy-bound"
        if step is not None or works_s - found.copies_s >= MOSTLY * span_s:
            return "GPU-bound"
    if step is None and _starts(found):
        return "start-up"
    pauses_s += sum(where.seconds for where in found.places if where.name in (MANAGED, ON_MANAGED))
    if step is None:  # pauses say nothing of how work is submitted
        pauses_s += found.pauses_s
    own_s = min(pauses_s, found.causes[BETWEEN])
    remedy = best.name if best is not None else ""
    copies_s = found.copies_s if remedy in FASTER_COPIES else 0.0
    shares: dict[Bound, float] = {
        "launch-bound": sum(found.causes[cause] for cause in SUBMISSION) - own_s - recorder_s,
        "host-bound": own_s,
        "wait-bound": sum(found.causes[cause] for cause in WAITING),
        "copy-bound": found.causes["copies"] + copies_s,
        "allocation-bound": found.causes["allocation"],
    }
    late_s = max(shares["launch-bound"], 0.0)
    waited_s = {"waits": late_s, "graph": 0.0}.get(remedy, min(max(found.waited_s - own_s, 0.0), late_s))
    shares["launch-bound"] -= waited_s
    shares["wait-bound"] += waited_s
    largest = max(shares, key=lambda name: shares[name])
    if found.exposed_s > max(shares[largest], found.idle_s - found.causes["device gaps"]):
        little = found.exposed_s < LITTLE * found.span_s and works_s > MOSTLY * found.span_s
        return "GPU-bound" if little else "communication-bound"
    half_s = (found.idle_s - found.causes["profiler"] + copies_s - recorder_s) / 2
    copying_s = found.copies_s + found.causes["copies"]
    if step is None and copying_s > max(shares[largest], found.causes["device gaps"], half_s + found.copies_s / 2):
        return "copy-bound"
    if shares[largest] >= half_s > 0:
        return largest
    launches_s = shares["launch-bound"]
    if step is None and launches_s + own_s >= half_s > 0:
        return "launch-bound" if launches_s > own_s else "host-bound"
    return "GPU-bound" if found.causes["device gaps"] >= half_s else "mixed"


def _is_start(trace: Trace, steps: Steps, found: Idle) -> bool:
    """Whether these steps are the program's start. Nobody marked them, and it loads code, or they are one region that
    holds such loading, or a few repetitions in a small part of the time that leave the GPU idle."""
    own = any(loop.own and loop.place == steps.name for loop in trace.loops)
    if steps.found == "annotations" or steps.calls_of or own:
        return False
    all_s = (int(trace.work["end_ns"].max()) - int(trace.work["begin_ns"].min())) * 1e-9
    if steps.found == "repetition" and steps.count <= FEW_STEPS and found.span_s < PART * all_s:
        return 2 * found.busy_s < found.span_s
    return _starts(found) or (steps.found == "region" and found.first_use_s > ONCE * found.span_s)


def _starts(found: Idle) -> bool:
    """Whether most of the idle time is the program's start, and not less than communication that nothing hides."""
    return found.first_use_s >= found.idle_s / 2 > 0 and found.idle_s >= found.exposed_s


class Foreseen(NamedTuple):
    """The step without the recorder, why it is no graph or that graph, each remedy alone, the step as a workload if it
    can be played, and what it takes without its owners of host time."""

    step: Step | None
    why_no_graph: str = ""
    graph: Graph | None = None
    remedies: tuple[Remedy, ...] = ()
    workload: Workload | None = None
    without: Mapping[str, Without] = {}


def _without_profiler(foreseen: Foreseen, seconds: float) -> Foreseen:
    """A step has none of the time in which the trace itself says that the GPU waits for the profiler."""
    if (step := foreseen.step) is None or not seconds:
        return foreseen
    most_s = step.watched_s - seconds
    ends = {name: min(getattr(step, name), most_s) for name in ("unwatched_s", "low_s", "high_s")}
    return foreseen._replace(step=msgspec.structs.replace(step, **ends))


def _on_gpu(foreseen: Foreseen, works_s: float, copied_s: float) -> Foreseen:
    """A step is no shorter than the GPU's work, even with a change. Where that makes it so long, only faster copies
    help, by no more than the GPU does nothing but copy."""
    if (step := foreseen.step) is None or not works_s:
        return foreseen
    limited = _no_shorter(step, works_s) if works_s > step.low_s else step
    least_s = dict.fromkeys(FASTER_COPIES, works_s - copied_s) | {"graph": 0.0}  # which has a least of its own
    times_s = [(one, max(one.step_s, least_s.get(one.name, works_s))) for one in foreseen.remedies]
    remedies = (Remedy(one.name, one.what, step_s, limited.unwatched_s / step_s) for one, step_s in times_s)
    worth = tuple(one for one in remedies if one.saves(limited) >= WORTH)
    most = limited.unwatched_s / works_s
    without = {
        name: Without(
            max(one.step_s, works_s), *(min(each, most) for each in (one.speedup, one.speedup_low, one.speedup_high))
        )
        for name, one in foreseen.without.items()
    }
    if works_s <= step.unwatched_s:
        return foreseen._replace(step=limited, remedies=worth, without=without)
    worth = tuple(one for one in worth if one.name in FASTER_COPIES)
    why = foreseen.why_no_graph or f"a graph would save less than {round_percent(WORTH)} of the step"
    return foreseen._replace(step=limited, remedies=worth, graph=None, why_no_graph=why, without=without)


def _step_of(steps: Steps, typical: Recorded, costs: Mapping[str, Constant], known: Known | None) -> Step:
    """The step as recorded, with its time without the recorder where that is known."""
    step_s = known.step_s if known is not None else steps.step_s
    return Step(
        count=steps.count,
        found=steps.found,
        name=steps.name,
        kernels=typical.kernels,
        work=typical.work,
        likeness=steps.likeness,
        every=steps.every,
        watched_s=steps.step_s,
        unwatched_s=step_s,
        low_s=known.low_s if known is not None else step_s,
        high_s=known.high_s if known is not None else step_s,
        given=known is not None and not known.measured,
        measured=known is not None and known.measured,
        costs=costs,
    )


def _foreseen(
    steps: Steps,
    typical: Recorded,
    fit: Fit,
    health: tuple[Check, ...],
    costs: Mapping[str, Constant],
    known: Known | None,
    latencies: Mapping[str, float],
    beyond: float,
    others_s: float,
) -> Foreseen:
    """``beyond`` is the share of the graph's step by which its interval is wider. In ``others_s`` of the recorded step
    the GPU did nothing but copy or communicate."""
    watched_s = steps.step_s
    if known is not None and known.measured and not LEAST_GIVEN <= known.step_s / watched_s <= MOST_GIVEN:
        known = None  # the program did something else there
    step = _step_of(steps, typical, costs, known)
    if typical.work * typical.steps > MOST_PLAYED:
        long = f"more than {MOST_PLAYED:,} kernels and copies repeat, too many to be played"
        return Foreseen(step, _why_no_graph(typical, health, 0.0) or long)
    with_own = with_calls(fit, typical.workload)
    if absent := missing(with_own, typical.workload, WAYS):
        why = f"run {fit.run_id} has no figures of {', '.join(absent)}, which `{run_command(absent)}` measures"
        return Foreseen(step, why)
    fit = _free_calls(with_own, typical.workload)
    off = step_time(typical.workload, _as_recorded(fit, latencies), "stream") / typical.steps / watched_s - 1
    why = _why_no_graph(typical, health, off)
    if "gap_copy" in latencies:
        fit = _with_values(fit, {"gap_copy": latencies["gap_copy"]})
    if typical.paced_s is not None:
        if known is None:
            paced_s = typical.paced_s
            step = msgspec.structs.replace(step, unwatched_s=paced_s, low_s=paced_s, high_s=paced_s)
        return Foreseen(step, why, without=_without(typical, typical.workload, fit, step, health, off))
    free = unwatched(typical, costs)
    workload = free.workload if known is None else _lasting(typical, fit, known.step_s)
    alone_s = step_time(workload, fit, "stream") / typical.steps
    if known is None:
        step = _with_interval(step, typical, fit, workload, (free.high_s - free.low_s) / 2, off)
    without = _without(typical, workload, fit, step, health, off)
    if why:
        return Foreseen(step, why, without=without)
    described = beyond_calls(workload, with_own.values)
    step_s = step.unwatched_s
    longer = max(step_s / alone_s, 1.0)  # the GPU may have run at another clock than under the recorder
    tried = (
        (name, what, step_time(changed, fit, way) * longer / typical.steps)
        for name, what, changed, way in _remedies(workload, typical, fit)
    )
    remedies = [Remedy(name, what, one_s, step_s / one_s) for name, what, one_s in tried]
    worth = tuple(sorted((one for one in remedies if one.saves(step) >= WORTH), key=lambda one: one.step_s))
    if all(one.name != "graph" for one in worth):
        why = f"a graph would save less than {round_percent(WORTH)} of the step"
        return Foreseen(step, why, None, worth, described, without)
    graph = _graph(workload, typical, fit, step, longer, off, beyond, others_s)
    if graph.high_s >= step.unwatched_s:
        rest = tuple(one for one in worth if one.name != "graph")
        why = "what a graph would save is less than the prediction's uncertainty"
        return Foreseen(step, why, None, rest, described, without)
    if graph.doubtful:  # what surely helps comes first
        worth = tuple(sorted(worth, key=lambda one: one.name == "graph"))
    return Foreseen(step, "", graph, worth, described, without)


def _with_interval(step: Step, typical: Recorded, fit: Fit, workload: Workload, around_s: float, off: float) -> Step:
    """The step with its time without the recorder, which reaches ``around_s`` either way because of the recorder, as
    far as processes differ, and by the share ``off`` by which the step as recorded is played too short or too long.
    What the typical step lacks of the mean one is added."""
    alone_s = step_time(workload, fit, "stream") / typical.steps
    lacks_s = -off * step.watched_s if off < -PLAYED else 0.0
    step_s = step.watched_s if typical.replays else min(alone_s + lacks_s, step.watched_s)
    faster_s, slower_s = (
        step_time(scaled(workload, host), fit, "stream") / typical.steps - alone_s
        for host in (1 - PROCESSES, 1 + PROCESSES)
    )
    return msgspec.structs.replace(
        step,
        unwatched_s=step_s,
        low_s=max(step_s - math.hypot(around_s, faster_s, off * step_s), 0.0),
        high_s=step_s + math.hypot(around_s, slower_s, off * step_s),
    )


def _why_no_graph(typical: Recorded, health: tuple[Check, ...], off: float) -> str:
    """Why nothing is predicted; empty if something is. ``off`` is how much too long the recorded step is played."""
    if typical.replays:
        return REPLAYS
    stopped = forbidden(health, "prediction")
    if stopped is not None:
        return stopped.why
    if not typical.launches:
        return "the step launches no kernels"
    if typical.refused:
        return typical.refused
    if typical.paced_s is not None:
        return f"the step waits for something that comes every {as_time(typical.paced_s)}, such as a loader's batch"
    if abs(off) > PLAYED:
        how = "long" if off > 0 else "short"
        return f"microbench plays the recorded step {percent(abs(off))} too {how} (limit {round_percent(PLAYED)})"
    return ""


def _free_calls(fit: Fit, workload: Workload) -> Fit:
    """The fit with calls of launches and copies that take no time, because recorded host times include them."""
    names = {call_name(workload.layer, part.arguments) for part in workload.parts if isinstance(part, Kernels)}
    names.update(copy_name(part) for part in workload.parts if isinstance(part, Copies))
    free = {name: msgspec.structs.replace(fit.constants[name], value=0.0, low=0.0, high=0.0) for name in names}
    # A program's kernels are model code, also where no framework launches them: its gaps hold those of large grids.
    gaps = {"wide_graph": around(0.0, 0.0, ())}
    if "code_graph" in fit.constants:
        gaps["write_graph"] = fit.constants["code_graph"]
    return msgspec.structs.replace(fit, constants={**fit.constants, **free, **gaps})


def _as_recorded(fit: Fit, latencies: Mapping[str, float]) -> Fit:
    """The fit with the latencies that the trace itself shows, which have the recorder's costs in them."""
    whole_gap = {"write_stream": 0.0, "one_stream_stream": 0.0} if "gap_stream" in latencies else {}
    return _with_values(fit, {**latencies, **whole_gap})


def _with_values(fit: Fit, values: Mapping[str, float]) -> Fit:
    known = {name: around(value, 0.0, ()) for name, value in values.items()}
    return msgspec.structs.replace(fit, constants={**fit.constants, **known})


def _lasting(typical: Recorded, fit: Fit, step_s: float) -> Workload:
    """The workload with its host time scaled so that a step takes ``step_s``. It becomes longer than it was recorded
    only where the host makes the step long, which was slower then; else the GPU was."""
    on_gpu_s = step_time(scaled(typical.workload, 0.0), fit, "stream") / typical.steps
    low, high = 0.0, 2 * MOST_GIVEN if on_gpu_s < ON_GPU * step_s else 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        longer = step_time(scaled(typical.workload, middle), fit, "stream") > step_s * typical.steps
        low, high = (low, middle) if longer else (middle, high)
    return scaled(typical.workload, high)


def _without(
    typical: Recorded, workload: Workload, fit: Fit, step: Step, health: tuple[Check, ...], off: float
) -> dict[str, Without]:
    """How long the step takes without the host time of one owner, for each of the largest owners.

    If a step begins at fixed times, only waits are left out. The interval is wider the fewer samples found the owner,
    and the more the recorder itself cost.
    """
    if forbidden(health, "prediction") is not None or abs(off) > PLAYED or step.unwatched_s <= 0:
        return {}
    ends = [scaled(workload, end_s / step.unwatched_s) for end_s in (step.unwatched_s, step.low_s, step.high_s)]
    alone_s = [step_time(one, fit, "stream") for one in ends]
    each_s = {owner: sum(owned.values()) / typical.steps for owner, owned in typical.owned.items()}
    largest = sorted((owner for owner in each_s if typical.paced_s is None or owners.awaits(owner)),
                     key=lambda owner: -each_s[owner])[:MOST_OWNERS]  # fmt: skip
    found = {}
    for owner in largest:
        if each_s[owner] < LEAST_OWNED * step.watched_s:
            break
        samples = each_s[owner] * step.count / (typical.every_ns * 1e-9) if typical.every_ns else math.inf
        unsure = min(math.hypot(LIKELY / math.sqrt(samples), 1 - step.unwatched_s / step.watched_s), 1.0)
        likely, shorter, longer, more = (
            alone_s[at] / step_time(_less(ends[at], typical.workload, typical.owned[owner], share), fit, "stream")
            for at, share in ((0, 1.0), (1, 1.0), (2, 1.0), (0, 1 + unsure))
        )
        around = abs(off) * max(likely - 1, 0.0)
        fewer = 1 / (1 - (1 - unsure) * (1 - 1 / likely))
        less = math.hypot(likely - min(likely, shorter, longer), likely - fewer, around)
        beyond = math.hypot(max(likely, shorter, longer) - likely, more - likely, around)
        found[owner] = Without(step.unwatched_s / likely, likely, max(likely - less, min(likely, 1.0)), likely + beyond)
    return found


def _less(workload: Workload, recorded: Workload, owned: Mapping[int, float], share: float) -> Workload:
    """The workload without a share of what an owner has of the host time as ``recorded``, part by part."""
    parts = list(workload.parts)
    for place, owned_s in owned.items():
        part, before = parts[place], recorded.parts[place]
        if isinstance(part, HostWork) and isinstance(before, HostWork):
            parts[place] = HostWork(part.seconds * max(1 - share * owned_s / before.seconds, 0.0))
        elif isinstance(part, Kernels | Copies) and isinstance(before, Kernels | Copies) and before.host_s:
            left = max(1 - share * owned_s / before.host_s, 0.0)
            parts[place] = msgspec.structs.replace(part, host_s=(part.host_s or 0.0) * left)
    return msgspec.structs.replace(workload, parts=tuple(parts))


def _remedies(workload: Workload, typical: Recorded, fit: Fit) -> Iterator[tuple[str, str, Workload, Way]]:
    """Each remedy alone: its name, what to do, the step with that done, and how it is submitted.

    Kernels side by side share the SMs of a graph. In a stream they were as slow as they were recorded.
    """
    yield "graph", "capture the step and replay it as a graph", _replayed(workload, typical, fit), "graph"
    for name, what in CHANGES.items():
        changes = typical.changes.get(name, {})
        other = msgspec.structs.replace(workload, parts=tuple(_changed(workload, changes)))
        if changes and all(one in fit.constants for one in needed(other, "stream")):
            yield name, what, other, "stream"
    for way, rate in batched(typical, fit).items():
        pieces, piece_bytes, recorded_rate = cast("SmallCopies", typical.small_copies)
        # A single copy of as many bytes as take so long.
        copied_s = len(pieces) * piece_bytes / rate.value - fit.constants["h2d_latency"].value
        equal_bytes = max(round(copied_s * fit.constants["h2d_rate"].value), 1)
        others = {*pieces[1:]}
        left = [part for place, part in enumerate(workload.parts) if place not in others]
        left[pieces[0]] = msgspec.structs.replace(workload.parts[pieces[0]], size_bytes=equal_bytes)
        what = f"{len(pieces)} copies of {size(piece_bytes)}: {quantity(recorded_rate, 'B/s')}; "
        what += f"{BATCHED[way][0]} {quantity(rate.value, 'B/s')}"
        yield way, what, msgspec.structs.replace(workload, parts=tuple(left)), "stream"
    yield "fuse", "fuse kernels in pairs", _in_pairs(workload), "stream"
    if LOOP_CALL in fit.constants and workload.layer != LOOP_LAYER:
        call_s = fit.constants[LOOP_CALL].value
        calls = tuple(
            msgspec.structs.replace(part, host_s=min(part.host_s or 0.0, call_s)) if isinstance(part, Kernels) else part
            for part in workload.parts
        )
        yield (
            "layer",
            "submit the whole step from compiled code, without Python",
            msgspec.structs.replace(workload, parts=calls),
            "stream",
        )


def _changed(workload: Workload, changes: Mapping[int, Part | None]) -> Iterator[Part]:
    """The step's parts with others in some places. Without a wait of the host, work still follows what the other
    streams had before it: who waits in between needs their results."""
    numbers = itertools.count(1 + max((part.number for part in workload.parts if isinstance(part, Event)), default=0))
    for place, part in enumerate(workload.parts):
        if (new := changes.get(place, part)) is not None:
            yield new
        elif isinstance(part, Wait) and workload.streams > 1:
            events = [Event(next(numbers), stream) for stream in range(workload.streams)]
            yield from events
            for event in events:
                others = (stream for stream in range(workload.streams) if stream != event.stream)
                yield from (Event(event.number, stream, awaited=True) for stream in others)


def batched(typical: Recorded, fit: Fit) -> dict[str, Constant]:
    """What rate the step's small copies reach in other ways, those whose whole interval is above the recorded rate, and
    that are faster than the run's own copies of that size, which no recorder slowed down."""
    if (small := typical.small_copies) is None:
        return {}
    several = {way: batched_rate(known, len(small.places), small.piece_bytes) for way, known in fit.batches.items()}
    rates = {way: rate for way, rate in several.items() if rate is not None}
    loop = rates["loop"].value if "loop" in rates else 0.0
    return {way: rate for way, rate in rates.items() if way in BATCHED and rate.low > small.rate and rate.value > loop}


def _in_pairs(workload: Workload) -> Workload:
    """Each second of two neighbouring kernels of a stream becomes part of the first: its launch is gone."""
    parts: list[Part] = []
    single = False
    for part in workload.parts:
        last = parts[-1] if parts else None
        if single and isinstance(part, Kernels) and isinstance(last, Kernels) and last.stream == part.stream:
            both_s = last.durations_s[0] + part.durations_s[0]
            parts[-1], single = msgspec.structs.replace(last, durations_s=(both_s,)), False
        else:
            parts.append(part)
            single = isinstance(part, Kernels)
    return msgspec.structs.replace(workload, parts=tuple(parts))


def _graph(
    workload: Workload,
    typical: Recorded,
    fit: Fit,
    step: Step,
    longer: float,
    off: float,
    beyond: float,
    others_s: float,
) -> Graph:
    """The step as graphs, with its interval, and what making them takes. It is no shorter than the kernels of one
    stream."""
    shortest, replayed, longest = (_replayed(workload, typical, fit, end) for end in ("low", "typical", "high"))
    workload = filled(workload, fit)
    pauses = typical.changes.get("pauses", {})
    own_s = sum(
        part.seconds for place, part in enumerate(workload.parts) if place in pauses and isinstance(part, HostWork)
    )
    found = predict(replayed, fit, "graph", own_s)
    less_s, more_s = _unknown(replayed, fit, found.step_s)
    host_s = (found.step_s - step_time(shortest, fit, "graph"), step_time(longest, fit, "graph") - found.step_s)
    less_s += math.hypot(found.step_s - found.low_s, off * found.step_s, host_s[0]) + beyond * found.step_s
    more_s += math.hypot(found.high_s - found.step_s, off * found.step_s, host_s[1]) + beyond * found.step_s
    ends = found.step_s, max(found.step_s - less_s, 0.0), found.step_s + more_s
    works_s: dict[int | None, float] = defaultdict(float)
    for part in workload.parts:
        if isinstance(part, Kernels):
            works_s[part.stream] += sum(part.durations_s)
    least_s = max(works_s.values(), default=0.0) / typical.steps - others_s
    step_s, low_s, high_s = (max(each * longer / typical.steps, least_s) for each in ends)
    making_s = sum(making(workload, fit, step.unwatched_s * typical.steps)) * typical.shapes / typical.steps
    speedup, before_s = step.unwatched_s / step_s, step.unwatched_s
    fewer = math.hypot(1 - step.low_s / before_s, 1 - step_s / high_s)
    more = math.hypot(step.high_s / before_s - 1, step_s / low_s - 1) if low_s > 0 else math.inf
    return Graph(
        step_s=step_s,
        low_s=low_s,
        high_s=high_s,
        speedup=speedup,
        speedup_low=max(speedup * (1 - fewer), 0.0),
        speedup_high=speedup * (1 + more),
        graphs=max(round(len(graphs(workload)) / typical.steps), 1),
        making_s=making_s,
        break_even=max(math.ceil(making_s / (step.unwatched_s - step_s)), 1),
    )


def _replayed(workload: Workload, typical: Recorded, fit: Fit, end: End = "typical") -> Workload:
    """The step as it is submitted by graphs: with the host's time between a wait and the next graph, and at one end of
    what is not known of the host.

    Behind a wait the first launch takes longer than a usual one. A graph has none of what the framework does there, and
    all of what the program does. What comes before the turn of the loop ends is the program's, and what comes after it
    is most likely the framework's; at most half of it is not. Where no turn is known, half of all is likely, the least
    is none, and the most is all that is beyond a usual launch, or half of the launch.
    """
    workload = filled(workload, fit)
    launches_s = [part.host_s or 0.0 for part in workload.parts if isinstance(part, Kernels)]
    usual_s = statistics.median(launches_s) if launches_s else 0.0
    ends_steps = sum(isinstance(part, Wait) for part in workload.parts) == typical.steps
    parts: list[Part] = []
    for place, part in enumerate(workload.parts):
        if isinstance(part, Kernels | Copies) and isinstance(workload.parts[place - 1], Wait):
            host_s = part.host_s or 0.0
            beyond_s = max(host_s - usual_s, 0.0)
            least_s, likely_s, most_s = 0.0, beyond_s / 2, max(beyond_s, host_s / 2)
            if (place == 0 or ends_steps) and typical.turning_s is not None:
                least_s, likely_s = typical.turning_s, typical.turning_s
                most_s = likely_s + beyond_s / 2
            parts.append(HostWork({"low": least_s, "typical": likely_s, "high": most_s}[end]))
        elif isinstance(part, HostWork) and place in typical.unsure:
            likely_s, least_s = typical.unsure[place]
            part = HostWork({"low": least_s, "typical": likely_s, "high": part.seconds}[end])
        parts.append(part)
    return msgspec.structs.replace(workload, parts=tuple(parts))


def _unknown(workload: Workload, fit: Fit, step_s: float) -> tuple[float, float]:
    """By how many seconds the graphs may be shorter and longer because kernels side by side slow each other down.

    The SMs that they share make it the least, so it may be twice as much, or half.
    """
    alone = [
        msgspec.structs.replace(part, sm_share=0.0) if isinstance(part, Kernels) else part for part in workload.parts
    ]
    less_s = (step_s - step_time(msgspec.structs.replace(workload, parts=tuple(alone)), fit, "graph")) / 2
    return max(less_s, 0.0), max(2 * less_s, 0.0)


def each(diagnosis: Diagnosis, figure: float) -> float:
    """A figure of the window, like its seconds, as one of a step; that of the whole window without steps."""
    return figure / diagnosis.steps.count if diagnosis.steps is not None else figure

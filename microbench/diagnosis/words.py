"""Writes the findings of a diagnosis, the verdict first: what the GPU waits for, and what to change."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from microbench.analysis.evidence import Finding, Severity, listed
from microbench.core.units import as_time, counted, percent, plain, quantity, round_percent, size, times, two_times
from microbench.diagnosis import advice
from microbench.diagnosis.building import building, built_s
from microbench.diagnosis.communication import PLUMBING, Collective, launching
from microbench.diagnosis.diagnosis import (
    BUSY,
    ENOUGH,
    FASTER_COPIES,
    NEARLY_BUSY,
    REPLAYS,
    WORTH,
    Bound,
    Diagnosis,
    Graph,
    Step,
    another_gpu,
    each,
    window_of,
)
from microbench.diagnosis.gpu_use import fp32_s, gpu_use, in_turn_s, on_managed_s, pages_s, unfilled_s, unfused_s
from microbench.diagnosis.graph_use import graph_use, per_parameter
from microbench.diagnosis.health import FEW_PIECES, HELD, MOST_UNKNOWN, WITHOUT
from microbench.diagnosis.host_time import BACKWARD, BETWEEN, DOINGS, by_name, doing
from microbench.diagnosis.idle import SUBMISSION, Cause, Idle, gaps_of, owners, said
from microbench.diagnosis.kernel_names import family
from microbench.diagnosis.owners import (
    AWAITS,
    COMPILED,
    COMPILES,
    ELSEWHERE,
    FRAMEWORK,
    GARBAGE,
    HELPS,
    LOADER,
    LOCK,
    NAMELESS,
    OPERATORS,
    OWN,
    REQUESTS,
    WAITING,
    Owner,
    meanwhile,
)
from microbench.diagnosis.recorded import BLOCKING, COPY_IN, FEWEST_PIECES, Blocker, Recorded, computes, values_read
from microbench.diagnosis.steps import PAUSE_S, pause_time, to_host, unnumbered
from microbench.diagnosis.window import OTHERS
from microbench.model.constants import BATCHED, Constant
from microbench.model.workload import Copies, Kernels
from microbench.traces.trace import (
    MAIN_AT,
    MEMORIES,
    NONE,
    RANGE_KINDS,
    WORK_KINDS,
    Format,
    Processor,
    Table,
    Trace,
    name_of,
)

SUITE = "diagnose"

# Shares of the time above which idle time is a problem, a warning, or worth naming at all.
PROBLEM, WARNING, NAMED = 0.5, 0.1, 0.03
TYPED = re.compile(r"[A-Za-z][\w .:/#-]{0,59}")  # names that --step takes
PAUSING: tuple[Bound, ...] = ("launch-bound", "host-bound", "mixed", "GPU-bound")
LONGEST_PAUSES, MARKED = 2, 4  # named
PAGEABLE = 0.05  # of the time is worth naming for copies from and to pageable memory
MANY_WAITS = 0.01  # waits for each kernel or copy: with more of them a graph would hold little
READY = 0.05  # of the sampled time in which a thread is ready to run and has no processor
SEEN = 0.5  # of the time, in which the kernel's count must have been read
MEANWHILE = 0.25  # of a wait, in which the thread that is waited for works at one line
LONGEST_NAME, MOST_SHOWN = 100, 3
LARGE = 1 << 20  # bytes of a copy whose rate says something
WAIT = BLOCKING["wait"]
WAITS = (WAIT, COPY_IN)
COPIES = (COPY_IN, "copies pageable memory")
OWN_WORK, BUILDS = "the program's own work", "building kernels in libraries"
OF_GRAPHS = ("diagnose.graph_part", "diagnose.graph_made", "diagnose.slow_replay")  # what graph_use says of them
FEWEST_LAUNCHES = 10  # for each time that a step stops, of one that may be captured in large pieces
# A speed-up whose interval reaches further than this share is shown with the range.
WIDE = 0.15
DATA_BYTES = 1 << 20  # of a copy to the host that is no value, but data
NO_FASTER = "the step is no faster"

BOUNDS: dict[Bound, str] = {
    "launch-bound": "the host submits work more slowly than the GPU does it",
    "host-bound": "the GPU waits for other work of the host",
    "wait-bound": "the GPU runs dry because the host or a stream waits",
    "copy-bound": "the GPU waits for copies",
    "communication-bound": "the GPU exchanges data with other GPUs, or waits for them, and computes nothing meanwhile",
    "allocation-bound": "the GPU waits for memory to be allocated and freed",
    "GPU-bound": "the GPU is busy",
    "start-up": "the program loads or compiles code, and gets memory for the first time",
    "mixed": "no cause takes half of the idle time",
}


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """All findings; the first is the verdict, if the trace can carry one."""
    gains = _gains(diagnosis)
    changes = [
        one
        for of in (
            _best,
            _of_graph,
            _small_copies,
            _long_pauses,
            _pauses,
            _paused_steps,
            _communication,
            _causes,
            _interruptions,
            graph_use,
            gpu_use,
            building,
        )
        for one in of(diagnosis)
    ]
    if diagnosis.why_no_graph == REPLAYS and any(one.rule in OF_GRAPHS for one in changes):
        changes = [one for one in changes if one.rule != "diagnose.no_graph"]  # the graphs have their own finding
    found = [
        *_verdict(diagnosis),
        *_given(diagnosis),
        *_health(diagnosis),
        *([] if _to_be_timed(diagnosis) else _watched(diagnosis)),
        *_machine(diagnosis),
        *_before(diagnosis),
        *sorted(changes, key=lambda one: -gains.get(one.rule, 0.0)),
        *_processor(diagnosis, diagnosis.trace.processor),
    ]
    if diagnosis.bound in (None, "GPU-bound") or any(one.severity == "advice" and one.advice for one in found):
        return found
    if whose := list(_owner(diagnosis)):
        return [*found, *whose]
    return [replace(one, severity="advice") if one.rule == "diagnose.watched" else one for one in found]


def _gains(diagnosis: Diagnosis) -> Mapping[str, float]:
    """By how many s of a step each kind of advice may make it shorter, by its rule."""
    step, idle, graph = diagnosis.step, diagnosis.idle, diagnosis.graph
    if idle is None:
        return {}
    free_s = step.unwatched_s if step is not None else 0.0
    late_s, causes = _late_s(diagnosis), {f"diagnose.{cause.replace(' ', '_')}": cause for cause in idle.causes}
    graph_s = free_s - graph.step_s if graph is not None else late_s
    ladder, builds_s = advice.ladder(diagnosis), each(diagnosis, built_s(diagnosis)[0])
    optimizer = per_parameter(diagnosis) if diagnosis.bound in advice.SUBMITTING else None
    return {rule: each(diagnosis, idle.causes[cause]) for rule, cause in causes.items()} | {
        "diagnose.best": free_s - diagnosis.remedies[0].step_s if diagnosis.remedies else 0.0,
        "diagnose.small_copies": free_s - min(_with_s(diagnosis, way) for way in BATCHED),
        "diagnose.waits": each(diagnosis, idle.causes["waits"] + _waited_s(diagnosis)),
        "diagnose.wait_behind": free_s - _with_s(diagnosis, "waits"),
        "diagnose.graph": graph_s, "diagnose.blockers": graph_s, "diagnose.pieces": graph_s,
        "diagnose.library": graph_s, "diagnose.graph_part": graph_s,
        "diagnose.interruptions": max(each(diagnosis, idle.causes["waits"]), late_s / 2),  # no graph holds them
        "diagnose.ladder": free_s - ladder.step_s if ladder is not None else 0.0,
        "diagnose.pauses": max(_own_s(diagnosis) - builds_s, _awaiting_s(diagnosis)),
        "diagnose.communication": each(diagnosis, idle.exposed_s),
        "diagnose.copies_alone": each(diagnosis, idle.copies_s),
        "diagnose.kernels": each(diagnosis, idle.busy_s) / 10,  # of kernels of which nothing more is known
        "diagnose.migrations": each(diagnosis, pages_s(diagnosis)),
        "diagnose.on_managed": each(diagnosis, on_managed_s(diagnosis)), "diagnose.start_up": math.inf,
        "diagnose.one_pause": max(idle.longest_s, idle.pauses_s),
        "diagnose.building": builds_s,
        # One argument, so it comes before a graph.
        "diagnose.optimizer": math.inf if optimizer is not None and optimizer.share > 1 / 2 else 0.0,
        "diagnose.paused_steps": diagnosis.paused.seconds / diagnosis.paused.of if diagnosis.paused else 0.0,
        "diagnose.in_turn": in_turn_s(diagnosis),
        "diagnose.unfilled": each(diagnosis, unfilled_s(diagnosis)),
        "diagnose.unfused": each(diagnosis, unfused_s(diagnosis)[0]) / 3,
        "diagnose.fp32": each(diagnosis, fp32_s(diagnosis)[0]) / 2,  # tensor cores leave less than half of it
    }  # fmt: skip


def _awaiting_s(diagnosis: Diagnosis) -> float:
    """The time of a step in s that goes without the wait that has most of its pauses, such as for Python's lock."""
    step, recorded = diagnosis.step, diagnosis.recorded
    most = _pausing(diagnosis, recorded) if recorded is not None else None
    without = diagnosis.without.get(most.name) if most is not None and most.name.startswith(WAITING) else None
    return step.unwatched_s - without.step_s if step is not None and without is not None else 0.0


def _late_s(diagnosis: Diagnosis) -> float:
    """The time of a step in s in which the GPU idles because work is submitted late, without the program's own work."""
    return launch_share(diagnosis) * each(diagnosis, diagnosis.idle.span_s) if diagnosis.idle is not None else 0.0


def _with_s(diagnosis: Diagnosis, remedy: str) -> float:
    """The time in s of a step with that remedy; inf if it gains nothing."""
    return next((one.step_s for one in diagnosis.remedies if one.name == remedy), math.inf)


def most_often(trace: Trace) -> str:
    """The work that takes most time: "most is my_kernel, 1200 times in 52.0 ms"."""
    name, ns, often, _ = _longest(trace, trace.work)[0]
    return f"most is {name}, {counted(often, 'time')} in {as_time(ns * 1e-9)}"


def each_longest(trace: Trace) -> Iterator[tuple[str, list[str]]]:
    """What the GPU did and what the host called for most time, of a trace that is too short for a verdict."""
    for what, table in (("GPU works", trace.work), ("host calls", trace.calls)):
        said = []
        for name, ns, often, moved in _longest(trace, table)[:MOST_SHOWN]:
            copied = name.startswith("Mem")
            rate = f" at {quantity(moved / ns * 1e9, 'B/s')}" if copied and ns and moved > often * LARGE else ""
            name = name if copied else plain(family(name).name)
            said.append(f"{name} {as_time(ns * 1e-9)}{rate}{f', {often} times' * (often > 1)}")
        yield what, said


def _longest(trace: Trace, table: Table) -> list[tuple[str, int, int, int]]:
    """Work or calls by name, those with most time first: their ns, how often they are there, and their bytes."""
    names, place, often = np.unique(table["name"], return_inverse=True, return_counts=True)
    ns = np.bincount(place, table["end_ns"] - table["begin_ns"])
    moved = np.bincount(place, np.maximum(table["bytes"], 0)) if "bytes" in (table.dtype.names or ()) else ns * 0
    return [
        (plain(name_of(trace, int(names[at])), LONGEST_NAME), int(ns[at]), int(often[at]), int(moved[at]))
        for at in np.argsort(-ns, kind="stable").tolist()
    ]


def cause_words(diagnosis: Diagnosis, cause: Cause) -> str:
    """A cause with its time: "Python and framework time between CUDA calls 4.55 ms"."""
    idle = diagnosis.idle
    return f"{said(diagnosis.trace, cause)} {as_time(each(diagnosis, idle.causes[cause] if idle is not None else 0.0))}"


def owner_words(diagnosis: Diagnosis, owner: Owner) -> tuple[str, str]:
    """An owner of host time between calls: its time, share and function with what the step takes without it, and what
    usually helps, "" if nothing does."""
    idle, trace = diagnosis.idle, diagnosis.trace
    span_s = idle.span_s if idle is not None else owner.seconds
    only = "#" in owner.name and owner.most_s > (1 - NAMED) * owner.seconds  # the others of its kind do not count
    name = f"code in {owner.most}" if only else owner.name
    said = f"{plain(name)} {as_time(each(diagnosis, owner.seconds))} ({percent(owner.seconds / span_s)})"
    if not name.endswith(owner.most):
        place = plain(owner.most, LONGEST_NAME)
        if owner.most.startswith(MAIN_AT):
            place = f"while the main thread is at {place.removeprefix(MAIN_AT)}"
        elif owner.name != LOCK:
            place = f"in {place}"
        said += f", most {place} {as_time(each(diagnosis, owner.most_s))}"
    said += _meanwhile(diagnosis, owner)
    helps = owner.helps
    paced = diagnosis.recorded is not None and diagnosis.recorded.paced_s is not None
    if diagnosis.bound == "start-up" or (paced and not owner.name.startswith(WAITING)):
        helps = ""  # of later steps, and of what a loader's pace hides, nothing is known
    elif owner.name == ELSEWHERE and advice.program_of(trace) == "jax":
        helps = HELPS["jax"]
    elif owner.name == NAMELESS:
        helps = _naming(trace)
    elif built_s(diagnosis)[0] > owner.seconds / 2 and owner.seconds > built_s(diagnosis)[0] / 2:
        helps = "keep shapes the same, so that libraries build kernels once"
    elif _computes(diagnosis, owner):
        helps = "do on the GPU what of it computes on the CPU"
    elif owner.name == OWN and diagnosis.graph is not None:
        helps += "; a graph saves its launches"
    without = without_words(diagnosis, owner.name)
    return said + without, "" if without.endswith(NO_FASTER) else helps


def _meanwhile(diagnosis: Diagnosis, owner: Owner) -> str:
    """Words for the line where another thread works during this wait; "" if there is none."""
    other, share = meanwhile(diagnosis.trace, owner.name, *window_of(diagnosis.trace, diagnosis.steps))
    return f"; meanwhile another thread is at {plain(other, LONGEST_NAME)}" if share > MEANWHILE else ""


def owner_lines(diagnosis: Diagnosis, shown: Sequence[Owner], found: Sequence[Finding]) -> list[str]:
    """A line for each of these owners. What helps is said once, and not where the advice of these findings is to make
    a graph, which saves the same."""
    graph = any(one.rule == "diagnose.graph" and one.severity == "advice" for one in found)
    said = [HELPS[name] for name in (OPERATORS, "torch.optim", "cupy") if graph]
    lines: list[str] = []
    for owner in shown:
        line, helps = owner_words(diagnosis, owner)
        lines.append(f"{line}; {helps}" if helps and helps not in said else line)
        said.append(helps)
    return lines


def _owner(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Who has most of the host's time, if the step would be faster without it: for traces without better advice."""
    idle, trace = diagnosis.idle, diagnosis.trace
    found = [one for one in owners(idle) if one.seconds > NAMED * idle.span_s] if idle is not None else []
    most = next((one for one in found if not without_words(diagnosis, one.name).endswith(NO_FASTER)), None)
    if most is None:
        yield from _largest_cause(diagnosis)
        return
    said, helps = owner_words(diagnosis, most)
    if not helps and trace.format == "PyTorch profiler":
        helps = "record with stacks, which name what it does: torch.profiler.profile(with_stack=True)"
    if not helps:
        yield from _largest_cause(diagnosis)
    else:
        yield Finding(
            rule="diagnose.owner",
            severity="advice",
            title=f"Between CUDA calls the host's time goes to {said}",
            text="",
            threshold=f"no other advice fits, and it has more than {round_percent(NAMED)} of the time",
            advice=f"{helps[0].upper()}{helps[1:]}",
        )


def _largest_cause(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What the GPU waits for most, where no owner of the host's time has a share worth naming."""
    if (idle := diagnosis.idle) is None:
        return
    cause = max(idle.causes, key=lambda one: idle.causes[one])
    place = next((f", most in {plain(one.name, LONGEST_NAME)}" for one in idle.places if one.cause == cause), "")
    title = f"The GPU idles most for {cause_words(diagnosis, cause)}{place}"
    change = _changes(diagnosis).get(cause, ("", ""))[1]
    change = f"{change[:1].upper()}{change[1:]}" or "`--timeline` shows where"
    if cause in SUBMISSION:
        change = "Launch fewer kernels: fuse them, or make what repeats one CUDA graph, and wait once, behind the last"
    if cause == "profiler":
        change = "Record fewer steps, or fewer kinds of events, so that its buffers are not written among them"
    if cause == "unknown":
        title = f"Work waits in its queue for {as_time(each(diagnosis, idle.causes[cause]))} while the GPU does nothing"
        change = "Another program, or the display, may have the GPU then: `nvidia-smi` shows who uses it"
    yield Finding(
        rule="diagnose.owner",
        severity="advice",
        title=title,
        text="",
        threshold="no other advice fits",
        advice=change,
    )


def _computes(diagnosis: Diagnosis, owner: Owner) -> bool:
    """Whether the operator of PyTorch with most time computes on the CPU: its calls are long, and submit nothing."""
    trace = diagnosis.trace
    if owner.name != OPERATORS or owner.most not in trace.names:
        return False
    own = trace.ranges[trace.ranges["name"] == trace.names.index(owner.most)]
    submitting = np.sort(trace.calls["begin_ns"][trace.work["call"][trace.work["call"] != NONE]])
    submits = np.diff(np.searchsorted(submitting, np.stack([own["begin_ns"], own["end_ns"]])), axis=0)
    return len(own) > 0 and bool(np.median(own["end_ns"] - own["begin_ns"]) > PAUSE_S * 1e9) and not submits.any()


def _naming(trace: Trace) -> str:
    """What names the host's code where the trace lacks it."""
    if trace.format == "PyTorch profiler":
        return "" if len(trace.ranges) else "record CPU activities to name it"
    if trace.format != "microbench recording" or trace.samples is not None:
        return ""
    if computes(trace):
        return "it computes: `perf record -g` names its functions"
    if "Python" in trace.versions:
        return "record without --no-stacks to name it"
    return (
        "keep microbench's PYTHONPATH, with Python 3.9 or newer, to name it"
        if re.match(r"python[0-9.]*-", trace.source)
        else ""
    )


def without_words(diagnosis: Diagnosis, owner: str) -> str:
    """What the step takes without an owner's host time: "; without it 2.1× as fast (1.8 to 2.4×)"; "" if that is not
    known."""
    without, step, idle = diagnosis.without.get(owner), diagnosis.step, diagnosis.idle
    if without is None or step is None or idle is None:
        return ""
    if without.speedup < 1 + WORTH:
        return f"; without it {NO_FASTER}"
    range_ = ""
    if without.speedup_high - without.speedup_low > WIDE * without.speedup:
        range_ = f" ({times(without.speedup_low).removesuffix('×')} to {times(without.speedup_high)})"
    limited = ", then the GPU is the limit" if each(diagnosis, idle.busy_s) >= BUSY * without.step_s else ""
    return f"; without it {times(without.speedup)} as fast{range_}{limited}"


def _unprofiled_share(works_s: float, step: Step, recorded: float) -> str:
    """In which share of a step the GPU works without the profiler, if it works ``works_s`` of it."""
    least, likely, most = (min(works_s / max(one, works_s), 1.0) for one in (step.high_s, step.unwatched_s, step.low_s))
    if most - least <= NAMED:
        return percent(likely)
    return f"{percent(least)} to {percent(most)}" if least > recorded else f"up to {percent(most)}"


def _verdict(diagnosis: Diagnosis) -> Iterator[Finding]:
    idle, bound = diagnosis.idle, diagnosis.bound
    if idle is None or bound is None:
        return
    share = idle.idle_s / idle.span_s
    exposed = idle.exposed_s / idle.span_s
    paused = diagnosis.paused
    if paused is not None and paused.most:
        title = (
            f"{bound}: {paused.steps} of {paused.of} steps pause for {percent(paused.share)} of the time; the GPU works"
        )
        yield Finding(
            rule="diagnose.bound",
            severity="problem",
            title=f"{title[0].upper()}{title[1:]} {percent(1 - share)} of each other step of "
            f"{as_time(each(diagnosis, idle.span_s))}",
            text=f"In short, {BOUNDS[bound]} in the longest pause.",
            threshold="steps pause for more than half of the time: what takes half of the longest one's idle time",
        )
        return
    lost = (
        share
        + exposed
        + (paused.share if paused and not paused.other else 0.0)
        + (idle.copies_s / idle.span_s if bound == "copy-bound" else 0.0)
    )
    causes = sorted(idle.causes, key=lambda cause: -idle.causes[cause])
    named = [cause_words(diagnosis, cause) for cause in causes if idle.causes[cause] > NAMED * idle.span_s][:3]
    span = "each recorded step" if diagnosis.steps is not None else "the trace"
    if diagnosis.steps is not None and diagnosis.steps.found == "region":
        span = plain(diagnosis.steps.name, LONGEST_NAME)
    severity: Severity = (
        "good"
        if bound == "GPU-bound" and (not paused or paused.other)
        else "problem"
        if lost > PROBLEM
        else "warning"
        if lost > WARNING
        else "note"
    )
    few = share > 1 - NEARLY_BUSY and diagnosis.steps is None
    gaps = idle.causes["device gaps"] / idle.span_s if bound == "GPU-bound" else 0.0
    pauses = gaps > 2 * WARNING  # graphs of short kernels have half of it
    if bound == "GPU-bound" and (few or pauses or max(unfilled_s(diagnosis) / idle.span_s, exposed) > WARNING):
        severity = "warning"
    which, of = "the GPU", f"{span} of {as_time(each(diagnosis, idle.span_s))}"
    if np.ptp(diagnosis.trace.work["device"]):
        which = f"GPU {idle.device}"
        of = of if diagnosis.steps is not None else f"the {as_time(idle.span_s)} from its first work to its last"
    title = f"{bound}: {which} works {percent(1 - share)} of {of}"
    step = diagnosis.step
    if pauses:
        title += f", and pauses for {percent(gaps)} between kernels in its queue"
    elif bound == "GPU-bound" and 1 - share < BUSY and step is not None:
        without = _unprofiled_share(each(diagnosis, idle.busy_s), step, 1 - share)
        title += f", and {without} without the profiler" if without != percent(1 - share) else ""
    if bound == "communication-bound" or (bound == "GPU-bound" and exposed > WARNING):
        title += f", but {percent(exposed)} is communication that no other work hides"
    if bound == "launch-bound" and (launch_s := launch_time(diagnosis)) is not None:
        graphs = diagnosis.recorded is not None and diagnosis.recorded.replays
        title += f", because the host takes {as_time(launch_s)} a launch{' of a kernel or a graph' if graphs else ''}"
    if any(check.name == HELD for check in diagnosis.health):
        title += ", and work waits in its queue meanwhile"
    blockers = diagnosis.recorded.blockers if diagnosis.recorded is not None else ()
    if bound == "wait-bound" and (waits := sum(one.count for one in blockers if one.why in WAITS)):
        title += f", because the host waits {counted(max(round(waits), 1), 'time')} in it"
    if bound == "host-bound" and diagnosis.recorded is not None:
        most = _pausing(diagnosis, diagnosis.recorded)
        waits = most is not None and most.name.startswith(WAITING)
        what, own_s = (plain(most.name), most.seconds) if most is not None and waits else (OWN_WORK, _own_s(diagnosis))
        if what == OWN_WORK and (builds_s := each(diagnosis, built_s(diagnosis)[0])) > own_s / 2:
            what, own_s = BUILDS, builds_s
        title += f", because {what} takes {as_time(each(diagnosis, own_s) if waits else own_s)} of it"
    if paused and not paused.other:
        title += f", but {paused.steps} of {paused.of} steps pause"
    yield Finding(
        rule="diagnose.bound",
        severity=severity,
        title=title[0].upper() + title[1:],
        text=f"In short, {BOUNDS[bound]}. Of that it idles for: {', '.join(named) if named else 'no cause of note'}.",
        threshold="what takes at least half of the idle time, communication more than all of it; GPU-bound from "
        f"{round_percent(BUSY if step is not None else ENOUGH)} of the time on",
    )


FRACTIONS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}


def _or_a_part(diagnosis: Diagnosis) -> str:
    """What to look at in a trace with a start, if an annotation of its second half holds some of the work."""
    trace, (begin_ns, end_ns) = diagnosis.trace, window_of(diagnosis.trace, None)
    marks = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("annotation")]
    later = marks[marks["begin_ns"] > (begin_ns + end_ns) // 2]
    begins_ns = np.sort(trace.work["begin_ns"])
    inside = np.diff(np.searchsorted(begins_ns, np.stack([later["begin_ns"], later["end_ns"]])), axis=0).ravel()
    most = name_of(trace, later["name"][np.argmax(inside)]) if len(later) else ""
    if not TYPED.fullmatch(most) or inside.max() <= WARNING * len(begins_ns):
        return ""
    return f", or look at a marked part: --step '{most}'"


def _marked(diagnosis: Diagnosis) -> list[str]:
    """The names of the annotations that take most time, without their numbers."""
    trace = diagnosis.trace
    marks = trace.ranges[trace.ranges["kind"] == RANGE_KINDS.index("annotation")]
    names, place = np.unique(marks["name"], return_inverse=True)
    took = Counter[str]()
    for name, ns in zip(names, np.bincount(place, marks["end_ns"] - marks["begin_ns"]), strict=True):
        own = name_of(trace, name)
        took[unnumbered(own) or own] += int(ns)
    return [name for name, _ in took.most_common() if TYPED.fullmatch(name)][:MARKED]


def _given(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Which step a given time is of, if that is not the one that repeats; and whether the function asked for is one."""
    step, steps = diagnosis.step, diagnosis.steps
    if diagnosis.asked and (steps is None or not steps.calls_of):
        lacking = "no loop that it timed calls it" if diagnosis.trace.loops else "it has no turns of loops of Python"
        if diagnosis.trace.format != "microbench recording":
            lacking = "it has no calls of it"
        title = f"The trace does not tell when {plain(diagnosis.asked, LONGEST_NAME)} is called: {lacking}"
        change = "Name the loop's own line, or record with Python 3.12 or newer, and with samples, for longer"
        if ":" not in diagnosis.asked:
            title, most = f"No step is an annotation called {plain(diagnosis.asked, LONGEST_NAME)}", _marked(diagnosis)
            change = f"The longest annotations are {listed(most)}" if most else "Annotate the step to name it"
        yield Finding(
            rule="diagnose.asked",
            severity="warning",
            title=title,
            text="",
            threshold="--step names a function, a line or an annotation",
            advice=change,
        )
    if step is None or step.holds == step.parts == step.mean == 1:
        return
    marked = step.found in ("annotations", "region")
    repeats = f"the {as_time(step.watched_s)} that {'is annotated' if marked else 'repeats'}"
    if step.mean != 1:
        do, does = (
            ("pause", "pause") if diagnosis.paused is None or not diagnosis.paused.other else ("do other work", "do so")
        )
        title = (
            f"{as_time(step.unwatched_s * step.mean)} is taken as the mean of all steps, those that {do} included: of "
            f"that a step that does not {does} has {as_time(step.unwatched_s)}"
        )
    elif step.holds > 1:
        part = FRACTIONS.get(step.holds, f"1/{step.holds}")
        title = (
            f"{as_time(step.unwatched_s / step.holds)} is {part} of {repeats}: {step.holds} kinds of steps take turns, "
            "and a step here is all of them"
        )
    else:
        title = (
            f"{as_time(step.unwatched_s * step.parts)} is {step.parts} times {repeats}: a step here is one of "
            f"{step.parts} equal parts of yours"
        )
    yield Finding(
        rule="diagnose.given",
        severity="note",
        title=title,
        text="",
        threshold="--step is shorter than the step can be without the recorder, or longer than it was recorded, or "
        "nearer to the mean of all steps",
    )


def _health(diagnosis: Diagnosis) -> Iterator[Finding]:
    idle = diagnosis.idle
    for check in diagnosis.health:
        most = check.name == HELD and idle is not None and 2 * check.share * idle.span_s > idle.idle_s
        native = check.name == FEW_PIECES and said(diagnosis.trace, BETWEEN) != BETWEEN
        single = "; `microbench measure FILE.cu:KERNEL` says what limits a single kernel" * native
        if check.forbids:
            yield Finding(
                rule="diagnose.health",
                severity="advice" if most else "warning",
                title=check.title or check.words + (f" ({percent(check.share)})" if check.share else ""),
                text=f"{check.meaning[0].upper()}{check.meaning[1:]}. No {' and no '.join(check.forbids)} is given.",
                threshold="a check that forbids a verdict",
                advice=check.advice + single,
            )
        elif check.name.endswith(WITHOUT):
            yield Finding(
                rule="diagnose.window",
                severity="note",
                title=check.title
                or f"A later window is left out: {check.count} {check.name.removeprefix('left out: ')}",
                text="",
                threshold=f"more than {percent(MOST_UNKNOWN)} of all launches, or of another window's, have no record",
            )


def _watched(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What the recorder takes of a step."""
    step = diagnosis.step
    if (
        step is not None
        and not step.given
        and not step.measured
        and step.watched_s - step.unwatched_s > NAMED * step.watched_s
    ):
        took = "a part" if assumes(step) else f"about {as_time(step.watched_s - step.unwatched_s)}"
        yield Finding(
            rule="diagnose.watched",
            severity="note",
            title=f"The profiler took {took} of each step: without it {two_times(step.low_s, step.high_s)}",
            text=_recorder_words(step),
            threshold=f"more than {round_percent(NAMED)} of the recorded step",
            advice="Give the true time of a step by --step TIME" + _better(diagnosis.trace.format, step),
        )


def _better(format: Format, step: Step) -> str:
    """Other ways to learn the recorder's costs."""
    if format == "microbench recording":
        return ", or record the program for longer: microbench watch pauses, and finds it there"
    return ", or measure the profiler's costs: microbench run launch_watched" if assumes(step) else ""


# What the recorder's costs are of.
RECORDED = {"call": "a call", "operator": "an operator", "function": "a Python function"}


def assumes(step: Step) -> bool:
    """Whether a cost of the recorder was not measured."""
    return any(cost.assumed for cost in step.costs.values())


def _recorder_words(step: Step) -> str:
    each = listed([f"{as_time(cost.value)} {RECORDED[name]}" for name, cost in step.costs.items()])
    if not assumes(step):
        return f"Recording takes {each}, which launch_watched measured."
    why = dict.fromkeys(cost.assumed for cost in step.costs.values() if cost.assumed)
    return f"Recording takes {each}. Assumed: {'; '.join(why)}."


def _machine(diagnosis: Diagnosis) -> Iterator[Finding]:
    if diagnosis.graph is not None and another_gpu(diagnosis.trace, diagnosis.costs_of):
        recorded_on = min(diagnosis.trace.gpus.values())
        yield Finding(
            rule="diagnose.machine",
            severity="warning",
            title=f"The trace is of {plain(recorded_on)}, the costs are of {plain(diagnosis.costs_of)}",
            text="What a graph gives rests on costs of launches, gaps and waits, which differ between machines.",
            threshold="the names of the GPUs differ",
            advice="Run `microbench run` on the machine of the trace, and give that run by --run",
        )


def other_work(trace: Trace, count: int) -> str:
    """What a trace has besides kernels: "copy" or "copies", "memsets", or both."""
    kinds = {WORK_KINDS[kind] for kind in set(trace.work["kind"].tolist())} - {"kernel"}
    if len(kinds) > 1:
        of_all = ("copy, memset or replay", "copies, memsets and replays")
        return (of_all if "graph" in kinds else ("copy or memset", "copies and memsets"))[count != 1]
    names = {"copy": ("copy", "copies"), "graph": ("replay", "replays")}
    return names.get(next(iter(kinds), ""), ("memset", "memsets"))[count != 1]


def speedup(diagnosis: Diagnosis) -> str:
    """By how many times a step is faster as a graph, with the range where it is wide: "about 2.1× (1.5 to 2.9×)". The
    range alone where the step's own time is only assumed; "" without a graph."""
    graph, step = diagnosis.graph, diagnosis.step
    if graph is None:
        return ""
    if graph.speedup_low > 1 and graph.speedup_high - graph.speedup_low <= 2 * WIDE * graph.speedup:
        return times(graph.speedup)
    range_ = f"{times(graph.speedup_low).removesuffix('×')} to {times(graph.speedup_high)}"
    if step is not None and not (step.measured or step.given) and assumes(step):
        return range_
    return f"about {times(graph.speedup)} ({range_})"


def _to_be_timed(diagnosis: Diagnosis) -> bool:
    """Whether nobody can tell if a graph helps, because the recorder's costs are assumed."""
    graph, step = diagnosis.graph, diagnosis.step
    unsure = graph is not None and graph.doubtful and graph.graphs <= advice.MOST_GRAPHS
    return unsure and step is not None and not (step.given or step.measured)


def _graph(diagnosis: Diagnosis) -> Iterator[Finding]:
    graph, step = diagnosis.graph, diagnosis.step
    if step is None or diagnosis.recorded is None:
        return
    if graph is None:
        replays, why = diagnosis.recorded.replays, diagnosis.why_no_graph
        if replays and advice.program_of(diagnosis.trace) == "jax":
            why = f"XLA's command buffers are graphs, and each step replays {counted(round(replays) or 1, 'graph')}"
        unpredicted = _unpredicted(diagnosis, diagnosis.recorded)
        if diagnosis.recorded.launches or replays:
            yield Finding(
                rule="diagnose.no_graph",
                severity="note",
                title=("What a graph would give is not predicted: " if unpredicted else "No graph is advised: ") + why,
                text="",
                threshold=f"a graph is advised if it saves {round_percent(WORTH)} of a step that can be predicted",
            )
        return
    how = "as a graph" if graph.graphs <= 1 else f"as {graph.graphs} graphs"
    replaced = f" {REPLACED}" if diagnosis.recorded.replaceable else ""
    if graph.doubtful:
        target = advice.target(diagnosis)
        ways = [f"Time both by `microbench graph {target}`"] * bool(target)
        assumed = _to_be_timed(diagnosis)
        ways += [f"{'or g' if ways else 'G'}ive the time of a step without the profiler by --step TIME"] * assumed
        takes = f"{how} a step takes {as_time(graph.step_s)} ({two_times(graph.low_s, graph.high_s)})"
        title, text = f"Whether a graph helps is not known: {takes}, {speedup(diagnosis)} as fast", ""
        if assumed:
            without, most = two_times(step.low_s, step.high_s), times(graph.speedup_high)
            title = f"{takes[0].upper()}{takes[1:]}; without the profiler it takes {without}, so a graph makes it at "
            title, text = f"{title}most {most} as fast", f" {_recorder_words(step)}"
        yield Finding(
            rule="diagnose.graph",
            severity="advice" if assumed else "note",
            title=title,
            text=f"The interval holds 1, at which it is no faster.{text}{replaced}",
            threshold=f"a graph likely saves {round_percent(WORTH)} of the step, but may save nothing",
            advice=", ".join(ways) + (_better(diagnosis.trace.format, step) if assumed else ""),
        )
        return
    if graph.graphs > advice.MOST_GRAPHS:
        yield from _in_pieces(diagnosis, diagnosis.recorded, graph)
        return
    pays = f"pays off after {counted(graph.break_even, 'step')}"
    kinds = diagnosis.recorded.shapes
    shapes = f"{kinds} kinds of steps take turns, and each needs a graph of its own. " if kinds > 1 else ""
    yield Finding(
        rule="diagnose.graph",
        severity="advice",
        title=(
            f"Replayed {how} a step takes {as_time(graph.step_s)} ({two_times(graph.low_s, graph.high_s)}), "
            f"{speedup(diagnosis)} as fast; capture takes {as_time(graph.making_s)}, {pays}"
        ),
        text=f"{shapes}A replay uses the memory of the capture: write results in place, and compare a replay with a "
        f"step.{replaced}",
        threshold=f"a graph saves at least {round_percent(WORTH)} of the step",
        advice=f"{advice.how(diagnosis)}{_except(diagnosis, graph)}{_inputs(diagnosis.recorded)}",
    )


def _in_pieces(diagnosis: Diagnosis, recorded: Recorded, graph: Graph) -> Iterator[Finding]:
    """What must go before a graph is worth its name."""
    within = _within(recorded)
    most = within[0] if within else None
    what = blocker_words(most) if most is not None else "What the program does between its launches"
    generates = advice.program_of(diagnosis.trace) == "generate"  # whose waits are the library's own
    change = advice.first(diagnosis, within[:1]) if within else "Do that before the step"
    yield Finding(
        rule="diagnose.pieces",
        severity="advice",
        title=f"{what} parts the step into {graph.graphs} pieces, so it is no graph yet",
        text=f"With each piece as a graph a step would take {as_time(graph.step_s)}, {speedup(diagnosis)} as fast.",
        threshold=f"more than {advice.MOST_GRAPHS} graphs a step",
        advice=advice.how(diagnosis) if generates else change,
    )
    if not generates:
        yield _by_library(diagnosis, "Then the step can be captured")


def _by_library(diagnosis: Diagnosis, title: str) -> Finding:
    """What to change in a program of this library."""
    return Finding(
        rule="diagnose.library",
        severity="advice",
        title=title,
        text="",
        threshold="how the library of the program submits a step in fewer calls",
        advice=advice.how(diagnosis),
    )


def _library(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What a program of this library can do where no graph is foreseen, or a faster way to launch."""
    late = f"The GPU waits {as_time(_late_s(diagnosis))} of {{}} for work to be submitted; what a graph saves of it is "
    late += "not predicted"
    if diagnosis.recorded is None:
        if diagnosis.bound == "launch-bound" and advice.program_of(diagnosis.trace) != "other":
            calls = by_name(diagnosis.trace, doing)[diagnosis.trace.calls["name"]]
            waits = np.count_nonzero(calls == DOINGS.index("wait"))
            often = waits > 1 and waits > MANY_WAITS * len(diagnosis.trace.work)
            first = f". Remove the host's {waits} waits first: no graph holds them" if often else ""
            yield _by_library(diagnosis, late.format("the trace") + first)
        return
    if diagnosis.bound not in advice.SUBMITTING:
        return
    if (found := advice.ladder(diagnosis)) is not None and found.speedup > 1 + WORTH:
        title, text = advice.ladder_words(found)
        yield Finding(
            rule="diagnose.ladder",
            severity="advice",
            title=title,
            text="",
            threshold=f"another layer saves {round_percent(WORTH)} of the step by the run's own costs",
            advice=text,
        )
    blockers = diagnosis.recorded.blockers  # a pageable copy also has a wait
    stops = [sum(one.count for one in blockers if one.why == why) for why in advice.FIRST]
    unbroken = not diagnosis.recorded.replays and diagnosis.recorded.launches >= FEWEST_LAUNCHES * max(stops)
    if _unpredicted(diagnosis, diagnosis.recorded) and unbroken and diagnosis.bound == "launch-bound":
        yield _by_library(diagnosis, late.format("each step"))
    elif diagnosis.graph is None and advice.program_of(diagnosis.trace) in ("jax", "generate"):
        yield _by_library(diagnosis, f"Each step makes {counted(round(diagnosis.recorded.calls), 'CUDA call')}")


def _unpredicted(diagnosis: Diagnosis, recorded: Recorded) -> bool:
    """Whether what a graph would give is unknown, where none was found to give nothing."""
    known = diagnosis.graph is not None or diagnosis.unwatched is not None
    return not (known or recorded.replays or recorded.paced_s is not None)


REPLACED = "A capture may replace kernels, such as attention's; `microbench measure` captures the step for real."


def _except(diagnosis: Diagnosis, graph: Graph) -> str:
    """What a capture must not contain."""
    blockers = () if diagnosis.recorded is None else diagnosis.recorded.blockers
    if not blockers or not _outside(graph, blockers):
        return ". The calls named below stay outside" if blockers else ""
    named = blockers[: advice.MOST_NAMED]
    copies = [one for one in named if one.where == "ahead" and one.why in COPIES]
    made = [one for one in copies if advice.of_target(diagnosis, one.place)]
    ahead = [blocker_words(one) for one in named if one.where == "ahead" and one not in made]
    behind = [blocker_words(one) for one in named if one.where != "ahead" and one not in made]
    kept = [f"{listed(ahead)} ahead of the replay"] * bool(ahead)
    kept += [f"{listed(behind)} behind {'it' if ahead else 'the replay'}"] * bool(behind)
    copied = listed([plain(one.place) for one in made])
    changes = [f"Make on the GPU what is copied in {copied}, or pass it in"] * bool(made)
    changes += [f"Keep {', and '.join(kept)}"] * bool(kept)
    return f". {'. '.join(changes)}: a capture cannot hold {'it' if len(named) == 1 else 'them'}"


def _inputs(recorded: Recorded) -> str:
    """What to do with copies to the GPU between kernels."""
    parts = recorded.workload.parts
    first = next((place for place, part in enumerate(parts) if isinstance(part, Kernels)), len(parts))
    copies = any(isinstance(part, Copies) and part.direction == "h2d" for part in parts[first:])
    return ". Copy inputs in ahead of it: a replay reads the host memory of its capture" if copies else ""


def _outside(graph: Graph, blockers: Sequence[Blocker]) -> bool:
    """Whether no call that a graph cannot hold lies between the step's kernels."""
    return graph.graphs == 1 and all(one.where != "within" for one in blockers)


def _within(recorded: Recorded) -> tuple[Blocker, ...]:
    """The calls that part the step into pieces; all that no graph can hold where none does."""
    return tuple(one for one in recorded.blockers if one.where == "within") or recorded.blockers


def _of_graph(diagnosis: Diagnosis) -> Iterator[Finding]:
    yield from _graph(diagnosis)
    yield from _blockers(diagnosis)
    yield from _library(diagnosis)


# Remedies that the calls to change are named with: why these are in the way, and what a step is without that.
BEST = {
    "waits": (WAITS, "Without waiting for the GPU inside it"),
    "pinned": (("copies pageable memory",), "With pinned memory"),
}


def _best(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The remedy that saves most, if it is one of BEST; others have findings of their own."""
    for best in diagnosis.remedies[:1]:
        if best.name in BEST and diagnosis.recorded is not None:
            why, name = BEST[best.name]
            which = [blocker_words(one) for one in diagnosis.recorded.blockers if one.why in why][:2]
            yield Finding(
                rule="diagnose.best",
                severity="advice",
                title=f"{name} a step takes {as_time(best.step_s)}, {times(best.speedup)} as fast"
                + _than(diagnosis.step),
                text="No other single change saves more.",
                threshold=f"the change that saves most, if it saves {round_percent(WORTH)} of the step",
                advice=best.what[0].upper() + best.what[1:] + (f": {'; '.join(which)}" if which else ""),
            )


def _than(step: Step | None) -> str:
    """What a gain is held against, if that is not the recorded step: " as the 53.1 ms without the profiler"."""
    if step is None or step.watched_s - step.unwatched_s <= NAMED * step.watched_s:
        return ""
    return f" as the {as_time(step.unwatched_s)} without the profiler"


def _small_copies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Small copies that the run's figures show to be faster in one call."""
    recorded = diagnosis.recorded
    if recorded is None or recorded.small_copies is None or not diagnosis.batched:
        return
    places, piece_bytes, recorded_rate = recorded.small_copies
    fastest = sorted(diagnosis.batched, key=lambda way: -diagnosis.batched[way].value)
    ways = [f"{BATCHED[way][0]} {rate_words(diagnosis.batched[way])}" for way in fastest]
    remedy = next((one for one in diagnosis.remedies if one.name in fastest), None)
    saves = f". A step then takes {as_time(remedy.step_s)}, {times(remedy.speedup)} as fast" if remedy else ""
    where = f"on {plain(diagnosis.costs_of)} " if another_gpu(diagnosis.trace, diagnosis.costs_of) else ""
    title = f"{len(places)} copies of {size(piece_bytes)} reach {quantity(recorded_rate, 'B/s')} as recorded; {where}"
    yield Finding(
        rule="diagnose.small_copies",
        severity="advice" if remedy is not None else "note",
        title=f"{title}{', '.join(ways)}{saves}",
        text="That is what link_batch measured, with all addresses at hand.",
        threshold=f"{FEWEST_PIECES} copies or more of alike size from pinned memory in a stream; advice if another way "
        f"saves {round_percent(WORTH)} of the step",
        advice="Copy them by " + "; where the SMs are busy, by ".join(BATCHED[way][1] for way in fastest),
    )


def rate_words(rate: Constant) -> str:
    """A rate, with its range where that is wide."""
    wide = rate.high - rate.low > WIDE * rate.value
    range_ = f" ({quantity(rate.low, 'B/s')} to {quantity(rate.high, 'B/s')})" if wide else ""
    return quantity(rate.value, "B/s") + range_


def _blockers(diagnosis: Diagnosis) -> Iterator[Finding]:
    recorded = diagnosis.recorded
    graph = diagnosis.graph
    if recorded is None or not recorded.blockers or graph is None:
        return
    if graph.graphs > advice.MOST_GRAPHS or graph.doubtful:
        return
    if _outside(graph, recorded.blockers):
        wait = next((one for one in recorded.blockers if (one.where, one.why) == ("behind", WAIT)), None)
        step_s = _with_s(diagnosis, "waits")
        if wait is not None and step_s < math.inf and diagnosis.remedies[0].name != "waits":
            faster = next(one.speedup for one in diagnosis.remedies if one.name == "waits")
            yield Finding(
                rule="diagnose.wait_behind",
                severity="advice",
                title=f"{blocker_words(wait)} ends each step: without that wait alone a step takes "
                f"{as_time(step_s)}, {times(faster)} as fast",
                text="",
                threshold=f"waiting for the GPU behind a step costs {round_percent(WORTH)} of it",
                advice="Wait once in several steps, graph or not",
            )
        return
    within = _within(recorded)
    named = [blocker_words(blocker) for blocker in within[: advice.MOST_NAMED]]
    yield Finding(
        rule="diagnose.blockers",
        severity="advice",
        title=f"{'; '.join(named)} cannot be captured in a graph",
        text="They part the step into pieces. What lies between two of them can be one graph.",
        threshold="a wait, a pageable copy, an allocation or a module load inside the step",
        advice=advice.first(diagnosis, within),
    )


def _interruptions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What a step stops for again and again, where no graph says so."""
    recorded = diagnosis.recorded
    if recorded is None or diagnosis.graph is not None or recorded.replays or diagnosis.bound not in advice.SUBMITTING:
        return
    if recorded.blockers and recorded.blockers[0].count >= 2:
        yield Finding(
            rule="diagnose.interruptions",
            severity="advice",
            title=f"Each step stops for {'; '.join(map(blocker_words, recorded.blockers[: advice.MOST_NAMED]))}",
            text="",
            threshold="twice or more in a step, and no graph is foreseen",
            advice=advice.first(diagnosis, recorded.blockers),
        )


def _before(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Warn of a long time beside the steps in which the GPU does nothing: before its first work, or once later."""
    trace, steps, idle = diagnosis.trace, diagnosis.steps, diagnosis.idle
    if idle is None or (steps is not None and steps.found != "repetition") or diagnosis.bound == "start-up":
        return
    first_ns, last_ns = int(trace.work["begin_ns"].min()), int(trace.work["end_ns"].max())
    again = "If that comes again and again, it is what makes the program slow: record several rounds"
    gaps = gaps_of(trace.work, idle.device, first_ns, last_ns)
    once_s = float((gaps.end_ns - gaps.begin_ns).max(initial=0)) * 1e-9
    if steps is not None and once_s > steps.count * steps.step_s:
        yield Finding(
            rule="diagnose.before",
            severity="warning",
            title=f"Beside the {steps.count} steps the GPU once does nothing for {as_time(once_s)} of the trace of "
            f"{as_time((last_ns - first_ns) * 1e-9)}",
            text="",
            threshold="one idle interval is longer than all steps",
            advice=again,
        )
    behind_ns = window_of(trace, steps)[1] if steps is not None else last_ns
    lasts_ns = (gaps.end_ns - gaps.begin_ns) * (gaps.begin_ns >= behind_ns)
    behind_s = float(lasts_ns.sum()) * 1e-9
    much_s = max(idle.idle_s, WARNING * (last_ns - first_ns) * 1e-9)
    if steps is not None and once_s <= steps.count * steps.step_s and behind_s > much_s:
        yield Finding(
            rule="diagnose.before",
            severity="warning",
            title=f"After the {steps.count} steps the GPU idles longer than during them: {as_time(behind_s)} of the "
            f"last {as_time((last_ns - behind_ns) * 1e-9)}",
            text="",
            threshold=f"more than in all steps, and than {round_percent(WARNING)} of the trace",
            advice=again,
        )
    own = ~np.isin(trace.ranges["kind"], [RANGE_KINDS.index(kind) for kind in ("overhead", "driver")])
    tables = (table[table["end_ns"] <= first_ns] for table in (trace.ranges[own], trace.calls))
    (most, most_ns, begin_ns), (call, call_ns, called_ns) = map(_longest_name, tables)
    begin_ns = min(begin_ns, called_ns)
    if by_call := call_ns > most_ns:
        most, most_ns = call, call_ns
    if most_ns > (last_ns - first_ns) * (1 if steps is not None or by_call else WARNING):
        yield Finding(
            rule="diagnose.before",
            severity="note" if by_call else "warning",
            title=f"The GPU does nothing in the first {as_time((first_ns - begin_ns) * 1e-9)} of the trace, of which "
            f"{plain(name_of(trace, most), LONGEST_NAME)} takes {as_time(most_ns * 1e-9)}",
            text="",
            threshold="a piece of host time before the GPU's first work is longer than all the time behind it, without "
            f"steps than {round_percent(WARNING)} of that",
            advice=again,
        )


def _longest_name(table: Table) -> tuple[int, int, int]:
    """Which name takes most time of one thread, how many ns, and when the first of all begins. A function that calls
    itself has its time once."""
    named, until_ns = Counter[tuple[int, int]](), dict[tuple[int, int], int]()
    columns = [table["name"], table["thread"], table["begin_ns"], table["end_ns"]]
    for name, thread, begin_ns, end_ns in np.stack(columns, 1).tolist():
        if begin_ns >= until_ns.get((name, thread), begin_ns):
            named[name, thread] += end_ns - begin_ns
            until_ns[name, thread] = end_ns
    ((most, _), most_ns), *_ = named.most_common(1) or [((NONE, 0), 0)]
    return most, most_ns, int(table["begin_ns"].min(initial=np.iinfo(np.int64).max))


def _processor(diagnosis: Diagnosis, processor: Processor | None) -> Iterator[Finding]:
    """Whether the program lacks processors."""
    if processor is None or processor.ready_ns < READY * processor.all_ns:
        return
    if diagnosis.idle is not None and processor.all_ns * 1e-9 < SEEN * diagnosis.idle.span_s:  # Python joined late
        return
    share = processor.ready_ns / processor.all_ns
    of_step = f", {as_time(share * diagnosis.step.watched_s)} of each step" if diagnosis.step is not None else ""
    few = f"; the process may use {processor.allowed:g} of {processor.cores}"
    yield Finding(
        rule="diagnose.processor",
        severity="problem",
        title=(
            f"The main thread could run but has no processor {percent(share)} of the time{of_step}"
            f"{few if processor.allowed < processor.cores else ''}"
        ),
        text="Other threads of the program, or other programs, have the processors then. No change of the step helps.",
        threshold=f"{round_percent(READY)} of the sampled time, by the kernel's own count",
        advice="Give it more processors (the container's limit), or fewer threads: OMP_NUM_THREADS, num_workers",
    )


def blocker_words(blocker: Blocker) -> str:
    """A blocker in words: "cudaStreamSynchronize in aten::item (1 a step)"."""
    place = f" in {plain(blocker.place, LONGEST_NAME)}" if blocker.place else ""
    place += f", most in {plain(blocker.package, LONGEST_NAME)}" if blocker.package else ""
    count = f"{blocker.count:.0f}" if blocker.count >= 1 else f"{blocker.count:.2f}"
    return f"{blocker.call}{place} ({count} a step)"


def _own_s(diagnosis: Diagnosis) -> float:
    """The time of a step in which the program does its own work and the GPU idles: beside the GPU's, it costs none."""
    recorded, idle = diagnosis.recorded, diagnosis.idle
    if recorded is None or idle is None:
        return 0.0
    return min(recorded.pauses_s, each(diagnosis, idle.causes[BETWEEN]))


def _pauses_of(diagnosis: Diagnosis, recorded: Recorded) -> dict[str, float]:
    """The time in s of a step's pauses, by owner. Of steps that differ it is all time between calls, in the mean."""
    if diagnosis.idle is not None and diagnosis.steps is not None and not diagnosis.steps.recur:
        return {one.name: each(diagnosis, one.seconds) for one in owners(diagnosis.idle)}
    return {name: _paused_s(recorded, (name,)) for name in recorded.owned}


def _pausing(diagnosis: Diagnosis, recorded: Recorded) -> Owner | None:
    """Who has more than half of the step's pauses, with all its time between calls; None where nobody has."""
    each_s, idle = _pauses_of(diagnosis, recorded), diagnosis.idle
    each_s.pop(NAMELESS, 0.0)
    name = max(each_s, key=lambda one: each_s[one], default=NAMELESS)
    if idle is None or 2 * each_s.get(name, 0.0) <= recorded.pauses_s:
        return None
    return next((one for one in owners(idle) if one.name == name), None)


def _paused_s(recorded: Recorded, owners_: Collection[str]) -> float:
    """The time in s of a step's pauses that these owners have."""
    places = recorded.changes.get("pauses", {})
    found = (of[at] for name, of in recorded.owned.items() if name in owners_ for at in of if at in places)
    return sum(found) / recorded.steps


def _around(diagnosis: Diagnosis, idle: Idle) -> str:
    """The calls around the longest idle interval: " between cudaMemcpy and cudaLaunchKernel"; "" if unknown."""
    trace = diagnosis.trace
    gaps = gaps_of(trace.work, idle.device, *window_of(trace, diagnosis.steps))
    until = int(np.append(trace.work["call"], NONE)[gaps.work[np.argmax(gaps.end_ns - gaps.begin_ns)]])
    before = np.flatnonzero(trace.calls["thread"][: max(until, 0)] == trace.calls["thread"][until : until + 1])
    names = [plain(name_of(trace, trace.calls["name"][at])) for at in (*before[-1:], until)]
    return f" between {' and '.join(names) if names[0] != names[-1] else f'two {names[0]}'}" if len(before) else ""


def _longest_pauses(diagnosis: Diagnosis, idle: Idle) -> tuple[int, str]:
    """How many pauses there are, and where the host was in the middle of the longest: "39.6 ms behind aten::cat,
    577 ms after the first work"."""
    trace, (window_ns, end_ns) = diagnosis.trace, window_of(diagnosis.trace, diagnosis.steps)
    gaps, said_ = gaps_of(trace.work, idle.device, window_ns, end_ns), list[str]()
    others = [RANGE_KINDS.index(kind) for kind in ("overhead", "driver", "annotation")]
    code = trace.ranges[~np.isin(trace.ranges["kind"], others) & (trace.ranges["end_ns"] > trace.ranges["begin_ns"])]
    for begin_ns, until in idle.paused_ns[:LONGEST_PAUSES]:
        middle = (begin_ns + until) // 2
        call = int(np.append(trace.work["call"], NONE)[gaps.work[np.searchsorted(gaps.begin_ns, begin_ns)]])
        place, until_ns = "", NONE
        for table in (code, trace.calls):  # the code around the middle that began last, or what ended last before
            here = (table["begin_ns"] <= middle) & (call == NONE or table["thread"] == trace.calls["thread"][call])
            if here.any():
                ends_ns = np.minimum(table["end_ns"][here], middle)
                last = table[np.flatnonzero(here)[np.lexsort((table["begin_ns"][here], ends_ns))[-1]]]
                where = "in" if last["end_ns"] > middle else "behind"
                if ends_ns.max() > until_ns:
                    place, until_ns = f" {where} {plain(name_of(trace, last['name']), LONGEST_NAME)}", ends_ns.max()
        after = as_time((begin_ns - window_ns) * 1e-9)
        said_.append(f"{as_time((until - begin_ns) * 1e-9)}{place}, {after} after the first work")
    return len(idle.paused_ns), "; ".join(said_)


def _brings_data(diagnosis: Diagnosis) -> bool:
    """Whether a step copies so much to the host that it may compute with it there."""
    work, steps = diagnosis.trace.work, diagnosis.steps
    copies = np.count_nonzero(to_host(work) & (work["bytes"] >= DATA_BYTES))
    return steps is not None and bool(copies >= steps.count)


def _least_pause(diagnosis: Diagnosis) -> str:
    return "1 ms" if pause_time(diagnosis.trace) == PAUSE_S else "50 µs"


def _long_pauses(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Say how long the program pauses, where no step repeats and pauses take much of the time."""
    idle = diagnosis.idle
    single, bound = idle is not None and idle.longest_s >= idle.idle_s / 2, diagnosis.bound
    if (
        idle is not None
        and diagnosis.step is None
        and ((bound == "host-bound" and single) or (bound in PAUSING and idle.pauses_s > WARNING * idle.span_s))
    ):
        change = "Do what lies in them once, or ahead in another thread or process"
        if said(diagnosis.trace, BETWEEN) != BETWEEN:
            change = "If the host computes there, do it on the GPU, in several threads, or beside the GPU's work"
        elif single:
            change = "Record for longer, until steps repeat: first calls load code and choose kernels"
        least = _least_pause(diagnosis)
        count, longest = _longest_pauses(diagnosis, idle)
        all_s = sum(end_ns - begin_ns for begin_ns, end_ns in idle.paused_ns) * 1e-9
        title = f"{counted(count, 'pause')} of more than {least} take {as_time(all_s)}, "
        title += f"{percent(all_s / idle.span_s)} of the time, the longest {longest}"
        if single:
            title = f"A single pause of {as_time(idle.longest_s)}{_around(diagnosis, idle)} is most of the idle time, "
            title += "and no step repeats"
        yield Finding(
            rule="diagnose.one_pause",
            severity="advice",
            title=title,
            text="",
            threshold=f"no step repeats, and one idle interval is half of the idle time, or all with more than {least} "
            f"between calls are more than {round_percent(WARNING)} of the time",
            advice=change,
        )


def _pauses(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The program's own work, if it takes a share worth naming."""
    step, pauses_s, recorded = diagnosis.step, _own_s(diagnosis), diagnosis.recorded
    if step is None or recorded is None or pauses_s <= NAMED * step.watched_s or diagnosis.bound == "GPU-bound":
        return
    least = _least_pause(diagnosis)
    submits = 2 * sum(s for name, s in _pauses_of(diagnosis, recorded).items() if name in FRAMEWORK) > recorded.pauses_s
    most = _pausing(diagnosis, recorded)
    speedup = next((one.speedup for one in diagnosis.remedies if one.name == "pauses"), 1.0)
    awaited = most is not None and most.name.startswith(WAITING)
    without = diagnosis.without.get(most.name) if most is not None and (awaited or not submits) else None
    if without is not None or awaited:  # as the line of owners has it
        speedup = without.speedup if without is not None else 1.0
    whose = plain(most.name) if most is not None and without is not None else "them" if submits else "it"
    gain = f"; without {'it' if awaited else whose} a step is {times(speedup)} as fast" if speedup >= 1 + WORTH else ""
    what = "Pauses between launches take" if submits else f"{OWN_WORK[0].upper()}{OWN_WORK[1:]} between launches takes"
    title = f"{what} {as_time(pauses_s)} of each step"
    change = "Do it once, less often, or ahead of the step in another process; if that is so already, make it faster"
    pace = f"every {as_time(recorded.paced_s)}, and no graph changes that" if recorded.paced_s else ""
    if most is not None and most.name.startswith(WAITING):
        place = plain(most.most, LONGEST_NAME)
        name = plain(most.name)
        title = f"{name[0].upper()}{name[1:]} takes {as_time(each(diagnosis, most.seconds))} of each step: {place}"
        title += _meanwhile(diagnosis, most)
    elif most is not None:
        place = "" if most.name.endswith(most.most) else f": {plain(most.most, LONGEST_NAME)}"
        title += f", most of it in {plain(most.name)}{place}"
    if most is not None and most.name == REQUESTS:
        change = "Nothing is slow: send more requests at once, answer several in one batch, or let others use this GPU"
    elif most is not None and most.name in (AWAITS, LOADER):
        change = f"{f'A batch comes {pace}. ' if pace else ''}Give it {HELPS[most.name]}"
    elif pace:
        change = f"It waits for what comes {pace}: more workers help a loader; a camera, display or timer sets the pace"
    elif most is not None and (most.name.startswith(WAITING) or most.name == GARBAGE) and most.helps:
        change = f"{most.helps[0].upper()}{most.helps[1:]}"
    elif (kernel := _awaited(diagnosis)) is not None:
        name, waits_s, often = kernel
        title += f", and the GPU waits {as_time(waits_s)} before {plain(name, LONGEST_NAME)}, {often} times a step"
        change = "See what the host does each time before it launches that kernel, and do it once, or ahead"
    elif most is not None and most.name in COMPILES:
        change = f"{most.helps[0].upper()}{most.helps[1:]}. If that is done once, record after it"
    elif most is not None and most.name == COMPILED:
        change = "It may compile or capture there: record after that; TORCH_LOGS=recompiles names what compiles again"
    elif most is not None and most.name in (OWN, "numpy") and _brings_data(diagnosis):
        change = "If it computes with what it copied from the GPU, compute that there, and copy only the result"
    elif submits:
        change = "If it computes on the CPU, do that on the GPU; if it only prepares launches, a graph saves it"
    yield Finding(
        rule="diagnose.pauses",
        severity="note" if submits and diagnosis.bound != "host-bound" else "advice",
        title=title + gain,
        text=f"The host calls nothing of CUDA for more than {least}. " + ("" if submits else "No graph shortens that."),
        threshold=f"pauses of more than {least} between two calls of one thread, {round_percent(NAMED)} of the step, "
        "while the GPU idles",
        advice=change,
    )


def _paused_steps(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The few steps that hold most of the idle time, which the other figures leave out."""
    if (paused := diagnosis.paused) is None:
        return
    cause = max(paused.longest.causes, key=lambda one: paused.longest.causes[one])
    most = next(iter(owners(paused.longest)), None) if cause == BETWEEN else None
    place = next((where.name for where in paused.longest.places if where.cause == cause), "")
    what = f"{plain(most.name)}, {plain(most.most, LONGEST_NAME)}" if most is not None else plain(place, LONGEST_NAME)
    helps = most.helps if most is not None else _changes(diagnosis).get(cause, ("", ""))[1]
    if paused.other:
        yield Finding(
            rule="diagnose.other_steps",
            severity="note",
            title=f"{paused.steps} of {paused.of} steps {'does' if paused.steps == 1 else 'do'} other work, "
            f"{as_time(paused.seconds)} in all, {percent(paused.share)} of the time",
            text="The other figures leave these steps out.",
            threshold="a twentieth of the steps or fewer, each over twice as long as the usual one, in which the GPU "
            "idles as much",
        )
        return
    yield Finding(
        rule="diagnose.paused_steps",
        severity="advice",
        title=f"{paused.steps} of {paused.of} steps pause for {as_time(paused.seconds / paused.steps)}, "
        f"{percent(paused.share)} of the time; in the longest the GPU idles most for {said(diagnosis.trace, cause)}"
        + (f": {what}" if what else ""),
        text="The other figures leave these steps out.",
        threshold="a quarter of the steps or fewer, each idle for 1 ms more than twice the usual, hold half of all "
        "idle time, or a twentieth of the steps 15 % of all time",
        advice=helps[:1].upper() + helps[1:] or "Find what these steps do beyond the others",
    )


def _awaited(diagnosis: Diagnosis) -> tuple[str, float, int] | None:
    """The kernel before which the GPU idles for most of its idle time, how long in s, and how often in a step it does.
    None if it does once, where the step prepares data, or so often that the name says little."""
    trace, steps, idle = diagnosis.trace, diagnosis.steps, diagnosis.idle
    if steps is None or idle is None:
        return None
    begin_ns, end_ns = window_of(trace, steps)
    gaps = gaps_of(trace.work, idle.device, begin_ns, end_ns)
    names = trace.work["name"][gaps.work]
    lasts_ns = (gaps.end_ns - gaps.begin_ns) * (trace.work["kind"][gaps.work] == WORK_KINDS.index("kernel"))
    most = int(np.argmax(np.bincount(names, lasts_ns, len(trace.names))))
    own_ns = np.cumsum(np.sort(lasts_ns[names == most])[::-1])
    often = int(np.searchsorted(own_ns, (1 - WARNING) * own_ns[-1])) + 1 if len(own_ns) else 0
    inside = np.count_nonzero((trace.work["begin_ns"] >= begin_ns) & (trace.work["begin_ns"] < end_ns))
    if not 2 * steps.count <= often <= WARNING * inside or 2e-9 * own_ns[-1] < idle.idle_s:
        return None
    return name_of(trace, most), each(diagnosis, float(own_ns[-1]) * 1e-9), round(often / steps.count)


# How to hide communication behind other work: by a name in the code that launches it, or in all of the trace, or by its
# kind. "." stands for any name.
ASYNC = "submit it to a stream of its own (async_op=True, with work that does not need it before wait())"
EARLY = "start each reduction as soon as its gradient is ready, in the backward pass, or reduce in fewer steps"
HALVES = "split the batch in two, and compute one half while the other half's data travels"
BY_LAUNCHER = (
    (re.compile(r"ModelParallel|TensorParallel|VocabParallel|ColumnParallel|RowParallel|tensor_(model_)?parallel|vllm/"),
     "tensor parallelism needs each at once. Overlap it with products (Megatron's sequence parallelism and "
     "--tp-comm-overlap, PyTorch's async tensor parallelism), or split the model over fewer GPUs"),
    (re.compile(r"Optimizer\.step#|torch/optim/"), f"{EARLY}. Gather parameters beside the next forward pass"),
)  # fmt: skip
BY_PROGRAM = (
    ("all-reduce", re.compile(r"DistributedDataParallel|torch\.distributed\.ddp|nn/parallel/distributed\.py"),
     "start it while gradients are still computed: smaller buckets (DDP's bucket_cap_mb), or in fewer steps "
     "by gradient accumulation"),
    ("all-gather", FSDP := re.compile(r"FSDP::|FullyShardedDataParallel|torch/distributed/fsdp/"),
     "gather parameters one layer ahead (FSDP's forward_prefetch and backward_prefetch)"),
    ("reduce-scatter", FSDP,
     "start it while gradients are still computed (FSDP's backward_prefetch), or in fewer steps by gradient "
     "accumulation"),
    ("all-to-all", re.compile("."), HALVES),
    ("send and receive", re.compile("."), HALVES),
)  # fmt: skip
OTHERWISE = "start it sooner, so that it runs beside other work"


def _hiding(trace: Trace, most: Sequence[Collective]) -> str:
    """Who launches communication of these kinds, and how to hide it."""
    stacks, who, named = launching(trace, [one.name for one in most]), Counter[str](), list[str]()
    for stack, ns in stacks.items():
        who[next((name for name in reversed(stack) if not PLUMBING.match(name)), "")] += ns
    for name, _ in who.most_common():
        named += [name] * bool(name)
        if 2 * sum(who[one] for one in named) > who.total():
            break
    around, kind = stacks.most_common(1)[0][0] if stacks else (), most[0].name
    changes = [change for mark, change in BY_LAUNCHER if any(map(mark.search, around))]
    changes += [change for of, mark, change in BY_PROGRAM if of == kind and any(map(mark.search, trace.names))]
    changes += [EARLY] * any(mark in name for mark in ("autograd::", BACKWARD) for name in around)
    change = next(iter(changes), ASYNC if most[0].in_turn else OTHERWISE)
    if 2 * sum(who[name] for name in named) <= who.total():
        return change[0].upper() + change[1:]
    launch = f"{listed([plain(one, LONGEST_NAME) for one in named])} launch{'es' * (len(named) == 1)}"
    return f"{launch} most of it: {change}"


def kinds_words(diagnosis: Diagnosis, kinds: Sequence[Collective]) -> str:
    """Kinds of communication with the time of each that nothing hides: "all-reduce 20.1 ms"."""
    return ", ".join(f"{one.name} {as_time(each(diagnosis, one.exposed_s))}" for one in kinds)


GIVE = "Give the files of all ranks"


def _communication(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Communication that no other work hides, if it takes a share worth naming."""
    idle = diagnosis.idle
    if idle is None or diagnosis.bound == "start-up":  # others are waited for then, of which later steps have nothing
        return
    if diagnosis.bound != "communication-bound" and idle.exposed_s <= WARNING * idle.span_s:
        return
    most = [one for one in idle.collectives if one.exposed_s > NAMED * idle.span_s][:3] or idle.collectives[:1]
    together = OTHERS in diagnosis.trace.unread
    give = "Record each rank in a file of its own, and give all" if together else GIVE
    change, which = _hiding(diagnosis.trace, most), "whether one"
    if 2 * sum(one.waits_s for one in most) > sum(one.seconds for one in most):
        longest, needs = map(as_time, max(most, key=lambda one: one.waits_s).longest_s)
        change = f"Most of it probably waits for another rank: one takes {longest}, and needs about {needs}"
        which = "which"
    change += f". {give}, to see {which} comes late: `microbench diagnose FOLDER`"
    yield Finding(
        rule="diagnose.communication",
        severity="advice",
        title=(
            f"No other work hides {as_time(each(diagnosis, idle.exposed_s))} of "
            f"{as_time(each(diagnosis, idle.communication_s))} of communication: {kinds_words(diagnosis, most)}"
        ),
        text="",
        threshold=f"communication beside which nothing else runs takes more than {round_percent(WARNING)} of the time",
        advice=change,
    )


def _most_copied(trace: Trace) -> tuple[str, str]:
    """From and to which memory the GPU copies for the longest time."""
    copies = trace.work[trace.work["kind"] == WORK_KINDS.index("copy")]
    ways = copies["source"].astype(int) * len(MEMORIES) + copies["target"]
    most = int(np.argmax(np.bincount(ways, copies["end_ns"] - copies["begin_ns"])))
    return MEMORIES[most // len(MEMORIES)], MEMORIES[most % len(MEMORIES)]


def _copying(trace: Trace) -> str:
    """What to do about copies that the GPU waits for."""
    copies = trace.work[trace.work["kind"] == WORK_KINDS.index("copy")]
    if 2 * np.count_nonzero(values_read(trace.work)) > len(copies):
        return "Read values back less often, once in several steps, or decide on the GPU: the host waits for each"
    if any("prefetched" in name_of(trace, name) for name in np.unique(copies["name"]).tolist()):
        return "Prefetch only what is read next, ahead of it, in another stream"
    known = [MEMORIES.index(memory) for memory in ("pinned", "device")]
    pinned = np.isin(copies["source"], known).all() and np.isin(copies["target"], known).all()
    return f"{'Copy' if pinned else 'Pin the memory and copy'} ahead of the step, in another stream"


def _waited_s(diagnosis: Diagnosis) -> float:
    """The idle time until work was submitted that waits of the host explain, where these limit the step."""
    return diagnosis.idle.waited_s if diagnosis.idle is not None and diagnosis.bound == "wait-bound" else 0.0


def _waiting_less(diagnosis: Diagnosis) -> str:
    """What to do about the waits; where they read values, how to read less often."""
    blockers = diagnosis.recorded.blockers if diagnosis.recorded is not None else ()
    change = advice.first(diagnosis, tuple(one for one in blockers if one.why == WAIT)[:1])
    return "Wait less often" if change in ("", advice.FIRST[WAIT]) else change


def _changes(diagnosis: Diagnosis) -> Mapping[Cause, tuple[str, str]]:
    """By cause the rule that names it, and what to change."""
    places = [one.name for one in diagnosis.idle.places if one.cause == "allocation"] if diagnosis.idle else []
    return {
        "allocation": ("diagnose.allocation", advice.allocating(diagnosis.trace, places)),
        "copies": ("diagnose.copies", _copying(diagnosis.trace)),
        "waits": ("diagnose.waits", _waiting_less(diagnosis)),
        "module load": ("diagnose.module_load", "Run each kernel once before what is timed"),
        "device gaps": (
            "diagnose.device_gaps",
            "Fuse kernels, or give each more work: every kernel has a gap behind it",
        ),
    }


def _causes(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Other causes that take a share worth naming."""
    alone_s = idle.copies_s if (idle := diagnosis.idle) is not None else 0.0
    faster = any(one.name in FASTER_COPIES for one in diagnosis.remedies)  # which says what they save
    way = _most_copied(diagnosis.trace) if alone_s else ("", "")
    least = PAGEABLE if "pageable" in way else WARNING
    if idle is not None and alone_s > least * idle.span_s and not (faster or diagnosis.bound == "start-up"):
        takes = f"{as_time(each(diagnosis, alone_s))} ({percent(alone_s / idle.span_s)})"
        change = "Keep on the GPU what the next kernels need, and copy the rest while they run"
        if way == ("device", "device"):
            change = "Write results where they are needed, without a copy from GPU memory to GPU memory"
        yield Finding(
            rule="diagnose.copies_alone",
            severity="advice",
            title=f"The GPU does nothing but copy for {takes}",
            text="",
            threshold=f"copies beside which nothing else runs take more than {round_percent(least)} of the time",
            advice=f"{change}, from and to pinned memory" if "pageable" in way else change,
        )
    if diagnosis.bound == "start-up":
        yield Finding(
            rule="diagnose.start_up",
            severity="advice",
            title="The trace shows the program's start, of which later steps have nothing",
            text="",
            threshold="no step repeats; half of the idle time lies in compilers, or in long calls of the first half",
            advice="Run some steps first, then record some more" + _or_a_part(diagnosis),
        )
        return
    for cause, (rule, change) in _changes(diagnosis).items():
        late_s = _waited_s(diagnosis) if cause == "waits" else 0.0
        share = diagnosis.share(cause) + (late_s / idle.span_s if idle is not None else 0.0)
        known = cause == "waits" and _with_s(diagnosis, "waits") < math.inf  # which the remedy says better
        if share > WARNING and not known and idle is not None:
            place = next((where.name for where in idle.places if where.cause == cause), "")
            what = f"{cause} and what they delay" if late_s else cause
            yield Finding(
                rule=rule,
                severity="advice",
                title=f"The GPU idles {percent(share)} of the time for {what}"
                + (f", most in {plain(place, LONGEST_NAME)}" if place else ""),
                text="",
                threshold=f"more than {round_percent(WARNING)} of the time",
                advice=change,
            )


def launch_time(diagnosis: Diagnosis) -> float | None:
    """The host time for one launch of a kernel or a graph in the recorded step in s, the call included; None for a step
    that launches no kernels."""
    recorded, step = diagnosis.recorded, diagnosis.step
    if recorded is None or step is None or not recorded.launches:
        return None
    host_s = sum(part.host_s or 0.0 for part in recorded.workload.parts if isinstance(part, Kernels))
    profiler_s = each(diagnosis, diagnosis.idle.causes["profiler"]) if diagnosis.idle is not None else 0.0
    return min(host_s / recorded.steps, step.watched_s - profiler_s) / (recorded.launches + recorded.replays)


def launch_share(diagnosis: Diagnosis) -> float:
    """The share of the time that the GPU idles because work is submitted too slowly."""
    idle = diagnosis.idle
    own_s = idle.pauses_s if idle is not None and diagnosis.steps is None else 0.0
    if diagnosis.recorded is not None and diagnosis.steps is not None:
        own_s = diagnosis.recorded.pauses_s * diagnosis.steps.count
    return max(diagnosis.share(*SUBMISSION) - (own_s / idle.span_s if idle is not None else 0.0), 0.0)

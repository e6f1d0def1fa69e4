"""Works out the model's constants with their intervals, each from the rows of the benchmark that shows it."""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, rests_on, whole
from microbench.analysis.fits import line
from microbench.analysis.graph_steps import MAKING
from microbench.analysis.stats import Interval, Row, busy_for_calls, rounds_interval
from microbench.core.ops import LOOP_LAYER
from microbench.model.model import WAYS, Way, call_name, replay_name
from microbench.model.workload import Direction


class Constant(msgspec.Struct, frozen=True):
    """One constant of ``model.CONSTANTS`` in its SI unit, with its 95 % interval.

    ``rests_on`` lists the rows it comes from; ``assumed`` says what stands in for a measurement, "" if it was measured.
    """

    value: float
    low: float
    high: float
    rests_on: tuple[str, ...] = ()
    assumed: str = ""


# A kernel's own time scatters this much less than overhead. On three H200s, steps that the GPU paces are off by 0.35 %
# of their kernels (median; 90th percentile: 0.93 %) where kernels are over nine tenths of the step, and by 1.8 %
# (6.5 %) of the rest where they are under half of it.
OWN_SCATTERS = 0.15


def scattering_s(step_s: float, own_s: float) -> float:
    """The part of a step that scatters (s): its overhead, and OWN_SCATTERS of ``own_s``, its kernels and copies."""
    return max(step_s - own_s, 0.0) + OWN_SCATTERS * own_s


class Misfit(msgspec.Struct, frozen=True):
    """How far measured steps lie from the model's: the median, and the share that 95 % of them stay within.

    Both are shares of what scatters in a step (``scattering_s``), not of all of it. ``steps`` is how many were
    compared; with 0 the two shares are assumed.
    """

    median: float
    most: float
    steps: int = 0


class Reach(msgspec.Struct, frozen=True):
    """The largest measured values; a prediction beyond them is an extrapolation."""

    kernels: int = 0
    copy_bytes: int = 0
    streams: int = 1


class ModelCode(msgspec.Struct, frozen=True):
    """A measured example of model code: host time for one launch, and of PyTorch's own call in the same run, in s.

    ``capture_share`` is how long the step's calls take in a capture, as a share of what they take in a stream.
    """

    model: str
    launch_s: float
    call_s: float
    capture_share: float | None
    rests_on: tuple[str, ...]


class Fit(msgspec.Struct, frozen=True):
    """The constants of one GPU of one run, by name; ``layers`` are those whose launch calls are known,
    ``titles`` what reports call them.

    ``misfit`` is by way and by what limits the step: (way, "host" | "gpu"). ``model_code`` are measured examples, of
    another run if ``model_code_of`` names one. ``sms`` is the GPU's number of SMs. ``measured_calls`` are launch calls
    as they were measured, of those that a what-if has given another value. ``made`` is what making a graph takes, by
    its nodes. ``batches`` are rates of many small copies to the GPU: by way, then by how many and the bytes of each.
    """

    constants: Mapping[str, Constant]
    layers: tuple[str, ...]
    misfit: Mapping[tuple[Way, str], Misfit]
    reach: Reach
    device: str | None = None
    run_id: str = ""
    titles: Mapping[str, str] = {}
    model_code: tuple[ModelCode, ...] = ()
    model_code_of: str = ""
    sms: int | None = None
    measured_calls: Mapping[str, float] = {}
    made: tuple[tuple[int, Constant], ...] = ()
    batches: Mapping[str, Mapping[tuple[int, int], Constant]] = {}

    @property
    def values(self) -> dict[str, float]:
        """The constants' values, as ``model.acts`` takes them."""
        return {name: constant.value for name, constant in self.constants.items()}

    def rests_on(self, names: Iterable[str]) -> tuple[str, ...]:
        """The rows that these constants come from."""
        return tuple(dict.fromkeys(row for name in names for row in self.constants[name].rests_on))


# How far a constant that stands in for another may be off, as a share of it.
STAND_IN = 0.3
# A median's interval leaves out one value in EDGE at either end.
EDGE = 6


def around(value: float, half: float, rows: Iterable[str], assumed: str = "", *, least: float = 0.0) -> Constant:
    """A cost within ``half`` of ``value``; neither the value nor the interval goes below ``least``."""
    value = max(value, least)
    return Constant(value, max(value - half, least), value + half, tuple(dict.fromkeys(rows)), assumed)


def half_width(constant: Constant) -> float:
    """Half its interval."""
    return (constant.high - constant.low) / 2


def in_quiet_rounds(rows: Sequence[Row]) -> list[Row]:
    """The figures of one Python layer, those of its quiet rounds where its own calls show that the host was busy."""
    counts = {len(row.summaries) for row in rows}
    costs = [[summary.interval.median for summary in row.summaries] for row in rows]
    busy = busy_for_calls(costs) if len(counts) == 1 else ()
    return [
        replace(row, busy=busy, interval=rounds_interval([one.interval for one in row.summaries], busy=busy))
        if busy
        else row
        for row in rows
    ]


def by_layer(rows: Iterable[Row], axis: str) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each layer, those of Python in their quiet rounds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.params.get(axis, LOOP_LAYER)), []).append(row)
    for layer, several in groups.items():
        yield layer, several if layer == LOOP_LAYER else in_quiet_rounds(several)


def of_row(row: Row) -> Constant:
    """A row's value and interval."""
    return of_rows(((1.0, row),))


def of_rows(parts: Sequence[tuple[float, Row]], assumed: str = "") -> Constant:
    """A sum of rows of one case, each times a factor.

    Each process gives one sum, and the interval is over those sums, so a difference between processes counts once and
    not in every row. Within a process the rows' intervals add as independent quantities do. Rows with different
    counts of rounds are added as rows of one process, as are single rounds, whose intervals cover other processes.
    """
    rounds = {len(row.summaries) for _, row in parts}
    alike = len({row.case_id for _, row in parts}) == 1 and len(rounds) == 1 and rounds != {1}
    processes = [[summary.interval for summary in row.summaries] if alike else [row.interval] for _, row in parts]
    factors = [factor for factor, _ in parts]
    sums = [_sum(factors, intervals) for intervals in zip(*processes, strict=True)]
    busy = next((row.busy for _, row in parts if alike and row.busy), ())
    total = rounds_interval(sums, busy=busy)
    half = total.median - total.low if busy else (total.high - total.low) / 2  # the upper end is the busy host's
    return around(total.median, half, (rests_on(row)[0] for _, row in parts), assumed)


def _sum(factors: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    pairs = list(zip(factors, intervals, strict=True))
    middle = sum(factor * interval.median for factor, interval in pairs)
    half = math.hypot(*(factor * (interval.high - interval.low) / 2 for factor, interval in pairs))
    return Interval(middle, middle - half, middle + half)


def combined(parts: Sequence[tuple[float, Constant]], assumed: str = "", *, least: float = 0.0) -> Constant:
    """A sum of constants, each times a factor; their intervals add as independent quantities do."""
    value = sum(factor * constant.value for factor, constant in parts)
    half = math.hypot(*(factor * half_width(constant) for factor, constant in parts))
    words = [constant.assumed for _, constant in parts] + [assumed]
    names = (row for _, constant in parts for row in constant.rests_on)
    return around(value, half, names, "; ".join(dict.fromkeys(filter(None, words))), least=least)


def middle(several: Sequence[Constant]) -> Constant:
    """The median of several measurements of one constant; of two in the middle the one with the narrower interval.

    Its interval is the wider of its own and of the spread of the others.
    """
    ordered = sorted(several, key=lambda constant: constant.value)
    chosen = min(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1], key=half_width)
    edge = len(ordered) // EDGE
    over = (ordered[-1 - edge].value - ordered[edge].value) / 2
    names = (row for constant in several for row in constant.rests_on)
    return around(chosen.value, max(over, half_width(chosen)), names, chosen.assumed, least=-math.inf)


def stand_in(constant: Constant, assumed: str, share: float = STAND_IN) -> Constant:
    """A constant for one that was not measured: known within ``share`` of it or its own interval, the wider one."""
    half = max(half_width(constant), share * abs(constant.value))
    return around(constant.value, half, constant.rests_on, assumed, least=min(constant.value, 0.0))


def straight(points: Sequence[tuple[int, Constant]], unknown: str) -> tuple[Constant, Constant] | None:
    """Constant and slope of a cost over a count, in ascending order; None without points.

    The constant's interval is that of the smallest point, the slope's that of the largest, or the line's distance from
    them. A single point does not determine both: the constant gets all of it, and ``unknown`` says why.
    """
    if not points:
        return None
    names = [row for _, constant in points for row in constant.rests_on]
    (x0, first), (x1, last) = points[0], points[-1]
    if x0 == x1:
        return replace(first, assumed=unknown), Constant(0.0, 0.0, first.value / x0, (*names,), unknown)
    fitted = line((x, constant.value) for x, constant in points)
    if fitted is None:
        slope = max((last.value - first.value) / (x1 - x0), 0.0)
        constant = max(first.value - slope * x0, 0.0)
    else:
        slope, constant = fitted.slope, fitted.constant
    at_first = max(half_width(first), abs(constant + slope * x0 - first.value))
    at_last = max(half_width(last), abs(constant + slope * x1 - last.value))
    return around(constant, at_first, names), around(slope, at_last / (x1 - x0), names)


Found = Iterator[tuple[str, Constant]]

# Kernels of graph_shape between the first and the last of a fork.
FORKED_KERNELS = 64
ONE_SIZE = "only one size of graph was measured"
# A pointer or a double, as most arguments are.
ARGUMENT_BYTES = 8
# The chain of launch_gap whose gap is the model's: the kernels are those of the steps that the model is fitted to.
SPINNING = {"kernel": "spin", "blocks": "one", "functions": "same", "launch_streams": "two"}
KERNELS = ("empty", "spin", "add")
SPIN_NS = 2000
# A program's own kernels are assumed to write memory. Other grids have nearly the same gap (lab/measurements/gaps.csv).
WRITING = {"kernel": "add", "blocks": "one"}
# A profiler's duration of a kernel less the time between the kernel's first and last instruction, where launch_gap did
# not measure it: 0.46 to 0.51 us on three H200s (lab/measurements/gaps.csv). It has no interval, as it cancels out: a
# larger value makes the kernels of the run's steps longer and their gaps shorter.
PROFILED_LONGER = Constant(
    0.5e-6, 0.5e-6, 0.5e-6, (), "a profiler's duration is 0.5 us longer than a kernel's own stamps"
)


def profiled_longer(evidence: Evidence) -> Constant:
    """A profiler's duration of a kernel less the time between the kernel's own first and last instruction."""
    duration, stamped = (evidence.row("launch_gap", name, **SPINNING) for name in ("duration", "stamped"))
    return PROFILED_LONGER if duration is None or stamped is None else of_rows(((1, duration), (-1, stamped)))


def own_s(evidence: Evidence, duration_ns: int) -> float:
    """How long a spin kernel asked for ``duration_ns`` runs as profilers report it, in seconds.

    The kernel's own record shows how much longer it runs than asked for, which is linear between measured durations and
    constant beyond them. Without records it runs for as long as asked.
    """
    curve = evidence.curve("launch_duration", "duration", "duration_ns")
    known = {duration: row.value for duration, row in curve}
    profiled_s = evidence.once(profiled_longer).value
    if duration_ns in known:
        return known[duration_ns] + profiled_s
    over = {duration: seconds - duration * 1e-9 for duration, seconds in known.items() if duration > 0}
    excess = float(np.interp(duration_ns, list(over), list(over.values()))) if over else 0.0
    return max(duration_ns * 1e-9 + excess, known.get(0, 0.0)) + profiled_s


def empty_kernel(evidence: Evidence) -> Constant:
    """The duration of an empty kernel as profilers report it."""
    recorded = evidence.row("launch_gap", "duration", **(SPINNING | {"kernel": "empty"}))
    if recorded is not None:
        return of_row(recorded)
    stamped = evidence.row("launch_duration", "duration", duration_ns=0)
    longer = profiled_longer(evidence)
    return longer if stamped is None else combined([(1, of_row(stamped)), (1, longer)])


def direct(evidence: Evidence) -> dict[str, Constant]:
    """Every constant of launches and graphs that some benchmark shows by itself."""
    parts = (_calls, _around_a_kernel, _waiting, gaps, _lives)
    return dict(itertools.chain.from_iterable(part(evidence) for part in parts))


def _calls(evidence: Evidence) -> Found:
    """A launch call by layer and count of arguments; the compiled loop's empty kernel by all that measured it."""
    measured: dict[str, list[Constant]] = {}
    submit = evidence.row("launch_cost", "submit")
    if submit is not None:
        measured[call_name(LOOP_LAYER, 0)] = [of_row(submit)]
    for layer, rows in by_layer(evidence.rows("launch_layers", "submit"), "layer"):
        for row in rows:
            if row.value > 0:
                measured.setdefault(call_name(layer, whole(row, "arguments")), []).append(of_row(row))
    for name, several in measured.items():
        yield name, middle(several)


def with_others(evidence: Evidence, known: Mapping[str, Constant]) -> dict[str, Constant]:
    """The known constants of launches and graphs, and all others that the run shows."""
    found = dict(known)
    for part in (_larger_calls, _front_end, _copies, _transitions):
        found |= dict(part(evidence, found))
    for other in (_further_roots, _memory, _watched):
        found |= dict(other(evidence))
    return found


def _larger_calls(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """Calls of the compiled loop with larger parameter blocks, of which an argument takes ARGUMENT_BYTES.

    None takes less than the call with fewer arguments, and none moves the others.
    """
    calls = {int(name.rpartition(".")[2]): one for name, one in known.items() if name.startswith(f"call.{LOOP_LAYER}.")}
    if not calls:
        return
    most, fewer = max(calls), calls[max(calls)]
    for size, row in evidence.curve("launch_arguments", "submit", "argument_bytes", grid_blocks=1, block_threads=32):
        if size // ARGUMENT_BYTES > most:
            own = of_row(row)
            fewer = around(max(own.value, fewer.value), half_width(own), own.rests_on)
            yield call_name(LOOP_LAYER, size // ARGUMENT_BYTES), fewer


def _around_a_kernel(evidence: Evidence) -> Found:
    """The way to the GPU and the completion: a synchronise after a launch shows only their sum."""
    empty = empty_kernel(evidence)
    submit, trip = evidence.row("launch_cost", "submit"), evidence.row("launch_cost", "round_trip")
    start = evidence.row("launch_cost", "start")
    # Before version 2 of launch_cost the kernel's begin was an estimate.
    estimate = evidence.row("launch_cost", "to_kernel") or evidence.row("launch_cost", "start_estimate")
    if submit is None or trip is None:
        return
    yield "empty", empty
    begun, assumed = estimate, ""
    if estimate is None or (start is not None and start.value < estimate.value):
        begun, assumed = start, "a kernel begins when the host sees its first act"
    if begun is not None:
        yield "way", of_rows(((1, begun), (-1, submit)), assumed)
        rest = [
            (1.0, of_rows(((1, trip), (-1, begun)))),
            (-1.0, replace(empty, assumed="")),
        ]  # what profilers add cancels out
        yield "complete", combined(rest, assumed)
        return
    half = combined([(0.5, of_rows(((1, trip), (-1, submit)))), (-0.5, empty)])
    assumed = "way and completion share equally what a round trip leaves: nothing watched the kernel begin"
    yield from dict.fromkeys(("way", "complete"), stand_in(half, assumed)).items()


def _waiting(evidence: Evidence) -> Found:
    """A synchronise of an idle stream: measured, or the session's own floor."""
    row = evidence.row("launch_sync", "idle_stream", wait="spin") or evidence.row("launch_sync", "idle_stream")
    if row is not None:
        yield "sync", of_row(row)
        return
    floors = [session.floors.idle_sync_s for session in evidence.run.sessions]
    if floor_s := next(filter(None, reversed(floors)), None):
        yield "sync", stand_in(around(floor_s, 0.0, ()), "a synchronise takes what it took when the run began")


def gap(evidence: Evidence, way: Way, **kernel: str) -> Constant | None:
    """The period of a chain of kernels less the duration of each as profilers report it; negative where they overlap.

    ``kernel`` are values of launch_gap's axes; the others are those of SPINNING.
    """
    chain = SPINNING | kernel
    period = evidence.row("launch_gap", way, **chain)
    duration = evidence.row("launch_gap", "duration", **(chain | {"launch_streams": "two"}))
    if period is None or duration is None:
        return None
    return combined([(1, of_row(period)), (-1, of_row(duration))], least=-math.inf)


def gaps(evidence: Evidence) -> Found:
    """The gap behind a kernel that writes nothing, what it is longer behind one that writes, and shorter in a process
    that launches into one stream only."""
    older = dict(_gaps_without_profiler(evidence))
    for way in WAYS:
        own = gap(evidence, way)
        if own is None and f"gap_{way}" not in older:
            continue
        yield f"gap_{way}", own or older[f"gap_{way}"]
        writing = gap(evidence, way, **WRITING)
        if writing is None or own is None:
            yield f"write_{way}", WRITE
        else:
            grids = [gap(evidence, way, **(WRITING | {"blocks": blocks})) for blocks in ("an_sm", "eight_an_sm")]
            apart = max((abs(grid.value - writing.value) for grid in grids if grid is not None), default=0.0)
            longer = combined([(1, writing), (-1, own)], least=-math.inf)
            yield f"write_{way}", around(longer.value, max(half_width(longer), apart), longer.rests_on, least=-math.inf)
        if way == "graph":
            code = list(_model_gaps(evidence))
            yield "code_graph", _spread(code, own) if own is not None and len(code) > 1 else CODE
            yield from _wide(evidence)
        chains = [
            [gap(evidence, way, kernel=kernel, launch_streams=streams) for streams in ("two", "one")]
            for kernel in KERNELS
        ]
        shorter = [combined([(1, two), (-1, one)]) for two, one in chains if two is not None and one is not None]
        yield f"one_stream_{way}", middle(shorter) if shorter else ONE_STREAM


# What a profiler reports for a memset of 4 bytes: 0.70 to 0.90 us in traces of H100s and H200s.
MEMSET = Constant(0.8e-6, 0.7e-6, 0.9e-6)
# Runs without graph_transitions: graphs with memsets and copies between PyTorch's kernels, less the same graphs without
# and less what the link takes (one H100, lab/measurements/transitions.csv). graph_transitions copies 4 bytes, which go
# another way than 4 KiB, and not from the GPU.
ONE_H100 = "what {} takes was seen on one H100"
AROUND = {
    # PyTorch's kernels of 1 to 64 blocks in 2 to 8 branches.
    "branch_graph": Constant(0.12e-6, 0.06e-6, 0.18e-6, (), ONE_H100.format("a further branch of a graph")),
    "memset_graph": Constant(1.2e-6, 0.6e-6, 1.8e-6, (), ONE_H100.format("a memset in a graph")),
    "h2d_small_graph": Constant(0.7e-6, 0.3e-6, 1.1e-6, (), ONE_H100.format("a small copy to the GPU in a graph")),
    "h2d_graph": Constant(6.9e-6, 5.7e-6, 8.8e-6, (), ONE_H100.format("a copy to the GPU in a graph")),
    "d2h_graph": Constant(7.5e-6, 6.3e-6, 8.6e-6, (), ONE_H100.format("a copy from the GPU in a graph")),
}


def _transitions(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """What a graph takes around a memset and around a copy beyond their own time and the gap of one more node."""
    if "gap_graph" not in known:
        return
    yield from AROUND.items()
    plain = evidence.row("graph_transitions", "around", transition="kernel", submitted="graph")
    if plain is None:
        return
    for name, transition, own in (
        ("memset_graph", "memset", MEMSET),
        ("h2d_small_graph", "copy_h2d", known.get("h2d_latency")),
    ):
        row = evidence.row("graph_transitions", "around", transition=transition, submitted="graph")
        if row is not None and own is not None:
            parts = [(1.0, of_row(row)), (-1.0, of_row(plain)), (-1.0, own), (-1.0, known["gap_graph"])]
            yield name, combined(parts)


# Without launch_gap the gap behind a kernel that writes, and in a process of one stream, lies in these ranges.
WRITE = Constant(0.05e-6, 0.0, 0.2e-6, (), "how much longer the gap behind a kernel that writes is, was not measured")
# Graphs of five public models on two H100s: 0.11 to 0.25 us.
CODE = Constant(0.18e-6, 0.0, 0.36e-6, (), "how long gaps between kernels of model code are, was not measured")
ONE_STREAM = Constant(0.0, 0.0, 0.2e-6, (), "how much shorter gaps are in a process of one stream, was not measured")


WIDE = Constant(0.0, 0.0, 0.25e-6, (), "how much shorter gaps behind large grids are, was not measured")
WIDE_BLOCKS_AN_SM = 8  # launch_gap measures grids of that size
MOST_SMS = 1 << 20  # used where the GPU's number of SMs is unknown


def _wide(evidence: Evidence) -> Found:
    """By how much a graph's gap is shorter behind a large grid, and from how many blocks on a grid is large.

    The last blocks of a grid of eight blocks an SM or more end one after another, and the next node begins meanwhile.
    """
    chains = [
        [
            gap(evidence, "graph", **(WRITING | {"blocks": blocks, "launch_streams": streams}))
            for blocks in ("an_sm", "eight_an_sm")
        ]
        for streams in ("two", "one")
    ]
    shorter = [combined([(1, small), (-1, large)]) for small, large in chains if small and large]
    wide = middle(shorter) if shorter else WIDE
    sms = evidence.gpu.sm_count if evidence.gpu is not None else None
    yield "wide_graph", wide
    yield "wide_blocks", around(float(WIDE_BLOCKS_AN_SM * (sms or MOST_SMS)), 0.0, wide.rests_on, wide.assumed)


def _spread(gaps_of_code: Sequence[Constant], own: Constant) -> Constant:
    """The middle of these gaps less ``own``; another program's may lie as far outside of them as inside.

    They differ by what the step moves through the L2: in PyTorch's graphs on one H100 a node took 0.10 us more than its
    kernel where all data stayed there, and 0.30 us where weights of 200 MB passed through it.
    """
    values = [constant.value for constant in gaps_of_code]
    names = [row for constant in (*gaps_of_code, own) for row in constant.rests_on]
    return around((min(values) + max(values)) / 2 - own.value, max(values) - min(values), names, least=-math.inf)


def _model_gaps(evidence: Evidence) -> Iterator[Constant]:
    """For each example of model code as a graph: its GPU time less its kernels' durations, for each gap between nodes.

    Replays followed one another, so that each also has the gap between two kernels of a stream.
    """
    between = gap(evidence, "stream")
    for row in evidence.rows("launch_model", "gpu", compiled="eager"):
        kernels = evidence.row("launch_model", "kernels", **row.params)
        launches = next((fact.value for fact in row.outcomes[0].facts if fact.name == "launches"), None)
        if kernels is not None and between is not None and isinstance(launches, int) and launches > 1:
            each = 1 / (launches - 1)
            yield combined([(each, of_row(row)), (-each, of_row(kernels)), (-each, between)], least=-math.inf)


def _gaps_without_profiler(evidence: Evidence) -> Found:
    """The gaps of runs without launch_gap. In a stream: the period of gated kernels as long as launch_gap's less their
    duration; in a graph: the time that a node adds less an empty kernel."""
    longer = profiled_longer(evidence)  # cancels out in a run's steps, so the gaps count as measured
    durations = dict(evidence.curve("launch_duration", "duration", "duration_ns"))
    gated = evidence.curve("launch_duration", "gated", "duration_ns")
    streams = {at: of_rows(((1, row), (-1, durations[at]))) for at, row in gated if at in durations}
    if streams:
        # Other lengths of kernels have other gaps, so all of them are within the interval.
        nearest = min(streams, key=lambda duration_ns: abs(duration_ns - SPIN_NS))
        own, half = streams[nearest], half_width(middle(list(streams.values())))
        widened = around(own.value, max(half, half_width(own)), own.rests_on)
        yield "gap_stream", replace(combined([(1, widened), (-1, longer)]), assumed="")
    nodes = [(count, of_row(row)) for count, row in evidence.curve("graph_lifecycle", "node", "nodes")]
    if len(nodes) > 1:
        (few, first), (many, last) = nodes[0], nodes[-1]
        node = [(many / (many - few), last), (-few / (many - few), first)]
        gap_graph = combined([*node, (-1, empty_kernel(evidence))], least=-math.inf)
        yield "gap_graph", replace(gap_graph, assumed="")


def _lives(evidence: Evidence) -> Found:
    """The launches that wait before the call blocks, with the smallest arguments measured; the replay call of the
    compiled loop, with the time that a node adds."""
    for _, row in evidence.curve("launch_queue", "depth", "argument_bytes")[:1]:
        yield "queue", of_row(row)
    replays = [(count, of_row(row)) for count, row in evidence.curve("graph_lifecycle", "relaunch", "nodes")]
    replay = straight(replays, ONE_SIZE)
    if replay is not None:
        yield replay_name(LOOP_LAYER), replay[0]
        yield "replay_node", replay[1]


def made(evidence: Evidence) -> tuple[tuple[int, Constant], ...]:
    """What making a graph takes, by its nodes, ascending; no graph takes less than a smaller one."""
    phases = [dict(evidence.curve("graph_lifecycle", phase, "nodes")) for phase in MAKING]
    counts = sorted(set.intersection(*(set(phase) for phase in phases)))
    every = [of_rows([(1.0, phase[count]) for phase in phases]) for count in counts]
    rising = [max(every[: place + 1], key=attrgetter("value")) for place in range(len(every))]
    return tuple(zip(counts, rising, strict=True))


def making_of(graph_sizes: Sequence[int], measured: Sequence[tuple[int, Constant]]) -> Constant | None:
    """What making graphs of so many nodes takes, on straight lines between the measured sizes: the time over the nodes
    is convex. None if no size was measured."""
    sizes, constants = [size for size, _ in measured], [constant for _, constant in measured]
    if len(sizes) < 2:
        whole = combined([(sum(graph_sizes) / size, constant) for size, constant in measured])
        return (whole if {*graph_sizes} <= {*sizes} else stand_in(whole, ONE_SIZE)) if sizes else None
    counted = [0.0] * len(sizes)
    for nodes in graph_sizes:
        right = min(max(bisect.bisect_left(sizes, nodes), 1), len(sizes) - 1)
        share = (nodes - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        counted[right - 1] += 1 - share
        counted[right] += share
    return combined([(factor, constant) for factor, constant in zip(counted, constants, strict=True) if factor])


# Ways of many small copies without a call for each, and how to have them.
BATCHED = {
    "gather": ("one gathering kernel", "a kernel that gathers them from pinned memory"),
    "batched": ("one batched call", "one cudaMemcpyBatchAsync (CUDA 12.8 or newer)"),
}


def batches(evidence: Evidence) -> dict[str, dict[tuple[int, int], Constant]]:
    """``Fit.batches`` from link_batch."""
    found: dict[str, dict[tuple[int, int], Constant]] = {}
    for row in evidence.rows("link_batch", "bandwidth"):
        if row.value > 0:
            at = whole(row, "pieces_copied"), whole(row, "piece_bytes")
            found.setdefault(str(row.params["way"]), {})[at] = of_row(row)
    return found


def batched_rate(known: Mapping[tuple[int, int], Constant], pieces: int, piece_bytes: int) -> Constant | None:
    """The rate of so many pieces one way. More than were measured go in several calls; None for fewer pieces than that,
    and for other sizes."""
    by_count = {
        count: rate
        for count in {count for count, _ in known}
        if (rate := _between({at: one for (own, at), one in known.items() if own == count}, piece_bytes)) is not None
    }
    return _between(by_count, min(pieces, max(by_count, default=pieces)))


def _between(points: Mapping[int, Constant], at: int) -> Constant | None:
    """On the straight line of logarithms between the nearest points, in an interval that holds both of theirs."""
    below, above = (max((x for x in points if x <= at), default=0), min((x for x in points if x >= at), default=0))
    if not below or not above:
        return None
    ends, share = (points[below], points[above]), math.log(at / below) / math.log(above / below) if above > below else 0
    low, high = min(one.low for one in ends), max(one.high for one in ends)
    rows = tuple(dict.fromkeys(row for one in ends for row in one.rests_on))
    return Constant(ends[0].value ** (1 - share) * ends[1].value ** share, low, high, rows)


def _front_end(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """The time between the begins of kernels side by side, from the fork of empty kernels with most branches.

    The replay less its begin, its end and the last kernel leaves the times between the kernels' begins. The first and
    the last kernel depend on the others, so the graph gap may decide when these two begin.
    """
    around_it = (replay_name(LOOP_LAYER), "replay_way", "complete")
    forks = evidence.curve("graph_shape", "graph", "branches", shape="fork_join", duration_ns=0)
    if not forks or any(name not in known for name in (*around_it, "gap_graph")):
        return
    empty = empty_kernel(evidence)
    chained = combined([(1.0, empty), (1.0, known["gap_graph"])])
    begins = combined([(1.0, of_row(forks[-1][1])), *((-1.0, known[name]) for name in around_it), (-1.0, empty)])
    all_alike = combined([(1 / (FORKED_KERNELS + 1), begins)])
    others = combined([(1 / (FORKED_KERNELS - 1), begins), (-2 / (FORKED_KERNELS - 1), chained)])
    apart = all_alike if all_alike.value > chained.value else others
    if apart.value > 0:
        yield "front_end", apart


def _further_roots(evidence: Evidence) -> Found:
    """The host time that each further root of a graph adds to its replay call, from independent kernels of no length
    and the chain of as many. The call hands one root after another to the GPU."""
    chain = evidence.row("graph_shape", "graph_submit", shape="chain", duration_ns=0)
    several = evidence.curve("graph_shape", "graph_submit", "branches", shape="independent", duration_ns=0)
    if chain is None or not several:
        return
    roots, apart = several[-1]
    if roots > 1:
        yield "replay_root", combined([(1 / (roots - 1), of_row(apart)), (-1 / (roots - 1), of_row(chain))])


# The rows of launch_watched that show what PyTorch's profiler adds to each of these.
WATCHED = {
    "call": ("call", "torch"), "operator": ("operator", "torch"), "function": ("function", "torch_stack"),
    "own_call": ("call", "watch"),
}  # fmt: skip


def _watched(evidence: Evidence) -> Found:
    """What PyTorch's profiler adds to a call, an operator and a Python function, and `microbench watch` to a call.

    Programs differ by more than one measurement scatters, so each interval holds what every measured model shows. If
    that of a call reaches zero, nothing is used of PyTorch's profiler: what is assumed in its place is known better.
    """
    info = evidence.run.benchmark("launch_watched")
    found = {}
    for name, (metric, records) in WATCHED.items():
        row = evidence.row("launch_watched", metric, records=records)
        # Samples of version 1 drifted with the host: once 11.4 us a call where version 2 has about 3.5.
        if row is None or info is None or info.version < 2:
            continue
        own = of_row(row)
        facts = [fact for outcome in row.outcomes for fact in outcome.facts if fact.name.startswith(f"{metric}_")]
        apart = [abs(fact.value - own.value) for fact in facts if isinstance(fact.value, int | float)]
        found[name] = around(own.value, max(half_width(own), *apart, 0.0), own.rests_on)
    unusable = "call" in found and not found["call"].low
    for name, cost in found.items():
        if cost.low > 0 and (name == "own_call" or not unusable):
            yield f"watched.{name}", cost


UNMEASURED_CALL = "a copy's call takes as long as a launch, or as what a short copy leaves for it"
UNMEASURED_WAY = "a copy's launch latency is that of a kernel"
DIRECTIONS: tuple[Direction, ...] = ("h2d", "d2h")


def _memory(evidence: Evidence) -> Found:
    """The best rate at which CUDA C++ reads arrays of the largest size measured, which no cache holds."""
    rows = evidence.rows("memory_stream", "bandwidth", kernel="read", implementation="cuda")
    known = [row for row in rows if row.value > 0]
    best = max(known, key=lambda row: (whole(row, "size_bytes"), row.value), default=None)
    if best is not None:
        yield "memory", of_row(best)


def _copies(evidence: Evidence, known: Mapping[str, Constant]) -> Found:
    """For each direction the latency and rate of pinned and pageable copies, the call, and the way to the engine."""
    for direction in DIRECTIONS:
        copied = evidence.curve("link_copy", "bandwidth", "size_bytes", direction=direction, memory="pinned")
        pinned = dict(latency_and_rate(direction, copied))
        yield from pinned.items()
        latency = pinned.get(f"{direction}_latency")
        if latency is not None:
            yield from _around_a_copy(evidence, direction, latency, known)
        hosts = evidence.curve("link_copy", "bandwidth_host", "size_bytes", direction=direction, memory="pageable")
        yield from latency_and_rate(f"{direction}_pageable", hosts)


def _seconds(size_bytes: int, row: Row) -> Constant:
    """A rate as the time of one copy."""
    rate = of_row(row)
    return around(size_bytes / rate.value, size_bytes / rate.value**2 * half_width(rate), rate.rests_on)


def latency_and_rate(prefix: str, points: list[tuple[int, Row]]) -> Found:
    """The straight line of a copy's time over its bytes; the line's own misfit widens both intervals."""
    times = [(size, _seconds(size, row)) for size, row in points if row.value > 0]
    fitted = line((size, seconds.value) for size, seconds in times)
    if fitted is None or fitted.slope <= 0:
        return
    names = [row for _, seconds in times for row in seconds.rests_on]
    (size, first), (_, last) = times[0], times[-1]
    at_first = max(half_width(first), abs(fitted.at(size) - first.value))
    at_last = max(half_width(last) / last.value, abs(fitted.at(times[-1][0]) / last.value - 1))
    rate = 1 / fitted.slope
    yield f"{prefix}_latency", around(fitted.constant, at_first, names)
    yield f"{prefix}_rate", around(rate, rate * at_last, names)


def _around_a_copy(evidence: Evidence, direction: str, latency: Constant, known: Mapping[str, Constant]) -> Found:
    """The call, and the way: the time of a short copy with its synchronise less call, copy and completion.

    A call that was not measured takes as long as a launch, or as the short copy leaves for it if that is less.
    """
    submit = evidence.row("link_latency", "submit", what=f"copy_{direction}")
    taken = evidence.row("link_latency", "latency", what=f"copy_{direction}")
    completion, launch = known.get("complete"), known.get(call_name(LOOP_LAYER, 0))
    rest = None
    if taken is not None and completion is not None:
        rest = combined([(1, of_row(taken)), (-1, latency), (-1, completion)])
    if submit is not None:
        call = of_row(submit)
    elif launch is not None:
        call = stand_in(launch if rest is None or launch.value < rest.value else rest, UNMEASURED_CALL)
    else:
        return
    yield f"{direction}_call", call
    if rest is not None:
        yield f"{direction}_way", combined([(1, rest), (-1, call)])
    elif (way := known.get("way")) is not None:
        yield f"{direction}_way", stand_in(way, UNMEASURED_WAY)


class Pair(NamedTuple):
    """One kernel duration (s, as profilers report it) measured both ways; the rows are times per kernel."""

    duration_s: float
    stream: Row
    graph: Row

    @property
    def duration_ns(self) -> int:
        """The duration that the kernels were asked for; 0 if they do nothing."""
        return whole(self.stream, "duration_ns")

    @property
    def empty(self) -> bool:
        return self.duration_ns == 0

    @property
    def speedup(self) -> float:
        """How many times as long the stream takes."""
        return self.stream.value / self.graph.value

    @property
    def saved_s(self) -> float:
        """Time that the graph saves per kernel, by the same two figures as the speed-up; 0 where it saves none."""
        return max(self.stream.value - self.graph.value, 0.0)


def pairs(evidence: Evidence, submitter: str, kernels: int) -> list[Pair]:
    """graph_gain's cases with that submitter and count of kernels, by ascending duration."""
    chosen: dict[str, int | str] = {"submitter": submitter, "kernels": kernels}
    graphs = dict(evidence.curve("graph_gain", "graph", "duration_ns", **chosen))
    return [
        Pair(own_s(evidence, duration_ns), row, graphs[duration_ns])
        for duration_ns, row in evidence.curve("graph_gain", "stream", "duration_ns", **chosen)
        if duration_ns in graphs and row.value > 0 and graphs[duration_ns].value > 0
    ]

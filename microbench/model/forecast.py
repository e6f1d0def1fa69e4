"""Predicts how long a step takes in a stream and as graphs, with an interval, and which change saves most."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from microbench.analysis.evidence import Evidence, whole
from microbench.analysis.stats import Row
from microbench.core.errors import UsageError
from microbench.core.ops import ARRAY_LAYERS, LOOP_LAYER
from microbench.model import model, unknowns
from microbench.model.constants import Fit, by_layer, own_s, scattering_s
from microbench.model.fit import measured_arguments, with_calls
from microbench.model.model import LIMITS, WAYS, Limit, Played, Way, call_name, needed
from microbench.model.unknowns import HostTime
from microbench.model.workload import Copies, HostWork, Kernels, Part, Wait, Workload

# Without a synchronise, steps overlap, so the time of one is the difference between many steps and half as many, per
# step. Two steps are enough if each fills the queue.
FLOWING_STEPS, FLOWING_CALLS = 8, 8000
# An interval needs many plays, so a long step is shortened for it. Overlapping steps are shortened more, because each
# play has several of them.
LONGEST_PERTURBED, LONGEST_FLOWING = 600, 150
# A shortened step has at least this many pieces between waits, so that a wait keeps its share of the step.
FEW_PIECES = 4
# The law holds a little beyond the largest step that was measured.
BEYOND = 1.25
# The share of the step that an advice must save to be listed.
WORTH = 0.02
# Steps that run only because a step is to be captured. PyTorch asks for three (torch.cuda.make_graphed_callables,
# num_warmup_iters=3). Elsewhere the step that loads the code is one that the program runs anyway.
WARM_UPS: Mapping[str, int] = {"torch_eager": 3, "torch_out": 3}
# Host times for each launch between which the verdict is searched, and the search's steps.
LONGEST_LAUNCH_S, HALVINGS = 1e-3, 16
ENDS: tuple[unknowns.End, unknowns.End] = ("low", "high")
# The two cases of an unknown host time: bare operations, and typical model code.
CASES: tuple[unknowns.End, unknowns.End] = ("low", "typical")

# The change that a what-if makes to a step after unknown host times and shares of the SMs are filled in; the fit has
# the launch calls of both steps.
Change = Callable[[Workload, Fit], Workload]


def unchanged(workload: Workload, fit: Fit) -> Workload:
    """The step as it is."""
    return workload


class Prediction(msgspec.Struct, frozen=True):
    """One way of submitting a step: its time with a 95 % interval, and what it rests on.

    ``idle_share`` is the share of the step without a kernel on the GPU. ``shares`` are seconds of the critical path by
    what they were spent on. ``outside`` says where the step goes beyond what was measured. ``names`` are the constants
    used. ``played`` is one step from an idle machine. ``ends`` are the shortest and the longest time of a step that is
    only known within a range, each a prediction of its own; the interval then reaches from the one's to the other's.
    No interval begins below the kernels' own time.
    """

    way: Way
    step_s: float
    low_s: float
    high_s: float
    idle_share: float
    shares: Mapping[Limit, float]
    outside: tuple[str, ...]
    names: tuple[str, ...]
    played: Played
    ends: tuple[Prediction, ...] = ()

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limit at either end of the range; a single one if they agree."""
        return tuple(dict.fromkeys(end.limit for end in self.ends or (self,)))

    @property
    def limit(self) -> Limit:
        """The kind that takes most of the critical path."""
        return max(LIMITS, key=lambda name: self.shares.get(name, 0.0))

    @property
    def half_width(self) -> float:
        """How far the interval reaches above the time, as a share of it."""
        return (self.high_s - self.step_s) / self.step_s if self.step_s > 0 else 0.0


class Advice(msgspec.Struct, frozen=True):
    """A change to the step in a stream, the time it then takes, and the share of the step that this saves."""

    name: str
    what: str
    step_s: float
    saves: float


class Making(NamedTuple):
    """What making a step's graphs takes, in seconds: warm-up steps in the stream, the calls of the layer that captures
    them, and the driver's part (capture, instantiate, upload)."""

    warm_up_s: float
    calls_s: float
    driver_s: float


class Forecast(msgspec.Struct, frozen=True):
    """A workload both ways. ``graph`` is None where nothing of it can be captured.

    ``making`` is what making its graphs takes, ``break_even`` the number of steps after which that has paid, None if it
    never does. ``advice`` is sorted by what it saves. ``filled`` is the workload as it was played, with what its
    description leaves out. If that makes a range, ``ends`` are the forecasts at all its ends by their time in the
    stream, and the forecast's own figures are those of typical model code with kernels side by side. ``host`` is the
    host time for each launch where nobody gave it, and ``launch_bound_s`` the shortest with which the step is
    launch-bound, None if it never is. ``change`` was applied to the filled workload: in a what-if, ``workload`` and
    ``host`` are those before the change.
    """

    workload: Workload
    fit: Fit
    stream: Prediction
    graph: Prediction | None
    making: Making
    break_even: int | None
    advice: tuple[Advice, ...]
    filled: Workload
    ends: tuple[Forecast, ...] = ()
    host: HostTime | None = None
    launch_bound_s: float | None = None
    change: Change = unchanged

    def at(self, host: unknowns.End | float = "typical", share: unknowns.End = "typical") -> Workload:
        """The workload as it is played with that host time and share of the SMs; see ``unknowns.filled``."""
        return self.change(unknowns.filled(self.workload, self.fit, host, share), self.fit)

    def step_s(self, way: Way, host: unknowns.End | float, share: unknowns.End) -> float:
        return _flow(self.at(host, share), self.fit.values, way).step_s

    @property
    def speedup(self) -> float:
        """Stream over graph; 1 without a graph."""
        return self.stream.step_s / self.graph.step_s if self.graph is not None else 1.0

    @property
    def speedups(self) -> tuple[float, float]:
        """The least and the largest speed-up of its ends."""
        ratios = [end.speedup for end in self.ends or (self,)]
        return min(ratios), max(ratios)

    @property
    def speedup_between(self) -> tuple[float, float]:
        """The 95 % interval of the speed-up, by the intervals of both times."""
        if self.graph is None:
            return 1.0, 1.0
        below = math.hypot(_apart(self.stream.step_s, self.stream.low_s), _apart(self.graph.high_s, self.graph.step_s))
        above = math.hypot(_apart(self.stream.high_s, self.stream.step_s), _apart(self.graph.step_s, self.graph.low_s))
        return self.speedup * math.exp(-below), self.speedup * math.exp(above)

    @property
    def making_s(self) -> float:
        """Everything that making its graphs takes."""
        return sum(self.making)


def _apart(longer_s: float, shorter_s: float) -> float:
    return math.log(longer_s / shorter_s) if shorter_s > 0 else 0.0


def forecast(workload: Workload, fit: Fit, change: Change = unchanged) -> Forecast:
    """Both ways, and what to change. ``change`` is applied after unknown host times and SM shares are filled in.

    Raises UsageError where the fit lacks a constant; ``fit.missing`` tells which benchmarks measure it.
    """
    fit = with_calls(fit, workload)
    first = next(iter(unknowns.unknown_host(workload)), None)
    host = unknowns.host_time(fit, first.layer or workload.layer, first.arguments) if first is not None else None
    shares = unknowns.unknown_shares(workload, fit.sms)

    def known(*corner: unknowns.End) -> Workload:
        return change(unknowns.filled(workload, fit, *corner), fit)

    @cache
    def replayed(share: unknowns.End) -> Prediction | None:
        """The graph's prediction, which is the same for any host time: a replay has none between kernels."""
        replays = known("typical", share)
        return predict(replays, fit, "graph") if model.graphs(replays) else None

    def at(host: unknowns.End = "typical", share: unknowns.End = "typical") -> Forecast:
        one = known(host, share)
        return _known(one, fit, predict(one, fit, "stream"), replayed(share))

    found = replace(at(), workload=workload, change=change)
    if host is not None or shares:
        hosts = CASES if host is not None else CASES[:1]
        corners = itertools.starmap(at, itertools.product(hosts, ENDS if shares else ENDS[:1]))
        ends = tuple(sorted(corners, key=lambda end: end.stream.step_s))
        streams, graphed = [end.stream for end in ends], [end.graph for end in ends if end.graph is not None]
        found = replace(
            found,
            stream=_between(found.stream, streams),
            graph=None if found.graph is None else _between(found.graph, graphed),
            ends=ends,
            host=host,
            launch_bound_s=launch_bound_s(found, host) if host is not None else None,
        )
    return replace(found, advice=_advice(found))


def _known(known: Workload, fit: Fit, stream: Prediction, graph: Prediction | None) -> Forecast:
    """The forecast, without advice, of a workload that leaves nothing out, from its predictions."""
    made = making(known, fit, stream.step_s) if graph is not None else Making(0.0, 0.0, 0.0)
    saved_s = stream.step_s - graph.step_s if graph is not None else 0.0
    break_even = max(math.ceil(sum(made) / saved_s), 1) if saved_s > 0 else None
    return Forecast(known, fit, stream, graph, made, break_even, (), known)


def _between(middle: Prediction, ends: Sequence[Prediction]) -> Prediction:
    """A prediction with the range from the shortest end to the longest, if the two differ."""
    low, high = (choose(ends, key=lambda end: end.step_s) for choose in (min, max))
    if low.step_s == high.step_s:
        return middle
    return replace(middle, low_s=low.low_s, high_s=high.high_s, ends=(low, high))


def launch_bound_s(found: Forecast, host: HostTime, share: unknowns.End = "typical") -> float | None:
    """The shortest host time for each launch with which the stream is launch-bound; None if it never is.

    It includes the call as it was measured, also where a what-if changes the call or the layer.
    """
    short = replace(found, workload=_shortened(found.workload, LONGEST_PERTURBED))

    def launch_bound(launch_s: float) -> bool:
        shares = _flow(short.at(launch_s - host.call_s, share), found.fit.values, "stream").shares()
        return max(LIMITS, key=lambda name: shares.get(name, 0.0)) == "host"

    low_s, high_s = 0.0, LONGEST_LAUNCH_S
    if not launch_bound(high_s):
        return None
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if launch_bound(middle_s) else (middle_s, high_s)
    return high_s


def making(workload: Workload, fit: Fit, stream_s: float) -> Making:
    """A capture makes every call of its layer, with the host time between them; the compiled loop's are the driver's
    part. Calls take as long as in a stream, or the share of that which model code was measured to take."""
    values = fit.values
    calls_s = sum(
        part.count * (values[call_name(layer, part.arguments)] + (part.host_s or 0.0))
        for part in workload.parts
        if isinstance(part, Kernels) and (layer := part.layer or workload.layer) != LOOP_LAYER
    )
    shares = [example.capture_share for example in fit.model_code if example.capture_share is not None]
    driver_s = with_calls(fit, workload).values["make"]
    warm_up_s = WARM_UPS.get(workload.layer, 0) * stream_s
    return Making(warm_up_s, calls_s * (statistics.median(shares) if shares else 1.0), driver_s)


def predict(workload: Workload, fit: Fit, way: Way, host_s: float = 0.0) -> Prediction:
    """One way. The interval is the root of the sum of squares of the constants' intervals and of the model's misfit on
    the part of the step that scatters, which ``host_s`` of its host work does as little as kernels. Raises UsageError
    where the fit lacks a constant."""
    names = needed(workload, way)
    absent = [name for name in names if name not in fit.constants]
    if absent:
        raise UsageError(f"the run has no measurement of {', '.join(absent)}", "microbench run measures all of it")
    values = fit.values
    flow = _flow(workload, values, way)
    shares = flow.shares()
    regime = "host" if max(shares, key=lambda name: shares[name], default="kernel") == "host" else "gpu"
    own_s = shares.get("kernel", 0.0) + shares.get("link", 0.0) + min(host_s, shares.get("host", 0.0))
    misfit_s = fit.misfit[way, regime].most * scattering_s(flow.step_s, own_s)
    half_s = math.hypot(misfit_s, flow.step_s * _perturbed(workload, fit, names, way))
    return Prediction(
        way=way,
        step_s=flow.step_s,
        low_s=max(flow.step_s - half_s, min(_own_s(workload, values, way), flow.step_s)),
        high_s=flow.step_s + half_s,
        idle_share=max(1 - flow.busy_s / flow.step_s, 0.0) if flow.step_s > 0 else 0.0,
        shares=shares,
        outside=tuple(_outside(workload, fit)),
        names=names,
        played=flow.many if flow.few is None else _played(workload, values, way),
    )


def step_time(workload: Workload, fit: Fit, way: Way) -> float:
    """The time of a step in s, without an interval. The fit has every constant of ``needed``."""
    return _flow(workload, fit.values, way).step_s


def _own_s(workload: Workload, values: Mapping[str, float], way: Way) -> float:
    """The kernels' own time: the given durations of the stream that has most of them, without any gap.

    Durations as profilers report them overlap where the gap is negative, and in a graph large grids end while the next
    node begins.
    """
    gap_s = values[f"gap_{way}"] - (values[f"one_stream_{way}"] if model.one_stream(workload, way) else 0.0)
    overlap_s = max(-gap_s, 0.0)
    streams = [0.0] * workload.streams
    dealt = itertools.cycle(range(workload.streams))
    for part in workload.parts:
        if isinstance(part, Kernels):
            early_s = values["wide_graph"] if way == "graph" and model.wide(workload, part, values) else 0.0
            for duration_s in itertools.islice(itertools.cycle(part.durations_s), part.count):
                stream = next(dealt) if part.stream is None else part.stream % workload.streams
                streams[stream] += duration_s - early_s - overlap_s
    return max(streams)


class _Flow(msgspec.Struct, frozen=True):
    """One step of many: the difference of two plays per step, or ``many`` alone if the step ends on an idle machine."""

    many: Played
    few: Played | None = None
    steps: int = 1

    @property
    def step_s(self) -> float:
        return self.many.end_s if self.few is None else (self.many.end_s - self.few.end_s) / self.steps

    @property
    def busy_s(self) -> float:
        """How long at least one kernel runs in a step, in s."""
        return self.many.busy_s if self.few is None else (self.many.busy_s - self.few.busy_s) / self.steps

    def shares(self) -> Mapping[Limit, float]:
        """Seconds of a step's critical path by what they are spent on."""
        many = self.many.shares
        if self.few is None:
            return many
        return {name: max(many.get(name, 0.0) - self.few.shares.get(name, 0.0), 0.0) / self.steps for name in LIMITS}


def _flow(workload: Workload, values: Mapping[str, float], way: Way) -> _Flow:
    """A step that ends in a synchronise is like the next one; others are the difference of many and half as many."""
    if _ends_in_wait(workload):
        return _Flow(_played(workload, values, way))
    half = min(max(FLOWING_CALLS // max(_calls(workload.parts), 1), 2), FLOWING_STEPS) // 2
    few, many = (_played(workload, values, way, steps) for steps in (half, 2 * half))
    return _Flow(many, few, half)


def _played(workload: Workload, values: Mapping[str, float], way: Way, steps: int = 1) -> Played:
    """The played step, repeated ``steps`` times."""
    front_end_s = values["front_end"] if workload.streams > 1 else 0.0
    acts = model.acts(workload, values, way) * steps
    return model.play(acts, queue=max(round(values["queue"]), 1), front_end_s=front_end_s)


def _perturbed(workload: Workload, fit: Fit, names: Sequence[str], way: Way) -> float:
    """Half the width of the step's interval from the constants' intervals alone, as a share of the step."""
    short = _shortened(workload, LONGEST_PERTURBED if _ends_in_wait(workload) else LONGEST_FLOWING)
    values = fit.values
    step_s = _flow(short, values, way).step_s
    squares = 0.0
    for name in names:
        if name in model.UNPLAYED[way]:
            continue
        constant = fit.constants[name]
        ends = [_flow(short, {**values, name: end}, way).step_s for end in (constant.low, constant.high)]
        squares += ((ends[1] - ends[0]) / 2) ** 2
    return math.sqrt(squares) / step_s if step_s > 0 else 0.0


def _shortened(workload: Workload, longest: int) -> Workload:
    """The last pieces of a long step, with the same share of each part's kernels, copies and host work."""
    if _calls(workload.parts) <= longest:
        return workload
    pieces = _pieces(workload.parts)
    count = max(round(len(pieces) * longest / _calls(workload.parts)), FEW_PIECES)
    last = list(itertools.chain.from_iterable(pieces[-count:]))[-longest:]
    share = min(longest / max(_calls(last), 1), 1.0)
    for place, part in enumerate(last):
        if isinstance(part, Kernels | Copies):
            last[place] = replace(part, count=max(round(part.count * share), 1))
        elif isinstance(part, HostWork):
            last[place] = HostWork(part.seconds * share)
    return replace(workload, parts=tuple(last))


def _pieces(parts: Iterable[Part]) -> list[list[Part]]:
    """The parts between waits, each piece with the wait behind it."""
    pieces: list[list[Part]] = [[]]
    for part in parts:
        pieces[-1].append(part)
        if isinstance(part, Wait):
            pieces.append([])
    return [piece for piece in pieces if piece]


def _calls(parts: Iterable[Part]) -> int:
    """How many kernels and copies."""
    return sum(part.count for part in parts if isinstance(part, Kernels | Copies))


def _ends_in_wait(workload: Workload) -> bool:
    return bool(workload.parts) and isinstance(workload.parts[-1], Wait)


def _outside(workload: Workload, fit: Fit) -> Iterator[str]:
    """Where a workload goes beyond what was measured: "1100 kernels without a wait (measured: up to 1000)"."""
    reach = fit.reach
    longest = max(
        (sum(part.count for part in piece if isinstance(part, Kernels)) for piece in _pieces(workload.parts)), default=0
    )
    if longest > BEYOND * reach.kernels:
        yield f"{longest} kernels without a wait (measured: up to {reach.kernels})"
    for part in workload.parts:
        if isinstance(part, Kernels) and (layer := part.layer or workload.layer) not in ARRAY_LAYERS:
            most = max(measured_arguments(fit, layer), default=part.arguments)
            if part.arguments > BEYOND * most:
                yield f"{part.arguments} arguments (measured: up to {most})"
    if workload.streams > reach.streams:
        yield f"{workload.streams} streams (measured: up to {reach.streams})"
    largest = max((part.size_bytes for part in workload.parts if isinstance(part, Copies)), default=0)
    if largest > BEYOND * reach.copy_bytes:
        yield f"copies of {largest} bytes (measured: up to {reach.copy_bytes})"


def _advice(found: Forecast) -> tuple[Advice, ...]:
    """The changes that save at least WORTH, the largest saving first."""
    stream, graph = found.stream, found.graph
    tried = []
    for name, what, changed in _changes(found.filled, found.fit):
        fit = with_calls(found.fit, changed)
        if all(constant in fit.constants for constant in needed(changed, "stream")):
            tried.append((name, what, step_time(changed, fit, "stream")))
    if graph is not None:
        tried.append(("graph", "replay it as a graph", graph.step_s))
    most_s = (1 - WORTH) * stream.step_s
    worth = sorted((one for one in tried if one[2] <= most_s), key=itemgetter(2))
    return tuple(Advice(name, what, step_s, 1 - step_s / stream.step_s) for name, what, step_s in worth)


def _changes(workload: Workload, fit: Fit) -> Iterator[tuple[str, str, Workload]]:
    """Each change that applies: its name, what to do, and the step with that done."""
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    if any(layer != LOOP_LAYER for layer in workload.layers):
        compiled = with_calls(fit, workload.with_kernels(lambda part: replace(part, layer=LOOP_LAYER)))
        yield "layer", "launch from compiled code", unknowns.relaunched(workload, compiled, LOOP_LAYER)
    if any((part.host_s or 0.0) > 0 for part in kernels):
        without = workload.with_kernels(lambda part: replace(part, host_s=0.0))
        yield "host", "leave out the program's own host time between launches", without
    waits = [index for index, part in enumerate(workload.parts) if isinstance(part, Wait)]
    if len(waits) > 1:
        rest = tuple(part for index, part in enumerate(workload.parts) if index not in waits[:-1])
        yield "syncs", "wait once, at the end of the step", replace(workload, parts=rest)
    if any(part.count > 1 for part in kernels):
        yield "fuse", "fuse kernels in pairs: half as many, each twice as long", _fused(workload)
    if any(isinstance(part, Copies) and part.memory == "pageable" for part in workload.parts):
        parts = tuple(replace(part, memory="pinned") if isinstance(part, Copies) else part for part in workload.parts)
        yield "pinned", "copy from and to pinned memory", replace(workload, parts=parts)


def _fused(workload: Workload) -> Workload:
    """Half as many kernels, each with the time and the bytes of two; an odd last kernel stays as it is."""

    def pairs(part: Part) -> tuple[Part, ...]:
        if not isinstance(part, Kernels) or part.count < 2:
            return (part,)
        own = [part.durations_s[index % len(part.durations_s)] for index in range(part.count)]
        sums = tuple(own[index] + own[index + 1] for index in range(0, part.count - 1, 2))
        fused = replace(part, count=len(sums), durations_s=sums, bytes=part.bytes * 2)
        left = replace(part, count=1, durations_s=tuple(own[-1:]))
        return (fused, left) if part.count % 2 else (fused,)

    parts = tuple(fused for part in workload.parts for fused in pairs(part))
    return replace(workload, parts=parts)


# A good model keeps these limits: the median error, and the error that 95 % of the points stay within.
GOOD_MEDIAN, GOOD_MOST = 0.03, 0.10


class Point(msgspec.Struct, frozen=True):
    """A measured step and the prediction of one of its pieces, which are alike and each end in a wait."""

    row: Row
    way: Way
    predicted: Prediction

    @property
    def pieces(self) -> int:
        return whole(self.row, "waits")

    @property
    def step_s(self) -> float:
        return self.pieces * self.predicted.step_s

    @property
    def error(self) -> float:
        """Predicted less measured, as a share of the measured."""
        return self.step_s / self.row.value - 1

    @property
    def covered(self) -> bool:
        """Whether the measured median lies within the prediction's interval."""
        return self.predicted.low_s <= self.row.value / self.pieces <= self.predicted.high_s


class Check(msgspec.Struct, frozen=True):
    """All points together, as shares: median and 95th percentile of the absolute errors, covered points, and the median
    of the intervals' half widths."""

    points: tuple[Point, ...]
    median: float
    most: float
    coverage: float
    half_width: float


def check(measured: Evidence, fitted: Fit) -> Check | None:
    """Every measured step of a run against the predictions of a fit, of this run or another's; None without steps."""
    points = tuple(_points(measured, fitted))
    if not points:
        return None
    errors = np.abs([point.error for point in points])
    return Check(
        points,
        float(np.median(errors)),
        float(np.percentile(errors, 95)),
        float(np.mean([point.covered for point in points])),
        float(np.median([point.predicted.half_width for point in points])),
    )


def _points(evidence: Evidence, fitted: Fit) -> Iterator[Point]:
    rows = (
        (way, row) for way in WAYS for _, rows in by_layer(evidence.rows("step_time", way), "layer") for row in rows
    )
    for way, row in rows:
        names = ("kernels", "waits", "copy_bytes", "duration_ns")
        kernels, waits, copy_bytes, duration_ns = (whole(row, name) for name in names)
        if row.value <= 0 or not 0 < waits <= kernels:
            continue
        # A spin kernel has its length as argument, an empty one none.
        arguments, durations_s = 1 if duration_ns else 0, (own_s(evidence, duration_ns),)
        piece: list[Part] = [Kernels(kernels // waits, durations_s, writes=False, arguments=arguments)]
        if copy_bytes:
            piece = [Copies("h2d", copy_bytes), *piece, Copies("d2h", copy_bytes)]
        workload = Workload((*piece, Wait()), layer=str(row.params.get("layer", LOOP_LAYER)), second_stream=True)
        with suppress(UsageError):  # the fit lacks what this step needs
            yield Point(row, way, predict(workload, with_calls(fitted, workload), way))

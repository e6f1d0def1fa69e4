"""Predicts a step after a change of the step or the machine: how its time changes, and what limits it then."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from microbench.analysis.evidence import Finding, listed
from microbench.analysis.graph_steps import title_of
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, pcie_rate
from microbench.core.errors import UsageError, run_command
from microbench.core.model import GpuInfo, LinkInfo
from microbench.core.units import MISSING, as_time, quantity, round_percent, times
from microbench.model import forecast as forecasting
from microbench.model import unknowns
from microbench.model.constants import Constant, Fit
from microbench.model.fit import missing, with_calls
from microbench.model.forecast import ENDS, Forecast, Prediction
from microbench.model.model import WAYS, Way, call_name, needed, replay_name
from microbench.model.words import between, idle, outside, paces
from microbench.model.workload import HostWork, Kernels, Workload

GIVEN = "given, not measured"
HOST_TIME = "host time of its own"


class Changes(msgspec.Struct, frozen=True):
    """The quantities that a what-if changes; None leaves a quantity as it is.

    ``submit_s`` is the launch call of the workload's layers, ``gap_s`` and ``graph_gap_s`` are the gaps between two
    kernels in a stream and in a graph, ``replay_s`` is the replay call, ``memory_rate`` the GPU memory's bytes a
    second. ``pcie_generation`` and ``lanes`` are the link's. ``kernel_time`` and ``host_time`` are factors of the
    kernels' lengths and of the program's own time (between launches, and by itself). ``layer`` launches all kernels.
    """

    submit_s: float | None = None
    gap_s: float | None = None
    graph_gap_s: float | None = None
    replay_s: float | None = None
    memory_rate: float | None = None
    pcie_generation: int | None = None
    lanes: int | None = None
    kernel_time: float | None = None
    host_time: float | None = None
    layer: str | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class Change(NamedTuple):
    """A change in words; ``matters`` is False where nothing in the step uses it."""

    what: str
    before: str
    after: str
    matters: bool


class Changed(NamedTuple):
    """The fit after the changes, what changes the workload once it is filled in, and the changes in words."""

    fit: Fit
    change: forecasting.Change
    changes: tuple[Change, ...]


def changed(workload: Workload, fit: Fit, gpu: GpuInfo | None, changes: Changes, adding: Sequence[str] = ()) -> Changed:
    """What ``changes`` make of a workload on a machine.

    Raises UsageError for a layer that the run did not measure, and for another link where its own is not known.
    ``adding`` are the options with which `microbench run` adds to that run.
    """
    change = partial(_other_step, changes=changes)
    then, described = change(workload, fit), list(_described_step(workload, changes, fit.titles))
    absent = missing(fit, then, WAYS)
    if absent:
        cause = f"run {fit.run_id} measured no launches through {', '.join(then.layers)}"
        raise UsageError(cause, f"choose one of {', '.join(fit.layers)}, or measure it: {run_command(absent, adding)}")
    fit = with_calls(fit, then)
    used = {name for way in WAYS for name in needed(then, way)}
    new: dict[str, Constant] = {}
    for what, constants in (*_given(then, changes), *_link(fit, gpu, changes)):
        known = {name: constant for name, constant in constants.items() if name in fit.constants}
        new |= known
        # The first constant that the step uses stands for all of them.
        name = min(known, key=lambda name: name not in used, default=None)
        before, after = MISSING, MISSING
        if name is not None:
            unit = "B/s" if name.endswith("rate") or name == "memory" else "s"
            before, after = (quantity(one[name].value, unit) for one in (fit.constants, known))
        described.append(Change(what, before, after, name in used))
    calls = {name: fit.constants[name].value for name in new if name.startswith("call.")}
    fit = msgspec.structs.replace(fit, constants={**fit.constants, **new}, measured_calls=calls)
    return Changed(fit, change, tuple(described))


def _described_step(workload: Workload, changes: Changes, titles: Mapping[str, str]) -> Iterator[Change]:
    """The changes of the step itself in words."""
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    if changes.layer is not None:
        before = listed([title_of(layer, titles) for layer in workload.layers])
        yield Change("who launches", before, title_of(changes.layer, titles), True)
    if changes.kernel_time is not None:
        lasting = any(part.bytes or any(part.durations_s) for part in kernels)
        yield Change("what kernels do", times(1.0), times(changes.kernel_time), lasting)
    if changes.host_time is not None:
        own = any(part.host_s for part in kernels) or any(isinstance(part, HostWork) for part in workload.parts)
        own = own or bool(unknowns.unknown_host(workload))
        yield Change(HOST_TIME, times(1.0), times(changes.host_time), own)


def _other_step(workload: Workload, fit: Fit, changes: Changes) -> Workload:
    """The step with another layer, with longer or shorter kernels, with more or less host time."""
    if changes.layer is not None:
        workload = unknowns.relaunched(workload, fit, changes.layer)
    kernel_time = 1.0 if changes.kernel_time is None else changes.kernel_time
    host_time = 1.0 if changes.host_time is None else changes.host_time

    def other(part: Kernels) -> Kernels:
        return msgspec.structs.replace(
            part,
            durations_s=tuple(length * kernel_time for length in part.durations_s),
            bytes=part.bytes * kernel_time,  # they bound its length from below
            # A launch that takes less than its call has no host time of the program.
            host_s=part.host_s if part.host_s is None or part.host_s < 0 else part.host_s * host_time,
        )

    changed = workload.with_kernels(other)
    parts = (HostWork(part.seconds * host_time) if isinstance(part, HostWork) else part for part in changed.parts)
    return msgspec.structs.replace(changed, parts=tuple(parts))


# Constants by name, with what they are in words.
Named = tuple[str, Mapping[str, Constant]]


def _given(workload: Workload, changes: Changes) -> Iterator[Named]:
    """Constants that the changes give a value."""
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    calls = {call_name(part.layer or workload.layer, part.arguments) for part in kernels}
    several: tuple[tuple[str, float | None, Iterable[str]], ...] = (
        ("a launch call", changes.submit_s, calls),
        ("gap between kernels in a stream", changes.gap_s, ("gap_stream",)),
        ("gap between kernels in a graph", changes.graph_gap_s, ("gap_graph",)),
        ("a replay call", changes.replay_s, (replay_name(workload.layer),)),
        ("the GPU's memory", changes.memory_rate, ("memory",)),
    )
    for what, value, names in several:
        if value is not None:
            yield what, dict.fromkeys(names, Constant(value, value, value, assumed=GIVEN))


def _link(fit: Fit, gpu: GpuInfo | None, changes: Changes) -> Iterator[Named]:
    """Rates of copies over another PCIe link, scaled by the ratio of the two links' ceilings.

    Pageable copies are the host's own work: they stay, unless the link is now slower than that.
    """
    if changes.pcie_generation is None and changes.lanes is None:
        return
    known = gpu.link if gpu is not None and not gpu.integrated and not gpu.link.coherent else LinkInfo()
    own = (known.generation_max or 0, known.lanes_max or 0)
    other = (changes.pcie_generation or own[0], changes.lanes or own[1])
    for direction, way in (("h2d", "to the GPU"), ("d2h", "from the GPU")):
        payload_bytes = known.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
        before, after = (pcie_rate(*link, direction, payload_bytes) for link in (own, other))
        if not before or not after:
            cause = f"run {fit.run_id} does not say which PCIe link its GPU has: there is nothing to scale"
            raise UsageError(cause, "choose a run of a GPU on PCIe, or leave out --pcie-gen and --lanes")
        scaled = {}
        names = (f"{direction}_rate", f"{direction}_pageable_rate")
        pinned, pageable = map(fit.constants.get, names)
        if pinned is not None:
            value, low, high = (end * after / before for end in (pinned.value, pinned.low, pinned.high))
            rate = Constant(value, low, high, pinned.rests_on, "scaled by the links' ceilings")
            scaled = dict.fromkeys(names if pageable is not None and pageable.value > value else names[:1], rate)
        yield f"copies {way}, PCIe {own[0]} x{own[1]} to {other[0]} x{other[1]}", scaled


SUITE = "what if"
# Two predictions within this share of one another are the same.
SAME = 0.02


class Times(NamedTuple):
    """The time of a step before and after, in seconds."""

    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        return self.before_s / self.after_s if self.after_s > 0 else 1.0

    @property
    def same(self) -> bool:
        return abs(self.after_s - self.before_s) <= SAME * self.before_s


class BeforeAfter(NamedTuple):
    """One way of submitting the step, before and after. ``cases`` are the times of the predictions themselves (of a
    range, those of its typical case), and then for all that is not known of the step."""

    before: Prediction
    after: Prediction
    cases: tuple[Times, ...]

    @property
    def ends(self) -> tuple[Times, Times]:
        """The cases with the least and the largest speed-up."""
        return min(self.cases, key=lambda one: one.ratio), max(self.cases, key=lambda one: one.ratio)


def pairs(before: Forecast, after: Forecast) -> list[BeforeAfter]:
    """The stream and, where both have one, the graph."""
    return [
        BeforeAfter(one, other, (Times(one.step_s, other.step_s), *_cases(before, after, one.way)))
        for one, other in ((before.stream, after.stream), (before.graph, after.graph))
        if one is not None and other is not None
    ]


def _cases(before: Forecast, after: Forecast, way: Way) -> Iterator[Times]:
    """The times at both ends of what is not known, for typical model code, and where either becomes launch-bound: a
    change of the call gains most there. A graph spends no host time between kernels."""
    both = (before, after)
    shares = ENDS if any(unknowns.unknown_shares(one.workload, one.fit.sms) for one in both) else ENDS[:1]
    for share in shares:
        # Typical model code with kernels side by side is the pair itself.
        hosts: list[unknowns.End | float] = ["typical"] if share == "high" else []
        if way == "stream" and before.host is not None:
            bounds = [forecasting.launch_bound_s(one, before.host, share) for one in both]
            within = [bound for bound in bounds if bound and before.host.bare_s <= bound <= before.host.typical_s]
            hosts += ["low", *(bound_s - before.host.call_s for bound_s in within)]
        for host in hosts:
            yield Times(*(one.step_s(way, host, share) for one in both))


def in_words(pair: BeforeAfter) -> str:
    """How the time changes: "1.29× as fast", "2.9× as long", "the same", "about the same"; of a range, at both ends:
    "the same to 4.2× as fast", "1.10× to 1.49× as fast"."""
    low, high = pair.ends
    first, last = map(_times_in_words, (low, high) if high.ratio > 1 and not high.same else (high, low))
    if first == last:
        return first
    if low.same and high.same:
        return "about the same"
    number, _, how = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f"× {how}") else f"{first} to {last}"


def _times_in_words(pair: Times) -> str:
    if pair.same:
        return "the same" if as_time(pair.after_s) == as_time(pair.before_s) else "about the same"
    return f"{times(pair.ratio)} as fast" if pair.ratio > 1 else f"{times(1 / pair.ratio)} as long"


def findings(
    before: Forecast, after: Forecast, changes: Sequence[Change], names: tuple[str, str], ways: Sequence[BeforeAfter]
) -> list[Finding]:
    """The verdict first; then each way, changes without effect, and extrapolations.

    ``names`` say what before and after are called. ``ways`` are the ``pairs`` of the two.
    """
    stream, *graph = ways
    if changes and not any(change.matters for change in changes):
        title = f"This changes nothing: nothing in the step uses {listed([change.what for change in changes])}"
        if [change.what for change in changes] == [HOST_TIME]:
            title = (
                "This changes nothing: the step has no host time of its own; --host TIME gives it some for each launch"
            )
    elif changes:
        title = f"In the stream the step {_becomes(stream, typical=before.host is not None)}"
        title += "".join(f", as a graph it {_becomes(pair)}" for pair in graph)
    else:
        title = f"In the stream the step takes {between(stream.before)} {names[0]}, "
        title += f"{between(stream.after)} {names[1]}"
        title += "".join(f"; as a graph it {_becomes(pair)}" for pair in graph)
    every = [end for pair in ways for end in pair.ends]
    same = all(end.same for end in every)
    better = bool(changes) and not same and all(end.same or end.ratio > 1 for end in every)
    text = "This is predicted, not measured."
    threshold = f"within {round_percent(SAME)} is the same; good if no way becomes slower"
    rests_on = before.fit.rests_on(before.stream.names) + after.fit.rests_on(after.stream.names)
    verdict = Finding("whatif.gain", "good" if better else "note", title, text, threshold, rests_on)
    return [verdict, *(_way(pair, names) for pair in ways), *_unused(changes), *outside(after)]


def _becomes(pair: BeforeAfter, *, typical: bool = False) -> str:
    """How the step changes; ``typical`` adds the case of typical model code."""
    low, high = pair.ends
    if low.same and high.same:
        return f"stays {in_words(pair)}"
    often = f" ({_times_in_words(pair.cases[0])} in typical model code)" if typical and low != high else ""
    if low.same or high.same:
        return f"stays the same or becomes up to {_times_in_words(high if low.same else low)}{often}"
    return f"becomes {in_words(pair)}{often}"


def _way(pair: BeforeAfter, names: tuple[str, str]) -> Finding:
    """What sets the pace of one way, before and after."""
    first, then = paces(pair.before), paces(pair.after)
    idling = [idle(prediction) for prediction in pair[:2]]
    where = "In the stream" if pair.after.way == "stream" else "As a graph"
    title = f"{where} {first} {names[0]}, {then} {names[1]}"
    title = f"{where} {first}, {names[0]} as {names[1]}" if first == then else title
    text = f"The GPU idles for {idling[0]} of the step {names[0]}, for {idling[1]} {names[1]}."
    threshold = "what most of the critical path is spent on"
    return Finding(f"whatif.{pair.after.way}", "note", title, text, threshold)


def _unused(changes: Sequence[Change]) -> Iterator[Finding]:
    unused = [change.what for change in changes if not change.matters]
    if unused:
        title = f"Nothing in this step uses what was changed: {'; '.join(unused)}"
        text = (
            "The memory's rate matters to kernels with bytes, the PCIe link to pinned copies: pageable ones go at "
            "the host's pace. A factor on host time needs a step that has some: --host, or host in its file."
        )
        threshold = "no way of submitting the step rests on it"
        yield Finding("whatif.unused", "warning", title, text, threshold)

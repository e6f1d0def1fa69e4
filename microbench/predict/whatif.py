"""Explains a step before and after a change, or on two machines: what becomes of it, and of what sets its pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from microbench.analysis.evidence import Finding, listed
from microbench.analysis.graph_steps import title_of
from microbench.analysis.limits import ASSUMED_PAYLOAD_BYTES, pcie_rate
from microbench.compare.words import measuring
from microbench.core.errors import UsageError
from microbench.core.model import GpuInfo, LinkInfo
from microbench.core.units import MISSING, as_time, quantity, round_percent, times
from microbench.predict.constants import Constant, Fit
from microbench.predict.fit import missing, with_calls
from microbench.predict.forecast import Forecast, Prediction
from microbench.predict.model import WAYS, call_name, needed, replay_name
from microbench.predict.words import PACES, outside
from microbench.predict.workload import HostWork, Kernels, Part, Workload

# What if: a workload and a machine's constants with something about them changed, and in which words.


GIVEN = "given, not measured"


class Changes(msgspec.Struct, frozen=True):
    """What is to be different; None: as it is.

    ``submit_s`` is the launch call of the workload's layers, ``gap_s`` and ``graph_gap_s`` what lies between two
    kernels, ``replay_s`` the replay call, ``memory_rate`` bytes a second of the GPU's memory. ``pcie_generation`` and
    ``lanes`` are the link's. ``kernel_time`` and ``host_time`` are factors of the kernels' lengths and of the
    program's own time (between launches, and by itself). ``layer`` launches all kernels.
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
        """Whether anything is."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class Change(NamedTuple):
    """One of them in words; ``matters`` is False where nothing in the step uses it."""

    what: str
    before: str
    after: str
    matters: bool


class Changed(NamedTuple):
    """The workload and the fit as they then are."""

    workload: Workload
    fit: Fit
    changes: tuple[Change, ...]


def changed(workload: Workload, fit: Fit, gpu: GpuInfo | None, changes: Changes, adding: Sequence[str] = ()) -> Changed:
    """What ``changes`` make of a workload on a machine.

    Raises UsageError for a layer that the run did not measure, and for a link where its own is not known.
    ``adding`` are the options with which `microbench run` adds to that run.
    """
    then, told = _other_step(workload, changes)
    absent = missing(fit, then, WAYS)
    if absent:
        raise UsageError(
            f"run {fit.run_id} measured no launches through {', '.join(then.layers)}",
            f"choose one of {', '.join(fit.layers)}, or measure it: {measuring(absent, adding)}",
        )
    fit = with_calls(fit, then)
    used = {name for way in WAYS for name in needed(then, way)}
    new: dict[str, Constant] = {}
    for what, constants in (*_given(then, changes), *_link(fit, gpu, changes)):
        known = {name: one for name, one in constants.items() if name in fit.constants}
        new |= known
        told.append(_told(what, fit, known, used))
    return Changed(then, msgspec.structs.replace(fit, constants={**fit.constants, **new}), tuple(told))


def _told(what: str, fit: Fit, new: Mapping[str, Constant], used: set[str]) -> Change:
    """The first constant that the step uses stands for all of them."""
    names = sorted(new, key=lambda name: name not in used)
    if not names:
        return Change(what, MISSING, MISSING, False)
    unit = "B/s" if names[0].endswith("rate") or names[0] == "memory" else "s"
    before, after = fit.constants[names[0]], new[names[0]]
    return Change(what, quantity(before.value, unit), quantity(after.value, unit), names[0] in used)


# -- the step --------------------------------------------------------------------------------------------------------


def _other_step(workload: Workload, changes: Changes) -> tuple[Workload, list[Change]]:
    """Another layer, longer or shorter kernels, more or less host time."""
    told: list[Change] = []
    kernels = [part for part in workload.parts if isinstance(part, Kernels)]
    if changes.layer is not None:
        before = listed([title_of(layer) for layer in workload.layers])
        told.append(Change("who launches", before, title_of(changes.layer), True))
    if changes.kernel_time is not None:
        lasting = any(part.bytes or any(part.durations_s) for part in kernels)
        told.append(Change("what kernels do", times(1.0), times(changes.kernel_time), lasting))
    if changes.host_time is not None:
        own = any(part.host_s for part in kernels) or any(isinstance(part, HostWork) for part in workload.parts)
        told.append(Change("the program's own time", times(1.0), times(changes.host_time), own))
    parts = tuple(_other_part(part, changes) for part in workload.parts)
    return msgspec.structs.replace(workload, parts=parts, layer=changes.layer or workload.layer), told


def _other_part(part: Part, changes: Changes) -> Part:
    kernel_time = 1.0 if changes.kernel_time is None else changes.kernel_time
    host_time = 1.0 if changes.host_time is None else changes.host_time
    if isinstance(part, HostWork):
        return HostWork(part.seconds * host_time)
    if not isinstance(part, Kernels):
        return part
    return msgspec.structs.replace(
        part,
        durations_s=tuple(length * kernel_time for length in part.durations_s),
        bytes=part.bytes * kernel_time,  # what bounds its length from below
        host_s=part.host_s * host_time,
        layer=None if changes.layer is not None else part.layer,
    )


# -- the machine -----------------------------------------------------------------------------------------------------

Named = tuple[str, Mapping[str, Constant]]


def _given(workload: Workload, changes: Changes) -> Iterator[Named]:
    """Constants that were typed."""
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
    """Copies over another PCIe link: as much faster as its ceiling is higher than that of the run's own.

    Pageable copies are the host's own work: they stay, unless the link is now slower than that.
    """
    if changes.pcie_generation is None and changes.lanes is None:
        return
    known = gpu.link if gpu is not None and not gpu.integrated and not gpu.link.coherent else LinkInfo()
    own = (known.generation_max or 0, known.lanes_max or 0)
    other = (changes.pcie_generation or own[0], changes.lanes or own[1])
    for direction, way in (("h2d", "to the GPU"), ("d2h", "from the GPU")):
        payload_bytes = known.max_payload_bytes or ASSUMED_PAYLOAD_BYTES
        before, after = (pcie_rate(*one, direction, payload_bytes) for one in (own, other))
        if not before or not after:
            cause = f"run {fit.run_id} does not say which PCIe link its GPU has: there is nothing to scale"
            raise UsageError(cause, "choose a run of a GPU on PCIe, or leave out --pcie-gen and --lanes")
        what = f"copies {way}, PCIe {own[0]} x{own[1]} to {other[0]} x{other[1]}"
        yield what, _scaled(fit, direction, after / before)


def _scaled(fit: Fit, direction: str, ratio: float) -> dict[str, Constant]:
    """A direction's rate times ``ratio``, and the pageable one at most that."""
    pinned = fit.constants.get(f"{direction}_rate")
    if pinned is None:
        return {}
    name = f"{direction}_pageable_rate"
    low, value, high = (one * ratio for one in (pinned.low, pinned.value, pinned.high))
    scaled = Constant(value, low, high, pinned.rests_on, "scaled by the links' ceilings")
    pageable = fit.constants.get(name)
    slower = {name: scaled} if pageable is not None and pageable.value > value else {}
    return {f"{direction}_rate": scaled, **slower}


SUITE = "what if"
# Within this of one another two predictions are the same.
SAME = 0.02


class Pair(NamedTuple):
    """One way, before and after."""

    before: Prediction
    after: Prediction

    @property
    def ratio(self) -> float:
        """How many times as fast it becomes."""
        return self.before.step_s / self.after.step_s if self.after.step_s > 0 else 1.0

    @property
    def same(self) -> bool:
        """Whether it stays as it is, or nearly."""
        return abs(self.after.step_s - self.before.step_s) <= SAME * self.before.step_s

    @property
    def equal(self) -> bool:
        """Whether both read the same."""
        return as_time(self.after.step_s) == as_time(self.before.step_s)


def pairs(before: Forecast, after: Forecast) -> list[Pair]:
    """The stream and, where both have one, the graph."""
    found = [Pair(before.stream, after.stream)]
    if before.graph is not None and after.graph is not None:
        found.append(Pair(before.graph, after.graph))
    return found


def findings(before: Forecast, after: Forecast, changes: Sequence[Change], names: tuple[str, str]) -> list[Finding]:
    """What the difference comes down to first; then each way, then what changed nothing. ``names`` are those of before
    and after."""
    found = pairs(before, after)
    verdict = _verdict(before, after, found) if changes else _machines(before, after, found, names)
    return [verdict, *(_way(pair, names) for pair in found), *_idle(changes), *outside(after)]


def _verdict(before: Forecast, after: Forecast, found: Sequence[Pair]) -> Finding:
    unchanged = all(pair.same for pair in found)
    first, *others = found
    told = [
        f"{_where(first)} the step takes {_instead(first)}",
        *(f"{_where(pair)} {_instead(pair)}" for pair in others),
    ]
    title = ", ".join(told)
    if unchanged:
        much = "nothing" if all(pair.equal for pair in found) else "little"
        title = f"It changes {much}: " + ", ".join(f"{_both_times(pair)} {_where(pair)}" for pair in found)
    better = not unchanged and all(pair.same or pair.ratio > 1 for pair in found)
    return Finding(
        rule="whatif.gain",
        severity="good" if better else "note",
        title=title[0].upper() + title[1:],
        text="",
        threshold=f"predicted, not measured; within {round_percent(SAME)} is the same",
        rests_on=before.fit.rests_on(before.stream.names) + after.fit.rests_on(after.stream.names),
        suite=SUITE,
    )


def _machines(before: Forecast, after: Forecast, found: Sequence[Pair], names: tuple[str, str]) -> Finding:
    """The same where nothing was changed but the machine: each time with whose it is."""
    ways = (
        f"{as_time(pair.before.step_s)} {_where(pair)} {names[0]}, {as_time(pair.after.step_s)} {names[1]}"
        for pair in found
    )
    finding = _verdict(before, after, found)
    return msgspec.structs.replace(finding, severity="note", title=f"The step takes {'; '.join(ways)}")


def _where(pair: Pair) -> str:
    return "in the stream" if pair.after.way == "stream" else "as a graph"


def _instead(pair: Pair) -> str:
    return f"still {as_time(pair.after.step_s)}" if pair.equal else _both_times(pair)


def _both_times(pair: Pair) -> str:
    after = as_time(pair.after.step_s)
    return after if pair.equal else f"{after} instead of {as_time(pair.before.step_s)}"


def in_words(pair: Pair) -> str:
    """What becomes of a way: "1.29× as fast", "2.9× as long", "the same", "about the same"."""
    if pair.same:
        return "the same" if pair.equal else "about the same"
    return f"{times(pair.ratio)} as fast" if pair.ratio > 1 else f"{times(1 / pair.ratio)} as long"


def _way(pair: Pair, names: tuple[str, str]) -> Finding:
    """What sets the pace of one way, before and after."""
    first, then = PACES[pair.before.limit], PACES[pair.after.limit]
    where = _where(pair)
    if first == then:
        title = f"{where[0].upper()}{where[1:]} {first}, {names[0]} as {names[1]}"
    else:
        title = f"{where[0].upper()}{where[1:]} {first} {names[0]}, {names[1]} {then}"
    idle = [round_percent(one.idle_share) for one in pair]
    return Finding(
        rule=f"whatif.{pair.after.way}",
        severity="note",
        title=title,
        text=f"The GPU has no kernel for {idle[0]} of the step {names[0]}, for {idle[1]} {names[1]}.",
        threshold="what most of the critical path is spent on",
        rests_on=(),
        suite=SUITE,
    )


def _idle(changes: Sequence[Change]) -> Iterator[Finding]:
    """What was changed for nothing."""
    unused = [change.what for change in changes if not change.matters]
    if unused:
        yield Finding(
            rule="whatif.unused",
            severity="advice",
            title=f"Nothing in this step uses what was changed: {'; '.join(unused)}",
            text="The memory's rate matters to kernels with bytes, the program's own time where a step has any, the "
            "PCIe link to copies from or to pinned memory: pageable ones go at the host's pace unless it is slower.",
            threshold="no way of submitting the step rests on it",
            rests_on=(),
            suite=SUITE,
        )

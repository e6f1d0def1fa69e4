"""What if: a workload and a machine's constants with something about them changed, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from microbench.errors import UsageError
from microbench.explain.evidence import listed
from microbench.explain.fitting import missing, with_calls
from microbench.explain.graph_gain import title_of
from microbench.explain.remeasuring import measuring
from microbench.fitted import Constant, Fit
from microbench.limits import ASSUMED_PAYLOAD_BYTES, pcie_rate
from microbench.model import GpuInfo, LinkInfo
from microbench.submission import WAYS, call_name, needed, replay_name
from microbench.units import MISSING, quantity, times
from microbench.workload import HostWork, Kernels, Part, Workload

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

"""A workload as the host submits it: launch by launch into streams, or with its kernels and copies in graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

from microbench.costmodel import Act, Work
from microbench.workload import Copies, HostWork, Kernels, Part, Wait, Workload

Way = Literal["stream", "graph"]
WAYS: tuple[Way, ...] = ("stream", "graph")

# What the model knows of a machine, by name. ``call.LAYER.ARGUMENTS`` is a launch call of a kernel with so many
# arguments, ``replay.LAYER`` the replay call of a graph; the others are one each.
CONSTANTS: Mapping[str, tuple[str, str]] = {
    "way": ("s", "launch call's return to its kernel's begin"),
    "empty": ("s", "an empty kernel: no kernel takes less"),
    "complete": ("s", "last kernel's end to the synchronise's return"),
    "sync": ("s", "a synchronise of an idle stream"),
    "gap_stream": ("s", "between two kernels of a stream"),
    "gap_graph": ("s", "between two kernels of a graph"),
    "replay_node": ("s", "what each node adds to the replay call"),
    "replay_way": ("s", "replay call's return to its first kernel"),
    "make": ("s", "capture, instantiate and upload any graph"),
    "make_node": ("s", "what each node adds to that"),
    "queue": ("launch", "launches that wait before a call blocks"),
    "front_end": ("s", "between begins of kernels side by side"),
    "memory": ("B/s", "the GPU's memory, read"),
    "h2d_call": ("s", "the call of a copy to the GPU"),
    "h2d_way": ("s", "that call's return to the copy's begin"),
    "h2d_latency": ("s", "a copy to the GPU, of any size"),
    "h2d_rate": ("B/s", "bytes of a copy to the GPU"),
    "d2h_call": ("s", "the call of a copy from the GPU"),
    "d2h_way": ("s", "that call's return to the copy's begin"),
    "d2h_latency": ("s", "a copy from the GPU, of any size"),
    "d2h_rate": ("B/s", "bytes of a copy from the GPU"),
    "h2d_pageable_latency": ("s", "a pageable copy to the GPU, of any size"),
    "h2d_pageable_rate": ("B/s", "bytes of a pageable copy to the GPU"),
    "d2h_pageable_latency": ("s", "a pageable copy from the GPU, of any size"),
    "d2h_pageable_rate": ("B/s", "bytes of a pageable copy from the GPU"),
}
COMMON = ("way", "empty", "complete", "sync", "gap_stream", "queue")
IN_GRAPHS = ("gap_graph", "replay_node", "replay_way", "make", "make_node")


def call_name(layer: str, arguments: int) -> str:
    """The constant of a launch call."""
    return f"call.{layer}.{arguments}"


def replay_name(layer: str) -> str:
    """The constant of a replay call."""
    return f"replay.{layer}"


def needed(workload: Workload, way: Way) -> tuple[str, ...]:
    """The constants that a step rests on."""
    names = [*COMMON, *(("front_end",) if workload.streams > 1 else ())]
    for part in workload.parts:
        if isinstance(part, Kernels):
            if way == "stream":
                names.append(call_name(part.layer or workload.layer, part.arguments))
            if part.bytes:
                names.append("memory")
        elif isinstance(part, Copies):
            prefix = part.direction if part.memory == "pinned" else f"{part.direction}_pageable"
            own = ("call", "way", "latency", "rate") if part.memory == "pinned" else ("latency", "rate")
            names += [f"{prefix}_{name}" for name in own]
    if way == "graph":
        names += [*IN_GRAPHS, replay_name(workload.layer)]
    return tuple(dict.fromkeys(names))


def acts(workload: Workload, constants: Mapping[str, float], way: Way) -> list[Act]:
    """What the host does in one step, with every constant of ``needed`` at hand.

    In a graph, neighbouring kernels and pinned copies are replayed by one call; a synchronise, host work and a pageable
    copy part graphs. The program's own time for each call is then spent no more.
    """
    found: list[Act] = []
    stream = itertools.cycle(range(workload.streams))
    for captured, parts in itertools.groupby(workload.parts, key=_capturable):
        if captured and way == "graph":
            found.append(_replay(workload, list(parts), constants))
        else:
            for part in parts:
                found += _direct(workload, part, constants, stream)
    return found


def graphs(workload: Workload) -> list[int]:
    """Nodes of each graph that the step becomes."""
    groups = itertools.groupby(workload.parts, key=_capturable)
    return [sum(_count(part) for part in parts) for captured, parts in groups if captured]


def _capturable(part: Part) -> bool:
    return isinstance(part, Kernels) or (isinstance(part, Copies) and part.memory == "pinned")


def _count(part: Part) -> int:
    return part.count if isinstance(part, Kernels | Copies) else 0


def _direct(workload: Workload, part: Part, constants: Mapping[str, float], stream: Iterator[int]) -> Iterator[Act]:
    """A part call by call."""
    match part:
        case Kernels():
            call_s = constants[call_name(part.layer or workload.layer, part.arguments)] + part.host_s
            for work in _kernels(part, constants, constants["gap_stream"]):
                to = next(stream) if part.stream is None else part.stream
                yield Act("launch", call_s, constants["way"], (work,), to)
        case Copies(memory="pinned"):
            copy = Act("copy", constants[f"{part.direction}_call"], constants[f"{part.direction}_way"])
            for _ in range(part.count):
                yield copy._replace(work=(_copy(part, constants),))
        case Copies():
            prefix = f"{part.direction}_pageable"
            seconds = constants[f"{prefix}_latency"] + part.size_bytes / constants[f"{prefix}_rate"]
            for _ in range(part.count):
                yield Act("sync", 0.0, wait_s=0.0)  # it comes after the work before it, and the host goes with it
                yield Act("copy", seconds)
        case Wait():
            yield Act("sync", constants["sync"], wait_s=constants["complete"])
        case HostWork():
            yield Act("host", part.seconds)


def _replay(workload: Workload, parts: list[Part], constants: Mapping[str, float]) -> Act:
    """Kernels and pinned copies as one graph; branches are streams."""
    work: list[Work] = []
    stream = itertools.cycle(range(workload.streams))
    for part in parts:
        if isinstance(part, Kernels):
            for one in _kernels(part, constants, constants["gap_graph"]):
                work.append(one._replace(branch=next(stream) if part.stream is None else part.stream))
        elif isinstance(part, Copies):
            work += [_copy(part, constants)] * part.count
    call_s = constants[replay_name(workload.layer)] + constants["replay_node"] * len(work)
    return Act("replay", call_s, constants["replay_way"], tuple(work))


def _kernels(part: Kernels, constants: Mapping[str, float], gap_s: float) -> Iterator[Work]:
    """Each lasts as long as it says, and at least as long as an empty one and as its bytes take."""
    memory_s = part.bytes / constants["memory"] if part.bytes else 0.0
    least_s = max(constants["empty"], memory_s)
    durations = itertools.cycle(part.durations_s)
    for _ in range(part.count):
        yield Work("gpu", max(next(durations), least_s), gap_s, memory_s=memory_s)


def _copy(part: Copies, constants: Mapping[str, float]) -> Work:
    latency_s, rate = constants[f"{part.direction}_latency"], constants[f"{part.direction}_rate"]
    seconds = latency_s + part.size_bytes / rate
    return Work(part.direction, seconds, branch=part.stream or 0, joins=part.stream is None)

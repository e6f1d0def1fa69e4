"""What a step of work is, for the model: kernels, copies, waits and host work in the order of their submission."""

from __future__ import annotations

from typing import Literal

import msgspec

from microbench.core.ops import LOOP_LAYER

Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pinned", "pageable"]

# Beyond these nothing is predicted: what is meant is then something else than one step.
MOST_KERNELS = 100_000
MOST_STREAMS = 128
MOST_BYTES = 1 << 50


class Kernels(msgspec.Struct, frozen=True):
    """``count`` kernels behind one another (dealt to the streams in turn), their ``durations_s`` used in turn.

    A duration is that of one kernel from its first act to its last, in seconds; 0 is an empty kernel. ``bytes`` is
    what each kernel moves to and from the GPU's memory: it then lasts at least so long as the memory needs for it.
    ``arguments`` are those of the kernel; ``host_s`` is host time of the program's own code for each call, on top of
    the layer's. ``layer`` is who launches them where it is not the workload's, ``stream`` (from 0) where they all go
    instead of to the streams in turn.
    """

    count: int
    durations_s: tuple[float, ...] = (0.0,)
    bytes: float = 0.0
    arguments: int = 0
    host_s: float = 0.0
    layer: str | None = None
    stream: int | None = None


class Copies(msgspec.Struct, frozen=True):
    """``count`` copies of ``size_bytes`` between host and GPU. A pageable one keeps the host until it is over.

    Without a ``stream`` (from 0) a copy comes after all that was submitted before it, and all that follows waits for
    it.
    """

    direction: Direction
    size_bytes: int
    count: int = 1
    memory: HostMemory = "pinned"
    stream: int | None = None


class Wait(msgspec.Struct, frozen=True):
    """A synchronise: the host waits until the GPU has done everything."""


class HostWork(msgspec.Struct, frozen=True):
    """The host does something else for so long."""

    seconds: float


Part = Kernels | Copies | Wait | HostWork


class Workload(msgspec.Struct, frozen=True):
    """A step, repeated ``replays`` times. ``unit`` is what a step makes ``per_step`` of: "token", "image", "step"."""

    parts: tuple[Part, ...]
    layer: str = LOOP_LAYER
    streams: int = 1
    replays: int = 1000
    title: str = ""
    about: str = ""
    unit: str = "step"
    per_step: float = 1.0

    @property
    def kernels(self) -> int:
        """Kernels in the step."""
        return sum(part.count for part in self.parts if isinstance(part, Kernels))

    @property
    def layers(self) -> tuple[str, ...]:
        """Who launches kernels, in the order of their first."""
        parts = [part for part in self.parts if isinstance(part, Kernels)]
        return tuple(dict.fromkeys(part.layer or self.layer for part in parts))

"""Defines a step of work for the model in the order of submission, and the options that describe one and change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from microbench.core.ops import LOOP_LAYER
from microbench.core.options import option

Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pinned", "pageable"]

# Nothing larger is predicted as one step.
MOST_KERNELS = 100_000
MOST_STREAMS = 128
MOST_BYTES = 1 << 50
# The driver sets so many bytes or more by a kernel, which is a node like any other: in graphs of an H100 memsets of 4 B
# and 4 KiB took 1 us beyond their own time, those of 64 KiB nothing (lab/measurements/transitions.csv).
KERNEL_MEMSET = 64 << 10


class Kernels(msgspec.Struct, frozen=True):
    """``count`` kernels one after another (dealt to the streams in turn), their ``durations_s`` used in turn.

    A duration is that of one kernel in seconds as profilers report it; 0 is an empty kernel. ``bytes`` is what each
    kernel moves to and from the GPU's memory: it lasts at least as long as the memory needs for that. ``arguments``
    counts the kernel's arguments; ``host_s`` is the program's own host time for each call, on top of the layer's, None
    if nobody said. ``layer`` launches them if it is not the workload's; ``stream`` (from 0) takes them all instead of
    the streams in turn. ``sm_share`` is the share of the GPU's SMs that one kernel fills, from 0 to 1, and ``blocks``
    how many blocks it has, from which that share follows; with neither, nobody said. Kernels
    with ``writes`` write memory and have a longer gap behind them. ``memset``: not kernels but memsets, which the GPU
    does without one and which a graph reaches and leaves more slowly; see KERNEL_MEMSET.
    """

    count: int
    durations_s: tuple[float, ...] = (0.0,)
    bytes: float = 0.0
    arguments: int = 0
    host_s: float | None = None
    layer: str | None = None
    stream: int | None = None
    blocks: int | None = None
    sm_share: float | None = None
    writes: bool = True
    memset: bool = False


class Copies(msgspec.Struct, frozen=True):
    """``count`` copies of ``size_bytes`` between host and GPU. A pageable copy keeps the host until it is over.

    Without a ``stream`` (from 0) a copy waits for everything submitted before it, and everything later waits for it.
    ``host_s`` is the program's own host time for each call, on top of the call's.
    """

    direction: Direction
    size_bytes: int
    count: int = 1
    memory: HostMemory = "pinned"
    stream: int | None = None
    host_s: float = 0.0


class Wait(msgspec.Struct, frozen=True):
    """A synchronise: the host waits until the GPU has done everything."""


class HostWork(msgspec.Struct, frozen=True):
    """The host does something else for that long."""

    seconds: float


class Event(msgspec.Struct, frozen=True):
    """An event of a stream, by its number: recorded behind the work before it, or ``awaited`` by the work behind it.

    An event that has not been recorded yet holds nothing back. Its call takes no host time of its own. With ``earlier``
    the work waits for the event as it was recorded the time before the last.
    """

    number: int
    stream: int
    awaited: bool = False
    earlier: bool = False


Part = Kernels | Copies | Wait | HostWork | Event


class Workload(msgspec.Struct, frozen=True):
    """A step, repeated ``replays`` times. A step makes ``per_step`` of ``unit``: "token", "image", "step".

    ``second_stream`` says whether the program has launched kernels into a second stream, which lengthens its gaps; None
    where its layer decides.
    """

    parts: tuple[Part, ...]
    layer: str = LOOP_LAYER
    streams: int = 1
    replays: int = 1000
    title: str = ""
    about: str = ""
    unit: str = "step"
    per_step: float = 1.0
    second_stream: bool | None = None

    @property
    def kernels(self) -> int:
        """The number of kernels in the step."""
        return sum(part.count for part in self.parts if isinstance(part, Kernels))

    def with_kernels(self, change: Callable[[Kernels], Kernels]) -> Workload:
        """The step with all of its kernels changed."""
        parts = tuple(change(part) if isinstance(part, Kernels) else part for part in self.parts)
        return msgspec.structs.replace(self, parts=parts)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that launch kernels, in the order of their first."""
        parts = [part for part in self.parts if isinstance(part, Kernels)]
        return tuple(dict.fromkeys(part.layer or self.layer for part in parts))


HOST = (
    "The program's own host time for each launch, on top of the layer's call: 12us; default: that of the file, or for "
    "PyTorch, CuPy's ufuncs and JAX two cases, bare operations and typical model code."
)


@dataclass(frozen=True)
class StepOptions:
    """A step of work as the options of `microbench predict` describe it; None was left out."""

    kernels: int | None = option("N", "Kernels in the step: 1100.")
    duration: str | None = option(
        "TIME", "How long each kernel runs, as profilers report it: 6us, 500ns, or 0 (empty)."
    )
    layer: str | None = option("LAYER", "What launches them: torch, cupy, numba, …; default: loop (compiled code).")
    arguments: int | None = option("N", "Arguments of each kernel; default: 0.")
    syncs_per_step: int | None = option("N", "Synchronizations in a step; default: 1.")
    copy_in: str | None = option("SIZE", "Copy this much to the GPU first, from pinned memory: 1MiB.")
    copy_out: str | None = option("SIZE", "Copy this much from the GPU at the end, to pinned memory: 4KiB.")
    streams: int | None = option("N", "Streams that share the kernels; default: 1.")
    replays: int | None = option(
        "N", "How many times the step runs, which decides whether a graph pays off; default: 1000."
    )
    host: str | None = option("TIME", HOST)
    blocks: int | None = option("N", "Blocks of each kernel: as many as the GPU has SMs fill it. For several streams.")
    sm_share: float | None = option("SHARE", "Share of the SMs that each kernel fills: 0.25. For several streams.")


@dataclass(frozen=True)
class ChangeOptions:
    """What a what-if changes, as the options of `microbench whatif` give it; None stays as it is."""

    submit: str | None = option("TIME", "Time of a launch call: 2us.")
    to_layer: str | None = option("LAYER", "Launch all kernels from this layer: loop.")
    gap: str | None = option("TIME", "Gap between two kernels of a stream: 1us.")
    graph_gap: str | None = option("TIME", "Gap between two kernels of a graph: 1us.")
    replay: str | None = option("TIME", "Time of replaying a graph of any size: 5us.")
    memory: str | None = option("RATE", "Bandwidth of GPU memory: 2039GB/s.")
    pcie_gen: int | None = option("N", "Generation of the PCIe link: 1 to 6.")
    lanes: int | None = option("N", "Lanes of the PCIe link: 8.")
    kernel_time: str | None = option("FACTOR", "Factor on the kernels' work: 0.5x halves time and bytes.")
    host_time: str | None = option("FACTOR", "Factor on the program's own time between calls: 0x removes it.")

"""The protocol Graphs: what a benchmark may ask of CUDA Graphs beyond replaying one. Times are host stamps in ns."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit

Made = Literal["capture", "build"]
ChangeWay = Literal["set_params", "set_grid", "exec_update", "rebuild"]
NodeKind = Literal[
    "kernel_empty", "kernel", "pdl", "pdl_trigger", "kernel_prologue", "pdl_prologue", "pdl_trigger_prologue",
    "memset", "copy_h2d", "copy_d2h", "copy_d2d", "host", "event_record", "event_wait", "child", "empty",
    "if_taken", "if_skipped",
]  # fmt: skip
Decider = Literal["host_sync", "host_poll", "while", "tail_launch"]
AllocationWay = Literal["graph_nodes", "graph_outside", "stream_kept", "stream_released", "stream_outside"]


class Life(IntEnum):
    """Columns of ``Graphs.lives``: the host clock after each act of a graph's life."""

    BEGIN = 0
    MADE = 1
    INSTANTIATED = 2
    UPLOADED = 3
    READY = 4
    CALLED = 5
    DONE = 6
    DESTROYED = 7


class Change(IntEnum):
    """Columns of ``Graphs.changes``: the host clock after each act of a change and of the two replays behind it.

    DISPOSED is when what the change has left over is destroyed: the captured graph, after a rebuild the old executable.
    """

    BEGIN = 0
    RECORDED = 1
    CHANGED = 2
    CALLED = 3
    DONE = 4
    AGAIN = 5
    AGAIN_CALLED = 6
    AGAIN_DONE = 7
    DISPOSED = 8


class Footprint(NamedTuple):
    """Memory that one instantiated and uploaded graph takes, in bytes: free device memory, the process's own."""

    device_bytes: float
    host_bytes: float


class Shape(NamedTuple):
    """Kernels of one length in ``branches`` chains of ``length`` each; ``joined`` by a kernel before and one after."""

    branches: int
    length: int
    joined: bool
    duration_ns: int

    @property
    def kernels(self) -> int:
        """Kernels in all."""
        return self.branches * self.length + (2 if self.joined else 0)


class Shaped(Protocol):
    """The same work as a graph, and on as many streams as it has branches, with events where they part and meet."""

    graph: Submit
    streams: Submit

    def check(self) -> str:
        """Do both once more; how it was verified. Raises MeasurementError for a kernel missing or early."""
        ...


class Chain(Protocol):
    """Nodes of one kind, each behind the one before.

    ``stream`` submits the same work to stream 0, one call a node; None for what only a graph can hold.
    """

    graph: Submit
    stream: Submit | None

    def instantiate_ns(self) -> int:
        """Instantiate the graph once more: host time of the call. That one is destroyed."""
        ...

    def update_ns(self) -> int:
        """Update the executable graph to one of the same nodes with other values: host time of the call.

        Every later check wants the new values. Raises Skip with the driver's reason where it refuses such an update.
        """
        ...

    def check(self) -> str:
        """Replay from poisoned memory and look at each node's effect and at their order; how that was verified.

        Raises MeasurementError for an effect that is missing, wrong or early.
        """
        ...


class Loop(Protocol):
    """An iteration that runs until somebody decides that it is over."""

    def run_ns(self, iterations: int) -> int:
        """Host time from before the first call until the host knows that it is over. Raises MeasurementError when the
        iterations were not as many."""
        ...


class Step(Protocol):
    """A step that allocates, uses and frees device memory ``pairs`` times (or uses memory allocated before)."""

    submit: Submit

    def held_bytes(self) -> int:
        """Device memory that is kept from one step to the next."""
        ...

    def check(self) -> str:
        """Run a step with fresh values; how it was verified. Raises MeasurementError when they did not arrive."""
        ...


class Graphs(Protocol):
    """CUDA Graphs of one case. Every method raises Skip where GPU or driver have no such thing, with what they need."""

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        """``count`` whole lives of a chain of empty kernels, made by stream capture or node by node.

        Shape (count, len(Life)). A captured graph is uploaded (READY is when the GPU has done so) before its first
        launch; a built one is not: its UPLOADED and READY are its INSTANTIATED, its first launch uploads.
        """
        ...

    def footprint(self, nodes: int, copies: int) -> Footprint:
        """What one chain of empty kernels takes, instantiated, uploaded and run once: a mean over ``copies`` of it.

        They are held until the case ends, so that the copies of a later call find no memory left over from others.
        """
        ...

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        """``count`` times: give ``changed`` nodes of a chain new arguments or a new grid, replay, and replay again.

        Shape (count, len(Change)). RECORDED is behind the capture of a new graph, where the way needs one; without one,
        nothing is left to dispose of. Every node gets a value that it did not have, and after the two replays it is
        checked that both ran with it. Raises MeasurementError with the driver's reason for a change that it refuses, or
        for values that did not arrive.
        """
        ...

    def chain(self, kind: NodeKind, count: int) -> Chain:
        """A chain of nodes of that kind, instantiated and uploaded."""
        ...

    def shape(self, shape: Shape) -> Shaped:
        """That shape as a graph and on streams."""
        ...

    def loop(self, decider: Decider) -> Loop:
        """A kernel that is repeated until a counter is full, as that decider decides."""
        ...

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> Step:
        """A step with ``pairs`` allocations of that size, one after the other."""
        ...

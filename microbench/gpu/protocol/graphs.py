"""The protocol Graphs: operations of CUDA Graphs beyond a replay. Times are host stamps in ns."""

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
KernelWork = Literal["empty", "spin", "add"]
Decider = Literal["host_sync", "host_poll", "while", "tail_launch"]
AllocationWay = Literal["graph_nodes", "graph_outside", "stream_kept", "stream_released", "stream_outside"]

# How long a kernel of ``Graphs.kernels`` spins.
SPIN_NS = 2000


class Life(IntEnum):
    """Columns of ``Graphs.lives``: the host clock after each phase of a graph's life."""

    BEGIN = 0
    MADE = 1
    INSTANTIATED = 2
    UPLOADED = 3
    READY = 4
    CALLED = 5
    DONE = 6
    DESTROYED = 7


class Change(IntEnum):
    """Columns of ``Graphs.changes``: the host clock after each phase of a change and of the two replays after it.

    DISPOSED is when the leftovers of the change are destroyed: the captured graph and, after a rebuild, the old
    executable graph.
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
    """Bytes that one instantiated and uploaded graph takes of device memory and of the process's resident memory."""

    device_bytes: float
    host_bytes: float


class Shape(NamedTuple):
    """Kernels of one duration in ``branches`` chains of ``length`` kernels each.

    A ``joined`` shape has one more kernel before all branches and one after them.
    """

    branches: int
    length: int
    joined: bool
    duration_ns: int

    @property
    def kernels(self) -> int:
        """Number of kernels in total."""
        return self.branches * self.length + (2 if self.joined else 0)


class Shaped(Protocol):
    """One Shape as a graph, and on as many streams as it has branches, with events where they fork and join."""

    graph: Submit
    streams: Submit

    def check(self) -> str:
        """Run both once. Returns how the order was verified. Raises MeasurementError for a missing or early kernel."""


class Chain(Protocol):
    """A graph of nodes of one kind, each depending on the node before.

    ``stream`` submits the same work to stream 0, one call for each node; None if only a graph can hold such a node.
    """

    graph: Submit
    stream: Submit | None

    def instantiate_ns(self) -> int:
        """Instantiate the graph once more and destroy the result: host time of the instantiation, in ns."""

    def update_ns(self) -> int:
        """Update the executable graph to one with the same nodes and other values: host time of the call, in ns.

        Later checks expect the new values. Raises Skip, with the driver's reason, if it refuses such an update.
        """

    def check(self) -> str:
        """Poison the memory, replay, and inspect the effect and order of every node. Returns how that was done.

        Raises MeasurementError if an effect is missing, wrong or early.
        """


class KernelChain(Protocol):
    """Kernels one after another: ``graph`` replays all of them by one call, ``stream`` launches all of them."""

    graph: Submit
    stream: Submit

    def profiled_ns(self) -> IntArray:
        """Duration of each kernel of one pass through the stream as profilers report it (CUPTI's kernel record), in ns.

        Raises Skip without CUPTI, and MeasurementError unless each kernel left one record.
        """

    def check(self) -> str:
        """Run the graph and the stream once. Returns how that was verified. Raises MeasurementError for a wrong sum."""


class Loop(Protocol):
    """An iteration that is repeated until its decider ends it."""

    def run_ns(self, iterations: int) -> int:
        """Host time, in ns, from before the first call until the host knows that the loop has ended.

        Raises MeasurementError if a different number of iterations ran.
        """


class Step(Protocol):
    """A step that allocates, uses and frees device memory several times, or uses memory that is already allocated."""

    submit: Submit

    def held_bytes(self) -> int:
        """Device memory that stays reserved from one step to the next, in bytes."""

    def check(self) -> str:
        """Run a step with a fresh value. Returns how it was verified; raises MeasurementError if the value is lost."""


class Graphs(Protocol):
    """CUDA Graphs of one case. Every method raises Skip, with the requirement, if GPU or driver lack the feature."""

    def lives(self, nodes: int, count: int, made: Made) -> IntArray:
        """Make, launch and destroy a chain of empty kernels ``count`` times, by stream capture or node by node.

        Returns ns, shape (count, len(Life)). A captured graph is uploaded, and READY is when the GPU has done so. A
        built graph is not: UPLOADED and READY equal INSTANTIATED, and its first launch uploads it.
        """

    def footprint(self, nodes: int, copies: int) -> Footprint:
        """Memory of a chain of empty kernels, instantiated, uploaded and run once: the mean over ``copies`` copies.

        The copies are held until the case ends, so that a later call cannot reuse their memory.
        """

    def changes(self, way: ChangeWay, nodes: int, changed: int, count: int) -> IntArray:
        """``count`` times: give ``changed`` nodes of a chain new arguments or a new grid, then replay it twice.

        Returns ns, shape (count, len(Change)). In ways that need a new graph, RECORDED is after its capture; the other
        ways have nothing to dispose of. Every changed node gets a new value, and both replays are checked to have used
        it. Raises MeasurementError, with the driver's reason, if the driver refuses the change, and if the new values
        did not arrive.
        """

    def chain(self, kind: NodeKind, count: int) -> Chain:
        """A chain of ``count`` nodes of this kind, instantiated and uploaded."""

    def kernels(
        self, work: KernelWork, count: int, *, blocks: int, block_threads: int, alternating: bool
    ) -> KernelChain:
        """``count`` kernels that do nothing, spin for SPIN_NS, or add to a word of each thread.

        ``alternating`` kernels that add are of two functions in turn.
        """

    def shape(self, shape: Shape) -> Shaped:
        """This shape as a graph and on streams."""

    def loop(self, decider: Decider) -> Loop:
        """A kernel that is repeated until a counter is full. ``decider`` says who decides whether to repeat it."""

    def step(self, way: AllocationWay, size_bytes: int, pairs: int) -> Step:
        """A step with ``pairs`` allocations of ``size_bytes``, one after the other."""

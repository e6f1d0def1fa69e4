"""The protocol Links: operations of the links of a GPU to the host and to other GPUs. Raw times only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, Protocol

from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit
from microbench.gpu.protocol.transfer import Checked, Direction, FloatArray, HostMemory, Transfer

Access = Literal["read", "write"]
Order = Literal["sequential", "random"]
PinningWay = Literal["allocate", "register", "touch"]
ManagedWay = Literal[
    "fault_to_device", "prefetch_to_device", "read_mostly_to_device", "again_on_device",
    "fault_to_host", "prefetch_to_host",
]  # fmt: skip
CollectiveName = Literal["all_reduce", "all_gather", "send_recv"]
Binding = Literal["loop", "nccl4py"]
PeerWay = Literal["engine_read", "engine_write", "sm_read", "sm_write", "engine_both_read", "engine_both_write"]


class Pinning(IntEnum):
    """Columns of ``Links.pinning``: the host clock before and after each call."""

    BEGIN = 0
    PINNED = 1
    RELEASED_BEGIN = 2
    RELEASED = 3


class Duplex(Checked, Protocol):
    """Copies in both directions at the same time, each direction in its own stream."""

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """Start ``h2d`` and ``d2h`` copies together. Returns when each ended, in s since the start.

        Shapes (h2d,) and (d2h,), by the device's clock; None if the gate timed out.
        """


class Chase(Protocol):
    """Dependent reads by one thread: each line holds the address of the next. The lines are in host memory or on
    another GPU. ``blocks`` is the number of SMs."""

    blocks: int

    def walks_ns(self, reads: int) -> IntArray:
        """A walk of ``reads`` reads from each SM in turn while the others are idle: ns per walk, shape (blocks,).

        Timed by the GPU's timer from the first read to the last. A walk continues where the last one ended, so a line
        is read again only after all others. Raises MeasurementError if a walk ends at the wrong line.
        """

    def each_ns(self, reads: int) -> IntArray:
        """Single reads from one SM, each stamped by the SM's clock: ns, shape (reads,)."""


class Pipeline(Checked, Protocol):
    """A host buffer that goes to the device in chunks on several streams, each chunk followed by a kernel or not.

    One call of ``submit`` is the whole buffer; its round trips wait for all streams. ``check`` also verifies that each
    kernel saw its whole chunk.
    """

    submit: Submit


class Managed(Protocol):
    """Managed memory that is moved one way again and again, and moved back outside of the timed region."""

    def take_ns(self) -> int:
        """Move the pages back to where they come from, then move them and wait: host time of the second move in ns."""

    def check(self) -> str:
        """Compare the whole buffer, and verify that the last move really took place. Returns how.

        Raises MeasurementError for wrong data, and if nothing shows that the pages moved.
        """


class Peer(Checked, Protocol):
    """Movements between the memories of two GPUs, submitted to a stream of the first GPU."""

    def take_s(self, count: int) -> float | None:
        """Queue ``count`` movements behind a gate: seconds for all by device events; None if the gate timed out.

        If both directions run at the same time, this is the time of the first GPU's movements; the second GPU makes
        twice as many.
        """


class Concurrent(Checked, Protocol):
    """Copies between the host and several GPUs that are released one right after the other."""

    def take_s(self, count: int) -> FloatArray | None:
        """``count`` copies on the first GPU: seconds by each GPU's own events, shape (gpus,); None if a gate timed out.

        The first GPU is measured. The others make twice as many copies, so that it never runs alone.
        """


def bus_factor(name: CollectiveName, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, from nccl-tests' doc/PERFORMANCE.md; 0 where one rank uses no link.

    The bus bandwidth is the rate at which each GPU's links carry data one way in a ring, whatever the number of ranks.
    With NVLink SHARP the switches add: all_reduce then moves fewer bytes than a ring does, and its bus bandwidth may
    exceed the links' rate.
    """
    shares: dict[CollectiveName, float] = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks}
    return shares.get(name, 1.0 if ranks > 1 else 0.0)


class Collective(Checked, Protocol):
    """One NCCL operation on ``ranks`` GPUs, one rank a GPU, all driven by this thread.

    ``size_bytes`` is the size as nccl-tests counts it: what one rank sends in all_reduce and in send_recv, where each
    rank sends to the next one, and what all ranks together send in all_gather.
    """

    ranks: int
    size_bytes: int

    def take_ns(self, count: int) -> int:
        """Make ``count`` calls on every rank, then wait until all GPUs are done: host time of all that in ns."""

    def facts(self) -> Sequence[Fact]:
        """The number of ranks, NCCL's version, and the NCCL variables of the environment."""


class Links(Protocol):
    """The links of one GPU for one case. Every method raises Skip if machine, GPU or driver lacks the operation.

    Memory that cannot be allocated is a Skip with the bytes asked for and the limit; the check comes before the
    allocation, so that no process is killed.
    """

    def state(self) -> tuple[Fact, ...]:
        """The state of the link while copies run both ways, and the error counters that rose meanwhile.

        A fact that cannot be read has the value None and a reason.
        """

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> Transfer:
        """A copy by a copy engine. The host buffer lies on NUMA node ``node``, by default on the caller's node."""

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Transfer:
        """A kernel that copies pinned host memory to device memory (read), or device memory to it (write).

        Each thread moves ``width_bytes`` (4, 8 or 16) at a time. The host buffer begins ``offset_bytes`` after a 4 KiB
        page boundary: accesses stay aligned to their own width, but the offset splits the lines of a warp.
        """

    def duplex(self, size_bytes: int) -> Duplex:
        """Copies of ``size_bytes`` of pinned memory both ways at the same time."""

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> Chase:
        """Dependent reads of pinned host memory, one line every ``stride_bytes``. Raises Skip for less than a line."""

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        """``count`` times: take memory and give it back. Host clock in ns, shape (count, len(Pinning)).

        ``allocate`` allocates pinned memory, ``register`` pins memory that was allocated and touched before, ``touch``
        maps pageable memory and touches each page, as every program must.
        """

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> Pipeline:
        """``size_bytes`` in ``chunks`` chunks, chunk i in stream i modulo ``streams``.

        If ``kernel_ns`` is not 0, a kernel follows each chunk in its stream: it reads the whole chunk, then spins until
        it has run for ``kernel_ns / chunks``. Each kernel takes all SMs, so that no two run at the same time.
        """

    def managed(self, way: ManagedWay, size_bytes: int) -> Managed:
        """Managed memory that is moved in this way. Raises Skip for more than a quarter of the free device memory."""

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> Peer:
        """Movements of ``size_bytes`` between two GPUs (CUDA indices), with or without peer access.

        The first GPU's engines or SMs move the data: they read the second GPU's memory, or write it. Raises Skip, with
        the reason, for a pair without peer access.
        """

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> Chase:
        """Dependent reads of the second GPU's memory by the first, in address order."""

    def gpus(self) -> Sequence[int]:
        """CUDA indices of all GPUs that this process sees."""

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> Concurrent:
        """Pinned copies of the GPUs with these CUDA indices, each to or from the NUMA node that the GPU is on."""

    def collective(self, name: CollectiveName, binding: Binding, ranks: int | None, size_bytes: int) -> Collective:
        """An NCCL operation of float32 on the GPU under test and the next ones by CUDA index; None: on all GPUs.

        ``binding`` makes the calls: the compiled loop, through NCCL's C interface, or nvidia's Python package nccl4py.
        """

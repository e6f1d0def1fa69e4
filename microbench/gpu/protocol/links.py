"""The protocol Links: what a benchmark may ask of the link between host and GPU, and between GPUs. Raw times only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit

FloatArray = npt.NDArray[np.float64]
Direction = Literal["h2d", "d2h"]
HostMemory = Literal["pageable", "pinned", "write_combined", "registered"]
Access = Literal["read", "write"]
Order = Literal["sequential", "random"]
PinningWay = Literal["allocate", "register", "touch"]
ManagedWay = Literal[
    "fault_to_device", "prefetch_to_device", "read_mostly_to_device", "again_on_device",
    "fault_to_host", "prefetch_to_host",
]  # fmt: skip
PeerWay = Literal["engine_read", "engine_write", "sm_read", "sm_write", "engine_both_read", "engine_both_write"]


class Pinning(IntEnum):
    """Columns of ``Links.pinning``: the host clock after each act."""

    BEGIN = 0
    PINNED = 1
    RELEASED_BEGIN = 2
    RELEASED = 3


class Transfer(Protocol):
    """One movement of ``size_bytes`` that can be repeated: by a copy engine, or by a kernel.

    ``submit`` goes to stream 0. It can be queued behind a gate unless ``blocks``: a copy of pageable memory waits in
    the call, or returns before its data have arrived.
    """

    submit: Submit
    size_bytes: int
    blocks: bool

    def fresh(self) -> None:
        """A new pattern in the source, poison in the destination; waits until both are there."""
        ...

    def check(self) -> str:
        """Compare the whole destination with the pattern of the last ``fresh``; how that was done.

        Raises MeasurementError for the first byte that is wrong.
        """
        ...


class Duplex(Protocol):
    """Copies of ``size_bytes`` in both directions at once, each direction in a stream of its own."""

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """That many copies each way from a common start: when each of them ended, in seconds since the start.

        Shapes (h2d,) and (d2h,), by the device's clock; None where the gate opened too late.
        """
        ...

    def fresh(self) -> None: ...

    def check(self) -> str:
        """See Transfer; both directions."""
        ...


class Chase(Protocol):
    """Dependent reads by one thread: lines that each hold the address of the next, in host memory or on another GPU."""

    blocks: int

    def walks_ns(self, reads: int) -> IntArray:
        """A walk of ``reads`` reads from each SM in turn, the others idle: ns of each walk, shape (blocks,).

        By the GPU's timer, from the first read to the last. A walk goes on where the last one ended, so that a line is
        seen again only after all others. Raises MeasurementError for a walk that ended at the wrong line.
        """
        ...

    def each_ns(self, reads: int) -> IntArray:
        """Single reads from one SM, each stamped by the SM's clock: ns, shape (reads,)."""
        ...


class Pipeline(Protocol):
    """A host buffer cut into chunks that go to the device on several streams, each chunk followed by a kernel or not.

    ``submit`` is all of it; its round trips wait for all streams.
    """

    submit: Submit

    def fresh(self) -> None: ...

    def check(self) -> str:
        """See Transfer; where kernels follow, each must have seen its own chunk whole."""
        ...


class Managed(Protocol):
    """Managed memory that is moved one way again and again; put back where it came from outside of the timed region."""

    def take_ns(self) -> int:
        """Put the pages where they come from, then move them and wait: host time of the second alone."""
        ...

    def check(self) -> str: ...


class Peer(Protocol):
    """Movements between the memories of two GPUs, in a stream of the first."""

    def take_s(self, count: int) -> float | None:
        """``count`` of them queued behind a gate: seconds of all, by device events; None where the gate was late.

        Both ways at once: the seconds of the first GPU's own direction, the other GPU's being twice as long.
        """
        ...

    def fresh(self) -> None: ...

    def check(self) -> str: ...


class Concurrent(Protocol):
    """Copies between the host and several GPUs, let go one right after the other."""

    def take_s(self, count: int) -> FloatArray | None:
        """``count`` copies on each GPU: seconds by each GPU's own events, shape (gpus,); None where a gate was late.

        The first GPU's are measured: the others' are twice as many, so that it is never alone.
        """
        ...

    def fresh(self) -> None: ...

    def check(self) -> str: ...


class Links(Protocol):
    """The links of one GPU, for one case. Every method raises Skip where machine, GPU or driver have no such thing.

    Memory that cannot be had is a Skip with the bytes asked and the limit in the way, before anything is killed.
    """

    def state(self) -> tuple[Fact, ...]:
        """What the link is while copies run both ways, and which error counters rose meanwhile; never raises."""
        ...

    def copy(self, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None) -> Transfer:
        """A copy by a copy engine; the host's buffer lies on NUMA node ``node``, by default the caller's."""
        ...

    def kernel_copy(self, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> Transfer:
        """A kernel that reads pinned host memory into device memory, or writes it from there.

        Each thread moves ``width_bytes`` (4, 8, 16) at a time; the host's buffer begins ``offset_bytes`` behind a 4 KiB
        page's begin. Accesses stay aligned to their own width: a warp's line is split by the offset.
        """
        ...

    def duplex(self, size_bytes: int) -> Duplex:
        """Pinned copies both ways at once."""
        ...

    def chase(self, footprint_bytes: int, stride_bytes: int, order: Order) -> Chase:
        """Dependent reads of pinned host memory."""
        ...

    def pinning(self, way: PinningWay, size_bytes: int, count: int) -> IntArray:
        """``count`` times: make memory that the GPU can copy from, and give it back. Shape (count, len(Pinning)).

        ``allocate`` takes new pinned memory, ``register`` pins memory that exists and was touched, ``touch`` takes
        pageable memory and touches each page of it: what no program can do without.
        """
        ...

    def pipeline(self, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> Pipeline:
        """``size_bytes`` in ``chunks`` pieces, piece i in stream i modulo ``streams``.

        With ``kernel_ns`` a kernel follows each piece in its stream, reads it whole and then spins until it has run for
        ``kernel_ns / chunks``; kernels take all SMs, so that two of them do not run side by side.
        """
        ...

    def managed(self, way: ManagedWay, size_bytes: int) -> Managed:
        """Managed memory moved in that way. Raises Skip where that much is not free on the device."""
        ...

    def peer(self, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> Peer:
        """Movements between the memories of two GPUs (CUDA indices), with or without peer access.

        The first GPU's engines or SMs move the data: it reads the second one's memory, or writes it. Raises Skip with
        the reason for a pair that has no such access.
        """
        ...

    def peer_chase(self, first: int, second: int, footprint_bytes: int, stride_bytes: int) -> Chase:
        """Dependent reads of the second GPU's memory by the first, in the order of addresses."""
        ...

    def gpus(self) -> Sequence[int]:
        """CUDA indices of all GPUs that this process sees."""
        ...

    def concurrent(self, direction: Direction, gpus: Sequence[int], size_bytes: int) -> Concurrent:
        """Pinned copies of the GPUs of these CUDA indices, each to or from the NUMA node that it hangs on."""
        ...

"""The protocol DeviceMemory: what a benchmark may ask of a GPU's own memory and caches. Raw times and counts only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.submit import Submit

StreamKernel = Literal["read", "write", "copy", "scale", "add", "triad", "dot"]
DataType = Literal["fp64", "fp32", "fp16", "int8"]
Implementation = Literal["cuda", "cupy", "numba"]
Space = Literal["global", "shared"]
StrideAccess = Literal["read", "write"]
RandomAccess = Literal["gather", "scatter", "update"]
AtomicType = Literal["int32", "fp32"]
# Which address the threads of a launch add to: all the same one, one for each warp, one for each thread.
Spread = Literal["same", "warp", "thread"]
EngineWay = Literal["copy", "copy_2d", "memset"]
AllocationWay = Literal["malloc", "pool", "cupy_pool", "host_pinned"]

ELEMENT_BYTES: dict[DataType, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "int8": 1}
# Arrays that a kernel reads, and arrays that it writes.
READ_ARRAYS: dict[StreamKernel, int] = {
    "read": 1, "write": 0, "copy": 1, "scale": 1, "add": 2, "triad": 2, "dot": 2,
}  # fmt: skip
WRITTEN_ARRAYS: dict[StreamKernel, int] = {
    "read": 0, "write": 1, "copy": 1, "scale": 1, "add": 1, "triad": 1, "dot": 0,
}  # fmt: skip


class Allocation(IntEnum):
    """Columns of ``DeviceMemory.allocating``: the host clock before and after each act."""

    BEGIN = 0
    ALLOCATED = 1
    FREE_BEGIN = 2
    FREED = 3


class Pass(NamedTuple):
    """What one launch of a Level took, by the SMs' own clocks.

    From the first SM's begin to the last one's end, in ``seconds`` and in ``cycles`` of the SMs' clock.
    """

    seconds: float
    cycles: float


class Walk(NamedTuple):
    """A walk of dependent reads by one thread: both clocks from the first read to the last."""

    seconds: float
    cycles: float


class Operations(Protocol):
    """A Transfer that is counted in operations (random accesses, atomic additions): ``operations`` of one call."""

    submit: Submit
    operations: int

    def fresh(self) -> None: ...

    def check(self) -> str:
        """See Transfer; what all calls since the last ``fresh`` have left behind is compared."""
        ...


class Level(Protocol):
    """Reads of one working set by every SM, again and again: what answers is the nearest level that holds it.

    ``cache_bytes`` is what an SM's own cache surely holds, ``tile_bytes`` what an SM reads at a time.
    """

    sms: int
    tile_bytes: int
    cache_bytes: int

    def take(self, bytes_per_sm: int) -> Pass:
        """Each SM reads so many bytes (a multiple of ``tile_bytes``), from a place of its own on and round the working
        set. What was read before is in its cache; each SM's first time through a set that its own cache can hold is
        not timed. Raises MeasurementError for a sum over all words read that is not the set's.
        """
        ...


class LocalChase(Protocol):
    """Dependent reads by one thread through a working set in random order, each line once before any again."""

    lines: int

    def walk(self, reads: int) -> Walk:
        """See Chase.walks_ns of link_api.py, for one SM."""
        ...

    def each_cycles(self, reads: int) -> IntArray:
        """Single reads, each stamped by the SM's clock, stamps included: cycles, shape (reads,)."""
        ...

    def lines_cycles(self, repeats: int) -> IntArray:
        """The latency of each line of the set when the L2 answers, from one SM: cycles, shape (repeats, lines).

        The SM's own cache is passed by; stamps included.
        """
        ...


class DeviceMemory(Protocol):
    """Memory and caches of one GPU, for one case. Every method raises Skip where GPU or library have no such thing.

    Memory that cannot be had is a Skip with the bytes asked, those free, and who holds the rest. ``size_bytes`` of a
    Transfer is what its rate counts: bytes read plus bytes written by one call.
    """

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        """The ways in which that kernel can run here, by name: how wide an access is, how much is under way, how many
        blocks. A library chooses for itself: one shape."""
        ...

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> Transfer:
        """A kernel of STREAM over arrays of ``size_bytes`` each: read sum(a); write a = s; copy c = a; scale b = s c;
        add c = a + b; triad a = b + s c; dot sum(a b). Kernels of one case work on the same arrays.

        Whole elements only: what is left of ``size_bytes`` is not touched. Integers wrap around.
        """
        ...

    def level(self, space: Space, footprint_bytes: int) -> Level:
        """A working set in device memory, or in the shared memory of each SM (then ``footprint_bytes`` an SM)."""
        ...

    def chase(self, space: Space, footprint_bytes: int) -> LocalChase:
        """Dependent reads through a working set, through the SM's own cache or in its shared memory.

        Large sets are walked by 2**21 lines at most, spread evenly over them.
        """
        ...

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
        """A read of ``size_bytes`` by so many resident threads, each with ``loads`` reads of 16 bytes under way.

        Raises Skip where an SM does not hold as many.
        """
        ...

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
        """Neighbouring threads read or write 4-byte words ``stride_bytes`` apart, in a buffer of ``size_bytes``.

        Its ``size_bytes`` are the words alone. Strides of several lines go through the buffer again, each time a line
        further, until more than the L2 was touched; at the same time where a buffer has fewer such words than threads.
        """
        ...

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> Operations:
        """8-byte words of a power-of-two ``footprint_bytes`` in the order of a hash: each read (gather), written
        (scatter), or added to atomically (update), all equally often in a call, small sets several times."""
        ...

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
        """Atomic additions whose result nobody asks for, by all SMs. In shared memory ``same`` is one word a block."""
        ...

    def engine(self, way: EngineWay, size_bytes: int) -> Transfer:
        """The driver's copies within device memory, rows of half their pitch (copy_2d), and memset."""
        ...

    def allocating(self, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
        """``count`` times: take memory and give it back. Shape (count, len(Allocation)), host clock in ns.

        The first time is the first of that size in this process, of an empty pool where there is one.
        """
        ...

    def capacity(self) -> Sequence[Fact]:
        """The largest single block and the most in several that can be had now, what a context keeps, in bytes."""
        ...

    def peers(self) -> Fact:
        """Who else holds memory of this GPU; None with a reason where that cannot be seen."""
        ...

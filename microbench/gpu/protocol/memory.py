"""The protocol DeviceMemory: operations of a GPU's own memory and caches. Raw times and counts only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from microbench.core.model import Fact
from microbench.core.ops import IntArray
from microbench.gpu.protocol.submit import Submit
from microbench.gpu.protocol.transfer import Transfer

StreamKernel = Literal["read", "write", "copy", "scale", "add", "triad", "dot"]
DataType = Literal["fp64", "fp32", "fp16", "int8"]
Implementation = Literal["cuda", "cupy", "numba"]
Space = Literal["global", "shared"]
StrideAccess = Literal["read", "write"]
RandomAccess = Literal["gather", "scatter", "update"]
AtomicType = Literal["int32", "fp32"]
# Which words the threads of a launch add to: one word for all of them, one per warp, or one per thread.
Spread = Literal["same", "warp", "thread"]
WriteAccess = Literal["write", "update"]
LoadedLevel = Literal["l2", "dram"]
EngineWay = Literal["copy", "copy_2d", "memset"]
# How data get into shared memory: by loads and stores, by cp.async, or by bulk copies, which a single thread requests.
Filling = Literal["load", "async", "bulk"]
AllocationWay = Literal["malloc", "pool", "cupy_pool", "host_pinned"]

ELEMENT_BYTES: dict[DataType, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "int8": 1}
# Number of arrays that a kernel reads, and number that it writes.
READ_ARRAYS: dict[StreamKernel, int] = {
    "read": 1, "write": 0, "copy": 1, "scale": 1, "add": 2, "triad": 2, "dot": 2,
}  # fmt: skip
WRITTEN_ARRAYS: dict[StreamKernel, int] = {
    "read": 0, "write": 1, "copy": 1, "scale": 1, "add": 1, "triad": 1, "dot": 0,
}  # fmt: skip


class Allocation(IntEnum):
    """Columns of ``DeviceMemory.allocating``: the host clock before and after each call."""

    BEGIN = 0
    ALLOCATED = 1
    FREE_BEGIN = 2
    FREED = 3


class Pass(NamedTuple):
    """Duration of one launch of a Level, from the first SM's begin to the last SM's end, in s and in SM cycles."""

    seconds: float
    cycles: float


class Walk(NamedTuple):
    """Duration of a walk of dependent reads by one thread, from the first read to the last, in s and in SM cycles."""

    seconds: float
    cycles: float


class LoadedWalk(NamedTuple):
    """Duration of a walk of dependent reads, in s and in SM cycles, and what the other SMs read meanwhile, in bytes a
    second."""

    seconds: float
    cycles: float
    bytes_per_s: float


class Operations(Protocol):
    """Work that is counted in operations (random accesses, atomic additions): ``operations`` per call."""

    submit: Submit
    operations: int

    def fresh(self) -> None:
        """Write new values to the memory; returns when they are there."""

    def check(self) -> str:
        """Check what all calls since the last ``fresh`` have left in memory. Returns how; raises MeasurementError."""


class Level(Protocol):
    """Every SM reads a working set, or writes its part of it, again and again; the nearest level that holds the set
    serves it.

    ``tile_bytes`` is what an SM moves at a time, ``cache_bytes`` the size that an SM's own cache certainly holds.
    """

    sms: int
    tile_bytes: int
    cache_bytes: int

    def take(self, bytes_per_sm: int) -> Pass:
        """Each SM moves this many bytes, a multiple of ``tile_bytes``, from its own starting place, wrapping around the
        set.

        If an SM's cache can hold the set, the first pass through it, which fills the cache, is not timed. Raises
        MeasurementError if the sum of all words read or a written word is wrong.
        """


class LocalChase(Protocol):
    """Dependent reads by one thread through a working set in random order, each line once before any line again."""

    lines: int

    def walk(self, reads: int) -> Walk:
        """Walk on from where the last walk ended. Raises MeasurementError if the walk ends at the wrong line."""

    def each_cycles(self, reads: int) -> IntArray:
        """Single reads, each stamped by the SM's clock: SM cycles including the stamp, shape (reads,)."""

    def lines_cycles(self, repeats: int) -> IntArray:
        """Latency of each line that one SM reads from the L2. The reads bypass its L1.

        SM cycles including the stamp, shape (repeats, lines). Raises Skip for shared memory.
        """


class LoadedChase(Protocol):
    """Dependent reads by one thread on an SM of its own, while all other SMs read another set of ``load_bytes``."""

    load_bytes: int

    def take(self, reads: int, bytes_per_s: float) -> LoadedWalk:
        """Continue the walk while the other SMs read ``bytes_per_s``: inf as fast as they can, 0 not at all.

        Raises MeasurementError if the walk ends at the wrong line, if the sum of what the others read is wrong, or if
        one of them did not read during the whole walk.
        """


class DeviceMemory(Protocol):
    """Memory and caches of one GPU for one case. Every method raises Skip if GPU or library lacks the operation.

    Memory that cannot be allocated is a Skip with the bytes asked for, the bytes free, and who holds the rest. The
    ``size_bytes`` of a Transfer are the bytes that its rate counts: bytes read plus bytes written by one call.
    """

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        """Names of the launch shapes (width of an access, loads in flight, blocks) that this kernel can run with on
        this GPU.

        A library chooses for itself and has one shape.
        """

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> Transfer:
        """A kernel of STREAM over arrays of ``size_bytes`` each; kernels of one case share their arrays.

        read sum(a); write a = s; copy c = a; scale b = s c; add c = a + b; triad a = b + s c; dot sum(a b). A rest of
        ``size_bytes`` that is smaller than an element stays untouched. Integers wrap around.
        """

    def level(self, space: Space, footprint_bytes: int, cluster_blocks: int = 1) -> Level:
        """A working set in device memory, or in each SM's shared memory (then ``footprint_bytes`` per SM).

        With several ``cluster_blocks`` each SM reads the shared memory of the other blocks of its cluster in turn; only
        the SMs of whole clusters that run at the same time take part.
        """

    def written(self, access: WriteAccess, footprint_bytes: int) -> Level:
        """A working set in device memory of which each SM has a part of its own. ``write`` overwrites it; ``update``
        reads and writes every word, and both count."""

    def fill(self, way: Filling, piece_bytes: int, footprint_bytes: int) -> Level:
        """Every SM copies its own pieces of a set in device memory into its shared memory, passing through the set
        again and again.

        ``tile_bytes`` of the Level is a piece. A part of what was copied is added up and compared. Raises Skip for
        pieces whose size is not a power of two from 512 B to 32 KiB.
        """

    def chase(self, space: Space, footprint_bytes: int, cluster_blocks: int = 1) -> LocalChase:
        """Dependent reads through a working set, by way of the SM's own cache or in its shared memory.

        At most 2**21 lines of a large set are visited; they are spread evenly over it. With several ``cluster_blocks``
        the lines are in the shared memory of the other blocks of a cluster.
        """

    def loaded(self, level: LoadedLevel) -> LoadedChase:
        """Dependent reads of one level past the L1, with reads of the same level by all other SMs."""

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
        """A read of ``size_bytes`` by this many resident threads, each with ``loads`` reads of 16 bytes in flight.

        Raises Skip if an SM does not hold exactly this many blocks.
        """

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
        """Neighbouring threads read or write 4-byte words ``stride_bytes`` apart in a buffer of ``size_bytes``.

        The ``size_bytes`` of the result count the touched words only. With strides of several lines a call goes through
        the buffer several times, each time one line further, until it has touched more than the L2 holds; the passes
        run at the same time if a buffer has fewer such words than there are threads.
        """

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> Operations:
        """8-byte words of a power-of-two ``footprint_bytes`` in hashed order: read (gather), written (scatter) or
        atomically added to (update). A call touches all words equally often, small sets several times."""

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
        """Atomic additions by all SMs whose result is not used. In shared memory ``same`` is one word a block."""

    def engine(self, way: EngineWay, size_bytes: int) -> Transfer:
        """The driver's copies within device memory (copy_2d: rows of half their pitch) and its memset."""

    def allocating(self, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
        """``count`` times: allocate memory and free it. Host clock in ns, shape (count, len(Allocation)).

        The first allocation is the first of that size in this process, from an empty pool where a pool is used.
        """

    def capacity(self) -> Sequence[Fact]:
        """The largest single block and the most memory in several blocks that can be allocated now, and the memory
        that the context takes, in bytes."""

    def peers(self) -> Fact:
        """Other processes that hold memory of this GPU; None with a reason if they cannot be seen."""

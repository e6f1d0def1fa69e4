"""Reads with a known number of bytes under way, words that lie apart, words in the order of a hash."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import LEGACY_STREAM, Launch
from microbench.core.units import size
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.links.buffers import LEGACY_STREAM_HANDLE, NOTHING_WRONG, Patterns
from microbench.gpu.cuda.submit import Parameters, launch
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import AtomicType, Operations, RandomAccess, Space, Spread, StrideAccess
from microbench.gpu.protocol.submit import Submit

BLOCK_THREADS = 256
WORD_BYTES = 4
LINE_BYTES = 128
SECTOR_BYTES = 32
RANDOM_WORD_BYTES = 8
LOADS = (1, 2, 4, 8)
WHOLE_WORD = 0xFFFFFFFF
POISON_BYTE = 0xA5
# Fewer accesses would be over before all SMs are at work.
FEWEST_ACCESSES = 1 << 24
# Shared memory is given out in units of 128 or 256 bytes, the kernel's own words included.
SHARED_UNIT_BYTES, OWN_SHARED_BYTES = 256, 128


class Walk(NamedTuple):
    """Words that are touched: in each of ``passes``, so many of them ``stride_bytes`` apart.

    A pass begins LINE_BYTES behind the one before.
    """

    words: int
    stride_bytes: int = WORD_BYTES
    passes: int = 1

    @property
    def arguments(self) -> tuple[int, int, int]:
        """As kernels take it: the stride in words."""
        return self.words, self.stride_bytes // WORD_BYTES, self.passes


def grid(case: Case) -> Launch:
    """As many blocks as all SMs hold."""
    threads = case.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    blocks = threads // BLOCK_THREADS * case.context.attribute("MULTIPROCESSOR_COUNT")
    return Launch(grid_blocks=blocks, block_threads=BLOCK_THREADS)


def run(case: Case, kernel: str, arguments: tuple[int, ...]) -> None:
    """One launch outside of any timing, and wait for it."""
    function = case.modules.function("memory_access", kernel)
    shape = Launch(grid_blocks=grid(case).grid_blocks, block_threads=BLOCK_THREADS, stream=LEGACY_STREAM)
    launch(function, shape, LEGACY_STREAM_HANDLE, Parameters([arguments]))(1)
    case.context.synchronize()


def occupied(case: Case, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
    """See DeviceMemory. Shared memory that nobody uses keeps further blocks off an SM.

    Raises Skip for ``loads`` that no kernel was made for, and for blocks of which an SM does not hold that many.
    """
    if loads not in LOADS:
        raise Skip(f"there are kernels with {', '.join(map(str, LOADS))} loads under way, none with {loads}")
    function = case.modules.function("memory_access", f"read_with_{loads}")
    shared_bytes = _shared_bytes(case, blocks_per_sm)
    attributes = driver.CUfunction_attribute
    check(driver.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100))
    most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, most, shared_bytes))
    fit = int(check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block_threads, shared_bytes)))
    if fit != blocks_per_sm:
        raise Skip(f"an SM holds {fit} such blocks of {block_threads} threads at a time here, not {blocks_per_sm}")
    blocks = blocks_per_sm * case.context.attribute("MULTIPROCESSOR_COUNT")
    shape = Launch(grid_blocks=blocks, block_threads=block_threads)
    every_word = Walk(-(-size_bytes // WORD_BYTES))
    summed = _Summed(case, size_bytes, every_word, blocks, last_bytes=size_bytes % WORD_BYTES or WORD_BYTES)
    row = Parameters([(summed.address, size_bytes, summed.parts)])
    summed.submit = launch(function, shape, case.stream(0), row, shared_bytes=shared_bytes)
    return summed


def _shared_bytes(case: Case, blocks_per_sm: int) -> int:
    """The most that each of so many blocks can have: one block more would not fit."""
    context = case.context
    reserved = context.attribute("RESERVED_SHARED_MEMORY_PER_BLOCK")
    share = context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR") // max(blocks_per_sm, 1) - reserved
    most = min(share, context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
    return max(most // SHARED_UNIT_BYTES * SHARED_UNIT_BYTES - OWN_SHARED_BYTES, 0)


def strided(case: Case, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
    """See DeviceMemory. Raises Skip for a stride that is not a multiple of a word, and for a buffer without a word.

    Strides of several lines go through the buffer more than once, each time a line further on, until the sectors that
    were touched are more than four times what the L2 holds or all lines were: else the L2 would hold them from one
    call to the next.
    """
    if stride_bytes < WORD_BYTES or stride_bytes % WORD_BYTES:
        raise Skip(f"words of {WORD_BYTES} B cannot lie {stride_bytes} B apart")
    if size_bytes < WORD_BYTES:
        raise Skip(f"{size_bytes} B hold no word of {WORD_BYTES} B")
    walk = walk_of(stride_bytes, size_bytes, 4 * case.context.attribute("L2_CACHE_SIZE"))
    if access == "write":
        written = _Written(case, size_bytes, walk)
        row = Parameters([(written.address, *walk.arguments, 0)])
        return written.bound("write_apart", row, seed_argument=4)
    shape = grid(case)
    summed = _Summed(case, size_bytes, walk, shape.grid_blocks)
    function = case.modules.function("memory_access", "read_apart")
    row = Parameters([(summed.address, *walk.arguments, summed.parts)])
    summed.submit = launch(function, shape, case.stream(0), row)
    return summed


def walk_of(stride_bytes: int, size_bytes: int, enough_bytes: int) -> Walk:
    """The words of a buffer at that stride, in as many passes as it takes to touch sectors of ``enough_bytes``."""
    words = (size_bytes - WORD_BYTES) // stride_bytes + 1
    passes = min(-(-enough_bytes // (words * SECTOR_BYTES)), stride_bytes // LINE_BYTES, size_bytes // LINE_BYTES)
    passes = max(passes, 1)
    last = (passes - 1) * LINE_BYTES
    return Walk((size_bytes - WORD_BYTES - last) // stride_bytes + 1, stride_bytes, passes)


class _Summed:
    """A buffer that is read: a call's sum is compared with that of the pattern. See Transfer and Operations."""

    blocks = False
    submit: Submit

    def __init__(
        self, case: Case, buffer_bytes: int, walk: Walk, blocks: int, *, times: int = 1, last_bytes: int = WORD_BYTES
    ) -> None:
        self._case = case
        self._patterns = Patterns(case.context, case.modules)
        self._buffer_bytes, self._walk, self._times = buffer_bytes, walk, times
        self._last = (1 << 8 * last_bytes) - 1  # the bits of the last word that are the buffer's
        self._seed = 0
        self._blocks = blocks
        self._sum = case.context.device_memory(WORD_BYTES)
        self.size_bytes = min(walk.words * walk.passes * WORD_BYTES, buffer_bytes)
        self.operations = buffer_bytes // RANDOM_WORD_BYTES * times
        self.address = case.context.device_memory(buffer_bytes)
        self.parts = case.context.device_memory(WORD_BYTES * blocks)

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self.address, self._buffer_bytes, self._seed)
        check(driver.cuMemsetD8(self.parts, POISON_BYTE, WORD_BYTES * self._blocks))
        self._case.context.synchronize()

    def check(self) -> str:
        parts = self._case.context.read(self.parts, self._blocks, np.uint32)
        found, wanted = int(parts.sum(dtype=np.uint64)) & WHOLE_WORD, self._wanted()
        if found != wanted:
            raise MeasurementError(f"the sum of the words read is {found:#x} where {wanted:#x} should be")
        return "the sum of all words read compared with that of the pattern alone"

    def _wanted(self) -> int:
        self._case.context.clear(self._sum, WORD_BYTES)
        run(self._case, "expected_sum", (*self._walk.arguments, self._seed, self._last, self._sum))
        return int(self._case.context.read(self._sum, 1, np.uint32)[0]) * self._times & WHOLE_WORD


class _Written:
    """A buffer that is written: all of it is compared, touched or not. See Transfer and Operations."""

    blocks = False
    submit: Submit

    def __init__(self, case: Case, buffer_bytes: int, walk: Walk, operations: int = 0) -> None:
        self._case = case
        self._buffer_bytes, self._walk = buffer_bytes, walk
        self._seed = np.zeros(1, dtype=np.uint64)
        self._first_wrong = case.context.device_memory(8)
        self.size_bytes = walk.words * walk.passes * WORD_BYTES
        self.operations = operations
        self.address = case.context.device_memory(buffer_bytes)

    def bound(self, kernel: str, row: Parameters, *, seed_argument: int) -> _Written:
        """With the kernel that writes; it takes the seed of the last ``fresh``."""
        row.point(seed_argument, int(self._seed.ctypes.data))
        function = self._case.modules.function("memory_access", kernel)
        self.submit = launch(function, grid(self._case), self._case.stream(0), row, keep=(self._seed,))
        return self

    def fresh(self) -> None:
        self._seed[0] += 1
        run(self._case, "poison", (self.address, self._buffer_bytes, int(self._seed[0])))

    def check(self) -> str:
        start = np.array([NOTHING_WRONG], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._first_wrong, start.ctypes.data, start.nbytes))
        arguments = (*self._walk.arguments, int(self._seed[0]), self._first_wrong)
        run(self._case, "differ_apart", (self.address, self._buffer_bytes, *arguments))
        wrong = int(self._case.context.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"byte {wrong} of {self._buffer_bytes} is not what it should be")
        return "every word compared on the GPU, also those that must not be written"


class _Updated:
    """Words that grow by the same in every call. See Operations."""

    def __init__(self, case: Case, buffer_bytes: int, bits: int, times: int) -> None:
        self._case = case
        self._patterns = Patterns(case.context, case.modules)
        self._buffer_bytes, self._count, self._times = buffer_bytes, 1 << bits, times
        self._seed = 0
        self._address = case.context.device_memory(buffer_bytes)
        self._bounds = case.context.device_memory(16)
        self.operations = times << bits
        function = case.modules.function("memory_access", "update")
        row = Parameters([(self._address, bits, self.operations)])
        self.submit: Submit = launch(function, grid(case), case.stream(0), row)

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self._address, self._buffer_bytes, self._seed)

    def check(self) -> str:
        """See Operations: each call adds as much to every word, so that all have grown by the same multiple of it."""
        start = np.array([NOTHING_WRONG, 0], dtype=np.uint64)
        check(driver.cuMemcpyHtoD(self._bounds, start.ctypes.data, start.nbytes))
        run(self._case, "growth", (self._address, self._count, self._seed, self._bounds))
        least, most = (int(bound) for bound in self._case.context.read(self._bounds, 2, np.uint64))
        if least != most or least == 0 or least % self._times:
            raise MeasurementError(f"words have grown by {least} to {most}, not all by a multiple of {self._times}")
        return "every word compared on the GPU: all have grown alike"


def scattered(case: Case, access: RandomAccess, footprint_bytes: int) -> Operations:
    """See DeviceMemory. Sets of fewer than FEWEST_ACCESSES words are gone through several times a call.

    Raises Skip for a set that is not a power of two, of two words or more.
    """
    count = footprint_bytes // RANDOM_WORD_BYTES
    if footprint_bytes & (footprint_bytes - 1) or count < 2:
        raise Skip(f"{size(footprint_bytes)} are not a power of two of at least two words of {RANDOM_WORD_BYTES} B")
    bits, times = count.bit_length() - 1, max(FEWEST_ACCESSES // count, 1)
    if access == "update":
        return _Updated(case, footprint_bytes, bits, times)
    every_word = Walk(footprint_bytes // WORD_BYTES)
    if access == "scatter":
        written = _Written(case, footprint_bytes, every_word, count * times)
        return written.bound("scatter", Parameters([(written.address, bits, count * times, 0)]), seed_argument=3)
    shape = grid(case)
    summed = _Summed(case, footprint_bytes, every_word, shape.grid_blocks, times=times)
    function = case.modules.function("memory_access", "gather")
    row = Parameters([(summed.address, bits, count * times, summed.parts)])
    summed.submit = launch(function, shape, case.stream(0), row)
    return summed


# Atomic additions by all SMs, in device or shared memory: all to one word, or to one of each warp or thread.


# Bits of a thread's number that name its word. A warp's word is 128 bytes from the next warp's: in a line of its own.
KEPT_BITS: dict[Spread, int] = {"same": 0, "warp": 0xFFFFFFE0, "thread": 0xFFFFFFFF}
# Additions by each thread in a call: 0.1 to 2 ms of them on an H200, so that a launch's own microseconds hardly show.
ADDITIONS: dict[tuple[Space, Spread], int] = {
    ("global", "same"): 4, ("global", "warp"): 64, ("global", "thread"): 512,
    ("shared", "same"): 64, ("shared", "warp"): 128, ("shared", "thread"): 4096,
}  # fmt: skip
WORD_TYPES: dict[AtomicType, type[np.int32] | type[np.float32]] = {"int32": np.int32, "fp32": np.float32}
# A thread adds 1 to 4 by its number: what a word begins as and all that a call adds to it stay below 2**24, so that a
# float is exact, on GPUs of up to 1.6 million resident threads.
LANE_NUMBERS = 4
FIRST_VALUES = 1009
POISON = -1
Words = npt.NDArray[Any]


def atomics(case: Case, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
    """See DeviceMemory. The instruction is one that returns nothing: RED, in shared memory ATOMS, where floats take a
    loop that compares and exchanges. Numbers differ within a warp, so no compiler adds them up beforehand; the GPU may
    still take a warp's additions to one address together.
    """
    return _SharedAdditions(case, dtype, spread) if space == "shared" else _GlobalAdditions(case, dtype, spread)


class _Additions:
    """Words of device memory, one a thread, and what a call adds to each: ``self._added``, shape (threads,)."""

    def __init__(self, case: Case, space: Space, dtype: AtomicType, spread: Spread) -> None:
        self._context = case.context
        self._type = WORD_TYPES[dtype]
        self._shape = grid(case)
        self._count = self._shape.grid_blocks * self._shape.block_threads
        self._words = case.context.device_memory(WORD_BYTES * self._count)
        self._seed = 0
        self._arguments = (KEPT_BITS[spread], ADDITIONS[space, spread])
        self._function = case.modules.function("memory_access", f"add_{space}_{dtype}")
        self._stream = case.stream(0)
        self._own = self._words_of_threads(space)
        numbers = np.arange(self._count) % LANE_NUMBERS + 1
        self._added: Words = np.bincount(self._own, numbers * ADDITIONS[space, spread], self._count).astype(self._type)
        self.operations = self._count * ADDITIONS[space, spread]

    def _words_of_threads(self, space: Space) -> npt.NDArray[np.int64]:
        """Which word each thread adds to; in shared memory its number counts within its block."""
        threads = np.arange(self._count, dtype=np.int64)
        within = threads % self._shape.block_threads if space == "shared" else threads
        return threads - within + (within & self._arguments[0])

    def _first(self) -> Words:
        """What the words begin as."""
        places = np.arange(self._seed, self._seed + self._count)
        return (places % FIRST_VALUES).astype(self._type)

    def _compare(self, wanted: Words) -> str:
        found = self._context.read(self._words, self._count, self._type)
        wrong = np.flatnonzero(found != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise MeasurementError(f"word {at} of {self._count} is {found[at]} where {wanted[at]} should be")
        return "every word compared with the sum of what was added"

    def _write(self, address: int, values: Words) -> None:
        check(driver.cuMemcpyHtoD(address, values.ctypes.data, values.nbytes))
        self._context.synchronize()


class _GlobalAdditions(_Additions):
    """See Operations. Every second call takes away what the one before has added, so that words stay exact; the thread
    that a word is named after adds 1 more in each, which stays.
    """

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "global", dtype, spread)
        self._calls = case.context.device_memory(2 * WORD_BYTES)
        self._named = self._own == np.arange(self._count)
        self.operations += int(self._named.sum())
        row = Parameters([(self._words, *self._arguments, self._calls, self._calls + WORD_BYTES)])
        self.submit: Submit = launch(self._function, self._shape, self._stream, row)

    def fresh(self) -> None:
        self._seed += 1
        self._context.clear(self._calls, 2 * WORD_BYTES)
        self._write(self._words, self._first())

    def check(self) -> str:
        calls = int(self._context.read(self._calls, 1, np.uint32)[0])
        if calls == 0:
            raise MeasurementError(f"no word of {self._count} was added to")
        return self._compare(self._first() + self._added * self._type(calls % 2) + self._named * self._type(calls))


class _SharedAdditions(_Additions):
    """Each block's words begin anew in every call; what the last call has left of them is compared."""

    def __init__(self, case: Case, dtype: AtomicType, spread: Spread) -> None:
        super().__init__(case, "shared", dtype, spread)
        self._begin = case.context.device_memory(WORD_BYTES * self._count)
        row = Parameters([(self._begin, self._words, *self._arguments)])
        shared_bytes = WORD_BYTES * self._shape.block_threads
        self.submit: Submit = launch(self._function, self._shape, self._stream, row, shared_bytes=shared_bytes)

    def fresh(self) -> None:
        self._seed += 1
        self._write(self._begin, self._first())
        self._write(self._words, np.full(self._count, POISON, dtype=self._type))

    def check(self) -> str:
        return self._compare(self._first() + self._added)

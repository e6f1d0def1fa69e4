"""Access patterns of large buffers: reads in flight, strides, hashed order; atomic additions to one word or many."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.units import size
from microbench.experiments.memory.levels import Space
from microbench.gpu.cuda.buffers import NOTHING_WRONG, Patterns
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, Submit, check, driver, experiment
from microbench.gpu.fake import transfers
from microbench.gpu.protocol.gpu import Operations, Transfer

StrideAccess = Literal["read", "write"]
RandomAccess = Literal["gather", "scatter", "update"]

BLOCK_THREADS = 256
LOAD_BYTES = 16
WORD_BYTES = 4
LINE_BYTES = 128
SECTOR_BYTES = 32
RANDOM_WORD_BYTES = 8
LOADS = (1, 2, 4, 8)
WHOLE_WORD = 0xFFFFFFFF
POISON_BYTE = 0xA5
# Fewer accesses would end before all SMs are busy.
FEWEST_ACCESSES = 1 << 24
# Shared memory is allotted in units of 128 or 256 bytes, the kernel's own words included.
SHARED_UNIT_BYTES, OWN_SHARED_BYTES = 256, 128
# What an SM of the simulated GPU has in flight: four requests a warp at a stride, eight words a thread in hashed order.
STRIDED_IN_FLIGHT, RANDOM_IN_FLIGHT = 64 * 4, 64 * transfers.WARP_THREADS * 8


class Walk(NamedTuple):
    """The words that are accessed: in each of ``passes``, ``words`` of them ``stride_bytes`` apart.

    A pass begins LINE_BYTES after the one before.
    """

    words: int
    stride_bytes: int = WORD_BYTES
    passes: int = 1

    @property
    def arguments(self) -> tuple[int, int, int]:
        """The kernels' arguments, with the stride in words."""
        return self.words, self.stride_bytes // WORD_BYTES, self.passes


def grid(case: Case) -> Launch:
    """As many blocks as all SMs hold."""
    threads = case.context.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
    return Launch(grid_blocks=threads // BLOCK_THREADS * case.sms, block_threads=BLOCK_THREADS)


def run_on_grid(case: Case, kernel: str, arguments: tuple[int, ...]) -> None:
    """One launch of a kernel on all SMs, outside of any timed region."""
    run(case, case.function("memory_access", kernel), grid(case).grid_blocks, BLOCK_THREADS, arguments)


class _Summed:
    """A buffer that is read, as a Transfer and as Operations: the sum of a call is compared with the pattern's."""

    blocks = False
    submit: Submit

    def __init__(
        self, case: Case, buffer_bytes: int, walk: Walk, blocks: int, *, times: int = 1, last_bytes: int = WORD_BYTES
    ) -> None:
        self._case = case
        self._patterns = Patterns(case)
        self._buffer_bytes, self._walk, self._times = buffer_bytes, walk, times
        self._last = (1 << 8 * last_bytes) - 1  # the bits of the last word that are inside the buffer
        self._seed = 0
        self._blocks = blocks
        self._sum = case.device_memory(WORD_BYTES)
        self.size_bytes = min(walk.words * walk.passes * WORD_BYTES, buffer_bytes)
        self.operations = buffer_bytes // RANDOM_WORD_BYTES * times
        self.address = case.device_memory(buffer_bytes)
        self.parts = case.device_memory(WORD_BYTES * blocks)

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self.address, self._buffer_bytes, self._seed)
        check(driver.cuMemsetD8(self.parts, POISON_BYTE, WORD_BYTES * self._blocks))
        self._case.synchronize()

    def check(self) -> str:
        parts = self._case.read(self.parts, self._blocks, np.uint32)
        total = int(parts.sum(dtype=np.uint64)) & WHOLE_WORD
        self._case.clear(self._sum, WORD_BYTES)
        run_on_grid(self._case, "expected_sum", (*self._walk.arguments, self._seed, self._last, self._sum))
        wanted = int(self._case.read(self._sum, 1, np.uint32)[0]) * self._times & WHOLE_WORD
        if total != wanted:
            raise MeasurementError(f"the sum of the words read is {total:#x} where {wanted:#x} should be")
        return "the sum of all words read compared with that of the pattern alone"


class _Written:
    """A buffer that is written, as a Transfer and as Operations: all of it is compared, touched or not."""

    blocks = False
    submit: Submit

    def __init__(self, case: Case, buffer_bytes: int, walk: Walk, operations: int = 0) -> None:
        self._case = case
        self._buffer_bytes, self._walk = buffer_bytes, walk
        self._seed = 0
        self._first_wrong = case.device_memory(8)
        self.size_bytes = walk.words * walk.passes * WORD_BYTES
        self.operations = operations
        self.address = case.device_memory(buffer_bytes)

    def bound(self, kernel: str, *arguments: int) -> _Written:
        """This buffer with the kernel that writes it, whose last argument is the seed of the last ``fresh``."""
        self._row, self._seed_argument = Parameters([(self.address, *arguments, 0)]), 1 + len(arguments)
        self.submit = launch(self._case, self._case.function("memory_access", kernel), grid(self._case), self._row)
        return self

    def fresh(self) -> None:
        self._seed += 1
        self._row[self._seed_argument] = self._seed
        run_on_grid(self._case, "poison", (self.address, self._buffer_bytes, self._seed))

    def check(self) -> str:
        self._case.upload(self._first_wrong, np.array([NOTHING_WRONG], dtype=np.uint64))
        arguments = (*self._walk.arguments, self._seed, self._first_wrong)
        run_on_grid(self._case, "differ_apart", (self.address, self._buffer_bytes, *arguments))
        wrong = int(self._case.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"byte {wrong} of {self._buffer_bytes} is not what it should be")
        return "every word compared on the GPU, also those that must not be written"


class _Updated:
    """Operations on words that all grow by the same number in every call."""

    def __init__(self, case: Case, buffer_bytes: int, bits: int, times: int) -> None:
        self._case = case
        self._patterns = Patterns(case)
        self._buffer_bytes, self._count, self._times = buffer_bytes, 1 << bits, times
        self._seed = 0
        self._address = case.device_memory(buffer_bytes)
        self._bounds = case.device_memory(16)
        self.operations = times << bits
        row = Parameters([(self._address, bits, self.operations)])
        self.submit: Submit = launch(case, case.function("memory_access", "update"), grid(case), row)

    def fresh(self) -> None:
        self._seed += 1
        self._patterns.fill(self._address, self._buffer_bytes, self._seed)

    def check(self) -> str:
        """Each call adds the same number to every word, so all words have grown by the same multiple of it."""
        self._case.upload(self._bounds, np.array([NOTHING_WRONG, 0], dtype=np.uint64))
        run_on_grid(self._case, "growth", (self._address, self._count, self._seed, self._bounds))
        least, most = (int(bound) for bound in self._case.read(self._bounds, 2, np.uint64))
        if least != most or least == 0 or least % self._times:
            raise MeasurementError(f"words have grown by {least} to {most}, not all by a multiple of {self._times}")
        return "every word compared on the GPU: all have grown alike"


def require_kernel(loads: int) -> None:
    """Raise Skip for a number of loads in flight without a kernel."""
    if loads not in LOADS:
        raise Skip(f"there are kernels with {', '.join(map(str, LOADS))} loads in flight, none with {loads}")


def _occupied(case: Case, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
    """A read of ``size_bytes`` by this many resident threads, each with ``loads`` reads of 16 bytes in flight.

    Unused shared memory keeps further blocks off an SM. Raises Skip for a number of ``loads`` without a kernel, and if
    an SM does not hold exactly this many blocks.
    """
    require_kernel(loads)
    function = case.function("memory_access", f"read_with_{loads}")
    # The most that each of this many blocks can have: one block more would not fit.
    attribute = case.context.attribute
    reserved = attribute("RESERVED_SHARED_MEMORY_PER_BLOCK")
    share = attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR") // max(blocks_per_sm, 1) - reserved
    most = min(share, attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
    shared_bytes = max(most // SHARED_UNIT_BYTES * SHARED_UNIT_BYTES - OWN_SHARED_BYTES, 0)
    allow_shared_memory(function, shared_bytes, carve_out=100)
    fit = int(check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block_threads, shared_bytes)))
    if fit != blocks_per_sm:
        raise Skip(f"an SM holds {fit} such blocks of {block_threads} threads at a time here, not {blocks_per_sm}")
    op = Launch(grid_blocks=blocks_per_sm * case.sms, block_threads=block_threads)
    every_word = Walk(-(-size_bytes // WORD_BYTES))
    last_bytes = size_bytes % WORD_BYTES or WORD_BYTES
    summed = _Summed(case, size_bytes, every_word, op.grid_blocks, last_bytes=last_bytes)
    row = Parameters([(summed.address, size_bytes, summed.parts)])
    summed.submit = launch(case, function, op, row, shared_bytes=shared_bytes)
    return summed


def _simulated_occupied(
    machine: Machine, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int
) -> Transfer:
    costs = machine.costs
    require_kernel(loads)
    machine.room.hold(("occupied", size_bytes), size_bytes)
    if blocks_per_sm > costs.blocks_per_sm or blocks_per_sm * block_threads > costs.threads_per_sm:
        raise Skip(f"a simulated SM does not hold {blocks_per_sm} blocks of {block_threads} threads")
    in_flight_bytes = blocks_per_sm * block_threads * loads * LOAD_BYTES
    rate = costs.memory.dram_bytes_per_s.read
    busy_ns = transfers.through_ns(costs, size_bytes, in_flight_bytes, rate)
    return transfers.FakeKernel(machine, busy_ns, size_bytes)


def require_stride(stride_bytes: int, least_bytes: int = WORD_BYTES) -> None:
    """Raise Skip for a stride that is no whole number of words."""
    if stride_bytes < least_bytes or stride_bytes % WORD_BYTES:
        raise Skip(f"words of {WORD_BYTES} B cannot lie {stride_bytes} B apart")


def walk_of(stride_bytes: int, size_bytes: int, enough_bytes: int) -> Walk:
    """The words of a buffer at that stride, in as many passes as it takes to touch sectors of ``enough_bytes``."""
    words = (size_bytes - WORD_BYTES) // stride_bytes + 1
    passes = min(-(-enough_bytes // (words * SECTOR_BYTES)), stride_bytes // LINE_BYTES, size_bytes // LINE_BYTES)
    passes = max(passes, 1)
    last = (passes - 1) * LINE_BYTES
    return Walk((size_bytes - WORD_BYTES - last) // stride_bytes + 1, stride_bytes, passes)


def _strided(case: Case, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
    """Neighbouring threads read or write 4-byte words ``stride_bytes`` apart in a buffer of ``size_bytes``.

    The ``size_bytes`` of the result count the touched words only. A call accesses sectors of more than four times the
    L2, or all lines, so that the next call misses the L2: with strides of several lines it goes through the buffer
    several times, each time one line further. The passes run at the same time if a buffer has fewer such words than
    there are threads. Raises Skip for a stride that is not a multiple of a word, and for a buffer without a word.
    """
    require_stride(stride_bytes)
    if size_bytes < WORD_BYTES:
        raise Skip(f"{size_bytes} B hold no word of {WORD_BYTES} B")
    walk = walk_of(stride_bytes, size_bytes, 4 * case.context.attribute("L2_CACHE_SIZE"))
    if access == "write":
        return _Written(case, size_bytes, walk).bound("write_apart", *walk.arguments)
    op = grid(case)
    summed = _Summed(case, size_bytes, walk, op.grid_blocks)
    row = Parameters([(summed.address, *walk.arguments, summed.parts)])
    summed.submit = launch(case, case.function("memory_access", "read_apart"), op, row)
    return summed


def _simulated_strided(machine: Machine, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
    """All sectors that contain a word are moved; DRAM moves whole fetches."""
    costs, memory = machine.costs, machine.costs.memory
    require_stride(stride_bytes)
    machine.room.hold(("strided", size_bytes), size_bytes)
    words = size_bytes // stride_bytes
    sector_bytes, fetch_bytes = min(stride_bytes, memory.sector_bytes), min(stride_bytes, memory.dram_fetch_bytes)
    dram_bytes = fetch_bytes * transfers.WARP_THREADS if words * sector_bytes > memory.l2_bytes else 0
    requests = -(-words // (transfers.WARP_THREADS * costs.sm_count))
    rate = memory.dram_bytes_per_s.read if access == "read" else memory.dram_bytes_per_s.write
    busy_ns = transfers.answered_ns(
        costs, requests, STRIDED_IN_FLIGHT, sector_bytes * transfers.WARP_THREADS, dram_bytes, rate
    )
    return transfers.FakeKernel(machine, busy_ns, WORD_BYTES * words)


def word_count(footprint_bytes: int) -> int:
    """Words of a set. Raises Skip for one that is not a power of two, of two words or more."""
    count = footprint_bytes // RANDOM_WORD_BYTES
    if footprint_bytes & (footprint_bytes - 1) or count < 2:
        raise Skip(f"{size(footprint_bytes)} are not a power of two of at least two words of {RANDOM_WORD_BYTES} B")
    return count


def _scattered(case: Case, access: RandomAccess, footprint_bytes: int) -> Operations:
    """8-byte words of a power-of-two ``footprint_bytes`` in hashed order: read (gather), written (scatter) or
    atomically added to (update).

    A call touches all words equally often, those of a set of fewer than FEWEST_ACCESSES words several times.

    Raises Skip for a set that is not a power of two, of two words or more.
    """
    count = word_count(footprint_bytes)
    bits, times = count.bit_length() - 1, max(FEWEST_ACCESSES // count, 1)
    if access == "update":
        return _Updated(case, footprint_bytes, bits, times)
    every_word = Walk(footprint_bytes // WORD_BYTES)
    if access == "scatter":
        return _Written(case, footprint_bytes, every_word, count * times).bound("scatter", bits, count * times)
    op = grid(case)
    summed = _Summed(case, footprint_bytes, every_word, op.grid_blocks, times=times)
    row = Parameters([(summed.address, bits, count * times, summed.parts)])
    summed.submit = launch(case, case.function("memory_access", "gather"), op, row)
    return summed


def _simulated_scattered(machine: Machine, access: RandomAccess, footprint_bytes: int) -> Operations:
    """Updates are read and written back."""
    costs, memory = machine.costs, machine.costs.memory
    machine.room.hold(("scattered", footprint_bytes), footprint_bytes)
    words = word_count(footprint_bytes)
    rates, times = memory.dram_bytes_per_s, 2 if access == "update" else 1
    rate = {"gather": rates.read, "scatter": rates.write, "update": rates.mixed}[access]
    dram_bytes = times * memory.dram_fetch_bytes if footprint_bytes > memory.l2_bytes else 0
    requests = -(-words // costs.sm_count)
    busy_ns = transfers.answered_ns(costs, requests, RANDOM_IN_FLIGHT, times * memory.sector_bytes, dram_bytes, rate)
    return transfers.FakeKernel(machine, busy_ns, words * times * memory.sector_bytes, words)


occupied = experiment(_occupied, _simulated_occupied)
strided = experiment(_strided, _simulated_strided)
scattered = experiment(_scattered, _simulated_scattered)


AtomicType = Literal["int32", "fp32"]
# Which words the threads of a launch add to: one word for all of them, one per warp, or one per thread.
Spread = Literal["same", "warp", "thread"]
# Bits of a thread's number that select its word. A warp's word is 128 bytes from the next warp's: in a line of its own.
WORD_BITS: dict[Spread, int] = {"same": 0, "warp": 0xFFFFFFE0, "thread": 0xFFFFFFFF}
# Additions by each thread in a call: they take 0.1 to 2 ms on an H200, so that a launch's own microseconds hardly show.
ADDITIONS: dict[tuple[Space, Spread], int] = {
    ("global", "same"): 4, ("global", "warp"): 64, ("global", "thread"): 512,
    ("shared", "same"): 64, ("shared", "warp"): 128, ("shared", "thread"): 4096,
}  # fmt: skip
WORD_TYPES: dict[AtomicType, type[np.int32] | type[np.float32]] = {"int32": np.int32, "fp32": np.float32}
# A thread adds 1 to 4 by its number: a word's first value and all that a call adds to it stay below 2**24, so that a
# float is exact, on GPUs of up to 1.6 million resident threads.
LANE_NUMBERS = 4
FIRST_VALUES = 1009
POISON = -1
Words = npt.NDArray[Any]
# What the simulated GPU runs: resident warps, and additions of each thread in a launch.
WARPS_PER_SM, ADDS = 64, 512


class Additions:
    """Atomic additions by all SMs whose result is not used. In shared memory ``same`` is one word a block.

    The instruction returns nothing: RED, or ATOMS in shared memory, where floats take a compare-and-exchange loop.
    Numbers differ within a warp, so that no compiler adds them up beforehand; the GPU may still combine a warp's
    additions to one address.

    There is a word for each thread. In device memory every second call subtracts what the previous call added, so that
    words stay exact, and in each call the thread whose number is the word's adds 1 more, which stays. In shared memory
    each call resets the words of each block; the words of the last call are compared.
    """

    def __init__(self, case: Case, space: Space, dtype: AtomicType, spread: Spread) -> None:
        self._case, self._shared, self._type = case, space == "shared", WORD_TYPES[dtype]
        shape, bits, additions = grid(case), WORD_BITS[spread], ADDITIONS[space, spread]
        self._count = shape.grid_blocks * shape.block_threads
        self._words = case.device_memory(WORD_BYTES * self._count)
        self._seed = 0
        function = case.function("memory_access", f"add_{space}_{dtype}")
        # The word that each thread adds to; in shared memory the thread's number counts within its block.
        threads = np.arange(self._count, dtype=np.int64)
        within = threads % shape.block_threads if self._shared else threads
        own = threads - within + (within & bits)
        numbers = threads % LANE_NUMBERS + 1
        self._added: Words = np.bincount(own, numbers * additions, self._count).astype(self._type)
        self._named = own == threads
        self.operations = self._count * additions + (0 if self._shared else int(self._named.sum()))
        # What each call begins with in shared memory; else how often the words were added to.
        self._aside = case.device_memory(WORD_BYTES * (self._count if self._shared else 2))
        both = (self._words, bits, additions)
        row = (self._aside, *both) if self._shared else (*both, self._aside, self._aside + WORD_BYTES)
        shared_bytes = WORD_BYTES * shape.block_threads if self._shared else 0
        self.submit: Submit = launch(case, function, shape, Parameters([row]), shared_bytes=shared_bytes)

    def _first(self) -> Words:
        places = np.arange(self._seed, self._seed + self._count)
        return (places % FIRST_VALUES).astype(self._type)

    def fresh(self) -> None:
        self._seed += 1
        if self._shared:
            self._case.upload(self._aside, self._first())
            self._case.upload(self._words, np.full(self._count, POISON, dtype=self._type))
        else:
            self._case.clear(self._aside, 2 * WORD_BYTES)
            self._case.upload(self._words, self._first())
        self._case.synchronize()

    def check(self) -> str:
        wanted = self._first() + self._added
        if not self._shared:
            calls = int(self._case.read(self._aside, 1, np.uint32)[0])
            if calls == 0:
                raise MeasurementError(f"no word of {self._count} was added to")
            wanted = self._first() + self._added * self._type(calls % 2) + self._named * self._type(calls)
        words = self._case.read(self._words, self._count, self._type)
        wrong = np.flatnonzero(words != wanted)
        if len(wrong):
            at = int(wrong[0])
            raise MeasurementError(f"word {at} of {self._count} is {words[at]} where {wanted[at]} should be")
        return "every word compared with the sum of what was added"


def _simulated_atomics(machine: Machine, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
    """In global memory the units of the L2 make the additions; those to one sector, and merged ones, are made at once.
    In shared memory each SM makes its own; threads that add to the same word take turns or are merged."""
    costs, memory = machine.costs, machine.costs.memory
    warps = costs.sm_count * WARPS_PER_SM
    if space == "shared":
        turns = 1.0 if spread == "thread" else transfers.WARP_THREADS / memory.shared_merged_threads[dtype]
        cycles = WARPS_PER_SM * turns * memory.shared_atomic_cycles
    else:
        sectors_per_warp = WORD_BYTES * transfers.WARP_THREADS // memory.sector_bytes
        additions = warps * (
            sectors_per_warp if spread == "thread" else transfers.WARP_THREADS / memory.merged_threads[dtype]
        )
        cycles = math.ceil(additions / (1 if spread == "same" else memory.atomic_units)) * memory.atomic_cycles
    return transfers.FakeKernel(machine, costs.cycles_ns(cycles * ADDS), 0, warps * transfers.WARP_THREADS * ADDS)


atomics = experiment(Additions, _simulated_atomics)

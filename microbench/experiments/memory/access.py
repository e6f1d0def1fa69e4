"""Access patterns of large buffers: a known number of reads in flight, strides, and hashed order."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from microbench.core.units import size
from microbench.experiments.memory.simulated_kernels import SimulatedOperations, answered_ns, kernel_call, through_ns
from microbench.gpu.cuda.buffers import NOTHING_WRONG, Patterns
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.experiment import Case, Launch, Machine, MeasurementError, Skip, Submit, check, driver, experiment
from microbench.gpu.fake.transfers import WARP_THREADS, FakeTransfer
from microbench.gpu.protocol.transfer import Operations, Transfer

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
STRIDED_IN_FLIGHT, RANDOM_IN_FLIGHT = 64 * 4, 64 * WARP_THREADS * 8


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
    busy_ns = through_ns(costs, size_bytes, in_flight_bytes, rate)
    return FakeTransfer(machine, kernel_call(machine, busy_ns, size_bytes), size_bytes)


def require_stride(stride_bytes: int) -> None:
    """Raise Skip for a stride that is no whole number of words."""
    if stride_bytes < WORD_BYTES or stride_bytes % WORD_BYTES:
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
    dram_bytes = fetch_bytes * WARP_THREADS if words * sector_bytes > memory.l2_bytes else 0
    requests = -(-words // (WARP_THREADS * costs.sm_count))
    rate = memory.dram_bytes_per_s.read if access == "read" else memory.dram_bytes_per_s.write
    busy_ns = answered_ns(costs, requests, STRIDED_IN_FLIGHT, sector_bytes * WARP_THREADS, dram_bytes, rate)
    return FakeTransfer(machine, kernel_call(machine, busy_ns, WORD_BYTES * words), WORD_BYTES * words)


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
    busy_ns = answered_ns(costs, requests, RANDOM_IN_FLIGHT, times * memory.sector_bytes, dram_bytes, rate)
    return SimulatedOperations(machine, kernel_call(machine, busy_ns, words * times * memory.sector_bytes), words)


occupied = experiment(_occupied, _simulated_occupied)
strided = experiment(_strided, _simulated_strided)
scattered = experiment(_scattered, _simulated_scattered)

"""Working sets: dependent reads by one thread, and reads or writes of a set by every SM again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import IntArray, Launch
from microbench.core.units import size
from microbench.gpu.cuda.buffers import NOTHING_WRONG, Patterns
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.cuda.timing import NANOSECOND_S, OWN_SHARED_BYTES, STAMPS, require_an_sm_each
from microbench.gpu.protocol.memory import Pass, Space, Walk, WriteAccess

# Dependent reads: a ring of lines in device memory, or in an SM's shared memory.

LINE_BYTES = 128
WORD_BYTES = 8
MOST_LINES = 1 << 21
SEED = 20261121
Offsets = npt.NDArray[np.uint64]


def ring(footprint_bytes: int) -> Offsets:
    """Offsets of lines in the order of the walk, shape (lines,): one line at a random place of each equal piece.

    Raises Skip for a set of fewer than two lines.
    """
    lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
    if lines < 2:
        raise Skip(f"{footprint_bytes} B hold no two lines of {LINE_BYTES} B")
    random = np.random.default_rng(SEED)
    all_lines = footprint_bytes // LINE_BYTES
    piece_lines = all_lines // lines
    places = np.arange(lines, dtype=np.uint64) * np.uint64(all_lines) // np.uint64(lines)
    if piece_lines > 1:  # lines at equal distances would share few channels and few sets of a cache
        places += random.integers(0, piece_lines, lines, dtype=np.uint64)
    order: Offsets = random.permutation(places * np.uint64(LINE_BYTES))
    return order


class CudaLocalChase:
    """A LocalChase."""

    def __init__(self, case: Case, space: Space, footprint_bytes: int) -> None:
        self._case = case
        self._shared = space == "shared"
        self._offsets = ring(footprint_bytes)
        self.lines = len(self._offsets)
        cache_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        # A set that the SM can hold is read once before timing, because a kernel begins with an empty cache.
        self._warm = self.lines if self._shared or footprint_bytes <= 2 * cache_bytes else 0
        self._at = 0
        self._place = case.device_memory(WORD_BYTES)
        self._out = case.device_memory(2 * WORD_BYTES)
        self._base, self._shared_bytes = 0, 0
        self._way, self._shape = "shared" if self._shared else "cached", Launch(block_threads=1)
        self._extra: tuple[int, ...] = ()
        if self._shared:
            most = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
            if footprint_bytes > most:
                raise Skip(f"a block has {size(most)} of shared memory here, not {size(footprint_bytes)}")
            self._shared_bytes = footprint_bytes
            successor = np.empty(self.lines, dtype=np.uint32)
            lines = (self._offsets // LINE_BYTES).astype(np.uint32)
            successor[lines] = np.roll(lines, -1)
            self._extra = (self._upload(successor), self.lines)
        else:
            self._base = case.device_memory(footprint_bytes)
            offsets = self._upload(self._offsets)
            run(case, case.function("memory_levels", "link_lines"), 256, 256, (self._base, offsets, self.lines))
        self._go_to(0)

    def _upload(self, values: npt.NDArray[np.uint64] | npt.NDArray[np.uint32]) -> int:
        address = self._case.device_memory(values.nbytes)
        self._case.upload(address, values)
        return address

    def walk(self, reads: int) -> Walk:
        self._run(f"walk_{self._way}", self._warm, reads, self._out)
        elapsed_ns, cycles = self._case.read(self._out, 2, np.int64)
        return Walk(int(elapsed_ns) * NANOSECOND_S, float(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        return self._stamped(f"walk_{self._way}_stamped", self._warm, reads)

    def lines_cycles(self, repeats: int) -> IntArray:
        """The first round brings every line into the L2 and is not timed."""
        if self._shared:
            raise Skip("shared memory is not in the L2")
        self._go_to(0)
        return self._stamped("walk_past_l1_stamped", self.lines, self.lines * repeats).reshape(repeats, self.lines)

    def _stamped(self, kernel: str, warm: int, reads: int) -> IntArray:
        cycles = self._case.device_memory(4 * reads)
        self._run(kernel, warm, reads, cycles)
        return self._case.read(cycles, reads, np.uint32).astype(np.int64)

    def _run(self, kernel: str, warm: int, reads: int, out: int) -> None:
        function = self._case.function("memory_levels", kernel)
        allow_shared_memory(function, self._shared_bytes, carve_out=100 if self._shared else 0)
        row = Parameters([(self._place, warm, reads, out, *self._extra)])
        launch(self._case, function, self._shape, row, shared_bytes=self._shared_bytes)(1)
        self._case.synchronize()
        self._arrive(warm + reads)

    def _go_to(self, index: int) -> None:
        self._at = index
        self._case.upload(self._place, np.array([self._base + int(self._offsets[index])], dtype=np.uint64))

    def _arrive(self, reads: int) -> None:
        """Raise MeasurementError unless the walk ended at the expected line."""
        self._at = (self._at + reads) % self.lines
        wanted = self._base + int(self._offsets[self._at])
        place = int(self._case.read(self._place, 1, np.uint64)[0])
        if place != wanted:
            raise MeasurementError(f"the walk ended at {place:#x} where {wanted:#x} should be")


BLOCK_THREADS = 1024
VECTOR_BYTES = 16
TILE_VECTORS = BLOCK_THREADS
SET_TILE_BYTES = TILE_VECTORS * VECTOR_BYTES
# round_the_set and write_part of kernels/memory_levels.cu have four tiles in flight.
TILES_AHEAD = 4
# Sets larger than this many times an SM's cache are read past it.
PASSED_BY = 2
READ_SEED = 5
MOST_VECTORS = 1 << 31
Words = npt.NDArray[np.uint32]


def fill_tiles(case: Case, tiles: int, vectors: int) -> tuple[int, Words]:
    """The address of a set with a pattern, and the sum of each tile of that many vectors, from the pattern alone."""
    base = case.device_memory(tiles * vectors * VECTOR_BYTES)
    Patterns(case).fill(base, tiles * vectors * VECTOR_BYTES, READ_SEED)
    sums = case.device_memory(4 * tiles)
    run(case, case.function("memory_levels", "tile_sums"), tiles, 256, (READ_SEED, vectors, sums))
    each: Words = case.read(sums, tiles, np.uint32)
    return base, each


def read_sums(prefix: Words, starts: npt.NDArray[np.int64], count: int) -> Words:
    """The sum of ``count`` tiles from each start on, going round the set, modulo 2**32.

    ``prefix`` has the sums of the first 0 ... n tiles, shape (n + 1,).
    """
    tiles = len(prefix) - 1
    rounds, rest = divmod(count, tiles)
    ends = starts + rest
    sums = prefix[np.minimum(ends, tiles)].astype(np.uint64) - prefix[starts]
    sums += prefix[np.maximum(ends - tiles, 0)] + np.uint64(rounds % (1 << 32)) * np.uint64(prefix[-1])
    modulo: Words = sums.astype(np.uint32)
    return modulo


class CudaLevel:
    """A Level with one block of 1024 threads on each SM; the sum of each tile's words is known."""

    tile_bytes = SET_TILE_BYTES * TILES_AHEAD

    def __init__(self, case: Case, space: Space, footprint_bytes: int) -> None:
        self._case = case
        self.sms = case.sms
        tiles = footprint_bytes // SET_TILE_BYTES
        if not 0 < tiles * TILE_VECTORS < MOST_VECTORS:
            raise Skip(f"a set of {size(footprint_bytes)} is not one of 16 KiB to 32 GiB")
        # If no kernel asks for shared memory, the SM has its memory for its cache.
        self.cache_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        shared_bytes = tiles * SET_TILE_BYTES if space == "shared" else 0
        most = case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES
        if shared_bytes > most:
            raise Skip(f"a block has {size(most)} of shared memory here, not {size(shared_bytes)}")
        warm = tiles if footprint_bytes <= PASSED_BY * self.cache_bytes else 0
        warm = -(-warm // TILES_AHEAD) * TILES_AHEAD
        kernel = "read_shared" if space == "shared" else "read_cached" if warm else "read_past_l1"
        function = case.function("memory_levels", kernel)
        # The rest of the SM's memory is its cache.
        allow_shared_memory(function, shared_bytes, carve_out=100 if shared_bytes else 0)
        base, sums = fill_tiles(case, tiles, TILE_VECTORS)
        self._prefix: Words = np.concatenate((np.zeros(1, np.uint32), np.cumsum(sums, dtype=np.uint32)))
        self._warm, self._tiles = warm, tiles
        self._starts = np.arange(self.sms, dtype=np.int64) * tiles // self.sms
        self._out = case.device_memory(STAMPS.itemsize * self.sms)
        row = Parameters([(base, tiles * TILE_VECTORS, warm, 0, 0, self._out)])
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS)
        self._submit = launch(case, function, shape, row, shared_bytes=shared_bytes)
        self._count_and_first = np.zeros(2, dtype=np.uint64)
        for argument in (0, 1):
            row.point(3 + argument, self._count_and_first.ctypes.data + 8 * argument)

    def take(self, bytes_per_sm: int) -> Pass:
        count, rest = divmod(bytes_per_sm, SET_TILE_BYTES)
        if rest or count % TILES_AHEAD:
            raise MeasurementError(f"{bytes_per_sm} B are no multiple of {self.tile_bytes} B")
        self._count_and_first[0] = count
        first = int(self._count_and_first[1])
        self._case.clear(self._out, STAMPS.itemsize * self.sms)
        self._submit(1)
        self._case.synchronize()
        stamps = self._case.read(self._out, self.sms, STAMPS)
        # The next launch begins half way between the ends of this one, where the L2 has long evicted the data.
        self._count_and_first[1] = (first + self._warm + count + self._tiles // (2 * self.sms)) % self._tiles
        starts = (self._starts + first) % self._tiles
        if not np.array_equal(stamps["sum"], read_sums(self._prefix, starts, self._warm + count)):
            raise MeasurementError("the sum over all words read is not that of the set")
        return level_pass(stamps)


def level_pass(stamps: npt.NDArray[Any]) -> Pass:
    """Duration of a launch by the stamps of its blocks. Raises MeasurementError if two of them shared an SM."""
    require_an_sm_each(stamps)
    elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
    # SMs that end early leave bandwidth to the others: take the time of all, in cycles of the SMs' clock.
    per_ns = float(np.median(stamps["cycles"] / (stamps["end_ns"] - stamps["begin_ns"])))
    return Pass(elapsed_ns * NANOSECOND_S, elapsed_ns * per_ns)


class CudaWritten:
    """A Level that is written, with one block of 1024 threads on each SM; every word is compared after each launch."""

    cache_bytes = 0  # writes go through the SM's own cache to the L2, and updates read past it

    def __init__(self, case: Case, access: WriteAccess, footprint_bytes: int) -> None:
        self._case, self._access = case, access
        self.sms = case.sms
        self._tiles = footprint_bytes // SET_TILE_BYTES
        if not TILES_AHEAD * self.sms <= self._tiles <= MOST_VECTORS // TILE_VECTORS:
            raise Skip(f"a set of {size(footprint_bytes)} is not one of 64 KiB for each SM to 32 GiB")
        # An update moves each byte twice.
        self._moved_bytes = SET_TILE_BYTES * (2 if access == "update" else 1)
        self.tile_bytes = self._moved_bytes * TILES_AHEAD
        self._base = case.device_memory(self._tiles * SET_TILE_BYTES)
        self._patterns = Patterns(case)
        self._seed = 0
        self._first_wrong = case.device_memory(8)
        self._out = case.device_memory(STAMPS.itemsize * self.sms)

    def take(self, bytes_per_sm: int) -> Pass:
        count, rest = divmod(bytes_per_sm, self.tile_bytes)
        if rest:
            raise MeasurementError(f"{bytes_per_sm} B are no multiple of {self.tile_bytes} B")
        count *= TILES_AHEAD
        self._seed += 1
        self._patterns.fill(self._base, self._tiles * SET_TILE_BYTES, self._seed)
        self._case.clear(self._out, STAMPS.itemsize * self.sms)
        arguments = (self._base, self._tiles, count, self._seed)
        function = self._case.function("memory_levels", f"{self._access}_set")
        allow_shared_memory(function, 0, carve_out=0)
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS)
        launch(self._case, function, shape, Parameters([(*arguments, self._out)]))(1)
        self._case.synchronize()
        self._case.upload(self._first_wrong, np.array([NOTHING_WRONG], dtype=np.uint64))
        compare = self._case.function("memory_levels", "differ_written")
        row = (*arguments, int(self._access == "update"), self._first_wrong)
        run(self._case, compare, self.sms, BLOCK_THREADS, row)
        wrong = int(self._case.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"word {wrong} of the set is not what should have been written")
        return level_pass(self._case.read(self._out, self.sms, STAMPS))

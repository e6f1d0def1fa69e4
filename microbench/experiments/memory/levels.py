"""Working sets that every SM reads or writes again and again: the nearest level that holds a set serves it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.model import Measurement, Work
from microbench.core.units import size
from microbench.gpu.cuda.buffers import NOTHING_WRONG, Patterns
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.cuda.timing import NANOSECOND_S, OWN_SHARED_BYTES, STAMPS, require_an_sm_each, stamped
from microbench.gpu.experiment import Case, Item, Launch, Machine, MeasurementError, Scoped, Skip, Submit, experiment
from microbench.gpu.protocol.gpu import Gpu
from microbench.meter.sampling import Sample
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified

Space = Literal["global", "shared"]
WriteAccess = Literal["write", "update"]
Words = npt.NDArray[np.uint32]

# A working set of four times the L2 is certainly read from device memory; one of half the L2 can stay in it.
BEYOND_L2, WITHIN_L2 = 4, 0.5
LARGER_THAN_ANY_L2_BYTES = 512 << 20
# Levels whose rate follows the SMs' clock.
ON_CHIP = ("shared", "l1", "l2")
SAMPLE_S = 3e-4
READ_CHECK = "the sum over all words read is that of the set"
# SMs begin about a microsecond apart, and many %globaltimers have steps of one microsecond, so each SM reads enough
# bytes that both are negligible.
FIRST_BYTES = 1 << 20

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


class Duration(NamedTuple):
    """How long something took on the GPU, in s and in SM cycles."""

    seconds: float
    cycles: float


class Level(ABC):
    """Every SM moves a working set, or its part of it, again and again; the nearest level that holds the set serves it.

    ``tile_bytes`` is what an SM moves at a time, ``cache_bytes`` the size that an SM's own cache certainly holds.
    """

    sms: int
    tile_bytes: int
    cache_bytes = 0

    def take(self, bytes_per_sm: int) -> Duration:
        """Each SM moves this many bytes, a multiple of ``tile_bytes``, from its own starting place, wrapping around the
        set. Returns the time from the first SM's begin to the last SM's end.

        If an SM's cache can hold the set, the first pass through it, which fills the cache, is not timed. Raises
        MeasurementError if the sum of all words read or a written word is wrong.
        """
        tiles, rest = divmod(bytes_per_sm, self.tile_bytes)
        if rest:
            raise MeasurementError(f"{bytes_per_sm} B are no multiple of {self.tile_bytes} B")
        return self._take(tiles)

    @abstractmethod
    def _take(self, tiles: int) -> Duration: ...


class StampedLevel(Level):
    """A Level of the real GPU with one block on each SM, which writes its STAMPS to ``_out``."""

    def __init__(self, case: Case, sms: int) -> None:
        self._case, self.sms = case, sms
        self._out = case.device_memory(STAMPS.itemsize * sms)

    def _stamps(self, submit: Submit) -> npt.NDArray[Any]:
        self._case.clear(self._out, STAMPS.itemsize * self.sms)
        return stamped(self._case, submit, self._out, self.sms)


def duration_of(stamps: npt.NDArray[Any]) -> Duration:
    """Duration of a launch by the stamps of its blocks. Raises MeasurementError if two of them shared an SM."""
    require_an_sm_each(stamps)
    elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
    # SMs that end early leave bandwidth to the others: take the time of all, in cycles of the SMs' clock.
    per_ns = float(np.median(stamps["cycles"] / (stamps["end_ns"] - stamps["begin_ns"])))
    return Duration(elapsed_ns * NANOSECOND_S, elapsed_ns * per_ns)


def fill_tiles(case: Case, tiles: int, vectors: int, seed: int = READ_SEED, threads: int = 256) -> tuple[int, Words]:
    """The address of a set with a pattern, and the sum of each tile of that many vectors, from the pattern alone."""
    base = case.device_memory(tiles * vectors * VECTOR_BYTES)
    Patterns(case).fill(base, tiles * vectors * VECTOR_BYTES, seed)
    sums = case.device_memory(4 * tiles)
    run(case, case.function("memory_levels", "tile_sums"), tiles, threads, (seed, vectors, sums))
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


def require_shared(size_bytes: int, most_bytes: int) -> None:
    """Raise Skip for more shared memory than a block can have."""
    if size_bytes > most_bytes:
        raise Skip(f"a block has {size(most_bytes)} of shared memory here, not {size(size_bytes)}")


class ReadSet(StampedLevel):
    """A set in device memory, or in each SM's shared memory (then ``footprint_bytes`` per SM), read by blocks of 1024
    threads; the sum of each tile's words is known."""

    tile_bytes = SET_TILE_BYTES * TILES_AHEAD

    def __init__(self, case: Case, space: Space, footprint_bytes: int) -> None:
        super().__init__(case, case.sms)
        tiles = footprint_bytes // SET_TILE_BYTES
        if not 0 < tiles * TILE_VECTORS < MOST_VECTORS:
            raise Skip(f"a set of {size(footprint_bytes)} is not one of 16 KiB to 32 GiB")
        # If no kernel asks for shared memory, the SM has its memory for its cache.
        self.cache_bytes = case.context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
        shared_bytes = tiles * SET_TILE_BYTES if space == "shared" else 0
        require_shared(shared_bytes, case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES)
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
        self._row, self._first = Parameters([(base, tiles * TILE_VECTORS, warm, 0, 0, self._out)]), 0
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS)
        self._submit = launch(case, function, shape, self._row, shared_bytes=shared_bytes)

    def _take(self, tiles: int) -> Duration:
        count, first = tiles * TILES_AHEAD, self._first
        self._row[3], self._row[4] = count, first
        stamps = self._stamps(self._submit)
        # The next launch begins half way between the ends of this one, where the L2 has long evicted the data.
        self._first = (first + self._warm + count + self._tiles // (2 * self.sms)) % self._tiles
        starts = (self._starts + first) % self._tiles
        if not np.array_equal(stamps["sum"], read_sums(self._prefix, starts, self._warm + count)):
            raise MeasurementError("the sum over all words read is not that of the set")
        return duration_of(stamps)


class SimulatedLevel(Scoped, Level):
    """Each tile passes DRAM, the SM's port to the L2, and its L1; the slowest limits the rate."""

    tile_bytes = 4096

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        super().__init__(machine)
        costs, memory = machine.costs, machine.costs.memory
        self.sms, self.cache_bytes = costs.sm_count, memory.l1_bytes
        if space == "shared":
            require_shared(footprint_bytes, memory.shared_bytes)
            self._first_cycles, bytes_per_clock = memory.shared_cycles, memory.shared_bytes_per_clock
        else:
            machine.room.hold(("level", footprint_bytes), footprint_bytes)
            self._first_cycles, bytes_per_clock = memory.l1_cycles, memory.l1_bytes_per_clock
            if footprint_bytes > memory.l1_bytes:
                bytes_per_clock = min(bytes_per_clock, memory.l2_bytes_per_clock)
            if footprint_bytes > memory.l2_bytes:
                dram_per_clock = memory.dram_bytes_per_s.read / costs.sm_count / costs.sm_clock_hz
                bytes_per_clock = min(bytes_per_clock, dram_per_clock)
        self._tile_cycles = self.tile_bytes / bytes_per_clock

    def _take(self, tiles: int) -> Duration:
        machine = self._open()
        taken_cycles = (self._first_cycles + tiles * self._tile_cycles) * machine.noise.device(1.0, self.sms)
        began_ns, ended_ns = machine.run(Item(duration_ns=machine.costs.cycles_ns(float(taken_cycles.max()))))
        machine.require_arrival("the sum over all words read is not that of the set")
        return Duration(machine.globaltimer_s(began_ns, ended_ns), round(float(np.median(taken_cycles))))


class WrittenSet(StampedLevel):
    """A set in device memory with one block of 1024 threads on each SM. ``write`` overwrites it; ``update`` reads and
    writes every word, and both count.

    No cache counts: writes go through the SM's own cache to the L2, and updates read past it.
    """

    def __init__(self, case: Case, access: WriteAccess, footprint_bytes: int) -> None:
        super().__init__(case, case.sms)
        self._access = access
        self._tiles = footprint_bytes // SET_TILE_BYTES
        if not TILES_AHEAD * self.sms <= self._tiles <= MOST_VECTORS // TILE_VECTORS:
            raise Skip(f"a set of {size(footprint_bytes)} is not one of 64 KiB for each SM to 32 GiB")
        # An update moves each byte twice.
        self.tile_bytes = SET_TILE_BYTES * TILES_AHEAD * (2 if access == "update" else 1)
        self._base = case.device_memory(self._tiles * SET_TILE_BYTES)
        self._patterns = Patterns(case)
        self._seed = 0
        self._first_wrong = case.device_memory(8)

    def _take(self, tiles: int) -> Duration:
        self._seed += 1
        self._patterns.fill(self._base, self._tiles * SET_TILE_BYTES, self._seed)
        arguments = (self._base, self._tiles, tiles * TILES_AHEAD, self._seed)
        function = self._case.function("memory_levels", f"{self._access}_set")
        allow_shared_memory(function, 0, carve_out=0)
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS)
        stamps = self._stamps(launch(self._case, function, shape, Parameters([(*arguments, self._out)])))
        self._case.upload(self._first_wrong, np.array([NOTHING_WRONG], dtype=np.uint64))
        compare = self._case.function("memory_levels", "differ_written")
        row = (*arguments, int(self._access == "update"), self._first_wrong)
        run(self._case, compare, self.sms, BLOCK_THREADS, row)
        wrong = int(self._case.read(self._first_wrong, 1, np.uint64)[0])
        if wrong != NOTHING_WRONG:
            raise MeasurementError(f"word {wrong} of the set is not what should have been written")
        return duration_of(stamps)


class SimulatedWrites(SimulatedLevel):
    """Every write goes to the L2; an update also reads from there."""

    def __init__(self, machine: Machine, access: WriteAccess, footprint_bytes: int) -> None:
        super().__init__(machine, "global", footprint_bytes)
        costs, memory = machine.costs, machine.costs.memory
        if footprint_bytes < self.tile_bytes * costs.sm_count:
            raise Skip(f"{size(footprint_bytes)} have no {self.tile_bytes} B for each SM")
        bytes_per_clock, rate = memory.l2_written_per_clock, memory.dram_bytes_per_s.write
        if access == "update":
            bytes_per_clock = 2 / (1 / memory.l2_bytes_per_clock + 1 / memory.l2_written_per_clock)
            rate = memory.dram_bytes_per_s.mixed
        if footprint_bytes > memory.l2_bytes:
            bytes_per_clock = min(bytes_per_clock, rate / costs.sm_count / costs.sm_clock_hz)
        self._tile_cycles = self.tile_bytes / bytes_per_clock


read_set = experiment(ReadSet, SimulatedLevel)
written_set = experiment(WrittenSet, SimulatedWrites)


def answering_level(gpu: Gpu, touched_bytes: int) -> str | None:
    """The bound of repeated passes over a set of that many bytes: "dram", "l2", or None in between.

    If the size of the L2 is unknown, only sets larger than any L2 are "dram".
    """
    l2_bytes = gpu.info.l2_bytes
    if touched_bytes >= (BEYOND_L2 * l2_bytes if l2_bytes else LARGER_THAN_ANY_L2_BYTES):
        return "dram"
    return "l2" if l2_bytes and touched_bytes <= WITHIN_L2 * l2_bytes else None


def level_rate(
    meter: Meter, level: Level, footprint_bytes: int, bound: str | None, checked: str = READ_CHECK
) -> Iterator[Measurement]:
    """Metrics ``bandwidth`` of all SMs and ``per_clock`` of one SM, from the same launches.

    A launch takes about SAMPLE_S, and all SMs together move as much as the working set has at least.
    """

    def whole_tiles(size_bytes: float) -> int:
        return -(-round(size_bytes) // level.tile_bytes) * level.tile_bytes

    least = whole_tiles(max(footprint_bytes / level.sms, FIRST_BYTES))
    level.take(least)
    grown = least * SAMPLE_S / max(level.take(least).seconds, 1e-9)
    bytes_per_sm = whole_tiles(max(grown, least))

    def take() -> Sample:
        taken = level.take(bytes_per_sm)
        return {"bandwidth": taken.seconds, "per_clock": taken.cycles}

    both = meter.collect_each(("bandwidth", "per_clock"), take, clock="device")
    bandwidth, per_clock = verified(both, checked)
    yield msgspec.structs.replace(bandwidth, work=Work(bytes=bytes_per_sm * level.sms), bound=bound)
    clock_bound = f"{bound}_per_clock" if bound in ON_CHIP else None
    yield msgspec.structs.replace(per_clock, work=Work(bytes=bytes_per_sm), bound=clock_bound)

"""Dependent reads by one thread, in device or shared memory, alone or while all other SMs read at a given rate."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.model import Measurement
from microbench.core.units import size
from microbench.experiments.memory import levels
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.cuda.timing import NANOSECOND_S, STAMPS
from microbench.gpu.experiment import Case, IntArray, Launch, Machine, MeasurementError, Scoped, Skip, experiment
from microbench.gpu.fake.transfers import evenly
from microbench.gpu.protocol.gpu import FloatArray
from microbench.meter.sampling import Sample, per_call_distribution
from microbench.meter.timer import Meter
from microbench.meter.transfers import verified

READS = 4000
# A walk takes at least this long, because it is also timed by %globaltimer.
WALK_S = 2e-4
LONGEST_STEP_S = 1e-6
SINGLE_READS = 2000
# Longer chains (beyond 64 MiB) fit no cache and would take long to walk, so only a part of them is warmed up.
MOST_WARMED = 1 << 19
LINE_BYTES = 128
WORD_BYTES = 8
MOST_LINES = 1 << 21
SEED = 20261121
Offsets = npt.NDArray[np.uint64]


def line_count(footprint_bytes: int) -> int:
    """How many lines of a set a walk visits. Raises Skip for a set of fewer than two."""
    lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
    if lines < 2:
        raise Skip(f"{footprint_bytes} B hold no two lines of {LINE_BYTES} B")
    return lines


def ring(footprint_bytes: int) -> Offsets:
    """Offsets of lines in the order of the walk, shape (lines,): one line at a random place of each equal
    piece."""
    lines = line_count(footprint_bytes)
    random = np.random.default_rng(SEED)
    all_lines = footprint_bytes // LINE_BYTES
    piece_lines = all_lines // lines
    places = np.arange(lines, dtype=np.uint64) * np.uint64(all_lines) // np.uint64(lines)
    if piece_lines > 1:  # lines at equal distances would share few channels and few sets of a cache
        places += random.integers(0, piece_lines, lines, dtype=np.uint64)
    order: Offsets = random.permutation(places * np.uint64(LINE_BYTES))
    return order


class LocalChase:
    """Dependent reads by one thread through a working set in random order, each line once before any line again.

    The set lies in device memory, read by way of the SM's own cache, or in its shared memory. At most MOST_LINES lines
    of a large set are visited; they are spread evenly over it.
    """

    lines: int

    def __init__(self, case: Case, space: levels.Space, footprint_bytes: int) -> None:
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
            levels.require_shared(footprint_bytes, case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
            self._shared_bytes = footprint_bytes
            successor = np.empty(self.lines, dtype=np.uint32)
            lines = (self._offsets // LINE_BYTES).astype(np.uint32)
            successor[lines] = np.roll(lines, -1)
            self._extra = (case.array(successor), self.lines)
        else:
            self._base = case.device_memory(footprint_bytes)
            offsets = case.array(self._offsets)
            run(case, case.function("memory_levels", "link_lines"), 256, 256, (self._base, offsets, self.lines))
        self._go_to(0)

    def walk(self, reads: int) -> levels.Duration:
        """Walk on from where the last walk ended, and give the time from the first read to the last.

        Raises MeasurementError if the walk ends at the wrong line.
        """
        self._run(f"walk_{self._way}", self._warm, reads, self._out)
        elapsed_ns, cycles = self._case.read(self._out, 2, np.int64)
        return levels.Duration(int(elapsed_ns) * NANOSECOND_S, float(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        """Single reads, each stamped by the SM's clock: SM cycles including the stamp, shape (reads,)."""
        return self._stamped(f"walk_{self._way}_stamped", self._warm, reads)

    def lines_cycles(self, repeats: int) -> IntArray:
        """Latency of each line that one SM reads from the L2. The reads bypass its L1; the first round brings every
        line into the L2 and is not timed.

        SM cycles including the stamp, shape (repeats, lines). Raises Skip for shared memory.
        """
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


class SimulatedChase(Scoped, LocalChase):
    """The nearest level that holds all lines answers the reads."""

    def __init__(self, machine: Machine, space: levels.Space, footprint_bytes: int) -> None:
        super().__init__(machine)
        memory = machine.costs.memory
        self.lines = line_count(footprint_bytes)
        self._shared = space == "shared"
        if self._shared:
            levels.require_shared(footprint_bytes, memory.shared_bytes)
        else:
            machine.room.hold(("chase", footprint_bytes), footprint_bytes)
        self._shared_cycles = memory.shared_cycles
        near = evenly(memory.l2_near_share, 0, self.lines) > 0
        self._l2_cycles = np.where(near, memory.l2_near_cycles, memory.l2_far_cycles)
        self._beyond_reach = 1 - memory.translation_reach_bytes / footprint_bytes
        self._at = 0

    def walk(self, reads: int) -> levels.Duration:
        cycles = float(self._reads_cycles(reads).sum() * self._machine.noise.device(1.0, 1)[0])
        return levels.Duration(self._run_s(cycles), round(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        return self._stamped_cycles(self._reads_cycles(reads))

    def lines_cycles(self, repeats: int) -> IntArray:
        if self._shared:
            raise Skip("shared memory is not in the L2")
        return self._stamped_cycles(np.tile(self._l2_cycles, (repeats, 1)))

    def _stamped_cycles(self, reads_cycles: FloatArray) -> IntArray:
        noise = self._machine.noise.device(1.0, reads_cycles.size).reshape(reads_cycles.shape)
        cycles: FloatArray = (reads_cycles + self._machine.costs.memory.stamp_cycles) * noise
        self._run_s(float(cycles.sum()))
        return cycles.round().astype(np.int64)

    def _reads_cycles(self, count: int) -> FloatArray:
        memory, set_bytes = self._machine.costs.memory, self.lines * LINE_BYTES
        at = self._at
        self._at += count
        if self._shared or set_bytes <= memory.l1_bytes:
            return np.full(count, self._shared_cycles if self._shared else memory.l1_cycles)
        missed = evenly(self._beyond_reach, at, count) * memory.translation_miss_cycles
        if set_bytes > memory.l2_bytes:
            return memory.dram_cycles + missed
        lines_cycles: FloatArray = self._l2_cycles[(at + np.arange(count)) % self.lines] + missed
        return lines_cycles

    def _run_s(self, cycles: float) -> float:
        machine = self._open()
        return machine.walk(machine.costs.cycles_ns(cycles), self._at)


chase = experiment(LocalChase, SimulatedChase)


def chase_latency(meter: Meter, chase: LocalChase) -> Iterator[Measurement]:
    """Metrics ``latency`` (seconds, with percentiles of single reads) and ``cycles`` of one dependent read."""
    chase.walk(chase.lines if chase.lines <= MOST_WARMED else READS)
    reads = max(READS, round(READS * WALK_S / max(chase.walk(READS).seconds, LONGEST_STEP_S)))

    def take() -> Sample:
        walk = chase.walk(reads)
        return {"latency": walk.seconds, "cycles": walk.cycles}

    both = meter.collect_each(("latency", "cycles"), take, clock="device", calls=reads)
    walk, single = chase.walk(reads), chase.each_cycles(SINGLE_READS)
    # Stamping adds the same to every single read; the mean is that of a walk, which stamps only once.
    single_s = (single - single.mean() + walk.cycles / reads) * (walk.seconds / walk.cycles)
    latency, cycles = verified(both, "every walk ended at its line")
    yield msgspec.structs.replace(latency, per_call=per_call_distribution(single_s))
    yield cycles


LoadedLevel = Literal["l2", "dram"]

WARPS = levels.BLOCK_THREADS // 32
# A warp of walk_loaded in kernels/memory_levels.cu reads four vectors a lane at a time; a row has a batch of each warp.
BATCH_VECTORS = 4 * 32
BATCH_BYTES = BATCH_VECTORS * levels.VECTOR_BYTES
ROW_BYTES = WARPS * BATCH_BYTES
LOADS = np.dtype([("begin_ns", "u8"), ("end_ns", "u8"), ("batches", "u8"), ("sm", "u4"), ("sum", "u4")])
# Reads before timing, once all SMs are busy: queues fill meanwhile.
WARM_READS = 64
# Sets in DRAM exceed every L2. Both sets of the L2 take 7/16 of it, or more where that is less than a row for each SM.
DRAM_LOAD_BYTES, DRAM_CHASE_BYTES = 1 << 30, 1 << 29
L2_LOAD_SHARE, L2_CHASE_SHARE, L2_MOST_SHARE = 3 / 8, 1 / 16, 3 / 4


class LoadedWalk(NamedTuple):
    """Duration of a walk of dependent reads, in s and in SM cycles, and what the other SMs read meanwhile, in bytes a
    second."""

    seconds: float
    cycles: float
    bytes_per_s: float


class LoadedChase(LocalChase):
    """Dependent reads of one level past the L1, by one thread on an SM of its own, while all other SMs read another set
    of ``load_bytes`` in the same level.

    It is one cooperative launch, whose blocks run at the same time: block 0 walks, the others read.
    """

    load_bytes: int

    def __init__(self, case: Case, level: LoadedLevel) -> None:
        load_bytes, chase_bytes = DRAM_LOAD_BYTES, DRAM_CHASE_BYTES
        if level == "l2":
            l2_bytes = case.context.attribute("L2_CACHE_SIZE")
            load_bytes, chase_bytes = int(l2_bytes * L2_LOAD_SHARE), int(l2_bytes * L2_CHASE_SHARE)
            if ROW_BYTES * (case.sms - 1) > l2_bytes * L2_MOST_SHARE:
                raise Skip(f"the L2 of {size(l2_bytes)} has no room for {size(ROW_BYTES)} of each SM")
        if case.sms < 2:
            raise Skip("a load needs a second SM")
        blocks = case.sms - 1
        rows = max(load_bytes // (ROW_BYTES * blocks), 1)
        super().__init__(case, "global", chase_bytes)
        if level == "l2":
            self.walk(self.lines)  # brings the ring into the L2
        self._readers, self._rows = blocks * WARPS, rows
        self.load_bytes = blocks * rows * ROW_BYTES
        self._set, sums = levels.fill_tiles(case, blocks * rows * WARPS, BATCH_VECTORS)
        # The sums of the first 0 ... n batches of each warp.
        self._prefix: levels.Words = np.zeros((blocks, rows + 1, WARPS), dtype=np.uint32)
        np.cumsum(sums.reshape(blocks, rows, WARPS), axis=1, dtype=np.uint32, out=self._prefix[:, 1:])
        self._walked = case.device_memory(STAMPS.itemsize)
        self._flags = case.device_memory(8)
        self._loads = case.device_memory(LOADS.itemsize * self._readers)

    def take(self, reads: int, bytes_per_s: float) -> LoadedWalk:
        """Continue the walk while the other SMs read ``bytes_per_s``: inf as fast as they can, 0 not at all.

        Raises MeasurementError if the walk ends at the wrong line, if the sum of what the others read is wrong, or if
        one of them did not read during the whole walk.
        """
        case, loaded = self._case, bytes_per_s > 0
        interval_ns = self._readers * BATCH_BYTES / bytes_per_s * 1e9 if loaded else 0.0
        case.clear(self._flags, 8)
        case.clear(self._loads, LOADS.itemsize * self._readers)
        interval = case.cycles(round(interval_ns))
        arguments = (self._place, WARM_READS, reads, self._walked, self._set, self._rows, interval)
        row = Parameters([(*arguments, self._flags, self._loads)])
        shape = Launch(grid_blocks=case.sms if loaded else 1, block_threads=levels.BLOCK_THREADS, kind="cooperative")
        launch(case, case.function("memory_levels", "walk_loaded"), shape, row)(1)
        case.synchronize()
        self._arrive(WARM_READS + reads)
        walked = case.read(self._walked, 1, STAMPS)[0]
        seconds = (int(walked["end_ns"]) - int(walked["begin_ns"])) * NANOSECOND_S
        if not loaded:
            return LoadedWalk(seconds, float(walked["cycles"]), 0.0)
        loads = case.read(self._loads, self._readers, LOADS).reshape(-1, WARPS)
        return LoadedWalk(seconds, float(walked["cycles"]), load_rate(loads, walked, self._prefix))


def load_rate(loads: npt.NDArray[Any], walked: np.void, prefix: levels.Words) -> float:
    """Bytes a second of all warps of a load, each by its own time; ``loads`` has the shape (blocks, WARPS).

    ``prefix`` has the sums of the first 0 ... n batches of each warp, shape (blocks, n + 1, WARPS). Raises
    MeasurementError if a warp did not read during the whole walk, if the sum of what it read is wrong, or if two blocks
    shared an SM.
    """
    if loads["begin_ns"].max() > walked["begin_ns"] or loads["end_ns"].min() < walked["end_ns"]:
        raise MeasurementError("the other SMs did not read during the whole walk")
    blocks = len(loads)
    if len({int(walked["sm"]), *loads["sm"].ravel().tolist()}) != blocks + 1:
        raise MeasurementError("two blocks shared an SM: is another process using this GPU?")
    rounds, rest = np.divmod(loads["batches"].astype(np.uint64), np.uint64(prefix.shape[1] - 1))
    block, warp = np.indices(loads.shape)
    sums = prefix[:, -1] * rounds + prefix[block, rest.astype(np.int64), warp]
    if not np.array_equal(loads["sum"], sums.astype(np.uint32)):
        raise MeasurementError("the sum over all words that the other SMs read is not that of their set")
    own_s = (loads["end_ns"] - loads["begin_ns"]) * NANOSECOND_S
    return float((loads["batches"] * BATCH_BYTES / own_s).sum())


class SimulatedLoadedChase(Scoped, LoadedChase):
    """The closer the level is to its limit, the longer a read waits, as in a queue with one server."""

    def __init__(self, machine: Machine, level: LoadedLevel) -> None:
        super().__init__(machine)
        costs, memory = machine.costs, machine.costs.memory
        near = memory.l2_near_share
        if level == "l2":
            self.load_bytes = memory.l2_bytes // 2
            self._cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
            self._limit = memory.l2_bytes_per_clock * costs.sm_clock_hz * (costs.sm_count - 1)
        else:
            self.load_bytes = DRAM_LOAD_BYTES
            self._cycles, self._limit = memory.dram_cycles, memory.dram_bytes_per_s.read
        machine.room.hold(("loaded", level), self.load_bytes)

    def take(self, reads: int, bytes_per_s: float) -> LoadedWalk:
        machine = self._open()
        memory = machine.costs.memory
        share = min(bytes_per_s / self._limit, memory.most_load)
        noise = machine.noise.device(1.0, 2)
        waiting = memory.queue_share * share / (1 - share)
        cycles = reads * self._cycles * (1 + waiting) * float(noise[0])
        seconds = machine.walk(machine.costs.cycles_ns(cycles), reads)
        return LoadedWalk(seconds, round(cycles), share * self._limit * float(noise[1]))


loaded_chase = experiment(LoadedChase, SimulatedLoadedChase)

"""Dependent reads by one thread: a ring of lines in device memory, or in an SM's shared memory."""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.model import Measurement
from microbench.experiments.memory.levels import Duration, Space, require_shared
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.cuda.timing import NANOSECOND_S
from microbench.gpu.experiment import Case, IntArray, Launch, Machine, MeasurementError, Scoped, Skip, experiment
from microbench.gpu.fake.device import FloatArray
from microbench.gpu.fake.transfers import evenly
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
            require_shared(footprint_bytes, case.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
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

    def walk(self, reads: int) -> Duration:
        """Walk on from where the last walk ended, and give the time from the first read to the last.

        Raises MeasurementError if the walk ends at the wrong line.
        """
        self._run(f"walk_{self._way}", self._warm, reads, self._out)
        elapsed_ns, cycles = self._case.read(self._out, 2, np.int64)
        return Duration(int(elapsed_ns) * NANOSECOND_S, float(cycles))

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

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        super().__init__(machine)
        memory = machine.costs.memory
        self.lines = line_count(footprint_bytes)
        self._shared = space == "shared"
        if self._shared:
            require_shared(footprint_bytes, memory.shared_bytes)
        else:
            machine.room.hold(("chase", footprint_bytes), footprint_bytes)
        self._shared_cycles = memory.shared_cycles
        near = evenly(memory.l2_near_share, 0, self.lines) > 0
        self._l2_cycles = np.where(near, memory.l2_near_cycles, memory.l2_far_cycles)
        self._beyond_reach = 1 - memory.translation_reach_bytes / footprint_bytes
        self._at = 0

    def walk(self, reads: int) -> Duration:
        cycles = float(self._reads_cycles(reads).sum() * self._machine.noise.device(1.0, 1)[0])
        return Duration(self._run_s(cycles), round(cycles))

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

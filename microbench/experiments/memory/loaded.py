"""Dependent reads by one thread while all other SMs read a set of their own, at a given rate."""

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.units import size
from microbench.experiments.memory.chase import LocalChase
from microbench.experiments.memory.levels import BLOCK_THREADS, VECTOR_BYTES, Words, fill_tiles
from microbench.gpu.cuda.timing import NANOSECOND_S, STAMPS
from microbench.gpu.experiment import Case, Launch, Machine, Parameters, Scoped, experiment, launch

LoadedLevel = Literal["l2", "dram"]

WARPS = BLOCK_THREADS // 32
# A warp of walk_loaded in kernels/memory_levels.cu reads four vectors a lane at a time; a row has a batch of each warp.
BATCH_VECTORS = 4 * 32
BATCH_BYTES = BATCH_VECTORS * VECTOR_BYTES
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
        self._set, sums = fill_tiles(case, blocks * rows * WARPS, BATCH_VECTORS)
        # The sums of the first 0 ... n batches of each warp.
        self._prefix: Words = np.zeros((blocks, rows + 1, WARPS), dtype=np.uint32)
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
        shape = Launch(grid_blocks=case.sms if loaded else 1, block_threads=BLOCK_THREADS, kind="cooperative")
        launch(case, case.function("memory_levels", "walk_loaded"), shape, row)(1)
        case.synchronize()
        self._arrive(WARM_READS + reads)
        walked = case.read(self._walked, 1, STAMPS)[0]
        seconds = (int(walked["end_ns"]) - int(walked["begin_ns"])) * NANOSECOND_S
        if not loaded:
            return LoadedWalk(seconds, float(walked["cycles"]), 0.0)
        loads = case.read(self._loads, self._readers, LOADS).reshape(-1, WARPS)
        return LoadedWalk(seconds, float(walked["cycles"]), load_rate(loads, walked, self._prefix))


def load_rate(loads: npt.NDArray[Any], walked: np.void, prefix: Words) -> float:
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

"""Working sets of which every SM writes its own part again and again; every word is compared after each launch."""

from __future__ import annotations

from typing import Literal

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.core.units import size
from microbench.experiments.memory.levels import (
    BLOCK_THREADS,
    MOST_VECTORS,
    SET_TILE_BYTES,
    TILE_VECTORS,
    TILES_AHEAD,
    Duration,
    SimulatedLevel,
    StampedLevel,
    duration_of,
)
from microbench.gpu.cuda.buffers import NOTHING_WRONG, Patterns
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.submit import Parameters, allow_shared_memory, launch, run
from microbench.gpu.cuda.timing import STAMPS
from microbench.gpu.experiment import experiment
from microbench.gpu.fake.machine import Machine

WriteAccess = Literal["write", "update"]


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
        self._out = case.device_memory(STAMPS.itemsize * self.sms)

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


written_set = experiment(WrittenSet, SimulatedWrites)

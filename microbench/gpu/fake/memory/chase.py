"""Dependent reads by one thread of the simulated GPU, through its caches and that of address translations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from microbench.errors import MeasurementError, Skip
from microbench.gpu.bound import IntArray
from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.links.chase import Translations
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.levels import busy, require_shared, stamped_s
from microbench.gpu.fake.memory.requests import cycles_ns, hit_share
from microbench.gpu.memory_api import Space, Walk

SEED = 20240302
LINE_BYTES = 128
MOST_LINES = 1 << 21
# Knuth's multiplicative hash spreads the lines over the parts of the L2.
HASH, HASH_RANGE = 2654435761, 1 << 32


class FakeLocalChase:
    """See LocalChase. Which reads a cache answers is drawn by chance, in the share of lines that come through."""

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        memory = machine.costs.memory
        if footprint_bytes < LINE_BYTES:
            raise Skip(f"{footprint_bytes} B hold no line of {LINE_BYTES} B to walk through")
        if space == "shared":
            require_shared(machine, footprint_bytes)
        self._machine = machine
        self._scope = machine.scope
        self._shared = space == "shared"
        self.lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
        self._random = np.random.default_rng(SEED)
        places = self._random.permutation(self.lines) * (footprint_bytes // self.lines // LINE_BYTES)
        self._pages = places * LINE_BYTES // memory.translation_page_bytes
        self._l2_cycles = np.where(_near(places, memory.l2_near_share), memory.l2_near_cycles, memory.l2_far_cycles)
        self._l1_hits = hit_share(self.lines * LINE_BYTES, memory.l1_bytes)
        self._l2_hits = hit_share(self.lines * LINE_BYTES, memory.l2_bytes)
        self._translations = Translations(memory.translation_entries)
        self._at = 0

    def walk(self, reads: int) -> Walk:
        """See LocalChase."""
        cycles = float(self._reads_cycles(reads).sum() * self._machine.noise.device(1.0, 1)[0])
        duration_ns = cycles_ns(self._machine.costs, cycles)
        return Walk(stamped_s(self._machine, self._run(cycles), duration_ns), round(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        """See LocalChase."""
        stamp_cycles = self._machine.costs.memory.stamp_cycles
        cycles = (self._reads_cycles(reads) + stamp_cycles) * self._machine.noise.device(1.0, reads)
        self._run(float(cycles.sum()))
        return cycles.round().astype(np.int64)

    def lines_cycles(self, repeats: int) -> IntArray:
        """See LocalChase."""
        if self._shared:
            raise Skip("shared memory lies in no part of the L2")
        noise = self._machine.noise.device(1.0, self.lines * repeats).reshape(repeats, self.lines)
        cycles = (self._l2_cycles + self._machine.costs.memory.stamp_cycles) * noise
        self._run(float(cycles.sum()))
        return np.round(cycles).astype(np.int64)

    def _reads_cycles(self, count: int) -> FloatArray:
        memory = self._machine.costs.memory
        if self._shared:
            return np.full(count, memory.shared_cycles)
        lines = (self._at + np.arange(count)) % self.lines
        self._at = (self._at + count) % self.lines
        beyond_l1 = self._random.random(count) >= self._l1_hits
        beyond_l2 = self._random.random(count) >= self._l2_hits
        cycles = np.where(beyond_l2, memory.dram_cycles, self._l2_cycles[lines])
        if beyond_l1.any():
            missed = self._translations.misses(self._pages[lines[beyond_l1]])
            cycles[beyond_l1] += memory.translation_miss_cycles * missed
        found: FloatArray = np.where(beyond_l1, cycles, memory.l1_cycles)
        return found

    def _run(self, cycles: float) -> float:
        """Let one thread be at it for so long; when it began. Addresses that never came lead nowhere."""
        machine = self._machine
        machine.check(self._scope)
        began_ns = busy(machine, cycles_ns(machine.costs, cycles))
        if machine.costs.links.arrives != "right":
            raise MeasurementError(f"SIMULATED: the walk ended at no line where line {self._at} should be")
        return began_ns


def _near(places: IntArray, share: float) -> npt.NDArray[np.bool_]:
    """Which lines lie in the near part of the L2."""
    near: npt.NDArray[np.bool_] = places * HASH % HASH_RANGE < share * HASH_RANGE
    return near

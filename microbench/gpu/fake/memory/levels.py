"""Reads of one working set by all simulated SMs: each tile comes from the nearest level that has it."""

from __future__ import annotations

import numpy as np

from microbench.errors import MeasurementError, Skip
from microbench.gpu.fake.calls import Call
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.requests import cycles_ns, hit_share
from microbench.gpu.fake.stream import Item, max_plus
from microbench.gpu.memory_api import Pass, Space
from microbench.units import size

TILE_BYTES = 4096
SEED = 20240301


def require_shared(machine: Machine, footprint_bytes: int) -> None:
    """Raise Skip for more than the shared memory of an SM."""
    shared_bytes = machine.costs.memory.shared_bytes
    if footprint_bytes > shared_bytes:
        raise Skip(f"{size(footprint_bytes)} of shared memory asked, an SM has {size(shared_bytes)}")


def busy(machine: Machine, duration_ns: float) -> float:
    """Keep stream 0 busy for so long, and wait; when that began, in ns."""
    batch = machine.make(Call(machine.costs.submit_ns, Item(duration_ns=duration_ns)), 1).batches[0]
    machine.synchronize(0)
    assert batch.starts_ns is not None, "a synchronised stream has nothing to come"
    return float(batch.starts_ns[0])


def stamped_s(machine: Machine, began_ns: float, duration_ns: float) -> float:
    """How long something took by %globaltimer, which moves in steps."""
    begin, end = machine.globaltimer_ns(np.array([began_ns, began_ns + duration_ns]))
    return float(end - begin) * 1e-9


class FakeLevel:
    """See Level."""

    tile_bytes = TILE_BYTES

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        memory = machine.costs.memory
        self.sms = machine.costs.sm_count
        self.cache_bytes = memory.l1_bytes
        self._machine = machine
        self._scope = machine.scope
        self._shared = space == "shared"
        if self._shared:
            require_shared(machine, footprint_bytes)
        self._l1_hits = hit_share(footprint_bytes, memory.l1_bytes)
        self._l2_hits = hit_share(footprint_bytes, memory.l2_bytes)
        self._random = np.random.default_rng(SEED)

    def take(self, bytes_per_sm: int) -> Pass:
        """See Level."""
        machine = self._machine
        machine.check(self._scope)
        taken_ns = self._play_ns(bytes_per_sm // TILE_BYTES) * machine.noise.device(1.0, self.sms)
        longest_ns = float(taken_ns.max())
        began_ns = busy(machine, longest_ns)
        if machine.costs.links.arrives != "right":
            raise MeasurementError("SIMULATED: the sum over all words read is not that of the set")
        cycles = float(np.median(taken_ns)) * machine.costs.sm_clock_hz * 1e-9
        return Pass(stamped_s(machine, began_ns, longest_ns), round(cycles))

    def _play_ns(self, tiles: int) -> float:
        """Tile after tile through DRAM, the SM's port to the L2, and its L1: each waits for its turn at each."""
        costs, memory = self._machine.costs, self._machine.costs.memory
        if self._shared:
            return cycles_ns(costs, memory.shared_cycles + tiles * TILE_BYTES / memory.shared_bytes_per_clock)
        beyond_l1 = self._random.random(tiles) >= self._l1_hits
        beyond_l2 = beyond_l1 & (self._random.random(tiles) >= self._l2_hits)
        dram_ns = TILE_BYTES * costs.sm_count / memory.dram_bytes_per_s.read * 1e9
        port_ns = cycles_ns(costs, TILE_BYTES / memory.l2_bytes_per_clock)
        l1_ns = cycles_ns(costs, TILE_BYTES / memory.l1_bytes_per_clock)
        ends_ns = max_plus(np.full(tiles, cycles_ns(costs, memory.l1_cycles)), np.where(beyond_l2, dram_ns, 0.0))
        ends_ns = max_plus(ends_ns, np.where(beyond_l1, port_ns, 0.0))
        ends_ns = max_plus(ends_ns, np.full(tiles, l1_ns))
        return float(ends_ns[-1])

"""Words that lie apart, words in random order, and atomic additions on the simulated GPU."""

from __future__ import annotations

import numpy as np

from microbench.errors import Skip
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.links.copies import FakeTransfer
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.moving import FakeOperations, operations, transfer
from microbench.gpu.fake.memory.requests import WARP_THREADS, answered_ns, cycles_ns, hit_share, request
from microbench.gpu.memory_api import AtomicType, RandomAccess, Space, Spread, StrideAccess

WORD_BYTES = 4
STRIDED_UNDER_WAY = 64 * 4  # requests of an SM's warps, four each
RANDOM_WORD_BYTES = 8
RANDOM_UNDER_WAY = 64 * WARP_THREADS * 8  # words: the SM's threads, eight each
SAMPLE_WORDS = 1024
ATOMIC_WARPS_PER_SM = 64
ATOMIC_ADDS = 512  # of each thread in a launch


def strided(machine: Machine, access: StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
    """See DeviceMemory. What is moved are the sectors, and in DRAM the fetches, in which a word lies."""
    costs, memory = machine.costs, machine.costs.memory
    words = size_bytes // stride_bytes
    if not words:
        raise Skip(f"{size_bytes} B hold no word and what lies between it and the next: {stride_bytes} B")
    l2_bytes, dram_bytes = (
        _touched_bytes(stride_bytes, least) * WARP_THREADS for least in (memory.sector_bytes, memory.dram_fetch_bytes)
    )
    rates = memory.dram_bytes_per_s
    requests = -(-words // (WARP_THREADS * costs.sm_count))
    hits = hit_share(words / WARP_THREADS * l2_bytes, memory.l2_bytes)
    one = request(costs, hits, l2_bytes, dram_bytes, rates.read if access == "read" else rates.write)
    return transfer(machine, answered_ns(one, requests, STRIDED_UNDER_WAY), WORD_BYTES * words)


def _touched_bytes(stride_bytes: int, least_bytes: int) -> float:
    """Bytes moved for a word, if no less than ``least_bytes`` are moved at once: by a count over many words."""
    pieces = np.arange(SAMPLE_WORDS, dtype=np.int64) * stride_bytes // least_bytes
    return len(np.unique(pieces)) * least_bytes / SAMPLE_WORDS


def scattered(machine: Machine, access: RandomAccess, footprint_bytes: int) -> FakeOperations:
    """See DeviceMemory. In random order the L2 has what part of the set fits; updates are read and written back."""
    costs, memory = machine.costs, machine.costs.memory
    words = footprint_bytes // RANDOM_WORD_BYTES
    if words < 1 or words & (words - 1) or footprint_bytes % RANDOM_WORD_BYTES:
        raise Skip(f"{footprint_bytes} B are not a power of two of 8-byte words")
    hits = min(memory.l2_bytes / footprint_bytes, 1.0)
    rates, times = memory.dram_bytes_per_s, 2 if access == "update" else 1
    rate = {"gather": rates.read, "scatter": rates.write, "update": rates.mixed}[access]
    one = request(costs, hits, times * memory.sector_bytes, times * memory.dram_fetch_bytes, rate)
    busy_ns = answered_ns(one, -(-words // costs.sm_count), RANDOM_UNDER_WAY)
    return operations(machine, busy_ns, words, words * times * memory.sector_bytes)


def atomics(machine: Machine, space: Space, dtype: AtomicType, spread: Spread) -> FakeOperations:
    """See DeviceMemory."""
    costs = machine.costs
    warps = costs.sm_count * ATOMIC_WARPS_PER_SM
    busy_ns = _shared_ns(costs, dtype, spread) if space == "shared" else _global_ns(costs, dtype, spread, warps)
    count = warps * WARP_THREADS * ATOMIC_ADDS
    return operations(machine, busy_ns, count, 0.0)


def _global_ns(costs: FakeCosts, dtype: AtomicType, spread: Spread, warps: int) -> float:
    """Until the unit with the most additions is done: those of a sector go as one, those of a word as merged."""
    memory = costs.memory
    numbers = np.arange(warps, dtype=np.int64)
    if spread == "thread":
        sectors = WORD_BYTES * WARP_THREADS // memory.sector_bytes
        words = (numbers[:, None] * sectors + np.arange(sectors)).ravel()
        additions = 1.0
    else:
        words = numbers if spread == "warp" else np.zeros(warps, dtype=np.int64)
        additions = WARP_THREADS / memory.merged_threads[dtype]
    queues = np.bincount(words % memory.atomic_units, minlength=memory.atomic_units) * additions
    return cycles_ns(costs, float(queues.max()) * ATOMIC_ADDS * memory.atomic_cycles)


def _shared_ns(costs: FakeCosts, dtype: AtomicType, spread: Spread) -> float:
    """Until an SM's warps are done: threads that meet at a word go one after the other, or as merged."""
    memory = costs.memory
    turns = 1.0 if spread == "thread" else WARP_THREADS / memory.shared_merged_threads[dtype]
    return cycles_ns(costs, ATOMIC_WARPS_PER_SM * ATOMIC_ADDS * turns * memory.shared_atomic_cycles)

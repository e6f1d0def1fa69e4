"""Requests of the simulated SMs: who answers them, how long that takes, and how many may be under way."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.stream import max_plus

WARP_THREADS = 32
WARP_BYTES = 512  # 32 threads, 16 bytes each
ROUNDS_OF_HITS = 200
SAME = 1e-9


class Request(NamedTuple):
    """One request of an SM: how long it is under way when nobody waits, and for how long it keeps the way busy."""

    latency_ns: float
    service_ns: float


def cycles_ns(costs: FakeCosts, cycles: float) -> float:
    """So many cycles of an SM."""
    return cycles / costs.sm_clock_hz * 1e9


def hit_share(footprint_bytes: float, cache_bytes: float) -> float:
    """The share of accesses that a cache answers, to a set that is gone through again and again.

    Each miss displaces a line by chance: one comes through a round of F (1 - h) misses into C lines with the chance
    exp(-F (1 - h) / C), which is h again. A set that fits is all there.
    """
    if footprint_bytes <= cache_bytes:
        return 1.0
    share = 0.0
    for _ in range(ROUNDS_OF_HITS):
        share = math.exp(-footprint_bytes * (1 - share) / cache_bytes)
    return share


def request(costs: FakeCosts, hits: float, l2_bytes: float, dram_bytes: float, dram_bytes_per_s: float) -> Request:
    """What an SM's request for so much of the L2 is like, ``hits`` of all being answered there.

    The rest comes from DRAM, in pieces that together are ``dram_bytes``; each SM has its share of DRAM.
    """
    memory = costs.memory
    port_ns = cycles_ns(costs, l2_bytes / memory.l2_bytes_per_clock)
    dram_ns = (1 - hits) * dram_bytes * costs.sm_count / dram_bytes_per_s * 1e9
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    latency_cycles = hits * l2_cycles + (1 - hits) * memory.dram_cycles
    return Request(cycles_ns(costs, latency_cycles), max(port_ns, dram_ns))


def answered_ns(one: Request, requests: int, under_way: int) -> float:
    """When the last of an SM's requests is answered, if so many may be under way at once.

    Each is asked for when the one that had its place before is there, and waits for its turn on the way. From some
    round on every place takes as long as in the round before; then the rest is as many rounds of that.
    """
    places = min(max(under_way, 1), requests)
    ends_ns = max_plus(np.full(places, one.latency_ns), np.full(places, one.service_ns))
    rounds, rest = divmod(requests, places)
    for played in range(1, rounds):
        after_ns = _next_round(ends_ns, one)
        period_ns = after_ns - ends_ns
        if np.ptp(period_ns) <= SAME * period_ns[0]:
            ends_ns = ends_ns + period_ns * (rounds - played)
            break
        ends_ns = after_ns
    if rest:
        ends_ns = _next_round(ends_ns, one)[:rest]
    return float(ends_ns[-1])


def _next_round(ends_ns: FloatArray, one: Request) -> FloatArray:
    floors_ns = ends_ns + one.latency_ns
    floors_ns[0] = max(floors_ns[0], ends_ns[-1])
    return max_plus(floors_ns, np.full(len(ends_ns), one.service_ns))

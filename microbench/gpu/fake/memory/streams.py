"""Streaming kernels on the simulated GPU, in every shape, and reads by so many threads an SM."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.errors import Skip
from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.links.copies import FakeTransfer
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.moving import transfer
from microbench.gpu.fake.memory.requests import WARP_BYTES, answered_ns, hit_share, request
from microbench.gpu.fake.memory_costs import ShapeCosts
from microbench.gpu.memory_api import (
    ELEMENT_BYTES,
    READ_ARRAYS,
    WRITTEN_ARRAYS,
    DataType,
    Implementation,
    StreamKernel,
)

LOAD_BYTES = 16
LOADS = (1, 2, 4, 8)


def shapes(costs: FakeCosts, implementation: Implementation) -> Sequence[str]:
    """See DeviceMemory. Raises Skip for a library that the simulated machine does not have."""
    memory = costs.memory
    if implementation == "cuda":
        return [name for name, shape in memory.shapes.items() if shape.compute_capability <= costs.compute_capability]
    if implementation not in memory.libraries:
        raise Skip(f"the simulated machine has no {implementation}")
    return [implementation]


def stream(
    machine: Machine, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
) -> FakeTransfer:
    """See DeviceMemory."""
    costs, element_bytes = machine.costs, ELEMENT_BYTES[dtype]
    if shape not in shapes(costs, implementation):
        raise Skip(f"the simulated GPU has no shape {shape} of {implementation}")
    if size_bytes < element_bytes:
        raise Skip(f"{size_bytes} B hold no element of {dtype}")
    moved_bytes = size_bytes // element_bytes * element_bytes * (READ_ARRAYS[kernel] + WRITTEN_ARRAYS[kernel])
    if implementation == "cuda":
        return transfer(machine, _busy_ns(costs, kernel, costs.memory.shapes[shape], moved_bytes), moved_bytes)
    library = costs.memory.libraries[implementation]
    return transfer(machine, _busy_ns(costs, kernel, library.shape, moved_bytes), moved_bytes, library.submit_ns)


def occupied(machine: Machine, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> FakeTransfer:
    """See DeviceMemory."""
    costs = machine.costs
    if blocks_per_sm > costs.blocks_per_sm or blocks_per_sm * block_threads > costs.threads_per_sm:
        raise Skip(f"a simulated SM does not hold {blocks_per_sm} blocks of {block_threads} threads")
    if loads not in LOADS:
        raise Skip(f"the simulated kernel has 1, 2, 4 or 8 loads under way, not {loads}")
    under_way_bytes = blocks_per_sm * block_threads * loads * LOAD_BYTES
    rate = costs.memory.dram_bytes_per_s.read
    return transfer(machine, _through_ns(costs, size_bytes, under_way_bytes, rate), size_bytes)


def _busy_ns(costs: FakeCosts, kernel: StreamKernel, shape: ShapeCosts, moved_bytes: int) -> float:
    rate = costs.memory.dram_bytes_per_s.of(kernel) * shape.share.of(kernel)
    return _through_ns(costs, moved_bytes, shape.under_way_bytes, rate)


def _through_ns(costs: FakeCosts, moved_bytes: int, under_way_bytes: int, dram_bytes_per_s: float) -> float:
    """All SMs go through so many bytes together, each with so many under way."""
    hits = hit_share(moved_bytes, costs.memory.l2_bytes)
    one = request(costs, hits, WARP_BYTES, WARP_BYTES, dram_bytes_per_s)
    requests = -(-moved_bytes // (WARP_BYTES * costs.sm_count))
    return answered_ns(one, requests, under_way_bytes // WARP_BYTES)

"""Kernels and copies within the simulated device memory: a call that takes as long and moves as much as it is told."""

from __future__ import annotations

from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import Call, call_of
from microbench.gpu.fake.links.copies import FakeTransfer, MovingSubmit
from microbench.gpu.fake.links.ends import Ends
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item
from microbench.ops import Launch

BLOCK_THREADS = 256


class FakeOperations:
    """See Operations."""

    def __init__(self, submit: Submit, ends: Ends, operations: int) -> None:
        self.submit = submit
        self.operations = operations
        self.fresh = ends.fresh
        self.check = ends.check


def kernel(machine: Machine, ends: Ends, busy_ns: float, moved_bytes: float, submit_ns: float | None = None) -> Submit:
    """A launch whose blocks are at work for so long, beyond what an empty kernel takes."""
    costs = machine.costs
    host_ns = call_of(Launch(grid_blocks=costs.sm_count, block_threads=BLOCK_THREADS), costs, {}).host_ns
    item = Item(
        gap_ns=costs.gap_stream_ns,
        duration_ns=costs.empty_kernel_ns + busy_ns,
        traffic=costs.traffic["launch"],
        energy_j=moved_bytes * costs.memory.joules_per_byte,
    )
    return MovingSubmit(machine, Call(host_ns if submit_ns is None else submit_ns, item), ends)


def transfer(machine: Machine, busy_ns: float, size_bytes: int, submit_ns: float | None = None) -> FakeTransfer:
    """A kernel that is counted in bytes."""
    ends = Ends(machine.costs, size_bytes)
    return FakeTransfer(kernel(machine, ends, busy_ns, size_bytes, submit_ns), ends)


def operations(machine: Machine, busy_ns: float, count: int, moved_bytes: float) -> FakeOperations:
    """A kernel that is counted in operations."""
    ends = Ends(machine.costs, count)
    return FakeOperations(kernel(machine, ends, busy_ns, moved_bytes), ends, count)

"""The simulated driver's own copies within device memory, and what blocks of memory cost the host."""

from __future__ import annotations

import msgspec
import numpy as np

from microbench.gpu.bound import IntArray
from microbench.gpu.fake.calls import Call, call_of
from microbench.gpu.fake.links.copies import FakeTransfer, MovingSubmit
from microbench.gpu.fake.links.ends import Ends, require_host_memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.memory.room import Room
from microbench.gpu.fake.stream import Item
from microbench.gpu.memory_api import Allocation, AllocationWay, EngineWay
from microbench.ops import Memset


def engine(machine: Machine, way: EngineWay, size_bytes: int) -> FakeTransfer:
    """See DeviceMemory."""
    costs, joules_per_byte = machine.costs, machine.costs.memory.joules_per_byte
    moved_bytes = size_bytes if way == "memset" else 2 * size_bytes
    if way == "memset":
        call = call_of(Memset(size_bytes), costs, {})
        assert call.item is not None, "a memset goes into a stream"
        call = msgspec.structs.replace(
            call, item=msgspec.structs.replace(call.item, energy_j=moved_bytes * joules_per_byte)
        )
    else:
        own = costs.memory.engines[way]
        duration_ns = own.fixed_ns + moved_bytes / own.bytes_per_s * 1e9
        energy_j = moved_bytes * joules_per_byte
        call = Call(own.submit_ns, Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, energy_j=energy_j))
    ends = Ends(costs, moved_bytes)
    return FakeTransfer(MovingSubmit(machine, call, ends), ends)


def allocating(machine: Machine, room: Room, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """See DeviceMemory. A pool is empty at first, and keeps the block that is given back to it."""
    if way == "host_pinned":
        require_host_memory(machine.costs, "pinned", size_bytes)
    else:
        room.require(size_bytes)
    own, clock, noise = machine.costs.memory.blocks[way], machine.clock, machine.noise
    steps, kept = -(-size_bytes // machine.costs.memory.block_step_bytes), False
    out_ns: IntArray = np.zeros((count, len(Allocation)), dtype=np.int64)
    for row in out_ns:
        looked_up_ns = own.look_up_ns or 0.0
        row[Allocation.BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(looked_up_ns if kept else looked_up_ns + own.have.at(steps)))
        row[Allocation.ALLOCATED] = clock.now_ns()
        kept = own.look_up_ns is not None
        row[Allocation.FREE_BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(own.put_back_ns if kept else own.release.at(steps)))
        row[Allocation.FREED] = clock.now_ns()
    return out_ns

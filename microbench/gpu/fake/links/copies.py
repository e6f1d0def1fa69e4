"""One simulated copy by a copy engine, of pinned or of pageable memory, and one by a kernel."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from microbench.errors import Skip
from microbench.gpu.bound import Submit
from microbench.gpu.fake.calls import Call, call_of
from microbench.gpu.fake.costs import FakeCosts, Traffic
from microbench.gpu.fake.links.ends import Ends, require_host_memory
from microbench.gpu.fake.machine import Machine, Made
from microbench.gpu.fake.program import FakeProgram
from microbench.gpu.fake.stream import Item, max_plus
from microbench.gpu.fake.submit import FakeSubmit
from microbench.gpu.link_api import Access, Direction, HostMemory
from microbench.ops import Copy, Launch

WARP_THREADS = 32


class MovingSubmit(FakeSubmit):
    """A call that moves data each time that it is made."""

    def __init__(self, machine: Machine, call: Call, ends: Ends) -> None:
        super().__init__(machine, call)
        self._ends = ends

    def make(self, count: int, extra_ns: float = 0.0) -> Made:
        """See FakeSubmit."""
        made = super().make(count, extra_ns)
        self._ends.move()
        return made


class FakeTransfer:
    """See Transfer."""

    def __init__(self, submit: Submit, ends: Ends, *, blocks: bool = False) -> None:
        self.submit = submit
        self.size_bytes = ends.size_bytes
        self.blocks = blocks
        self.fresh = ends.fresh
        self.check = ends.check


def engine_copy(
    machine: Machine, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None
) -> FakeTransfer:
    """See Links.copy. A far node's memory comes no faster than the way between the processors carries it."""
    costs, nodes = machine.costs, machine.costs.links.numa_nodes
    if not 0 <= (node or 0) < nodes:
        raise Skip(f"this machine has {nodes} NUMA node{'s' if nodes > 1 else ''}")
    require_host_memory(costs, memory, size_bytes)
    most = costs.links.far_node_bytes_per_s if node else math.inf
    ends = Ends(costs, size_bytes)
    if memory == "pageable":
        staged = Staged(machine, direction, ends, most)
        return FakeTransfer(FakeProgram(machine, staged.copy, staged.queue_slots), ends, blocks=True)
    call = call_of(Copy(direction, size_bytes), costs, {})
    assert call.item is not None, "a copy goes into a stream"
    duration_ns = max(call.item.duration_ns, costs.copy_fixed_ns + size_bytes / most * 1e9)
    call = msgspec.structs.replace(call, item=msgspec.structs.replace(call.item, duration_ns=duration_ns))
    return FakeTransfer(MovingSubmit(machine, call, ends), ends)


class Staged:
    """A copy of pageable memory in stream 0: the host copies each piece, the engine the same piece before or after."""

    def __init__(self, machine: Machine, direction: Direction, ends: Ends, most_bytes_per_s: float) -> None:
        costs = machine.costs
        self._machine = machine
        self._ends = ends
        self._to_device = direction == "h2d"
        self._pieces = -(-ends.size_bytes // costs.links.staging_piece_bytes)
        piece_bytes = -(-ends.size_bytes // self._pieces)
        self._engine = call_of(Copy(direction, piece_bytes), costs, {})
        self._host_ns = piece_bytes / min(costs.links.staging_bytes_per_s, most_bytes_per_s) * 1e9
        self.queue_slots = max(costs.queue_slots // 2 // self._pieces, 1)

    def copy(self) -> None:
        """The call, until it returns."""
        if self._to_device:
            self._through_the_host_first()
        else:
            self._through_the_engine_first()
        self._ends.move()

    def _through_the_host_first(self) -> None:
        call = msgspec.structs.replace(self._engine, host_ns=self._engine.host_ns + self._host_ns)
        self._machine.make(call, self._pieces)
        if self._ends.size_bytes > self._machine.costs.links.early_return_bytes:
            self._machine.synchronize(0)

    def _through_the_engine_first(self) -> None:
        batches = self._machine.make(self._engine, self._pieces).batches
        self._machine.device.idle_ns(0)  # a shut gate times out: nobody is left to open it
        ended_ns = np.concatenate([batch.ends_ns for batch in batches if batch.ends_ns is not None])
        noticed_ns = ended_ns + self._machine.costs.completion_ns[self._machine.wait]
        copies_ns = self._machine.noise.host(self._host_ns, self._pieces)
        self._machine.clock.wait_until(float(max_plus(noticed_ns, copies_ns)[-1]))


def kernel_copy(machine: Machine, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> FakeTransfer:
    """See Links.kernel_copy. A warp's access makes one packet for each line that it touches."""
    costs = machine.costs
    if width_bytes not in costs.links.sm_bytes_per_s:
        raise Skip(f"the simulated kernels move 4, 8 or 16 bytes at a time, not {width_bytes}")
    require_host_memory(costs, "pinned", size_bytes)
    packets = size_bytes / costs.links.sm_packet_bytes * _lines_split(costs, width_bytes, offset_bytes)
    launch = call_of(Launch(grid_blocks=costs.sm_count, block_threads=512), costs, {})
    command = costs.traffic["launch"]
    if access == "read":
        wire_bytes = size_bytes + packets * costs.packet_header_h2d_bytes
        traffic = Traffic(command.received + wire_bytes, command.sent + packets * costs.read_request_bytes)
    else:
        wire_bytes = size_bytes + packets * costs.packet_header_d2h_bytes
        traffic = Traffic(command.received, command.sent + wire_bytes)
    busy_ns = max(wire_bytes / costs.link_bytes_per_s, size_bytes / costs.links.sm_bytes_per_s[width_bytes]) * 1e9
    item = Item(gap_ns=costs.gap_stream_ns, duration_ns=costs.empty_kernel_ns + busy_ns, traffic=traffic)
    ends = Ends(costs, size_bytes)
    return FakeTransfer(MovingSubmit(machine, Call(launch.host_ns, item), ends), ends)


def _lines_split(costs: FakeCosts, width_bytes: int, offset_bytes: int) -> float:
    """Lines that a warp's access touches, over those that it fills."""
    line_bytes, warp_bytes = costs.links.sm_packet_bytes, WARP_THREADS * width_bytes
    touched = -(-(offset_bytes % line_bytes + warp_bytes) // line_bytes)
    return touched * line_bytes / warp_bytes

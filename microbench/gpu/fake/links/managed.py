"""Managed memory of the simulated machine: pages that lie with the host, with the GPU, or (read mostly) with both."""

from __future__ import annotations

import msgspec

from microbench.errors import MeasurementError, Skip
from microbench.gpu.fake.calls import Call, call_of
from microbench.gpu.fake.costs import Traffic
from microbench.gpu.fake.links.ends import Ends, require_host_memory
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.stream import Item
from microbench.gpu.link_api import Direction, ManagedWay
from microbench.ops import Copy, Launch
from microbench.units import size

SHARE_OF_FREE = 4


class FakeManaged:
    """See Managed. Raises Skip without managed memory, or for more than a quarter of what is free on the device."""

    def __init__(self, machine: Machine, way: ManagedWay, size_bytes: int) -> None:
        if not machine.costs.links.managed_memory:
            raise Skip("this GPU has no concurrent managed access (SIMULATED)")
        free_bytes = machine.costs.memory.total_bytes
        if size_bytes > free_bytes // SHARE_OF_FREE:
            raise Skip(f"{size(size_bytes)} is over a quarter of the {size(free_bytes)} free on the device")
        require_host_memory(machine.costs, "managed", size_bytes)
        self._machine = machine
        self._scope = machine.scope
        self._way: ManagedWay = way
        self._size_bytes = size_bytes
        self._ends = Ends(machine.costs, size_bytes)
        self._on_device = False

    def take_ns(self) -> int:
        """See Managed."""
        machine = self._machine
        machine.check(self._scope)
        self._ends.fresh()
        starts_on_device = self._way == "again_on_device" or self._way.endswith("to_host")
        if self._on_device != starts_on_device:
            self._prefetch("h2d" if starts_on_device else "d2h")
        began_ns = machine.clock.now_ns()
        self._move()
        taken_ns = machine.clock.now_ns() - began_ns
        self._ends.move()
        return taken_ns

    def _move(self) -> None:
        if self._way == "prefetch_to_device":
            self._prefetch("h2d")
        elif self._way == "prefetch_to_host":
            self._prefetch("d2h")
        elif self._way == "fault_to_host":
            self._touch_on_host()
        else:
            self._read_on_device()

    def _prefetch(self, direction: Direction) -> None:
        self._machine.make(call_of(Copy(direction, self._size_bytes), self._machine.costs, {}), 1)
        self._machine.synchronize(0)
        self._on_device = direction == "h2d"

    def _read_on_device(self) -> None:
        """A kernel reads all: pages that are not there are fetched, a batch of faults at a time."""
        costs, links = self._machine.costs, self._machine.costs.links
        call = call_of(Launch(), costs, {})
        assert call.item is not None, "a launch goes into a stream"
        duration_ns = costs.empty_kernel_ns + self._size_bytes / links.device_read_bytes_per_s * 1e9
        traffic = call.item.traffic
        if not self._on_device:
            batch_ns = links.read_mostly_batch_ns if self._way == "read_mostly_to_device" else links.fault_batch_ns
            wire_bytes = costs.on_the_link_bytes("h2d", self._size_bytes)
            batches = -(-self._size_bytes // links.fault_batch_bytes)
            duration_ns += batches * batch_ns + wire_bytes / costs.link_bytes_per_s * 1e9
            requests_bytes = costs.read_requests_bytes(self._size_bytes)
            traffic = Traffic(traffic.received + wire_bytes, traffic.sent + requests_bytes)
        item = msgspec.structs.replace(call.item, duration_ns=duration_ns, traffic=traffic)
        self._machine.make(Call(call.host_ns, item), 1)
        self._machine.synchronize(0)
        self._on_device = True

    def _touch_on_host(self) -> None:
        """A host thread reads all: each fault fetches its piece, and the thread waits for it."""
        machine, costs, links = self._machine, self._machine.costs, self._machine.costs.links
        if not self._on_device:
            raise MeasurementError("SIMULATED: the pages lie with the host already")
        faults = -(-self._size_bytes // links.host_fault_bytes)
        wire_bytes = costs.on_the_link_bytes("d2h", self._size_bytes / faults)
        each_ns = links.host_fault_ns + wire_bytes / costs.link_bytes_per_s * 1e9
        machine.make(Call(each_ns, Item(traffic=Traffic(0.0, wire_bytes), queued=False)), faults)
        self._on_device = False

    def check(self) -> str:
        """See Transfer."""
        return self._ends.check()

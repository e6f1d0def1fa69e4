"""Movements that run at once on the simulated machine: both directions, two GPUs, all GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microbench.errors import Skip
from microbench.gpu.fake.clock import FloatArray
from microbench.gpu.fake.links.ends import CHECKED, Ends, require_host_memory
from microbench.gpu.fake.links.wires import Flow, Loads, between, from_gpu, of_direction, play, to_gpu, wires
from microbench.gpu.fake.machine import Machine
from microbench.gpu.fake.submit import FakeGate
from microbench.gpu.link_api import Direction, PeerWay

READS: tuple[PeerWay, ...] = ("engine_read", "sm_read", "engine_both_read")
BOTH: tuple[PeerWay, ...] = ("engine_both_read", "engine_both_write")


class Movements:
    """Movements of ``size_bytes`` on several ways at once, each way in a stream of its own with its own buffers.

    ``before_ns`` passes before each movement's first byte. Without ``gated`` they start as they are submitted.
    """

    def __init__(
        self, machine: Machine, ways: Sequence[Loads], size_bytes: int, before_ns: float, *, gated: bool = True
    ) -> None:
        self._machine = machine
        self._scope = machine.scope
        self._ways = ways
        self._ends = [Ends(machine.costs, size_bytes) for _ in ways]
        self._size_bytes = size_bytes
        self._before_ns = before_ns
        self._gated = gated

    def ends_ns(self, counts: Sequence[int]) -> list[FloatArray] | None:
        """That many movements on each way from a common start: when each ended, in ns since then; shapes (count,).

        None where the gate had opened by itself.
        """
        machine = self._machine
        machine.check(self._scope)
        gate = FakeGate(machine)
        if self._gated:
            gate.shut()
        began_ns = machine.clock.time_ns + machine.costs.launch_to_start_ns
        machine.clock.pass_ns(machine.noise.one(machine.costs.copy_h2d_submit_ns * sum(counts)))
        if self._gated:
            gate.open()
            began_ns = machine.device.idle_ns(0)
        found_ns = self._play(counts)
        machine.clock.wait_until(began_ns + max(float(ends_ns[-1]) for ends_ns in found_ns))
        machine.synchronize()
        for ends in self._ends:
            ends.move()
        return None if gate.was_late() else found_ns

    def _play(self, counts: Sequence[int]) -> list[FloatArray]:
        """What crosses GPU 0's link is counted as well."""
        device, noise = self._machine.device, self._machine.noise
        for loads, count in zip(self._ways, counts, strict=True):
            device.received_bytes += count * self._size_bytes * loads.get("down0", 0.0)
            device.sent_bytes += count * self._size_bytes * loads.get("up0", 0.0)
        flows = [
            Flow(self._size_bytes, loads, noise.device(self._before_ns, count))
            for loads, count in zip(self._ways, counts, strict=True)
        ]
        return play(flows, wires(self._machine.costs))

    def fresh(self) -> None:
        """See Transfer."""
        for ends in self._ends:
            ends.fresh()

    def check(self) -> str:
        """See Transfer."""
        for ends in self._ends:
            ends.check()
        return CHECKED


class FakeDuplex:
    """See Duplex. An event stands behind each copy."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", 2 * size_bytes)
        before_ns = costs.gap_stream_ns + costs.copy_fixed_ns + costs.gap_event_ns
        self._movements = Movements(machine, [to_gpu(costs, 0), from_gpu(costs, 0)], size_bytes, before_ns)
        self.fresh = self._movements.fresh
        self.check = self._movements.check

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        """See Duplex."""
        found_ns = self._movements.ends_ns((h2d, d2h))
        return None if found_ns is None else (found_ns[0] * 1e-9, found_ns[1] * 1e-9)


class FakePeer:
    """See Peer. Without peer access the data go up one GPU's link and down the other's, and no gate is used."""

    def __init__(self, machine: Machine, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        require_pair(machine, first, second, access=access)
        costs = machine.costs
        source, target = (second, first) if way in READS else (first, second)
        ways = [_from_to(machine, source, target, access=access)]
        if way in ("sm_read", "sm_write"):
            ways = [{**ways[0], f"sm{first}": 1.0}]
        if way in BOTH:
            ways.append(_from_to(machine, target, source, access=access))
        self._event_ns = costs.gap_event_ns
        self._counts = (1, 2)[: len(ways)]
        before_ns = costs.gap_stream_ns + costs.links.peer_fixed_ns
        self._movements = Movements(machine, ways, size_bytes, before_ns, gated=access)
        self.fresh = self._movements.fresh
        self.check = self._movements.check

    def take_s(self, count: int) -> float | None:
        """See Peer."""
        found_ns = self._movements.ends_ns([count * times for times in self._counts])
        return None if found_ns is None else (float(found_ns[0][-1]) + self._event_ns) * 1e-9


def _from_to(machine: Machine, source: int, target: int, *, access: bool) -> Loads:
    if access:
        return between(source, target)
    up, down = from_gpu(machine.costs, source), to_gpu(machine.costs, target)
    return {wire: up.get(wire, 0.0) + down.get(wire, 0.0) for wire in (*up, *down)}


class FakeConcurrent:
    """See Concurrent."""

    def __init__(self, machine: Machine, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        costs = machine.costs
        require_gpus(machine, gpus)
        require_host_memory(costs, "pinned", len(gpus) * size_bytes)
        self._others = len(gpus) - 1
        self._event_ns = costs.gap_event_ns
        ways = [of_direction(costs, direction, gpu) for gpu in gpus]
        self._movements = Movements(machine, ways, size_bytes, costs.gap_stream_ns + costs.copy_fixed_ns)
        self.fresh = self._movements.fresh
        self.check = self._movements.check

    def take_s(self, count: int) -> FloatArray | None:
        """See Concurrent."""
        found_ns = self._movements.ends_ns([count, *[2 * count] * self._others])
        return None if found_ns is None else np.array([float(one[-1]) + self._event_ns for one in found_ns]) * 1e-9


def require_gpus(machine: Machine, gpus: Sequence[int]) -> None:
    """Raise Skip for an index that no simulated GPU has."""
    for gpu in gpus:
        if not 0 <= gpu < machine.costs.gpus:
            raise Skip(f"needs a GPU {gpu}: {machine.costs.gpus} here")


def require_pair(machine: Machine, first: int, second: int, *, access: bool = True) -> None:
    """Raise Skip for a pair that is not there, or has no peer access where that is asked for."""
    require_gpus(machine, (first, second))
    if access and (first, second) in machine.costs.links.peer_denied:
        raise Skip(f"GPU {first} has no peer access to GPU {second}: the simulated driver refuses it")

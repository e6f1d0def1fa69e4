"""Simulated movements that share wires: the links of several GPUs to the host, and those between GPUs."""

from collections.abc import Mapping, Sequence

import numpy as np

from microbench.gpu.fake.costs import FakeCosts
from microbench.gpu.fake.device import FloatArray
from microbench.gpu.fake.machine import FakeGate, Machine, Scoped
from microbench.gpu.fake.transfers import Ends

# Bytes on each wire per byte of payload.
Loads = Mapping[str, float]


def to_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Reads of host memory: data go to the GPU, read requests to the host."""
    moved = costs.copy_traffic("h2d", 1.0)
    return {f"down{gpu}": moved.received, f"up{gpu}": moved.sent, "downlink": moved.received, "uplink": moved.sent}


def from_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Writes to host memory."""
    data = costs.copy_traffic("d2h", 1.0).sent
    return {f"up{gpu}": data, "uplink": data}


def between(costs: FakeCosts, source: int, target: int, *, access: bool) -> Loads:
    """From one GPU's memory to another's. Without peer access the data cross the host links of both."""
    if access:
        return {f"peer{source}-{target}": 1.0}
    up, down = from_gpu(costs, source), to_gpu(costs, target)
    return {wire: up.get(wire, 0.0) + down.get(wire, 0.0) for wire in up.keys() | down.keys()}


def capacity(costs: FakeCosts, wire: str) -> float:
    """Bytes a second on a wire: a host link or the uplink, a link between two GPUs, or the SMs of a GPU."""
    if wire in ("downlink", "uplink"):
        return costs.links.uplink_factor * costs.link_bytes_per_s
    if wire.startswith("peer"):
        return costs.links.peer_bytes_per_s
    return costs.links.peer_sm_bytes_per_s if wire.startswith("sm") else costs.link_bytes_per_s


def play(
    costs: FakeCosts, ways: Sequence[Loads], counts: Sequence[int], size_bytes: float, before_ns: float
) -> list[FloatArray]:
    """When each movement of each way ends, in ns since the common start; one array of shape (count,) per way.

    ``before_ns`` passes before each movement's first byte. The ways that still run get equal shares of a wire.
    """
    done, now_ns = np.zeros(len(ways)), 0.0
    knots: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in ways]  # (movements done, time)
    while running := [way for way, count in enumerate(counts) if done[way] < count]:
        load = {wire: sum(ways[other].get(wire, 0.0) for other in running) for way in running for wire in ways[way]}
        each_ns = {
            way: before_ns + size_bytes * max(load[wire] / capacity(costs, wire) for wire in ways[way]) * 1e9
            for way in running
        }
        first = min(running, key=lambda way: (counts[way] - done[way]) * each_ns[way])
        step_ns = (counts[first] - done[first]) * each_ns[first]
        now_ns += step_ns
        for way in running:
            done[way] = counts[way] if way == first else done[way] + step_ns / each_ns[way]
            knots[way].append((done[way], now_ns))
    ends_ns = []
    for count, knots_of_way in zip(counts, knots, strict=True):
        reached, at_ns = np.array(knots_of_way).T
        ends_ns.append(np.interp(np.arange(1, count + 1), reached, at_ns))
    return ends_ns


class Movements(Ends, Scoped):
    """Movements of ``size_bytes`` on several ways at once; each way has its own stream and buffers.

    ``before_ns`` passes before each movement's first byte. Without ``gated`` they start as they are submitted.
    """

    def __init__(
        self, machine: Machine, ways: Sequence[Loads], size_bytes: int, before_ns: float, *, gated: bool = True
    ) -> None:
        Ends.__init__(self, machine.costs, size_bytes)
        Scoped.__init__(self, machine)
        self._ways = ways
        self._before_ns = before_ns
        self._gated = gated

    def _take_s(self, counts: Sequence[int]) -> list[FloatArray] | None:
        """Start that many movements on each way together. Returns when each ended, in s since the start, shapes
        (count,).

        Returns None if the gate opened by itself.
        """
        machine = self._open()
        gate = FakeGate(machine)
        if self._gated:
            gate.shut()
        began_ns = machine.clock.time_ns + machine.costs.launch_to_start_ns
        machine.spend(machine.costs.copy_h2d_submit_ns * sum(counts))
        if self._gated:
            gate.open()
            began_ns = machine.device.idle_ns(0)
        ends_ns = [
            np.cumsum(np.diff(way_ns, prepend=0.0) * machine.noise.device(1.0, len(way_ns)))
            for way_ns in play(machine.costs, self._ways, counts, self.size_bytes, self._before_ns)
        ]
        for loads, count in zip(self._ways, counts, strict=True):  # the counters are those of GPU 0
            machine.device.received_bytes += count * self.size_bytes * loads.get("down0", 0.0)
            machine.device.sent_bytes += count * self.size_bytes * loads.get("up0", 0.0)
        machine.clock.wait_until(began_ns + max(float(way_ns[-1]) for way_ns in ends_ns))
        machine.synchronize()
        self.move()
        return None if gate.was_late() else [way_ns * 1e-9 for way_ns in ends_ns]

"""Simulated movements between host and GPU and between GPUs: copies, kernels on host memory, pipelines, peers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.ops import Copy, IntArray, Launch
from microbench.gpu.fake.costs import HOST_PAGE_BYTES, FakeCosts, Traffic
from microbench.gpu.fake.device import FloatArray
from microbench.gpu.fake.machine import Call, FakeGate, FakeProgram, Machine, Scoped, call_of
from microbench.gpu.fake.transfers import WARP_THREADS, Ends, FakeTransfer, require_host_memory
from microbench.gpu.protocol.links import Access, Binding, CollectiveName, PeerWay, PinningWay, bus_factor
from microbench.gpu.protocol.submit import Submit
from microbench.gpu.protocol.transfer import Direction, HostMemory

READS: tuple[PeerWay, ...] = ("engine_read", "sm_read", "engine_both_read")
BOTH: tuple[PeerWay, ...] = ("engine_both_read", "engine_both_write")

# Bytes on each wire per byte of payload.
Loads = Mapping[str, float]


def require_gpus(machine: Machine, gpus: Sequence[int]) -> None:
    """Raise Skip for an index that no simulated GPU has."""
    for gpu in gpus:
        if not 0 <= gpu < machine.costs.gpus:
            raise Skip(f"needs a GPU {gpu}: {machine.costs.gpus} here")


def gpus(machine: Machine) -> Sequence[int]:
    return range(machine.costs.gpus)


def require_pair(machine: Machine, first: int, second: int, *, access: bool = True) -> None:
    """Raise Skip for a pair that does not exist, or lacks the peer access that is asked for."""
    require_gpus(machine, (first, second))
    if access and (first, second) in machine.costs.links.peer_denied:
        raise Skip(f"GPU {first} has no peer access to GPU {second}: the simulated driver refuses it")


def engine_copy(
    machine: Machine, direction: Direction, memory: HostMemory, size_bytes: int, node: int | None = None
) -> FakeTransfer:
    """The rate of a far node's memory is that of the link between the processors."""
    costs, nodes = machine.costs, machine.costs.links.numa_nodes
    if not 0 <= (node or 0) < nodes:
        raise Skip(f"this machine has {nodes} NUMA node{'s' if nodes > 1 else ''}")
    require_host_memory(costs, memory, size_bytes)
    most_bytes_per_s = costs.links.far_node_bytes_per_s if node else math.inf
    if memory == "pageable":
        return FakePageable(machine, direction, size_bytes, most_bytes_per_s)
    call = call_of(Copy(direction, size_bytes), costs, {})
    duration_ns = max(call.item.duration_ns, costs.copy_fixed_ns + size_bytes / most_bytes_per_s * 1e9)
    return FakeTransfer(machine, call.with_item(duration_ns=duration_ns), size_bytes)


class FakePageable(FakeTransfer):
    """A copy of pageable memory. Host and engine copy it piece by piece through a staging buffer; the slower of the two
    sets the pace. On the way to the GPU the engine finishes last, on the way back the host."""

    blocks = True

    def __init__(self, machine: Machine, direction: Direction, size_bytes: int, most_bytes_per_s: float) -> None:
        costs, links = machine.costs, machine.costs.links
        pieces = -(-size_bytes // links.staging_piece_bytes)
        piece = call_of(Copy(direction, -(-size_bytes // pieces)), costs, {})
        self._last_piece = piece.with_item(traffic=call_of(Copy(direction, size_bytes), costs, {}).item.traffic)
        super().__init__(machine, piece, size_bytes)
        self.submit = FakeProgram(machine, self._copy, costs.queue_slots // 2)
        self._machine = machine
        self._to_device = direction == "h2d"
        staging_s = size_bytes / min(links.staging_bytes_per_s, most_bytes_per_s)
        self._staging_ns = max(staging_s * 1e9 + pieces * piece.host_ns, (pieces - 1) * piece.item.duration_ns)

    def _copy(self) -> None:
        machine = self._machine
        if self._to_device:
            machine.spend(self._staging_ns)
        machine.make(self._last_piece, 1)
        machine.synchronize(0)
        if not self._to_device:
            machine.spend(self._staging_ns)
        self.move()


def kernel_copy(machine: Machine, access: Access, width_bytes: int, offset_bytes: int, size_bytes: int) -> FakeTransfer:
    """A warp's access makes one packet for each line that it touches; the link or the SMs are the limit."""
    costs, links = machine.costs, machine.costs.links
    if width_bytes not in links.sm_bytes_per_s:
        raise Skip(f"the simulated kernels move 4, 8 or 16 bytes at a time, not {width_bytes}")
    require_host_memory(costs, "pinned", size_bytes)
    warp_bytes = WARP_THREADS * width_bytes
    lines = -(-(offset_bytes % links.sm_packet_bytes + warp_bytes) // links.sm_packet_bytes)
    packets = size_bytes / warp_bytes * lines
    header_bytes = costs.packet_header_h2d_bytes if access == "read" else costs.packet_header_d2h_bytes
    wire_bytes = size_bytes + packets * header_bytes
    moved = Traffic(wire_bytes, packets * costs.read_request_bytes) if access == "read" else Traffic(sent=wire_bytes)
    busy_ns = max(wire_bytes / costs.link_bytes_per_s, size_bytes / links.sm_bytes_per_s[width_bytes]) * 1e9
    launch = call_of(Launch(), costs, {})
    call = launch.with_item(duration_ns=costs.empty_kernel_ns + busy_ns, traffic=launch.item.traffic + moved)
    return FakeTransfer(machine, call, size_bytes)


def pinning(machine: Machine, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    costs, pages = machine.costs.links.pinning[way], -(-size_bytes // HOST_PAGE_BYTES)
    require_host_memory(machine.costs, "pageable" if way == "touch" else "pinned", size_bytes)
    return machine.take_and_release([(costs.take.at(pages), costs.release.at(pages))] * count)


class FakePipeline(Ends):
    """The sizes of chunks differ by one byte at most."""

    def __init__(self, machine: Machine, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", size_bytes)
        if not 1 <= chunks <= size_bytes:
            raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces")
        super().__init__(costs, size_bytes)
        self._machine = machine
        self._calls: list[Call] = []
        for chunk in range(chunks):
            chunk_bytes, stream = size_bytes // chunks + (chunk < size_bytes % chunks), chunk % streams
            self._calls.append(call_of(Copy("h2d", chunk_bytes, stream), costs, {}))
            if kernel_ns:
                reads_ns = chunk_bytes / costs.links.device_read_bytes_per_s * 1e9
                kernel = Launch(duration_ns=max(kernel_ns // chunks, round(reads_ns), 1), stream=stream)
                self._calls.append(call_of(kernel, costs, {}).with_item(engine="sm"))
        in_a_stream = -(-chunks // streams) * (2 if kernel_ns else 1)
        self.submit: Submit = FakeProgram(machine, self._submit, max(costs.queue_slots // 2 // in_a_stream, 1))

    def _submit(self) -> None:
        for call in self._calls:
            self._machine.make(call, 1)
        self.move()


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


class FakeDuplex(Movements):
    """An event is recorded after each copy."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", 2 * size_bytes)
        before_ns = costs.gap_stream_ns + costs.copy_fixed_ns + costs.gap_event_ns
        super().__init__(machine, [to_gpu(costs, 0), from_gpu(costs, 0)], size_bytes, before_ns)

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        ends_s = self._take_s((h2d, d2h))
        return None if ends_s is None else (ends_s[0], ends_s[1])


class FakePeer(Movements):
    """Without peer access the movements are not gated."""

    def __init__(self, machine: Machine, first: int, second: int, way: PeerWay, access: bool, size_bytes: int) -> None:
        require_pair(machine, first, second, access=access)
        costs = machine.costs
        source, target = (second, first) if way in READS else (first, second)
        ways = [between(costs, source, target, access=access)]
        if way in ("sm_read", "sm_write"):
            ways = [{**ways[0], f"sm{first}": 1.0}]
        if way in BOTH:
            ways.append(between(costs, target, source, access=access))
        super().__init__(machine, ways, size_bytes, costs.gap_stream_ns + costs.links.peer_fixed_ns, gated=access)

    def take_s(self, count: int) -> float | None:
        ends_s = self._take_s([count, 2 * count][: len(self._ways)])
        return None if ends_s is None else float(ends_s[0][-1]) + self._machine.costs.gap_event_ns * 1e-9


class FakeConcurrent(Movements):
    """Copies between the host and several GPUs at once."""

    def __init__(self, machine: Machine, direction: Direction, gpus: Sequence[int], size_bytes: int) -> None:
        costs = machine.costs
        require_gpus(machine, gpus)
        require_host_memory(costs, "pinned", len(gpus) * size_bytes)
        ways = [to_gpu(costs, gpu) if direction == "h2d" else from_gpu(costs, gpu) for gpu in gpus]
        super().__init__(machine, ways, size_bytes, costs.gap_stream_ns + costs.copy_fixed_ns)

    def take_s(self, count: int) -> FloatArray | None:
        ends_s = self._take_s([count, *[2 * count] * (len(self._ways) - 1)])
        if ends_s is None:
            return None
        return np.array([way_s[-1] for way_s in ends_s]) + self._machine.costs.gap_event_ns * 1e-9


class FakeCollective(Ends, Scoped):
    """Calls are queued while the GPUs work on earlier ones; all GPUs work alike."""

    def __init__(
        self, machine: Machine, name: CollectiveName, binding: Binding, ranks: int | None, size_bytes: int
    ) -> None:
        costs = machine.costs
        self.ranks = ranks or costs.gpus
        require_gpus(machine, range(self.ranks))
        part_bytes = size_bytes // self.ranks // 16 * 16 if name == "all_gather" else size_bytes
        if part_bytes == 0:
            raise Skip(f"{size_bytes} bytes are too few for {name} on {self.ranks} GPUs")
        Ends.__init__(self, costs, part_bytes * self.ranks if name == "all_gather" else part_bytes)
        Scoped.__init__(self, machine)
        links = costs.links
        python_ns = links.collective_python_ns if binding == "nccl4py" else 0.0
        self._host_ns = self.ranks * (links.collective_submit_ns + python_ns)
        if self.ranks == 1:
            self._device_ns = links.collective_alone_ns + self.size_bytes / links.collective_copy_bytes_per_s * 1e9
        else:
            on_bus_bytes = bus_factor(name, self.ranks) * self.size_bytes
            self._device_ns = links.collective_fixed_ns + on_bus_bytes / links.peer_sm_bytes_per_s * 1e9

    def take_ns(self, count: int) -> int:
        machine = self._open()
        begin_ns = machine.clock.now_ns()
        began_ns = machine.clock.time_ns
        starts_ns = machine.costs.launch_to_start_ns
        works_ns = machine.noise.device(self._device_ns, count)
        machine.spend(self._host_ns * count)
        first_ns = began_ns + self._host_ns + starts_ns + float(works_ns.sum())
        machine.clock.wait_until(max(first_ns, machine.clock.time_ns + starts_ns + float(works_ns[-1])))
        machine.synchronize()
        self.move()
        return machine.clock.now_ns() - begin_ns

    def facts(self) -> Sequence[Fact]:
        return (
            Fact("nccl_ranks", self.ranks, source="SIMULATED"),
            Fact("nccl_version", None, source="SIMULATED", reason="the simulated GPU has no NCCL"),
        )

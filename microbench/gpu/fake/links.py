"""One simulated copy by a copy engine, of pinned or of pageable memory, and one by a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Copy, IntArray, Launch
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts, Traffic
from microbench.gpu.fake.device import Batch, FloatArray, Item, max_plus
from microbench.gpu.fake.graphs import FakeProgram
from microbench.gpu.fake.machine import Call, FakeGate, FakeSubmit, Machine, Made, call_of
from microbench.gpu.protocol.links import Access, Direction, HostMemory, PeerWay, Pinning, PinningWay
from microbench.gpu.protocol.submit import Submit

# The two ends of a simulated movement: a pattern at the source, poison at the destination, and what arrives.


CHECKED = "SIMULATED: every byte that is kept compared"
KEPT_BYTES = 64
Bytes = npt.NDArray[np.uint8]


class Ends:
    """Source and destination of ``size_bytes``, of which the first KEPT_BYTES stand for all."""

    def __init__(self, costs: FakeCosts, size_bytes: int) -> None:
        self._arrives = costs.links.arrives
        self._seed = 0
        self.size_bytes = size_bytes
        self.source: Bytes = np.zeros(min(size_bytes, KEPT_BYTES), dtype=np.uint8)
        self.target: Bytes = self.source.copy()

    def fresh(self) -> None:
        """A new pattern at the source; every byte of the destination differs from it."""
        self._seed += 1
        self.source = np.random.default_rng(self._seed).integers(0, 256, len(self.source), dtype=np.uint8)
        self.target = ~self.source

    def move(self) -> None:
        """What one movement does to the destination."""
        if self._arrives == "lost":
            return
        self.target = self.source.copy()
        if self._arrives == "damaged":
            self.target[-1] ^= 0xFF

    def check(self) -> str:
        wrong = np.flatnonzero(self.target != self.source)
        if wrong.size:
            raise MeasurementError(f"SIMULATED: byte {wrong[0]} of {self.size_bytes} is not the one that was sent")
        return CHECKED


def require_host_memory(costs: FakeCosts, memory: str, size_bytes: int) -> None:
    """Raise Skip where so much host memory may not be taken."""
    limit_bytes = costs.links.host_memory_limit_bytes
    if size_bytes > limit_bytes:
        raise Skip(f"{size(size_bytes)} of {memory} memory asked, {size(limit_bytes)} may be taken (SIMULATED limit)")


WARP_THREADS = 32


class MovingSubmit(FakeSubmit):
    """A call that moves data each time that it is made."""

    def __init__(self, machine: Machine, call: Call, ends: Ends) -> None:
        super().__init__(machine, call)
        self._ends = ends

    def make(self, count: int, extra_ns: float = 0.0) -> Made:
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
    """A far node's memory comes no faster than the way between the processors carries it."""
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
    """A warp's access makes one packet for each line that it touches."""
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


# What it costs the simulated host to have memory that the GPU can copy from, and to give it back.


def pinning(machine: Machine, way: PinningWay, size_bytes: int, count: int) -> IntArray:
    links, clock, noise = machine.costs.links, machine.clock, machine.noise
    require_host_memory(machine.costs, "pageable" if way == "touch" else "pinned", size_bytes)
    costs, pages = links.pinning[way], links.pages(size_bytes)
    out_ns: IntArray = np.zeros((count, len(Pinning)), dtype=np.int64)
    for row in out_ns:
        row[Pinning.BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(costs.have.at(pages)))
        row[Pinning.PINNED] = clock.now_ns()
        row[Pinning.RELEASED_BEGIN] = clock.now_ns()
        clock.pass_ns(noise.one(costs.release.at(pages)))
        row[Pinning.RELEASED] = clock.now_ns()
    return out_ns


# A buffer in pieces on several simulated streams, each piece followed by a kernel that takes all SMs or by none.


class Piece:
    """One piece: its copy, and the kernel behind it."""

    def __init__(self, machine: Machine, size_bytes: int, stream: int, kernel_ns: int) -> None:
        costs = machine.costs
        self._machine = machine
        self.ends = Ends(costs, size_bytes)
        self._copy = call_of(Copy("h2d", size_bytes, stream), costs, {})
        self.kernel = self._kernel_call(size_bytes, stream, kernel_ns) if kernel_ns else None
        self._seen = False

    def _kernel_call(self, size_bytes: int, stream: int, kernel_ns: int) -> Call:
        costs = self._machine.costs
        reads_ns = size_bytes / costs.links.device_read_bytes_per_s * 1e9
        call = call_of(Launch(duration_ns=max(kernel_ns, round(reads_ns)), stream=stream), costs, {})
        assert call.item is not None, "a launch goes into a stream"
        return msgspec.structs.replace(call, item=msgspec.structs.replace(call.item, engine="sm"))

    def submit(self) -> None:
        """The copy and its kernel."""
        copied = self._machine.make(self._copy, 1).batches[-1]
        self.ends.move()
        if self.kernel is not None:
            worked = self._machine.make(self.kernel, 1).batches[-1]
            self._seen = _behind(worked, copied)

    def check(self) -> None:
        """Raise MeasurementError unless the piece is there and its kernel saw it."""
        self.ends.check()
        if self.kernel is not None and not self._seen:
            raise MeasurementError("SIMULATED: a kernel began before its piece was there")


def _behind(kernel: Batch, copy: Batch) -> bool:
    if kernel.starts_ns is None or copy.ends_ns is None:
        return False
    return float(kernel.starts_ns[0]) >= float(copy.ends_ns[-1])


class FakePipeline:
    """Pieces differ by one byte at most."""

    def __init__(self, machine: Machine, size_bytes: int, chunks: int, streams: int, kernel_ns: int) -> None:
        require_host_memory(machine.costs, "pinned", size_bytes)
        if not 1 <= chunks <= size_bytes:
            raise MeasurementError(f"{size_bytes} bytes cannot be cut into {chunks} pieces")
        whole, rest = divmod(size_bytes, chunks)
        each_ns = max(kernel_ns // chunks, 1) if kernel_ns else 0
        self._pieces = [Piece(machine, whole + (one < rest), one % streams, each_ns) for one in range(chunks)]
        in_a_stream = -(-chunks // streams) * (2 if kernel_ns else 1)
        self.submit: Submit = FakeProgram(machine, self._submit, max(machine.costs.queue_slots // 2 // in_a_stream, 1))

    def _submit(self) -> None:
        for piece in self._pieces:
            piece.submit()

    def fresh(self) -> None:
        for piece in self._pieces:
            piece.ends.fresh()

    def check(self) -> str:
        for piece in self._pieces:
            piece.check()
        return CHECKED


# Movements that share wires: who gets how much, from event to event, until all have arrived.


FULL = 1e-9  # a wire with less than this share left carries no more
DONE_BYTES = 1e-6

Loads = Mapping[str, float]


@dataclass(frozen=True)
class Flow:
    """Equal movements one after the other, each of ``size_bytes``.

    ``loads`` are the bytes on each wire for a byte moved, ``before_ns`` what passes before each one's first byte,
    shape (movements,).
    """

    size_bytes: float
    loads: Loads
    before_ns: FloatArray


def to_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Reads of host memory: completions travel down, their requests up."""
    data, requests = costs.on_the_link_bytes("h2d", 1.0), costs.read_requests_bytes(1.0)
    return {f"down{gpu}": data, f"up{gpu}": requests, "downlink": data, "uplink": requests}


def from_gpu(costs: FakeCosts, gpu: int) -> Loads:
    """Writes to host memory."""
    data = costs.on_the_link_bytes("d2h", 1.0)
    return {f"up{gpu}": data, "uplink": data}


def of_direction(costs: FakeCosts, direction: Direction, gpu: int) -> Loads:
    """Copies of that GPU in that direction."""
    return to_gpu(costs, gpu) if direction == "h2d" else from_gpu(costs, gpu)


def between(source: int, target: int) -> Loads:
    """From one GPU's memory to another's, straight."""
    return {f"peer{source}-{target}": 1.0}


def wires(costs: FakeCosts) -> dict[str, float]:
    """Bytes a second on each wire: both directions of each GPU's link and of the uplink that they share, the direct
    ways of pairs, and what the SMs of a GPU can move."""
    gpus, links = range(costs.gpus), costs.links
    found = {f"{way}{gpu}": costs.link_bytes_per_s for way in ("down", "up") for gpu in gpus}
    found |= dict.fromkeys(("downlink", "uplink"), links.uplink_factor * costs.link_bytes_per_s)
    found |= {f"sm{gpu}": links.peer_sm_bytes_per_s for gpu in gpus}
    pairs = ((one, other) for one in gpus for other in gpus if one != other)
    return found | {f"peer{one}-{other}": links.peer_bytes_per_s for one, other in pairs}


def shares(flows: Iterable[Flow], capacities: Mapping[str, float]) -> dict[int, float]:
    """Bytes a second of each flow, by its ``id``: all grow alike, and those that meet a full wire stop.

    This is max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2), what arbiters that take turns come to.
    """
    growing = list(flows)
    rates = {id(flow): 0.0 for flow in growing}
    free = dict(capacities)
    while growing:
        loads = {wire: sum(flow.loads.get(wire, 0.0) for flow in growing) for flow in growing for wire in flow.loads}
        step = min(free[wire] / load for wire, load in loads.items())
        for flow in growing:
            rates[id(flow)] += step
        for wire, load in loads.items():
            free[wire] -= step * load
        full = {wire for wire in loads if free[wire] <= FULL * capacities[wire]}
        growing = [flow for flow in growing if not full & set(flow.loads)]
    return rates


class _Lane:
    """How far one flow has come."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.ends_ns: list[float] = []
        self._next()

    def _next(self) -> None:
        self.over = len(self.ends_ns) == len(self.flow.before_ns)
        self._waits_ns = 0.0 if self.over else float(self.flow.before_ns[len(self.ends_ns)])
        self._left_bytes = self.flow.size_bytes

    @property
    def moving(self) -> bool:
        """True while bytes are on their way."""
        return not self.over and self._waits_ns <= 0.0

    def until_event_ns(self, rate: float) -> float:
        """When this movement's first byte leaves, or its last arrives at that rate (bytes a second)."""
        return self._left_bytes / rate * 1e9 if self.moving else self._waits_ns

    def advance(self, now_ns: float, step_ns: float, rate: float) -> None:
        """Let time pass until ``now_ns``."""
        if self.moving:
            self._left_bytes -= rate * step_ns * 1e-9
            if self._left_bytes <= DONE_BYTES:
                self.ends_ns.append(now_ns)
                self._next()
        else:
            self._waits_ns = max(self._waits_ns - step_ns, 0.0)


def play(flows: Sequence[Flow], capacities: Mapping[str, float]) -> list[FloatArray]:
    """When each movement of each flow ends, in ns since all began; shapes (movements of that flow,)."""
    lanes = [_Lane(flow) for flow in flows]
    now_ns = 0.0
    while running := [lane for lane in lanes if not lane.over]:
        rates = shares((lane.flow for lane in running if lane.moving), capacities)
        step_ns = min(lane.until_event_ns(rates.get(id(lane.flow), 0.0)) for lane in running)
        now_ns += step_ns
        for lane in running:
            lane.advance(now_ns, step_ns, rates.get(id(lane.flow), 0.0))
    return [np.array(lane.ends_ns) for lane in lanes]


# Movements that run at once on the simulated machine: both directions, two GPUs, all GPUs.


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
        for ends in self._ends:
            ends.fresh()

    def check(self) -> str:
        for ends in self._ends:
            ends.check()
        return CHECKED


class FakeDuplex:
    """An event stands behind each copy."""

    def __init__(self, machine: Machine, size_bytes: int) -> None:
        costs = machine.costs
        require_host_memory(costs, "pinned", 2 * size_bytes)
        before_ns = costs.gap_stream_ns + costs.copy_fixed_ns + costs.gap_event_ns
        self._movements = Movements(machine, [to_gpu(costs, 0), from_gpu(costs, 0)], size_bytes, before_ns)
        self.fresh = self._movements.fresh
        self.check = self._movements.check

    def ends_s(self, h2d: int, d2h: int) -> tuple[FloatArray, FloatArray] | None:
        found_ns = self._movements.ends_ns((h2d, d2h))
        return None if found_ns is None else (found_ns[0] * 1e-9, found_ns[1] * 1e-9)


class FakePeer:
    """Without peer access the data go up one GPU's link and down the other's, and no gate is used."""

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

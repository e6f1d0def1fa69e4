"""The simulated GPU's own memory: streams, strides, random accesses, atomics, cache levels, latencies, allocation.

A working set is read from the nearest cache that holds all of it. A kernel takes the longest of what its SMs' ports,
DRAM and the latency of the requests in flight allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from microbench.core.errors import Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray, Launch, Memset
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts, ShapeCosts
from microbench.gpu.fake.device import FloatArray, Item
from microbench.gpu.fake.environment import SIMULATED
from microbench.gpu.fake.machine import Call, Machine, Scoped, call_of
from microbench.gpu.fake.transfers import WARP_THREADS, FakeTransfer, evenly, require_host_memory
from microbench.gpu.protocol import memory as protocol

WARP_BYTES = 512  # 32 threads, 16 bytes each
LOAD_BYTES = 16
LOADS = (1, 2, 4, 8)
WORD_BYTES = 4
STRIDED_IN_FLIGHT = 64 * 4  # requests of an SM's warps, four each
RANDOM_WORD_BYTES = 8
RANDOM_IN_FLIGHT = 64 * WARP_THREADS * 8  # words: the SM's threads, eight each
ATOMIC_WARPS_PER_SM = 64
ATOMIC_ADDS = 512  # of each thread in a launch
TILE_BYTES = 4096
CLUSTERS_SINCE = (9, 0)
SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 512, 32 << 10
FILLING_SINCE: dict[protocol.Filling, tuple[int, int]] = {"load": (7, 5), "async": (8, 0), "bulk": (9, 0)}
LINE_BYTES = 128
MOST_LINES = 1 << 21

ARRAYS = 3  # of a STREAM kernel
NOT_ALL = "another process holds memory of this GPU: taking all that is free could make it fail"


class FakeOperations(FakeTransfer):
    """A kernel that is counted in operations."""

    def __init__(self, machine: Machine, call: Call, operations: int) -> None:
        super().__init__(machine, call, operations)
        self.operations = operations


def kernel_call(machine: Machine, busy_ns: float, moved_bytes: float, submit_ns: float | None = None) -> Call:
    """A launch whose blocks work for ``busy_ns`` on top of an empty kernel."""
    costs = machine.costs
    energy_j = moved_bytes * costs.memory.joules_per_byte
    call = call_of(Launch(), costs, {}).with_item(duration_ns=costs.empty_kernel_ns + busy_ns, energy_j=energy_j)
    return call if submit_ns is None else Call(submit_ns, call.item)


def answered_ns(
    costs: FakeCosts, requests: int, in_flight: int, l2_bytes: float, dram_bytes: float, dram_bytes_per_s: float
) -> float:
    """The time in which each SM's ``requests`` are answered, with ``in_flight`` of them at once (Little's law).

    Each takes ``l2_bytes`` of the SM's port to the L2 and ``dram_bytes`` of DRAM; 0 where the L2 answers.
    """
    memory = costs.memory
    port_ns = costs.cycles_ns(l2_bytes / memory.l2_bytes_per_clock)
    dram_ns = dram_bytes * costs.sm_count / dram_bytes_per_s * 1e9
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    latency_ns = costs.cycles_ns(memory.dram_cycles if dram_bytes else l2_cycles)
    return latency_ns + requests * max(port_ns, dram_ns, latency_ns / max(in_flight, 1))


def shapes(
    machine: Machine, kernel: protocol.StreamKernel, dtype: protocol.DataType, implementation: protocol.Implementation
) -> Sequence[str]:
    """Raises Skip for a library that the simulated machine does not have."""
    costs, memory = machine.costs, machine.costs.memory
    if implementation == "cuda":
        return [name for name, shape in memory.shapes.items() if shape.compute_capability <= costs.compute_capability]
    if implementation not in memory.libraries:
        raise Skip(f"the simulated machine has no {implementation}")
    return [implementation]


def stream(
    machine: Machine,
    kernel: protocol.StreamKernel,
    dtype: protocol.DataType,
    implementation: protocol.Implementation,
    size_bytes: int,
    shape: str,
) -> FakeTransfer:
    costs, memory, element_bytes = machine.costs, machine.costs.memory, protocol.ELEMENT_BYTES[dtype]
    machine.room.hold(("arrays", dtype, size_bytes), ARRAYS * size_bytes)
    if shape not in shapes(machine, kernel, dtype, implementation):
        raise Skip(f"the simulated GPU has no shape {shape} of {implementation}")
    if size_bytes < element_bytes:
        raise Skip(f"{size_bytes} B hold no element of {dtype}")
    arrays = protocol.READ_ARRAYS[kernel], protocol.WRITTEN_ARRAYS[kernel]
    moved_bytes = size_bytes // element_bytes * element_bytes * sum(arrays)
    own: ShapeCosts = memory.shapes[shape] if implementation == "cuda" else memory.libraries[implementation]
    rate = memory.dram_bytes_per_s.of(*arrays) * own.share.of(*arrays)
    busy_ns = _through_ns(costs, moved_bytes, own.in_flight_bytes, rate)
    return FakeTransfer(machine, kernel_call(machine, busy_ns, moved_bytes, own.submit_ns), moved_bytes)


def occupied(machine: Machine, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> FakeTransfer:
    costs = machine.costs
    machine.room.hold(("occupied", size_bytes), size_bytes)
    if blocks_per_sm > costs.blocks_per_sm or blocks_per_sm * block_threads > costs.threads_per_sm:
        raise Skip(f"a simulated SM does not hold {blocks_per_sm} blocks of {block_threads} threads")
    if loads not in LOADS:
        raise Skip(f"the simulated kernel has 1, 2, 4 or 8 loads in flight, not {loads}")
    in_flight_bytes = blocks_per_sm * block_threads * loads * LOAD_BYTES
    rate = costs.memory.dram_bytes_per_s.read
    busy_ns = _through_ns(costs, size_bytes, in_flight_bytes, rate)
    return FakeTransfer(machine, kernel_call(machine, busy_ns, size_bytes), size_bytes)


def _through_ns(costs: FakeCosts, moved_bytes: int, in_flight_bytes: int, dram_bytes_per_s: float) -> float:
    """The time in which all SMs together move ``moved_bytes``, each with ``in_flight_bytes`` in flight."""
    requests = -(-moved_bytes // (WARP_BYTES * costs.sm_count))
    dram_bytes = WARP_BYTES if moved_bytes > costs.memory.l2_bytes else 0
    return answered_ns(costs, requests, in_flight_bytes // WARP_BYTES, WARP_BYTES, dram_bytes, dram_bytes_per_s)


def strided(machine: Machine, access: protocol.StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
    """All sectors that contain a word are moved; DRAM moves whole fetches."""
    costs, memory = machine.costs, machine.costs.memory
    machine.room.hold(("strided", size_bytes), size_bytes)
    words = size_bytes // stride_bytes
    if not words:
        raise Skip(f"{size_bytes} B hold no word and what lies between it and the next: {stride_bytes} B")
    sector_bytes, fetch_bytes = min(stride_bytes, memory.sector_bytes), min(stride_bytes, memory.dram_fetch_bytes)
    dram_bytes = fetch_bytes * WARP_THREADS if words * sector_bytes > memory.l2_bytes else 0
    requests = -(-words // (WARP_THREADS * costs.sm_count))
    rate = memory.dram_bytes_per_s.read if access == "read" else memory.dram_bytes_per_s.write
    busy_ns = answered_ns(costs, requests, STRIDED_IN_FLIGHT, sector_bytes * WARP_THREADS, dram_bytes, rate)
    return FakeTransfer(machine, kernel_call(machine, busy_ns, WORD_BYTES * words), WORD_BYTES * words)


def scattered(machine: Machine, access: protocol.RandomAccess, footprint_bytes: int) -> FakeOperations:
    """Updates are read and written back."""
    costs, memory = machine.costs, machine.costs.memory
    machine.room.hold(("scattered", footprint_bytes), footprint_bytes)
    words = footprint_bytes // RANDOM_WORD_BYTES
    if words < 1 or words & (words - 1) or footprint_bytes % RANDOM_WORD_BYTES:
        raise Skip(f"{footprint_bytes} B are not a power of two of 8-byte words")
    rates, times = memory.dram_bytes_per_s, 2 if access == "update" else 1
    rate = {"gather": rates.read, "scatter": rates.write, "update": rates.mixed}[access]
    dram_bytes = times * memory.dram_fetch_bytes if footprint_bytes > memory.l2_bytes else 0
    requests = -(-words // costs.sm_count)
    busy_ns = answered_ns(costs, requests, RANDOM_IN_FLIGHT, times * memory.sector_bytes, dram_bytes, rate)
    return FakeOperations(machine, kernel_call(machine, busy_ns, words * times * memory.sector_bytes), words)


def atomics(
    machine: Machine, space: protocol.Space, dtype: protocol.AtomicType, spread: protocol.Spread
) -> FakeOperations:
    """In global memory the units of the L2 make the additions; those to one sector, and merged ones, are made at once.
    In shared memory each SM makes its own; threads that add to the same word take turns or are merged."""
    costs, memory = machine.costs, machine.costs.memory
    warps = costs.sm_count * ATOMIC_WARPS_PER_SM
    if space == "shared":
        turns = 1.0 if spread == "thread" else WARP_THREADS / memory.shared_merged_threads[dtype]
        cycles = ATOMIC_WARPS_PER_SM * turns * memory.shared_atomic_cycles
    else:
        sectors_per_warp = WORD_BYTES * WARP_THREADS // memory.sector_bytes
        additions = warps * (sectors_per_warp if spread == "thread" else WARP_THREADS / memory.merged_threads[dtype])
        cycles = math.ceil(additions / (1 if spread == "same" else memory.atomic_units)) * memory.atomic_cycles
    call = kernel_call(machine, costs.cycles_ns(cycles * ATOMIC_ADDS), 0.0)
    return FakeOperations(machine, call, warps * WARP_THREADS * ATOMIC_ADDS)


def require_shared(machine: Machine, footprint_bytes: int) -> None:
    """Raise Skip for more than the shared memory of an SM."""
    shared_bytes = machine.costs.memory.shared_bytes
    if footprint_bytes > shared_bytes:
        raise Skip(f"{size(footprint_bytes)} of shared memory asked, an SM has {size(shared_bytes)}")


def require_clusters(costs: FakeCosts, cluster_blocks: int) -> None:
    """Raise Skip if the simulated GPU has no clusters of that many blocks."""
    if costs.compute_capability < CLUSTERS_SINCE or cluster_blocks not in costs.memory.cluster_cycles:
        raise Skip(f"the simulated GPU has no clusters of {cluster_blocks} blocks")


class FakeLevel(Scoped):
    """A Level. Each tile passes DRAM, the SM's port to the L2, and its L1; the slowest limits the rate."""

    tile_bytes = TILE_BYTES

    def __init__(self, machine: Machine, space: protocol.Space, footprint_bytes: int, cluster_blocks: int = 1) -> None:
        super().__init__(machine)
        machine.room.hold(("level", space, footprint_bytes), footprint_bytes if space == "global" else 0)
        costs, memory = machine.costs, machine.costs.memory
        self.sms = costs.sm_count // cluster_blocks * cluster_blocks
        self.cache_bytes = memory.l1_bytes
        if space == "shared":
            require_shared(machine, footprint_bytes)
            self._first_cycles = memory.shared_cycles
            bytes_per_clock = memory.shared_bytes_per_clock
            if cluster_blocks > 1:
                require_clusters(costs, cluster_blocks)
                self._first_cycles = memory.cluster_cycles[cluster_blocks]
                bytes_per_clock = memory.cluster_bytes_per_clock[cluster_blocks]
        else:
            self._first_cycles, bytes_per_clock = memory.l1_cycles, memory.l1_bytes_per_clock
            if footprint_bytes > memory.l1_bytes:
                bytes_per_clock = min(bytes_per_clock, memory.l2_bytes_per_clock)
            if footprint_bytes > memory.l2_bytes:
                dram_per_clock = memory.dram_bytes_per_s.read / costs.sm_count / costs.sm_clock_hz
                bytes_per_clock = min(bytes_per_clock, dram_per_clock)
        self._tile_cycles = TILE_BYTES / bytes_per_clock

    def take(self, bytes_per_sm: int) -> protocol.Pass:
        machine = self._open()
        cycles = self._first_cycles + bytes_per_sm // self.tile_bytes * self._tile_cycles
        taken_cycles = cycles * machine.noise.device(1.0, self.sms)
        began_ns, ended_ns = machine.run(Item(duration_ns=machine.costs.cycles_ns(float(taken_cycles.max()))))
        machine.require_arrival("the sum over all words read is not that of the set")
        return protocol.Pass(machine.globaltimer_s(began_ns, ended_ns), round(float(np.median(taken_cycles))))


class FakeWritten(FakeLevel):
    """Every write goes to the L2; an update also reads from there."""

    def __init__(self, machine: Machine, access: protocol.WriteAccess, footprint_bytes: int) -> None:
        super().__init__(machine, "global", footprint_bytes)
        costs, memory = machine.costs, machine.costs.memory
        if footprint_bytes < TILE_BYTES * costs.sm_count:
            raise Skip(f"{size(footprint_bytes)} have no {TILE_BYTES} B for each SM")
        bytes_per_clock, rate = memory.l2_written_per_clock, memory.dram_bytes_per_s.write
        if access == "update":
            bytes_per_clock = 2 / (1 / memory.l2_bytes_per_clock + 1 / memory.l2_written_per_clock)
            rate = memory.dram_bytes_per_s.mixed
        if footprint_bytes > memory.l2_bytes:
            bytes_per_clock = min(bytes_per_clock, rate / costs.sm_count / costs.sm_clock_hz)
        self._tile_cycles = TILE_BYTES / bytes_per_clock


class FakeFill(FakeLevel):
    """Pieces of the set pass through the same path, at most as fast as an SM can request bulk copies."""

    def __init__(self, machine: Machine, way: protocol.Filling, piece_bytes: int, footprint_bytes: int) -> None:
        costs, memory = machine.costs, machine.costs.memory
        since = FILLING_SINCE[way]
        if costs.compute_capability < since:
            raise Skip(f"{way} copies need compute capability {since[0]}.{since[1]}")
        if not SMALLEST_PIECE_BYTES <= piece_bytes <= LARGEST_PIECE_BYTES or piece_bytes & (piece_bytes - 1):
            raise Skip(f"the simulated GPU has no pieces of {piece_bytes} B")
        super().__init__(machine, "global", max(footprint_bytes, memory.l1_bytes + 1))
        self.tile_bytes = piece_bytes
        self._tile_cycles *= piece_bytes / TILE_BYTES / memory.fill_share[way]
        if way == "bulk":
            self._tile_cycles = max(self._tile_cycles, memory.bulk_cycles)


class FakeLocalChase(Scoped):
    """Dependent reads: the nearest level that holds all lines answers them."""

    def __init__(self, machine: Machine, space: protocol.Space, footprint_bytes: int, cluster_blocks: int = 1) -> None:
        super().__init__(machine)
        machine.room.hold(("chase", space, footprint_bytes), footprint_bytes if space == "global" else 0)
        memory = machine.costs.memory
        self._shared_cycles = memory.shared_cycles
        if cluster_blocks > 1:
            require_clusters(machine.costs, cluster_blocks)
            self._shared_cycles = memory.cluster_cycles[cluster_blocks]
        if footprint_bytes < LINE_BYTES:
            raise Skip(f"{footprint_bytes} B hold no line of {LINE_BYTES} B to walk through")
        if space == "shared":
            require_shared(machine, footprint_bytes)
        self.lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
        self._shared = space == "shared"
        near = evenly(memory.l2_near_share, 0, self.lines) > 0
        self._l2_cycles = np.where(near, memory.l2_near_cycles, memory.l2_far_cycles)
        self._beyond_reach = 1 - memory.translation_reach_bytes / footprint_bytes
        self._at = 0

    def walk(self, reads: int) -> protocol.Walk:
        cycles = float(self._reads_cycles(reads).sum() * self._machine.noise.device(1.0, 1)[0])
        return protocol.Walk(self._run_s(cycles), round(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        stamp_cycles = self._machine.costs.memory.stamp_cycles
        cycles = (self._reads_cycles(reads) + stamp_cycles) * self._machine.noise.device(1.0, reads)
        self._run_s(float(cycles.sum()))
        return cycles.round().astype(np.int64)

    def lines_cycles(self, repeats: int) -> IntArray:
        if self._shared:
            raise Skip("shared memory lies in no part of the L2")
        noise = self._machine.noise.device(1.0, self.lines * repeats).reshape(repeats, self.lines)
        cycles: FloatArray = (self._l2_cycles + self._machine.costs.memory.stamp_cycles) * noise
        self._run_s(float(cycles.sum()))
        return cycles.round().astype(np.int64)

    def _reads_cycles(self, count: int) -> FloatArray:
        memory, set_bytes = self._machine.costs.memory, self.lines * LINE_BYTES
        at = self._at
        self._at += count
        if self._shared or set_bytes <= memory.l1_bytes:
            return np.full(count, self._shared_cycles if self._shared else memory.l1_cycles)
        missed = evenly(self._beyond_reach, at, count) * memory.translation_miss_cycles
        if set_bytes > memory.l2_bytes:
            return memory.dram_cycles + missed
        lines_cycles: FloatArray = self._l2_cycles[(at + np.arange(count)) % self.lines] + missed
        return lines_cycles

    def _run_s(self, cycles: float) -> float:
        machine = self._open()
        return machine.walk(machine.costs.cycles_ns(cycles), self._at)


class FakeLoadedChase(Scoped):
    """The closer the level is to its limit, the longer a read waits, as in a queue with one server."""

    def __init__(self, machine: Machine, level: protocol.LoadedLevel) -> None:
        super().__init__(machine)
        costs, memory = machine.costs, machine.costs.memory
        near = memory.l2_near_share
        if level == "l2":
            self.load_bytes = memory.l2_bytes // 2
            self._cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
            self._limit = memory.l2_bytes_per_clock * costs.sm_clock_hz * (costs.sm_count - 1)
        else:
            self.load_bytes = 1 << 30
            self._cycles, self._limit = memory.dram_cycles, memory.dram_bytes_per_s.read
        machine.room.hold(("loaded", level), self.load_bytes)

    def take(self, reads: int, bytes_per_s: float) -> protocol.LoadedWalk:
        machine = self._open()
        memory = machine.costs.memory
        share = min(bytes_per_s / self._limit, memory.most_load)
        noise = machine.noise.device(1.0, 2)
        waiting = memory.queue_share * share / (1 - share)
        cycles = reads * self._cycles * (1 + waiting) * float(noise[0])
        seconds = machine.walk(machine.costs.cycles_ns(cycles), reads)
        return protocol.LoadedWalk(seconds, round(cycles), share * self._limit * float(noise[1]))


def engine(machine: Machine, way: protocol.EngineWay, size_bytes: int) -> FakeTransfer:
    """The rows of a 2D copy fill half of their pitch, at source and destination."""
    costs = machine.costs
    machine.room.hold((way, size_bytes), {"copy": 2, "copy_2d": 4, "memset": 1}[way] * size_bytes)
    moved_bytes = size_bytes if way == "memset" else 2 * size_bytes
    energy_j = moved_bytes * costs.memory.joules_per_byte
    if way == "memset":
        call = call_of(Memset(size_bytes), costs, {}).with_item(energy_j=energy_j)
    else:
        own = costs.memory.engines[way]
        duration_ns = own.duration_ns + moved_bytes / own.bytes_per_s * 1e9
        call = Call(own.submit_ns, Item(gap_ns=costs.gap_stream_ns, duration_ns=duration_ns, energy_j=energy_j))
    return FakeTransfer(machine, call, moved_bytes)


def allocating(machine: Machine, way: protocol.AllocationWay, size_bytes: int, count: int) -> IntArray:
    """A pool is empty at first and keeps a block that is freed."""
    if way == "host_pinned":
        require_host_memory(machine.costs, "pinned", size_bytes)
    else:
        machine.room.require(size_bytes)
    own, steps = machine.costs.memory.blocks[way], -(-size_bytes // machine.costs.memory.block_step_bytes)
    first_ns, later_ns, release_ns = own.take.at(steps), own.take.at(steps), own.release.at(steps)
    if own.pooled_take_ns is not None:
        first_ns, later_ns = first_ns + own.pooled_take_ns, own.pooled_take_ns
        release_ns = own.pooled_release_ns
    return machine.take_and_release([(later_ns if index else first_ns, release_ns) for index in range(count)])


def capacity(machine: Machine) -> tuple[Fact, ...]:
    """The driver gives ``largest_share`` of the free memory as one block, and all of it as several blocks."""
    costs, free_bytes = machine.costs.memory, machine.room.free_bytes
    known = {"total_bytes": costs.total_bytes, "free_bytes": free_bytes, "context_bytes": costs.context_bytes}
    steps = free_bytes // costs.block_step_bytes
    largest_steps = max(int(steps * costs.largest_share), min(steps, 1))
    taken = {
        "largest_block_bytes": largest_steps * costs.block_step_bytes,
        "obtainable_bytes": steps * costs.block_step_bytes,
    }
    unknown: tuple[Fact, ...] = ()
    if costs.held_by_others_bytes:
        unknown = tuple(Fact(name, None, SIMULATED, reason=NOT_ALL) for name in taken)
    else:
        known |= taken
    return (*(Fact(name, value, SIMULATED, unit="B") for name, value in known.items()), *unknown)


def peers(machine: Machine) -> Fact:
    return Fact("memory_holders", machine.room.holders(), SIMULATED)

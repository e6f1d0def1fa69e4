"""Words that lie apart, words in random order, and atomic additions on the simulated GPU."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.model import Fact
from microbench.core.ops import IntArray, Launch, Memset
from microbench.core.units import size
from microbench.gpu.fake.costs import FakeCosts, MemoryCosts, ShapeCosts
from microbench.gpu.fake.device import FloatArray, Item, max_plus
from microbench.gpu.fake.environment import SIMULATED
from microbench.gpu.fake.links import Ends, FakeTransfer, MovingSubmit, require_host_memory
from microbench.gpu.fake.machine import Call, Machine, call_of
from microbench.gpu.fake.managed import Translations
from microbench.gpu.protocol.memory import (
    ELEMENT_BYTES,
    READ_ARRAYS,
    WRITTEN_ARRAYS,
    Allocation,
    AllocationWay,
    AtomicType,
    DataType,
    EngineWay,
    Implementation,
    Pass,
    RandomAccess,
    Space,
    Spread,
    StreamKernel,
    StrideAccess,
    Walk,
)
from microbench.gpu.protocol.submit import Submit

# Kernels and copies within the simulated device memory: a call that takes as long and moves as much as it is told.


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


# Requests of the simulated SMs: who answers them, how long that takes, and how many may be under way.


WARP_THREADS = 32
WARP_BYTES = 512  # 32 threads, 16 bytes each
ROUNDS_OF_HITS = 200
SAME = 1e-9


class Request(NamedTuple):
    """One request of an SM: how long it is under way when nobody waits, and for how long it keeps the way busy."""

    latency_ns: float
    service_ns: float


def cycles_ns(costs: FakeCosts, cycles: float) -> float:
    """So many cycles of an SM."""
    return cycles / costs.sm_clock_hz * 1e9


def hit_share(footprint_bytes: float, cache_bytes: float) -> float:
    """The share of accesses that a cache answers, to a set that is gone through again and again.

    Each miss displaces a line by chance: one comes through a round of F (1 - h) misses into C lines with the chance
    exp(-F (1 - h) / C), which is h again. A set that fits is all there.
    """
    if footprint_bytes <= cache_bytes:
        return 1.0
    share = 0.0
    for _ in range(ROUNDS_OF_HITS):
        share = math.exp(-footprint_bytes * (1 - share) / cache_bytes)
    return share


def request(costs: FakeCosts, hits: float, l2_bytes: float, dram_bytes: float, dram_bytes_per_s: float) -> Request:
    """What an SM's request for so much of the L2 is like, ``hits`` of all being answered there.

    The rest comes from DRAM, in pieces that together are ``dram_bytes``; each SM has its share of DRAM.
    """
    memory = costs.memory
    port_ns = cycles_ns(costs, l2_bytes / memory.l2_bytes_per_clock)
    dram_ns = (1 - hits) * dram_bytes * costs.sm_count / dram_bytes_per_s * 1e9
    near = memory.l2_near_share
    l2_cycles = near * memory.l2_near_cycles + (1 - near) * memory.l2_far_cycles
    latency_cycles = hits * l2_cycles + (1 - hits) * memory.dram_cycles
    return Request(cycles_ns(costs, latency_cycles), max(port_ns, dram_ns))


def answered_ns(one: Request, requests: int, under_way: int) -> float:
    """When the last of an SM's requests is answered, if so many may be under way at once.

    Each is asked for when the one that had its place before is there, and waits for its turn on the way. From some
    round on every place takes as long as in the round before; then the rest is as many rounds of that.
    """
    places = min(max(under_way, 1), requests)
    ends_ns = max_plus(np.full(places, one.latency_ns), np.full(places, one.service_ns))
    rounds, rest = divmod(requests, places)
    for played in range(1, rounds):
        after_ns = _next_round(ends_ns, one)
        period_ns = after_ns - ends_ns
        if np.ptp(period_ns) <= SAME * period_ns[0]:
            ends_ns = ends_ns + period_ns * (rounds - played)
            break
        ends_ns = after_ns
    if rest:
        ends_ns = _next_round(ends_ns, one)[:rest]
    return float(ends_ns[-1])


def _next_round(ends_ns: FloatArray, one: Request) -> FloatArray:
    floors_ns = ends_ns + one.latency_ns
    floors_ns[0] = max(floors_ns[0], ends_ns[-1])
    return max_plus(floors_ns, np.full(len(ends_ns), one.service_ns))


WORD_BYTES = 4
STRIDED_UNDER_WAY = 64 * 4  # requests of an SM's warps, four each
RANDOM_WORD_BYTES = 8
RANDOM_UNDER_WAY = 64 * WARP_THREADS * 8  # words: the SM's threads, eight each
SAMPLE_WORDS = 1024
ATOMIC_WARPS_PER_SM = 64
ATOMIC_ADDS = 512  # of each thread in a launch


def strided(machine: Machine, access: StrideAccess, stride_bytes: int, size_bytes: int) -> FakeTransfer:
    """What is moved are the sectors, and in DRAM the fetches, in which a word lies."""
    costs, memory = machine.costs, machine.costs.memory
    words = size_bytes // stride_bytes
    if not words:
        raise Skip(f"{size_bytes} B hold no word and what lies between it and the next: {stride_bytes} B")
    l2_bytes, dram_bytes = (
        _touched_bytes(stride_bytes, least) * WARP_THREADS for least in (memory.sector_bytes, memory.dram_fetch_bytes)
    )
    rates = memory.dram_bytes_per_s
    requests = -(-words // (WARP_THREADS * costs.sm_count))
    hits = hit_share(words / WARP_THREADS * l2_bytes, memory.l2_bytes)
    one = request(costs, hits, l2_bytes, dram_bytes, rates.read if access == "read" else rates.write)
    return transfer(machine, answered_ns(one, requests, STRIDED_UNDER_WAY), WORD_BYTES * words)


def _touched_bytes(stride_bytes: int, least_bytes: int) -> float:
    """Bytes moved for a word, if no less than ``least_bytes`` are moved at once: by a count over many words."""
    pieces = np.arange(SAMPLE_WORDS, dtype=np.int64) * stride_bytes // least_bytes
    return len(np.unique(pieces)) * least_bytes / SAMPLE_WORDS


def scattered(machine: Machine, access: RandomAccess, footprint_bytes: int) -> FakeOperations:
    """In random order the L2 has what part of the set fits; updates are read and written back."""
    costs, memory = machine.costs, machine.costs.memory
    words = footprint_bytes // RANDOM_WORD_BYTES
    if words < 1 or words & (words - 1) or footprint_bytes % RANDOM_WORD_BYTES:
        raise Skip(f"{footprint_bytes} B are not a power of two of 8-byte words")
    hits = min(memory.l2_bytes / footprint_bytes, 1.0)
    rates, times = memory.dram_bytes_per_s, 2 if access == "update" else 1
    rate = {"gather": rates.read, "scatter": rates.write, "update": rates.mixed}[access]
    one = request(costs, hits, times * memory.sector_bytes, times * memory.dram_fetch_bytes, rate)
    busy_ns = answered_ns(one, -(-words // costs.sm_count), RANDOM_UNDER_WAY)
    return operations(machine, busy_ns, words, words * times * memory.sector_bytes)


def atomics(machine: Machine, space: Space, dtype: AtomicType, spread: Spread) -> FakeOperations:
    costs = machine.costs
    warps = costs.sm_count * ATOMIC_WARPS_PER_SM
    busy_ns = _shared_ns(costs, dtype, spread) if space == "shared" else _global_ns(costs, dtype, spread, warps)
    count = warps * WARP_THREADS * ATOMIC_ADDS
    return operations(machine, busy_ns, count, 0.0)


def _global_ns(costs: FakeCosts, dtype: AtomicType, spread: Spread, warps: int) -> float:
    """Until the unit with the most additions is done: those of a sector go as one, those of a word as merged."""
    memory = costs.memory
    numbers = np.arange(warps, dtype=np.int64)
    if spread == "thread":
        sectors = WORD_BYTES * WARP_THREADS // memory.sector_bytes
        words = (numbers[:, None] * sectors + np.arange(sectors)).ravel()
        additions = 1.0
    else:
        words = numbers if spread == "warp" else np.zeros(warps, dtype=np.int64)
        additions = WARP_THREADS / memory.merged_threads[dtype]
    queues = np.bincount(words % memory.atomic_units, minlength=memory.atomic_units) * additions
    return cycles_ns(costs, float(queues.max()) * ATOMIC_ADDS * memory.atomic_cycles)


def _shared_ns(costs: FakeCosts, dtype: AtomicType, spread: Spread) -> float:
    """Until an SM's warps are done: threads that meet at a word go one after the other, or as merged."""
    memory = costs.memory
    turns = 1.0 if spread == "thread" else WARP_THREADS / memory.shared_merged_threads[dtype]
    return cycles_ns(costs, ATOMIC_WARPS_PER_SM * ATOMIC_ADDS * turns * memory.shared_atomic_cycles)


# Reads of one working set by all simulated SMs: each tile comes from the nearest level that has it.


TILE_BYTES = 4096
LEVEL_SEED = 20240301


def require_shared(machine: Machine, footprint_bytes: int) -> None:
    """Raise Skip for more than the shared memory of an SM."""
    shared_bytes = machine.costs.memory.shared_bytes
    if footprint_bytes > shared_bytes:
        raise Skip(f"{size(footprint_bytes)} of shared memory asked, an SM has {size(shared_bytes)}")


def busy(machine: Machine, duration_ns: float) -> float:
    """Keep stream 0 busy for so long, and wait; when that began, in ns."""
    batch = machine.make(Call(machine.costs.submit_ns, Item(duration_ns=duration_ns)), 1).batches[0]
    machine.synchronize(0)
    assert batch.starts_ns is not None, "a synchronised stream has nothing to come"
    return float(batch.starts_ns[0])


def stamped_s(machine: Machine, began_ns: float, duration_ns: float) -> float:
    """How long something took by %globaltimer, which moves in steps."""
    begin, end = machine.globaltimer_ns(np.array([began_ns, began_ns + duration_ns]))
    return float(end - begin) * 1e-9


class FakeLevel:
    """See Level."""

    tile_bytes = TILE_BYTES

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        memory = machine.costs.memory
        self.sms = machine.costs.sm_count
        self.cache_bytes = memory.l1_bytes
        self._machine = machine
        self._scope = machine.scope
        self._shared = space == "shared"
        if self._shared:
            require_shared(machine, footprint_bytes)
        self._l1_hits = hit_share(footprint_bytes, memory.l1_bytes)
        self._l2_hits = hit_share(footprint_bytes, memory.l2_bytes)
        self._random = np.random.default_rng(LEVEL_SEED)

    def take(self, bytes_per_sm: int) -> Pass:
        machine = self._machine
        machine.check(self._scope)
        taken_ns = self._play_ns(bytes_per_sm // TILE_BYTES) * machine.noise.device(1.0, self.sms)
        longest_ns = float(taken_ns.max())
        began_ns = busy(machine, longest_ns)
        if machine.costs.links.arrives != "right":
            raise MeasurementError("SIMULATED: the sum over all words read is not that of the set")
        cycles = float(np.median(taken_ns)) * machine.costs.sm_clock_hz * 1e-9
        return Pass(stamped_s(machine, began_ns, longest_ns), round(cycles))

    def _play_ns(self, tiles: int) -> float:
        """Tile after tile through DRAM, the SM's port to the L2, and its L1: each waits for its turn at each."""
        costs, memory = self._machine.costs, self._machine.costs.memory
        if self._shared:
            return cycles_ns(costs, memory.shared_cycles + tiles * TILE_BYTES / memory.shared_bytes_per_clock)
        beyond_l1 = self._random.random(tiles) >= self._l1_hits
        beyond_l2 = beyond_l1 & (self._random.random(tiles) >= self._l2_hits)
        dram_ns = TILE_BYTES * costs.sm_count / memory.dram_bytes_per_s.read * 1e9
        port_ns = cycles_ns(costs, TILE_BYTES / memory.l2_bytes_per_clock)
        l1_ns = cycles_ns(costs, TILE_BYTES / memory.l1_bytes_per_clock)
        ends_ns = max_plus(np.full(tiles, cycles_ns(costs, memory.l1_cycles)), np.where(beyond_l2, dram_ns, 0.0))
        ends_ns = max_plus(ends_ns, np.where(beyond_l1, port_ns, 0.0))
        ends_ns = max_plus(ends_ns, np.full(tiles, l1_ns))
        return float(ends_ns[-1])


# Dependent reads by one thread of the simulated GPU, through its caches and that of address translations.


CHASE_SEED = 20240302
LINE_BYTES = 128
MOST_LINES = 1 << 21
# Knuth's multiplicative hash spreads the lines over the parts of the L2.
HASH, HASH_RANGE = 2654435761, 1 << 32


class FakeLocalChase:
    """Which reads a cache answers is drawn by chance, in the share of lines that come through."""

    def __init__(self, machine: Machine, space: Space, footprint_bytes: int) -> None:
        memory = machine.costs.memory
        if footprint_bytes < LINE_BYTES:
            raise Skip(f"{footprint_bytes} B hold no line of {LINE_BYTES} B to walk through")
        if space == "shared":
            require_shared(machine, footprint_bytes)
        self._machine = machine
        self._scope = machine.scope
        self._shared = space == "shared"
        self.lines = min(footprint_bytes // LINE_BYTES, MOST_LINES)
        self._random = np.random.default_rng(CHASE_SEED)
        places = self._random.permutation(self.lines) * (footprint_bytes // self.lines // LINE_BYTES)
        self._pages = places * LINE_BYTES // memory.translation_page_bytes
        self._l2_cycles = np.where(_near(places, memory.l2_near_share), memory.l2_near_cycles, memory.l2_far_cycles)
        self._l1_hits = hit_share(self.lines * LINE_BYTES, memory.l1_bytes)
        self._l2_hits = hit_share(self.lines * LINE_BYTES, memory.l2_bytes)
        self._translations = Translations(memory.translation_entries)
        self._at = 0

    def walk(self, reads: int) -> Walk:
        cycles = float(self._reads_cycles(reads).sum() * self._machine.noise.device(1.0, 1)[0])
        duration_ns = cycles_ns(self._machine.costs, cycles)
        return Walk(stamped_s(self._machine, self._run(cycles), duration_ns), round(cycles))

    def each_cycles(self, reads: int) -> IntArray:
        stamp_cycles = self._machine.costs.memory.stamp_cycles
        cycles = (self._reads_cycles(reads) + stamp_cycles) * self._machine.noise.device(1.0, reads)
        self._run(float(cycles.sum()))
        return cycles.round().astype(np.int64)

    def lines_cycles(self, repeats: int) -> IntArray:
        if self._shared:
            raise Skip("shared memory lies in no part of the L2")
        noise = self._machine.noise.device(1.0, self.lines * repeats).reshape(repeats, self.lines)
        cycles = (self._l2_cycles + self._machine.costs.memory.stamp_cycles) * noise
        self._run(float(cycles.sum()))
        return np.round(cycles).astype(np.int64)

    def _reads_cycles(self, count: int) -> FloatArray:
        memory = self._machine.costs.memory
        if self._shared:
            return np.full(count, memory.shared_cycles)
        lines = (self._at + np.arange(count)) % self.lines
        self._at = (self._at + count) % self.lines
        beyond_l1 = self._random.random(count) >= self._l1_hits
        beyond_l2 = self._random.random(count) >= self._l2_hits
        cycles = np.where(beyond_l2, memory.dram_cycles, self._l2_cycles[lines])
        if beyond_l1.any():
            missed = self._translations.misses(self._pages[lines[beyond_l1]])
            cycles[beyond_l1] += memory.translation_miss_cycles * missed
        found: FloatArray = np.where(beyond_l1, cycles, memory.l1_cycles)
        return found

    def _run(self, cycles: float) -> float:
        """Let one thread be at it for so long; when it began. Addresses that never came lead nowhere."""
        machine = self._machine
        machine.check(self._scope)
        began_ns = busy(machine, cycles_ns(machine.costs, cycles))
        if machine.costs.links.arrives != "right":
            raise MeasurementError(f"SIMULATED: the walk ended at no line where line {self._at} should be")
        return began_ns


def _near(places: IntArray, share: float) -> npt.NDArray[np.bool_]:
    """Which lines lie in the near part of the L2."""
    near: npt.NDArray[np.bool_] = places * HASH % HASH_RANGE < share * HASH_RANGE
    return near


# Room in the simulated device memory: blocks of one case, what others hold, and how much can be had.


OTHERS = "somebody (pid 4242)"
NOBODY = "nobody else"
# Where another process works on the GPU too, taking all that is free could make it fail.
NOT_ALL = "another process holds memory of this GPU: taking all that is free could make it fail"


class Room:
    """Blocks that a case holds, each under a name; they are gone with the Room."""

    def __init__(self, costs: MemoryCosts) -> None:
        self._costs = costs
        self._blocks: dict[Hashable, int] = {}

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
        costs = self._costs
        return costs.total_bytes - costs.context_bytes - costs.held_by_others_bytes - sum(self._blocks.values())

    def hold(self, name: Hashable, size_bytes: int) -> None:
        """Take a block for the rest of the case, if it is not held already. Raises Skip where it does not fit."""
        if name not in self._blocks:
            self.require(size_bytes)
            self._blocks[name] = self._whole(size_bytes)

    def require(self, size_bytes: int) -> None:
        """Raise Skip where a block does not fit."""
        if self._whole(size_bytes) > self.free_bytes:
            raise Skip(
                f"{size(size_bytes)} of device memory asked, {size(self.free_bytes)} free; {self.holders()} (SIMULATED)"
            )

    def holders(self) -> str:
        """Who else holds memory."""
        held_bytes = self._costs.held_by_others_bytes
        return f"{OTHERS} {size(held_bytes)}" if held_bytes else NOBODY

    def peers(self) -> Fact:
        return Fact("memory_holders", self.holders(), SIMULATED)

    def capacity(self) -> tuple[Fact, ...]:
        """See DeviceMemory: the largest block first, then the largest of what is left, until nothing is."""
        costs, blocks = self._costs, list[int]()
        free_bytes = self.free_bytes
        while (block := self._largest(free_bytes - sum(blocks))) > 0:
            blocks.append(block)
        known = {"total_bytes": costs.total_bytes, "free_bytes": free_bytes, "context_bytes": costs.context_bytes}
        taken = {"largest_block_bytes": blocks[0] if blocks else 0, "obtainable_bytes": sum(blocks)}
        if costs.held_by_others_bytes:
            unknown = tuple(Fact(name, None, SIMULATED, reason=NOT_ALL) for name in taken)
        else:
            known, unknown = known | taken, ()
        return (*(Fact(name, value, SIMULATED, unit="B") for name, value in known.items()), *unknown)

    def _largest(self, free_bytes: int) -> int:
        """The largest block that the driver gives of so much: holes between blocks keep it from giving all."""
        step_bytes = self._costs.block_step_bytes
        steps = free_bytes // step_bytes
        return max(int(steps * self._costs.largest_share), min(steps, 1)) * step_bytes

    def _whole(self, size_bytes: int) -> int:
        return -(-size_bytes // self._costs.block_step_bytes) * self._costs.block_step_bytes


# The simulated driver's own copies within device memory, and what blocks of memory cost the host.


def engine(machine: Machine, way: EngineWay, size_bytes: int) -> FakeTransfer:
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
    """A pool is empty at first, and keeps the block that is given back to it."""
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


# Streaming kernels on the simulated GPU, in every shape, and reads by so many threads an SM.


LOAD_BYTES = 16
LOADS = (1, 2, 4, 8)


def shapes(costs: FakeCosts, implementation: Implementation) -> Sequence[str]:
    """Raises Skip for a library that the simulated machine does not have."""
    memory = costs.memory
    if implementation == "cuda":
        return [name for name, shape in memory.shapes.items() if shape.compute_capability <= costs.compute_capability]
    if implementation not in memory.libraries:
        raise Skip(f"the simulated machine has no {implementation}")
    return [implementation]


def stream(
    machine: Machine, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
) -> FakeTransfer:
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

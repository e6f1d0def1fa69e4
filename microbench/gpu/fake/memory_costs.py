"""Costs of the simulated GPU's own memory and caches: made up, round numbers of the order of a data-centre GPU."""

from __future__ import annotations

import msgspec

from microbench.gpu.fake.graph_costs import Line
from microbench.gpu.memory_api import READ_ARRAYS, WRITTEN_ARRAYS, AllocationWay, AtomicType, EngineWay, StreamKernel


class Rates(msgspec.Struct, frozen=True):
    """A figure for reads alone, for writes alone, and for both in turn."""

    read: float
    write: float
    mixed: float

    def of(self, kernel: StreamKernel) -> float:
        """The one that holds for that kernel."""
        if not WRITTEN_ARRAYS[kernel]:
            return self.read
        return self.mixed if READ_ARRAYS[kernel] else self.write


class ShapeCosts(msgspec.Struct, frozen=True):
    """A way to run a streaming kernel: bytes under way on each SM, and the share of the memory's rate that it gets."""

    under_way_bytes: int
    share: Rates
    compute_capability: tuple[int, int] = (7, 0)  # from which on it exists


class LibraryCosts(msgspec.Struct, frozen=True):
    """What a library's kernels are like, and what a call of it keeps the host, in ns."""

    shape: ShapeCosts
    submit_ns: float


class EngineCosts(msgspec.Struct, frozen=True):
    """A call to the driver: host time in ns; on the device ``fixed_ns``, and a rate over bytes read and written."""

    submit_ns: float
    fixed_ns: float
    bytes_per_s: float


class BlockCosts(msgspec.Struct, frozen=True):
    """Host time in ns to have a block and to give it back, with what each of its steps of ``block_step_bytes`` adds.

    ``look_up_ns`` is what it takes where a pool has such a block already: then nothing is given back either.
    """

    have: Line
    release: Line
    look_up_ns: float | None = None
    put_back_ns: float = 0.0


def _shapes() -> dict[str, ShapeCosts]:
    return {
        "grid_16B_x4_t256": ShapeCosts(128 << 10, Rates(0.95, 1.0, 0.97)),
        "grid_16B_x1_t256": ShapeCosts(12 << 10, Rates(0.95, 0.98, 0.97)),
        "steps_16B_x4_b4_t512": ShapeCosts(96 << 10, Rates(0.97, 0.96, 0.96)),
        "bulk_16384B_x4_b2_t256": ShapeCosts(128 << 10, Rates(1.0, 0.97, 1.0), compute_capability=(9, 0)),
    }


def _libraries() -> dict[str, LibraryCosts]:
    return {
        "cupy": LibraryCosts(ShapeCosts(32 << 10, Rates(0.8, 0.96, 0.9)), submit_ns=9000),
        "numba": LibraryCosts(ShapeCosts(24 << 10, Rates(0.85, 0.92, 0.9)), submit_ns=12_000),
    }


def _engines() -> dict[EngineWay, EngineCosts]:
    return {"copy": EngineCosts(1500, 1100, 3.6e12), "copy_2d": EngineCosts(1900, 2100, 3.2e12)}


def _blocks() -> dict[AllocationWay, BlockCosts]:
    return {
        "malloc": BlockCosts(Line(60_000, 4000), Line(90_000, 2000)),
        "pool": BlockCosts(Line(65_000, 4000), Line(0, 0), look_up_ns=600, put_back_ns=500),
        "cupy_pool": BlockCosts(Line(70_000, 4000), Line(0, 0), look_up_ns=1200, put_back_ns=900),
        "host_pinned": BlockCosts(Line(30_000, 256_000), Line(20_000, 128_000)),
    }


class MemoryCosts(msgspec.Struct, frozen=True):
    """One cost for each thing that can be done with device memory; ``LinkCosts.arrives`` is for its data too.

    Rates of L1, L2 and shared memory are those of one SM, in bytes a clock cycle; latencies are in its cycles.
    """

    # DRAM, in bytes a second of the whole GPU.
    dram_bytes_per_s: Rates = Rates(4.2e12, 4.3e12, 4.0e12)
    dram_fetch_bytes: int = 64  # the least that is moved at once
    sector_bytes: int = 32  # the same between the L2 and an SM
    shapes: dict[str, ShapeCosts] = msgspec.field(default_factory=_shapes)
    libraries: dict[str, LibraryCosts] = msgspec.field(default_factory=_libraries)
    # Levels.
    shared_bytes: int = 227 << 10
    l1_bytes: int = 224 << 10
    l2_bytes: int = 48 << 20
    shared_bytes_per_clock: float = 126.0
    l1_bytes_per_clock: float = 120.0
    l2_bytes_per_clock: float = 44.0
    shared_cycles: float = 30.0
    l1_cycles: float = 36.0
    l2_near_cycles: float = 230.0
    l2_far_cycles: float = 290.0
    l2_near_share: float = 0.5  # of all lines
    dram_cycles: float = 900.0
    stamp_cycles: float = 14.0  # what a stamp adds to a single read
    # A cache of address translations, looked at by what the L1 does not have.
    translation_page_bytes: int = 2 << 20
    translation_entries: int = 4096
    translation_miss_cycles: float = 350.0
    # Atomic additions: how many threads of a warp go as one where they add to one word; units answer one at a time.
    merged_threads: dict[AtomicType, int] = msgspec.field(default_factory=lambda: {"int32": 32, "fp32": 4})
    atomic_units: int = 96  # in the L2; a word belongs to one
    atomic_cycles: float = 2.0  # for the words of one sector
    shared_merged_threads: dict[AtomicType, int] = msgspec.field(default_factory=lambda: {"int32": 32, "fp32": 1})
    shared_atomic_cycles: float = 4.0  # for words in different banks
    # Calls to the driver; a memset is that of FakeCosts.
    engines: dict[EngineWay, EngineCosts] = msgspec.field(default_factory=_engines)
    blocks: dict[AllocationWay, BlockCosts] = msgspec.field(default_factory=_blocks)
    # Room.
    total_bytes: int = 96 << 30
    context_bytes: int = 512 << 20
    block_step_bytes: int = 2 << 20  # blocks are whole steps
    largest_share: float = 0.99  # of what is free, in one block
    held_by_others_bytes: int = 0
    # Energy: the counter moves in steps.
    idle_power_w: float = 80.0
    joules_per_byte: float = 40e-12
    energy_step_s: float = 0.1

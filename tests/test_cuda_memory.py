"""Memory of a real GPU: kernels, copies and allocations are right, missing work is noticed, a full GPU is a skip."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast, get_args

import numpy as np
import pytest
from cuda.bindings import driver
from gpu_checks import may_skip, proven

from microbench.core.errors import MeasurementError, Skip
from microbench.experiments.memory.access import (
    AtomicType,
    RandomAccess,
    Spread,
    StrideAccess,
    atomics,
    occupied,
    scattered,
    strided,
)
from microbench.experiments.memory.allocation import AllocationWay, Taking, allocating, capacity
from microbench.experiments.memory.chase import LoadedLevel, chase, loaded_chase
from microbench.experiments.memory.engines import EngineWay, engine
from microbench.experiments.memory.fills import Filling, fill
from microbench.experiments.memory.levels import Level, Space, WriteAccess, read_set, written_set
from microbench.experiments.memory.shared import bank_reads, cluster_chase, read_cluster
from microbench.experiments.memory.stream_libraries import ELEMENT_BYTES, ROLES, DataType, Implementation, StreamKernel
from microbench.experiments.memory.streams import shapes, stream
from microbench.gpu.protocol.gpu import Gpu, Transfer
from microbench.meter.timer import gated

pytestmark = pytest.mark.gpu

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KERNELS = get_args(StreamKernel)
TYPES = get_args(DataType)
# With the largest size every shape loops several times, also through the stages of bulk copies.
SIZES = (8, 56, 4099, 5_000_011, 50_000_003)


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_shape_computes_right_results(gpu: Gpu, kernel: StreamKernel, dtype: DataType, size_bytes: int) -> None:
    names = shapes(gpu, kernel, "cuda")
    assert len(names) > 1
    for shape in names:
        proven(gpu, stream(gpu, kernel, dtype, size_bytes, shape), r"element 0 of|the sum is")


def test_size_bytes_counts_reads_and_writes(gpu: Gpu) -> None:
    sizes = {kernel: stream(gpu, kernel, "fp64", 800, shapes(gpu, kernel, "cuda")[0]).size_bytes for kernel in KERNELS}
    assert sizes == {"read": 800, "write": 800, "copy": 1600, "scale": 1600, "add": 2400, "triad": 2400, "dot": 1600}


def test_kernels_of_a_case_share_their_arrays(gpu: Gpu) -> None:
    copy = stream(gpu, "copy", "fp64", 4096, "past_16B_x1_t128")
    scale = stream(gpu, "scale", "fp64", 4096, "past_16B_x1_t128")
    copy.fresh()
    copy.submit(1)
    scale.submit(1)  # b = 3 c, and c is what the copy has written
    gpu.synchronize()
    assert copy.check()


@pytest.mark.parametrize("footprint_bytes", [16 * KIB, 80 * KIB, 500_000, 5 * MIB + 12345, 200 * MIB])
def test_every_word_of_a_set_is_read(gpu: Gpu, footprint_bytes: int) -> None:
    level = read_set(gpu, "global", footprint_bytes)
    for tiles in (1, 3, 64):
        taken = level.take(tiles * level.tile_bytes)
        assert taken.seconds > 0
        assert taken.cycles > tiles * level.tile_bytes / 128  # no SM reads more than 128 bytes a clock


@pytest.mark.parametrize("footprint_bytes", [16 * MIB, 20 * MIB + 12345, 200 * MIB])
@pytest.mark.parametrize("access", get_args(WriteAccess))
def test_every_word_of_a_set_is_written(gpu: Gpu, access: WriteAccess, footprint_bytes: int) -> None:
    level = written_set(gpu, access, footprint_bytes)
    for tiles in (1, 3, 64):  # less than a round of an SM's part, and several
        taken = level.take(tiles * level.tile_bytes)
        assert taken.seconds > 0
        assert taken.cycles > tiles * level.tile_bytes / 256


def test_the_l2_takes_writes_faster_than_dram(gpu: Gpu) -> None:
    """Measured on an H200: in the L2 4.65 TB/s of writes, half of what memory_levels reads there (9.6 TB/s), and 8.27
    TB/s of updates, both ways together; beyond it 4.33 TB/s of writes and 3.94 TB/s of updates.
    """
    l2_bytes = cast(int, gpu.info.l2_bytes)

    def rate(level: Level) -> float:
        moved_bytes = 16 * MIB // level.tile_bytes * level.tile_bytes
        level.take(moved_bytes)
        return moved_bytes * level.sms / min(level.take(moved_bytes).seconds for _ in range(3))

    for access in get_args(WriteAccess):
        within, beyond = (rate(written_set(gpu, access, size)) for size in (3 * l2_bytes // 8, 8 * l2_bytes))
        assert within > 1.03 * beyond  # writes alone gain 6 to 8 % on an H200
        assert beyond > 0.6 * rate(read_set(gpu, "global", 8 * l2_bytes))
        assert within < 2.2 * rate(read_set(gpu, "global", 3 * l2_bytes // 8))


def test_shared_memory_is_read(gpu: Gpu) -> None:
    level = read_set(gpu, "shared", 32 * KIB)
    taken = level.take(64 * level.tile_bytes)
    rate = 64 * level.tile_bytes / taken.cycles
    assert 32 < rate <= 128


# Measured on an H200: 14.5 B/clk/SM from the other block of a cluster of two, 11.7 and 12.5 in clusters of four and
# eight, and 181 to 206 cycles. Published for the H800: 180 cycles (Luo et al., arXiv 2402.13499, 2024).
@pytest.mark.parametrize("cluster_blocks", [2, 3, 4, 8, 16])
def test_other_blocks_of_a_cluster_are_read(gpu: Gpu, cluster_blocks: int) -> None:
    with may_skip():
        level = read_cluster(gpu, cluster_blocks)
        ring = cluster_chase(gpu, cluster_blocks)
    assert level.sms % cluster_blocks == 0
    for passes in (1, 2, cluster_blocks, 50):
        taken = level.take(passes * level.tile_bytes)
        assert taken.cycles > passes * level.tile_bytes / 128
    for reads in (1, 10, 333):
        assert ring.walk(reads).cycles > 0
    remote = ring.walk(2000).cycles / 2000
    own = chase(gpu, "shared", 16 * KIB).walk(2000).cycles / 2000
    assert 2 * own < remote < 1000
    assert np.median(ring.each_cycles(100)) > own


# Measured on an H200: from DRAM 4.53 TB/s by loads and 4.70 by bulk copies of 32 KiB; from the L2 34 to 38 B/clk/SM; by
# bulk copies of 512 B 6.1 B/clk/SM from either.
@pytest.mark.parametrize("piece_bytes", [512, 1024, 4096, 32768])
@pytest.mark.parametrize("way", get_args(Filling))
def test_shared_memory_is_filled_with_what_was_asked_for(gpu: Gpu, way: Filling, piece_bytes: int) -> None:
    level = fill(gpu, way, piece_bytes, 16 * MIB)
    for pieces in (1, 7, 100):
        taken = level.take(pieces * level.tile_bytes)
        assert taken.seconds > 0
        assert taken.cycles > pieces * piece_bytes / 128
    few, many = (level.take(size).cycles for size in (MIB, 4 * MIB))
    assert 2 < many / few < 5
    with pytest.raises(MeasurementError, match="multiple"):
        level.take(piece_bytes + 16)


def test_bulk_copies_of_large_pieces_are_as_fast_as_loads(gpu: Gpu) -> None:
    """Both are bound by DRAM; the peer is the L2's and DRAM's own rate, which memory_levels measures by reads."""
    copies, reads = fill(gpu, "bulk", 16 * KIB, GIB), read_set(gpu, "global", GIB)
    each = 16 * MIB
    for level in (copies, reads):
        level.take(each)
    assert 0.85 < reads.take(each).seconds / copies.take(each).seconds < 1.2


@pytest.mark.parametrize(("space", "footprint_bytes"), [("shared", 4 * KIB), ("global", 4 * KIB), ("global", 8 * MIB)])
def test_walks_end_at_their_line(gpu: Gpu, space: Space, footprint_bytes: int) -> None:
    ring = chase(gpu, space, footprint_bytes)
    for reads in (1, 10, 333):
        walk = ring.walk(reads)
        assert walk.cycles > 0
        assert walk.seconds >= 0
    assert ring.each_cycles(50).shape == (50,)
    if space == "global" and footprint_bytes < MIB:
        assert ring.lines_cycles(2).shape == (2, ring.lines)


def test_levels_answer_in_their_order(gpu: Gpu) -> None:
    l2_bytes = cast(int, gpu.info.l2_bytes)
    footprints = (16 * KIB, l2_bytes // 8, 8 * l2_bytes)
    cycles = []
    for footprint_bytes in footprints:
        ring = chase(gpu, "global", footprint_bytes)
        ring.walk(min(ring.lines, 1 << 18))
        cycles.append(ring.walk(2000).cycles / 2000)
    assert 10 < cycles[0] < cycles[1] / 2
    assert cycles[1] < cycles[2] / 1.3
    shared = chase(gpu, "shared", 16 * KIB)
    assert 10 < shared.walk(2000).cycles / 2000 < cycles[0] * 1.2
    assert np.median(shared.each_cycles(100)) > 10


def test_lines_are_timed_one_by_one(gpu: Gpu) -> None:
    ring = chase(gpu, "global", 4 * MIB)
    lines = ring.lines_cycles(3)
    assert lines.shape == (3, ring.lines)
    assert 50 < np.percentile(lines, 1) <= np.percentile(lines, 99) < 5000


@pytest.mark.parametrize("level", get_args(LoadedLevel))
def test_a_read_takes_longer_under_load(gpu: Gpu, level: LoadedLevel) -> None:
    """Expected on an H200. Idle: 683 cycles and 345 ns from DRAM, 280 cycles and 142 ns
    from the L2, which memory_latency measured there. Full load: 131 of 132 SMs of the 4.69 TB/s and 9.6 TB/s that
    memory_levels measured, so 4.6 and 9.5 TB/s. A read from DRAM takes over 1 us then: 64 KiB in flight on each SM are
    answered after 1.9 us at that rate (Little's law). Up to half of the load it takes at most 1.3 times as long as in
    an idle GPU.
    """
    reads, footprint_bytes = 4000, 256 * MIB if level == "dram" else 4 * MIB
    # In a set of 24 MiB SMs rarely share an answer of the L2; those of the load never do.
    plateau = read_set(gpu, "global", GIB if level == "dram" else 24 * MIB)
    plateau_bytes = 32 * MIB // plateau.tile_bytes * plateau.tile_bytes
    plateau.take(plateau_bytes)
    rate = plateau_bytes * plateau.sms / plateau.take(plateau_bytes).seconds
    alone = chase(gpu, "global", footprint_bytes)
    alone.walk(min(alone.lines, 1 << 19))
    alone_cycles = alone.walk(reads).cycles
    ring = loaded_chase(gpu, level)  # only now, because other sets drive its lines out of the L2
    full = ring.take(reads, math.inf)
    idle = [ring.take(reads, 0.0) for _ in range(3)]
    assert all(walk.bytes_per_s == 0.0 for walk in idle)
    cycles = min(walk.cycles for walk in idle)
    # In sets of different sizes, and read past the L1.
    assert cycles == pytest.approx(alone_cycles, rel=0.1)
    assert 0.8 * rate < full.bytes_per_s < 1.1 * rate
    assert full.cycles > (1.5 if level == "dram" else 1.02) * cycles
    for share in (0.2, 0.5, 0.8):
        walk = ring.take(reads, share * full.bytes_per_s)
        assert walk.bytes_per_s == pytest.approx(share * full.bytes_per_s, rel=0.05)
        assert 0.95 * cycles < walk.cycles < 1.05 * full.cycles
    assert ring.take(reads, 0.2 * full.bytes_per_s).cycles < 1.3 * cycles


CALLS = (1, 2)
WRONG = re.compile(r"the sum of the words|byte \d+ of|words have grown by|word \d+ of|no word of")


@pytest.mark.parametrize("size_bytes", [1, 16, 4099, 5_000_011])
@pytest.mark.parametrize(
    ("blocks_per_sm", "block_threads", "loads"), [(1, 32, 1), (2, 96, 2), (1, 1024, 4), (3, 64, 8)]
)
def test_few_threads_read_all(gpu: Gpu, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> None:
    read = occupied(gpu, blocks_per_sm, block_threads, loads, size_bytes)
    assert read.size_bytes == size_bytes
    assert not read.blocks
    proven(gpu, read, WRONG, CALLS)


@pytest.mark.parametrize("blocks_per_sm", [1, 2, 3, 4, 7, 8, 16])
def test_an_sm_holds_as_many_blocks_as_asked_for(gpu: Gpu, blocks_per_sm: int) -> None:
    proven(gpu, occupied(gpu, blocks_per_sm, 32, 4, 1_000_003), WRONG, CALLS)


@pytest.mark.parametrize("size_bytes", [4, 4099, 3_000_018])
@pytest.mark.parametrize("stride_bytes", [4, 12, 32, 128, 192, 260, 1024, 4096])
@pytest.mark.parametrize("access", get_args(StrideAccess))
def test_strided_words_are_all_accessed(gpu: Gpu, access: StrideAccess, stride_bytes: int, size_bytes: int) -> None:
    transfer = strided(gpu, access, stride_bytes, size_bytes)
    assert 0 < transfer.size_bytes <= size_bytes
    assert transfer.size_bytes % 4 == 0
    proven(gpu, transfer, WRONG, CALLS)


@pytest.mark.parametrize("footprint_bytes", [16, 64, 128 * KIB, MIB, 256 * MIB])
@pytest.mark.parametrize("access", get_args(RandomAccess))
def test_every_word_is_accessed_in_hashed_order(gpu: Gpu, access: RandomAccess, footprint_bytes: int) -> None:
    operations = scattered(gpu, access, footprint_bytes)
    assert operations.operations >= footprint_bytes // 8
    assert operations.operations % (footprint_bytes // 8) == 0
    proven(gpu, operations, WRONG, CALLS)


@pytest.mark.parametrize("spread", get_args(Spread))
@pytest.mark.parametrize("dtype", get_args(AtomicType))
@pytest.mark.parametrize("space", get_args(Space))
def test_additions_arrive(gpu: Gpu, space: Space, dtype: AtomicType, spread: Spread) -> None:
    operations = atomics(gpu, space, dtype, spread)
    assert operations.operations > 0
    proven(gpu, operations, WRONG, (1, 2, 5, 300))


def test_bank_conflicts_cost_a_cycle_for_each_word(gpu: Gpu) -> None:
    """Published: a bank serves one word in a cycle, and a word that all lanes read is sent to all of them at once (CUDA
    C++ Programming Guide, shared memory of compute capability 5.x and later).

    Measured on an H200 and an H100: 1.0 cycles without conflicts and 32 at 32 ways; a waited load takes 23 cycles
    without conflicts, as in memory_latency, and 2 more for each further word, so 85 at 32 ways.
    """
    reads, waited = 1000, {}
    for stride_bytes, ways in ((0, 1), (4, 1), (8, 2), (12, 1), (16, 4), (32, 8), (64, 16), (128, 32), (132, 1)):
        banks = bank_reads(gpu, stride_bytes)
        cycles = min(banks.together(reads) for _ in range(3)) / (reads * banks.loads)
        assert 0.99 * ways <= cycles <= 1.1 * ways + 0.1, (stride_bytes, cycles)
        waited[stride_bytes] = banks.alone(reads) / reads
    assert waited[0] == pytest.approx(waited[4], rel=0.02)
    assert waited[4] == pytest.approx(chase(gpu, "shared", 4 * KIB).walk(4000).cycles / 4000, rel=0.03)
    assert waited[4] < waited[8] < waited[16] < waited[32] < waited[64] < waited[128]
    assert waited[128] >= waited[4] + 31 * 0.9


REFUSED: list[tuple[Callable[[Gpu], object], type[Exception], str]] = [
    (lambda gpu: stream(gpu, "read", "fp64", 7, "past_16B_x1_t128"), Skip, "no element"),
    (lambda gpu: stream(gpu, "read", "fp64", 64, "sideways"), MeasurementError, "no shape"),
    (lambda gpu: read_set(gpu, "shared", MIB), Skip, "shared memory"),
    (lambda gpu: read_set(gpu, "global", 100), Skip, "16 KiB"),
    (lambda gpu: read_set(gpu, "global", 64 * KIB).take(1000), MeasurementError, "multiple"),
    (lambda gpu: written_set(gpu, "write", 64 * KIB), Skip, "64 KiB for each SM"),
    (lambda gpu: written_set(gpu, "update", 64 * MIB).take(64 * KIB), MeasurementError, "multiple"),
    (lambda gpu: chase(gpu, "global", 200), Skip, "two lines"),
    (lambda gpu: chase(gpu, "shared", 16 * KIB).lines_cycles(3), Skip, "not in the L2"),
    (lambda gpu: occupied(gpu, 4, 1024, 1, MIB), Skip, "an SM holds"),
    (lambda gpu: occupied(gpu, 64, 32, 1, MIB), Skip, "an SM holds"),
    (lambda gpu: occupied(gpu, 1, 32, 3, MIB), Skip, "none with 3"),
    (lambda gpu: strided(gpu, "read", 0, 4096), Skip, ""), (lambda gpu: strided(gpu, "read", 6, 4096), Skip, ""),
    (lambda gpu: strided(gpu, "read", 4, 3), Skip, ""),
    *((lambda gpu, size=size: scattered(gpu, "gather", size), Skip, "power of two") for size in (8, 24, 1000, 3 * MIB)),
    (lambda gpu: bank_reads(gpu, 6), Skip, "6 B apart"), (lambda gpu: bank_reads(gpu, MIB), Skip, "shared memory"),
]  # fmt: skip


@pytest.mark.parametrize(("use", "error", "words"), REFUSED)
def test_what_is_impossible_is_refused_in_words(
    gpu: Gpu, use: Callable[[Gpu], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words or None):
        use(gpu)


PACKAGES: dict[Implementation, str] = {"cupy": "cupy", "numba": "numba.cuda"}
AWKWARD = 1_000_003
QUEUED = 50


def made(gpu: Gpu, implementation: Implementation, kernel: StreamKernel, dtype: DataType, count: int) -> Transfer:
    """A kernel over arrays of ``count`` elements and all but one byte of another."""
    pytest.importorskip(PACKAGES[implementation])
    (shape,) = shapes(gpu, kernel, implementation)
    element_bytes = ELEMENT_BYTES[dtype]
    return stream(gpu, kernel, dtype, (count + 1) * element_bytes - 1, shape)


@pytest.mark.parametrize("count", [1, AWKWARD])
@pytest.mark.parametrize("dtype", get_args(DataType))
@pytest.mark.parametrize("kernel", get_args(StreamKernel))
@pytest.mark.parametrize("implementation", PACKAGES)
def test_every_kernel_is_right_and_noticed_if_missing(
    gpu: Gpu, implementation: Implementation, kernel: StreamKernel, dtype: DataType, count: int
) -> None:
    if implementation == "cupy" and kernel == "dot" and dtype in ("fp16", "int8"):
        with pytest.raises(Skip, match=r"cupy\.dot"):
            made(gpu, implementation, kernel, dtype, count)
        return
    transfer = made(gpu, implementation, kernel, dtype, count)
    assert transfer.size_bytes == count * ELEMENT_BYTES[dtype] * (ROLES[kernel].read + ROLES[kernel].written)
    proven(gpu, transfer, kernel, (1, 3))


@pytest.mark.parametrize("kernel", get_args(StreamKernel))
@pytest.mark.parametrize("implementation", PACKAGES)
def test_calls_can_be_queued_behind_a_gate(gpu: Gpu, implementation: Implementation, kernel: StreamKernel) -> None:
    transfer = made(gpu, implementation, kernel, "fp32", AWKWARD)
    take = gated(gpu, transfer.submit, QUEUED)
    transfer.fresh()
    (taken_s,) = take()
    assert taken_s > 0
    transfer.check()


def test_cupys_stream_is_restored_and_its_pool_emptied(opened: Gpu) -> None:
    cupy = pytest.importorskip("cupy")
    before = cupy.cuda.get_current_stream().ptr
    size_bytes = ELEMENT_BYTES["fp64"] * AWKWARD
    with opened.case():
        made(opened, "cupy", "dot", "fp64", AWKWARD)
        assert cupy.cuda.get_current_stream().ptr != before
    assert cupy.cuda.get_current_stream().ptr == before
    assert cupy.get_default_memory_pool().total_bytes() < size_bytes


LEFT_BYTES = 2 * GIB
TOO_MUCH_BYTES = 64 << 40
SLACK_BYTES = 4 * MIB  # the driver keeps a page or two for small blocks
# What the driver keeps for itself and gives up when memory is asked for that is not there.
DRIVERS_OWN_BYTES = 256 << 20
# A child of ours by its pid, or as NVML shows it in a container: by a pid of the host's, or not at all.
HELD = r"held by: this case \d.*, .*(pid \d+\).*|others not known \(.+\))"


def free_bytes() -> int:
    return int(driver.cuMemGetInfo()[1])


@pytest.mark.parametrize("size_bytes", [1, 5, 96, 4096, 65_537, 1_000_004, 3 * MIB])
@pytest.mark.parametrize("way", get_args(EngineWay))
def test_engines_write_every_byte_and_no_other(gpu: Gpu, way: EngineWay, size_bytes: int) -> None:
    transfer = engine(gpu, way, size_bytes)
    assert transfer.size_bytes == (1 if way == "memset" else 2) * size_bytes
    assert not transfer.blocks
    proven(gpu, transfer, "byte 0 of", (3, 3))


@pytest.mark.parametrize("size_bytes", [256, 3 * MIB, 64 * MIB])
@pytest.mark.parametrize("way", get_args(AllocationWay))
def test_memory_is_allocated_and_freed(gpu: Gpu, way: AllocationWay, size_bytes: int) -> None:
    allocating(gpu, way, size_bytes, 1)
    before = free_bytes()
    stamps = allocating(gpu, way, size_bytes, 4)
    assert stamps.shape == (4, len(Taking))
    assert (np.diff(stamps) >= 0).all()
    assert (stamps[:, Taking.TAKEN] > stamps[:, Taking.BEGIN]).all()
    assert before - free_bytes() <= SLACK_BYTES


def test_later_blocks_of_a_pool_cost_less_than_the_first(gpu: Gpu) -> None:
    stamps = allocating(gpu, "pool", GIB, 5)
    taken = stamps[:, Taking.TAKEN] - stamps[:, Taking.BEGIN]
    assert np.median(taken[1:]) * 3 < taken[0]


@pytest.mark.parametrize("way", ["malloc", "pool", "cupy_pool"])
def test_too_much_device_memory_is_a_skip(gpu: Gpu, way: AllocationWay) -> None:
    before = free_bytes()
    with pytest.raises(
        Skip, match=r"64 TiB of device memory asked, [0-9.]+ GiB are free on the GPU of [0-9.]+ GiB; held"
    ):
        allocating(gpu, way, TOO_MUCH_BYTES, 2)
    assert before - free_bytes() <= SLACK_BYTES


def test_measuring_the_capacity_frees_all_memory(gpu: Gpu) -> None:
    before = free_bytes()
    facts = {fact.name: fact for fact in capacity(gpu)}
    assert before - free_bytes() <= SLACK_BYTES
    assert all(fact.value is not None or fact.reason for fact in facts.values())
    assert facts["free_bytes"].value == before
    largest, most = facts["largest_block_bytes"].value, facts["obtainable_bytes"].value
    if largest is not None:
        assert 0.5 * before < float(largest) <= float(most or 0) <= before + DRIVERS_OWN_BYTES
    assert facts["memory_holders"].value or facts["memory_holders"].reason


def test_the_energy_counter_rises(gpu: Gpu) -> None:
    try:
        before = gpu.energy_j()
    except Skip:
        pytest.skip("this GPU counts no energy")
    gpu.pause(0.3)
    assert 0 < gpu.energy_j() - before < 1000


@pytest.fixture
def full(gpu: Gpu) -> Iterator[None]:
    """Another process holds all of the GPU's memory but LEFT_BYTES."""
    command = [sys.executable, str(Path(__file__).with_name("holds_memory.py")), gpu.info.uuid, str(LEFT_BYTES)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:  # closes its standard input at the end, and waits for it
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield


@pytest.mark.usefixtures("full")
def test_on_a_full_gpu_a_skip_names_the_holder(gpu: Gpu) -> None:
    asked = r"8 GiB of device memory asked, [0-9.]+ [KMG]iB are free on the GPU of [0-9.]+ GiB; "
    for take in (
        lambda: engine(gpu, "copy", 8 * GIB),
        lambda: allocating(gpu, "malloc", 8 * GIB, 1),
        lambda: allocating(gpu, "pool", 8 * GIB, 1),
    ):
        with pytest.raises(Skip, match=asked + HELD):
            take()
    transfer = engine(gpu, "copy", 64 * MIB)
    transfer.fresh()
    transfer.submit(1)
    gpu.synchronize()
    transfer.check()
    facts = {fact.name: fact for fact in capacity(gpu)}
    assert facts["obtainable_bytes"].value is None
    assert "could make it fail" in str(facts["obtainable_bytes"].reason)


@pytest.mark.usefixtures("full")
def test_on_a_full_gpu_a_run_measures_the_sizes_that_fit(gpu: Gpu) -> None:
    command = [sys.executable, "-m", "microbench", "run", "memory_stream", "memory_copy", "--quick", "--json"]
    command += ["--device", gpu.info.uuid, "--set", f"size_bytes={64 * MIB},{8 * GIB}", "--set", "way=copy"]
    command += ["--set", "kernel=copy", "--set", "dtype=fp64", "--set", "implementation=cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout, f"exit code {done.returncode} and no output; standard error:\n{done.stderr}"
    outcomes = json.loads(done.stdout)["run"]["outcomes"]
    by_size = {(one["case"]["benchmark"], one["case"]["params"]["size_bytes"]): one for one in outcomes}
    for name in ("memory_stream", "memory_copy"):
        assert by_size[name, 64 * MIB]["status"] == "ok"
        skipped = by_size[name, 8 * GIB]
        assert skipped["status"] == "skipped"
        assert "8 GiB of device memory asked" in skipped["reason"]
        assert "held by: this case" in skipped["reason"]

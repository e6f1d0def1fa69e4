"""Memory of a real GPU: kernels of CUDA, CuPy and Numba are right, missing work is noticed, levels are in order."""

from __future__ import annotations

import re
from typing import cast, get_args

import numpy as np
import pytest
from gpu_checks import proven

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import (
    ELEMENT_BYTES,
    READ_ARRAYS,
    WRITTEN_ARRAYS,
    AtomicType,
    DataType,
    Implementation,
    RandomAccess,
    Space,
    Spread,
    StreamKernel,
    StrideAccess,
)
from microbench.measure.timer import gated

pytestmark = pytest.mark.gpu

KIB, MIB = 1 << 10, 1 << 20
KERNELS = get_args(StreamKernel)
TYPES = get_args(DataType)
# With the largest size every shape loops several times, also through the stages of bulk copies.
SIZES = (8, 56, 4099, 5_000_011, 50_000_003)


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_shape_computes_the_right_result(
    gpu: Gpu, kernel: StreamKernel, dtype: DataType, size_bytes: int
) -> None:
    shapes = gpu.memory.shapes(kernel, dtype, "cuda")
    assert len(shapes) > 1
    for shape in shapes:
        proven(gpu, gpu.memory.stream(kernel, dtype, "cuda", size_bytes, shape), r"element 0 of|the sum is")


def test_size_bytes_counts_reads_and_writes(gpu: Gpu) -> None:
    sizes = {
        kernel: gpu.memory.stream(kernel, "fp64", "cuda", 800, gpu.memory.shapes(kernel, "fp64", "cuda")[0]).size_bytes
        for kernel in KERNELS
    }
    assert sizes == {"read": 800, "write": 800, "copy": 1600, "scale": 1600, "add": 2400, "triad": 2400, "dot": 1600}


def test_kernels_of_a_case_share_their_arrays(gpu: Gpu) -> None:
    copy = gpu.memory.stream("copy", "fp64", "cuda", 4096, "past_16B_x1_t128")
    scale = gpu.memory.stream("scale", "fp64", "cuda", 4096, "past_16B_x1_t128")
    copy.fresh()
    copy.submit(1)
    scale.submit(1)  # b = 3 c, and c is what the copy has written
    gpu.synchronize()
    assert copy.check()


def test_no_element_is_a_skip_and_an_unknown_shape_an_error(gpu: Gpu) -> None:
    with pytest.raises(Skip, match="no element"):
        gpu.memory.stream("read", "fp64", "cuda", 7, "past_16B_x1_t128")
    with pytest.raises(MeasurementError, match="no shape"):
        gpu.memory.stream("read", "fp64", "cuda", 64, "sideways")


@pytest.mark.parametrize("footprint_bytes", [16 * KIB, 80 * KIB, 500_000, 5 * MIB + 12345, 200 * MIB])
def test_every_word_of_a_set_is_read(gpu: Gpu, footprint_bytes: int) -> None:
    level = gpu.memory.level("global", footprint_bytes)
    for tiles in (1, 3, 64):
        taken = level.take(tiles * level.tile_bytes)
        assert taken.seconds > 0
        assert taken.cycles > tiles * level.tile_bytes / 128  # no SM reads more than 128 bytes a clock


def test_shared_memory_is_read(gpu: Gpu) -> None:
    level = gpu.memory.level("shared", 32 * KIB)
    taken = level.take(64 * level.tile_bytes)
    rate = 64 * level.tile_bytes / taken.cycles
    assert 32 < rate <= 128
    with pytest.raises(Skip, match="shared memory"):
        gpu.memory.level("shared", MIB)


def test_impossible_sets_are_skipped(gpu: Gpu) -> None:
    with pytest.raises(Skip, match="16 KiB"):
        gpu.memory.level("global", 100)
    with pytest.raises(MeasurementError, match="multiple"):
        gpu.memory.level("global", 64 * KIB).take(1000)
    with pytest.raises(Skip, match="two lines"):
        gpu.memory.chase("global", 200)


@pytest.mark.parametrize(("space", "footprint_bytes"), [("shared", 4 * KIB), ("global", 4 * KIB), ("global", 8 * MIB)])
def test_walks_end_at_their_line(gpu: Gpu, space: Space, footprint_bytes: int) -> None:
    chase = gpu.memory.chase(space, footprint_bytes)
    for reads in (1, 10, 333):
        walk = chase.walk(reads)
        assert walk.cycles > 0
        assert walk.seconds >= 0
    assert chase.each_cycles(50).shape == (50,)
    if space == "global" and footprint_bytes < MIB:
        assert chase.lines_cycles(2).shape == (2, chase.lines)


def test_levels_answer_in_their_order(gpu: Gpu) -> None:
    l2_bytes = cast(int, gpu.info.l2_bytes)
    footprints = (16 * KIB, l2_bytes // 8, 8 * l2_bytes)
    cycles = []
    for footprint_bytes in footprints:
        chase = gpu.memory.chase("global", footprint_bytes)
        chase.walk(min(chase.lines, 1 << 18))
        cycles.append(chase.walk(2000).cycles / 2000)
    assert 10 < cycles[0] < cycles[1] / 2
    assert cycles[1] < cycles[2] / 1.3
    shared = gpu.memory.chase("shared", 16 * KIB)
    assert 10 < shared.walk(2000).cycles / 2000 < cycles[0] * 1.2
    assert np.median(shared.each_cycles(100)) > 10


def test_lines_are_timed_one_by_one(gpu: Gpu) -> None:
    chase = gpu.memory.chase("global", 4 * MIB)
    lines = chase.lines_cycles(3)
    assert lines.shape == (3, chase.lines)
    assert 50 < np.percentile(lines, 1) <= np.percentile(lines, 99) < 5000
    with pytest.raises(Skip, match="not in the L2"):
        gpu.memory.chase("shared", 16 * KIB).lines_cycles(3)


CALLS = (1, 2)
WRONG = re.compile(r"the sum of the words|byte \d+ of|words have grown by|word \d+ of|no word of")


@pytest.mark.parametrize("size_bytes", [1, 16, 4099, 5_000_011])
@pytest.mark.parametrize(
    ("blocks_per_sm", "block_threads", "loads"), [(1, 32, 1), (2, 96, 2), (1, 1024, 4), (3, 64, 8)]
)
def test_few_threads_read_every_byte(
    gpu: Gpu, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int
) -> None:
    read = gpu.memory.occupied(blocks_per_sm, block_threads, loads, size_bytes)
    assert read.size_bytes == size_bytes
    assert not read.blocks
    proven(gpu, read, WRONG, CALLS)


@pytest.mark.parametrize("blocks_per_sm", [1, 2, 3, 4, 7, 8, 16])
def test_an_sm_holds_as_many_blocks_as_asked_for(gpu: Gpu, blocks_per_sm: int) -> None:
    proven(gpu, gpu.memory.occupied(blocks_per_sm, 32, 4, 1_000_003), WRONG, CALLS)


@pytest.mark.parametrize(("blocks_per_sm", "block_threads", "loads", "words"), [
    (4, 1024, 1, "an SM holds"), (64, 32, 1, "an SM holds"), (1, 32, 3, "none with 3"),
])  # fmt: skip
def test_more_blocks_than_an_sm_holds_are_skipped(
    gpu: Gpu, blocks_per_sm: int, block_threads: int, loads: int, words: str
) -> None:
    with pytest.raises(Skip, match=words):
        gpu.memory.occupied(blocks_per_sm, block_threads, loads, MIB)


@pytest.mark.parametrize("size_bytes", [4, 4099, 3_000_018])
@pytest.mark.parametrize("stride_bytes", [4, 12, 32, 128, 192, 260, 1024, 4096])
@pytest.mark.parametrize("access", get_args(StrideAccess))
def test_strided_words_are_all_accessed(gpu: Gpu, access: StrideAccess, stride_bytes: int, size_bytes: int) -> None:
    transfer = gpu.memory.strided(access, stride_bytes, size_bytes)
    assert 0 < transfer.size_bytes <= size_bytes
    assert transfer.size_bytes % 4 == 0
    proven(gpu, transfer, WRONG, CALLS)


@pytest.mark.parametrize(("stride_bytes", "size_bytes"), [(0, 4096), (6, 4096), (4, 3)])
def test_impossible_strides_are_skipped(gpu: Gpu, stride_bytes: int, size_bytes: int) -> None:
    with pytest.raises(Skip):
        gpu.memory.strided("read", stride_bytes, size_bytes)


@pytest.mark.parametrize("footprint_bytes", [16, 64, 128 * KIB, MIB, 256 * MIB])
@pytest.mark.parametrize("access", get_args(RandomAccess))
def test_every_word_is_accessed_in_hashed_order(gpu: Gpu, access: RandomAccess, footprint_bytes: int) -> None:
    operations = gpu.memory.scattered(access, footprint_bytes)
    assert operations.operations >= footprint_bytes // 8
    assert operations.operations % (footprint_bytes // 8) == 0
    proven(gpu, operations, WRONG, CALLS)


@pytest.mark.parametrize("footprint_bytes", [8, 24, 1000, 3 * MIB])
def test_sets_that_are_not_a_power_of_two_are_skipped(gpu: Gpu, footprint_bytes: int) -> None:
    with pytest.raises(Skip, match="power of two"):
        gpu.memory.scattered("gather", footprint_bytes)


@pytest.mark.parametrize("spread", get_args(Spread))
@pytest.mark.parametrize("dtype", get_args(AtomicType))
@pytest.mark.parametrize("space", get_args(Space))
def test_additions_arrive(gpu: Gpu, space: Space, dtype: AtomicType, spread: Spread) -> None:
    operations = gpu.memory.atomics(space, dtype, spread)
    assert operations.operations > 0
    proven(gpu, operations, WRONG, (1, 2, 5, 300))


PACKAGES: dict[Implementation, str] = {"cupy": "cupy", "numba": "numba.cuda"}
AWKWARD = 1_000_003
QUEUED = 50


def made(gpu: Gpu, implementation: Implementation, kernel: StreamKernel, dtype: DataType, count: int) -> Transfer:
    """A kernel over arrays of ``count`` elements and all but one byte of another."""
    pytest.importorskip(PACKAGES[implementation])
    (shape,) = gpu.memory.shapes(kernel, dtype, implementation)
    element_bytes = ELEMENT_BYTES[dtype]
    return gpu.memory.stream(kernel, dtype, implementation, (count + 1) * element_bytes - 1, shape)


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
    assert transfer.size_bytes == count * ELEMENT_BYTES[dtype] * (READ_ARRAYS[kernel] + WRITTEN_ARRAYS[kernel])
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

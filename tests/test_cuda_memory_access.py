"""Access patterns on a real GPU: what is read, written or added is right, and missing work is noticed."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from gpu_checks import proven

from microbench.core.errors import Skip
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import AtomicType, RandomAccess, Space, Spread, StrideAccess

pytestmark = pytest.mark.gpu

KIB, MIB = 1 << 10, 1 << 20
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

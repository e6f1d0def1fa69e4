"""Memory and caches of a real GPU: kernels compute what they should, missing work is noticed, levels are in order."""

from __future__ import annotations

from typing import cast, get_args

import numpy as np
import pytest
from gpu_checks import proven

from microbench.core.errors import MeasurementError, Skip
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.memory import DataType, Space, StreamKernel

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

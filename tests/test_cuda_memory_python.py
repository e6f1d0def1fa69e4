"""Streaming kernels of CuPy and Numba on a real GPU: every kernel is right, and missing work is noticed."""

from __future__ import annotations

from typing import get_args

import pytest
from gpu_checks import proven

from microbench.core.errors import Skip
from microbench.gpu.protocol.gpu import Gpu
from microbench.gpu.protocol.links import Transfer
from microbench.gpu.protocol.memory import (
    ELEMENT_BYTES,
    READ_ARRAYS,
    WRITTEN_ARRAYS,
    DataType,
    Implementation,
    StreamKernel,
)
from microbench.measure.timer import gated

pytestmark = pytest.mark.gpu

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

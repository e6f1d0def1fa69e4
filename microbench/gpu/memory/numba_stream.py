"""Streaming kernels as a Numba user writes them: the kernels of kernels/numba_stream.py, configured once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from microbench.gpu.context import check
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers import numba_shared
from microbench.gpu.layers.base import load
from microbench.gpu.link_api import Transfer
from microbench.gpu.memory.arrays import ROLES, SCALAR, Arrays
from microbench.gpu.memory.python_stream import NUMPY_TYPES, PythonStream
from microbench.gpu.memory_api import DataType, StreamKernel

# A grid-stride loop over as many blocks as NVIDIA's own introduction to such loops takes.
BLOCKS_PER_SM = 32
POISON_BYTE = 0xFF  # eight of them are no number as a float64, and the largest one as a uint64
SUM_TYPES: dict[DataType, type[np.float64] | type[np.uint64]] = {
    "fp64": np.float64, "fp32": np.float64, "fp16": np.float64, "int8": np.uint64,
}  # fmt: skip


class DeviceVector:
    """Device memory as the CUDA array interface has it; it names no stream, so that nobody waits for one."""

    def __init__(self, address: int, count: int, dtype: npt.DTypeLike) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "data": (address, False),
            "version": 3,
        }


class AtomicSum:
    """A call that clears one element and then has every block add to it: a Sum of python_stream.py."""

    def __init__(self, case: Case, dtype: DataType) -> None:
        self._case = case
        self._dtype = SUM_TYPES[dtype]
        self._address = case.context.device_memory(np.dtype(self._dtype).itemsize)
        self.vector = DeviceVector(self._address, 1, self._dtype)

    def poison(self) -> None:
        """See Sum."""
        check(driver.cuMemsetD8(self._address, POISON_BYTE, np.dtype(self._dtype).itemsize))
        self._case.context.synchronize()

    def total(self) -> float:
        """See Sum."""
        value: float = self._case.context.read(self._address, 1, self._dtype)[0].item()
        return value


def numba_stream(case: Case, arrays: Arrays, kernel: StreamKernel) -> Transfer:
    """``kernel`` over ``arrays`` by Numba: threads take one element at a time, in the array's own type.

    A sum takes two launches a call: one clears the total, one adds to it, by shared memory and an atomic addition a
    block. Raises Skip where Numba is missing or sees no GPU.
    """
    cuda = numba_shared.load_numba_cuda()
    kernels = load("microbench._kernels.numba_stream", numba_shared.INSTALL)
    stream = cuda.external_stream(case.stream(0))
    blocks = BLOCKS_PER_SM * case.context.attribute("MULTIPROCESSOR_COUNT")
    dtype, roles = NUMPY_TYPES[arrays.dtype], ROLES[kernel]
    names = [name for name in (roles.out, roles.first, roles.second) if name is not None]
    vectors = [cuda.as_cuda_array(DeviceVector(arrays.address(name), arrays.count, dtype)) for name in names]
    if roles.out is None:
        found = AtomicSum(case, arrays.dtype)
        total = cuda.as_cuda_array(found.vector)
        with numba_shared.few_blocks():
            clear = partial(kernels.clear[1, 1, stream], total)
        add_up = getattr(kernels.SUMS[arrays.dtype], kernel)
        launch = partial(add_up[blocks, kernels.BLOCK_THREADS, stream], total, *vectors)
        return PythonStream(case, arrays, kernel, partial(_both, clear, launch), found)
    scalars = [np.dtype(dtype).type(SCALAR)] if kernel in ("write", "scale", "triad") else []
    configured = getattr(kernels, kernel)[blocks, kernels.BLOCK_THREADS, stream]
    return PythonStream(case, arrays, kernel, partial(configured, *vectors, *scalars), None)


def _both(clear: Callable[[], Any], launch: Callable[[], Any]) -> None:
    clear()
    launch()

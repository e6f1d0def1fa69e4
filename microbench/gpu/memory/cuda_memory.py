"""Device memory on a real GPU: see memory_api.py for what each method promises."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.gpu.bound import IntArray
from microbench.gpu.graphs.base import Case
from microbench.gpu.link_api import Transfer
from microbench.gpu.memory import access as accesses
from microbench.gpu.memory.additions import atomics
from microbench.gpu.memory.allocations import allocating
from microbench.gpu.memory.arrays import Arrays
from microbench.gpu.memory.capacity import capacity
from microbench.gpu.memory.chase import CudaLocalChase
from microbench.gpu.memory.cupy_stream import cupy_stream
from microbench.gpu.memory.engines import engine
from microbench.gpu.memory.holders import holders
from microbench.gpu.memory.levels import CudaLevel
from microbench.gpu.memory.numba_stream import numba_stream
from microbench.gpu.memory.streams import CudaStream, shapes_of
from microbench.gpu.memory_api import (
    AllocationWay,
    AtomicType,
    DataType,
    EngineWay,
    Implementation,
    Level,
    LocalChase,
    Operations,
    RandomAccess,
    Space,
    Spread,
    StreamKernel,
    StrideAccess,
)
from microbench.gpu.nvml import NvmlGpu
from microbench.model import Fact

LIBRARIES = {"cupy": cupy_stream, "numba": numba_stream}


class CudaMemory:
    """The memory of one GPU for one case. Streaming kernels of one type and size share their arrays."""

    def __init__(self, case: Case, nvml: NvmlGpu) -> None:
        self._case = case
        self._nvml = nvml
        self._arrays: dict[tuple[DataType, int], Arrays] = {}

    def shapes(self, kernel: StreamKernel, dtype: DataType, implementation: Implementation) -> Sequence[str]:
        """See DeviceMemory."""
        return shapes_of(self._case.context, kernel) if implementation == "cuda" else (implementation,)

    def stream(
        self, kernel: StreamKernel, dtype: DataType, implementation: Implementation, size_bytes: int, shape: str
    ) -> Transfer:
        """See DeviceMemory."""
        if (dtype, size_bytes) not in self._arrays:
            self._arrays[dtype, size_bytes] = Arrays(self._case, dtype, size_bytes)
        arrays = self._arrays[dtype, size_bytes]
        if implementation == "cuda":
            return CudaStream(self._case, arrays, kernel, shape)
        return LIBRARIES[implementation](self._case, arrays, kernel)

    def level(self, space: Space, footprint_bytes: int) -> Level:
        """See DeviceMemory."""
        return CudaLevel(self._case, space, footprint_bytes)

    def chase(self, space: Space, footprint_bytes: int) -> LocalChase:
        """See DeviceMemory."""
        return CudaLocalChase(self._case, space, footprint_bytes)

    def occupied(self, blocks_per_sm: int, block_threads: int, loads: int, size_bytes: int) -> Transfer:
        """See DeviceMemory."""
        return accesses.occupied(self._case, blocks_per_sm, block_threads, loads, size_bytes)

    def strided(self, access: StrideAccess, stride_bytes: int, size_bytes: int) -> Transfer:
        """See DeviceMemory."""
        return accesses.strided(self._case, access, stride_bytes, size_bytes)

    def scattered(self, access: RandomAccess, footprint_bytes: int) -> Operations:
        """See DeviceMemory."""
        return accesses.scattered(self._case, access, footprint_bytes)

    def atomics(self, space: Space, dtype: AtomicType, spread: Spread) -> Operations:
        """See DeviceMemory."""
        return atomics(self._case, space, dtype, spread)

    def engine(self, way: EngineWay, size_bytes: int) -> Transfer:
        """See DeviceMemory."""
        return engine(self._case, way, size_bytes)

    def allocating(self, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
        """See DeviceMemory."""
        return allocating(self._case, way, size_bytes, count)

    def capacity(self) -> Sequence[Fact]:
        """See DeviceMemory."""
        return capacity(self._case, self._nvml)

    def peers(self) -> Fact:
        """See DeviceMemory."""
        return holders(self._nvml)

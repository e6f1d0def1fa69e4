"""Shared memory of the other blocks of a cluster: reads by every SM again and again, and dependent reads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from microbench.core.errors import MeasurementError, Skip
from microbench.core.ops import Launch
from microbench.core.units import size
from microbench.gpu.cuda import driver
from microbench.gpu.cuda.case import Case
from microbench.gpu.cuda.context import check
from microbench.gpu.cuda.memory.levels import BLOCK_THREADS, CudaLevel, CudaLocalChase
from microbench.gpu.cuda.submit import Parameters, clusters_at_once, launch, run
from microbench.gpu.cuda.timing import NANOSECOND_S, STAMPS, alone_on_its_sm, require_an_sm_each
from microbench.gpu.protocol.memory import Pass, Space

# As read_cluster of kernels/memory_levels.cu has it.
CLUSTER_BYTES, CLUSTER_VECTORS = 64 << 10, 4096
# Larger clusters must be allowed for each kernel, and not every GPU has them.
PORTABLE_BLOCKS = 8
SEED = 9
Words = npt.NDArray[np.uint32]


def level(case: Case, space: Space, footprint_bytes: int, cluster_blocks: int = 1) -> CudaLevel | CudaClusterLevel:
    """A Level. Raises Skip for clusters of another space than shared memory, and where the GPU has no such clusters."""
    if cluster_blocks == 1:
        return CudaLevel(case, space, footprint_bytes)
    require_clusters(case, space)
    return CudaClusterLevel(case, footprint_bytes, cluster_blocks)


def chase(case: Case, space: Space, footprint_bytes: int, cluster_blocks: int = 1) -> CudaLocalChase:
    """A LocalChase. Raises Skip as ``level`` does."""
    if cluster_blocks == 1:
        return CudaLocalChase(case, space, footprint_bytes)
    require_clusters(case, space)
    return CudaClusterChase(case, footprint_bytes, cluster_blocks)


def require_clusters(case: Case, space: Space) -> None:
    """Raise Skip for a GPU without clusters and for memory that blocks do not have of their own."""
    if space != "shared":
        raise Skip("the blocks of a cluster share their shared memory only")
    case.require_capability(9, 0, "a cluster")


def clusters_here(case: Case, function: int, shape: Launch, shared_bytes: int, cluster_blocks: int) -> int:
    """How many such clusters run at the same time. Raises Skip if none does."""
    if cluster_blocks > PORTABLE_BLOCKS:
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        check(driver.cuFuncSetAttribute(function, allowed, 1))
    found = clusters_at_once(case, function, shape, shared_bytes, cluster_blocks)
    if not found:
        raise Skip(f"this GPU runs no cluster of {cluster_blocks} blocks of {size(shared_bytes)} of shared memory")
    return found


def cluster_sums(each: Words, cluster_blocks: int, passes: int) -> Words:
    """What each block adds up, modulo 2**32: its cluster's other blocks in turn, the next one first.

    ``each`` are the sums of what the blocks hold.
    """
    others = cluster_blocks - 1
    held = each.reshape(-1, cluster_blocks).astype(np.uint64)
    sums = np.zeros_like(held)
    for distance in range(1, cluster_blocks):
        times = passes // others + (distance <= passes % others)
        sums += np.roll(held, -distance, axis=1) * np.uint64(times)
    return sums.reshape(-1).astype(np.uint32)


class CudaClusterLevel:
    """A Level with as many clusters as run at the same time, one block of 1024 threads on each of their SMs."""

    tile_bytes = CLUSTER_BYTES
    cache_bytes = 0

    def __init__(self, case: Case, footprint_bytes: int, cluster_blocks: int) -> None:
        if footprint_bytes != CLUSTER_BYTES:
            raise Skip(f"blocks of clusters are read with {size(CLUSTER_BYTES)} each, not {size(footprint_bytes)}")
        self._case, self._blocks = case, cluster_blocks
        function = case.function("memory_levels", "read_cluster")
        shared_bytes = alone_on_its_sm(case, function)
        shape = Launch(grid_blocks=cluster_blocks, block_threads=BLOCK_THREADS, kind="cluster")
        self.sms = cluster_blocks * clusters_here(case, function, shape, shared_bytes, cluster_blocks)
        sums = case.device_memory(4 * self.sms)
        run(case, case.function("memory_levels", "tile_sums"), self.sms, 256, (SEED, CLUSTER_VECTORS, sums))
        self._each: Words = case.read(sums, self.sms, np.uint32)
        self._out = case.device_memory(STAMPS.itemsize * self.sms)
        self._passes = np.zeros(1, dtype=np.uint64)
        row = Parameters([(SEED, 0, self._out)])
        row.point(1, self._passes.ctypes.data)
        shape = Launch(grid_blocks=self.sms, block_threads=BLOCK_THREADS, kind="cluster")
        self._submit = launch(
            case, function, shape, row, shared_bytes=shared_bytes, keep=(self._passes,), cluster_blocks=cluster_blocks
        )

    def take(self, bytes_per_sm: int) -> Pass:
        passes, rest = divmod(bytes_per_sm, CLUSTER_BYTES)
        if rest:
            raise MeasurementError(f"{bytes_per_sm} B are no multiple of {CLUSTER_BYTES} B")
        self._passes[0] = passes
        self._case.clear(self._out, STAMPS.itemsize * self.sms)
        self._submit(1)
        self._case.synchronize()
        stamps = self._case.read(self._out, self.sms, STAMPS)
        if not np.array_equal(stamps["sum"], cluster_sums(self._each, self._blocks, passes)):
            raise MeasurementError("the sum over all words read is not that of the other blocks")
        require_an_sm_each(stamps)
        elapsed_ns = int(stamps["end_ns"].max()) - int(stamps["begin_ns"].min())
        # The time of all blocks together, as in level_pass, in cycles of the SMs' clock.
        per_ns = float(np.median(stamps["cycles"] / (stamps["end_ns"] - stamps["begin_ns"])))
        return Pass(elapsed_ns * NANOSECOND_S, elapsed_ns * per_ns)


class CudaClusterChase(CudaLocalChase):
    """A LocalChase from the first block of one cluster; its lines lie in the other blocks."""

    def __init__(self, case: Case, footprint_bytes: int, cluster_blocks: int) -> None:
        super().__init__(case, "shared", footprint_bytes)
        self._way = "cluster"
        self._shape = Launch(grid_blocks=cluster_blocks, block_threads=1, kind="cluster")
        for kernel in ("walk_cluster", "walk_cluster_stamped"):
            clusters_here(case, case.function("memory_levels", kernel), self._shape, footprint_bytes, cluster_blocks)

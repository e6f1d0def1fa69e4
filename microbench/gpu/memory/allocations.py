"""What it costs to have memory: by the driver's own call, from pools, pinned on the host; given back at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from cuda.bindings import driver

from microbench.errors import Skip
from microbench.gpu.bound import IntArray
from microbench.gpu.context import HOST_PORTABLE_MAPPED, Context, check, check_code, entry_point
from microbench.gpu.graphs.base import Case
from microbench.gpu.layers.cupy_shared import load_cupy
from microbench.gpu.links.memory import require_taken
from microbench.gpu.links.page_loops import take_and_release
from microbench.gpu.memory_api import Allocation, AllocationWay
from microbench.host.memory_room import require_room
from microbench.host.native import c_address

# What a pool keeps when the GPU becomes idle: all of it.
KEEP_ALL = (1 << 64) - 1
WARM_UP_BYTES = 256


def allocating(case: Case, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """See DeviceMemory.allocating. Nothing of it outlives the call, nor an error.

    A pool is made for the call, has given memory once and is emptied: its first block is the driver's, the rest are
    its own. The GPU is idle, so that cuMemFree has nothing to wait for.
    """
    out: IntArray = np.zeros((count, len(Allocation)), dtype=np.int64)
    case.context.make_current()
    case.context.synchronize()
    ways: dict[AllocationWay, Callable[[Case, int, IntArray], None]] = {
        "malloc": _malloc, "pool": _pool, "cupy_pool": _cupy_pool, "host_pinned": _host_pinned,
    }  # fmt: skip
    ways[way](case, size_bytes, out)
    return out


def _malloc(case: Case, size_bytes: int, out: IntArray) -> None:
    refused = partial(case.context.require_room, size_bytes=size_bytes)
    Pair("cuMemAlloc", (0, 0), "cuMemFree", 0).timed(size_bytes, out, refused)


def _host_pinned(case: Case, size_bytes: int, out: IntArray) -> None:
    """Portable and mapped, as the buffers that are copied from."""
    require_room(size_bytes, "pinned host memory")
    refused = partial(require_taken, kind="pinned", size_bytes=size_bytes)
    Pair("cuMemHostAlloc", (HOST_PORTABLE_MAPPED, 0), "cuMemFreeHost", 0).timed(size_bytes, out, refused)


def _pool(case: Case, size_bytes: int, out: IntArray) -> None:
    if not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
        raise Skip("this GPU or driver has no memory pools")
    pool, stream = _own_pool(case.context), case.stream(0)
    pair = Pair("cuMemAllocFromPoolAsync", (int(pool), stream), "cuMemFreeAsync", stream)
    try:
        refused = partial(case.context.require_room, size_bytes=size_bytes)
        pair.timed(WARM_UP_BYTES, np.zeros_like(out[:1]), refused)
        case.context.synchronize()
        check(driver.cuMemPoolTrimTo(pool, 0))
        pair.timed(size_bytes, out, refused)
        case.context.synchronize()
    finally:
        driver.cuMemPoolDestroy(pool)


def _own_pool(context: Context) -> driver.CUmemoryPool:
    """A pool of this GPU's memory that keeps what it has."""
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = int(context.device)
    pool = check(driver.cuMemPoolCreate(wanted))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    check(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(KEEP_ALL)))
    return pool


def _cupy_pool(case: Case, size_bytes: int, out: IntArray) -> None:
    """From Python, as its user has it: the block goes back to the pool when its last name does."""
    cupy = load_cupy()
    with cupy.cuda.Device(int(case.context.device)):
        pool = cupy.cuda.MemoryPool()
        try:
            block = pool.malloc(WARM_UP_BYTES)
            del block
            pool.free_all_blocks()
            for row in out:
                row[Allocation.BEGIN] = time.monotonic_ns()
                block = pool.malloc(size_bytes)
                row[Allocation.ALLOCATED] = time.monotonic_ns()
                row[Allocation.FREE_BEGIN] = time.monotonic_ns()
                del block
                row[Allocation.FREED] = time.monotonic_ns()
        except cupy.cuda.memory.OutOfMemoryError:
            case.context.require_room(int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY), size_bytes)
        finally:
            pool.free_all_blocks()


class Pair(NamedTuple):
    """Driver calls by name: take(where, bytes, *arguments) has memory, release(address, last) gives it back."""

    take: str
    arguments: tuple[int, int]
    release: str
    last: int

    def timed(self, size_bytes: int, out: IntArray, require: Callable[[int], None]) -> None:
        """Take and give back once for each row of ``out``, with the stamps of Allocation.

        ``require`` raises for a code of the first call that is a refusal; MeasurementError for any other error.
        """
        clock, held = c_address("clock_gettime"), np.zeros(1, dtype=np.int64)
        where, take, release = int(held.ctypes.data), entry_point(self.take), entry_point(self.release)
        for row in out:
            taken, released = take_and_release(
                take, where, size_bytes, *self.arguments, release, self.last, held, clock, row
            )
            require(taken)
            check_code(taken, self.take)
            check_code(released, self.release)

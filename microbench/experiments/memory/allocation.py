"""What it costs to allocate memory and free it: by the driver, from a pool, from CuPy's pool, pinned host memory."""

import time
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Literal

import numpy as np

from microbench.gpu.cuda.buffers import require_taken
from microbench.gpu.cuda.case import HOST_PORTABLE_MAPPED, OUT_OF_MEMORY, Case, memory_pool
from microbench.gpu.cuda.context import check, check_code, entry_point
from microbench.gpu.experiment import IntArray, Machine, Skip, driver, experiment, loops, require_host_memory
from microbench.gpu.layers.cupy import load_cupy
from microbench.host.memory import require_room
from microbench.host.native import c_address

AllocationWay = Literal["malloc", "pool", "cupy_pool", "host_pinned"]

WARM_UP_BYTES = 256


class Taking(IntEnum):
    """Columns of ``allocating`` and ``pinning``: the host clock before and after each call."""

    BEGIN = 0
    TAKEN = 1
    RELEASE_BEGIN = 2
    RELEASED = 3


def _allocating(case: Case, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """``count`` times: allocate memory and free it. Host clock in ns, shape (count, len(Taking)).

    The first allocation is the first of that size in this process. Each block is freed at once, also after an error. A
    pool is made for the call, used once and emptied, so that its first block comes from the driver and all others
    from the pool. The GPU is idle, so that cuMemFree has nothing to wait for.
    """
    out: IntArray = np.zeros((count, len(Taking)), dtype=np.int64)
    case.context.make_current()
    case.synchronize()
    refused = partial(case.require_room, size_bytes=size_bytes)
    match way:
        case "malloc":
            timed("cuMemAlloc", (0, 0), "cuMemFree", 0, size_bytes, out, refused)
        case "host_pinned":  # portable and mapped, like the buffers that are copied from
            require_room(size_bytes, "pinned host memory")
            refused = partial(require_taken, kind="pinned", size_bytes=size_bytes)
            timed("cuMemHostAlloc", (HOST_PORTABLE_MAPPED, 0), "cuMemFreeHost", 0, size_bytes, out, refused)
        case "pool":
            _pool(case, size_bytes, out, refused)
        case "cupy_pool":
            _cupy_pool(case, size_bytes, out)
    return out


def timed(
    take: str,
    arguments: tuple[int, int],
    release: str,
    last: int,
    size_bytes: int,
    out: IntArray,
    refused: Callable[[int], None],
    address: int = 0,
) -> None:
    """The driver calls ``take(where, bytes, *arguments)`` and ``release(address, last)`` for each row of ``out``, with
    the stamps of Taking. The first call takes an ``address``, or writes one where it is told to.

    ``refused`` raises for a code of the first call that is a refusal; MeasurementError is raised for any other error.
    """
    clock, held = c_address("clock_gettime"), np.array([address], dtype=np.int64)
    where, taking, releasing = address or int(held.ctypes.data), entry_point(take), entry_point(release)
    for row in out:
        taken, released = loops.take_and_release(
            taking, where, size_bytes, *arguments, releasing, last, held, clock, row
        )
        refused(taken)
        check_code(taken, take)
        check_code(released, release)


def _pool(case: Case, size_bytes: int, out: IntArray, refused: Callable[[int], None]) -> None:
    if not case.context.attribute("MEMORY_POOLS_SUPPORTED"):
        raise Skip("this GPU or driver has no memory pools")
    pool, stream = memory_pool(case.context, keeps_all=True), case.stream(0)
    calls = partial(timed, "cuMemAllocFromPoolAsync", (int(pool), stream), "cuMemFreeAsync", stream)
    try:
        calls(WARM_UP_BYTES, np.zeros_like(out[:1]), refused)
        case.synchronize()
        check(driver.cuMemPoolTrimTo(pool, 0))
        calls(size_bytes, out, refused)
        case.synchronize()
    finally:
        driver.cuMemPoolDestroy(pool)


def _cupy_pool(case: Case, size_bytes: int, out: IntArray) -> None:
    """From Python, as a user of CuPy does it: the block returns to the pool when its last reference is deleted."""
    cupy = load_cupy()
    with cupy.cuda.Device(int(case.context.device)):
        pool = cupy.cuda.MemoryPool()
        try:
            block = pool.malloc(WARM_UP_BYTES)
            del block
            pool.free_all_blocks()
            for row in out:
                row[Taking.BEGIN] = time.monotonic_ns()
                block = pool.malloc(size_bytes)
                row[Taking.TAKEN] = time.monotonic_ns()
                row[Taking.RELEASE_BEGIN] = time.monotonic_ns()
                del block
                row[Taking.RELEASED] = time.monotonic_ns()
        except cupy.cuda.memory.OutOfMemoryError:
            case.require_room(OUT_OF_MEMORY, size_bytes)
        finally:
            pool.free_all_blocks()


def _simulated_allocating(machine: Machine, way: AllocationWay, size_bytes: int, count: int) -> IntArray:
    """A pool is empty at first and keeps a block that is freed."""
    if way == "host_pinned":
        require_host_memory(machine.costs, "pinned", size_bytes)
    else:
        machine.room.require(size_bytes)
    own, steps = machine.costs.memory.blocks[way], -(-size_bytes // machine.costs.memory.block_step_bytes)
    first_ns, later_ns, release_ns = own.take.at(steps), own.take.at(steps), own.release.at(steps)
    if own.pooled_take_ns is not None:
        first_ns, later_ns = first_ns + own.pooled_take_ns, own.pooled_take_ns
        release_ns = own.pooled_release_ns
    return machine.take_and_release([(later_ns if index else first_ns, release_ns) for index in range(count)])


allocating = experiment(_allocating, _simulated_allocating)
